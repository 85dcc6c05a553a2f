"""A round of points: the family goes to the sites, every site draws from it, and U comes back.

Proposals do not travel: all participants draw them from the stream that they share.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from consortia.algorithms.few_rounds import coordinates, family
from consortia.algorithms.few_rounds.coordinates import Widening, widened
from consortia.algorithms.few_rounds.family import FREEDOM, Family, Numbers
from consortia.algorithms.few_rounds.state import Hub, Memory, Stage, Vector
from consortia.core.contract import Evaluation, Info, Phase, Site, Sum
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import metropolis

KEPT = 4
"""Rounds of points from which the family is fitted."""

WIDER_TAILS = 2.0
"""Points of a t with ν = 8 reach about twice as far as those of a Gaussian."""


class Proposal(NamedTuple):
    """A family of positions φ, from which every site draws the same points; see `Widening`."""

    reference: Vector
    family: Family
    widening: Widening | tuple[()]


class Proposed(NamedTuple):
    """The points of a round, ζ, and log π/q there."""

    places: Float[Array, "K d"]
    log_weights: Float[Array, " K"]


def phases(target: Target, count: int) -> tuple[Phase, Phase]:
    """Return what makes the family ready to be sent, and the message of so many points."""
    propose = Phase(None, hub=partial(_propose, target))
    evaluate = Phase(
        partial(_evaluate, target),
        Sum(),
        hub=partial(_keep, target),
        shared=partial(_numbers, target, count),
        repeats=lambda hub: ((hub.due == Stage.FIT) | (hub.due == Stage.DRAW)).astype(jnp.int32),
        evaluation=partial(_evaluation_around, target, count),
    )
    return propose, evaluate


def _propose(
    target: Target, shared: PyTree, hub: Hub, message: PyTree
) -> tuple[Hub, Proposal, Info]:
    """Reply with the family in the coordinates of the model."""
    widening = coordinates.widening(target, hub)
    return hub, Proposal(hub.search.best.position, coordinates.unwhitened(hub), widening), {}


def _evaluation_around(target: Target, count: int, inbox: Proposal) -> Evaluation:
    """Return the centres in use, and how far their points spread."""
    used = np.asarray(inbox.family.shares) > 0
    centres, roots = inbox.family.centres[used], inbox.family.roots[used]
    widest = WIDER_TAILS * jnp.sqrt(jnp.sum(roots**2, axis=-1))
    around, *ends = (
        widened(target, inbox.widening, centres + times * widest)[0] for times in (0, -1, 1)
    )
    widest = jnp.maximum(*[jnp.abs(end - around) for end in ends])
    return Evaluation(around, widest, -(-count // max(len(centres), 1)))


def _numbers(target: Target, count: int, rng: RandomStreams) -> Numbers:
    return Numbers(
        rng.normal("points", (count, target.dimension)),
        rng.uniform("scales", (count, FREEDOM // 2)),
        rng.uniform("components", (count,)),
    )


def _evaluate(
    target: Target, noise: PyTree, shared: Numbers, state: PyTree, inbox: Proposal, site: Site
) -> tuple[PyTree, Float[Array, " K"], Info]:
    """Draw the points of the round, and send U_c there relative to the reference."""
    points, _ = widened(target, inbox.widening, family.points(inbox.family, shared))
    places = jnp.concatenate([inbox.reference[None], points])
    at = metropolis.at_all(target, partial(metropolis.potential, target, site=site), places, site)
    base = metropolis.Potential(*(leaf[0] for leaf in at))
    there = metropolis.Potential(*(leaf[1:] for leaf in at))
    return state, there.above(base), {}


def _keep(
    target: Target, shared: Numbers, hub: Hub, message: Float[Array, " K"]
) -> tuple[Hub, Proposal, Info]:
    """Keep the points of the round with their heights."""
    memory, points = hub.memory, family.points(hub.family, shared)
    slot = memory.rounds % KEPT
    heights = jnp.where(jnp.isfinite(message), -message, -jnp.inf)
    heights = heights + coordinates.parameters(target, hub, points)[1]

    def put(kept: Array, new: Array) -> Array:
        return kept.at[slot].set(new)

    points, heights, several = jax.tree.map(put, memory[:3], (points, heights, hub.family))
    hub = hub._replace(memory=Memory(points, heights, several, memory.rounds + 1))
    return _propose(target, (), hub, ())


def newest(hub: Hub) -> Proposed:
    """Return the points of this round."""
    slot = (hub.memory.rounds - 1) % KEPT
    places, heights = hub.memory.points[slot], hub.memory.heights[slot]
    return Proposed(places, heights - family.log_density(hub.family, places))
