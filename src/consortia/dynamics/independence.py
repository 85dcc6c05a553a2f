"""Independence Metropolis on a batch of proposals, and the effective size of its draws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float


class Chains(NamedTuple):
    """Draws of independent chains."""

    draws: Float[np.ndarray, "C n d"]  # positions, (C, n, d)
    heights: Float[np.ndarray, "C n"]  # log π of each
    accepted: Bool[np.ndarray, "C n"]  # whether the proposal of a step was taken


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
    places, accepted = np.empty_like(index), np.empty(index.shape, bool)
    for chain, weight in enumerate(starts[2].tolist()):  # numbers of Python: each step is short
        here, steps = len(points) + chain, list[int]()
        proposed = (values[chain].tolist() for values in (index, levels, logs))
        for proposal, level, log_weight in zip(*proposed, strict=True):
            if level < log_weight - weight:
                here, weight = proposal, log_weight
            steps.append(here)
        places[chain] = steps
        accepted[chain] = places[chain] == index[chain]
    every = np.concatenate([points, starts[0]])
    return Chains(every[places], np.concatenate([heights, starts[1]])[places], accepted)


def smallest_effective_size(draws: Float[np.ndarray, "C n d"]) -> float:
    """Return the smallest effective size over the parameters, of the bulk and of both tails."""
    from consortia.dynamics.rank_statistics import bulk_and_tail_ess_of  # its room loads much

    bulk, tail = bulk_and_tail_ess_of(np.ascontiguousarray(draws.transpose(2, 0, 1)))
    return float(min(bulk.min(), tail.min()))
