r"""Mixtures of multivariate t distributions, the envelopes of proposals.

.. math:: e(\theta) = \sum_j s_j\, t_\nu(\theta;\ \mu_j, R_j R_j^\top)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import linalg

from consortia.core.arrays import logsumexp
from consortia.surrogates.proposals import FEW_PARAMETERS

BLOCK = 4096
"""Points of a stream that are drawn together, at server and sites."""

EM_STEPS = 20
"""Steps of expectation and maximisation of a mixture."""

TEMPERED = 12
"""Effective weighted points that a fit needs, by the number of parameters."""

WIDE_SHARE, WIDER = 0.15, 1.3
"""Share of the component that keeps the covariance of all points, and by how much it is wider."""

WELL_CONDITIONED = 1e-4
"""Diagonal of a Cholesky factor above which no eigenvalue is so small that it would be lifted."""

INFLATED = 1.15
"""Factor that widens a fitted covariance: a narrow envelope is expensive, a wide one is not."""


def freedom(dimension: int) -> int:
    """Return ν, even, so that a χ² number is a sum of ν/2 logarithms: heavy tails while they last.

    With many parameters nearly all points of heavy tails would lie far out.
    """
    return 4 if dimension <= FEW_PARAMETERS else 8


class Mixture(NamedTuple):
    """Shares s, centres μ, and lower triangular roots R of the scale matrices."""

    shares: Float[np.ndarray, " J"]
    centres: Float[np.ndarray, "J d"]
    roots: Float[np.ndarray, "J d d"]


def mixture_of(shares: list[float], centres: list[np.ndarray], scales: list[np.ndarray]) -> Mixture:
    """Return the mixture with these scale matrices."""
    total = np.asarray(shares, float)
    roots = np.stack([cholesky_root(scale) for scale in scales])
    return Mixture(total / total.sum(), np.stack(centres), roots)


def cholesky_root(matrix: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """Find the lower root of a symmetric matrix, its eigenvalues taken by absolute value."""
    scale = np.sqrt(np.maximum(np.abs(np.diag(matrix)), 1e-300))
    correlations = (matrix + matrix.T) / 2 / np.outer(scale, scale)
    try:
        lower = np.linalg.cholesky(correlations)
    except np.linalg.LinAlgError:
        lower = None
    if lower is not None and np.diag(lower).min() > WELL_CONDITIONED:
        return lower * scale[:, None]
    values, axes = np.linalg.eigh(correlations)
    size = np.maximum(np.abs(values), max(1e-11 * np.abs(values).max(), 1e-300))
    return lower_root(axes * np.sqrt(size)) * scale[:, None]


def lower_root(root: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """Return the lower triangular root of R Rᵀ, without squaring the condition number of R."""
    upper: np.ndarray = linalg.qr(root.T, mode="r", check_finite=False)[0]
    return upper.T * np.sign(np.diag(upper))[None]


def stream(words: Int[np.ndarray, " w"]) -> np.random.Generator:
    """Return the random numbers of one message, the same at server and sites."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words.tolist())))


def envelope_points(
    mixture: Mixture, words: Int[np.ndarray, " w"], accepted: Int[np.ndarray, " n"]
) -> Float[np.ndarray, "n d"]:
    """Return the accepted ones among the points that a stream draws from an envelope."""
    rng, blocks = stream(words), []
    for begin in range(0, int(accepted.max(initial=-1)) + 1, BLOCK):
        block = draw(mixture, rng, BLOCK)
        blocks.append(block[accepted[(accepted >= begin) & (accepted < begin + BLOCK)] - begin])
    return np.concatenate(blocks) if blocks else np.zeros((0, mixture.centres.shape[1]))


def draw(mixture: Mixture, rng: np.random.Generator, count: int) -> Float[np.ndarray, "n d"]:
    """Return independent points."""
    d = mixture.centres.shape[1]
    which = np.searchsorted(np.cumsum(mixture.shares)[:-1], rng.random(count), side="right")
    normals = rng.standard_normal((count, d))
    squares = -2 * np.log1p(-rng.random((count, freedom(d) // 2))).sum(axis=1)
    normals /= np.sqrt(squares / freedom(d))[:, None]
    points = np.empty((count, d))
    for index, (centre, root) in enumerate(zip(mixture.centres, mixture.roots, strict=True)):
        members = which == index
        points[members] = centre + normals[members] @ root.T
    return points


def log_density(mixture: Mixture, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
    """Return log e, normalised."""
    parts = _parts(mixture, points)[0]
    return parts[0] if len(parts) == 1 else logsumexp(parts, axis=0)


def _parts(mixture: Mixture, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log s_j t(θ) and |R_j⁻¹(θ − μ_j)|², (J, n) each."""
    d, nu = points.shape[1], freedom(points.shape[1])
    constant = math.lgamma((nu + d) / 2) - math.lgamma(nu / 2) - d / 2 * math.log(nu * math.pi)
    squares = np.empty((len(mixture.shares), len(points)))
    for index, (centre, root) in enumerate(zip(mixture.centres, mixture.roots, strict=True)):
        white = whitened(points, centre, root)
        squares[index] = np.einsum("nd,nd->n", white, white)
    volumes = np.log(np.diagonal(mixture.roots, axis1=1, axis2=2)).sum(axis=1)
    heights = np.log(mixture.shares) - volumes + constant
    # log, which NumPy vectorises as it does not log1p
    return heights[:, None] - (nu + d) / 2 * np.log(1 + squares / nu), squares


def whitened(
    points: Float[np.ndarray, "n d"],
    centre: Float[np.ndarray, " d"],
    root: Float[np.ndarray, "d d"],
) -> Float[np.ndarray, "n d"]:
    """Return R⁻¹(θ − μ) of each point; a product with R⁻¹ is far faster than many solutions."""
    # as `solve_triangular` has it, whose checks take four times as long as a small solution
    inverse, failed = linalg.lapack.dtrtrs(root.T, np.eye(len(root)), lower=0, trans=1)
    if failed:
        raise np.linalg.LinAlgError("a root is singular")
    return (points - centre) @ inverse.T


def normalised(log_weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return weights with sum one."""
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


def moments(
    points: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """Return mean and covariance of weighted points."""
    weights = weights / weights.sum()
    mean = weights @ points
    away = points - mean
    return mean, (away.T * weights) @ away


def tempered(log_weights: Float[np.ndarray, " n"], wanted: float) -> Float[np.ndarray, " n"]:
    """Return the weights to the largest power up to 1 at which so many points count."""
    power = 1.0
    while power > 0.01:
        weights = normalised(power * log_weights)
        if 1 / (weights**2).sum() >= wanted:
            break
        power *= 0.8  # ten powers to a tenth; chosen, not measured
    return weights


def fit_mixture(
    points: Float[np.ndarray, "n d"],
    log_weights: Float[np.ndarray, " n"],
    components: int,
    rng: np.random.Generator,
) -> Mixture:
    """Return a mixture near weighted points.

    Args:
        points: positions.
        log_weights: log π/e of each, up to a constant.
        components: 1 for a single t; of more, one keeps the covariance of all points.
        rng: chooses where components begin.
    """
    n, d = points.shape
    weights = tempered(log_weights, min(TEMPERED * d, n / 4))
    mean, whole = moments(points, weights)
    if components == 1:
        return mixture_of([1.0], [mean], [whole * (1 - 2 / freedom(d)) * INFLATED])
    chosen = points[rng.choice(n, min(n, 3000), p=weights)]
    each = components - 1
    centres = chosen[rng.choice(len(chosen), each, replace=False)]
    family = mixture_of([1 / each] * each, list(centres), [whole * each ** (-2 / d)] * each)
    strength, prior = 3.0 * d, 3.0 * d * each ** (-2 / d) * whole
    for _ in range(EM_STEPS):
        heights, squares = _parts(family, chosen)
        parts = np.exp(heights - heights.max(axis=0))
        parts /= parts.sum(axis=0)
        pulls = parts * (freedom(d) + d) / (freedom(d) + squares)
        sums = pulls.sum(axis=1) + 1e-9
        centres = pulls @ chosen / sums[:, None]
        scales = []
        for pull, part, centre in zip(pulls, parts, centres, strict=True):
            off = chosen - centre
            scales.append(((off.T * pull) @ off + prior) / (part.sum() + strength))
        family = mixture_of(list(parts.sum(axis=1) + 1e-9), list(centres), scales)
    inner = [root @ root.T * 1.1 for root in family.roots]
    shares = [*((1 - WIDE_SHARE) * family.shares), WIDE_SHARE]
    return mixture_of(shares, [*family.centres, mean], [*inner, whole * WIDER])
