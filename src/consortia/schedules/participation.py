"""Sites that are absent at random: who takes part in which round, and fair weights of averages."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from consortia.core import arguments
from consortia.errors import InputError, wrong
from consortia.latency import Latency

NODES, FAIR, MOST, LEAST = 200, 1e-9, 1e3, 1e-200
"""Nodes of a rule of quadrature, how near its share a site's part must come, how unequal weights
may be beside the shares, and the least power of a node."""


def participation(
    available: Any, rounds: int, sites: int, *, deadline: float = 1.0, seed: int = 0
) -> Bool[np.ndarray, "rounds sites"]:
    """Draw the sites that take part in each round, for ``LocalEngine(participation=)``.

    Args:
        available: probability of each site to take part, (sites,), independently and given that
            one does; or a model of `consortia.latency`, by which sites answer within a deadline,
            the quickest at any rate.
        rounds: of the run, warm-up included.
        sites: their number.
        deadline: of an answer, in the units of the latency.
        seed: of what is drawn.

    Returns:
        True where a site takes part; at least one does in each round.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> participation([1.0, 0.5], 1000, 2).mean(axis=0).round(1).tolist()
        [1.0, 0.5]
    """
    rounds, sites = arguments.whole("rounds", rounds, 1), arguments.whole("sites", sites, 1)
    if hasattr(available, "durations"):
        latency: Latency = available
        latency.check(sites)
        times = [latency.durations(seed, 0, site, 0, rounds) for site in range(sites)]
        taken = np.stack(times, axis=1)
        return taken <= np.maximum(deadline, taken.min(axis=1, keepdims=True))
    chance = np.array(probabilities(available, sites))
    rng = np.random.default_rng(seed)
    present = np.zeros((rounds, sites), bool)
    while (empty := ~present.any(axis=1)).any():
        present[empty] = rng.random((empty.sum(), sites)) < chance
    return present


def probabilities(given: Any, sites: int | None = None) -> tuple[float, ...] | None:
    """Return probabilities of the sites to take part in a round, checked; None stays."""
    if given is None:
        return None
    values = arguments.array("availability", given, "one probability a site")
    if values.ndim != 1 or values.size != (sites or values.size) or not values.size:
        raise wrong("availability", f" has shape {values.shape}: give one probability a site.")
    if not ((values > 0) & (values <= 1)).all():
        raise wrong("availability", ": give probabilities above 0 and up to 1.")
    return tuple(values.tolist())


def fair_weights(
    shares: Float[np.ndarray, " sites"], available: Float[np.ndarray, " sites"]
) -> Float[np.ndarray, " sites"]:
    r"""Return weights with which the sites' parts in averages over those present are fair.

    With weights a and probabilities p a site's part is on average, as
    :math:`1/x = \int e^{-xt} dt`,

    .. math:: \frac{p_c a_c}{1 - \prod_j (1 - p_j)}
              \int_0^\infty e^{-a_c t} \prod_{j \ne c} (1 - p_j + p_j e^{-a_j t}) \, dt

    which is to be its share. Where it is below that, the weight grows in proportion.

    Raises:
        InputError: a site takes part too rarely to have its share.
    """
    points, parts = np.polynomial.legendre.leggauss(NODES)
    points, parts = (points[:, None] + 1) / 2, parts[:, None] / 2
    weights = shares.copy()
    while True:
        # e^(-at), with t = -log(point) / min(a)
        falls = np.maximum(points ** (weights / weights.min()), LEAST)
        factors = 1 - available + available * falls
        others = factors.prod(axis=1, keepdims=True) / factors
        average = (parts / points * falls * others).sum(axis=0) * available * weights
        average /= average.sum()
        if np.abs(average / shares - 1).max() < FAIR:
            return weights / weights.sum()
        weights = weights * shares / average
        if (weights / shares).max() > MOST * (weights / shares).min():
            break
    short = int(np.argmin(average / shares))
    raise InputError(
        f"availability: site {short}, with a share of {shares[short]:.3g}, takes part in "
        f"{available[short]:.3g} of the rounds, too few for that share: give it a smaller one by "
        "weights, or wait longer for it."
    ).at("availability")
