r"""Local fits with about two significant digits, as they leave a site.

A fit only shapes proposals, and exact ones settle far-out rows. Of n rows the curvature A of a
log-likelihood has a sampling error of about A/√n, and the mode one of 1/√A. A number is rounded to
half of the former, or a quarter of the latter: 3 % of a curvature of 300 rows, whatever the size of
a site, so that one row is hidden among few as among many.

.. math:: u_{jk} \le \frac{\sqrt{A_{jj} A_{kk}}}{2\sqrt n}, \qquad
          u_j \le \frac{\sqrt{A_{jj}}}{4}

with powers of two, which say little of A. Whether a number is rounded up or down follows from a
secret dither, U uniform: x becomes u⌊x/u + U⌋, whose mean is x and whose error has the variance
u²/6 on average. All fits of an answer have the same dither, so that equal ones stay equal.

What a site of a hierarchical model says of the spread between sites follows from its rounded fits,
and they leave widened by it: all of that says no more than they do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from consortia.core.privacy import Dither
from consortia.core.queries import Arrays, Revealed, Rounded
from consortia.core.target import Target
from consortia.surrogates.heterogeneity import moments, widened
from consortia.surrogates.mode_search import symmetric

CURVATURE_UNIT, PULL_UNIT = 0.5, 0.25
"""Units in sampling errors: larger ones cost messages with 280 rows, smaller ones settle rows."""


def rounded_fits(answer: Arrays, rows: int, rng: Dither, coarser: float) -> Rounded:
    """Return fits of one site in the units in which they leave.

    Args:
        answer: upper triangles ``precisions`` (fits, t) and ``pulls`` (fits, d), of models with a
            spread between sites also ``between`` (d,), τ₀².
        rows: of the site.
        rng: of the dither.
        coarser: factor of all units.
    """
    triangles, pulls = (np.asarray(answer[name], float) for name in ("precisions", "pulls"))
    first, second = np.triu_indices(pulls.shape[1])
    root = np.sqrt(np.abs(triangles[:, first == second]))
    relative = coarser * CURVATURE_UNIT / math.sqrt(max(rows, 1))
    scale = np.maximum(root[:, first] * root[:, second], np.abs(triangles))
    units = {
        "precisions": _power_of_two(relative * scale),
        "pulls": _power_of_two(coarser * PULL_UNIT * root),
    }
    exact = {"precisions": triangles, "pulls": pulls}
    arrays = {name: _dithered(exact[name], units[name], rng) for name in sorted(units)}
    errors = {name: unit / math.sqrt(6) for name, unit in units.items()}
    if "between" in answer:
        arrays = _of_common(arrays, np.asarray(answer["between"], float))
    # of the rounded ones, so that they say no more than these
    squares = [_square(*fit) for fit in zip(arrays["precisions"], arrays["pulls"], strict=True)]
    arrays["squares"] = np.array(squares)[:, None]
    return Rounded(arrays, errors)


def _of_common(fits: Mapping[str, np.ndarray], between: Any) -> dict[str, Any]:
    """Compute fits of what is common to the sites, and moments of the first, from a site's own.

    Where rounding leaves a curvature that is not positive its smallest eigenvalues are raised.
    """
    upper, kept = np.triu_indices(between.size), list[tuple[Any, Any]]()
    for triangle, pull in zip(fits["precisions"], fits["pulls"], strict=True):
        precision = symmetric(triangle, between.size)
        if not (np.isfinite(precision).all() and np.isfinite(pull).all()):
            kept.append((np.full_like(precision, np.nan), np.full_like(pull, np.nan)))
            continue
        values, vectors = np.linalg.eigh(precision)
        least = max(LEAST_EIGENVALUE * np.abs(values).max(), np.finfo(np.float32).tiny)
        away = np.linalg.lstsq(precision, pull, rcond=None)[0]
        kept.append((vectors * np.maximum(values, least) @ vectors.T, away))
    wide = [(widened(precision, between), away) for precision, away in kept]
    return {
        "precisions": np.stack([precision[upper] for precision, _ in wide]),
        "pulls": np.stack([precision @ away for precision, away in wide]),
        "spread": moments(kept[0][1], kept[0][0], between),
    }


LEAST_EIGENVALUE = 1e-6
"""Smallest eigenvalue of a curvature by its largest, as single precision can tell."""


def _square(triangle: np.ndarray, pull: np.ndarray) -> float:
    """Compute (m - r)' A (m - r) of a fit."""
    precision = symmetric(triangle, pull.size)
    if not (np.isfinite(precision).all() and np.isfinite(pull).all()):
        return math.nan
    return float(pull @ np.linalg.lstsq(precision, pull, rcond=None)[0])


def wrong_share(arrays: Arrays, sites: int) -> str | None:
    """Describe a share of the prior that is not that of one of so many sites, or return None."""
    share = np.asarray(arrays["share"], float)
    if share.shape == () and abs(share * sites - 1) < 1e-3:
        return None
    return f"share is {share}, expected 1/{sites}: with another one a fit is of the prior"


def revealed_by_fits(
    target: Target, arrays: Arrays, answer: Arrays, errors: Arrays
) -> tuple[Revealed]:
    """Return curvatures at the modes, and gradients at the reference of these quadratics."""
    kept, away = [], []
    for index, pull in enumerate(np.asarray(answer["pulls"][:-1], float)):
        precision = symmetric(answer["precisions"][index], pull.size)
        if np.isfinite(precision).all() and np.isfinite(pull).all():
            kept.append(index)
            away.append(np.linalg.lstsq(precision, pull, rcond=None)[0])
    from_reference = np.reshape(away, (-1, len(arrays["reference"])))
    of_fits = {1: errors["pulls"][kept], 2: errors["precisions"][kept]}
    points = arrays["reference"] + from_reference
    rules = (len(arrays["rule"]),) if "rule" in arrays else ()
    return (Revealed(points, (1, 2), errors=of_fits, away=from_reference, rules=rules),)


def _power_of_two(most: np.ndarray) -> np.ndarray:
    """Return the largest power of two that is not above a number; 0 where it is not positive."""
    usable = np.isfinite(most) & (most > 0)
    return np.where(usable, np.exp2(np.floor(np.log2(np.where(usable, most, 1.0)))), 0.0)


def _dithered(values: np.ndarray, units: np.ndarray, rng: Dither) -> np.ndarray:
    """Return values in their units; the last axes of all have the same dither."""
    dither = rng.random(values.shape[-1])
    usable = (units > 0) & np.isfinite(values)
    unit = np.where(usable, units, 1.0)
    return np.where(usable, unit * np.floor(np.where(usable, values, 0) / unit + dither), values)
