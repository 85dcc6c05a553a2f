"""Overdamped Langevin dynamics by the method of Euler and Maruyama."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from consortia.dynamics.state import State


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

    def start(self, position: Float[Array, " d"]) -> State:
        """Return θ alone."""
        return State(position)

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
        """Return θ', from the gradient at θ."""
        spread = jnp.sqrt(2 * self.temperature * step_size)
        return State(state.position - step_size * gradient + spread * normal)
