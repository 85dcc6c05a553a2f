"""The law of gossip samplers on Gaussian agents, and what can be asked of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consortia.errors import InputError
from consortia.theory.federated_averaging_law import AffineNoise
from consortia.theory.gaussian_clients import count, floats
from consortia.theory.gossip_agents import GaussianAgents
from consortia.theory.gossip_batches import BatchNoise
from consortia.theory.gossip_recursion import (
    Modes,
    Powers,
    Recursion,
    agent_blocks,
    block_diagonal,
    spectral_radius,
)

Array = NDArray[np.floating[Any]]

_MOST_DENSE = 64
_MOST_BOUND_STEPS = 30
_SINGULAR = 1e-9


@dataclass(frozen=True, eq=False)
class GossipMoments:
    """Mean and covariance of all agents' positions at one time, beside the target's.

    Attributes:
        means: of each agent, ``(N, d)``.
        covariance: of all positions, agent by agent, ``(N d, N d)``.
        target_mean: ``(d,)``.
        target_covariance: ``(d, d)``.
    """

    means: Array
    covariance: Array = field(repr=False)
    target_mean: Array
    target_covariance: Array

    @property
    def average_mean(self) -> Array:
        """Mean of the average over the agents, ``(d,)``."""
        return self.means.mean(axis=0)

    @property
    def average_covariance(self) -> Array:
        """Covariance of the average over the agents, ``(d, d)``."""
        return self._blocks.mean(axis=(0, 2))

    @property
    def agent_covariances(self) -> Array:
        """Covariance of each agent's position, ``(N, d, d)``."""
        return agent_blocks(self.covariance, self.means.shape[1])

    @property
    def agent_variance_ratios(self) -> Array:
        """Variance of each agent's coordinates over the target's, ``(N, d)``."""
        variances = np.diagonal(self.covariance).reshape(self.means.shape)
        return variances / np.diagonal(self.target_covariance)

    @property
    def disagreement(self) -> float:
        """Expected squared distance of an agent from the average, over all agents."""
        spread = np.trace(self.covariance) / len(self.means) - np.trace(self.average_covariance)
        return float(spread + np.sum((self.means - self.average_mean) ** 2) / len(self.means))

    @cached_property
    def w2_average(self) -> float:
        """2-Wasserstein distance of the average's law to the target."""
        return self._w2(self.average_mean, self.average_covariance)

    @cached_property
    def w2_agents(self) -> Array:
        """2-Wasserstein distance of each agent's law to the target, ``(N,)``."""
        laws = zip(self.means, self.agent_covariances, strict=True)
        return np.array([self._w2(mean, covariance) for mean, covariance in laws])

    @property
    def _blocks(self) -> Array:
        agents, d = self.means.shape
        return self.covariance.reshape(agents, d, agents, d)

    def _w2(self, mean: Array, covariance: Array) -> float:
        from consortia.diagnostics.distances import gaussian_wasserstein2

        return gaussian_wasserstein2(mean, covariance, self.target_mean, self.target_covariance)


@dataclass(frozen=True, eq=False)
class GossipLaw:
    """The law of a gossip sampler after any number of iterations, and in the long run.

    It is Gaussian with exact gradients; with minibatches the means and covariances are exact and
    the law is not Gaussian, so that W₂ is that of the Gaussian law with the same moments.

    Attributes:
        agents: the problem.
        recursion: one iteration.
        batches: minibatch noise, None with exact gradients.
        temperature: of the target.
    """

    agents: GaussianAgents
    recursion: Recursion = field(repr=False)
    batches: BatchNoise | None = field(repr=False)
    temperature: float = 1.0

    @property
    def target_covariance(self) -> Array:
        """Covariance of the target at this temperature, ``(d, d)``."""
        return self.temperature * self.agents.target_covariance

    @cached_property
    def spectral_radius(self) -> float:
        """Of the iteration's mean; below one if and only if it settles."""
        return spectral_radius(self.recursion.matrix)

    @cached_property
    def mean_square_radius(self) -> float:
        """Factor by which minibatch noise feeds itself; one or more: the variance diverges.

        The covariance of the gradients' noise grows with the covariance of the positions, which
        that noise makes. 0 with exact gradients; infinite where the mean already diverges.
        """
        if self.batches is None:
            return 0.0
        if self.spectral_radius >= 1.0:
            return math.inf
        size = math.prod(self._block_shape)
        start = np.broadcast_to(np.eye(self.agents.dimension), self._block_shape)
        if size <= _MOST_DENSE:
            return spectral_radius(
                np.stack([self._feedback(unit).ravel() for unit in np.eye(size)])
            )
        if not self._feedback(start).any():
            return 0.0
        from scipy.sparse.linalg import LinearOperator, eigs

        operator = LinearOperator((size, size), lambda u: self._feedback(u).ravel())
        # It takes covariances to covariances, so that its largest eigenvalue is real and positive.
        found = eigs(operator, k=1, v0=start.ravel(), tol=1e-6, return_eigenvectors=False)
        return float(np.abs(found[0]))

    @property
    def stable(self) -> bool:
        """Whether means and covariances settle."""
        return self.spectral_radius < 1.0 and (self.batches is None or self._noise_settles)

    @property
    def instability(self) -> str:
        """In words, what does not settle; empty when all does."""
        if self.stable:
            return ""
        if self.spectral_radius >= 1.0:
            return f"the mean grows by the factor {self.spectral_radius:.6g} an iteration"
        return f"minibatch noise feeds itself by the factor {self.mean_square_radius:.6g}"

    @cached_property
    def stationary(self) -> GossipMoments:
        """The moments in the long run.

        Raises:
            InputError: the iteration is unstable.
        """
        self._require_stable()
        step = self.recursion
        mean = np.linalg.solve(np.eye(len(step.matrix)) - step.matrix, step.offset)
        scale = step.scale / 2 if step.averaged else step.scale
        covariance = scale**2 * self._sums.common(self._spread, averaged=step.averaged)
        covariance = covariance + self._fresh()
        if self.batches is not None:
            noise = self._noise_of_batches(mean, covariance)
            covariance = covariance + self._sums.private_to_all(step.step**2 * noise)
        return self._moments(mean, covariance)

    def after(self, iterations: int, start: ArrayLike) -> GossipMoments:
        """The moments after a number of iterations from a point.

        Args:
            iterations: k ≥ 0. With minibatches the time grows with k, else with its logarithm.
            start: where all agents start, a number or ``(d,)``, or ``(N, d)``.
        """
        return self.along([iterations], start)[0]

    def along(self, iterations: Sequence[int], start: ArrayLike) -> list[GossipMoments]:
        """The moments after several numbers of iterations, in the order given; see `after`."""
        steps = [count(k, "iterations", least=0) for k in iterations]
        step, shape = self.recursion, self.agents.pulls.shape
        given = floats(start, "start")
        if given.shape not in ((), shape[1:], shape):
            raise InputError(f"start has shape {given.shape}: give (d,) or (agents, d).")
        mean = np.zeros(len(step.matrix))
        mean[: np.prod(shape)] = np.broadcast_to(given, shape).ravel()
        if self.batches is not None:
            found = dict(self._after_batches(sorted(set(steps)), mean))
            return [found[k] for k in steps]
        return [self._doubled(k, mean) for k in steps]

    # --- inside ---------------------------------------------------------------------------------

    @cached_property
    def _noise_settles(self) -> bool:
        """Whether `mean_square_radius` is below one, by the first bound of it that says so.

        The feedback K of noise takes positive definite blocks u to such: K u ≤ c u bounds its
        radius by c from above, and K u ≥ c u from below.
        """
        noise = np.broadcast_to(np.eye(self.agents.dimension), self._block_shape)
        for _ in range(_MOST_BOUND_STEPS):
            after = self._feedback(noise)
            inverse = np.linalg.inv(np.linalg.cholesky(noise))
            ratios = np.linalg.eigvalsh(inverse @ after @ np.swapaxes(inverse, 1, 2))
            if ratios.max() < 1.0:
                return True
            if ratios.min() >= 1.0:
                return False
            if ratios.min() <= _SINGULAR * ratios.max():  # some agent's batches make no noise
                break
            noise = after / np.linalg.norm(after)
        return self.mean_square_radius < 1.0

    @property
    def _block_shape(self) -> tuple[int, int, int]:
        return (self.agents.count, self.agents.dimension, self.agents.dimension)

    @property
    def _spread(self) -> Array:
        """Covariance of ξ, (N d, N d)."""
        return np.kron(self.recursion.correlation, np.eye(self.agents.dimension))

    def _injected(self) -> Array:
        """Covariance that each iteration adds (to z less half its newest noise, if averaged)."""
        step = self.recursion
        entry = step.scale * step.entry
        if step.averaged:
            entry = (entry + step.matrix @ entry) / 2
        return entry @ self._spread @ entry.T

    def _fresh(self) -> Array:
        """Covariance of the newest half of averaged noise, which no iteration has moved yet."""
        step = self.recursion
        return self._spread * (step.scale**2 / 4 if step.averaged else 0.0)

    def _as_map(self, covariance: Array) -> AffineNoise:
        step = self.recursion
        return AffineNoise(step.matrix[None], step.offset[None], covariance[None])

    @cached_property
    def _sums(self) -> Modes | Powers:
        modes = Modes.of(self.recursion)
        return modes if modes.accurate else Powers(self.recursion)

    def _feedback(self, noise: Array) -> Array:
        """Gradient noise that comes of the spread that gradient noise makes, (N, d, d)."""
        assert self.batches is not None
        blocks = self.recursion.step**2 * noise.reshape(self._block_shape)
        return self.batches.of_spread(self._sums.private(blocks))

    def _noise_of_batches(self, mean: Array, covariance: Array) -> Array:
        """Stationary covariances of the gradients: u = u₀ + feedback(u), solved; (N, d, d)."""
        first = self._batch_noise(mean, covariance)
        size = first.size
        from scipy.sparse.linalg import LinearOperator, gmres

        operator = LinearOperator((size, size), lambda u: u.ravel() - self._feedback(u).ravel())
        noise, failed = gmres(operator, first.ravel(), rtol=1e-11, atol=0.0, restart=50)
        if failed:
            raise InputError("the minibatch noise did not settle: lower step_size")
        return noise.reshape(self._block_shape)

    def _batch_noise(self, mean: Array, covariance: Array) -> Array:
        """Covariances of the gradients for positions of this mean and covariance, (N, d, d)."""
        assert self.batches is not None
        agents, d, _ = self._block_shape
        noise = self.batches.at_mean(mean[: agents * d].reshape(agents, d))
        return noise + self.batches.of_spread(agent_blocks(covariance, d))

    def _doubled(self, k: int, mean: Array) -> GossipMoments:
        """After k iterations with exact gradients, by squaring the map of one."""
        step = self.recursion
        nothing = np.zeros_like(step.matrix)
        if k == 0:
            return self._moments(mean, nothing)
        # Averaged noise is, in z less its newest half, one that begins a step late.
        first = self._as_map(nothing if step.averaged else self._injected())
        power, total = self._as_map(self._injected()), first
        k -= 1
        while k:
            if k & 1:
                total = power.after(total)
            k >>= 1
            if k:
                power = power.after(power)
        mean = total.matrix[0] @ mean + total.offset[0]
        size = step.entry.shape[1]
        return self._moments(mean, total.covariance[0, :size, :size] + self._fresh())

    def _after_batches(
        self, iterations: Sequence[int], mean: Array
    ) -> Iterator[tuple[int, GossipMoments]]:
        """With minibatches, one iteration after the other; ``iterations`` in rising order."""
        step = self.recursion
        size = step.entry.shape[1]
        injected, fresh = self._injected(), self._fresh()
        inner = np.zeros_like(step.matrix)
        covariance = np.zeros((size, size))
        done = 0
        for wanted in iterations:
            while done < wanted:
                noise = block_diagonal(step.step**2 * self._batch_noise(mean, covariance))
                inner = step.matrix @ inner @ step.matrix.T + step.entry @ noise @ step.entry.T
                if done or not step.averaged:
                    inner = inner + injected
                covariance = inner[:size, :size] + fresh
                mean = step.matrix @ mean + step.offset
                done += 1
            yield wanted, self._moments(mean, covariance)

    def _moments(self, mean: Array, covariance: Array) -> GossipMoments:
        agents = self.agents
        size = agents.count * agents.dimension
        return GossipMoments(
            mean[:size].reshape(agents.pulls.shape),
            covariance[:size, :size],
            agents.target_mean,
            self.target_covariance,
        )

    def _require_stable(self) -> None:
        if not self.stable:
            raise InputError(
                f"this iteration has no stationary law: {self.instability}. Lower step_size; "
                "consortia.oracles.largest_stable_step gives the largest."
            )
