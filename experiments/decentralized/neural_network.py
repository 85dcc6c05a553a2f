"""Appendix 2, Bayesian neural network on MNIST: two agents, digits 0–4 and 5–9, W = 1/2.

The published network has 784, 100 and 10 units and SELU. It begins at random weights here, since at
the published start, zero, no gradient reaches its hidden layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import consortia
from consortia.errors import NonFiniteError
from experiments import records
from experiments.claims import Finding, over_pairs, untuned
from experiments.decentralized import images
from experiments.decentralized.images import Run, Scale

PRIOR_PRECISION = 10.0
STEP, ULA_STEP = 7e-5, 1e-7
"""The paper names no step of ULA here; with this α₀ its first step is that of MA-HMC."""
PUBLISHED = "MA-HMC, published", "ULA, published"
"""Labels of the samplers that are tuned for a comparison, both in the same way."""
FACTORS: dict[str, dict[str, tuple[float, ...]]] = {
    "quick": dict.fromkeys(PUBLISHED, (1.0,)),
    "small": {PUBLISHED[0]: (1.0, 2.0, 4.0, 8.0), PUBLISHED[1]: (2.0, 4.0, 8.0, 16.0)},
    "full": {PUBLISHED[0]: (1.0, 2.0, 4.0, 8.0), PUBLISHED[1]: (2.0, 4.0, 8.0, 16.0)},
}
"""Multiples of their steps, tried with the first seed for the least NLL, beyond the ends too."""
MOST_FACTORS = 9
TUNED = ", tuned"

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

    def samplers(factor: float) -> dict[str, Any]:
        steps = factor * step, factor * ula_step
        return images.decentralized(*steps, "complete", chosen.untested)

    def loss(label: str, factor: float) -> float | None:
        run = Run(label, halves, samplers(factor)[label], compare=False)
        try:
            return float(images.once(run, model, test, chosen, seed, None)["nll"])
        except NonFiniteError:
            return None

    tried = {
        label: tries(partial(loss, label), f"digits apart-{label}", factors)
        for label, factors in FACTORS[scale].items()
    }
    methods = samplers(1.0)
    at_best = {
        label + TUNED: samplers(best(found))[label]
        for label, found in tried.items()
        if len(found) > 1
    }
    rows = images.random_rows(train, 2, seed)
    parts = {
        "centralized": [
            {"label": "tuned HMC", **images.predicted(whole, model, test)},
            found("centralized", "HMC, one step", [train], images.centralized(step)),
        ],
        "digits apart": [
            found("digits apart", label, halves, method)
            for label, method in (methods | at_best).items()
        ],
        "random rows": [
            found("random rows", label, rows, method)
            for label, method in methods.items()
            if "MA-HMC" in label and scale != "quick"
        ],
    }
    return {
        "rows": chosen.rows,
        "pixels": chosen.side**2,
        "hidden": HIDDEN[scale],
        "prior_precision": precision,
        "step_factor": chosen.step_factor,
        "iterations": chosen.iterations,
        "tried": tried,
        "parts": parts,
    }


def tries(
    loss: Callable[[float], float | None], named: str, factors: Sequence[float]
) -> list[tuple[float, float | None]]:
    """Return factors with the losses that they end at, None of a chain that ran away.

    The ends are passed by factors of two until the best is inside. A single factor is not tried.
    """
    if len(factors) == 1:
        return [(factors[0], None)]
    found: dict[float, float | None] = {}
    waiting = list(factors)
    while waiting:
        factor = waiting.pop(0)
        found[factor] = records.part(f"{named}-step{factor:g}", partial(loss, factor))
        records.say(f"{named}: {factor:g} times the step, NLL {found[factor]}")
        least = best(list(found.items()))
        if not waiting and len(found) < MOST_FACTORS and least in (min(found), max(found)):
            waiting = [least * 2 if least == max(found) else least / 2]
    return sorted(found.items())


def best(tried: Sequence[tuple[float, float | None]]) -> float:
    """Return the factor with the least loss."""
    return min(tried, key=lambda one: math.inf if one[1] is None else one[1])[0]


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of appendix 2; both are compared at the step that is best for each."""
    found, name = images.findings(results, "neural_network"), "neural_network-digits-apart-ula"
    entries = {entry["label"]: entry for entry in results["parts"]["digits apart"]}
    if name not in found:
        return found
    compared = [entries.get(label + TUNED, entries[label]) for label in PUBLISHED]
    losses = [entry.get("nll_by_seed", [entry["nll"]]) for entry in compared]
    found[name] = over_pairs([one - other for one, other in zip(*losses, strict=True)])
    reasons = []
    for label in PUBLISHED:
        tried = results.get("tried", {}).get(label, [(1.0, None)])
        reasons.append(untuned(label, [factor for factor, _ in tried], best(tried)))
    found[name] = replace(found[name], untuned="; ".join(filter(None, reasons)))
    return found


draw = images.draw
