"""What to keep, what keeps it, and the blocks in which draws reach a sum.

The length of a block follows from the size of a draw alone, so that neither chunks nor a resumption
change a bit of a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from consortia.core import parameters
from consortia.core.target import Target

BLOCK_BYTES = 2**20
"""Draws in double precision that are taken up at once."""

LONGEST_BLOCK = 1024


class Kept(Protocol):
    """Takes draws and gives the groups of the result; made by a `Keep`."""

    def take(self, draws: np.ndarray, weights: np.ndarray | None) -> None:
        """The next draws, (chains, draws, d), and their step weights if these vary."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """Everything it knows, by name."""
        ...

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes up where another stood."""
        ...

    def groups(self, variables: Sequence[parameters.Variable]) -> dict[str, Any]:
        """Datasets by the name of their group."""
        ...


class Keep(Protocol):
    """What to keep; made by `keep_moments` or `keep_predictions`."""

    def describe(self) -> dict[str, Any]:
        """As plain values, for the specification of the run."""
        ...

    def start(self, target: Target, chains: int) -> Kept:
        """For a run of this posterior, before its first draw."""
        ...


class Blocks:
    """Draws on their way into a sum, in blocks of equal length.

    Args:
        chains: number of chains.
        dimension: d.
    """

    def __init__(self, chains: int, dimension: int) -> None:
        length = int(np.clip(BLOCK_BYTES // (8 * chains * dimension), 1, LONGEST_BLOCK))
        self.draws = np.zeros((chains, length, dimension))
        self.weights = np.zeros((chains, length))
        self.filled = 0

    def cut(self, draws: np.ndarray, weights: np.ndarray | None) -> Any:
        """Yields whole blocks (draws, weights), and keeps the rest."""
        taken, length = 0, self.draws.shape[1]
        every = np.ones(draws.shape[:2]) if weights is None else weights
        every = np.broadcast_to(every, draws.shape[:2])
        while taken < draws.shape[1]:
            count = min(length - self.filled, draws.shape[1] - taken)
            place = slice(self.filled, self.filled + count)
            self.draws[:, place] = draws[:, taken : taken + count]
            self.weights[:, place] = every[:, taken : taken + count]
            self.filled, taken = self.filled + count, taken + count
            if self.filled == length:
                self.filled = 0
                yield self.draws, self.weights

    def rest(self) -> tuple[np.ndarray, np.ndarray]:
        """What has not filled a block."""
        return self.draws[:, : self.filled], self.weights[:, : self.filled]
