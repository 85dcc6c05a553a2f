r"""The affine recursion with Gaussian noise under the exact laws.

.. math:: z' = A z + b + N(0, Q), \qquad m' = A m + b, \qquad C' = A C A^\top + Q

On a Gaussian target an approximate sampler is such a map of its state z, of which the position is a
part. `AffineMap` is one map, or several side by side; `Recursion` is what a law needs of the
iterations, and `AffineRecursion` has it for one map that is repeated.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.errors import InputError

Array = Float[np.ndarray, "..."]

_MOST_SQUARINGS = 64
"""A stable recursion forgets its start within 2^64 iterations, or its radius is 1 to rounding."""

_MOST_DENSE = 64
"""Entries of covariances up to which a map of them is a dense matrix."""


class AffineMap(NamedTuple):
    """``z -> matrix z + offset + N(0, covariance)``, or several such maps along leading axes."""

    # A, (..., n, n); (..., n, m) where the map enlarges the state
    matrix: Float[np.ndarray, "*maps n m"]
    offset: Float[np.ndarray, "*maps n"]  # b, (..., n)
    covariance: Float[np.ndarray, "*maps n n"]  # Q, (..., n, n)

    def after(self, first: AffineMap) -> AffineMap:
        """Return the map that applies ``first`` and then this one."""
        return AffineMap(
            self.matrix @ first.matrix,
            np.einsum("...ij,...j->...i", self.matrix, first.offset) + self.offset,
            self.matrix @ first.covariance @ self.matrix.mT + self.covariance,
        )

    def power(self, count: int) -> AffineMap:
        """Return ``count`` applications in a row, by repeated squaring."""
        still = np.zeros_like(self.covariance)
        result = AffineMap(still + np.eye(still.shape[-1]), np.zeros_like(self.offset), still)
        square = self
        while count:
            if count & 1:
                result = square.after(result)
            count >>= 1
            if count:
                square = square.after(square)
        return result

    def second_moments(self, mean: Array, second: Array) -> tuple[Array, Array]:
        """Return mean and second moment E z'z'ᵀ after the map, from those before it."""
        moved = (self.matrix @ mean[..., None])[..., 0]
        cross = moved[..., :, None] * self.offset[..., None, :]
        square = self.offset[..., :, None] * self.offset[..., None, :] + self.covariance
        carried = self.matrix @ second @ self.matrix.mT
        return moved + self.offset, carried + cross + cross.mT + square

    def stationary_covariance(self) -> Float[np.ndarray, "*maps n n"]:
        """Return the solution of C = A C Aᵀ + Q.

        Raises:
            InputError: the spectral radius is one to rounding.
        """
        if np.array_equal(self.matrix, self.matrix.mT):
            values, axes = np.linalg.eigh(self.matrix)
            if np.abs(values).max() < 1:
                left = 1 - values[..., :, None] * values[..., None, :]
                return axes @ (axes.mT @ self.covariance @ axes / left) @ axes.mT
        # Squaring the map sums the series Σ_j A^j Q A^jᵀ, 2^k terms after k steps.
        step = self._replace(offset=np.zeros_like(self.offset))
        for _ in range(_MOST_SQUARINGS):
            if np.max(np.abs(step.matrix)) < np.finfo(np.float64).eps:
                return step.covariance
            step = step.after(step)
        raise InputError("the spectral radius is one to rounding: there is no stationary law")


def spectral_radius(matrices: Float[np.ndarray, "*maps n n"]) -> float:
    """Return the largest modulus of an eigenvalue; infinity where a matrix overflowed."""
    if not np.all(np.isfinite(matrices)):
        return float("inf")
    symmetric = np.array_equal(matrices, matrices.mT)
    values = np.linalg.eigvalsh(matrices) if symmetric else np.linalg.eigvals(matrices)
    return float(np.max(np.abs(values)))


def operator_radius(apply: Callable[[Array], Array], shape: tuple[int, ...]) -> float:
    """Return the spectral radius of a linear map that takes covariances of a shape to such."""
    size = math.prod(shape)

    def image(flat: Array) -> Array:
        return apply(flat.reshape(shape)).ravel()

    if size <= _MOST_DENSE:
        return spectral_radius(np.stack([image(unit) for unit in np.eye(size)]))
    start = np.broadcast_to(np.eye(shape[-1]), shape).ravel()
    first = image(start)
    if not (first.any() and np.all(np.isfinite(first))):
        return math.inf if first.any() else 0.0
    from scipy.sparse.linalg import LinearOperator, eigs

    operator = LinearOperator((size, size), image, dtype=np.float64)
    # The map keeps covariances positive, so that its largest eigenvalue is real and positive. Other
    # eigenvalues may be about as large: with 20 vectors one of those would sometimes be found.
    eigenvalues = eigs(operator, k=1, v0=start, ncv=40, tol=1e-8, return_eigenvectors=False)
    return float(np.abs(eigenvalues[0]))


class Normal(NamedTuple):
    """Mean and covariance of a position, relative to the origin of a recursion."""

    mean: Float[np.ndarray, " d"]  # (d,)
    # (d, d), or the variances (d,) of independent coordinates
    covariance: Float[np.ndarray, "*axes d"]

    @classmethod
    def of(cls, mean: Array, blocks: Float[np.ndarray, "blocks width width"]) -> Normal:
        """Return the law with these covariances of blocks, as variances where a block is one."""
        return cls(mean.reshape(-1), blocks[:, 0, 0] if blocks.shape[-1] == 1 else blocks[0])

    def blocks(self, width: int) -> Float[np.ndarray, "blocks width width"]:
        """Return the covariances of the blocks from which `of` makes the law."""
        return self.full[None] if width > 1 else np.diagonal(self.full)[:, None, None]

    @property
    def full(self) -> Float[np.ndarray, "d d"]:
        """The covariance as a matrix."""
        return np.diag(self.covariance) if self.covariance.ndim == 1 else self.covariance

    def turned(self, axes: Float[np.ndarray, "d d"]) -> Normal:
        """Return the law of ``axes`` times the position."""
        return Normal(axes @ self.mean, axes @ self.full @ axes.T)

    def scaled(self, scales: Float[np.ndarray, " d"]) -> Normal:
        """Return the law of the position times ``scales``, the same for every agent."""
        every = np.tile(scales, self.mean.size // scales.size)
        if self.covariance.ndim == 1:
            return Normal(every * self.mean, every**2 * self.covariance)
        return Normal(every * self.mean, every[:, None] * self.covariance * every)


class Averaged(Normal):
    """The law of an average, with the means and variances (N, d) of those that it is of."""

    each: tuple[Float[np.ndarray, "N d"], Float[np.ndarray, "N d"]]


class Recursion(ABC):
    """The law of a position from iteration to iteration."""

    @property
    @abstractmethod
    def spectral_radius(self) -> float:
        """Factor by which the mean's distance grows an iteration in the long run."""

    @property
    def mean_square_radius(self) -> float:
        """Factor by which noise that grows with the spread feeds itself; 0 without such noise."""
        return 0.0

    @property
    def stable(self) -> bool:
        """True if mean and covariance settle."""
        # Eigenvalues are rounded: a radius closer to one is one.
        return self.spectral_radius < 1.0 - 1e-14

    @property
    def instability(self) -> str:
        """The part that does not settle, in words; empty when all does."""
        if self.stable:
            return ""
        return f"the mean grows by the factor {self.spectral_radius:.6g} an iteration"

    @abstractmethod
    def stationary(self) -> Normal:
        """Return the law in the long run of a recursion that is stable."""

    @abstractmethod
    def path(self, start: Normal) -> Iterator[Normal]:
        """Yield the law after 0, 1, 2, ... iterations."""

    def along(self, counts: Sequence[int], start: Normal) -> list[Normal]:
        """Return the law after each of these numbers of iterations, in the order given."""
        last = max(counts, default=0)
        laws = {
            k: law for k, law in zip(range(last + 1), self.path(start), strict=False) if k in counts
        }
        return [laws[k] for k in counts]


@dataclass(frozen=True, eq=False)
class AffineRecursion(Recursion):
    """One map repeated, in independent blocks; a position is the first part of every block."""

    step: AffineMap  # an iteration, (blocks, n, n)
    first: AffineMap  # the first iteration, from positions to states, (blocks, n, width)
    # covariance of noise that is in the position and not yet in the state, (width, width)
    fresh: Float[np.ndarray, "width width"] | float = 0.0
    # 1 − A where it is known without cancellation
    relaxation: Float[np.ndarray, "blocks n n"] | None = None

    @property
    def width(self) -> int:
        """Coordinates of the position in a block."""
        return self.first.matrix.shape[-1]

    @cached_property
    def spectral_radius(self) -> float:
        """Largest modulus of an eigenvalue; infinite when the map overflows."""
        return spectral_radius(self.step.matrix)

    def stationary(self) -> Normal:
        """Return the law of the position in the long run."""
        size = self.step.matrix.shape[-1]
        left = np.eye(size) - self.step.matrix if self.relaxation is None else self.relaxation
        mean = np.linalg.solve(left, self.step.offset[..., None])[..., : self.width, 0]
        return Normal.of(mean, self.stationary_covariance())

    def stationary_covariance(self) -> Float[np.ndarray, "blocks width width"]:
        """Return the covariance of the position in the long run, block by block."""
        return self.step.stationary_covariance()[:, : self.width, : self.width] + self.fresh

    def path(self, start: Normal) -> Iterator[Normal]:
        """Yield the law after 0, 1, 2, ... iterations, one map after the other."""
        yield start
        state = self.first
        while True:
            yield self._through(state, start)
            state = self.step.after(state)

    def along(self, counts: Sequence[int], start: Normal) -> list[Normal]:
        """Return the law after each of these numbers of iterations, by repeated squaring.

        Each number continues from the one before it, unless that is larger.
        """
        power, laws = cache(self.step.power), []
        state, at = self.first, 1
        for count in counts:
            if 0 < count < at:
                state, at = self.first, 1
            if count > at:
                state, at = power(count - at).after(state), count
            laws.append(self._through(state, start) if count else start)
        return laws

    def _through(self, state: AffineMap, start: Normal) -> Normal:
        """Return the law of the position from its law before these iterations."""
        matrix = state.matrix[:, : self.width]
        blocks = start.mean.reshape(-1, self.width)
        mean = np.einsum("nij,nj->ni", matrix, blocks) + state.offset[:, : self.width]
        law = Normal.of(mean, state.covariance[:, : self.width, : self.width] + self.fresh)
        if not np.any(start.covariance):
            return law
        if self.width > 1:
            return law._replace(covariance=matrix[0] @ start.full @ matrix[0].T + law.covariance)
        carried = start.scaled(matrix[:, 0, 0]).covariance
        return law._replace(
            covariance=carried + (law.covariance if carried.ndim == 1 else law.full)
        )
