"""Section 5.5, figures 6 and 7: logistic regression on KMNIST and on two classes of CIFAR-10.

Ten clients with random rows, pixels/255 and a column of ones, prior N(0, I). The two classes are
airplane and automobile. Read the notes that a run prints: KMNIST is used without its 60,000
training images (its 10,000 test images are split), and CIFAR-2 is decoded from JPEG.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import consortia
from experiments import records
from experiments.claims import Finding
from experiments.fa_hmc import classification
from experiments.fa_hmc.classification import Lengths, Setting, Task

CLASSES = {"kmnist": 10, "cifar2": 2}
Grid = dict[str, dict[int, tuple[float, ...]]]


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        train_rows: a random subset of the training rows; None for all.
        lengths: of the runs, and their numbers.
        local_runs: independent runs of each chosen setting of the sweep over T.
        batch_size: rows of a gradient draw; all of a client's where it has no more.
        local_steps: T of the sweep over K.
        leapfrog: step sizes to choose from, by data set and K.
        local: step sizes to choose from, by data set and T, at K = 10.
    """

    train_rows: int | None
    lengths: Lengths
    local_runs: int
    batch_size: int
    local_steps: int
    leapfrog: Grid
    local: Grid


SCALES = {
    "quick": Scale(
        train_rows=2000,
        lengths=Lengths(3),
        local_runs=1,
        batch_size=20,
        local_steps=20,
        leapfrog={"kmnist": {2: (4e-3,)}, "cifar2": {2: (2e-3,)}},
        local={"kmnist": {}, "cifar2": {}},
    ),
    "small": Scale(
        train_rows=None,
        lengths=Lengths(10, runs=5, most=classification.MOST_STEPS),
        local_runs=5,
        batch_size=100,
        local_steps=50,
        leapfrog={
            "kmnist": {1: (4e-3, 8e-3, 1.6e-2, 3.2e-2), 10: (5e-4, 1e-3, 2e-3, 4e-3)},
            "cifar2": {1: (7e-4, 1e-3, 1.4e-3, 2.8e-3), 10: (4e-4, 8e-4, 1.2e-3, 1.8e-3)},
        },
        local={
            "kmnist": dict.fromkeys((1, 10), (2e-3, 4e-3, 8e-3, 1.6e-2)),
            "cifar2": dict.fromkeys((1, 10), (7e-4, 1.4e-3, 2.8e-3, 5.6e-3)),
        },
    ),
    "full": Scale(
        train_rows=None,
        lengths=Lengths(200, tune_rounds=50, most=classification.MOST_STEPS),
        local_runs=5,
        batch_size=1000,
        local_steps=50,
        leapfrog={
            "kmnist": {
                1: (2e-3, 4e-3, 8e-3, 1.6e-2),
                10: (5e-4, 1e-3, 2e-3, 4e-3),
                50: (2e-4, 4e-4, 8e-4, 1.6e-3),
            },
            "cifar2": {
                1: (7e-4, 1e-3, 1.5e-3, 2.2e-3),
                10: (4e-4, 6e-4, 9e-4, 1.4e-3),
                50: (1e-4, 2e-4, 4e-4, 8e-4),
            },
        },
        local={
            "kmnist": dict.fromkeys((1, 10), (1e-3, 2e-3, 4e-3, 8e-3)),
            "cifar2": dict.fromkeys((1, 10), (5e-4, 8e-4, 1.3e-3, 2e-3)),
        },
    ),
}


def model_of(task: Task) -> consortia.Model:
    """Logistic regression for two classes, softmax regression for ten."""
    classes = CLASSES[task.name]
    if classes == 2:
        return consortia.models.logistic_regression(task.features)
    return consortia.models.softmax_regression(task.features, classes)


def study_of(task: Task, scale: Scale, seed: int) -> dict[str, Any]:
    """The sweeps over K and over T on one data set."""
    steps = scale.local_steps
    batch: int | None = scale.batch_size
    if scale.batch_size >= task.sites.sizes.max():
        batch = None
    candidates = {
        f"K = {k}": [Setting(k, steps, size, batch) for size in sizes]
        for k, sizes in scale.leapfrog[task.name].items()
    }
    by_local = {
        f"T = {t}": [Setting(10, t, size, batch) for size in sizes]
        for t, sizes in scale.local[task.name].items()
    }
    model = model_of(task)
    local_lengths = scale.lengths._replace(runs=scale.local_runs)
    return {
        "note": task.note,
        "held_out": len(task.test["y"]),
        "leapfrog": classification.sweep(model, task, candidates, scale.lengths, seed=seed),
        "local": classification.sweep(model, task, by_local, local_lengths, seed=seed),
    }


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return the sweeps on both data sets."""
    chosen = SCALES[scale]
    results: dict[str, Any] = {}
    for name in CLASSES:
        task = classification.image_task(name, seed, train_rows=chosen.train_rows)
        records.say(f"{name}: {task.note}")
        results[name] = study_of(task, chosen, seed)
    return results


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figures 6 and 7, of the settings that there are."""
    found = {}
    for name in CLASSES:
        leapfrog, local = (
            classification.finished(results[name][sweep]) for sweep in ("leapfrog", "local")
        )
        for part in [part for part in leapfrog if part["label"] != "K = 1"][:1]:
            for score in ("accuracy", "brier", "ece"):
                found[f"fig6-{name}-{score}"] = Finding(
                    *classification.last([part], score)[part["label"]],
                    untuned=classification.coarse([part]),
                    spread=classification.spread([part], part["label"], score),
                )
        if {"K = 1", "K = 10"} <= {part["label"] for part in leapfrog}:
            found[f"fig6-{name}-leapfrogs"] = classification.better(
                leapfrog, "brier", "K = 10", "K = 1"
            )
        if {"T = 1", "T = 10"} <= {part["label"] for part in local}:
            for score, end in (("brier", ""), ("ece", "-ece")):
                found[f"fig7-{name}{end}"] = classification.better(local, score, "T = 10", "T = 1")
            if name == "kmnist":
                found["fig7-kmnist-accuracy"] = classification.lead(local, "accuracy", "T = 10")
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw figure 6, the sweep over K, and figure 7, over T: CIFAR-2 before KMNIST."""
    for place, name in enumerate(("cifar2", "kmnist")):
        part = results[name]
        leapfrog = classification.comparison(part["leapfrog"])
        classification.draw_curves(leapfrog, axes[3 * place : 3 * place + 3])
        local = classification.with_fifty(part["local"], leapfrog)
        classification.draw_curves(local, axes[6 + 3 * place : 9 + 3 * place])
