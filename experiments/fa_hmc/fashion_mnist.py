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
from experiments.fa_hmc.classification import Setting, Task

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
        headline_rounds: rounds of the setting `HEADLINE`.
        langevin_rounds: rounds of the same with K = 1 at the same step size.
        headline: the setting of that run.
        batch_size: of the sweeps.
        sweep_rounds: rounds of the sweeps.
        runs: independent runs of each setting of the sweeps.
        leapfrog: step sizes to choose from by K, at T = 50.
        local: step sizes to choose from by T, at K = 10; T = 50 is in the sweep over K.
    """

    train_rows: int | None
    test_rows: int | None
    headline_rounds: int
    langevin_rounds: int
    headline: Setting
    batch_size: int
    sweep_rounds: int
    runs: int
    leapfrog: dict[int, tuple[float, ...]]
    local: dict[int, tuple[float, ...]]


SCALES = {
    "quick": Scale(
        train_rows=6000,
        test_rows=2000,
        headline_rounds=3,
        langevin_rounds=3,
        headline=Setting(5, 10, 2e-3, 50),
        batch_size=50,
        sweep_rounds=2,
        runs=1,
        leapfrog={},
        local={},
    ),
    "small": Scale(
        train_rows=None,
        test_rows=None,
        headline_rounds=40,
        langevin_rounds=20,
        headline=HEADLINE,
        batch_size=100,
        sweep_rounds=10,
        runs=5,
        leapfrog={1: (1.5e-3, 2.5e-3, 4e-3), 10: (7e-4, 1.2e-3), 50: (4e-4,), 100: (2e-4,)},
        local={1: (1.5e-3, 2.5e-3), 10: (7e-4, 1.5e-3), 20: (7e-4, 1.5e-3)},
    ),
    "full": Scale(
        train_rows=None,
        test_rows=None,
        headline_rounds=200,
        langevin_rounds=200,
        headline=HEADLINE,
        batch_size=1000,
        sweep_rounds=200,
        runs=5,
        leapfrog={
            1: (1e-3, 2e-3, 4e-3),
            10: (4e-4, 7e-4, 1e-3),
            50: (2e-4, 4e-4, 7e-4),
            100: (1e-4, 2e-4, 4e-4),
        },
        local=dict.fromkeys((1, 10, 20, 100), (4e-4, 7e-4, 1e-3)),
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
    langevin = chosen.headline._replace(leapfrog_steps=1)
    results: dict[str, Any] = {
        "headline": {
            "setting": chosen.headline._asdict(),
            "runs": [headline(task, chosen.headline, chosen.headline_rounds, seed)],
            "label": f"K = {chosen.headline.leapfrog_steps}, B = {chosen.headline.batch_size}",
        },
        "langevin": {
            "setting": langevin._asdict(),
            "runs": [headline(task, langevin, chosen.langevin_rounds, seed)],
            "label": "K = 1, same step size",
        },
    }
    model = model_of(task)
    batch = chosen.batch_size
    options: dict[str, Any] = {"rounds": chosen.sweep_rounds, "seed": seed, "runs": chosen.runs}
    options["most"] = classification.MOST_STEPS[scale]
    by_leapfrog = {
        f"K = {k}": [Setting(k, 50, size, batch) for size in sizes]
        for k, sizes in chosen.leapfrog.items()
    }
    results["leapfrog"] = classification.sweep(model, task, by_leapfrog, **options)
    by_local = {
        f"T = {t}": [Setting(10, t, size, batch) for size in sizes]
        for t, sizes in chosen.local.items()
    }
    results["local"] = classification.sweep(model, task, by_local, **options)
    return results


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figures 3 and 4."""
    end, setting = results["headline"]["runs"][0][-1], results["headline"]["setting"]
    single = untuned("K = 10", [setting["step_size"]], setting["step_size"])
    found = {
        f"fig3-{score}": Finding(end[score], untuned=single) for score in classification.SCORES
    }
    if results["leapfrog"]:
        for score in ("ece", "nll"):
            found[f"fig3-{score}-gain"] = classification.better(
                results["leapfrog"], score, "K = 50", "K = 1"
            )
        for other in ("K = 10", "K = 100"):
            found[f"fig3-best-{other[4:]}"] = classification.better(
                results["leapfrog"], "nll", "K = 50", other
            )
        for score in ("accuracy", "brier"):
            found[f"fig3-{score}-best"] = classification.lead(results["leapfrog"], score, "K = 50")
        found["fig3-langevin"] = Finding(
            float(classification.place(results["leapfrog"], "accuracy", "K = 1")),
            untuned=classification.coarse(results["leapfrog"]),
        )
    if results["local"]:
        local = classification.with_fifty(results["local"], results["leapfrog"])
        found["fig4-worst"] = classification.better(local, "nll", "T = 10", "T = 1")
        found["fig4-brier"] = classification.better(local, "brier", "T = 50", "T = 20")
        found["fig4-nll"] = classification.better(local, "nll", "T = 20", "T = 50")
        worst = [classification.place(local, score, "T = 1") for score in classification.SCORES]
        found["fig4-worst-all"] = Finding(
            float(worst.count(1)), untuned=classification.coarse(local)
        )
    if results["local"] and len(results["local"][0]["runs"]) > 1:
        found["suppl-runs"] = spread(results["leapfrog"] + results["local"])
    return found


def spread(parts: Sequence[Mapping[str, Any]]) -> Finding:
    """Return the standard deviation of the last NLL over the runs, in per cent, of each setting."""
    by = {part["label"]: [run[-1]["nll"] for run in part["runs"]] for part in parts}
    percent = {label: 100 * np.std(v, ddof=1) / np.mean(v) for label, v in by.items() if len(v) > 1}
    told = ", ".join(f"{label}: {value:.2g} %" for label, value in percent.items())
    return Finding(float(max(percent.values())), shown=told)


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw figure 3, the sweep over K, and figure 4, the sweep over T."""
    sweep = results["leapfrog"] or [results["langevin"]]
    classification.draw_curves([*sweep, results["headline"]], axes[:4])
    local = classification.with_fifty(results["local"], results["leapfrog"])
    classification.draw_curves(local or [results["headline"]], axes[4:])
