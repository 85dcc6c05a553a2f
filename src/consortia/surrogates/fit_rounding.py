r"""Local fits with about two significant digits, as they leave a site.

A fit only shapes proposals, and exact ones settle far-out rows. Of n rows the curvature A of a
log-likelihood has a sampling error of about A/√n, and the mode one of 1/√A. A number is rounded to
half of the former, or a quarter of the latter: 3 % of a curvature of 300 rows, whatever the size of
a site, so that one row is hidden among few as among many.

.. math:: u_{jk} \le \frac{\sqrt{A_{jj} A_{kk}}}{2\sqrt n}, \qquad
          u_j \le \frac{\sqrt{A_{jj}}}{4}

with powers of two, which say little of A; the pull is that of the rounded A, to the mode. Where
columns are nearly collinear, the smallest eigenvalues of A are lost so: A is then rounded again, in
coordinates in which the rounded one is diagonal, until none is. Whether a number is rounded up or
down follows from a secret dither, U uniform: x becomes u⌊x/u + U⌋, whose mean is x and whose error
has the variance u²/6 on average. All fits of an answer have the same dither, so that equal ones
stay equal; of those that end in one mode the numbers of the first leave, once for all.

In a hierarchical model a site's own A is only an intermediate: what leaves is widened by the
variance B between sites, and little of A is left where it is large. There the rounded numbers are
those of A after a sweep over the parameters V that differ between sites, S being all others: the
covariance of V given S, which is added to B, its regression on S, and the curvature of the profile
log-likelihood of S.

.. math:: M = \begin{pmatrix} A_{VV}^{-1} & G \\ G^T & A_{SS} - A_{SV} G \end{pmatrix}, \quad
          G = A_{VV}^{-1} A_{VS}, \qquad
          T = \begin{pmatrix} A_{VV}^{-1} & 0 \\ -G^T & I \end{pmatrix}, \quad dM = T\, dA\, T^T

with T p in place of the pull p. All that leaves follows from the rounded M and T p and their units.

Source: the sweep operator of Goodnight, "A tutorial on the SWEEP operator" (1979).
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
from consortia.surrogates.mode_search import solved, symmetric

CURVATURE_UNIT, PULL_UNIT = 0.5, 0.25
"""Units in sampling errors: larger ones cost messages with 280 rows, smaller ones settle rows."""

TURNS, LOST, MOST_TURNED = 6, 1.0, 0.5
"""Roundings of a fit, at most; the smallest eigenvalue by their error, about √d units, below which
a direction is lost; and a unit above which nothing is left to be turned."""


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
    d = pulls.shape[1]
    between = np.asarray(answer.get("between", np.zeros(d)), float)
    varies = np.flatnonzero(between > 0)
    relative = coarser * CURVATURE_UNIT / math.sqrt(max(rows, 1))
    dithers = rng.random((1 if varies.size else TURNS, triangles.shape[1] + d))
    of_pull = coarser * PULL_UNIT
    first = _first_of_equals(triangles, pulls, relative, of_pull)
    each = {
        index: _rounded(
            symmetric(triangles[index], d), pulls[index], varies, dithers, relative, of_pull
        )
        for index in {*first}
    }
    fits = [each[index] for index in first]
    names = "precisions", "pulls"
    arrays = {name: np.stack([fit.arrays[name] for fit in fits]) for name in names}
    errors = {name: np.stack([fit.errors[name] for fit in fits]) for name in names}
    finest = errors["precisions"][:, np.equal(*np.triu_indices(d))] * math.sqrt(6)
    for name in names:
        errors[name][first < np.arange(len(first))] = np.inf  # say nothing that the first has not
    if not varies.size and any((fit.errors["turns"] != np.eye(d)).any() for fit in fits):
        errors["turns"] = np.stack([fit.errors["turns"] for fit in fits])
    if "between" in answer:
        arrays = _of_common(arrays, finest, relative, between)
    # of the rounded ones, so that they say no more than these
    squares = [_square(*fit) for fit in zip(arrays["precisions"], arrays["pulls"], strict=True)]
    arrays["squares"] = np.array(squares)[:, None]
    return Rounded(arrays, errors)


def _rounded(
    precision: np.ndarray,
    pull: np.ndarray,
    varies: np.ndarray,
    dithers: np.ndarray,
    relative: float,
    of_pull: float,
) -> Rounded:
    """Round a fit: with a spread M and T p, else until no direction is lost, back as A and p.

    Args:
        precision: A.
        pull: p.
        varies: V.
        dithers: of every turn, (turns, t + d).
        relative: unit of a number of M by its size.
        of_pull: unit of a number of T p in sds.
    """
    upper = np.triu_indices(d := pull.size)
    turn, matrix = _turn(precision, varies), precision
    usable = not varies.size and np.isfinite(precision).all() and np.isfinite(pull).all()
    mode = solved(precision, pull) if usable else pull
    for count, dither in enumerate(dithers, 1):
        if varies.size:
            matrix = _swept(precision, turn, varies)
        elif count > 1:
            matrix = turn @ precision @ turn.T
        root = np.sqrt(np.abs(np.diagonal(matrix)))
        size = np.maximum(np.outer(root, root), np.abs(matrix))[upper]
        units = _power_of_two(relative * size), _power_of_two(of_pull * root)
        made = _dithered(matrix[upper], units[0], dither[:-d])
        turned = turn @ pull if varies.size else pull
        if usable:  # of the rounded A, or a far reference would multiply what rounding has moved
            turned = symmetric(made, d) @ np.linalg.solve(turn.T, mode)
        away = _dithered(turned, units[1], dither[-d:])
        if not (usable and root.all()):
            break
        diagonal = np.sqrt(np.maximum(np.abs(made[upper[0] == upper[1]]), relative * root**2))
        values, axes = np.linalg.eigh(symmetric(made, d) / np.outer(diagonal, diagonal))
        if relative > MOST_TURNED or values[0] > LOST * math.sqrt(d) * relative or count == TURNS:
            break
        turn = (axes.T / diagonal) @ turn
    errors = (unit / math.sqrt(6 * count) for unit in units)  # turns tell of A, too
    arrays = {"precisions": made, "pulls": away}
    if count > 1:
        back = np.linalg.inv(turn)
        arrays = {"precisions": (back @ symmetric(made, d) @ back.T)[upper], "pulls": back @ away}
    return Rounded(arrays, dict(zip(arrays, errors, strict=True)) | {"turns": turn})


def _first_of_equals(
    triangles: np.ndarray, pulls: np.ndarray, relative: float, of_pull: float
) -> np.ndarray:
    """Find for each fit the first one that is the same by far less than a unit."""
    first, d = np.arange(len(pulls)), pulls.shape[1]
    rows, columns = np.triu_indices(d)
    finite = np.isfinite(np.concatenate([triangles, pulls], axis=1)).all(axis=1)
    for index in range(1, len(pulls)):
        for before in range(index):
            if first[before] != before or not finite[[before, index]].all():
                continue
            root = np.sqrt(np.abs(triangles[before, rows == columns]))
            scale = np.maximum(root[rows] * root[columns], np.abs(triangles[before]))
            off = np.abs(triangles[index] - triangles[before])
            if not (off <= EQUAL * relative * scale).all():
                continue
            away = pulls[index] - pulls[before]
            distance = away @ solved(symmetric(triangles[before], d), away)  # squared, in sds
            if distance <= (EQUAL * of_pull) ** 2:
                first[index] = before
                break
    return first


def _turn(precision: np.ndarray, varies: np.ndarray) -> np.ndarray:
    """Compute T, the identity where A is not finite."""
    turn = np.eye(len(precision))
    if varies.size and np.isfinite(precision).all():
        covariance = np.linalg.inv(_raised(precision[np.ix_(varies, varies)], LEAST_EIGENVALUE))
        turn[:, varies] = -precision[:, varies] @ covariance
        turn[np.ix_(varies, varies)] = covariance
    return turn


def _swept(precision: np.ndarray, turn: np.ndarray, varies: np.ndarray) -> np.ndarray:
    """Compute M of A and T, A itself where it is not finite."""
    if not np.isfinite(precision).all():
        return precision
    others = np.setdiff1d(np.arange(len(precision)), varies)
    matrix = turn @ precision @ turn.T
    matrix[np.ix_(varies, others)] = -turn[np.ix_(others, varies)].T
    matrix[np.ix_(others, varies)] = -turn[np.ix_(others, varies)]
    matrix[np.ix_(varies, varies)] = turn[np.ix_(varies, varies)]
    return matrix


def _of_common(
    fits: Mapping[str, np.ndarray], units: np.ndarray, relative: float, between: np.ndarray
) -> dict[str, Any]:
    """Compute fits of what is common to the sites, and moments of the first, from a site's own.

    Args:
        fits: M and T p, rounded.
        units: of the diagonals of M.
        relative: unit of a number of M by its size; above 1 nothing is left of a fit.
        between: B.
    """
    upper, varies = np.triu_indices(between.size), np.flatnonzero(between > 0)
    kept = list[tuple[np.ndarray, np.ndarray]]()
    for triangle, pull, finest in zip(fits["precisions"], fits["pulls"], units, strict=True):
        fit = symmetric(triangle, between.size), pull
        if not all(np.isfinite(part).all() for part in fit):
            kept.append((np.full_like(fit[0], np.nan), np.full_like(pull, np.nan)))
            continue
        if varies.size:
            fit = _unswept(*fit, varies, finest, relative)
        precision, away = fit[0], solved(*fit)
        kept.append((_raised(precision, LEAST_EIGENVALUE), away))
    wide = [(widened(precision, between), away) for precision, away in kept]
    return {
        "precisions": np.stack([precision[upper] for precision, _ in wide]),
        "pulls": np.stack([precision @ away for precision, away in wide]),
        "spread": moments(kept[0][1], kept[0][0], between),
    }


def _unswept(
    matrix: np.ndarray, pull: np.ndarray, varies: np.ndarray, units: np.ndarray, relative: float
) -> tuple[np.ndarray, np.ndarray]:
    """Compute A and p from the rounded M and T p; eigenvalues lost in the rounding are raised."""
    if relative > 1:
        return np.zeros_like(matrix), np.zeros_like(pull)
    block = np.ix_(varies, varies)
    others = np.setdiff1d(np.arange(len(matrix)), varies)
    size = np.sqrt(np.maximum(np.diagonal(matrix), units))[varies]
    covariance = _raised(matrix[block] / np.outer(size, size), relative) * np.outer(size, size)
    back, inner = np.eye(len(matrix)), matrix.copy()
    back[block] = np.linalg.inv(covariance)
    back[np.ix_(others, varies)] = matrix[np.ix_(others, varies)] @ back[block]
    inner[block] = covariance
    inner[np.ix_(varies, others)] = inner[np.ix_(others, varies)] = 0
    return back @ inner @ back.T, back @ pull


def _raised(matrix: np.ndarray, least: float) -> np.ndarray:
    """Raise the smallest eigenvalues of a symmetric matrix to that share of the largest."""
    values, vectors = np.linalg.eigh(matrix)
    floor = max(least * np.abs(values).max(), np.finfo(np.float32).tiny)
    return np.asarray(vectors * np.maximum(values, floor) @ vectors.T)


EQUAL = 0.1
"""Units by which two fits of one mode may differ."""

LEAST_EIGENVALUE = 1e-6
"""Smallest eigenvalue of a curvature by its largest, as single precision can tell."""


def _square(triangle: np.ndarray, pull: np.ndarray) -> float:
    """Compute (m - r)' A (m - r) of a fit."""
    precision = symmetric(triangle, pull.size)
    if not (np.isfinite(precision).all() and np.isfinite(pull).all()):
        return math.nan
    return float(pull @ solved(precision, pull))


def wrong_share(arrays: Arrays, sites: int) -> str | None:
    """Describe a share of the prior that is not that of one of so many sites, or return None."""
    share = np.asarray(arrays["share"], float)
    if share.shape == () and abs(share * sites - 1) < 1e-3:
        return None
    return f"share is {share}, expected 1/{sites}: with another one a fit is of the prior"


def revealed_by_fits(
    target: Target, arrays: Arrays, answer: Arrays, errors: Arrays
) -> tuple[Revealed]:
    """Return curvatures at the modes and gradients of these quadratics, both turned by T.

    The gradients are those at the modes, where the rounded curvatures have their pulls from; in a
    hierarchical model at the reference, where V is best, given all others there. The curvature
    counts as that at a known point: that it changes with the mode, as rows move this, is left out.
    """
    reference, pulls = np.asarray(arrays["reference"]), np.asarray(answer["pulls"][:-1], float)
    d = reference.size
    varies = np.asarray(answer.get("between", np.zeros(d))) > 0
    kept, away, turns = list[int](), list[np.ndarray](), list[np.ndarray]()
    turned = errors.get("turns", np.broadcast_to(np.eye(d), (len(pulls), d, d)))
    for index, pull in enumerate(pulls):
        precision = symmetric(answer["precisions"][index], d)
        if np.isfinite(precision).all() and np.isfinite(pull).all():
            turn = _turn(precision, np.flatnonzero(varies)) if varies.any() else turned[index]
            mode = solved(precision, pull)
            kept.append(index)
            turns.append(turn)
            away.append(np.stack([mode, np.where(varies, turn @ pull, 0)]))
    modes, given_others = np.moveaxis(np.reshape(away, (-1, 2, d)), 1, 0)
    rules = (len(arrays["rule"]),) if "rule" in arrays else ()
    every = np.reshape(turns, (-1, d, d))
    by_order = {1: errors["pulls"][kept], 2: errors["precisions"][kept]}
    far = modes - given_others if varies.any() else None
    of_fits = Revealed(reference + modes, (1, 2), errors=by_order, away=far)
    return (of_fits._replace(turn=None if (every == np.eye(d)).all() else every, rules=rules),)


def _power_of_two(most: np.ndarray) -> np.ndarray:
    """Return the largest power of two that is not above a number; 0 where it is not positive."""
    usable = np.isfinite(most) & (most > 0)
    return np.where(usable, np.exp2(np.floor(np.log2(np.where(usable, most, 1.0)))), 0.0)


def _dithered(values: np.ndarray, units: np.ndarray, dither: np.ndarray) -> np.ndarray:
    """Return values in their units."""
    usable = (units > 0) & np.isfinite(values)
    unit = np.where(usable, units, 1.0)
    return np.where(usable, unit * np.floor(np.where(usable, values, 0) / unit + dither), values)
