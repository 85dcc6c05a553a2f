r"""The family of proposals: a mixture of multivariate t distributions.

.. math:: q(\zeta) = \sum_j s_j\, t_\nu(\zeta;\ \mu_j, R_j R_j^\top)
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

FREEDOM = 8
"""ν; an even number, so that a χ² number is a sum of ν/2 logarithms."""

WIDE_SHARE, WIDER = 0.15, 2.0
"""A mixture keeps one component for the tails: its share, and its scale against the single t."""

STEPS, STEPS_OF_MIXTURES = 5, 20
"""Of expectation and maximisation, in one fit: alone a component is found in three."""


class Family(NamedTuple):
    """A mixture: shares s, centres μ, and lower triangular roots R of the scale matrices."""

    shares: Float[Array, "*W J"]
    centres: Float[Array, "*W J d"]
    roots: Float[Array, "*W J d d"]


class Numbers(NamedTuple):
    """What K points need: standard normal and uniform numbers, and one more uniform each."""

    normals: Float[Array, "K d"]
    uniforms: Float[Array, "K h"]
    levels: Float[Array, " K"]


def single(dimension: int, components: int, dtype: jnp.dtype) -> Family:
    """Return one standard t; the other components have no share."""
    shares = jnp.zeros(components, dtype).at[0].set(1)
    centres = jnp.zeros((components, dimension), dtype)
    roots = jnp.broadcast_to(jnp.eye(dimension, dtype=dtype), (components, dimension, dimension))
    return Family(shares, centres, roots)


def points(family: Family, numbers: Numbers) -> Float[Array, "K d"]:
    """Return K points of the family."""
    chi_squared = -2 * jnp.sum(jnp.log(numbers.uniforms), axis=1)
    scaled = numbers.normals / jnp.sqrt(chi_squared / FREEDOM)[:, None]
    edges = jnp.cumsum(family.shares)
    which = jnp.sum(numbers.levels[:, None] > edges[None, :-1] / edges[-1], axis=1)

    def one(made: Array, component: tuple[Array, Array, Array]) -> tuple[Array, None]:
        index, centre, root = component
        there = centre[None] + scaled @ root.T
        return jnp.where((which == index)[:, None], there, made), None

    indices = jnp.arange(family.shares.shape[0], dtype=which.dtype)
    return jax.lax.scan(one, jnp.zeros_like(scaled), (indices, family.centres, family.roots))[0]


def log_densities(
    family: Family, positions: Float[Array, "N d"]
) -> tuple[Float[Array, "J N"], Float[Array, "J N"]]:
    """Return log s_j t(ζ) up to a constant, and |R_j⁻¹(ζ − μ_j)|², for all components."""
    d = positions.shape[1]

    def one(component: tuple[Array, Array]) -> Array:
        centre, root = component
        white = jax.scipy.linalg.solve_triangular(root, (positions - centre[None]).T, lower=True)
        return jnp.sum(white**2, axis=0)

    squares = jax.lax.map(one, (family.centres, family.roots))
    volumes = jnp.sum(jnp.log(jnp.diagonal(family.roots, axis1=-2, axis2=-1)), axis=-1)
    heights = jnp.log(family.shares) - volumes
    return heights[:, None] - (FREEDOM + d) / 2 * jnp.log1p(squares / FREEDOM), squares


def log_density(family: Family, positions: Float[Array, "N d"]) -> Float[Array, " N"]:
    """Return log q up to a constant that all families share."""
    return jax.nn.logsumexp(log_densities(family, positions)[0], axis=0)


def fitted(
    start: Family,
    positions: Float[Array, "N d"],
    weights: Float[Array, " N"],
    prior: Float[Array, "d d"],
    mixed: Bool[Array, ""] | bool = False,
) -> Family:
    """Return the family that is nearest to weighted points, by expectation and maximisation.

    Scatter is divided by the sum of the pulls, not of the parts: where the likelihood is largest
    the two are equal, and a few steps lead there in place of dozens. Source: Kent, Tyler, Vardi,
    "A curious likelihood identity for the multivariate t-distribution" (1994).

    Args:
        start: to begin with; a component without share gets none.
        positions: ζ.
        weights: of the points, with sum one.
        prior: the scale matrix (d, d) to which a component with few points is shrunk.
        mixed: the first component stays as it is, for the tails.
    """
    d = positions.shape[1]

    def step(_: Array, family: Family) -> Family:
        heights, squares = log_densities(family, positions)
        parts = jax.nn.softmax(heights, axis=0) * weights[None]
        pulls = parts * (FREEDOM + d) / (FREEDOM + squares)

        def one(component: tuple[Array, ...]) -> tuple[Array, Array]:
            part, pull, centre, root = component
            total = jnp.sum(part)
            effective = total**2 / jnp.sum(part**2)
            mean = pull @ positions / jnp.sum(pull)
            away = positions - mean[None]
            scatter = (pull[:, None] * away).T @ away / jnp.sum(pull)
            strength = d * d / 4
            scatter = (effective * scatter + strength * prior) / (effective + strength)
            lower = jnp.linalg.cholesky((scatter + scatter.T) / 2)
            usable = jnp.all(jnp.isfinite(lower)) & jnp.all(jnp.isfinite(mean)) & (total > 0)
            return jnp.where(usable, mean, centre), jnp.where(usable, lower, root)

        centres, roots = jax.lax.map(one, (parts, pulls, family.centres, family.roots))
        shares = jnp.sum(parts, axis=1)
        rest = (1 - WIDE_SHARE) * shares / jnp.maximum(1 - shares[0], 1e-6)
        kept = Family(
            rest.at[0].set(WIDE_SHARE),
            centres.at[0].set(family.centres[0]),
            roots.at[0].set(family.roots[0]),
        )
        free = Family(shares, centres, roots)
        return jax.tree.map(partial(jnp.where, mixed), kept, free)

    steps = STEPS if start.shares.size == 1 else STEPS_OF_MIXTURES
    return jax.lax.fori_loop(0, steps, step, start)


def refitted(
    family: Family, positions: Float[Array, "N d"], weights: Float[Array, " N"], mixing: Array
) -> Family:
    """Return the family fitted to weighted points; as a mixture from now on where ``mixing``."""
    begun = _divided(family, positions, weights)
    start = jax.tree.map(partial(jnp.where, mixing), begun, family)
    prior = family.roots[0] @ family.roots[0].T
    prior = jnp.where(mixing | (jnp.sum(family.shares > 0) == 1), prior, prior / WIDER**2)
    mixed = jnp.sum(start.shares > 0) > 1
    return fitted(start, positions, weights, prior, mixed)


def _divided(whole: Family, positions: Float[Array, "N d"], weights: Float[Array, " N"]) -> Family:
    """Return a mixture to begin with: narrower, around points that stand for the weights."""
    count, d = whole.centres.shape
    edges = jnp.cumsum(weights)
    wanted = (jnp.arange(count, dtype=edges.dtype) + 0.5) / count
    index = jnp.searchsorted(edges, wanted * edges[-1])
    roots = jnp.broadcast_to(count ** (-1 / d) * whole.roots[0], whole.roots.shape)
    # The first component stays as it was, for the tails.
    centres = positions[index].at[0].set(whole.centres[0])
    shares = jnp.full(count, 1 / count, weights.dtype)
    return Family(shares, centres, roots.at[0].set(WIDER * whole.roots[0]))
