r"""The exact law of FA-HMC whose clients meet within a trajectory, on Gaussian clients.

Positions and velocities are averaged after every A leapfrog steps, and a new momentum is taken
after every K of them. A window of A steps is an affine map of the averages (x, v), one of
K / gcd(A, K) that take turns, made of kicks, drifts and new momenta at every client:

.. math:: v \leftarrow v - h M^{-1} [L_c (x - m_c) + \varepsilon], \qquad x \leftarrow x + \eta v,
          \qquad v \leftarrow M^{-1} p

with L_c and m_c the curvature and the mean of client c, M the mass, ε the noise of a gradient, p a
new momentum; h is η, and η/2 at both ends of a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.theory.affine import AffineMap, Array, Normal, Recursion, spectral_radius
from consortia.theory.clients import GaussianClients


class Windows(NamedTuple):
    """Settings that all windows of a run share."""

    step_size: float  # η
    leapfrog_steps: int  # K
    average_every: int  # A
    momentum_correlation: float  # ρ
    gradient_noise: Float[np.ndarray, " N"]  # σ² of each client
    gradient_draws: int
    heat: float

    @property
    def period(self) -> int:
        """Windows after which the trajectories begin in the same places again."""
        return self.leapfrog_steps // math.gcd(self.leapfrog_steps, self.average_every)


def window(clients: GaussianClients, given: Windows, start: int) -> AffineMap:
    """Return a window's effect on the averages, around the target's mean.

    Args:
        clients: the clients.
        given: the settings.
        start: leapfrog steps of its trajectory before the window.
    """
    eta, rho = given.step_size, given.momentum_correlation
    inverse_mass, nil = np.linalg.inv(clients.mass), np.zeros_like(clients.curvatures)
    identity, width = nil + np.eye(nil.shape[-1]), nil.shape[-1]
    pull = inverse_mass @ clients.curvatures
    away = (pull @ (clients.target_mean - clients.means)[..., None])[..., 0]
    shares, sigma = (part[:, None, None, None] for part in (clients.weights, given.gradient_noise))
    still = np.zeros_like(away)
    noise = sigma * (inverse_mass @ inverse_mass.mT)
    new = (1 - rho) * given.heat / shares * inverse_mass

    def of_v(corner: Array) -> Array:
        """Return a matrix of (x, v) that is zero but for the block of v."""
        return np.block([[nil, nil], [nil, nil + corner]])

    def kick(part: float, draws: int) -> AffineMap:
        offset = np.concatenate([still, -part * away], axis=-1)
        matrix = np.block([[identity, nil], [-part * pull, identity]])
        return AffineMap(matrix, offset, of_v(part**2 / draws * noise))

    no_offset = np.concatenate([still, still], axis=-1)
    drift = AffineMap(np.block([[identity, eta * identity], [nil, identity]]), no_offset, of_v(nil))
    refresh = AffineMap(np.block([[identity, nil], [nil, nil]]), no_offset, of_v(new))
    responses: list[Array] = []  # of every client's state to each momentum that all share
    v_alone = np.concatenate([nil, identity], axis=-2)
    made = AffineMap(of_v(nil) + np.eye(2 * width), no_offset, of_v(nil))
    for at in range(given.average_every + 1):
        inner = 0 < at < given.average_every
        fresh = at < given.average_every and (start + at) % given.leapfrog_steps == 0
        steps = [drift] if at else []
        steps += [refresh] if fresh else []
        steps.append(kick(eta if inner and not fresh else eta / 2, given.gradient_draws**inner))
        for step in steps:
            made = step.after(made)
            responses = [step.matrix @ response for response in responses]
            if step is refresh:
                responses.append(v_alone)
    covariance = np.tensordot(clients.weights**2, made.covariance, axes=1)
    for response in responses:
        common = clients.average(response)
        covariance = covariance + rho * given.heat * common @ inverse_mass @ common.mT
    return AffineMap(clients.average(made.matrix), clients.average(made.offset), covariance)


@dataclass(frozen=True, eq=False)
class WindowRecursion(Recursion):
    """Windows in turn around the target's mean; a draw is the averaged position after each."""

    windows: tuple[AffineMap, ...]  # of (x, v), (blocks, 2 w, 2 w)

    @cached_property
    def _period(self) -> AffineMap:
        with np.errstate(over="ignore", invalid="ignore"):
            return reduce(lambda first, then: then.after(first), self.windows)

    @cached_property
    def spectral_radius(self) -> float:
        """Factor by which the mean's distance grows a window."""
        return spectral_radius(self._period.matrix) ** (1 / len(self.windows))

    def stationary(self) -> Normal:
        """Return the law of the draws of all windows together."""
        step = self._period
        left = np.eye(step.matrix.shape[-1]) - step.matrix
        mean = np.linalg.solve(left, step.offset[..., None])[..., 0]
        state = AffineMap(0 * step.matrix, mean, step.stationary_covariance())
        laws = []
        for step in self.windows:
            state = step.after(state)
            laws.append(self._position(state))
        means = np.array([law.mean for law in laws])
        away = means - means.mean(axis=0)
        law = Normal(means.mean(axis=0), np.mean([law.covariance for law in laws], axis=0))
        if law.covariance.ndim == 1 and not away.any():
            return law
        return Normal(law.mean, law.full + away.T @ away / len(laws))

    def path(self, start: Normal) -> Iterator[Normal]:
        """Yield the law of the draw after 0, 1, 2, ... windows."""
        yield start
        blocks, size = self._period.offset.shape
        width = size // 2
        mean = np.zeros((blocks, size))
        mean[:, :width] = start.mean.reshape(blocks, width)
        covariance = np.zeros((blocks, size, size))
        covariance[:, :width, :width] = start.blocks(width)
        state = AffineMap(0 * covariance, mean, covariance)
        while True:
            for step in self.windows:
                state = step.after(state)
                yield self._position(state)

    def _position(self, state: AffineMap) -> Normal:
        width = state.offset.shape[-1] // 2
        return Normal.of(state.offset[:, :width], state.covariance[:, :width, :width])
