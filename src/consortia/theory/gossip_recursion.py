"""One iteration of a gossip sampler as a linear map, and its modes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consortia.errors import InputError

Array = NDArray[np.floating[Any]]

_WORST_CONDITION = 1e8
"""Of the eigenvectors; beyond it sums over modes would lose too many digits."""

_MOST_SQUARINGS = 64
_FORGOTTEN = 1e-17
"""A power of the recursion below this, in every entry, adds nothing to a sum of order one."""


class Recursion(NamedTuple):
    r"""``z -> matrix z + offset + entry (scale ξ + gradient noise)``, positions first in z.

    Attributes:
        matrix: (n, n), n = N d times one, two or three; directions that no start and no noise
            reaches are taken out.
        offset: (n,).
        entry: (n, N d), where an agent's noise comes in.
        correlation: covariance of ξ between the agents, (N, N).
        scale: factor of ξ.
        step: factor of the gradients, η.
        averaged: ξ is the mean of this step's normal numbers and the last one's.
    """

    matrix: Array
    offset: Array
    entry: Array
    correlation: Array
    scale: float
    step: float
    averaged: bool


def spectral_radius(matrix: Array) -> float:
    """The largest modulus of an eigenvalue."""
    symmetric = np.array_equal(matrix, matrix.T)
    values = np.linalg.eigvalsh(matrix) if symmetric else np.linalg.eigvals(matrix)
    return float(np.max(np.abs(values)))


class Modes(NamedTuple):
    """A recursion in the coordinates of its eigenvectors, where sums of powers are divisions.

    Attributes:
        values: eigenvalues λ, (n,).
        entry: noise of the agents in these coordinates, (n, N d).
        positions: from these coordinates to the positions, (N d, n).
        accurate: the eigenvectors are far enough from parallel.
    """

    values: NDArray[Any]
    entry: NDArray[Any]
    positions: NDArray[Any]
    accurate: bool

    @classmethod
    def of(cls, recursion: Recursion) -> Modes:
        """The modes of a recursion."""
        matrix, size = recursion.matrix, recursion.entry.shape[1]
        if np.array_equal(matrix, matrix.T):
            values, vectors = np.linalg.eigh(matrix)
            return cls(values, vectors.T @ recursion.entry, vectors[:size], True)
        values, vectors = np.linalg.eig(matrix)
        try:
            inverse = np.linalg.inv(vectors)
        except np.linalg.LinAlgError:
            return cls(values, recursion.entry, vectors[:size], False)
        # A matrix without a basis of eigenvectors may have an inverse of 1e200 here: not accurate.
        with np.errstate(over="ignore", invalid="ignore"):
            condition = np.linalg.norm(vectors) * np.linalg.norm(inverse)
            entry = inverse @ recursion.entry
        accurate = bool(condition < _WORST_CONDITION)
        return cls(values, entry, vectors[:size], accurate)

    def common(self, spread: Array, *, averaged: bool) -> Array:
        """Stationary covariance (N d, N d) of positions from noise of this covariance.

        ``averaged`` noise comes in twice, now and an iteration later.
        """
        entry = (1 + self.values)[:, None] * self.entry if averaged else self.entry
        return np.real(self.positions @ self._summed(entry @ spread, entry) @ self.positions.T)

    def private(self, blocks: Array) -> Array:
        """Stationary covariances (N, d, d) of positions from independent noise of ``blocks``.

        Only what concerns one agent at a time is formed.
        """
        agents, d, _ = blocks.shape
        summed = self.positions @ self._summed(self._spread(blocks), self.entry)
        own = self.positions.reshape(agents, d, -1)
        return np.real(summed.reshape(agents, d, -1) @ own.transpose(0, 2, 1))

    def private_to_all(self, blocks: Array) -> Array:
        """As `private`, with the covariances between agents: (N d, N d)."""
        summed = self._summed(self._spread(blocks), self.entry)
        return np.real(self.positions @ summed @ self.positions.T)

    def _summed(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
        """Σ_k (Λ^k left)(Λ^k right)ᵀ."""
        return (left @ right.T) / (1.0 - self.values[:, None] * self.values[None, :])

    def _spread(self, blocks: Array) -> NDArray[Any]:
        agents, d, _ = blocks.shape
        by_agent = self.entry.reshape(-1, agents, d).transpose(1, 0, 2) @ blocks
        return by_agent.transpose(1, 0, 2).reshape(-1, agents * d)


class Powers:
    """The same sums by repeated squaring, for recursions whose modes are not accurate."""

    def __init__(self, recursion: Recursion) -> None:
        self._entry = recursion.entry
        self._squares = [recursion.matrix]
        while np.max(np.abs(self._squares[-1])) > _FORGOTTEN:
            if len(self._squares) == _MOST_SQUARINGS:
                raise InputError("the spectral radius is one to rounding: nothing is stationary")
            self._squares.append(self._squares[-1] @ self._squares[-1])

    def common(self, spread: Array, *, averaged: bool) -> Array:
        """See `Modes.common`."""
        entry = self._entry + self._squares[0] @ self._entry if averaged else self._entry
        covariance = entry @ spread @ entry.T
        for power in self._squares:
            covariance = covariance + power @ covariance @ power.T
        size = entry.shape[1]
        return covariance[:size, :size]

    def private(self, blocks: Array) -> Array:
        """See `Modes.private`."""
        return agent_blocks(self.private_to_all(blocks), blocks.shape[1])

    def private_to_all(self, blocks: Array) -> Array:
        """See `Modes.private_to_all`."""
        return self.common(block_diagonal(blocks), averaged=False)


def block_diagonal(blocks: Array) -> Array:
    """Blocks (N, d, d) on the diagonal of a matrix (N d, N d)."""
    agents, d, _ = blocks.shape
    result = np.zeros((agents, d, agents, d))
    result[np.arange(agents), :, np.arange(agents)] = blocks
    return result.reshape(agents * d, agents * d)


def agent_blocks(covariance: Array, dimension: int) -> Array:
    """The diagonal blocks (N, d, d) of a matrix (N d, N d)."""
    agents = len(covariance) // dimension
    blocks = covariance.reshape(agents, dimension, agents, dimension)
    return blocks[np.arange(agents), :, np.arange(agents)]
