r"""The spread between sites, from sums of their local fits: a random-effects meta-analysis.

A site's own estimate b of a parameter that differs between S sites, of variance v, lies off the
common one by a variance of v + τ². With weights w = 1/(v + τ₀²),

.. math::
    Q = \sum_c w_c (b_c - \bar b)^2, \qquad
    \mathbb{E}\,Q = \sum_c w_c v_c - \frac{\sum_c w_c^2 v_c}{\sum_c w_c}
        + \tau^2 \Bigl(\sum_c w_c - \frac{\sum_c w_c^2}{\sum_c w_c}\Bigr)

so that six sums over the sites are enough, and Q is about 𝔼Q times a χ² of S − 1 degrees of freedom
by S − 1. With the prior that is a law of log τ, on a grid.

Source: the moments of DerSimonian and Kacker, "Random-effects model for meta-analysis of clinical
trials: an update" (2007).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from consortia.core.target import Target
from consortia.surrogates.local_fits import Guesses
from consortia.surrogates.proposals.groups import SpreadOf

GRID = np.linspace(-7, 7, 281)
"""Places of log τ, from its start."""


def widened(
    precision: Float[np.ndarray, "d d"], between: Float[np.ndarray, " d"]
) -> Float[np.ndarray, "d d"]:
    """Return (A⁻¹ + diag(τ₀²))⁻¹, the precision of what is common to the sites."""
    root = np.diag(np.sqrt(between))
    inner = np.eye(len(between)) + root @ precision @ root
    return precision - precision @ root @ np.linalg.solve(inner, root @ precision)


def moments(
    away: Float[np.ndarray, " d"],
    precision: Float[np.ndarray, "d d"],
    between: Float[np.ndarray, " d"],
) -> Float[np.ndarray, "6 d"]:
    """Return w, w b, w b², w v, w² v and w² of each parameter, which are added over the sites.

    Args:
        away: b, from a point that all sites know.
        precision: A; v is the diagonal of its inverse.
        between: τ₀².
    """
    v = np.diagonal(np.linalg.inv(precision))
    known = np.isfinite(v) & (v > 0) & np.isfinite(away)
    v, b = np.where(known, v, 0), np.where(known, away, 0)
    w = np.where(known, 1 / (v + np.where(between > 0, between, 1)), 0)
    return np.stack([w, w * b, w * b**2, w * v, w**2 * v, w**2])


def with_spreads(
    guesses: Guesses,
    sums: Float[np.ndarray, "6 d"],
    target: Target,
    start: Float[np.ndarray, " d"],
    sites: int,
    spread_of: SpreadOf,
) -> tuple[Guesses, Float[np.ndarray, " d"]]:
    """Return guesses of a hierarchical model, with mean and variance of log τ by all sites.

    With them come the variances v of what is common to the sites where τ is 0, and those of the
    first guess where no site knows any.

    Args:
        guesses: by the local fits, of which none knows τ.
        sums: those of `moments`.
        target: the posterior, of which the prior alone is evaluated.
        start: where τ is τ₀.
        sites: S.
        spread_of: which parameters are log τ, and s = τ/√S of the others.
    """
    spreads, group_sd, _ = spread_of
    w, wb, wbb, wv, wwv, ww = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        excess, within, between = wbb - wb**2 / w, wv - wwv / w, w - ww / w
    before = group_sd(start[None])[0] ** 2
    mean, variance, wider = start.copy(), np.zeros(len(start)), np.zeros(len(start))
    for k in np.flatnonzero(spreads):
        points = np.repeat(start[None], len(GRID), axis=0)
        points[:, k] += GRID
        squares = group_sd(points) ** 2
        height = target.log_priors(points)
        members = np.flatnonzero(np.ptp(squares, axis=0) > 0)
        for j in members:
            expected = within[j] + between[j] * sites * squares[:, j]
            if np.all(expected > 0):  # else no site says anything
                height += -(sites - 1) / 2 * (np.log(expected) + excess[j] / expected)
        share = np.exp(height - np.nanmax(height))
        share = np.where(np.isfinite(share), share, 0) / np.nansum(share)
        mean[k] = share @ points[:, k]
        variance[k] = share @ (points[:, k] - mean[k]) ** 2
        wider[members] = np.maximum(share @ squares[:, members] - before[members], 0)
    centres = [np.where(spreads, mean, guessed) for guessed in guesses.centres]
    apart = ~(spreads[:, None] | spreads)
    covariances = [guessed * apart + np.diag(variance + wider) for guessed in guesses.covariances]
    known = np.where(w > 0, wwv / np.where(w > 0, w, 1) ** 2, np.diag(guesses.covariances[0]))
    return Guesses(centres, covariances, guesses.agree), known
