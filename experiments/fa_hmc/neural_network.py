"""Section 5.4, figure 5: a network with two hidden ReLU layers on Fashion-MNIST.

Ten clients with 6,000 random rows each, pixels/255 and a column of ones, prior N(0, I) on weights
and biases. The text says two hidden layers. The footnote, "the widths of two layers are 512 times
input dimension and 512 times the number of classification labels", has the shapes of two weight
matrices, 512 × 784 and 512 × 10: those of a network with one hidden layer. Both are run; smaller
scales have fewer units.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import consortia
from experiments.claims import Finding
from experiments.fa_hmc import classification
from experiments.fa_hmc.classification import Lengths, Setting

DATA = "fashion_mnist"
CLASSES = 10


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
    """

    train_rows: int | None
    hidden: tuple[int, int]
    lengths: Lengths
    batch_size: int
    local_steps: int
    leapfrog: dict[int, tuple[float, ...]]
    local: dict[int, tuple[float, ...]]
    printed: dict[int, tuple[float, ...]] = field(default_factory=dict)


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
            1: (4e-4, 1e-3, 2e-3, 4e-3, 8e-3),
            10: (1e-4, 2e-4, 4e-4, 8e-4),
            50: (5e-5, 1e-4, 2e-4, 4e-4),
            100: (2e-5, 5e-5, 1e-4, 2e-4),
        },
        local=dict.fromkeys((1, 10, 50), (1e-4, 2e-4, 4e-4, 8e-4)),
        printed={1: (4e-4, 1e-3, 2e-3, 4e-3, 8e-3), 10: (1e-4, 2e-4, 4e-4, 8e-4)},
    ),
}


def study(scale: str, seed: int) -> dict[str, Any]:
    """The sweeps over K and over T."""
    chosen = SCALES[scale]
    task = classification.image_task(DATA, seed, train_rows=chosen.train_rows)
    model = consortia.models.mlp(task.features, chosen.hidden, CLASSES)
    batch, steps = chosen.batch_size, chosen.local_steps
    candidates = {
        f"K = {k}": [Setting(k, steps, size, batch) for size in sizes]
        for k, sizes in chosen.leapfrog.items()
    }
    by_local = {
        f"T = {t}": [Setting(10, t, size, batch) for size in sizes]
        for t, sizes in chosen.local.items()
    }
    printed = {
        f"K = {k}": [Setting(k, steps, size, batch) for size in sizes]
        for k, sizes in chosen.printed.items()
    }
    one = consortia.models.mlp(task.features, chosen.hidden[:1], CLASSES)
    named = task._replace(name="one-layer")
    return {
        "hidden": chosen.hidden,
        "printed": classification.sweep(one, named, printed, chosen.lengths, seed=seed),
        "leapfrog": classification.sweep(model, task, candidates, chosen.lengths, seed=seed),
        "local": classification.sweep(model, task, by_local, chosen.lengths, seed=seed),
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 5."""
    widest = results["leapfrog"][-1:]
    found = {
        f"fig5-{score}": Finding(
            *classification.last(widest, score)[widest[0]["label"]],
            untuned=classification.coarse(widest),
        )
        for score in ("accuracy", "brier", "ece")
    }
    labels = [part["label"] for part in results["leapfrog"]]
    if "K = 1" in labels:
        for score in ("brier", "ece"):
            one, other = ("K = 10", "K = 1") if score == "ece" else ("K = 1", "K = 10")
            found[f"fig5-best-{score}"] = classification.better(
                results["leapfrog"], score, one, other
            )
    if results["local"]:
        found["fig5-local"] = classification.better(results["local"], "brier", "T = 10", "T = 1")
    if results.get("printed"):
        one = results["printed"]
        found["fig5-printed-accuracy"] = Finding(
            *classification.last(one, "accuracy")["K = 10"], untuned=classification.coarse(one)
        )
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw the sweep over K, figure 5(a) to (c), and over T, (d) to (f)."""
    classification.draw_curves(results["leapfrog"], axes[:3])
    local = classification.with_fifty(results["local"], results["leapfrog"])
    classification.draw_curves(local, axes[3:])
