r"""Importance weights of all proposals at hand, and what they say of the family.

.. math:: w(\zeta) = \pi(\zeta) \Big/ \frac1W \sum_t q_t(\zeta)

the deterministic mixture of the W families from which the points came, so that no evaluation is
wasted. Source: Cornuet, Marin, Mira, Robert, "Adaptive multiple importance sampling" (2012).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from consortia.algorithms.few_rounds import family as families
from consortia.algorithms.few_rounds.state import Memory, Scalar

Weights = Float[Array, " N"]

HALVINGS = 24
"""Bisections of the exponent that tempers weights."""


class Quality(NamedTuple):
    """How well a family stands for the posterior.

    Attributes:
        share: effective points by all points, (Σw)²/(NΣw²).
        k_hat: shape of the generalised Pareto law of the largest weights.
        acceptance: that independence Metropolis would have.
        log_mean: logarithm of the mean weight.
    """

    share: Scalar
    k_hat: Scalar
    acceptance: Scalar
    log_mean: Scalar


def unknown(dtype: jnp.dtype) -> Quality:
    """Return the quality of a round without points."""
    return Quality(*[jnp.full((), jnp.nan, dtype)] * len(Quality._fields))


def mixture_log_weights(memory: Memory) -> Weights:
    """Return log w of all points at hand, (W K); −∞ where none is kept, or U is not finite."""
    slots, count, d = memory.points.shape
    points = memory.points.reshape(-1, d)
    kept = jnp.arange(slots, dtype=jnp.int32) < memory.rounds
    densities = jax.lax.map(lambda family: families.log_density(family, points), memory.families)
    densities = jnp.where(kept[:, None], densities, -jnp.inf)
    logarithms = memory.heights.reshape(-1) - jax.nn.logsumexp(densities, axis=0)
    usable = jnp.repeat(kept, count) & jnp.isfinite(logarithms)
    return jnp.where(usable, logarithms, -jnp.inf)


def normalised(log_weights: Weights) -> Weights:
    """Return the weights with sum one."""
    weights = jnp.exp(log_weights - jnp.max(log_weights))
    return weights / jnp.sum(weights)


def tempered(log_weights: Weights, wanted: Scalar) -> Weights:
    """Return weights with sum one, to the largest power at which enough points are effective."""

    def powered(power: Scalar) -> Weights:
        return normalised(jnp.where(jnp.isfinite(log_weights), power * log_weights, -jnp.inf))

    def enough(power: Scalar) -> Array:
        return 1 / jnp.sum(powered(power) ** 2) >= wanted

    def halve(_: Array, bounds: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = bounds
        middle = (low + high) / 2
        usable = enough(middle)
        return jnp.where(usable, middle, low), jnp.where(usable, high, middle)

    one = jnp.ones((), log_weights.dtype)
    low, _ = jax.lax.fori_loop(0, HALVINGS, halve, (0 * one, one))
    return powered(jnp.where(enough(one), one, low))


def quality(log_weights: Weights) -> Quality:
    """Return what weights π/q say of the family q from which their points come."""
    weights = jnp.sort(normalised(log_weights))
    count = weights.size
    log_mean = jax.nn.logsumexp(log_weights) - math.log(count)
    below = (jnp.cumsum(weights) - weights) / jnp.maximum(weights, jnp.finfo(weights.dtype).tiny)
    above = count - jnp.arange(count, dtype=weights.dtype)
    acceptance = jnp.sum(weights * (above + below)) / count
    share = 1 / (count * jnp.sum(weights**2))
    return Quality(share, pareto_shape(weights), acceptance, log_mean)


def pareto_shape(ordered: Weights, xp: Any = jnp) -> Scalar:
    """Return k-hat of weights in increasing order, from the largest min(N/5, 3√N).

    ``xp`` is NumPy where nothing is to be compiled.

    Source: Zhang, Stephens (2009); Vehtari, Simpson, Gelman, Yao, Gabry (2024), with its prior.
    """
    count = ordered.size
    size = min(count // 5, math.ceil(3 * math.sqrt(count)))
    cutoff = ordered[count - size - 1]
    tail = (ordered[count - size :] - cutoff) / xp.maximum(ordered[-1] - cutoff, 1e-30)
    grid = 30 + int(math.sqrt(size))
    quartile = xp.maximum(tail[int(size / 4 + 0.5) - 1], 1e-30)
    places = xp.arange(1, grid + 1, dtype=tail.dtype) - 0.5
    bounds = 1 + (1 - xp.sqrt(grid / places)) / (3 * quartile)
    shapes = xp.mean(xp.log1p(-bounds[:, None] * tail[None]), axis=1)
    profile = size * (xp.log(-bounds / shapes) - shapes - 1)
    profile = xp.nan_to_num(profile, nan=-xp.inf)
    shares = xp.exp(profile - xp.max(profile))
    chosen = xp.sum(bounds * (shares / xp.sum(shares)))
    shape = xp.mean(xp.log1p(-chosen * tail))
    return (size * shape + 10 * 0.5) / (size + 10)
