"""The law of a travelling chain on Gaussian likelihoods, and what can be asked of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consortia.errors import InputError

Array = NDArray[np.floating[Any]]


class Visits(NamedTuple):
    """One update at each site, θ ↦ A_s θ + b_s + N(0, Q_s), and how often each is visited."""

    shares: Array
    matrices: Array
    offsets: Array
    noise: Array

    def after(self, updates: int) -> Visits:
        """So many updates in a row at each site."""
        sites, d = self.offsets.shape
        result = Visits(
            self.shares,
            np.broadcast_to(np.eye(d), (sites, d, d)),
            np.zeros((sites, d)),
            np.zeros((sites, d, d)),
        )
        power = self
        while updates:
            if updates % 2:
                result = power.following(result)
            power = power.following(power)
            updates //= 2
        return result

    def following(self, first: Visits) -> Visits:
        """First those updates, then these, at the same site."""
        across = np.swapaxes(self.matrices, 1, 2)
        return Visits(
            self.shares,
            self.matrices @ first.matrices,
            np.einsum("sij,sj->si", self.matrices, first.offsets) + self.offsets,
            self.matrices @ first.noise @ across + self.noise,
        )

    def times(self, mean: Array, second: Array) -> Array:
        """E θ' θᵀ at each site, of a position with these moments there, and where it goes."""
        return self.matrices @ second + self.offsets[:, :, None] * mean[:, None, :]

    def average(self, values: Array) -> Array:
        """Σ_s f_s values_s."""
        return np.tensordot(self.shares, values, axes=1)


class Moments(NamedTuple):
    """Mean and second moment of a position, (d,) and (d, d)."""

    mean: Array
    second: Array

    def through(self, visits: Visits) -> tuple[Array, Array]:
        """The moments at each site after its updates, (S, d) and (S, d, d)."""
        moved = np.einsum("sij,j->si", visits.matrices, self.mean)
        cross = moved[:, :, None] * visits.offsets[:, None, :]
        across = np.swapaxes(visits.matrices, 1, 2)
        second = (
            visits.matrices @ self.second @ across
            + cross
            + np.swapaxes(cross, 1, 2)
            + visits.offsets[:, :, None] * visits.offsets[:, None, :]
            + visits.noise
        )
        return moved + visits.offsets, second


@dataclass(frozen=True, eq=False)
class TravellingLaw:
    """Mean and covariance of a travelling chain in the long run, after j of the T updates.

    Attributes:
        local_steps: T.
        target_mean: mean of the posterior, ``(d,)``.
        target_covariance: its covariance, ``(d, d)``.
        visits: the update at each site, with the posterior's mean as the origin.
    """

    local_steps: int
    target_mean: Array
    target_covariance: Array
    visits: Visits = field(repr=False)

    @cached_property
    def _centred(self) -> Visits:
        """The update of θ − target_mean: large means then cost no precision."""
        moved = np.einsum("sij,j->si", self.visits.matrices, self.target_mean) - self.target_mean
        return self.visits._replace(offsets=self.visits.offsets + moved)

    @cached_property
    def _visit(self) -> Visits:
        return self._centred.after(self.local_steps)

    @cached_property
    def mean_square_factor(self) -> float:
        """Spectral radius of X ↦ Σ_s f_s A_s^T X A_s^T'; below one there is a stationary law."""
        return float(np.max(np.abs(np.linalg.eigvals(self._second_moment_map))))

    @property
    def _second_moment_map(self) -> Array:
        d = self.target_mean.size
        matrices = self._visit.matrices
        product = np.einsum("s,sij,skl->ikjl", self._visit.shares, matrices, matrices)
        return product.reshape(d * d, d * d)

    @property
    def stable(self) -> bool:
        """Whether mean and covariance have a limit."""
        with np.errstate(over="ignore", invalid="ignore"):
            finite = bool(np.all(np.isfinite(self._visit.matrices)))
            return finite and self.mean_square_factor < 1

    @cached_property
    def _ends(self) -> Moments:
        """At the end of a visit."""
        if not self.stable:
            raise InputError(
                "the chain has no stationary law at these settings: lower step_size, local_steps "
                "or strength"
            )
        visit, d = self._visit, self.target_mean.size
        mean = np.linalg.solve(
            np.eye(d) - visit.average(visit.matrices), visit.average(visit.offsets)
        )
        _, constant = Moments(mean, np.zeros((d, d))).through(visit)
        system = np.eye(d * d) - self._second_moment_map
        second = np.linalg.solve(system, visit.average(constant).ravel()).reshape(d, d)
        return Moments(mean, (second + second.T) / 2)

    def _moments(self, update: int | None) -> Moments:
        if update is None:
            return self._ends
        if not 0 <= update <= self.local_steps:
            raise InputError(f"update: got {update!r}; give a number from 0 to {self.local_steps}")
        visits = self._centred.after(int(update))
        mean, second = self._ends.through(visits)
        return Moments(visits.average(mean), visits.average(second))

    # --- the long run --------------------------------------------------------------------------

    def mean(self, update: int | None = None) -> Array:
        """Mean after ``update`` of the T updates of a visit; at its end when None, ``(d,)``."""
        return self.target_mean + self._moments(update).mean

    def covariance(self, update: int | None = None) -> Array:
        """Covariance after ``update`` of the T updates; at the end of a visit when None."""
        moments = self._moments(update)
        return moments.second - np.outer(moments.mean, moments.mean)

    def over_updates(self) -> tuple[Array, Array]:
        """Mean and covariance of all updates taken together (``record="updates"``)."""
        d = self.target_mean.size
        mean, second = np.zeros(d), np.zeros((d, d))
        now = self._ends
        per_site = (
            np.broadcast_to(now.mean, self._centred.offsets.shape),
            np.broadcast_to(now.second, self._centred.noise.shape),
        )
        shares, one = self._centred.shares, self._centred
        for _ in range(self.local_steps):
            per_site = _step(per_site, one)
            mean += shares @ per_site[0] / self.local_steps
            second += np.tensordot(shares, per_site[1], axes=1) / self.local_steps
        return self.target_mean + mean, second - np.outer(mean, mean)

    def variance_inflation(self, update: int | None = None) -> Array:
        """Variance of each coordinate over the posterior's, ``(d,)``; 1 is exact."""
        return np.diag(self.covariance(update)) / np.diag(self.target_covariance)

    # --- averages over a run -------------------------------------------------------------------

    def mean_square_error(self, updates: int, thin: int) -> float:
        """E‖average of the draws − posterior mean‖² of a stationary run.

        Args:
            updates: updates that draws are taken from, after the burn-in.
            thin: every so many updates one draw; a divisor of T, or a multiple of it.

        Returns:
            The squared bias of the mean plus the variance of the average, summed over coordinates.
        """
        steps = self.local_steps
        phases: range
        if thin % steps == 0:
            phases, stride = range(steps, steps + 1), thin // steps
        elif steps % thin == 0:
            phases, stride = range(thin, steps + 1, thin), 1
        else:
            raise InputError(f"thin: got {thin}; give a divisor or a multiple of {steps}")
        blocks = updates // max(thin, steps)
        if blocks < 1:
            raise InputError(f"updates: {updates} do not hold one draw or visit")
        total, within, lagged, response = self._sums_of_a_visit(phases)
        # The end of a visit, through the visits between, to the draws of a later one.
        between = self._visit.average(self._visit.matrices)
        skip = np.linalg.matrix_power(between, stride)
        response = response @ np.linalg.matrix_power(between, stride - 1)
        variance = blocks * within
        for lag in range(1, blocks):
            term = 2 * (blocks - lag) * float(np.trace(response @ lagged))
            variance += term
            if abs(term) < 1e-14 * variance:
                break
            response = response @ skip
        bias = total / len(phases)
        return variance / (blocks * len(phases)) ** 2 + float(bias @ bias)

    def _sums_of_a_visit(self, phases: range) -> tuple[Array, float, Array, Array]:
        """Of the sum Y of the draws of a visit, taken after these updates.

        Returns:
            E Y; the trace of Cov Y; Cov(end of the visit, Y); the derivative of Y with respect to
            the start of the visit.
        """
        one, average = self._centred, self._centred.average
        d = self.target_mean.size
        mean, response, crossed = np.zeros(d), np.zeros((d, d)), np.zeros((d, d))
        square = 0.0
        for phase in phases:
            here = one.after(phase)
            first, second = self._ends.through(here)
            mean = mean + average(first)
            response = response + average(here.matrices)
            square += float(average(np.trace(second, axis1=1, axis2=2)))
            for later in range(phase + phases.step, phases.stop, phases.step):
                products = one.after(later - phase).times(first, second)
                square += 2 * float(average(np.trace(products, axis1=1, axis2=2)))
            crossed = crossed + average(one.after(self.local_steps - phase).times(first, second))
        within = square - float(mean @ mean)
        return mean, within, crossed - np.outer(self._ends.mean, mean), response


def _step(per_site: tuple[Array, Array], one: Visits) -> tuple[Array, Array]:
    """Means and second moments at each site, one update later."""
    mean, second = per_site
    moved = np.einsum("sij,sj->si", one.matrices, mean)
    cross = moved[:, :, None] * one.offsets[:, None, :]
    across = np.swapaxes(one.matrices, 1, 2)
    later = one.matrices @ second @ across + cross + np.swapaxes(cross, 1, 2) + one.noise
    return moved + one.offsets, later + one.offsets[:, :, None] * one.offsets[:, None, :]
