"""Messages along a trajectory: positions down, potentials and gradients up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int

from consortia.core.contract import Disclosure, Evaluation, Info, Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import metropolis
from consortia.dynamics.adaptation import Adaptation
from consortia.runtime.late import Array, PyTree, jnp

Vector = Float[Array, " d"]
Scalar = Float[Array, ""]
Count = Int[Array, ""]

GRID_MARGIN = 1.0
"""After the warm-up the grid is coarser by this many powers of two than where it clipped last."""

GRID_REFINEMENT = 0.1
"""Powers of two by which the grid gets finer after a trajectory that clipped nothing."""


@dataclass(frozen=True)
class FullWidth:
    """Positions, potentials and gradients as floating-point numbers."""

    fresh_start: bool = False  # the gradient at the start of a trajectory is evaluated anew

    def state(self, position: Vector) -> PyTree:
        """Return the server's state for it."""
        return ()

    def down(self, state: PyTree, position: Vector) -> PyTree:
        """Return the reply that carries a position."""
        return position

    def noise(self, target: Target, rng: RandomStreams) -> PyTree:
        """Return the random numbers of a site for one evaluation."""
        return ()

    def evaluate(
        self,
        target: Target,
        noise: PyTree,
        shared: tuple[()],
        state: tuple[()],
        inbox: PyTree,
        site: Site,
    ) -> tuple[tuple[()], PyTree, Info]:
        """Send (U_c, ∇U_c) at θ."""
        return state, metropolis.potential_and_gradient(target, inbox, site), {}

    def evaluate_start(
        self,
        target: Target,
        noise: PyTree,
        shared: tuple[()],
        state: tuple[()],
        inbox: PyTree,
        site: Site,
    ) -> tuple[tuple[()], PyTree, Info]:
        """Send (U_c, ∇U_c, what sets the grid) before the first iteration."""
        potential, gradient = metropolis.potential_and_gradient(target, self.position(inbox), site)
        return state, (potential, gradient, jnp.max(jnp.abs(gradient))), {}

    def position(self, inbox: PyTree) -> Vector:
        """Return the position that a reply carries."""
        return inbox

    def evaluation(self, inbox: PyTree) -> Evaluation:
        """Return the place that an inbox asks about."""
        return Evaluation(self.position(inbox))

    def disclosure(self, outbox: PyTree) -> Disclosure:
        """Return the gradients of an outbox."""
        return Disclosure(gradients=outbox[1])

    def up(self, state: PyTree, message: PyTree) -> tuple[metropolis.Potential, Array, PyTree]:
        """Return U, its gradient and the wire's state from the sum of the messages."""
        return *message, state

    def started(self, state: PyTree, largest: Scalar, learned: Adaptation | None) -> PyTree:
        """Return the wire's state after the first message."""
        return state

    def adapted(
        self, state: PyTree, iteration: Count, warmup: Count, learned: Adaptation | None
    ) -> PyTree:
        """Return the wire's state after a trajectory."""
        return state


class Grid(NamedTuple):
    """e relative to the scales in use, e_i, and how often a site clipped in this trajectory."""

    exponent: Scalar
    exponents: Int[Array, " d"]
    clipped: Scalar


@dataclass(frozen=True)
class Quantized(FullWidth):
    r"""Each site's gradient in 8 or 16 bits.

    .. math:: \hat g_{ci} = 2^{e_i}\,\operatorname{round}\bigl(2^{-e_i} g_{ci} + u\bigr)

    cut off at the largest number of that width, u = 0 or, dithered, uniform on (−½, ½) and drawn
    anew for every evaluation. Rounded gradients are a function of the position, dithered ones of
    independent numbers whose law is the same in either direction of time; so the leapfrog with them
    preserves volume and is reversible, and the Metropolis test, whose potentials are not rounded,
    keeps the target exact. Feeding the rounding error back into the next message would break that.
    """

    bits: int = 8  # 8 or 16
    dither: bool = False  # add uniform noise before rounding

    @property
    def limit(self) -> int:
        """The largest number that a message holds."""
        return 2 ** (self.bits - 1) - 1

    def state(self, position: Vector) -> Grid:
        """Return a grid that the first message sets."""
        zero = jnp.zeros((), position.dtype)
        return Grid(zero, jnp.zeros(position.size, jnp.int8), zero)

    def down(self, state: Grid, position: Vector) -> PyTree:
        """Return the position and e_i."""
        return position, state.exponents

    def position(self, inbox: PyTree) -> Vector:
        """Return the position that a reply carries."""
        return inbox[0]

    def noise(self, target: Target, rng: RandomStreams) -> PyTree:
        """Return u of one evaluation, for each coordinate."""
        return rng.uniform("dither", (target.dimension,)) if self.dither else ()

    def evaluate(
        self,
        target: Target,
        noise: PyTree,
        shared: tuple[()],
        state: tuple[()],
        inbox: PyTree,
        site: Site,
    ) -> tuple[tuple[()], PyTree, Info]:
        """Send (U_c, the rounded ∇U_c, whether one of its coordinates was clipped)."""
        position, exponents = inbox
        potential, gradient = metropolis.potential_and_gradient(target, position, site)
        raw = gradient * jnp.exp2(-exponents.astype(gradient.dtype))
        if self.dither:
            raw = raw + (noise - 0.5)
        clipped = ~jnp.all(jnp.abs(raw) <= self.limit)
        whole = jnp.clip(jnp.round(jnp.nan_to_num(raw)), -self.limit, self.limit)
        width = jnp.int8 if self.bits == 8 else jnp.int16
        return state, (potential, whole.astype(width), clipped.astype(jnp.int8)), {}

    def disclosure(self, outbox: PyTree) -> Disclosure:
        """Return nothing: integers are bounded by their width."""
        return Disclosure()

    def up(self, state: Grid, message: PyTree) -> tuple[metropolis.Potential, Array, Grid]:
        """Return the sum of integers, times 2^e_i."""
        potential, whole, clipped = message
        dtype = state.exponent.dtype
        gradient = whole.astype(dtype) * jnp.exp2(state.exponents.astype(dtype))
        return potential, gradient, state._replace(clipped=state.clipped + clipped.astype(dtype))

    def started(self, state: Grid, largest: Scalar, learned: Adaptation | None) -> Grid:
        """Return a grid that holds every gradient at the start."""
        exponent = jnp.ceil(jnp.log2(jnp.maximum(largest, 1e-30) / self.limit))
        return _scaled(state, exponent, learned)

    def adapted(
        self, state: Grid, iteration: Count, warmup: Count, learned: Adaptation | None
    ) -> Grid:
        """Let the grid follow the gradients in the warm-up; then it stays, a little coarser."""
        exponent = state.exponent
        step = jnp.where(state.clipped > 0, 1, -GRID_REFINEMENT).astype(exponent.dtype)
        exponent = jnp.where(iteration < warmup, exponent + step, exponent)
        exponent = jnp.where(iteration + 1 == warmup, exponent + GRID_MARGIN, exponent)
        # The scales stand still too once the warm-up is over.
        return _scaled(state, exponent, learned)


def _scaled(grid: Grid, exponent: Scalar, learned: Adaptation | None) -> Grid:
    """Return e_i = e − ½ log₂(variance_i): gradients are steep where the posterior is narrow."""
    shift = jnp.zeros(grid.exponents.shape, exponent.dtype)
    if learned is not None and learned.scales is not None:
        shift = jnp.log2(learned.scales.variance) / 2
    exponents = jnp.clip(jnp.round(exponent - shift), -126, 126).astype(jnp.int8)
    return Grid(exponent, exponents, jnp.zeros_like(exponent))
