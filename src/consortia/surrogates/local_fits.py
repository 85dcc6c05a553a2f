r"""Gaussians from sums of local fits: A_c and A_c (m_c - reference) of every site.

.. math:: A = \sum_c A_c, \qquad m = r + A^{-1} \sum_c A_c (m_c - r)

is the mean of the product of the sites' own Gaussians, with r the reference; sums are enough. They
are for Cochran's, too:

.. math:: Q = \sum_c (m_c - m)^T A_c (m_c - m)
          = \sum_c (m_c - r)^T A_c (m_c - r) - (m - r)^T A\, (m - r)

of about (S − 1) d where the sites ended at one mode. The sum of fits of unlike modes is the fit of
none.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.core.prior import PriorScale
from consortia.core.queries import Arrays
from consortia.surrogates.mode_search import inverse_root, solved, symmetric

APART = 4.0
"""Standard deviations, of both, by which two guesses are of different modes."""

WIDER = 1.5
"""Average ratio of the standard deviations of two guesses from which both are explored."""

FARTHEST = 100.0
"""Standard deviations of the prior from its centre beyond which a fit of few rows ran off."""

ROWS_PER_PARAMETER = 2
"""Rows of a site by parameters, below which its local fit is not trusted."""

PARTED = 8.0
"""Cochran's Q by (S − 1) d, from which on sites ended at unlike modes: sites of one mode that
differ by more than their rows tell, as hospitals do, have up to some 4 (of ten regressions)."""

MOST_DOUBTED = 4
"""Guesses of starts at which the sites parted."""

Law = tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]


def guess_of(answer: Arrays, reference: Float[np.ndarray, " d"]) -> Law | None:
    """Return mean and covariance by the first fit, or None where it is not finite.

    Args:
        answer: upper triangles ``precisions`` and ``pulls`` of the fits, summed over the sites.
        reference: r.
    """
    return _law(answer["precisions"][0], answer["pulls"][0], np.asarray(reference, float))


class Guesses(NamedTuple):
    """Means and covariances of the fits that differ.

    Attributes:
        centres: the first one is the best known.
        covariances: of each.
        agree: False if all sites have few rows and their fits from several starts differ, or
            the only one is far off: such fits end anywhere.
        parted: the largest Q of a start by (S − 1) d.
        sure: how many of them are of starts from which the sites ended together, if any is.
    """

    centres: list[Float[np.ndarray, " d"]]
    covariances: list[Float[np.ndarray, "d d"]]
    agree: bool
    parted: float = 0.0
    sure: int = 1


def guesses(
    answer: Arrays,
    start: Float[np.ndarray, " d"],
    scale: PriorScale,
    wide: Float[np.ndarray, " d"],
    rounding: float,
    sites: int,
) -> Guesses:
    """Return the fits that differ, and the start where all sites have few rows.

    Args:
        answer: as in `guess_of`; the last fit is of the sites with enough rows, zero without any.
        start: the reference, and the mean where nothing is known.
        scale: of the prior.
        wide: standard deviations around the start.
        rounding: of the numbers in which positions travel.
        sites: S.
    """
    fits = list(zip(answer["precisions"], answer["pulls"], answer["squares"], strict=True))
    last = fits.pop()
    enough = bool(last[0].any())
    if enough:  # theirs is the guess to begin with
        fits = [last, *fits]
    known = [fit for fit in fits if fit[0].any() and _law(*fit[:2], start) is not None]
    apart = [
        cochran(symmetric(fit[0], len(fit[1])), fit[1], float(fit[2][0]), sites) for fit in known
    ]
    order = sorted(range(len(known)), key=lambda index: apart[index] >= PARTED)
    laws = [law for index in order if (law := _law(*known[index][:2], start)) is not None]
    together = sum(value < PARTED for value in apart)
    if not enough and len(laws) == 1 and (scale.distance(laws[0][0]) > FARTHEST).any():
        laws = []  # of several the search takes the best
    candidates, sure = Guesses([], [], True), 0
    for law_index, (centre, covariance) in enumerate(laws):
        doubted = together > 0 and law_index >= together
        if doubted and len(candidates.centres) >= sure + MOST_DOUBTED:
            break
        _add(candidates, centre, covariance, 4 * rounding * (np.abs(centre) + wide))
        sure = sure if doubted else len(candidates.centres)
    agree = enough or len(candidates.centres) == 1
    if not enough or not candidates.centres:
        _add(candidates, start, np.diag(wide**2), 4 * rounding * (np.abs(start) + wide))
    return candidates._replace(agree=agree, parted=max(apart, default=0.0), sure=sure)


def cochran(precision: np.ndarray, pull: np.ndarray, square: float, sites: int) -> float:
    """Compute Q by (S − 1) d from the sums over sites, 0 of a single one."""
    if sites < 2 or not math.isfinite(square):
        return 0.0
    mean = solved(precision, pull)
    return float(square - pull @ mean) / ((sites - 1) * len(pull))


def disagreement(answer: Arrays, rows: np.ndarray) -> tuple[float, int] | None:
    """Compute Q of the sites with enough rows for a fit, and its degrees of freedom.

    Args:
        answer: as in `guess_of`; the last fit is that of these sites.
        rows: of every site.

    Returns:
        None with fewer than two such sites, or where rounding has hidden Q.
    """
    triangle, pull, square = (answer[name][-1] for name in ("precisions", "pulls", "squares"))
    sites = int(np.sum(np.asarray(rows) >= ROWS_PER_PARAMETER * len(pull)))
    if sites < 2 or not (np.isfinite(triangle).all() and np.isfinite(pull).all()):
        return None
    return q_of(symmetric(triangle, len(pull)), pull, float(square[0]), sites)


def q_of(
    precision: np.ndarray, pull: np.ndarray, square: float, sites: int
) -> tuple[float, int] | None:
    """Compute Q and its degrees of freedom; None where rounding has hidden it."""
    q, freedom = cochran(precision, pull, square, sites), (sites - 1) * len(pull)
    return (q * freedom, freedom) if q > 0 else None


def _add(guesses: Guesses, centre: np.ndarray, covariance: np.ndarray, finest: np.ndarray) -> None:
    """Add a guess, no narrower than positions are rounded, if it differs from all before."""
    covariance = covariance + np.diag(finest**2)
    width = np.linalg.slogdet(covariance)[1] / 2
    for other, of_other in zip(guesses.centres, guesses.covariances, strict=True):
        wider = width - np.linalg.slogdet(of_other)[1] / 2
        away = centre - other
        distance = math.sqrt(abs(away @ np.linalg.solve(of_other, away)))
        if not (distance > APART or abs(wider) > len(centre) * math.log(WIDER)):
            return
    guesses.centres.append(centre)
    guesses.covariances.append(covariance)


def _law(
    triangle: Float[np.ndarray, " t"],
    pull: Float[np.ndarray, " d"],
    reference: Float[np.ndarray, " d"],
) -> Law | None:
    """Return mean and covariance by one fit, or None where it is not finite."""
    precision = symmetric(triangle, len(reference))
    if not (np.isfinite(precision).all() and np.isfinite(pull).all()):
        return None
    root = inverse_root(precision)
    return reference + root @ (root.T @ pull), root @ root.T
