"""The exact laws of decentralized MA-HMC and ULA."""

from __future__ import annotations

import numpy as np
import pytest

from consortia.theory.agents import GaussianAgents
from consortia.theory.decentralized import decentralized_hmc_law, decentralized_ula_moments
from tests.refusals import refused


def unlike_agents(count=4, dimension=2, seed=0):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(count, dimension, dimension + 1))
    curvatures = roots @ np.swapaxes(roots, 1, 2) * rng.uniform(1, 9, (count, 1, 1))
    return GaussianAgents(curvatures, means=3 * rng.normal(size=(count, dimension)))


def sd_ratios(moments):
    return moments.sd_ratio


@pytest.mark.parametrize("agents", [1, 2, 5])
@pytest.mark.parametrize(
    ("variant", "factor"),
    [("corrected", lambda e: 1 / (1 - e / 4)), ("published", lambda e: 1 / (2 - e))],
)
def test_like_agents_on_a_complete_network_have_the_variance_in_closed_form(
    agents, variant, factor
):
    curvature, epsilon = 7.0, 0.3
    problem = GaussianAgents(np.full(agents, curvature), means=np.arange(agents) * 1.0)
    law = decentralized_hmc_law(problem, "complete", step_size=epsilon, variant=variant)
    # ε²λ/m with λ = m · 7 the curvature of U.
    expected = factor(epsilon**2 * curvature) / (agents * curvature)
    assert law.stationary.covariance.item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("network", ["complete", "ring", "path", "star"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_corrected_means_are_exact_at_every_agent_however_unlike_they_are(network, rounds):
    problem = unlike_agents(6)
    law = decentralized_hmc_law(problem, network, step_size=0.05, gossip_rounds=rounds)
    assert law.stable
    np.testing.assert_allclose(
        law.stationary.agents.means, np.tile(problem.target_mean, (6, 1)), rtol=0, atol=1e-9
    )


def test_published_deviations_are_too_small_by_the_root_of_two_and_corrected_ones_are_not():
    problem = unlike_agents()
    for network in ("complete", "ring"):
        published = decentralized_hmc_law(problem, network, step_size=0.02, variant="published")
        corrected = decentralized_hmc_law(problem, network, step_size=0.02)
        np.testing.assert_allclose(sd_ratios(published.stationary), 0.7071, rtol=0.01)
        np.testing.assert_allclose(sd_ratios(corrected.stationary), 1.0, rtol=0.01)


@pytest.mark.parametrize("variant", ["corrected", "published"])
def test_the_law_is_that_of_the_algorithm_written_out_agent_by_agent(variant):
    problem, epsilon = unlike_agents(3), 0.07
    rng = np.random.default_rng(4)
    W = 0.2 * np.eye(3) + 0.5 * np.eye(3)[[1, 2, 0]] + 0.3 * np.eye(3)[[2, 0, 1]]  # not symmetric
    iterations, d = 6, 2

    def run(noise, start):
        """Positions after some iterations with these p (iterations, agents, d)."""
        x, g, before = np.tile(start, (3, 1)), np.zeros((3, d)), np.zeros((3, d))
        for p in noise:
            c = np.stack([
                problem.curvatures[i] @ x[i] - problem.pulls[i] for i in range(3)
            ])  # fmt: skip
            g = W @ (W @ (g + c - before))
            before = c
            drift = epsilon if variant == "published" else epsilon / 2
            x = W @ (x - epsilon * (p + drift * g))
        return x.ravel()

    start = rng.normal(size=d)
    law = decentralized_hmc_law(problem, W, step_size=epsilon, variant=variant, gossip_rounds=2)
    moments = law.after(iterations, start)
    still = np.zeros((iterations, 3, d))
    mean = run(still, start)
    np.testing.assert_allclose(moments.agents.means.ravel(), mean, rtol=1e-9)
    # The positions are linear in the noise: one run for each number of it.
    response = []
    for unit in np.eye(still.size):
        response.append(run(unit.reshape(still.shape), start) - mean)
    response = np.stack(response, axis=1)
    np.testing.assert_allclose(
        moments.agents.covariance, response @ response.T, rtol=1e-9, atol=1e-14
    )


def test_a_step_beyond_the_limit_is_unstable_and_one_below_is_not():
    curvature = 5.0
    problem = GaussianAgents(np.full(4, curvature), means=np.zeros(4))
    limit = np.sqrt(4 * 4 / (4 * curvature))  # √(4m/λ_max)
    assert decentralized_hmc_law(problem, "complete", step_size=0.99 * limit).stable
    assert not decentralized_hmc_law(problem, "complete", step_size=1.01 * limit).stable


def test_an_unknown_variant_is_refused():
    with refused(argument="variant", match="'exact'"):
        decentralized_hmc_law(unlike_agents(), "ring", step_size=0.1, variant="exact")


# --- ULA -----------------------------------------------------------------------------------------


def settled(problem, network, step_size, iterations=4000, **options):
    return decentralized_ula_moments(
        problem, network, step_size=step_size, iterations=iterations, start=0.0, decay=(0.0, 1.0),
        **options,
    )  # fmt: skip


def test_ula_as_published_is_too_narrow_by_the_root_of_the_number_of_agents():
    problem = GaussianAgents(np.full(4, 5.0), means=np.zeros(4))
    wide = settled(problem, "ring", 1e-3)
    narrow = settled(problem, "ring", 1e-3, noise="published")
    np.testing.assert_allclose(sd_ratios(wide), 1.0, rtol=0.01)
    np.testing.assert_allclose(sd_ratios(narrow), 0.5, rtol=0.01)


def test_ula_on_unlike_agents_has_a_bias_of_the_mean_that_falls_with_the_step():
    problem = unlike_agents()

    def bias(step_size):
        moments = settled(problem, "ring", step_size, iterations=int(4 / step_size))
        return np.abs(moments.mean - problem.target_mean).max()

    first, second = bias(4e-4), bias(2e-4)
    assert first > 1e-3
    assert first / second == pytest.approx(2.0, rel=0.2)


def test_agents_of_a_complete_network_of_five_part_at_the_published_consensus_step():
    problem = GaussianAgents(np.ones(5), means=np.arange(5.0))
    apart = settled(problem, "complete", 1e-4, iterations=300)
    together = settled(problem, "complete", 1e-4, iterations=300, consensus=(0.3, 0.01, 230.0))
    assert apart.agents.disagreement > 1e3 * together.agents.disagreement
