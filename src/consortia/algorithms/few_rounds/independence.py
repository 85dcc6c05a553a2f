"""Independence Metropolis: many steps of several chains from one round of points."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from consortia.algorithms.few_rounds import coordinates, weights
from consortia.algorithms.few_rounds.proposing import Proposed
from consortia.algorithms.few_rounds.state import Chains, Hub, Levels
from consortia.core.target import Target
from consortia.dynamics import metropolis


def resampled(
    shares: Float[Array, " N"], level: Float[Array, ""], count: int
) -> Int[Array, " count"]:
    """Return indices of points, each as often as its share says (systematic resampling)."""
    edges = jnp.cumsum(shares)
    places = (jnp.arange(count, dtype=edges.dtype) + level) / count
    index = jnp.searchsorted(edges, places * edges[-1]).astype(jnp.int32)
    return jnp.minimum(index, shares.size - 1)


def metropolis_chains(
    chains: Chains,
    points: Float[Array, "K d"],
    log_weights: Float[Array, " K"],
    levels: Float[Array, " K"],
) -> tuple[Chains, Float[Array, ""]]:
    """Return the chains after K/C steps each, with ζ of all draws, and their acceptance rate.

    Chain c takes the c-th part of the points, in order; so are the draws.

    Args:
        chains: before.
        points: ζ of the proposals.
        log_weights: log π/q there.
        levels: u of the tests.
    """
    count = chains.log_weights.size
    own, tests = log_weights.reshape(count, -1).T, levels.reshape(count, -1).T
    steps = own.shape[0]

    def test(
        carry: tuple[Array, Array, Array, Array], arriving: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array, Array, Array], tuple[Array, Array]]:
        here, place, idle, longest = carry
        there, level, step = arriving
        rate = metropolis.acceptance(here - there)
        accepted = level < rate
        idle = jnp.where(accepted, 0, idle + 1)
        place = jnp.where(accepted, step, place)
        carry = jnp.where(accepted, there, here), place, idle, jnp.maximum(longest, idle)
        return carry, (place, rate)

    first = jnp.full(count, -1, jnp.int32)
    begun = (chains.log_weights, first, jnp.zeros_like(first), jnp.zeros_like(first))
    index = jnp.arange(steps, dtype=jnp.int32)
    (here, _, _, longest), (places, rates) = jax.lax.scan(test, begun, (own, tests, index))
    mine = points.reshape(count, steps, -1)
    before = chains.places[:, None]
    chosen = jnp.take_along_axis(mine, jnp.maximum(places.T, 0)[..., None], axis=1)
    draws = jnp.where((places.T < 0)[..., None], before, chosen)
    return Chains(draws[:, -1], here, draws, longest), jnp.mean(rates)


def after_draws(
    target: Target, shared: Levels, hub: Hub, new: Proposed, quality: weights.Quality
) -> tuple[Hub, weights.Quality]:
    """Make K Metropolis steps with the points of this round, in all chains together."""
    chains, rate = metropolis_chains(hub.chains, *new, shared.tests)
    flat = chains.draws.reshape(-1, hub.centre.size)
    draws = coordinates.parameters(target, hub, flat)[0].reshape(chains.draws.shape)
    return hub._replace(chains=chains._replace(draws=draws)), quality._replace(acceptance=rate)
