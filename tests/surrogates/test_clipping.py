"""Proposals between an envelope and a surrogate, whatever the surrogate is far out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special

from consortia.surrogates.proposals import mixture
from consortia.surrogates.proposals.proposal import Proposal, clipped, effective_share
from consortia.surrogates.proposals.warp import Plain

D, AWAY = 6, 5.0


class Surrogate:
    """The target, but far out to one side, where it is absurdly high."""

    def __init__(self, height: float) -> None:
        self.height = height

    def log_density(self, points: np.ndarray) -> np.ndarray:
        return normal(points) + np.where(points[:, 0] > AWAY, self.height, 0.0)


def normal(points: np.ndarray) -> np.ndarray:
    return -(points**2).sum(axis=1) / 2 - D / 2 * np.log(2 * np.pi)


def proposal(height: float, missed: int = 0, scale: float = 2.0) -> Proposal:
    envelope = mixture.mixture_of([1.0], [np.zeros(D)], [scale * np.eye(D)])
    surrogate: Any = Surrogate(height)
    return clipped(surrogate, envelope, Plain(), np.random.default_rng(1), missed=missed)


def share(made: Proposal) -> float:
    """The effective share of the target's weights at draws of the proposal."""
    words = np.array([1, 2, 3], np.uint32)
    points, density, _ = made.sample(words, np.random.default_rng(2), 4000)
    assert len(points) == 4000
    return effective_share(normal(points) - density)


@pytest.mark.parametrize("height", [0.0, 10.0, 100.0, 1e6])
def test_a_surrogate_that_is_absurd_far_out_is_followed_all_the_same(height: float) -> None:
    # Of the envelope's points 3 in 1,000 lie beyond 5, where q is at most 12.5 times its mean: they
    # waste 4 % of the proposals, and the lower bound 5 %. The envelope alone has a share of .4.
    assert share(proposal(height)) > 0.8
    assert 0.2 < share(proposal(height)._replace(surrogate=None, log_mass=0.0)) < 0.6


@pytest.mark.parametrize("missed", [0, 6])
def test_the_density_is_normalised(missed: int) -> None:
    made = proposal(100.0, missed)
    points = mixture.draw(made.envelope, np.random.default_rng(3), 50_000)
    ratio = made.log_density(points) - mixture.log_density(made.envelope, points)
    # A mean of 50,000 ratios, beside one of the 12,000 that normalise it.
    assert abs(special.logsumexp(ratio) - np.log(len(points))) < 4 * 1.2 * made.mass_error


def test_with_each_tail_left_out_the_proposal_comes_nearer_to_the_envelope() -> None:
    lowest = []
    for missed in range(4):
        made = proposal(0.0, missed)
        lowest.append(made.floor - made.log_mass)
    # log q/e is at least log of 1/20, 4/20, 16/20 and 1, less what the bounds add to the mass.
    np.testing.assert_allclose(lowest, np.log([1 / 20, 1 / 5, 4 / 5, 1.0]), atol=0.45)
    assert np.all(np.diff(lowest) > 0)
