r"""What crosses the network along a trajectory: positions down, potentials and gradients up.

`FullWidth` sends both as they are. `Quantised` sends each site's gradient in 8 or 16 bits,

.. math:: \hat g_{ci} = 2^{e_i}\,\operatorname{round}\bigl(2^{-e_i} g_{ci} + u\bigr)

cut off at the largest number of that width, u = 0 or, dithered, uniform on (−½, ½) and drawn anew
for every evaluation. Rounded gradients are a function of the position, dithered ones of independent
numbers whose law is the same in either direction of time; so the leapfrog with them preserves
volume and is reversible, and the Metropolis test, whose potentials are not rounded, keeps the
target exact. Feeding the rounding error back into the next message would break that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from consortia.core.contract import Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import metropolis

Array = jax.Array
Hub = Any

MARGIN = 1.0
"""After the warm-up the grid is coarser by this many powers of two than where it clipped last."""

PATIENCE = 0.1
"""Powers of two by which the grid gets finer after a trajectory that clipped nothing."""


@dataclass(frozen=True)
class FullWidth:
    """Positions, potentials and gradients as floating-point numbers.

    Attributes:
        fresh_start: the gradient at the start of a trajectory is evaluated anew.
    """

    fresh_start: bool = False

    def state(self, position: Array) -> dict[str, Array]:
        """What the server keeps for it."""
        return {}

    def down(self, hub: Hub, position: Array) -> Any:
        """The reply that carries a position."""
        return position

    def numbers(self, target: Target, rng: RandomStreams) -> Any:
        """What a site draws for one evaluation."""
        return ()

    def evaluate(
        self, target: Target, noise: Any, shared: Any, state: Any, inbox: Any, site: Site
    ) -> Any:
        """The message is (U_c, ∇U_c) at θ."""
        return state, metropolis.potential_and_gradient(target, inbox, site), {}

    def first(
        self, target: Target, noise: Any, shared: Any, state: Any, inbox: Any, site: Site
    ) -> Any:
        """The message before the first iteration: (U_c, ∇U_c, what sets the grid)."""
        potential, gradient = metropolis.potential_and_gradient(target, self._position(inbox), site)
        return state, (potential, gradient, jnp.max(jnp.abs(gradient))), {}

    def up(self, hub: Hub, message: Any) -> tuple[metropolis.Potential, Array, Hub]:
        """U, its gradient, and the server's state, from the sum of the messages."""
        potential, gradient = message
        return potential, gradient, hub

    def begun(self, hub: Hub, largest: Array) -> Hub:
        """The server's state after the first message."""
        return hub

    def adapted(self, hub: Hub, shared: Any) -> Hub:
        """The server's state after a trajectory."""
        return hub

    def _position(self, inbox: Any) -> Array:
        return inbox


@dataclass(frozen=True)
class Quantised(FullWidth):
    """Gradients in few bits.

    Attributes:
        bits: 8 or 16.
        dither: add uniform noise before rounding.
    """

    bits: int = 8
    dither: bool = False

    @property
    def limit(self) -> int:
        """The largest number that a message holds."""
        return 2 ** (self.bits - 1) - 1

    @property
    def _integer(self) -> Any:
        return jnp.int8 if self.bits == 8 else jnp.int16

    def state(self, position: Array) -> dict[str, Array]:
        """The grid: e relative to the scales in use, and whether the trajectory clipped."""
        zero = jnp.zeros((), position.dtype)
        return {
            "exponent": zero,
            "exponents": jnp.zeros(position.size, jnp.int8),
            "clipped": zero,
        }

    def down(self, hub: Hub, position: Array) -> Any:
        """The position and e_i."""
        return position, hub["wire"]["exponents"]

    def numbers(self, target: Target, rng: RandomStreams) -> Any:
        """u of one evaluation, for each coordinate."""
        return rng.uniform("dither", (target.dimension,)) if self.dither else ()

    def evaluate(
        self, target: Target, noise: Any, shared: Any, state: Any, inbox: Any, site: Site
    ) -> Any:
        """The message is (U_c, the rounded ∇U_c, whether one of its coordinates was clipped)."""
        position, exponents = inbox
        potential, gradient = metropolis.potential_and_gradient(target, position, site)
        raw = gradient * jnp.exp2(-exponents.astype(gradient.dtype))
        if self.dither:
            raw = raw + (noise - 0.5)
        clipped = ~jnp.all(jnp.abs(raw) <= self.limit)
        whole = jnp.clip(jnp.round(jnp.nan_to_num(raw)), -self.limit, self.limit)
        return state, (potential, whole.astype(self._integer), clipped.astype(jnp.int8)), {}

    def up(self, hub: Hub, message: Any) -> tuple[metropolis.Potential, Array, Hub]:
        """The sum of whole numbers, times 2^e_i."""
        potential, whole, clipped = message
        wire = hub["wire"]
        dtype = wire["exponent"].dtype
        gradient = whole.astype(dtype) * jnp.exp2(wire["exponents"].astype(dtype))
        wire = wire | {"clipped": wire["clipped"] + clipped.astype(dtype)}
        return potential, gradient, hub | {"wire": wire}

    def begun(self, hub: Hub, largest: Array) -> Hub:
        """A grid that holds every gradient at the start."""
        exponent = jnp.ceil(jnp.log2(jnp.maximum(largest, 1e-30) / self.limit))
        return self._with(hub, exponent, jnp.zeros_like(exponent))

    def adapted(self, hub: Hub, shared: Any) -> Hub:
        """In the warm-up the grid follows the gradients; then it stands still, a little coarser."""
        wire = hub["wire"]
        step = jnp.where(wire["clipped"] > 0, 1, -PATIENCE).astype(wire["exponent"].dtype)
        warming = shared["iteration"] < shared["warmup"]
        last = shared["iteration"] + 1 == shared["warmup"]
        exponent = jnp.where(warming, wire["exponent"] + step, wire["exponent"])
        exponent = jnp.where(last, exponent + MARGIN, exponent)
        # The scales stand still too once the warm-up is over.
        return self._with(hub, exponent, jnp.zeros_like(exponent))

    def _with(self, hub: Hub, exponent: Array, clipped: Array) -> Hub:
        """e_i = e − ½ log₂(variance_i): gradients are steep where the posterior is narrow."""
        learned = hub["learned"]
        shift = jnp.zeros_like(hub["here"]["position"])
        if learned is not None and learned.scales is not None:
            shift = jnp.log2(learned.scales.variance) / 2
        exponents = jnp.clip(jnp.round(exponent - shift), -126, 126).astype(jnp.int8)
        wire = {"exponent": exponent, "exponents": exponents, "clipped": clipped}
        return hub | {"wire": wire}

    def _position(self, inbox: Any) -> Array:
        return inbox[0]
