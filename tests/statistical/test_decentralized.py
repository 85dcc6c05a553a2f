"""Decentralized samplers have the law that their oracle predicts, and not another one."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sparse import sparse

import consortia
from consortia.dynamics.rank_statistics import rhat_and_ess_of
from consortia.theory.agents import GaussianAgents
from consortia.theory.decentralized import decentralized_hmc_law, decentralized_ula_moments

AGENTS, FEATURES = 4, 3


@pytest.fixture(scope="module")
def shards():
    """Linear regression with unit noise at four agents of unlike slopes and curvatures."""
    rng = np.random.default_rng(2)
    result = []
    for agent in range(AGENTS):
        x = rng.normal(size=(30 + 20 * agent, FEATURES)) * rng.uniform(0.5, 2, FEATURES)
        y = x @ rng.normal(size=FEATURES) + rng.normal(size=len(x))
        result.append({"x": x.astype(np.float32), "y": y.astype(np.float32)})
    return result


@pytest.fixture(scope="module")
def sites(shards):
    return consortia.Sites.from_list(shards)


@pytest.fixture(scope="module")
def problem(shards):
    return GaussianAgents.linear_regression(shards)


@pytest.fixture(scope="module")
def model():
    return consortia.models.linear_regression(FEATURES)


CHAINS, ROUNDS = 1500, 40


def ends(model, sites, method):
    """Average and agents after some rounds, of many chains: (chains, d), (chains, agents, d)."""
    tree = consortia.sample(
        model, sites, method, rounds=ROUNDS, thin=ROUNDS, chains=CHAINS, progress=False
    )
    average = np.asarray(tree["posterior"]["coefficients"], np.float64)[:, 0]
    return average, np.asarray(tree["agents"]["coefficients"], np.float64)[:, 0]


def distance(draws, moments):
    """The largest z-score of means and of second moments, over the average and all agents."""
    average, agents = draws
    worst = 0.0
    laws = [(average, moments.mean, moments.covariance)]
    laws += [
        (agents[:, i], moments.agents.means[i], moments.agents.covariances[i])
        for i in range(AGENTS)
    ]
    for values, mean, covariance in laws:
        deviations = values - mean
        scale = np.sqrt(np.diag(covariance))
        worst = max(worst, np.abs(deviations.mean(0) / scale).max() * np.sqrt(CHAINS))
        # Var of a product of centred normals: σ_ii σ_jj + σ_ij².
        products = np.einsum("ci,cj->ij", deviations, deviations) / CHAINS
        error = np.sqrt((np.outer(scale, scale) ** 2 + covariance**2) / CHAINS)
        worst = max(worst, np.abs((products - covariance) / error).max())
    return worst


# 5 laws of 3 means and 6 second moments: 45 numbers, so 4.5 standard errors.
LIMIT = 4.5


@pytest.mark.parametrize(
    ("variant", "mixing"),
    sparse(
        itertools.product(["corrected", "published"], ["ring", "complete"]),
        [("corrected", "ring"), ("published", "complete")],
    ),
)
def test_the_law_after_forty_iterations_is_the_predicted_one(
    model, sites, problem, variant, mixing
):
    # No proposal of the published variant is tested within these iterations.
    options = {"variant": variant, "gossip_rounds": 1 if mixing == "complete" else 2}
    start = {"metropolis_from": ROUNDS} if variant == "published" else {}
    method = consortia.decentralized_hmc(0.04, mixing, draws="agents", **options, **start)
    drawn = ends(model, sites, method)
    law = decentralized_hmc_law(problem, mixing, step_size=0.04, **options)
    print("largest z", distance(drawn, law.after(ROUNDS, 0.0)))
    assert distance(drawn, law.after(ROUNDS, 0.0)) < LIMIT
    # The negative controls: the other drift, and one iteration more.
    other = "published" if variant == "corrected" else "corrected"
    wrong = decentralized_hmc_law(problem, mixing, step_size=0.04, **options | {"variant": other})
    assert distance(drawn, wrong.after(ROUNDS, 0.0)) > 2 * LIMIT


@pytest.mark.parametrize("noise", ["corrected", "published"])
def test_ula_has_the_predicted_law(model, sites, problem, noise):
    method = consortia.decentralized_ula(2e-3, "ring", noise=noise, draws="agents")
    drawn = ends(model, sites, method)
    options = {"step_size": 2e-3, "iterations": ROUNDS, "start": 0.0}
    moments = decentralized_ula_moments(problem, "ring", noise=noise, **options)
    assert distance(drawn, moments) < LIMIT
    other = "published" if noise == "corrected" else "corrected"
    wrong = decentralized_ula_moments(problem, "ring", noise=other, **options)
    assert distance(drawn, wrong) > 2 * LIMIT


# --- long runs -----------------------------------------------------------------------------------


def long_run(model, sites, method, rounds, warmup):
    """Means and sds of the average draw in units of the target's, and agents' sds."""
    tree = consortia.sample(
        model, sites, method, rounds=rounds, warmup=warmup, chains=8, thin=20, progress=False
    )
    average = np.asarray(tree["posterior"]["coefficients"], np.float64).reshape(-1, FEATURES)
    agents = None
    if "agents" in tree.children and "coefficients" in tree["agents"]:
        agents = np.asarray(tree["agents"]["coefficients"], np.float64)
    return average, agents


@pytest.mark.slow
@pytest.mark.parametrize("mixing", ["ring", "complete"])
def test_corrected_is_near_the_posterior_on_unlike_agents(model, sites, problem, mixing):
    # Relaxation takes 2m/(ε²λ_min) iterations.
    weakest = np.linalg.eigvalsh(np.linalg.inv(problem.target_covariance))[0]
    relaxation = int(2 * AGENTS / (0.02**2 * weakest))
    method = consortia.decentralized_hmc(0.02, mixing, draws="agents")
    average, agents = long_run(model, sites, method, 125_000, 5 * relaxation)
    sd = np.sqrt(np.diag(problem.target_covariance))
    assert np.all(np.abs(average.mean(0) - problem.target_mean) < 0.1 * sd)
    ratios = [average.std(0) / sd, *(agents[:, :, i].std((0, 1)) / sd for i in range(AGENTS))]
    print("mean errors in sds", (average.mean(0) - problem.target_mean) / sd)
    print("sd ratios", np.min(ratios), np.max(ratios))
    assert np.all(np.abs(np.array(ratios) - 1) < 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("mixing", ["ring", "complete"])
def test_published_deviations_are_too_small_by_the_root_of_two(model, sites, problem, mixing):
    method = consortia.decentralized_hmc(0.02, mixing, variant="published", metropolis_from=2000)
    average, _ = long_run(model, sites, method, 60_000, 4000)
    ratio = average.std(0) / np.sqrt(np.diag(problem.target_covariance))
    print("sd ratios", ratio)
    assert np.all(np.abs(ratio - 0.7071) < 0.03)


@pytest.mark.slow
def test_exact_has_the_posteriors_mean_and_deviations(model, sites, problem):
    # A quarter turn: sds are about .055. Half a turn would only change the sign of deviations.
    method = consortia.decentralized_exact_hmc(0.03, "ring", leapfrog_steps=3)
    tree = consortia.sample(model, sites, method, rounds=4000, warmup=200, chains=8, progress=False)
    draws = np.asarray(tree["posterior"]["coefficients"], np.float64)
    _, ess, tail = (np.asarray(part) for part in rhat_and_ess_of(np.moveaxis(draws, -1, 0)))
    sd = np.sqrt(np.diag(problem.target_covariance))
    assert np.all(np.abs(draws.mean((0, 1)) - problem.target_mean) < 4 * sd / np.sqrt(ess))
    print("z", (draws.mean((0, 1)) - problem.target_mean) / (sd / np.sqrt(ess)))
    print("sd ratios", draws.std((0, 1)) / sd, "smallest ESS", ess.min(), tail.min())
    # At 10,000 effective draws an sd is known within .7 %.
    assert min(ess.min(), tail.min()) > 10_000
    assert np.all(np.abs(draws.std((0, 1)) / sd - 1) < 0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "expected"), [("published", 0.5), ("corrected", 1.0)])
def test_ulas_deviations_are_those_of_its_temperature(model, sites, problem, noise, expected):
    # The step makes deviations αλ/4 too large, .02 at most, and mixes in 1/(αλ) iterations.
    precision = np.linalg.eigvalsh(np.linalg.inv(problem.target_covariance))
    method = consortia.decentralized_ula(
        0.08 / precision[-1], "complete", decay=(0, 1), noise=noise
    )
    warmup = int(10 * precision[-1] / precision[0] / 0.08)
    average, _ = long_run(model, sites, method, 60_000, warmup)
    ratio = average.std(0) / np.sqrt(np.diag(problem.target_covariance))
    print("sd ratios", ratio)
    assert np.all(np.abs(ratio / expected - 1) < 0.05)


# --- BlackJAX ------------------------------------------------------------------------------------


def blackjax_draws(model, sites, step_size, steps, draws, chains):
    """BlackJAX's HMC on the pooled data, (chains, draws, d)."""
    blackjax = pytest.importorskip("blackjax")
    rows = jax.tree.map(jnp.asarray, sites.pooled())

    def log_density(theta):
        parameters = {"coefficients": theta}
        return jnp.sum(model.log_likelihood(parameters, rows)) + model.log_prior(parameters)

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        kernel = blackjax.hmc(log_density, step_size, jnp.ones(FEATURES), steps)

        def chain(key):
            def step(state, key):
                state, _ = kernel.step(key, state)
                return state, state.position

            start = kernel.init(jnp.zeros(FEATURES))
            return jax.lax.scan(step, start, jax.random.split(key, draws + 200))[1][200:]

        return np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(1), chains)))


def disagreement(one, two):
    """The largest z-score of the means, and the largest departure of a ratio of sds from 1."""

    def ess_of(values):
        return np.asarray(rhat_and_ess_of(np.moveaxis(values, -1, 0))[1])

    ess = [ess_of(values) for values in (one, two)]
    squares = [ess_of((values - values.mean((0, 1))) ** 2) for values in (one, two)]
    assert min(part.min() for part in ess + squares) > 40_000
    error = np.sqrt(one.var((0, 1)) / ess[0] + two.var((0, 1)) / ess[1])
    z = np.abs((one.mean((0, 1)) - two.mean((0, 1))) / error).max()
    ratios = one.std((0, 1)) / two.std((0, 1))
    print("largest z", z, "sd ratios", ratios, "smallest ESS", [part.min() for part in ess])
    return z, np.abs(ratios - 1).max()


@pytest.mark.slow
def test_exact_has_the_law_of_blackjaxs_hmc_on_the_pooled_data():
    # Not Gaussian: a logistic regression on few rows, unlike from agent to agent. Trajectories are
    # a quarter turn of its sds of .2 to .3: after half a turn squares would hardly change.
    rng = np.random.default_rng(5)
    shards = []
    for agent in range(AGENTS):
        x = rng.normal(rng.normal(size=FEATURES), 1, size=(8 + 3 * agent, FEATURES))
        y = rng.uniform(size=len(x)) < 1 / (1 + np.exp(-x @ rng.normal(size=FEATURES)))
        shards.append({"x": x.astype(np.float32), "y": y.astype(np.int32)})
    sites = consortia.Sites.from_list(shards)
    model = consortia.models.logistic_regression(FEATURES, intercept=False)
    method = consortia.decentralized_exact_hmc(0.2, "ring", leapfrog_steps=2)
    size = {"chains": 16, "rounds": 6000}
    tree = consortia.sample(model, sites, method, warmup=200, progress=False, **size)
    ours = np.asarray(tree["posterior"]["coefficients"], np.float64)
    theirs = blackjax_draws(model, sites, 0.2, 2, 6000, 16).astype(np.float64)
    z, apart = disagreement(ours, theirs)
    assert z < 4
    # At 40,000 effective draws each a ratio of sds is known within .5 %.
    assert apart < 0.02
    # The negative control: the prior counted once more, a tenth of the curvature.
    without = consortia.sample(
        consortia.models.logistic_regression(FEATURES, intercept=False, prior_scale=0.7), sites,
        method, warmup=200, progress=False, **size,
    )  # fmt: skip
    wrong = np.asarray(without["posterior"]["coefficients"], np.float64)
    z, apart = disagreement(wrong, theirs)
    assert z > 8
    assert apart > 0.03
