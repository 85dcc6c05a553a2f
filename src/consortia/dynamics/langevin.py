"""Overdamped Langevin dynamics by the method of Euler and Maruyama."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from consortia.dynamics.state import Array, State


@dataclass(frozen=True)
class Langevin:
    r"""One step of Langevin dynamics, as in stochastic gradient Langevin dynamics (SGLD).

    .. math:: \theta' = \theta - h g + \sqrt{2hT}\,\zeta

    On a Gaussian target of precision λ and with exact gradients the variance is
    T/(λ(1 − hλ/2)): its bias is O(h).

    Attributes:
        temperature: T.
    """

    temperature: float = 1.0

    def start(self, position: Array) -> State:
        """θ alone."""
        return State(position)

    def point(self, state: State, step_size: Array) -> Array:
        """θ."""
        return state.position

    def step(self, state: State, gradient: Array, normal: Array, step_size: Array) -> State:
        """θ' from the gradient at θ."""
        spread = jnp.sqrt(2 * self.temperature * step_size)
        return State(state.position - step_size * gradient + spread * normal)
