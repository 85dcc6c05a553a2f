"""Modes that lie apart: guesses of others than the best, and whether draws have visited them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from consortia.core.contract import Fault
from consortia.surrogates.local_fits import Law
from consortia.surrogates.proposals.memory import Memory
from consortia.surrogates.several_modes import APART, deepest, squares


def is_apart(position: Float[np.ndarray, " d"], others: Iterable[Law]) -> bool:
    """Return True if a position is in the bulk of none of some Gaussian laws."""
    return all(squares(position[None], *other)[0] > APART * len(position) for other in others)


def further(laws: list[Law]) -> list[Law]:
    """Select the laws of modes that lie apart from the first and from one another."""
    kept = laws[:1]
    for law in laws[1:]:
        if is_apart(law[0], kept) and all(is_apart(one[0], [law]) for one in kept):
            kept.append(law)
    return kept[1:]


def unvisited(
    others: list[Law], memory: Memory, draws: Float[np.ndarray, "n d"]
) -> tuple[Fault, ...]:
    """Find which of some suspected modes hold high points and no draw."""
    if not others or not len(memory.points):
        return ()
    best, faults = float(memory.heights.max()), []
    for law in others:
        bulk = APART * len(law[0])
        near = squares(memory.points, *law) < bulk
        high = near.any() and memory.heights[near].max() > best - deepest(len(law[0])) / 2
        if high and not (squares(draws, *law) < bulk).any():
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
