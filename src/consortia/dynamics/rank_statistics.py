"""Rank-normalised split R-hat and effective sample size, for many coordinates at once.

The statistics are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner, "Rank-normalization,
folding, and localization: an improved R-hat" (Bayesian Analysis, 2021), and agree with
`arviz_stats.rhat` and `arviz_stats.ess` to rounding. They are written out here over whole blocks of
coordinates because one call per coordinate costs too much beside a run: for 4 chains of 1,000
draws 3 ms a coordinate and .6 s of imports there, .5 ms and .1 s here; for 1 chain of 40 draws
.6 ms there and .01 ms here.

All arrays are float64, (coordinate, chain, draw), finite, with at least four draws, and no
coordinate is constant: the callers sort those out.
"""

from __future__ import annotations

import functools
from statistics import NormalDist

import numpy as np

LEAST_DRAWS = 4
WITHOUT_SCIPY = 50_000
"""Draws whose scores take less time than loading SciPy."""

TAIL = (0.05, 0.95)

LAGS = 128
"""Lags, an even number, within which the sequence of most chains ends: others are computed then."""


def rhat_and_ess_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return R-hat, bulk ESS and tail ESS, (coordinate,) each, of draws (coordinate, chain, draw).

    R-hat is the larger of the two for the normal scores of the draws and of their distances to the
    median; the tail ESS is the smaller of the two for the indicators of the 5 % and 95 % quantile.
    """
    halves = split_chains(values)
    scores = _normal_scores(halves)
    rows = halves.reshape(len(values), -1)
    middle = rows.shape[1] // 2
    around = np.partition(rows, (middle - 1, middle), axis=1)[:, middle - 1 : middle + 1]
    with np.errstate(over="ignore"):
        median = around.sum(axis=1) / 2
        distance = np.abs(halves - median[:, None, None])
    # A coordinate with two values, equally frequent, has constant distances: fmax passes over it.
    r_hat = np.fmax(_r_hat(scores), _r_hat(_normal_scores(distance)))
    return r_hat, effective_sample_size(scores), _tail_ess(values, halves)


def bulk_and_tail_ess_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return bulk ESS and tail ESS as `rhat_and_ess_of`, in half of its time."""
    halves = split_chains(values)
    return effective_sample_size(_normal_scores(halves)), _tail_ess(values, halves)


def _tail_ess(values: np.ndarray, halves: np.ndarray) -> np.ndarray:
    rows = values.reshape(len(values), -1)
    # The order statistic below the interpolated quantile parts the draws in the same way.
    places = np.floor((rows.shape[1] - 1) * np.array(TAIL)).astype(int)
    low, high = np.partition(rows, places, axis=1)[:, places].T[:, :, None, None]
    return np.minimum(effective_sample_size(halves <= low), effective_sample_size(halves <= high))


def split_chains(values: np.ndarray) -> np.ndarray:
    """Return the halves (..., 2·chain, draw // 2) of (..., chain, draw), without a middle draw."""
    half = values.shape[-1] // 2
    return np.concatenate([values[..., :half], values[..., -half:]], axis=-2)


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Return Φ⁻¹((rank − 3/8) / (S + 1/4)) over S draws of a coordinate; ties share a mean rank."""
    rows = values.reshape(len(values), -1)
    size = rows.shape[1]
    order = np.argsort(rows, axis=1)
    ordered = np.take_along_axis(rows, order, axis=1)
    first = np.ones(rows.shape, dtype=bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    if first.all():
        of_ranks = _scores(size, 1)[None]
    else:
        begins = np.flatnonzero(first)
        equal = np.diff(begins, append=rows.size)
        of_ranks = _scores(size, 2)[2 * (begins % size) + equal - 1].repeat(equal)
        of_ranks = of_ranks.reshape(rows.shape)
    scores = np.empty_like(rows)
    np.put_along_axis(scores, order, of_ranks, axis=1)
    return scores.reshape(values.shape)


@functools.lru_cache(maxsize=8)
def _scores(size: int, parts: int) -> np.ndarray:
    """Return the scores of the ranks 1, 1 + 1/parts, ..., S; they are symmetric around zero."""
    count = parts * (size - 1) + 1
    rank = 1 + np.arange((count + 1) // 2) / parts
    levels = (rank - 0.375) / (size + 0.25)
    if size <= WITHOUT_SCIPY:
        lower = np.array([*map(NormalDist().inv_cdf, levels.tolist())])
    else:
        from scipy.special import ndtri  # heavy

        lower = ndtri(levels)
    return np.concatenate([lower, -lower[: count // 2][::-1]])


def _r_hat(chains: np.ndarray) -> np.ndarray:
    """Return √((B/W + n − 1)/n) of (coordinate, chain, draw); infinite when no chain moves."""
    n = chains.shape[-1]
    # From the first draw on, so that the variance of a chain that stands still is zero exactly.
    within = (chains - chains[..., :1]).var(axis=-1, ddof=1).mean(axis=-1)
    between = n * chains.mean(axis=-1).var(axis=-1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((between / within + n - 1) / n)


def effective_sample_size(chains: np.ndarray) -> np.ndarray:
    """Return the effective sample size of the mean of (coordinate, chain, draw), over all chains.

    Autocorrelations by FFT, summed over Geyer's initial positive and monotone sequence of pairs.
    """
    n = chains.shape[-1]
    sizes, ended = _of_lags(chains, min(LAGS, n))
    if n > LAGS and not ended.all():
        sizes[~ended] = _of_lags(chains[~ended], n)[0]
    return sizes


def _of_lags(chains: np.ndarray, lags: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the effective sample size by the first lags, and whether the sequence ends in them."""
    count, m, n = chains.shape
    means = chains.mean(axis=-1)
    length = fast_length(n + lags)
    spectrum = np.fft.rfft(chains - means[..., None], length, axis=-1)
    power = (spectrum.real**2 + spectrum.imag**2).mean(axis=1)
    covariance = np.fft.irfft(power, length, axis=-1)[:, :lags] / n
    variance = covariance[:, 0] * n / (n - 1)
    pooled = covariance[:, 0] + means.var(axis=-1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = 1 - (variance[:, None] - covariance) / pooled[:, None]
    correlation[:, 0] = 1

    # Pair k holds the lags 2k and 2k+1; the sequence ends at the first pair that is not positive.
    pairs = correlation[:, : min(lags, 2 * max(1, (n - 1) // 2))].reshape(count, -1, 2)
    sums = pairs.sum(axis=-1)
    positive = sums > 0
    positive[:, -1] = False
    end = positive.argmin(axis=1)
    row = np.arange(count)
    before_end = np.arange(sums.shape[1]) < end[:, None]
    monotone = np.minimum.accumulate(sums, axis=1)
    even = pairs[row, end, 0]
    # At the end the even lag alone counts, once, where it or its pair is positive.
    rest = np.where((sums[row, end] >= 0) | (even > 0), even, 0)
    time = -1 + 2 * np.where(before_end, monotone, 0).sum(axis=1) + rest
    total = m * n
    ess = total / np.maximum(time, 1 / np.log10(total))
    # An indicator that is the same for every draw carries no information on mixing.
    ess = np.where(chains.max(axis=(1, 2)) > chains.min(axis=(1, 2)), ess, total)
    return ess, end < sums.shape[1] - 1


@functools.cache
def fast_length(least: int) -> int:
    """Return the smallest length from ``least`` on with no prime factor above 5, fast to transform.

    >>> [fast_length(least) for least in (1, 7, 11, 17, 2000)]
    [1, 8, 12, 18, 2000]
    """
    odd = (3**b * 5**c for b in range(20) for c in range(14))
    return min(part << (-(-least // part) - 1).bit_length() for part in odd if part < 2 * least)
