r"""Other modes: searches from elsewhere, in the messages of the first.

Beside the search from the model's start :math:`\theta_0` two more run, from

.. math:: \theta_0 \pm \min(1, s) \odot \xi, \qquad \xi \sim N(0, I),

with s the standard deviations of the prior. They have fewer candidates, and end with the first.
Modes that they have come to by then are weighed by Laplace's approximation,

.. math:: \log m_j = -U(\theta_j) - \tfrac12 \log|\nabla^2 U(\theta_j)| + \text{const},

and the fit begins at the heaviest; with a component for each where the family has so many.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from consortia.algorithms.few_rounds import search
from consortia.algorithms.few_rounds.family import WIDE_SHARE, WIDER, Family, single
from consortia.algorithms.few_rounds.state import TRIED, Modes, Search, Searches, Vector
from consortia.core.prior import normal_at
from consortia.core.target import Target

SEARCHES = 3
"""With that of the model's start."""

WIDEST = 1.0
"""Standard deviations of the other starts where the prior is wider."""

REACHED = 1.0
"""Another search has come to a mode with a decrement below this."""

SEPARATE = 4.0
"""Standard deviations, of both modes, by which two are more than one."""

LEAST = 0.01
"""Share of the mass below which a mode is not told."""

MISSED = 0.1
"""A mode is missed that has less than this share of the draws that it should have."""


def first(position: Vector) -> Searches:
    """Return the searches before their first round; the others begin where `begun` says."""
    centres = jnp.broadcast_to(position, (SEARCHES, position.size))
    roots = jnp.broadcast_to(
        jnp.eye(position.size, dtype=position.dtype), (*centres.shape, position.size)
    )
    modes = Modes(centres, roots, jnp.zeros(SEARCHES, position.dtype).at[0].set(1))
    others = jax.vmap(search.first)(centres[1:])
    return Searches(search.first(position), others, modes)


def begun(target: Target, searches: Searches, normals: Vector) -> Searches:
    """Return the searches with the others at their starts."""
    start = searches.best.position
    away = jnp.minimum(normal_at(target, start)[1], WIDEST) * normals
    starts = start[None] + jnp.stack([away, -away])
    return searches._replace(others=jax.vmap(partial(search.first, shrunk=(1.0,)))(starts))


def step(target: Target, searches: Searches, summed: search.Answer) -> Searches:
    """Return all searches after a round."""
    count = len(search.LADDER)

    def parts(values: Array) -> Array:
        """Return those of each search; of candidates that were not sent they are infinite."""
        rest = values[count:].reshape(SEARCHES - 1, len(TRIED), *values.shape[1:])
        padded = jnp.full((SEARCHES - 1, count, *values.shape[1:]), jnp.inf, values.dtype)
        return jnp.concatenate([values[None, :count], padded.at[:, np.array(TRIED)].set(rest)])

    height = jax.tree.map(lambda value: jnp.broadcast_to(value, (SEARCHES,)), summed.height)
    answers = search.Answer(height, *(parts(values) for values in summed[1:]))
    before = _together(searches)
    above = before.best.height.above(searches.best.height).at[0].set(0)
    after = jax.lax.map(lambda each: search.step(target, *each), (before, answers, above))
    others = jax.tree.map(lambda values: values[1:], after)
    first = jax.tree.map(lambda values: values[0], after)
    return Searches(first, others, searches.modes)


def _reached(searches: Search) -> Bool[Array, " S"]:
    return (searches.decrement < REACHED) & (searches.convex > 0)


def found(searches: Searches) -> Searches:
    """Return the modes that were found, with the search that came to the heaviest as the first."""
    each = _together(searches)
    centres, roots = jax.lax.map(search.laplace, each)
    masses = jax.lax.map(search.log_mass, each)
    masses -= each.best.height.above(searches.best.height)
    away = centres[:, None] - centres[None]
    squares = jnp.sum(away * jnp.einsum("jde,jke->jkd", each.best.curvature, away), axis=-1)
    apart = jnp.minimum(squares, squares.T) > SEPARATE**2
    reached = _reached(each) & jnp.isfinite(masses)
    # The first search stands for a mode to which others have come as well.
    masses = jnp.where(reached & apart[0], masses, -jnp.inf).at[0].set(masses[0])
    order = (jnp.argmax(masses) + jnp.arange(SEARCHES)) % SEARCHES
    masses, apart = masses[order], apart[order][:, order]
    for later in range(1, SEARCHES):
        again = jnp.any(~apart[later, :later] & jnp.isfinite(masses[:later]))
        masses = masses.at[later].set(jnp.where(again, -jnp.inf, masses[later]))
    first = jax.tree.map(lambda values: values[order[0]], each)
    order, shares = order[jnp.argsort(-masses)], jax.nn.softmax(jnp.sort(masses, descending=True))
    modes = Modes(centres[order], roots[order], shares)
    return searches._replace(first=first, modes=modes)


def _together(searches: Searches) -> Search:
    return jax.tree.map(
        lambda one, more: jnp.concatenate([one[None], more]), searches.first, searches.others
    )


def family_of(modes: Modes, components: int) -> Family:
    """Return the family to begin with, in white coordinates of the first mode.

    One standard t; of several modes a component for each, and a wide one for what is between them,
    where ``components`` leave room for that.
    """
    d, dtype = modes.centres.shape[1], modes.centres.dtype
    one = single(d, components, dtype)
    count = min(SEARCHES, components - 1)
    if count < 2:
        return one
    shares = modes.shares[:count] / jnp.sum(modes.shares[:count])
    centres = jnp.linalg.solve(modes.roots[0], (modes.centres[:count] - modes.centres[:1]).T).T
    white = jnp.linalg.solve(modes.roots[0][None], modes.roots[:count])
    scales = white @ jnp.swapaxes(white, 1, 2)
    mean = shares @ centres
    away = centres - mean[None]
    whole = jnp.sum(shares[:, None, None] * (scales + away[:, :, None] * away[:, None]), axis=0)
    roots = jnp.linalg.cholesky(jnp.concatenate([WIDER**2 * whole[None], scales]))
    several = Family(
        one.shares.at[0].set(WIDE_SHARE).at[1 : count + 1].set((1 - WIDE_SHARE) * shares),
        one.centres.at[0].set(mean).at[1 : count + 1].set(centres),
        one.roots.at[: count + 1].set(roots),
    )
    there = (jnp.sum(modes.shares > LEAST) > 1) & jnp.all(jnp.isfinite(roots))
    return jax.tree.map(partial(jnp.where, there), several, one)


def told(modes: Modes, draws: Float[np.ndarray, "n d"]) -> list[dict[str, float]]:
    """Return of each mode its share of the mass and of draws; empty where there is but one.

    Args:
        modes: that were found.
        draws: θ; each counts for the mode whose Gaussian approximation is highest there.
    """
    shares = np.asarray(modes.shares, float)
    kept = np.flatnonzero(shares >= LEAST)
    if len(kept) < 2:
        return []
    heights = []
    for index in kept:
        root = np.asarray(modes.roots[index], float)
        white = np.linalg.solve(root, (draws - np.asarray(modes.centres[index], float)).T)
        heights.append(-np.sum(white**2, axis=0) / 2 - np.linalg.slogdet(root)[1])
    nearest = np.argmax(heights, axis=0)
    seen = np.bincount(nearest, minlength=len(kept)) / max(len(draws), 1)
    pairs = zip(shares[kept].tolist(), seen.tolist(), strict=True)
    return [{"mass": mass, "draws": of_draws} for mass, of_draws in pairs]


def missed(told: list[dict[str, float]]) -> str:
    """Return which modes the draws lack, and what to do; empty where they have all."""
    lacking = [mode["mass"] for mode in told if mode["draws"] < MISSED * mode["mass"]]
    if not lacking:
        return ""
    shares = " and ".join(f"{100 * mass:.2g} %" for mass in lacking)
    return (
        f"the searches have ended in {len(told)} places, and modes with some {shares} of the mass "
        "have none of the draws, or hardly any: what is drawn is a part of the posterior. Give the "
        f"family room for each of them (components={SEARCHES + 1}), a prior or an order of the "
        "parameters that leaves one mode, or run from several starts"
    )
