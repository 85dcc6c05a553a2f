"""Section 5.4, figure 5: a network with two hidden ReLU layers on Fashion-MNIST.

Ten clients with 6,000 random rows each, pixels/255 and a column of ones, prior N(0, I) on weights
and biases. The text says two hidden layers. The footnote, "the widths of two layers are 512 times
input dimension and 512 times the number of classification labels", has the shapes of two weight
matrices, 512 × 784 and 512 × 10: those of a network with one hidden layer. Both are run; smaller
scales have fewer units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import consortia
from experiments.claims import Finding
from experiments.fa_hmc import classification
from experiments.fa_hmc.classification import Lengths, Setting, Task

DATA = "fashion_mnist"
CLASSES = 10
Grid = Mapping[int, tuple[float, ...]]
Candidates = Mapping[str, Sequence[Setting]]


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        train_rows: a random subset of the training rows; None for all.
        hidden: widths of the hidden layers.
        lengths: of the runs, and their numbers.
        batch_size: rows of a gradient draw.
        local_steps: T of the sweep over K.
        leapfrog: step sizes to choose from by K.
        local: step sizes to choose from by T, at K = 10.
        printed: step sizes to choose from with one hidden layer, by K.
        printed_local: likewise by T, at K = 10.
    """

    train_rows: int | None
    hidden: tuple[int, int]
    lengths: Lengths
    batch_size: int
    local_steps: int
    leapfrog: dict[int, tuple[float, ...]]
    local: dict[int, tuple[float, ...]]
    printed: dict[int, tuple[float, ...]] = field(default_factory=dict)
    printed_local: dict[int, tuple[float, ...]] = field(default_factory=dict)


SCALES = {
    "quick": Scale(6000, (16, 16), Lengths(3), 50, 20, {2: (2e-3,)}, {}),
    "small": Scale(
        train_rows=None,
        hidden=(64, 64),
        lengths=Lengths(10, runs=5, most=classification.MOST_STEPS),
        batch_size=100,
        local_steps=50,
        leapfrog={1: (1e-3, 2e-3, 4e-3, 8e-3), 10: (6e-4, 1e-3, 1.7e-3, 3e-3)},
        local={1: (1e-3, 2e-3, 4e-3, 8e-3), 10: (6e-4, 1e-3, 1.7e-3, 3e-3)},
        printed={1: (1e-3, 2e-3, 4e-3, 8e-3), 10: (6e-4, 1e-3, 1.7e-3, 3e-3)},
    ),
    "full": Scale(
        train_rows=None,
        hidden=(512, 512),
        lengths=Lengths(200, tune_rounds=50, most=classification.MOST_STEPS),
        batch_size=1000,
        local_steps=50,
        leapfrog={
            1: (1e-3, 2e-3, 4e-3, 8e-3),
            10: (3e-4, 5e-4, 8e-4, 1.2e-3),
            50: (5e-5, 1e-4, 2e-4, 4e-4),
            100: (2e-5, 5e-5, 1e-4, 2e-4),
        },
        local=dict.fromkeys((1, 10), (3e-4, 5e-4, 8e-4, 1.2e-3)),
        printed={1: (1e-3, 2e-3, 4e-3, 8e-3), 10: (3e-4, 5e-4, 8e-4, 1.2e-3)},
        printed_local=dict.fromkeys((1, 10), (3e-4, 5e-4, 8e-4, 1.2e-3)),
    ),
}


def study(scale: str, seed: int) -> dict[str, Any]:
    """The sweeps over K and over T, with two hidden layers and with one."""
    chosen = SCALES[scale]
    task = classification.image_task(DATA, seed, train_rows=chosen.train_rows)
    one = task._replace(name="one-layer")
    steps, batch = chosen.local_steps, chosen.batch_size

    def by_leapfrog(grid: Grid) -> Candidates:
        return {f"K = {k}": [Setting(k, steps, e, batch) for e in grid[k]] for k in grid}

    def by_local(grid: Grid) -> Candidates:
        return {f"T = {t}": [Setting(10, t, e, batch) for e in grid[t]] for t in grid}

    def swept(task: Task, layers: int, candidates: Candidates) -> list[dict[str, Any]]:
        model = consortia.models.mlp(task.features, chosen.hidden[:layers], CLASSES)
        return classification.sweep(model, task, candidates, chosen.lengths, seed=seed)

    return {
        "hidden": chosen.hidden,
        "printed": swept(one, 1, by_leapfrog(chosen.printed)),
        "printed_local": swept(one, 1, by_local(chosen.printed_local)),
        "leapfrog": swept(task, 2, by_leapfrog(chosen.leapfrog)),
        "local": swept(task, 2, by_local(chosen.local)),
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 5, of the settings that there are."""
    found = of_sweeps("fig5", results["leapfrog"], results["local"])
    # An earlier record has no such sweeps.
    printed, local = (results.get(name, []) for name in ("printed", "printed_local"))
    return found | of_sweeps("fig5-printed", printed, local)


def of_sweeps(
    figure: str, leapfrog: Sequence[Mapping[str, Any]], local: Sequence[Mapping[str, Any]]
) -> dict[str, Finding]:
    """Return the findings of one of the two networks."""
    found = {}
    leapfrog, local = classification.finished(leapfrog), classification.finished(local)
    labels = {part["label"] for part in leapfrog}
    shown = [part for part in leapfrog if part["label"] in ("K = 10", "K = 2")]  # K = 2 is quick's
    for score in ("accuracy", "brier", "ece") if shown else ():
        found[f"{figure}-{score}"] = Finding(
            *classification.last(shown, score)[shown[0]["label"]],
            untuned=classification.coarse(shown),
        )
    if {"K = 1", "K = 10"} <= labels:
        for score, one, other in (("brier", "K = 1", "K = 10"), ("ece", "K = 10", "K = 1")):
            found[f"{figure}-best-{score}"] = classification.better(leapfrog, score, one, other)
    if {"T = 1", "T = 10"} <= {part["label"] for part in local}:
        found[f"{figure}-local"] = classification.better(local, "brier", "T = 10", "T = 1")
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw the sweep over K, figure 5(a) to (c), and over T, (d) to (f): the larger network's."""
    leapfrog = classification.comparison(results["leapfrog"])
    printed = results.get("printed", [])
    classification.draw_curves([*leapfrog, *with_one_layer(printed)], axes[:3])
    local = classification.with_fifty(results["local"], leapfrog)
    one = classification.with_fifty(results.get("printed_local", []), printed)
    classification.draw_curves([*local, *with_one_layer(one)], axes[3:])


def with_one_layer(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a sweep under labels that say which network it is."""
    return [{**part, "label": f"{part['label']}, one layer"} for part in parts]
