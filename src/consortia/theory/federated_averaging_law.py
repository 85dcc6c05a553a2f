"""The law of a federated average on Gaussian clients, and what can be asked of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consortia.errors import InputError
from consortia.theory.gaussian_clients import count, filled, number, solve

Array = NDArray[np.floating[Any]]

# A stable recursion forgets its start within 2^64 rounds, or its radius is one to rounding.
_MOST_SQUARINGS = 64


class AffineNoise(NamedTuple):
    """``u -> matrix u + offset + N(0, covariance)`` in independent blocks (blocks, size, ...)."""

    matrix: Array
    offset: Array
    covariance: Array

    def after(self, first: AffineNoise) -> AffineNoise:
        """The map that applies ``first`` and then this one."""
        return AffineNoise(
            self.matrix @ first.matrix,
            np.einsum("nij,nj->ni", self.matrix, first.offset) + self.offset,
            self.matrix @ first.covariance @ np.swapaxes(self.matrix, 1, 2) + self.covariance,
        )


@dataclass(frozen=True, eq=False)
class FederatedAveragingLaw:
    r"""The Gaussian law of the averaged position after any number of rounds, and in the long run.

    .. math:: x_{r+1} = \alpha x_r + \beta' x_{r-1} + \beta + N(0, V), \qquad \beta' = 0
        \text{ without de-biasing}

    Round 0 of the de-biased variant has no anchor yet and is a plain round; the law takes that
    into account. Means and variances are always ``(d,)`` and covariances ``(d, d)``; a scalar
    problem has d = 1. Matrices that act coordinate by coordinate (a diagonal problem) are held as
    their diagonals.

    Attributes:
        diagonal: whether the coordinates are independent.
        alpha: :math:`\alpha`, ``(d,)`` in a diagonal problem and ``(d, d)`` otherwise.
        anchor_coefficient: :math:`\beta'`, of the same shape; zero without de-biasing.
        beta: :math:`\beta`, ``(d,)``.
        innovation_covariance: V, of the shape of ``alpha``.
        spectral_radius: modulus of the largest eigenvalue of the recursion (infinite when it
            overflows); the chain has a stationary law if and only if it is below one.
        target_mean: mean of the target, ``(d,)``.
        precision: :math:`\sum_c w_c L_c / \text{temperature}`, of the shape of ``alpha``.
    """

    diagonal: bool
    alpha: Array
    anchor_coefficient: Array
    beta: Array
    innovation_covariance: Array
    spectral_radius: float
    target_mean: Array
    precision: Array
    # One round on the centred state (u_r, u_{r-1}), or u_r alone without de-biasing, u = x - m*.
    recursion: AffineNoise = field(repr=False)
    # What round 0 adds to the centred mean, Σ_c w_c (1 - a_c^T)(m_c - m*), in every variant.
    first_offset: Array = field(repr=False)
    # 1 - α - β', computed without cancellation.
    relaxation: Array = field(repr=False)

    @property
    def stable(self) -> bool:
        """Whether the spectral radius is below one."""
        return self.spectral_radius < 1.0

    # --- the target ----------------------------------------------------------------------------

    @cached_property
    def target_variance(self) -> Array:
        """Variance of every coordinate of the target, ``(d,)``."""
        return 1.0 / self.precision if self.diagonal else np.diagonal(self.target_covariance).copy()

    @cached_property
    def target_covariance(self) -> Array:
        """Covariance of the target, ``(d, d)``."""
        return np.diag(1.0 / self.precision) if self.diagonal else np.linalg.inv(self.precision)

    # --- the long run --------------------------------------------------------------------------

    @cached_property
    def mean_bias(self) -> Array:
        """Stationary mean less the target's, ``(d,)``; exactly zero for the de-biased variant.

        Raises:
            InputError: the recursion is unstable.
        """
        self._require_stable()
        if self._order == 2:
            return np.zeros_like(self.target_mean)
        return solve(self.relaxation, self.first_offset)

    @property
    def stationary_mean(self) -> Array:
        """Mean of the draws in the long run, ``(d,)``; raises `InputError` when unstable."""
        return self.target_mean + self.mean_bias

    @cached_property
    def _stationary_blocks(self) -> Array:
        self._require_stable()
        # Squaring the map sums the series Σ_j F^j Q F^j' of the noise, 2^k terms after k steps.
        step = self.recursion._replace(offset=np.zeros_like(self.recursion.offset))
        for _ in range(_MOST_SQUARINGS):
            if np.max(np.abs(step.matrix)) < np.finfo(np.float64).eps:
                return self._newest(step).covariance
            step = step.after(step)
        raise InputError("the spectral radius is one to rounding: there is no stationary law")

    @property
    def stationary_variance(self) -> Array:
        """Variance of every coordinate in the long run, ``(d,)``; `InputError` when unstable."""
        return self._variance_of(self._stationary_blocks)

    @property
    def stationary_covariance(self) -> Array:
        """Covariance of the draws in the long run, ``(d, d)``; `InputError` when unstable."""
        return self._covariance_of(self._stationary_blocks)

    @property
    def variance_ratio(self) -> Array:
        """Stationary variance over the target's, per coordinate ``(d,)``."""
        return self.stationary_variance / self.target_variance

    # --- after a number of rounds --------------------------------------------------------------

    def mean(self, rounds: int, start: ArrayLike) -> Array:
        """Mean after ``rounds`` rounds from ``start``, a number or ``(d,)``; shape ``(d,)``."""
        return self.target_mean + self._centred_mean(self._after(rounds), self._centred(start))

    def variance(self, rounds: int) -> Array:
        """Variance of every coordinate after ``rounds`` rounds from a point, ``(d,)``."""
        return self._variance_of(self._after(rounds).covariance)

    def covariance(self, rounds: int, start_covariance: ArrayLike = 0.0) -> Array:
        """Covariance after ``rounds`` rounds, ``(d, d)``.

        Args:
            rounds: number of rounds, 0 for the start itself.
            start_covariance: covariance of the start: a number (times the identity), the
                variances ``(d,)``, or ``(d, d)``.
        """
        after = self._after(rounds)
        d = self.target_mean.size
        start = np.asarray(start_covariance)
        if start.ndim < 2:
            start = np.diag(filled(start, (d,), "start_covariance"))
        start = filled(start, (d, d), "start_covariance")
        if self.diagonal:
            scale = after.matrix[:, 0, 0]
            spread = scale[:, None] * start * scale[None, :]
        else:
            spread = after.matrix[0] @ start @ after.matrix[0].T
        return self._covariance_of(after.covariance) + spread

    def w2(self, rounds: int, start: ArrayLike) -> float:
        r"""Exact 2-Wasserstein distance to the target after ``rounds`` rounds from a point.

        .. math:: W_2^2 = \|m - m_*\|^2 + \operatorname{tr}\bigl(C + C_*
            - 2 (C_*^{1/2} C C_*^{1/2})^{1/2}\bigr)

        With dense matrices the trace is a difference of nearly equal numbers near the target:
        distances below 1e-7 target standard deviations are rounding.

        Args:
            rounds: number of rounds.
            start: the start, a number or ``(d,)``.
        """
        return math.sqrt(self._w2_squared(self._after(rounds), self._centred(start)))

    def rounds_to_w2_squared(
        self, threshold: float, start: ArrayLike, maximum: int = 100_000
    ) -> int | None:
        """The first round after which the squared 2-Wasserstein distance is below ``threshold``.

        Args:
            threshold: bound on the squared distance, positive.
            start: the start, a number or ``(d,)``.
            maximum: number of rounds to try.

        Returns:
            The number of rounds (0 when the start itself is close enough), or None when the
            distance stays above the threshold up to ``maximum``.
        """
        bound = number(threshold, "threshold", strict=True)
        centred = self._centred(start)
        state: AffineNoise | None = None
        for rounds in range(count(maximum, "maximum", least=0) + 1):
            # The state of the de-biased recursion holds two positions; its first is the newest.
            here = self._after(0) if state is None else self._newest(state)
            if self._w2_squared(here, centred) < bound:
                return rounds
            state = self._first_round if state is None else self.recursion.after(state)
        return None

    # --- inside --------------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        """Coordinates of the position in one block."""
        return 1 if self.diagonal else self.target_mean.size

    @property
    def _order(self) -> int:
        """How many past averages the recursion remembers."""
        return self.recursion.matrix.shape[-1] // self._width

    @cached_property
    def _first_round(self) -> AffineNoise:
        """Round 0 as a map from the position to the state of the recursion."""
        offset = np.zeros_like(self.recursion.offset)
        offset[:, : self._width] = self.first_offset.reshape(-1, self._width)
        # β' acts on an anchor that does not exist yet: only the columns of the position remain.
        matrix = self.recursion.matrix[:, :, : self._width]
        return AffineNoise(matrix, offset, self.recursion.covariance)

    def _newest(self, state: AffineNoise) -> AffineNoise:
        w = self._width
        return AffineNoise(state.matrix[:, :w], state.offset[:, :w], state.covariance[:, :w, :w])

    def _after(self, rounds: int) -> AffineNoise:
        """The first ``rounds`` rounds as one map of the centred position."""
        remaining = count(rounds, "rounds", least=0)
        if remaining == 0:
            blocks, w = self.target_mean.size // self._width, self._width
            still = np.zeros((blocks, w, w))
            return AffineNoise(still + np.eye(w), np.zeros((blocks, w)), still)
        remaining -= 1
        state, power = self._first_round, self.recursion
        while remaining:
            if remaining & 1:
                state = power.after(state)
            remaining >>= 1
            if remaining:
                power = power.after(power)
        return self._newest(state)

    def _centred(self, start: ArrayLike) -> Array:
        return filled(start, self.target_mean.shape, "start") - self.target_mean

    def _centred_mean(self, after: AffineNoise, centred: Array) -> Array:
        blocks = centred.reshape(-1, self._width)
        return (np.einsum("nij,nj->ni", after.matrix, blocks) + after.offset).reshape(-1)

    def _variance_of(self, blocks: Array) -> Array:
        return np.diagonal(blocks, axis1=1, axis2=2).reshape(-1).copy()

    def _covariance_of(self, blocks: Array) -> Array:
        return np.diag(blocks[:, 0, 0]) if self.diagonal else blocks[0].copy()

    @cached_property
    def _target_root(self) -> Array:
        values, vectors = np.linalg.eigh(self.target_covariance)
        return (vectors * np.sqrt(values)) @ vectors.T

    def _w2_squared(self, after: AffineNoise, centred: Array) -> float:
        distance = float(np.sum(self._centred_mean(after, centred) ** 2))
        if self.diagonal:
            spread = np.sqrt(self._variance_of(after.covariance)) - np.sqrt(self.target_variance)
            return distance + float(np.sum(spread**2))
        product = self._target_root @ after.covariance[0] @ self._target_root
        cross = np.sqrt(np.maximum(np.linalg.eigvalsh(product), 0.0)).sum()
        trace = np.trace(after.covariance[0]) + np.trace(self.target_covariance)
        return distance + max(float(trace - 2.0 * cross), 0.0)

    def _require_stable(self) -> None:
        if not self.stable:
            raise InputError(
                f"the recursion has spectral radius {self.spectral_radius:.6g}, so it has no "
                "stationary law; lower step_size, leapfrog_steps or local_steps"
                + (", or set debias=False" if self._order == 2 else "")
            )
