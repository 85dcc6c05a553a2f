"""What a round of points teaches: the family nearest to them, and whether it does.

It stands still, and draws begin, once it is good, or usable and comes no nearer. Where it is
neither, chains of federated HMC go on from it.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from consortia.algorithms.federated_hmc import ensemble
from consortia.algorithms.few_rounds import coordinates, weights
from consortia.algorithms.few_rounds import family as families
from consortia.algorithms.few_rounds.independence import resampled
from consortia.algorithms.few_rounds.proposing import Proposed
from consortia.algorithms.few_rounds.state import Count, Hub, Levels, Stage
from consortia.core.target import Target

MOST_FITS = 16
"""Rounds of the fit, at most."""

GOOD_SHARE, GOOD_K_HAT = 0.5, 0.5
"""A family with these needs no further round."""

GROWTH = 1.1
"""The fit goes on while the effective share grows by this factor a round."""

TRIED = 6
"""Rounds after which a family that does not come nearer to the posterior is given up."""

REFITS = 3
"""Rounds after which a single t that does not do gives way to a mixture."""

WORST_K_HAT, LOWEST_RATE = 0.7, 0.1
"""A family that is further from the posterior is refused."""


def after_fit(
    target: Target, shared: Levels, hub: Hub, new: Proposed, quality: weights.Quality
) -> tuple[Hub, weights.Quality]:
    """Fit the family to all points at hand; begin to draw where it does."""
    memory, d = hub.memory, hub.centre.size
    # Fewer effective points than parameters teach nothing, unless they soon grow.
    hopeless = (hub.fits + 1 >= REFITS) & (quality.share * len(new.places) < d)
    stage, mixing = _judged(hub, quality, hopeless)

    log_weights = weights.mixture_log_weights(memory)
    wanted = jnp.asarray(max(20.0 * d, 100.0), log_weights.dtype)
    points = memory.points.reshape(-1, d)
    tempered = weights.tempered(log_weights, wanted)
    fitted = families.refitted(hub.family, points, tempered, mixing)
    family = jax.tree.map(
        lambda new, old: jnp.where(jnp.all(jnp.isfinite(new)), new, old), fitted, hub.family
    )
    chains = hub.chains.log_weights.size
    index = resampled(weights.normalised(log_weights), shared.start, chains)
    places = points[index]
    start = memory.heights.reshape(-1)[index] - families.log_density(family, places)
    # Groups of chains of federated HMC start where tempered weights are.
    begins = points[resampled(tempered, shared.start, ensemble.SUPERCHAINS)]
    begins = jnp.where(hopeless, _shell(hub.family, new.places[: ensemble.SUPERCHAINS]), begins)
    begins = coordinates.places(target, hub, begins)[ensemble.superchains(len(new.places))]
    spread = math.sqrt(families.FREEDOM / (families.FREEDOM - 2)) * family.roots[0]
    hub = hub._replace(
        stage=stage,
        family=family,
        fits=hub.fits + 1,
        mixed=jnp.where(mixing, 1, 2 * jnp.minimum(hub.mixed, 1)).astype(jnp.int32),
        chains=hub.chains._replace(places=places, log_weights=start),
        walkers=ensemble.start(begins, jnp.where(hopeless, hub.family.roots[0], spread)),
    )
    return hub, quality


def _judged(
    hub: Hub, quality: weights.Quality, hopeless: Bool[Array, ""]
) -> tuple[Count, Bool[Array, ""]]:
    """Return the stage of the next round, and whether the family becomes a mixture."""
    fits, last = hub.fits + 1, hub.rounds - 1
    before = jnp.where(hub.fits > 0, hub.history.share[last], 0)
    last_k_hat = jnp.where(hub.fits > 0, hub.history.k_hat[last], jnp.inf)
    good = (quality.share >= GOOD_SHARE) & (quality.k_hat <= GOOD_K_HAT)
    mixing = (hub.mixed == 0) & (fits >= REFITS) & (quality.k_hat > GOOD_K_HAT)
    mixing &= jnp.asarray(hub.family.shares.size > 1)
    # The first fit after a family has become a mixture is compared with none.
    stands = (fits > 1) & (quality.share < GROWTH * before) & ~mixing & (hub.mixed != 1)
    # One round's k-hat may be lucky: two in a row must be low, unless it is good.
    usable = jnp.maximum(quality.k_hat, last_k_hat) <= WORST_K_HAT
    usable = good | (usable & (quality.acceptance >= LOWEST_RATE))
    # Far from the posterior the share is noise: only a family that would do may be kept, and others
    # are given up when they have not come nearer for long.
    given_up = ~usable & (hopeless | (stands & (fits >= TRIED)))
    ends = good | (stands & usable) | given_up | (fits >= MOST_FITS)
    stage = jnp.where(ends, jnp.where(usable, Stage.DRAW, Stage.WALK), Stage.FIT).astype(jnp.int32)
    return stage, mixing


def _shell(family: families.Family, points: Float[Array, "S d"]) -> Float[Array, "S d"]:
    """Return points of the first component, moved to where those of a Gaussian lie."""
    centre, root = family.centres[0], family.roots[0]
    white = jax.scipy.linalg.solve_triangular(root, (points - centre[None]).T, lower=True)
    scale = math.sqrt(centre.size) / jnp.sqrt(jnp.sum(white**2, axis=0))
    return centre[None] + (root @ (white * scale[None])).T
