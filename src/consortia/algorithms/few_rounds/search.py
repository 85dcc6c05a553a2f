r"""The search for the mode: many candidates a round.

The sites send U_c relative to the best point so far, ∇U_c and ∇²U_c at M candidates. From the best
of them, in coordinates in which the curvature has a unit diagonal, candidates are the steps

.. math:: -\ell\, V (|\lambda| + \delta)^{-1} V^\top \nabla U

for a ladder of dampings δ and lengths ℓ, so that line search and trust region cost no round of
their own; curvature that is negative counts as positive, and leads away from a saddle.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from consortia.algorithms.few_rounds.state import Best, Count, Limited, Search, Vector
from consortia.core.contract import Site
from consortia.core.prior import normal_at
from consortia.core.target import Target
from consortia.dynamics import metropolis
from consortia.surrogates.curvature import hessian

LADDER = (
    (0.0, 1.0),
    (0.0, 2.0),
    (0.0, 0.35),
    (0.1, 1.0),
    (1.0, 1.0),
    (0.0, 4.0),
    (10.0, 1.0),
    (0.0, 0.1),
)
"""Dampings, in units of the mean curvature, and lengths of the candidates' steps."""

SHRUNK = (1.0, 0.5, 0.2, 0.0)
"""The first candidates: the start, and points between it and the origin."""

LOWEST_CURVATURE = 1e-6
"""Of the scaled curvature, relative to the largest: in single precision less is none."""

FAR, NEARLY = 8.0, 0.8
"""How far from the centre of its prior a candidate is looked for, in its standard deviations; and
the share of that from which on it may be farther."""

NEAR = 0.25
"""The search ends with a decrement below this; the fit corrects what is left."""

MOST_IDLE = 4
"""Rounds without a better point, after which the search has failed."""

ROUNDED = 1.0
"""It also ends below this where no candidate is better: the rest is rounding."""


class Answer(NamedTuple):
    """Of M candidates: U relative to the reference, ∇U, and the upper triangle of ∇²U.

    ``height`` is U at the reference, which the evidence needs.
    """

    height: metropolis.Potential
    potentials: Float[Array, " M"]
    gradients: Float[Array, "M d"]
    curvatures: Float[Array, "M t"]


def first(position: Vector, shrunk: tuple[float, ...] = SHRUNK) -> Search:
    """Return the search before its first round."""
    d, dtype = position.size, position.dtype
    lengths = jnp.asarray(np.resize(np.array(shrunk), len(LADDER)), dtype)
    candidates = jnp.outer(lengths, position)
    unknown = metropolis.Potential(jnp.zeros((), dtype), jnp.zeros((), dtype))
    best = Best(position, jnp.zeros_like(position), jnp.eye(d, dtype=dtype), unknown)
    zero = jnp.zeros((), jnp.int32)
    return Search(best, candidates, jnp.full((), jnp.inf, dtype), zero, zero)


def answer(
    target: Target, reference: Vector, candidates: Float[Array, "M d"], site: Site
) -> Answer:
    """Return what a site sends of the candidates."""
    rows, mask = site.all()
    base = metropolis.potential(target, reference, site)
    upper = np.triu_indices(reference.size)

    def at(position: Vector) -> tuple[Array, Vector, Array]:
        potential, gradient = metropolis.potential_and_gradient(target, position, site)
        curvature = hessian(lambda at: target.potential(at, rows, mask, site), position, full=True)
        return potential.above(base), gradient, curvature[upper]

    return Answer(base, *jax.lax.map(at, candidates))


def chosen(
    search: Search | Limited, potentials: Float[Array, " M"], *parts: Float[Array, "M _"]
) -> tuple[Count, Bool[Array, ""], Count]:
    """Return the best candidate, whether it is a better point, and rounds without one.

    Args:
        search: before the round.
        potentials: relative to its best point.
        parts: of the answers; a candidate where one is not finite does not count.
    """
    finite = jnp.isfinite(potentials)
    for part in parts:
        finite &= jnp.all(jnp.isfinite(part), axis=1)
    values = jnp.where(finite, potentials, jnp.inf)
    index = jnp.argmin(values)
    # Nothing is known of the start itself before its first answer.
    better = (values[index] < 0) | (jnp.isinf(search.decrement) & jnp.isfinite(values[index]))
    return index, better, jnp.where(better, 0, search.idle + 1).astype(jnp.int32)


def step(target: Target, search: Search, summed: Answer, above: Array | float = 0.0) -> Search:
    """Return the search after a round: the best point, and the next candidates.

    Args:
        target: of which the prior says how far a candidate may be.
        search: before it.
        summed: over the sites.
        above: U at the best point minus U at the reference of the answers.
    """
    best, d = search.best, search.best.position.size
    index, better, idle = chosen(
        search, summed.potentials - above, summed.gradients, summed.curvatures
    )
    upper = np.triu_indices(d)
    triangle = jnp.zeros((d, d), best.position.dtype).at[upper].set(summed.curvatures[index])
    curvature = triangle + jnp.triu(triangle, 1).T
    height = summed.height._replace(fine=summed.height.fine + summed.potentials[index])
    trial = Best(search.candidates[index], summed.gradients[index], curvature, height)
    best = jax.tree.map(partial(jnp.where, better), trial, best)
    scale, values, axes = _scaled(best.curvature)
    gradient = axes.T @ (best.gradient / scale)
    size = jnp.maximum(jnp.abs(values), LOWEST_CURVATURE * jnp.max(jnp.abs(values)))
    decrement = jnp.sum(gradient**2 / size)
    dampings, lengths = jnp.asarray(np.array(LADDER).T, gradient.dtype)
    # Without a better point shorter steps are tried.
    lengths = lengths * 0.1 ** idle.astype(lengths.dtype)
    damping = dampings[:, None] * jnp.mean(size)
    steps = -lengths[:, None] * gradient[None] / (size[None] + damping)
    # At a saddle the gradient may be zero: two steps go along its steepest descent, either way.
    saddle = values[0] < 0
    descent = jnp.where(saddle, lengths[0] / jnp.sqrt(size[0]), 0)
    sides = jnp.zeros_like(lengths).at[-2].set(-1).at[-1].set(1)
    steps = steps.at[:, 0].add(sides * descent)
    convex = (values[0] > LOWEST_CURVATURE * jnp.max(values)).astype(jnp.int32)
    known = better | jnp.isfinite(search.decrement)
    decrement = jnp.where(known, decrement, jnp.inf)
    candidates = along(target, best.position, steps @ axes.T / scale[None])
    return Search(best, candidates, decrement, convex, idle)


def along(target: Target, best: Vector, steps: Float[Array, "M d"]) -> Float[Array, "M d"]:
    """Return where steps from the best point lead, shortened where they lead too far.

    No parameter goes farther than `FAR` standard deviations from the centre of its prior: sites
    do not answer there (`maximum_position` of a policy). Once the best point is nearly as far it
    may go twice as far as that.
    """
    centre, sd = normal_at(target, best)
    away = best - centre
    most = jnp.where(jnp.abs(away) > NEARLY * FAR * sd, 2 * jnp.abs(away), FAR * sd)
    left, size = most[None] - jnp.sign(steps) * away[None], jnp.abs(steps)
    share = jnp.min(jnp.where(size > left, left / size, 1), axis=1)
    return best[None] + share[:, None] * steps


def ended(search: Search) -> Array:
    """Return True if the best point is near enough to the mode."""
    near = search.decrement < jnp.where(search.idle > 0, ROUNDED, NEAR)
    return near & (search.convex > 0)


def stuck(search: Search) -> Array:
    """Return True if no step leads to a better point although the mode is not reached."""
    return (search.idle >= MOST_IDLE) & ~ended(search)


def log_mass(search: Search) -> Array:
    """Return the logarithm of the mass around the mode, by Laplace's approximation, up to (2π)^d/2.

    It is relative to the density where `Best` has its height.
    """
    scale, values, _ = _scaled(search.best.curvature)
    return search.decrement / 2 - jnp.sum(jnp.log(scale)) - jnp.sum(jnp.log(values)) / 2


def laplace(search: Search) -> tuple[Vector, Float[Array, "d d"]]:
    """Return the mode, one step from the best point, and a root of the inverse curvature."""
    best = search.best
    scale, values, axes = _scaled(best.curvature)
    size = jnp.maximum(jnp.abs(values), LOWEST_CURVATURE * jnp.max(jnp.abs(values)))
    root = axes / jnp.sqrt(size)[None] / scale[:, None]
    return best.position - root @ (root.T @ best.gradient), root


def _scaled(curvature: Float[Array, "d d"]) -> tuple[Vector, Vector, Float[Array, "d d"]]:
    """Return the scale of each parameter, and eigenvalues and axes of the curvature in it."""
    own = jnp.sqrt(jnp.abs(jnp.diag(curvature)))
    scale = jnp.where(own > 0, own, 1)
    values, axes = jnp.linalg.eigh(curvature / scale[:, None] / scale[None])
    return scale, values, axes
