"""What a draw of other methods costs with the settings that are chosen, beside the least of a grid.

On the posteriors of `choices`, but the one with noisy gradients, and of stale methods on two of
them: the median of their ratios, and the greatest, on which the gate is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.choices import GAUSSIAN, NOT_GAUSSIAN, TARGETS, problem
from benchmarks.measure import Gate, Row

NAME = "other-choices"
METHODS = {
    "full": ("fsgld", "decentralized_hmc", "de_sgld", "de_sghmc", "stale_sgld", "stale_sghmc"),
    "quick": ("de_sgld",),
    "tiny": ("de_sgld",),
}
FEW = NOT_GAUSSIAN[1], NOT_GAUSSIAN[8]
"""Posteriors of stale methods, with which a grid takes one to three minutes each."""

STEPS = 200
"""Settings of a method, all steps together: each with some from a tenth of its longest."""


def rows(scale: str) -> Iterator[Row]:
    """The figures."""
    # the noise of gradients is an argument of `fa_hmc` alone
    targets = [each for each in TARGETS[scale] if each not in GAUSSIAN or not each[3]]
    for name in METHODS[scale]:
        of_method = FEW if name.startswith("stale") else targets
        answers = [ratio_of(name, target) for target in of_method]
        ratios = [each for each in answers if each is not None]
        detail = f"median {np.median(ratios):.3g}; {len(answers) - len(ratios)} posteriors refused"
        what = f"chosen / least of {STEPS}, greatest: {name}"
        parts = max(ratios), min(ratios), max(ratios), len(ratios)
        yield Row(NAME, what, *parts, Gate("<=", 1.3), detail)


def ratio_of(name: str, target: Any) -> float | None:
    """The cost of a draw with a method's choice over the least of all its settings' values.

    None where no settings can be chosen.
    """
    import consortia as c
    from consortia.errors import InputError
    from consortia.theory import settings, tuning
    from consortia.theory.bias import known_law

    there, aim = problem(target), tuning.BiasTarget()
    given: dict[str, Any] = {}
    if name.startswith("de"):
        given = {"mixing": "ring"}
    elif name.startswith("stale"):
        given = {"workers": len(there.near.sizes)}
    method = getattr(c, name)(**given)
    try:
        choice = tuning.choose_step(there, method, aim, rounds=10**9, chains=4)
    except InputError:
        return None
    aim = aim.halved() if choice.margin else aim

    def cost(made: Any) -> float:
        law = known_law(made, there)
        if not law.stable or not aim.met(law, there.near):
            return np.inf
        spent = made.cost(there.near.sizes, there.near.mode.size)
        return law.rounds_per_draw * law.tries * aim.price.of(spent, len(there.near.sizes))

    values, least = settings.open_settings(method), np.inf
    all_values = list(itertools.product(*values.values()))
    for index in all_values:
        with suppress(InputError):  # these settings have no law
            filled = settings.with_settings(method, dict(zip(values, index, strict=True)), there)
            longest = tuning.largest_step(there, filled, aim)
            if longest is None:
                continue
            for part in np.geomspace(0.1, 1, STEPS // len(all_values)):
                step = float(part * longest.step_size)
                least = min(least, cost(replace(longest.method, step_size=step)))
    return cost(choice.method) / least
