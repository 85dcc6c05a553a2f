"""Appendix 2, Bayesian neural network on MNIST: two agents, digits 0–4 and 5–9, W = 1/2.

The published network has 784, 100 and 10 units and SELU. It begins at random weights here, since at
the published start, zero, no gradient reaches its hidden layer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import consortia
from experiments.claims import Finding, untuned
from experiments.decentralized import images
from experiments.decentralized.images import Run, Scale

PRIOR_PRECISION = 10.0
STEP, ULA_STEP = 7e-5, 1e-7
"""The paper names no step of ULA here; α₀ is such that its first step is that of MA-HMC."""

HIDDEN = {"quick": 8, "small": 20, "full": 100}
SCALES = {
    "quick": Scale(400, 400, 7, 120, 40, (100, 20)),
    "small": Scale(1500, 2000, 14, 4000, 400, (150, 100), seeds=5),
    "full": Scale(images.PAPER_ROWS, 10_000, 28, 500_000, 2000, (1000, 1000), seeds=9),
}


def study(scale: str, seed: int) -> dict[str, Any]:
    """Every sampler with the digits apart, MA-HMC with random rows too, beside HMC on all rows."""
    chosen = SCALES[scale]
    train, test = images.images(chosen, seed, ones=False)
    precision = PRIOR_PRECISION * chosen.prior_share
    model = consortia.models.mlp(
        train["x"].shape[1],
        (HIDDEN[scale],),
        images.CLASSES,
        prior_scale=1 / math.sqrt(precision),
        activation="selu",
    )
    step, ula_step = STEP * chosen.step_factor, ULA_STEP * chosen.step_factor**2
    halves = images.by_digits(train, (range(5), range(5, 10)))
    whole = images.tuned("whole", model, [train], chosen, seed)

    def found(split: str, label: str, shards: list[images.Arrays], method: Any) -> dict[str, Any]:
        # Weights have many modes: only predictions are compared.
        run = Run(label, shards, method, compare=False)
        return images.outcome(split, run, model, test, chosen, seed, None)

    samplers = images.decentralized(step, ula_step, "complete", chosen.untested)
    rows = images.random_rows(train, 2, seed)
    parts = {
        "centralized": [
            {"label": "tuned HMC", **images.predicted(whole, model, test)},
            found("centralized", "HMC, one step", [train], images.centralized(step)),
        ],
        "digits apart": [
            found("digits apart", label, halves, method) for label, method in samplers.items()
        ],
        "random rows": [
            found("random rows", label, rows, method)
            for label, method in samplers.items()
            if "MA-HMC" in label
        ],
    }
    return {
        "rows": chosen.rows,
        "pixels": chosen.side**2,
        "hidden": HIDDEN[scale],
        "prior_precision": precision,
        "step_factor": chosen.step_factor,
        "iterations": chosen.iterations,
        "parts": parts,
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of appendix 2; ULA's step is ours, and a single one."""
    found, name = images.findings(results, "neural_network"), "neural_network-digits-apart-ula"
    if name in found:
        found[name] = replace(found[name], untuned=untuned("ULA", [ULA_STEP], ULA_STEP))
    return found


draw = images.draw
