"""Modes that lie apart: guesses of others than the best, and whether draws have visited them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from consortia.core.contract import Fault
from consortia.surrogates.local_fits import Law
from consortia.surrogates.proposals.memory import Memory

APART = 30.0
"""Squared distance by d of two modes, in the metric of one: the bulk of a mode ends before."""

DEEP, DEEPER = 15.0, 3.0
"""Logarithm of how far below the best a mode may lie, and what each parameter adds: lower ones hold
no mass that could be seen."""


def is_apart(position: Float[np.ndarray, " d"], others: Iterable[Law]) -> bool:
    """Return True if a position is in the bulk of none of some Gaussian laws."""
    return all(_square(position[None], other)[0] > APART * len(position) for other in others)


def further(laws: list[Law]) -> list[Law]:
    """Select the laws of modes that lie apart from the first and from one another."""
    kept = laws[:1]
    for law in laws[1:]:
        if is_apart(law[0], kept) and all(is_apart(one[0], [law]) for one in kept):
            kept.append(law)
    return kept[1:]


def deepest(dimension: int) -> float:
    """Return how far below the best the log-density of a mode may lie."""
    return DEEP + DEEPER * dimension


def unvisited(
    others: list[Law], memory: Memory, draws: Float[np.ndarray, "n d"]
) -> tuple[Fault, ...]:
    """Find which of some suspected modes hold high points and no draw."""
    if not others or not len(memory.points):
        return ()
    best, faults = float(memory.heights.max()), []
    for law in others:
        bulk = APART * len(law[0])
        near = _square(memory.points, law) < bulk
        high = near.any() and memory.heights[near].max() > best - deepest(len(law[0])) / 2
        if high and not (_square(draws, law) < bulk).any():
            place = ", ".join(f"{value:.3g}" for value in law[0][:SHOWN])
            more = ", ..." if len(law[0]) > SHOWN else ""
            faults.append(
                Fault(
                    f"few_rounds: another mode may exist near ({place}{more}), where points of a "
                    "high density lie and no draw: give init there in a second run, or a prior "
                    "that says which of the two is meant",
                    unseen=True,
                )
            )
    return tuple(faults)


SHOWN = 6
"""Coordinates of a place in a message."""


def _square(points: Float[np.ndarray, "n d"], law: Law) -> Float[np.ndarray, " n"]:
    """Compute squared distances from the mean, in the law's standard deviations."""
    away = points - law[0]
    return np.einsum("ni,ni->n", away, np.linalg.lstsq(law[1], away.T, rcond=None)[0].T)
