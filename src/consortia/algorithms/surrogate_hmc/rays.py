r"""Lines through the surrogate's centre: what lies beyond all places that chains have visited.

Statistics of draws see no tail, and no mode, that no chain has visited. U at points along lines
does. The points travel in the message that brings U at the start: they cost no message. The lines
stay where they are when the surrogate is fitted anew. A draw lies on the line of direction v
through c at the step :math:`v^\top \Lambda (\theta - c) / v^\top \Lambda v`, as in a regression. In
white coordinates, :math:`\theta = m + S\zeta` and :math:`v = Sw`, that is :math:`w^\top (\zeta -
\zeta_c) / w^\top w`, and only the extremes of :math:`w^\top \zeta` are kept.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from consortia.algorithms.surrogate_hmc.state import Rays
from consortia.core.contract import Evaluation
from consortia.core.random import RandomStreams
from consortia.dynamics.metropolis import Potential
from consortia.runtime.late import Array, jax, jnp
from consortia.surrogates.proposals.rays import STEPS, Line, profile_of

Vector = Float[Array, " d"]
Scalar = Float[Array, ""]

PROPOSED = 4.5
"""Standard deviations of their Gaussian that the proposals of a long run reach. Points on rays
count half at a site (`evaluation`): up to twice as far none is refused that a proposal is not."""

FARTHEST = 12.0
"""Standard deviations of the surrogate that a line reaches, at most."""

MOST_LINES = 32
"""Lines, with 14 points each: a chain's message then has fewer than 450."""

WIDEST = 2.0
"""Standard deviations of the last surrogate that are one of a line's, at most: one that was laid
through a far wider surrogate is not judged."""

MOST_BEYOND = 0.01
"""Mass along a line that may lie beyond all draws."""

BY_CHANCE = 15.0
"""The same times the effective draws. Of n independent draws the mass beyond both extremes is above
x with probability (1 + nx)exp(-nx): with this nx on one line of 200,000."""


def stagger(rng: RandomStreams) -> Scalar:
    """Return the share of the way to the next step at which this chain's points lie."""
    return rng.uniform("rays", ())


def drawn_through(mean: Vector, root: Float[Array, "d d"], share: Scalar, widest: float) -> Rays:
    """Return lines along the covariance's columns and principal axes, and some others.

    Args:
        mean: of the surrogate.
        root: of its covariance.
        share: see `stagger`.
        widest: standard deviations of proposals, in those of the surrogate.
    """
    d, dtype = mean.size, mean.dtype
    towards = root
    if d < MOST_LINES:
        axes = jnp.linalg.eigh(root.T @ root)[1].T[::-1]
        # The same in all chains, which are judged together.
        others = np.random.default_rng(0).standard_normal((d, d))
        towards = jnp.concatenate([root, axes, jnp.asarray(others, dtype)])
    towards = towards[:MOST_LINES]
    towards = towards / jnp.linalg.norm(towards, axis=1, keepdims=True)
    reach = min(2 * PROPOSED * widest, FARTHEST)
    steps = jnp.asarray(STEPS[STEPS <= FARTHEST] * (reach / FARTHEST), dtype)
    steps = jnp.append(steps[:-1] + share * jnp.diff(steps), steps[-1])
    steps = jnp.concatenate([-steps[::-1], steps])
    none = jnp.full(len(towards), jnp.inf, dtype)
    rises = jnp.zeros((len(towards), steps.size), dtype)
    return Rays(towards, jnp.zeros_like(mean), steps, rises, lowest=none, highest=-none)


def points_on(rays: Rays, mean: Vector, root: Float[Array, "d d"]) -> Float[Array, "points d"]:
    """Return the centre and, line by line, the points: θ."""
    away = jnp.einsum("s,ld->lsd", rays.steps, rays.towards @ root.T).reshape(-1, mean.size)
    return jnp.concatenate([mean[None], mean[None] + away])


def evaluation(inbox: Float[Array, "*chains points d"]) -> Evaluation:
    """Return where the points lie; those of tails count half as far from the centre."""
    return Evaluation((inbox + inbox[..., :1, :]) / 2)


def evaluated(rays: Rays, potentials: Potential) -> Rays:
    """Return the lines with U at their points, the centre's first."""
    centre = jax.tree.map(lambda leaf: leaf[0], potentials)
    return rays._replace(rises=potentials.above(centre)[1:].reshape(rays.rises.shape))


def refitted(rays: Rays, lower: Float[Array, "d d"], centre: Vector) -> Rays:
    """Return the lines in white coordinates L⁻¹(ζ - centre)."""
    columns = jnp.column_stack([rays.towards.T, rays.centre - centre])
    columns = jax.scipy.linalg.solve_triangular(lower, columns, lower=True)
    return rays._replace(towards=columns[:, :-1].T, centre=columns[:, -1])


def visited(rays: Rays, white: Float[Array, "K d"]) -> Rays:
    """Return the lines with how far these draws reach."""
    along = white @ rays.towards.T
    return rays._replace(
        lowest=jnp.minimum(rays.lowest, jnp.min(along, axis=0)),
        highest=jnp.maximum(rays.highest, jnp.max(along, axis=0)),
    )


def mass_beyond(rays: Rays) -> float:
    """Return the largest mass along a line beyond all draws of all chains.

    Args:
        rays: of the server's last state, chains first where there are several.
    """
    alone = np.ndim(rays.centre) == 1
    several = (np.asarray(leaf, np.float64) for leaf in rays)
    towards, centre, steps, rises, lowest, highest = (
        leaf[None] if alone else leaf for leaf in several
    )
    squares = (towards**2).sum(axis=-1)
    middle = np.einsum("cld,cd->cl", towards, centre)
    lowest = ((lowest - middle) / squares).min(axis=0)
    highest = ((highest - middle) / squares).max(axis=0)
    places, first = np.unique(np.append(steps, 0.0), return_index=True)
    found = 0.0
    for line, reached in enumerate(zip(lowest, highest, strict=True)):
        if squares[:, line].max() > WIDEST**2:  # no point of it would be near the draws
            continue
        heights = -np.append(rises[:, line], 0.0)[first]
        profile = profile_of(Line(towards[0, line], places), heights)
        found = max(found, profile.mass_beyond(*reached))
    return found
