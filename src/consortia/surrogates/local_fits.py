r"""Gaussians from sums of local fits: A_c and A_c (m_c - reference) of every site.

.. math:: A = \sum_c A_c, \qquad m = r + A^{-1} \sum_c A_c (m_c - r)

is the mean of the product of the sites' own Gaussians, with r the reference; sums are enough.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.core.prior import PriorScale
from consortia.core.queries import Arrays
from consortia.surrogates.mode_search import inverse_root, symmetric

APART = 4.0
"""Standard deviations, of both, by which two guesses are of different modes."""

WIDER = 1.5
"""Average ratio of the standard deviations of two guesses from which both are explored."""

FARTHEST = 100.0
"""Standard deviations of the prior from its centre beyond which a fit of few rows ran off."""

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
    """

    centres: list[Float[np.ndarray, " d"]]
    covariances: list[Float[np.ndarray, "d d"]]
    agree: bool


def guesses(
    answer: Arrays,
    start: Float[np.ndarray, " d"],
    scale: PriorScale,
    wide: Float[np.ndarray, " d"],
    rounding: float,
) -> Guesses:
    """Return the fits that differ, and the start where all sites have few rows.

    Args:
        answer: as in `guess_of`; the last fit is of the sites with enough rows, zero without any.
        start: the reference, and the mean where nothing is known.
        scale: of the prior.
        wide: standard deviations around the start.
        rounding: of the numbers in which positions travel.
    """
    fits = list(zip(answer["precisions"], answer["pulls"], strict=True))
    last = fits.pop()
    enough = bool(last[0].any())
    if enough:  # theirs is the guess to begin with
        fits = [last, *fits]
    laws = [law for one in fits if one[0].any() and (law := _law(*one, start)) is not None]
    if not enough and len(laws) == 1 and (scale.distance(laws[0][0]) > FARTHEST).any():
        laws = []  # of several the search takes the best
    found = Guesses([], [], True)
    for centre, covariance in laws:
        _add(found, centre, covariance, 4 * rounding * (np.abs(centre) + wide))
    agree = enough or len(found.centres) == 1
    if not enough or not found.centres:
        _add(found, start, np.diag(wide**2), 4 * rounding * (np.abs(start) + wide))
    return found._replace(agree=agree)


def _add(found: Guesses, centre: np.ndarray, covariance: np.ndarray, finest: np.ndarray) -> None:
    """Add a guess, no narrower than positions are rounded, if it differs from all before."""
    covariance = covariance + np.diag(finest**2)
    before = zip(found.centres, found.covariances, strict=True)
    if all(_differ(centre, covariance, *one) for one in before):
        found.centres.append(centre)
        found.covariances.append(covariance)


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


def _differ(
    centre: Float[np.ndarray, " d"],
    covariance: Float[np.ndarray, "d d"],
    other: Float[np.ndarray, " d"],
    of_other: Float[np.ndarray, "d d"],
) -> bool:
    """Return whether two guesses are of different modes, or of different precision."""
    larger = (np.linalg.slogdet(covariance)[1] - np.linalg.slogdet(of_other)[1]) / 2
    away = centre - other
    distance = math.sqrt(abs(away @ np.linalg.solve(of_other, away)))
    return distance > APART or abs(larger) > len(centre) * math.log(WIDER)
