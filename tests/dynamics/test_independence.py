"""Noise that sites add to log-densities leaves the law of the chains what it is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from consortia.dynamics.independence import metropolis_chains

CHAINS, DRAWS = 400, 500


@pytest.mark.parametrize("sd", [0.1, 1.0])
def test_chains_with_noisy_densities_have_the_exact_law(sd: float) -> None:
    rng = np.random.default_rng(7)
    proposal = stats.norm(0.5, 1.5)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Points, log π with noise of which the mean of the exponential is one, log π/q."""
        points = proposal.rvs(count, random_state=rng)
        noise = rng.normal(-(sd**2) / 2, sd, count)
        heights = stats.norm.logpdf(points) + noise
        return points[:, None], heights, heights - proposal.logpdf(points)

    points, heights, weights = drawn(CHAINS * DRAWS)
    found = metropolis_chains(points, heights, weights, drawn(CHAINS), rng)
    late = found.draws[:, DRAWS // 4 :, 0]
    of_chains = np.stack([late.mean(axis=1), (late**2).mean(axis=1), (late > 1).mean(axis=1)])
    error = of_chains.std(axis=1, ddof=1) / np.sqrt(CHAINS)
    expected = [0.0, 1.0, stats.norm.sf(1)]
    assert (np.abs(of_chains.mean(axis=1) - expected) < 4 * error).all()
    # The noise does cost: a rejected point is kept for longer.
    assert found.accepted.mean() < 1 - sd / 4
