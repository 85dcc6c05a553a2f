"""Underdamped Langevin dynamics by a semi-implicit Euler step, as in SGHMC."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from consortia.dynamics.state import State


@dataclass(frozen=True)
class EulerHMC:
    r"""One step of stochastic gradient Hamiltonian Monte Carlo (SGHMC), Euler's way.

    .. math:: q' = (1 - Bh)\,q - h g + \sqrt{2BhT - h^2 V}\,\zeta, \qquad \theta' = \theta + h q'

    On a Gaussian target with exact, fresh gradients the variance of θ is off by O(h²); with
    gradient noise that V does not take out, or with stale gradients, by O(h).

    Attributes:
        friction: B, per unit of time.
        temperature: T.
        gradient_variance: V, variance per coordinate of the gradient's noise that is to be taken
            out of the injected one: a number or a tuple (d,); the result is NaN where hV > 2BT.

    Source: Chen et al., "Stochastic gradient MCMC with stale gradients" (2016), algorithm 1, after
    Chen, Fox, Guestrin (2014).
    """

    friction: float
    temperature: float = 1.0
    gradient_variance: float | tuple[float, ...] = 0.0

    def start(self, position: Float[Array, " d"]) -> State:
        """Return θ at rest."""
        return State(position, jnp.zeros_like(position))

    def point(self, state: State, step_size: Float[Array, ""]) -> Float[Array, " d"]:
        """Return θ."""
        return state.position

    def step(
        self,
        state: State,
        gradient: Float[Array, " d"],
        normal: Float[Array, " d"],
        step_size: Float[Array, ""],
    ) -> State:
        """Return (θ', q'), from the gradient at θ."""
        spread = injected(self.friction * self.temperature, self.gradient_variance, step_size)
        kept = (1 - self.friction * step_size) * state.momentum
        momentum = kept - step_size * gradient + spread * normal
        return State(state.position + step_size * momentum, momentum)


def injected(
    strength: float, gradient_variance: float | tuple[float, ...], step_size: Float[Array, ""]
) -> Float[Array, "*d"]:
    """Return √(2 · strength · h − h²V), the standard deviation of the injected noise."""
    if gradient_variance == 0.0:
        return jnp.sqrt(2 * strength * step_size)
    variance = jnp.asarray(gradient_variance, step_size.dtype)
    return jnp.sqrt(2 * strength * step_size - step_size**2 * variance)
