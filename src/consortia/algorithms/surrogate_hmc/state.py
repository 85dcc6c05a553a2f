"""The server's state in HMC with a surrogate's force, for a chain and for the warm-up."""

from __future__ import annotations

import math
from typing import NamedTuple

from jaxtyping import Float, Int

from consortia.dynamics.metropolis import Potential
from consortia.runtime.late import Array, PyTree, jnp

Vector = Float[Array, " d"]
Scalar = Float[Array, ""]
Count = Int[Array, ""]

QUARTER = math.pi / 2
"""The angle after which a proposal does not depend on the state."""

TRIAL_SLOTS = 256
"""Draws of each angle on trial whose effective sample size is measured; a longer trial's first."""


class Place(NamedTuple):
    """A chain's place: θ, its white coordinates ζ, θ = m + Sζ, and U; or K such places."""

    position: Float[Array, "*K d"]
    white: Float[Array, "*K d"]
    potential: Potential


class Proposals(NamedTuple):
    """The proposals of a round; indices of their angle, and of the one on trial (−1: none)."""

    positions: Float[Array, "K d"]
    white: Float[Array, "K d"]
    angle: Count
    trial: Count


class Moments(NamedTuple):
    """Weighted moments of ζ in a window, relative to the largest weight, e^top, and to a U."""

    reference: Potential
    top: Scalar
    total: Scalar
    squares: Scalar
    first: Vector
    second: Float[Array, "d d"]


class Tally(NamedTuple):
    """Rounds of each angle in a window, and the sum of their acceptance rates."""

    rounds: Float[Array, " angles"]
    rates: Float[Array, " angles"]


class Trials(NamedTuple):
    """Trials of all angles: draws, their number, and the ESS a round."""

    draws: Float[Array, "angles slots d"]
    made: Int[Array, " angles"]
    ess: Float[Array, " angles"]


class Seen(NamedTuple):
    """After the warm-up: the longest row of rejections, rounds, and the sum of their rates."""

    longest: Count
    rounds: Count
    rates: Scalar


class Rays(NamedTuple):
    """Lines through the first surrogate's mean, and how far draws after warm-up reach on them."""

    # of each line one standard deviation of the first surrogate, in white coordinates
    towards: Float[Array, "lines d"]
    centre: Vector  # that all lines pass through, in white coordinates
    steps: Float[Array, " steps"]  # of the points, in units of the direction
    rises: Float[Array, "lines steps"]  # of U at the points above that at the centre
    lowest: Float[Array, " lines"]  # of the products of ζ and the direction, over the draws
    highest: Float[Array, " lines"]  # of the same


class Hub(NamedTuple):
    """The state of the server."""

    search: PyTree  # for a surrogate; () once the chains start
    here: Place
    proposals: Proposals
    draws: Float[Array, "K d"]
    mean: Vector  # m
    root: Float[Array, "d d"]  # S
    moments: Moments
    rejections: Count  # since a proposal was accepted
    chosen: Count  # index of the angle in use after the warm-up
    last_rate: Scalar  # acceptance rate of the window that closed last
    tally: Tally
    trials: Trials | tuple[()]  # () with one angle only
    due: Count  # 1 where the surrogate is to be fitted after this round, 2 where an angle is chosen
    seen: Seen
    rays: PyTree  # `Rays`; () until there is a surrogate


def start(position: Vector, search: PyTree, proposals: int, angles: int) -> Hub:
    """Return the server's state; its surrogate is filled in before the first round."""
    d, dtype = position.size, position.dtype
    zero, vector = jnp.zeros((), dtype), jnp.zeros_like(position)
    several = jnp.zeros((proposals, d), dtype)
    count, each = jnp.zeros((), jnp.int32), jnp.zeros(angles, dtype)
    potential = Potential(zero, zero)
    slots = jnp.zeros((angles, TRIAL_SLOTS, d), dtype)
    return Hub(
        search,
        Place(position, vector, potential),
        Proposals(several, several, count, count),
        several,
        vector,
        jnp.eye(d, dtype=dtype),
        no_moments(vector, potential),
        rejections=count,
        chosen=count,
        last_rate=zero + 1,
        tally=Tally(each, each),
        trials=Trials(slots, jnp.zeros(angles, jnp.int32), each) if angles > 1 else (),
        due=count,
        seen=Seen(count, count, zero),
        rays=(),
    )


def no_moments(like: Vector, reference: Potential) -> Moments:
    """Return the moments of an empty window."""
    zero = jnp.zeros((), like.dtype)
    square = jnp.zeros((like.size, like.size), like.dtype)
    return Moments(reference, zero - jnp.inf, zero, zero, jnp.zeros_like(like), square)
