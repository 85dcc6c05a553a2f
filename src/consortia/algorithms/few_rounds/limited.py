r"""The search for the mode of hundreds of parameters: gradients only.

The sites send U_c relative to the best point so far and ∇U_c at M candidates. From the best of them
candidates are steps of M lengths along :math:`-H\nabla U`, with H the inverse curvature that the
last moves of the best point and the changes of its gradient have taught (limited-memory BFGS).

Source: Liu, Nocedal, "On the limited memory BFGS method for large scale optimization" (1989).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from consortia.algorithms.few_rounds.search import MOST_IDLE, SHRUNK, along, chosen
from consortia.algorithms.few_rounds.state import Limited, Scalar, Slope, Vector
from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.dynamics import metropolis

LENGTHS = (1.0, 2.0, 0.5, 4.0, 0.2, 10.0, 0.05, 0.01)
"""Of the candidates' steps."""

FIRST_LENGTHS = tuple(10.0**power for power in range(1, -7, -1))
"""Of the first steps, along the gradient: nothing is known of the curvature yet."""

KEPT = 20
"""Moves from which the curvature is learned."""

NEAR = 0.01
"""The search ends with a decrement below this share of the number of parameters."""

MOST_CURVED = 200
"""With more parameters the curvature, d² numbers a candidate, is too much for a message."""


class Answer(NamedTuple):
    """Of M points: U relative to the reference, and ∇U."""

    potentials: Float[Array, " M"]
    gradients: Float[Array, "M d"]


def first(position: Vector) -> Limited:
    """Return the search before its first round."""
    shrunk = np.resize(np.array(SHRUNK), len(LENGTHS))
    candidates = jnp.outer(jnp.asarray(shrunk, position.dtype), position)
    zero, nothing = jnp.zeros((), jnp.int32), jnp.zeros((KEPT, position.size), position.dtype)
    best = Slope(position, jnp.zeros_like(position))
    infinite = jnp.full((), jnp.inf, position.dtype)
    return Limited(best, candidates, infinite, zero + 1, zero, nothing, nothing, zero)


def answer(
    target: Target, reference: Vector, candidates: Float[Array, "M d"], site: Site
) -> Answer:
    """Return what a site sends of the candidates."""
    return jax.lax.map(answering(target, reference, site), candidates)


def answering(target: Target, reference: Vector, site: Site) -> Callable[[Vector], Answer]:
    """Return what gives the answer of a site at one point."""
    base = metropolis.potential(target, reference, site)

    def at(position: Vector) -> Answer:
        potential, gradient = metropolis.potential_and_gradient(target, position, site)
        return Answer(potential.above(base), gradient)

    return at


def step(target: Target, search: Limited, summed: Answer) -> Limited:
    """Return the search after a round: the best point, and the next candidates."""
    before, begins = search.best, jnp.isinf(search.decrement)
    index, better, idle = chosen(search, *summed)
    trial = Slope(search.candidates[index], summed.gradients[index])
    best = jax.tree.map(partial(jnp.where, better), trial, before)

    move, change = best.position - before.position, best.gradient - before.gradient
    teaches = better & ~begins & (jnp.sum(move * change) > 0)
    moves = jnp.where(teaches, jnp.roll(search.moves, 1, axis=0).at[0].set(move), search.moves)
    changes = jnp.roll(search.changes, 1, axis=0).at[0].set(change)
    changes = jnp.where(teaches, changes, search.changes)
    taught = search.taught + teaches.astype(jnp.int32)

    known = better | ~begins
    direction = -_inverse(moves, changes, taught, best.gradient)
    steepest = -best.gradient / jnp.maximum(jnp.sqrt(jnp.sum(best.gradient**2)), 1e-30)
    lengths = jnp.asarray(np.array(LENGTHS), move.dtype)
    # Without a better point shorter steps are tried.
    lengths = lengths * 0.1 ** idle.astype(lengths.dtype)
    lengths = jnp.where(taught > 0, lengths, jnp.asarray(np.array(FIRST_LENGTHS), move.dtype))
    direction = jnp.where(taught > 0, direction, steepest)
    decrement = jnp.where(taught > 0, -jnp.sum(direction * best.gradient), 2.0 * move.size)
    decrement = jnp.where(known, decrement, jnp.inf)
    candidates = along(target, best.position, lengths[:, None] * direction[None])
    return Limited(best, candidates, decrement, search.convex, idle, moves, changes, taught)


def ended(search: Limited) -> Array:
    """Return True if the best point is near enough to the mode for chains to begin there."""
    return search.decrement < NEAR * search.best.position.size


def stuck(search: Limited) -> Array:
    """Return True if no step leads to a better point although the mode is not reached."""
    return (search.idle >= MOST_IDLE) & ~ended(search)


def laplace(search: Limited) -> tuple[Vector, Vector]:
    """Return the mode, and one scale of all parameters."""
    return search.best.position, jnp.full_like(
        search.best.position, jnp.sqrt(_scale(search.moves[0], search.changes[0]))
    )


def _scale(move: Vector, change: Vector) -> Scalar:
    """Return s'y / y'y, the inverse curvature along the last move; 1 before there is one."""
    squares = jnp.sum(change**2)
    return jnp.where(squares > 0, jnp.sum(move * change) / jnp.maximum(squares, 1e-30), 1)


def _inverse(
    moves: Float[Array, "m d"], changes: Float[Array, "m d"], taught: Array, vector: Vector
) -> Vector:
    """Return H times a vector, by the recursion over the moves, newest first."""
    products = jnp.sum(moves * changes, axis=1)
    usable = (jnp.arange(KEPT, dtype=jnp.int32) < taught) & (products > 0)
    shares = jnp.where(usable, 1 / jnp.where(usable, products, 1), 0)

    def down(rest: Vector, pair: tuple[Array, Array, Array]) -> tuple[Vector, Scalar]:
        move, change, share = pair
        part = share * jnp.sum(move * rest)
        return rest - part * change, part

    def up(found: Vector, pair: tuple[Array, Array, Array, Array]) -> tuple[Vector, None]:
        move, change, share, part = pair
        return found + (part - share * jnp.sum(change * found)) * move, None

    rest, parts = jax.lax.scan(down, vector, (moves, changes, shares))
    begun = _scale(moves[0], changes[0]) * rest
    return jax.lax.scan(up, begun, (moves, changes, shares, parts), reverse=True)[0]
