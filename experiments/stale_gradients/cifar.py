"""Section 5.2 on CIFAR-10: Caffe's Cifar10-quick (batch 100, rate .001).

The images went through JPEG; the paper's did not.
"""

from __future__ import annotations

from typing import Any

from experiments.claims import Finding
from experiments.stale_gradients import caffe, images, workers

SCALES = {
    "quick": (images.Size(100, 50), workers.Scale(2, 1, 1, workers=(1, 2), servers=(1, 2))),
    "small": (images.Size(1000, 500), workers.Scale(20, 20, 5, factors=(1.0, 0.25))),
    "full": (images.Size(None, None), workers.Scale(4000, 50, 3, factors=(1.0, 0.25))),
}


IMAGES = "cifar10", (32, 32, 3)


def problem(data: images.Images) -> workers.Problem:
    """Return Cifar10-quick on these photographs."""
    model = caffe.cifar10_quick(data.mean, copies=data.copies)
    return workers.Problem(model, data.sites, data.test, data.rows, 0.001, 100, together=False)


def study(scale: str, seed: int) -> dict[str, Any]:
    """Photographs of ten classes."""
    size, lengths = SCALES[scale]
    return images.study(*IMAGES, problem, size, lengths, seed)


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figures 3 and 4."""
    return workers.findings(results, "cifar")


draw = workers.draw
