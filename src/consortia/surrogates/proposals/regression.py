r"""A regression of the log-posterior on the position, which every point informs.

In coordinates z in which the quadratic part is :math:`-z^\top z/2`,

.. math:: s(\theta) = c - z^\top z/2 + \sum_k b_k f_k(z),

with monomials up to a degree that the number of parameters permits, and Gaussian bumps around some
of the points. Coefficients are those of a ridge regression, whose penalties are chosen by points
that were held out; a point counts less the deeper it lies below the mode. A wrong surrogate makes a
slow chain, never a wrong law: what it proposes passes a Metropolis test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import linalg

from consortia.surrogates.proposals.memory import Weighted
from consortia.surrogates.proposals.mixture import lower_root, whitened

MOST_FEATURES = 1100
"""Monomials of degree 4, at most; else the degree is 3."""

MOST_POINTS = 8000
"""Points of a regression, at most."""

BUMPS = 200
"""Gaussian bumps."""

WIDTH = 2.0
"""Width of a bump, in units of √d."""

NOISE = 0.01
"""Standard deviation of a log-density at the mode, by which penalties are scaled."""

HIGHER = ((0.03, 0.003), (0.3, 0.05), (2.0, 0.5), (20.0, 10.0))
"""Prior variances of the terms of degree 3 and 4."""

OF_BUMPS = 3.0
"""Prior variance of the heights of bumps, which are tried with and without them."""

HELD_OUT = 0.15
"""Share of the points by which penalties are chosen."""

MOST_QUADRATIC = 60
"""Parameters of a quadratic regression alone, at most."""

RIDGE, LEAST_CURVED = 30.0, 0.05
"""Penalty of its coefficients, and its smallest curvature in units of the guess's."""

HIGHEST = 3.0
"""Above the highest point the surrogate is cut: of what lies there nothing is known."""


@dataclass(frozen=True)
class Surrogate:
    """A fitted log-density.

    Attributes:
        centre: of the quadratic part.
        root: lower triangular, so that z are the coordinates with θ = centre + root z.
        height: of the highest point.
        degree: of the monomials.
        places: centres of bumps.
        coefficients: of all terms.
        radius: |z| up to which there were points; beyond it falls as a Gaussian.
        error: root mean square error at held-out points of the bulk.
        held_out: which of the given points were held out.
        predicted: what was predicted there.
    """

    centre: Float[np.ndarray, " d"]
    root: Float[np.ndarray, "d d"]
    height: float
    degree: int
    places: Float[np.ndarray, "m d"]
    coefficients: Float[np.ndarray, " k"]
    radius: float
    error: float
    held_out: Int[np.ndarray, " h"]
    predicted: Float[np.ndarray, " h"]

    def log_density(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Return s at the points."""
        out = np.empty(len(points))
        for begin in range(0, len(points), AT_ONCE):
            part = slice(begin, begin + AT_ONCE)
            z = whitened(points[part], self.centre, self.root)
            squares = (z**2).sum(axis=1)
            far = np.sqrt(np.maximum(squares, 1e-300))
            inside = z * np.minimum(1, self.radius / far)[:, None]
            near = np.minimum(squares, self.radius**2)
            rest = self.coefficients @ _features(inside, self.degree, self.places)
            out[part] = np.minimum(rest - near / 2, HIGHEST) - (squares - near) / 2
        return self.height + out


AT_ONCE = 512
"""Points whose terms are held at once."""


def reach(dimension: int) -> float:
    """Return the depth of a posterior's bulk below the mode, in units of the log-density."""
    return dimension / 2 + 2 * math.sqrt(dimension) + 6


def fit_surrogate(
    points: Float[np.ndarray, "n d"],
    heights: Float[np.ndarray, " n"],
    rng: np.random.Generator,
    noises: Float[np.ndarray, " n"],
) -> Surrogate:
    """Return the regression of finite log-densities on positions.

    Args:
        points: positions.
        heights: log-densities there.
        rng: by which points are held out.
        noises: standard deviations of what was added to each, which the surrogate need not predict.

    Raises:
        FloatingPointError: no regression is finite.
    """
    d, top = points.shape[1], float(heights.max())
    bulk = reach(d)
    # A point keeps its random numbers wherever rounding would sort it.
    levels = rng.random((2, len(points)))
    kept = np.sort(_spread(top - heights, bulk, rng))
    chosen, held = levels[0, kept], levels[1, kept] < HELD_OUT
    points, heights = points[kept], heights[kept] - top
    relative = 1 + (heights / bulk) ** 2
    centre, root = _quadratic(points, heights, 1 / relative, bulk)
    z = whitened(points, centre, root)
    rest = heights + (z**2).sum(axis=1) / 2
    degree = 4 if math.comb(d + 4, 4) <= MOST_FEATURES else 3
    near = np.flatnonzero(heights > -bulk - 10)
    count = min(BUMPS, len(near) // 5)
    places = z[near[np.argsort(chosen[near])[:count]]]
    features = _features(z, degree, places)
    added = noises[kept]
    noise = relative * np.hypot(NOISE, added)  # far out the terms say less, noise or none
    weighted, wanted = features / noise, rest / noise
    learnt, tested = weighted[:, ~held], weighted[:, held]
    gram, right = learnt @ learnt.T, learnt @ wanted[~held]  # of one array: half the operations
    best_error, best, used, predicted = math.inf, np.zeros(0), 0, np.zeros(0)
    weights = 1e-12 + relative[held] ** -2
    unexplained = np.average(added[held] ** 2, weights=weights)
    sizes = sorted({len(features) - count, len(features)})  # without bumps, and with them
    for penalties in _penalties(d, degree, count):
        for coefficients in _ridges(gram, right, penalties, sizes):
            guess = coefficients @ features[: len(coefficients), held]
            squares = np.average(np.clip(guess - rest[held], -5, 5) ** 2, weights=weights)
            error = math.sqrt(max(squares - unexplained, 0.0))
            if error < best_error:
                best_error, best, used = error, penalties, len(coefficients)
                predicted = guess + heights[held] - rest[held] + top
    if not used:
        raise FloatingPointError("no regression of the log-posterior is finite")
    tested = tested[:used]
    gram, right = gram[:used, :used] + tested @ tested.T, right[:used] + tested @ wanted[held]
    [coefficients] = _ridges(gram, right, best[:used], [used])
    places = places[: used - len(features) + count]
    radius = 1.2 * math.sqrt((z[heights > -2 * bulk - 25] ** 2).sum(axis=1).max())
    return Surrogate(
        centre, root, top, degree, places, coefficients, radius, best_error, kept[held], predicted
    )


def _spread(depth: np.ndarray, bulk: float, rng: np.random.Generator) -> np.ndarray:
    """Select points: the least deep, and others spread evenly over depth."""
    order = np.argsort(depth)
    order = order[: max(np.searchsorted(depth[order], 9 * bulk + 75), min(len(order), 400))]
    if len(order) <= MOST_POINTS:
        return order
    first, others = order[: MOST_POINTS // 2], order[MOST_POINTS // 2 :]
    levels = np.minimum(depth[others], 9 * bulk + 75)
    bins = np.digitize(levels, np.histogram_bin_edges(levels, 25))
    shares = 1 / np.bincount(bins)[bins]
    more = rng.choice(others, MOST_POINTS // 2, replace=False, p=shares / shares.sum())
    return np.concatenate([first, more])


def _quadratic(
    points: np.ndarray, heights: np.ndarray, weights: np.ndarray, bulk: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and root of a weighted quadratic fit, its curvature made positive."""
    d = points.shape[1]
    shares = np.exp(np.maximum(heights / bulk, -4))
    mean = np.average(points, axis=0, weights=shares)
    sd = np.sqrt(np.average((points - mean) ** 2, axis=0, weights=shares)) + 1e-300
    z = (points - mean) / sd
    upper = np.triu_indices(d)
    squares = z[:, upper[0]] * z[:, upper[1]]
    features = np.concatenate([np.ones((len(z), 1)), z, squares], axis=1) * weights[:, None]
    gram = features.T @ features
    gram[np.diag_indices_from(gram)] += 1e-9 * np.trace(gram) / len(gram)
    beta = linalg.solve(gram, features.T @ (heights * weights), assume_a="pos")
    half = np.zeros((d, d))
    half[upper] = beta[1 + d :]
    values, axes = np.linalg.eigh(-(half + half.T))
    size = np.maximum(values, 0.02 * np.median(np.abs(values)) + 1e-6)
    centre = axes @ ((axes.T @ beta[1 : 1 + d]) / size)
    length = max(float(np.linalg.norm(centre)), 1e-9)
    centre *= min(1.0, 4 * math.sqrt(d) / length)
    return mean + sd * centre, lower_root(axes / np.sqrt(size)) * sd[:, None]


def fit_quadratic(
    weighted: Weighted,
    shares: Float[np.ndarray, " n"],
    centre: Float[np.ndarray, " d"],
    root: Float[np.ndarray, "d d"],
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"], float]:
    """Return mean and covariance of the Gaussian whose logarithm is a regression of log π.

    Return also the root mean square of what it leaves of log π, by the same shares. With points
    of the Gaussian itself this is a step of variational inference: by Stein's identity the
    coefficients are the means of the gradient and of the curvature.

    Args:
        weighted: the points.
        shares: of the points in the regression.
        centre: of a first guess, to which the ridge pulls.
        root: of its covariance.
        rng: chooses among many points, more rarely where a share is small.
    """
    count = len(shares) * shares / shares.sum()
    chance = np.minimum(count * MOST_POINTS / len(shares), 1)
    kept = rng.random(len(shares)) < chance
    z = whitened(weighted.points[kept], centre, root)
    rest = weighted.heights[kept] - weighted.heights.max() + (z**2).sum(axis=1) / 2
    features, weights = _features(z, 2, z[:0]), count[kept] / chance[kept]
    scaled = features * np.sqrt(weights)
    gram = scaled @ scaled.T
    gram[np.diag_indices_from(gram)] += RIDGE
    beta = linalg.solve(gram, scaled @ (np.sqrt(weights) * rest), assume_a="pos")
    error = math.sqrt(np.average((rest - beta @ features) ** 2, weights=weights))
    d = z.shape[1]
    half = np.zeros((d, d))
    half[np.triu_indices(d)] = beta[1 + d :]
    values, axes = np.linalg.eigh(np.eye(d) - half - half.T)
    axes = root @ (axes / np.sqrt(np.maximum(values, LEAST_CURVED)))
    covariance = axes @ axes.T
    mean = centre + covariance @ linalg.solve_triangular(root.T, beta[1 : 1 + d])
    return mean, covariance, error


def _penalties(d: int, degree: int, places: int) -> Iterator[np.ndarray]:
    """Yield 1 over prior variances of the coefficients, of all settings that are tried."""
    orders = [_orderings(d, order) for order in range(degree + 1)]
    for cubic, quartic in HIGHER:
        variances = (30.0, 30.0, 30.0, 3 * d * cubic, 3 * d * quartic)
        parts = [d**order / (variances[order] * ways) for order, ways in enumerate(orders)]
        yield np.concatenate([*parts, np.full(places, 1 / OF_BUMPS)])


def _orderings(d: int, order: int) -> np.ndarray:
    """Return of each monomial of an order in how many ways its factors can be ordered."""
    counts = []
    for factors in itertools.combinations_with_replacement(range(d), order):
        ways = math.factorial(order)
        for index in set(factors):
            ways //= math.factorial(factors.count(index))
        counts.append(ways)
    return np.array(counts, float)


def _features(z: np.ndarray, degree: int, places: np.ndarray) -> np.ndarray:
    """Return monomials up to the degree, and bumps, (terms, n)."""
    count, d = z.shape
    zt, monomials = np.ascontiguousarray(z.T), math.comb(d + degree, degree)
    features = np.empty((monomials + len(places), count))
    features[0] = 1
    last, begins, at = features[:1], [0] * d, 1
    for _ in range(degree):
        # z_i times those monomials of the order before that have no earlier factor.
        first, ends = at, []
        for index in range(d):
            before = last[begins[index] :]
            np.multiply(zt[index], before, out=features[at : at + len(before)])
            ends.append(at - first)
            at += len(before)
        last, begins = features[first:at], ends
    if len(places):
        bumps = features[at:]
        np.matmul(-2 * places, zt, out=bumps)
        bumps += (z**2).sum(axis=1) + (places**2).sum(axis=1)[:, None]
        np.maximum(bumps, 0, out=bumps)
        bumps /= -2 * d * WIDTH**2
        np.exp(bumps, out=bumps)
    return features


def _ridges(
    gram: np.ndarray, right: np.ndarray, penalties: np.ndarray, sizes: Sequence[int]
) -> Iterator[np.ndarray]:
    """Yield the ridge regressions on the first terms, by one factor; none that is not finite."""
    scale = 1 / np.sqrt(np.diag(gram) + penalties)
    matrix = (gram + np.diag(penalties)) * scale[:, None] * scale[None]
    for jitter in (1e-12, 1e-9, 1e-6):
        try:
            factor = linalg.cholesky(matrix + jitter * np.eye(len(matrix)), check_finite=False)
        except linalg.LinAlgError:
            continue
        for size in sizes:  # the factor of the first rows and columns is that of the first terms
            part = (factor[:size, :size], False)
            scaled = linalg.cho_solve(part, (scale * right)[:size], check_finite=False)
            if np.isfinite(scaled).all():
                yield scale[:size] * scaled
        return
