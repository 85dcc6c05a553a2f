"""Appendix 2, logistic (softmax) regression on MNIST: partial views of four agents, ring of five.

Partial view: complete network, W = 1/4, each agent a quarter of every image; beside it the same
rows dealt out whole. Ring: five agents with two digits each. The published "ring" is a path with
dense weights, (I + L)⁻¹; here it is a ring with the weights of `consortia.graphs`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import consortia
from experiments.claims import Finding
from experiments.decentralized import images
from experiments.decentralized.images import Run, Scale

PRIOR_PRECISION = 100.0
STEPS = {"partial view": 5e-4, "ring": 3e-3}
ULA_STEPS = {"partial view": 1e-5, "ring": 1e-4}
CENTRAL_STEP = 1e-3

SCALES = {
    "quick": Scale(400, 400, 7, 120, 40, (150, 50)),
    "small": Scale(1500, 2000, 14, 2000, 500, (200, 200), seeds=5),
    "full": Scale(images.PAPER_ROWS, 10_000, 28, 8000, 2000, (1000, 1000), seeds=9),
}
RING = {"full": (10_000, 1000)}
"""Iterations on the ring and the untested among them, where they are not those of partial views."""


def study(scale: str, seed: int) -> dict[str, Any]:
    """Every sampler on every split, beside tuned HMC on the same product of densities."""
    chosen = SCALES[scale]
    train, test = images.images(chosen, seed, ones=True)
    precision = PRIOR_PRECISION * chosen.prior_share
    model = consortia.models.softmax_regression(
        train["x"].shape[1], images.CLASSES, prior_scale=1 / math.sqrt(precision)
    )
    factor = chosen.step_factor
    pairs = [(2 * i, 2 * i + 1) for i in range(5)]
    splits = {
        "partial view, quarters": ("partial view", images.quarters(train, chosen.side)),
        "partial view, rows": ("partial view", images.random_rows(train, 4, seed)),
        "ring, two digits each": ("ring", images.by_digits(train, pairs)),
    }
    if scale == "quick":
        del splits["partial view, quarters"]  # with a reference of its own
    whole = images.tuned("whole", model, [train], chosen, seed)
    one_step = Run("HMC, one step", [train], images.centralized(CENTRAL_STEP * factor))
    parts: dict[str, list[dict[str, Any]]] = {
        "centralized": [
            {"label": "tuned HMC", **images.predicted(whole, model, test)},
            images.outcome("centralized", one_step, model, test, chosen, seed, whole),
        ]
    }
    for name, (network, shards) in splits.items():
        reference = whole
        parts[name] = []
        if "quarters" in name:
            reference = images.tuned(name, model, shards, chosen, seed)
            own = images.predicted(reference, model, test)
            parts[name].append({"label": "tuned HMC on the product", **own})
        mixing = "ring" if network == "ring" else "complete"
        steps = STEPS[network] * factor, ULA_STEPS[network] * factor**2
        iterations, untested = chosen.iterations, chosen.untested
        if network == "ring":
            iterations, untested = RING.get(scale, (iterations, untested))
        lengths = replace(chosen, iterations=iterations, untested=untested)
        for label, method in images.decentralized(*steps, mixing, untested).items():
            run = Run(label, shards, method)
            parts[name].append(images.outcome(name, run, model, test, lengths, seed, reference))
    return {
        "rows": chosen.rows,
        "pixels": chosen.side**2,
        "prior_precision": precision,
        "step_factor": factor,
        "iterations": chosen.iterations,
        "iterations_to_relax_at_most": {
            name: 2 * agents / ((STEPS[name] * factor) ** 2 * precision)
            for name, agents in (("partial view", 4), ("ring", 5))
        },
        "parts": parts,
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of appendix 2."""
    return images.findings(results, "logistic")


draw = images.draw
