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
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from consortia.core.privacy import Dither
from consortia.core.queries import Arrays, Revealed, Rounded
from consortia.core.target import Target
from consortia.surrogates.mode_search import symmetric

CURVATURE_UNIT, PULL_UNIT = 0.5, 0.25
"""Units in sampling errors: larger ones cost messages with 280 rows, smaller ones settle rows."""


def rounded_fits(answer: Arrays, rows: int, rng: Dither, coarser: float) -> Rounded:
    """Return fits of one site in the units in which they leave.

    Args:
        answer: upper triangles ``precisions`` (fits, t), ``pulls`` (fits, d), ``squares``
            and ``spread`` (6, d) of models with a spread between sites.
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
    # of the rounded ones, so that they say no more than these
    squares = [_square(*fit) for fit in zip(*arrays.values(), strict=True)]
    arrays["squares"] = np.array(squares)[:, None]
    if "spread" in answer:
        arrays["spread"] = _rounded_spread(np.asarray(answer["spread"], float), relative, rng)
    return Rounded(arrays, {name: unit / math.sqrt(6) for name, unit in units.items()})


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
    """Return curvatures at the modes, and gradients at the reference of these quadratics.

    Fits that are widened by the spread between sites have smaller units than the curvature A of the
    rows has; these say no more than A in its own units, and so do w, b and v.
    """
    kept, away = [], []
    for index, pull in enumerate(np.asarray(answer["pulls"][:-1], float)):
        precision = symmetric(answer["precisions"][index], pull.size)
        if np.isfinite(precision).all() and np.isfinite(pull).all():
            kept.append(index)
            away.append(np.linalg.lstsq(precision, pull, rcond=None)[0])
    from_reference = np.reshape(away, (-1, len(arrays["reference"])))
    of_fits = {1: errors["pulls"][kept], 2: errors["precisions"][kept]}
    if "spread" in answer:
        coarser = _own_units(answer, kept)
        first, second = np.triu_indices(from_reference.shape[1])
        pairs = coarser[:, first] * coarser[:, second]
        # both say it: once widened, once by the sums of the spread
        of_fits = {1: of_fits[1] * coarser / _TWICE, 2: of_fits[2] * pairs / _TWICE}
    points = arrays["reference"] + from_reference
    rules = (len(arrays["rule"]),) if "rule" in arrays else ()
    return (Revealed(points, (1, 2), errors=of_fits, away=from_reference, rules=rules),)


_TWICE = math.sqrt(2)


def _own_units(answer: Arrays, kept: list[int]) -> Float[np.ndarray, "fits d"]:
    """Return by what the roots of A's diagonal are larger than those of widened fits, at least.

    A diagonal element is at least 1/v.
    """
    w, wv = (np.asarray(answer["spread"], float)[place] for place in (0, 3))
    first, second = np.triu_indices(w.size)
    widened = np.asarray(answer["precisions"], float)[kept][:, first == second]
    with np.errstate(all="ignore"):
        ratio = np.sqrt(w / wv / widened)
    return np.where(np.isfinite(ratio), np.maximum(ratio, 1.0), 1.0)


def _rounded_spread(
    sums: Float[np.ndarray, "6 d"], relative: float, rng: Dither
) -> Float[np.ndarray, "6 d"]:
    """Return w, w b, w b², w v, w² v and w² of w, b and v that are rounded, so that they agree."""
    w = sums[0]
    known = np.where(w > 0, w, 1)
    b, v = sums[1] / known, sums[3] / known
    w = _dithered(w, _power_of_two(relative * w), rng)
    b = _dithered(b, _power_of_two(PULL_UNIT * np.sqrt(v)), rng)
    v = _dithered(v, _power_of_two(relative * v), rng)
    return np.stack([w, w * b, w * b**2, w * v, w**2 * v, w**2])


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
