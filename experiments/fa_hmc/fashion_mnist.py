"""Section 5.3, figures 3 and 4: softmax regression on Fashion-MNIST.

Ten clients with 6,000 random rows each, pixels/255 and a column of ones, prior N(0, I).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import consortia
from experiments import records
from experiments.claims import Finding, untuned
from experiments.fa_hmc import classification
from experiments.fa_hmc.classification import Lengths, Setting, Task

DATA = "fashion_mnist"
CLASSES = 10
HEADLINE = Setting(leapfrog_steps=10, local_steps=50, step_size=7e-4, batch_size=250)
LANGEVIN = HEADLINE._replace(leapfrog_steps=1)


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        train_rows: None for all 60,000.
        test_rows: None for all 10,000.
        headline: a setting that is run by itself; None to take K = 10 and K = 1 of the sweep.
        headline_rounds: rounds of that setting.
        langevin_rounds: rounds of the same with K = 1 at the same step size.
        batch_size: of the sweeps.
        lengths: of the runs of the sweeps, and their numbers.
        leapfrog: step sizes to choose from by K, at T = 50.
        local: step sizes to choose from by T, at K = 10; T = 50 is in the sweep over K.
    """

    train_rows: int | None
    test_rows: int | None
    headline: Setting | None
    headline_rounds: int
    langevin_rounds: int
    batch_size: int
    lengths: Lengths
    leapfrog: dict[int, tuple[float, ...]]
    local: dict[int, tuple[float, ...]]


SCALES = {
    "quick": Scale(
        train_rows=6000,
        test_rows=2000,
        headline=Setting(5, 10, 2e-3, 50),
        headline_rounds=3,
        langevin_rounds=3,
        batch_size=50,
        lengths=Lengths(2),
        leapfrog={},
        local={},
    ),
    "small": Scale(
        train_rows=None,
        test_rows=None,
        headline=HEADLINE,
        headline_rounds=40,
        langevin_rounds=20,
        batch_size=100,
        lengths=Lengths(10, runs=5, most=classification.MOST_STEPS),
        leapfrog={1: (1.5e-3, 2.5e-3, 4e-3), 10: (7e-4, 1.2e-3), 50: (4e-4,), 100: (2e-4,)},
        local={1: (1.5e-3, 2.5e-3), 10: (7e-4, 1.5e-3), 20: (7e-4, 1.5e-3)},
    ),
    "full": Scale(
        train_rows=None,
        test_rows=None,
        headline=None,
        headline_rounds=0,
        langevin_rounds=0,
        batch_size=1000,
        lengths=Lengths(200, tune_rounds=50, best_runs=2, most=classification.MOST_STEPS),
        leapfrog={
            1: (1.5e-3, 2.5e-3, 4e-3, 6e-3),
            10: (7e-4, 1.1e-3, 1.6e-3, 2.4e-3),
            50: (2e-4, 4e-4, 7e-4, 1.2e-3),
            100: (1e-4, 2e-4, 3.5e-4, 6e-4),
        },
        local={
            1: (1e-3, 1.5e-3, 2.2e-3, 3.2e-3),
            10: (7e-4, 1.1e-3, 1.6e-3, 2.4e-3),
            20: (7e-4, 1.1e-3, 1.6e-3, 2.4e-3),
            100: (5e-4, 7e-4, 1.1e-3, 1.6e-3),
        },
    ),
}


def model_of(task: Task) -> consortia.Model:
    """Softmax regression; the column of ones takes the place of an intercept."""
    return consortia.models.softmax_regression(task.features, CLASSES)


def headline(task: Task, setting: Setting, rounds: int, seed: int) -> list[dict[str, float]]:
    """The curve of one setting."""
    points = classification.attempt(model_of(task), task, setting, rounds=rounds, seed=seed)[
        "curve"
    ]
    sampler = f"K = {setting.leapfrog_steps}, η = {setting.step_size:g}"
    records.say(f"{sampler}: {classification.told(points[-1])}")
    return points


def study(scale: str, seed: int) -> dict[str, Any]:
    """The headline setting, K = 1 at its step size, and the sweeps over K and T."""
    chosen = SCALES[scale]
    task = classification.image_task(
        DATA, seed, train_rows=chosen.train_rows, test_rows=chosen.test_rows
    )
    model = model_of(task)
    batch = chosen.batch_size
    by_leapfrog = {
        f"K = {k}": [Setting(k, 50, size, batch) for size in sizes]
        for k, sizes in chosen.leapfrog.items()
    }
    by_local = {
        f"T = {t}": [Setting(10, t, size, batch) for size in sizes]
        for t, sizes in chosen.local.items()
    }
    alone = {} if chosen.headline is None else by_themselves(task, chosen, chosen.headline, seed)
    return alone | {
        "leapfrog": classification.sweep(model, task, by_leapfrog, chosen.lengths, seed=seed),
        "local": classification.sweep(model, task, by_local, chosen.lengths, seed=seed),
    }


def by_themselves(task: Task, chosen: Scale, one: Setting, seed: int) -> dict[str, Any]:
    """Return one setting outside the sweeps, and K = 1 at its step size."""
    langevin = one._replace(leapfrog_steps=1)
    return {
        "headline": {
            "setting": one._asdict(),
            "runs": [headline(task, one, chosen.headline_rounds, seed)],
            "label": f"K = {one.leapfrog_steps}, B = {one.batch_size}",
        },
        "langevin": {
            "setting": langevin._asdict(),
            "runs": [headline(task, langevin, chosen.langevin_rounds, seed)],
            "label": "K = 1, same step size",
        },
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figures 3 and 4, of the settings that there are."""
    by_leapfrog, own = (classification.finished(results[name]) for name in ("leapfrog", "local"))
    leapfrog = {part["label"]: part for part in by_leapfrog}
    local = classification.with_fifty(own, by_leapfrog)
    found = {}
    one = results.get("headline") or leapfrog.get("K = 10")
    if one is not None:
        step = one["setting"]["step_size"]
        coarse = classification.coarse([one]) if "tried" in one else untuned("K = 10", [step], step)
        found = {
            f"fig3-{score}": Finding(
                one["runs"][0][-1][score],
                untuned=coarse,
                spread=classification.spread(by_leapfrog, "K = 10", score),
            )
            for score in classification.SCORES
        }
    found |= of_leapfrogs(by_leapfrog) | of_local_steps(local)
    repeated = [part for part in by_leapfrog + own if len(part["runs"]) > 2]
    if repeated and own:
        found["suppl-runs"] = spread(repeated)
    return found


def of_leapfrogs(parts: Sequence[Mapping[str, Any]]) -> dict[str, Finding]:
    """Return the findings of figure 3's comparisons; of the best K only where all were run."""
    labels = {part["label"] for part in parts}
    found = {}
    if {"K = 50", "K = 1"} <= labels:
        for score in ("ece", "nll"):
            found[f"fig3-{score}-gain"] = classification.better(parts, score, "K = 50", "K = 1")
    for other in ("K = 10", "K = 100"):
        if {"K = 50", other} <= labels:
            found[f"fig3-best-{other[4:]}"] = classification.better(parts, "nll", "K = 50", other)
    if {"K = 1", "K = 10", "K = 50", "K = 100"} <= labels:
        for score in ("accuracy", "brier"):
            found[f"fig3-{score}-best"] = classification.lead(parts, score, "K = 50")
        found["fig3-langevin"] = Finding(
            float(classification.place(parts, "accuracy", "K = 1")),
            pairs=classification.fewest_runs(parts),
            untuned=classification.coarse(parts),
        )
    return found


def of_local_steps(parts: Sequence[Mapping[str, Any]]) -> dict[str, Finding]:
    """Return the findings of figure 4's comparisons."""
    labels = {part["label"] for part in parts}
    found = {}
    for claim, score, one, other in (
        ("fig4-worst", "nll", "T = 10", "T = 1"),
        ("fig4-brier", "brier", "T = 50", "T = 20"),
        ("fig4-nll", "nll", "T = 20", "T = 50"),
    ):
        if {one, other} <= labels:
            found[claim] = classification.better(parts, score, one, other)
    if {"T = 1", "T = 10", "T = 20", "T = 50"} <= labels:
        worst = [classification.place(parts, score, "T = 1") for score in classification.SCORES]
        found["fig4-worst-all"] = Finding(
            float(worst.count(1)),
            pairs=classification.fewest_runs(parts),
            untuned=classification.coarse(parts),
        )
    return found


def spread(parts: Sequence[Mapping[str, Any]]) -> Finding:
    """Return the standard deviation of the last NLL over the runs, in per cent, of each setting."""
    by = {part["label"]: [run[-1]["nll"] for run in part["runs"]] for part in parts}
    percent = {label: 100 * np.std(v, ddof=1) / np.mean(v) for label, v in by.items() if len(v) > 1}
    told = ", ".join(f"{label}: {value:.2g} %" for label, value in percent.items())
    return Finding(float(max(percent.values())), shown=told)


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw figure 3, the sweep over K, and figure 4, the sweep over T."""
    alone = [results[name] for name in ("langevin", "headline") if name in results]
    sweep = classification.comparison(results["leapfrog"]) or alone[:1]
    classification.draw_curves([*sweep, *alone[1:]], axes[:4])
    local = classification.with_fifty(results["local"], results["leapfrog"])
    classification.draw_curves(local or alone[1:], axes[4:])
