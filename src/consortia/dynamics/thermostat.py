"""Nosé–Hoover thermostats: a friction that adapts to the gradient's noise."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from consortia.dynamics.state import State


@dataclass(frozen=True)
class Thermostat:
    r"""One step of the stochastic gradient Nosé–Hoover thermostat (SGNHT), symmetrically split.

    .. math::
        \text{A:}\quad & \theta \mathrel{+}= \tfrac h2 q, \quad
            \xi \mathrel{+}= \tfrac h2\Bigl(\tfrac{q\cdot q}{d} - T\Bigr) \\
        \text{B:}\quad & q \mathrel{*}= e^{-\xi h/2} \qquad
        \text{O:}\quad q \mathrel{+}= -h g + \sqrt{2DhT}\,\zeta

    in the order A, B, O, B, A; element-wise, ξ is a vector and A adds (h/2)(q∘q − T). The friction
    ξ starts at D and settles where the momentum has variance T, whatever the noise of the gradient
    and, element-wise, much of the energy that stale gradients feed in.

    Attributes:
        friction: D.
        elementwise: one ξ for each coordinate.
        temperature: T.

    Source: Ding et al. (2014), as Chen et al. (2016) use it; element-wise after Gan et al. (2015).
    """

    friction: float
    elementwise: bool = False
    temperature: float = 1.0

    def start(self, position: Float[Array, " d"]) -> State:
        """Return θ at rest, with ξ = D."""
        shape = position.shape if self.elementwise else ()
        thermostat = jnp.full(shape, self.friction, position.dtype)
        return State(position, jnp.zeros_like(position), thermostat)

    def point(self, state: State, step_size: Float[Array, ""]) -> Float[Array, " d"]:
        """Return θ + hq/2."""
        return state.position + step_size / 2 * state.momentum

    def step(
        self,
        state: State,
        gradient: Float[Array, " d"],
        normal: Float[Array, " d"],
        step_size: Float[Array, ""],
    ) -> State:
        """Return (θ', q', ξ'), from the gradient at the half-step point."""
        half = self.point(state, step_size)
        thermostat = state.thermostat + step_size / 2 * self._excess(state.momentum)
        decay = jnp.exp(-thermostat * step_size / 2)
        spread = jnp.sqrt(2 * self.friction * self.temperature * step_size)
        kicked = decay * state.momentum - step_size * gradient + spread * normal
        momentum = decay * kicked
        return State(
            half + step_size / 2 * momentum,
            momentum,
            thermostat + step_size / 2 * self._excess(momentum),
        )

    def _excess(self, momentum: Float[Array, " d"]) -> Float[Array, "*d"]:
        """Return by how much the kinetic energy is above its mean."""
        squares = momentum**2
        return (squares if self.elementwise else jnp.mean(squares)) - self.temperature
