"""Underdamped Langevin dynamics by a symmetric splitting, second order in the step size."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from consortia.dynamics.state import State
from consortia.dynamics.stochastic_gradient_hmc import injected


@dataclass(frozen=True)
class SplittingHMC:
    r"""One symmetric step (drift, friction, force and noise, friction, drift: ABOBA).

    .. math::
        \hat\theta = \theta + \tfrac h2 q, \quad
        q' = e^{-Bh/2}\bigl(e^{-Bh/2} q - h g(\hat\theta) + \sqrt{2BhT - h^2 V}\,\zeta\bigr), \quad
        \theta' = \hat\theta + \tfrac h2 q'

    The gradient belongs to the half-step point θ̂ of the step that will use it, which is `point`;
    taken at θ instead, the order falls to one.

    Attributes:
        friction: B, per unit of time.
        temperature: T.
        gradient_variance: V, as in `EulerHMC`.

    Source: the symmetric splitting of Chen, Ding, Carin (2015), which Chen et al. (2016) use.
    """

    friction: float
    temperature: float = 1.0
    gradient_variance: float | tuple[float, ...] = 0.0

    def start(self, position: Float[Array, " d"]) -> State:
        """Return θ at rest."""
        return State(position, jnp.zeros_like(position))

    def point(self, state: State, step_size: Float[Array, ""]) -> Float[Array, " d"]:
        """Return θ̂ = θ + hq/2."""
        return state.position + step_size / 2 * state.momentum

    def step(
        self,
        state: State,
        gradient: Float[Array, " d"],
        normal: Float[Array, " d"],
        step_size: Float[Array, ""],
    ) -> State:
        """Return (θ', q'), from the gradient at θ̂."""
        decay = jnp.exp(-self.friction * step_size / 2)
        spread = injected(self.friction * self.temperature, self.gradient_variance, step_size)
        half = self.point(state, step_size)
        kicked = decay * state.momentum - step_size * gradient + spread * normal
        momentum = decay * kicked
        return State(half + step_size / 2 * momentum, momentum)
