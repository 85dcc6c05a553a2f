"""Overdamped Langevin dynamics by the method of Euler and Maruyama."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from consortia.dynamics.state import State


@dataclass(frozen=True)
class Langevin:
    r"""One step of Langevin dynamics, as in stochastic gradient Langevin dynamics (SGLD).

    .. math:: \theta' = \theta - h G g + \sqrt{2hTG}\,\zeta

    On a Gaussian target of precision λ and with exact gradients the variance is
    T/(λ(1 − hλ/2)) where G = 1: its bias is O(h). With an adaptation α

    .. math::
        G_i = \frac{1}{\text{floor} + \sqrt{v_i}}, \qquad
        v = \frac{\sum_k \alpha^k g_{l-k}^2}{\sum_k \alpha^k}

    Attributes:
        temperature: T.
        adaptation: α in (0, 1]; None has G = 1.
        floor: added to the root mean square of the gradients.
    """

    temperature: float = 1.0
    adaptation: float | None = None
    floor: float = 0.0

    def start(self, position: Float[Array, " d"]) -> State:
        """Return θ, and empty sums of the squared gradients where G adapts."""
        if self.adaptation is None:
            return State(position)
        return State(position, squares=(jnp.zeros_like(position), jnp.zeros((), position.dtype)))

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
        if self.adaptation is None:
            spread = jnp.sqrt(2 * self.temperature * step_size)
            return State(state.position - step_size * gradient + spread * normal)
        squares, weight = state.squares
        squares = self.adaptation * squares + gradient**2
        weight = self.adaptation * weight + 1
        steps = step_size / (self.floor + jnp.sqrt(squares / weight))
        spread = jnp.sqrt(2 * self.temperature * steps)
        moved = state.position - steps * gradient + spread * normal
        return State(moved, squares=(squares, weight))
