"""Independence Metropolis on a batch of proposals, and the effective size of its draws."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import special

TAILS = 0.05, 0.95
"""Levels of the indicators whose effective size is that of the tails."""


class Chains(NamedTuple):
    """Draws of independent chains.

    Attributes:
        draws: positions, (C, n, d).
        heights: log π of each.
        accepted: whether the proposal of a step was taken.
    """

    draws: Float[np.ndarray, "C n d"]
    heights: Float[np.ndarray, "C n"]
    accepted: Bool[np.ndarray, "C n"]


def metropolis_chains(
    points: Float[np.ndarray, "n d"],
    heights: Float[np.ndarray, " n"],
    log_weights: Float[np.ndarray, " n"],
    starts: tuple[np.ndarray, np.ndarray, np.ndarray],
    rng: np.random.Generator,
) -> Chains:
    r"""Return chains of independence Metropolis over the proposals, divided among them.

    .. math:: \alpha(\theta \to \theta') = \min\bigl(1, w(\theta')/w(\theta)\bigr), \qquad w = \pi/q

    Args:
        points: proposals from q.
        heights: log π.
        log_weights: log w.
        starts: the same three of the places where the chains are before the first proposal.
        rng: random numbers of the server.
    """
    chains = len(starts[0])
    length = len(points) // chains
    index = np.arange(chains * length).reshape(chains, length)
    levels, logs = np.log(rng.random(index.shape)), log_weights[index]
    here, weight = len(points) + np.arange(chains), starts[2]
    places, accepted = np.empty_like(index), np.empty(index.shape, bool)
    for step in range(length):
        taken = levels[:, step] < logs[:, step] - weight
        here = np.where(taken, index[:, step], here)
        weight = np.where(taken, logs[:, step], weight)
        places[:, step], accepted[:, step] = here, taken
    every = np.concatenate([points, starts[0]])
    return Chains(every[places], np.concatenate([heights, starts[1]])[places], accepted)


def smallest_effective_size(draws: Float[np.ndarray, "C n d"]) -> float:
    """Return the smallest effective size over the parameters, of the bulk and of both tails."""
    flat = draws.reshape(-1, draws.shape[2])
    sizes = [_effective_sizes(_scores(flat).reshape(draws.shape))]
    for edge in np.quantile(flat, TAILS, axis=0):
        sizes.append(_effective_sizes((draws <= edge).astype(float)))
    return float(np.min(sizes))


def _scores(flat: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Return normal scores of the ranks; ties share a mean rank."""
    order = np.argsort(flat, axis=0, kind="stable")
    scores = np.empty_like(flat)
    for column, places in enumerate(order.T):
        ordered = flat[places, column]
        begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        sizes = np.diff(np.concatenate([begins, [len(ordered)]]))
        scores[places, column] = np.repeat(begins + (sizes + 1) / 2, sizes)
    return special.ndtri((scores - 0.375) / (len(flat) + 0.25))


def _effective_sizes(values: Float[np.ndarray, "C n d"]) -> Float[np.ndarray, " d"]:
    """Return the effective size of each column over split chains, by Geyer's sequence.

    Source: Vehtari, Gelman, Simpson, Carpenter, Bürkner, "Rank-normalization, folding, and
    localization: an improved R-hat" (2021). It is the statistic of `consortia.summary`, whose
    library takes longer to import than a run of few messages takes.
    """
    half = values.shape[1] // 2
    split = np.concatenate([values[:, :half], values[:, -half:]])
    away = split - split.mean(axis=1, keepdims=True)
    width = 1 << (2 * half - 1).bit_length()
    power = (np.abs(np.fft.rfft(away, width, axis=1)) ** 2).mean(axis=0)
    covariance = np.fft.irfft(power, width, axis=0)[:half] / half
    within = covariance[0] * half / (half - 1)
    pooled = covariance[0] + split.mean(axis=1).var(axis=0, ddof=1)
    correlation = 1 - (within - covariance) / np.where(pooled > 0, pooled, 1)
    correlation[0] = 1
    pairs = correlation[: 2 * (half // 2)].reshape(-1, 2, values.shape[2]).sum(axis=1)
    positive = np.logical_and.accumulate(pairs > 0, axis=0)
    monotone = np.where(positive, np.minimum.accumulate(pairs, axis=0), 0)
    total = len(split) * half
    time = np.maximum(2 * monotone.sum(axis=0) - 1, 1 / math.log10(total))
    return np.where(pooled > 0, total / time, 0)
