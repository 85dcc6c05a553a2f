"""Section 5.2 on MNIST: LeNet with the settings of Caffe's example (batch 64, rate .01)."""

from __future__ import annotations

from typing import Any

from experiments.claims import Finding
from experiments.stale_gradients import caffe, images, workers

SCALES = {
    "quick": (images.Size(200, 100), workers.Scale(4, 2, 1, workers=(1, 2), servers=(1, 2))),
    "small": (images.Size(1000, 500), workers.Scale(20, 10, 5, factors=(1.0, 0.25))),
    "full": (images.Size(None, None), workers.Scale(10_000, 50, 3, factors=(1.0, 0.25))),
}


IMAGES = "mnist", (28, 28, 1)


def problem(data: images.Images) -> workers.Problem:
    """Return LeNet on these digits."""
    model = caffe.lenet(data.copies)
    return workers.Problem(model, data.sites, data.test, data.rows, 0.01, 64, together=False)


def study(scale: str, seed: int) -> dict[str, Any]:
    """Digits of ten classes."""
    size, lengths = SCALES[scale]
    return images.study(*IMAGES, problem, size, lengths, seed)


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figures 3 and 4."""
    return workers.findings(results, "lenet")


draw = workers.draw
