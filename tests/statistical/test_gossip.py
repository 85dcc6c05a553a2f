"""Gossip samplers against their exact law: means and covariances of thousands of runs.

A run is a chain. Every mean and covariance (of all agents, and of their average) must lie within
four standard errors of the law; of the some hundred numbers of a case one does by chance in about
one seed of two hundred. Seeds are fixed.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia import graphs
from consortia.algorithms.gossip import de_sghmc, de_sgld
from consortia.theory.agents import GaussianAgents
from consortia.theory.gossip import de_sghmc_law, de_sgld_law

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:the network falls into"),
]

CORRECTED = {"correction": "extra", "noise": "common", "averaged_noise": True}
RUNS, STEP, FRICTION, ITERATIONS = 4000, 0.02, 3.0, 30
WIDTH = 4.0


def problem(agents, rows, seed, *, unlike=0.0):
    """Sites, the model and the agents of the oracle, for one linear regression."""
    rng = np.random.default_rng(seed)
    shards = []
    for i in range(agents):
        x = rng.normal(size=(rows, 2))
        y = x @ [1.0 + unlike * i, -1.0] + rng.normal(size=rows)
        shards.append({"x": x.astype(np.float32), "y": y.astype(np.float32)})
    model = consortia.models.linear_regression(2, prior_scale=2.0)
    law = GaussianAgents.linear_regression(shards, prior_variance=4.0)
    return consortia.Sites.from_list(shards), model, law


SITES, MODEL, AGENTS = problem(6, 12, 0, unlike=0.3)
START = np.array([0.5, 0.5])


def positions(method, iterations=ITERATIONS, runs=RUNS, sites=SITES, model=MODEL, start=START):
    """Positions of all agents after some iterations, (runs, agents, d)."""
    tree = consortia.sample(
        model,
        sites,
        method,
        rounds=1,
        warmup=iterations - 1,
        chains=runs,
        seed=11,
        init={"coefficients": jnp.asarray(start, jnp.float32)},
        progress=False,
    )
    return np.asarray(tree["agents"]["coefficients"], np.float64)[:, 0]


def worst(found, moments):
    """The largest distance from the law in standard errors, over all means and covariances."""
    runs, agents, d = found.shape
    flat = found.reshape(runs, agents * d)
    average = found.mean(axis=1)
    scores = []
    pairs = (
        (flat, moments.agents.means.ravel(), moments.agents.covariance),
        (average, moments.mean, moments.covariance),
    )
    for values, mean, covariance in pairs:
        centred = values - mean
        scores.append(centred.mean(axis=0) / (values.std(axis=0) / math.sqrt(runs)))
        products = centred[:, :, None] * centred[:, None, :]
        errors = products.std(axis=0) / math.sqrt(runs)
        scores.append((products.mean(axis=0) - covariance) / errors)
    return max(float(np.abs(score).max()) for score in scores)


@pytest.mark.parametrize("network", ["complete", "ring", "identity"])
def test_de_sgld_has_its_exact_law(network):
    found = positions(de_sgld(STEP, network, draws="agents"))
    law = de_sgld_law(AGENTS, network, step_size=STEP)
    assert worst(found, law.after(ITERATIONS, START)) < WIDTH
    # Negative controls: 15 % more noise, other neighbours, the same noise for all, a later start.
    for wrong in (
        de_sgld_law(AGENTS, network, step_size=STEP, temperature=1.15),
        de_sgld_law(AGENTS, "star", step_size=STEP),
        de_sgld_law(AGENTS, network, step_size=STEP, noise="common"),
    ):
        assert worst(found, wrong.after(ITERATIONS, START)) > WIDTH
    assert worst(found, law.after(3, START)) > WIDTH


@pytest.mark.parametrize("network", ["complete", "ring", "identity"])
def test_de_sghmc_has_its_exact_law(network):
    found = positions(de_sghmc(0.1, FRICTION, network, draws="agents"))
    law = de_sghmc_law(AGENTS, network, step_size=0.1, friction=FRICTION)
    assert worst(found, law.after(ITERATIONS, START)) < WIDTH
    for wrong in (
        de_sghmc_law(AGENTS, network, step_size=0.1, friction=FRICTION, temperature=1.15),
        de_sghmc_law(AGENTS, "star", step_size=0.1, friction=FRICTION),
    ):
        assert worst(found, wrong.after(ITERATIONS, START)) > WIDTH
    assert worst(found, law.after(3, START)) > WIDTH


@pytest.mark.parametrize(
    "options",
    [{"correction": "extra"}, {"noise": "common"}, {"averaged_noise": True}, CORRECTED],
    ids=lambda options: "+".join(options),
)
def test_every_variant_of_de_sgld_has_its_exact_law(options):
    found = positions(de_sgld(STEP, "ring", draws="agents", **options))
    law = de_sgld_law(AGENTS, "ring", step_size=STEP, **options)
    assert worst(found, law.after(ITERATIONS, START)) < WIDTH
    plain = de_sgld_law(AGENTS, "ring", step_size=STEP)
    assert worst(found, plain.after(ITERATIONS, START)) > WIDTH


def test_the_corrected_de_sghmc_has_its_exact_law():
    options = {"correction": "extra", "noise": "common"}
    found = positions(de_sghmc(0.1, FRICTION, "ring", draws="agents", **options))
    law = de_sghmc_law(AGENTS, "ring", step_size=0.1, friction=FRICTION, **options)
    assert worst(found, law.after(ITERATIONS, START)) < WIDTH


@pytest.mark.parametrize(
    "options",
    [{}, {"replace": False}, {"control_variate": (1.0, -1.0)}],
    ids=lambda options: "+".join(options) or "plain",
)
def test_minibatches_have_their_exact_moments(options):
    found = positions(de_sgld(STEP, "ring", batch_size=4, draws="agents", **options))
    law = de_sgld_law(AGENTS, "ring", step_size=STEP, batch_size=4, **options)
    assert worst(found, law.after(ITERATIONS, START)) < WIDTH
    exact = de_sgld_law(AGENTS, "ring", step_size=STEP)
    assert worst(found, exact.after(ITERATIONS, START)) > WIDTH


def simulated(*, sequential):
    """DE-SGLD in numpy on the ring; ``sequential`` agents hear new positions of earlier ones."""
    rng = np.random.default_rng(5)
    matrix = np.asarray(graphs.resolve("ring", 6))
    x = np.broadcast_to(START, (RUNS, 6, 2)).copy()
    for _ in range(ITERATIONS):
        old, new = x, x.copy()
        for i in range(6):
            heard = np.einsum("j,rjd->rd", matrix[i], new if sequential else old)
            force = old[:, i] @ AGENTS.curvatures[i] - AGENTS.pulls[i]
            noise = rng.normal(size=(RUNS, 2))
            new[:, i] = heard - STEP * force + math.sqrt(2 * STEP) * noise
        x = new
    return x


def test_agents_that_hear_new_positions_fail_the_gate():
    moments = de_sgld_law(AGENTS, "ring", step_size=STEP).after(ITERATIONS, START)
    assert worst(simulated(sequential=False), moments) < WIDTH
    assert worst(simulated(sequential=True), moments) > 2 * WIDTH


# --- the published experiment --------------------------------------------------------------------


@pytest.fixture(scope="module")
def published():
    """100 agents with 5,000 rows, prior variance 10: sites, model, agents of the oracle."""
    rng = np.random.default_rng(0)
    coefficients = rng.normal(size=2) * math.sqrt(10)
    x = rng.normal(size=(5000, 2))
    y = x @ coefficients + rng.normal(size=5000)
    parts = np.array_split(rng.permutation(5000), 100)
    shards = [{"x": x[p].astype(np.float32), "y": y[p].astype(np.float32)} for p in parts]
    model = consortia.models.linear_regression(2, prior_scale=math.sqrt(10))
    law = GaussianAgents.linear_regression(shards, prior_variance=10.0)
    return consortia.Sites.from_list(shards), model, law


@pytest.mark.parametrize("network", ["complete", "ring", "identity"])
@pytest.mark.parametrize("friction", [None, 7.0])
def test_the_published_experiment_has_its_exact_law(published, network, friction):
    # 2,000 runs; 200 means and 20,100 covariances of agents: 4 standard errors are passed by one
    # or two of them by chance, 5.5 by one in a thousand seeds. The average keeps the width of 4.
    sites, model, agents = published
    if friction is None:
        method = de_sgld(0.009, network, draws="agents")
        law = de_sgld_law(agents, network, step_size=0.009)
    else:
        method = de_sghmc(0.1, friction, network, draws="agents")
        law = de_sghmc_law(agents, network, step_size=0.1, friction=friction)
    found = positions(method, 60, 2000, sites, model, np.zeros(2))
    moments = law.after(60, 0.0)
    assert worst(found, moments) < 5.5
    average = found.mean(axis=1)
    mean_error = np.sqrt(np.diag(moments.covariance) / 2000)
    assert np.all(np.abs(average.mean(axis=0) - moments.mean) < WIDTH * mean_error)
    variance = np.diag(moments.covariance)
    error = variance * math.sqrt(2 / 2000)
    assert np.all(np.abs(average.var(axis=0) - variance) < WIDTH * error)
    wider = law.after(60, 0.0).agents.covariances * 1.1
    own = np.stack([np.cov(found[:, i].T) for i in range(100)])
    assert abs(np.trace((own - wider).mean(axis=0))) > 4 * np.trace(wider.mean(axis=0)) / 450


def test_the_corrected_method_brings_every_agent_to_the_posterior(published):
    # 2,000 runs of 128 iterations on the complete network, where the law has settled. The agents'
    # variances are 1.017 times the posterior's on average; uncorrected they are 116 times. The
    # agents move together, so that their average has the error of one of them, 3.2 %.
    sites, model, agents = published
    method = de_sgld(0.009, "complete", draws="agents", **CORRECTED)
    found = positions(method, 128, 2000, sites, model, np.zeros(2))
    moments = de_sgld_law(agents, "complete", step_size=0.009, **CORRECTED).after(128, 0.0)
    assert moments.agents.w2.mean() <= 0.003
    assert worst(found, moments) < 5.5
    ratios = found.var(axis=0) / np.diag(agents.target_covariance)
    assert ratios.mean() == pytest.approx(1.017, abs=4 * 0.032)


def test_an_anchored_minibatch_brings_every_agent_to_the_posterior(published):
    sites, model, agents = published
    options = {"batch_size": 25, "control_variate": agents.target_mean, **CORRECTED}
    found = positions(
        de_sgld(0.009, "complete", draws="agents", **options), 64, 2000, sites, model, np.zeros(2)
    )
    moments = de_sgld_law(agents, "complete", step_size=0.009, **options).after(64, 0.0)
    assert worst(found, moments) < 5.5
    # W₂ of the average .0001 and not .0018, which would be 19 % more variance: 6 standard errors.
    average = np.trace(np.cov(found.mean(axis=1).T)) / np.trace(agents.target_covariance)
    assert average == pytest.approx(1.0, abs=4 * math.sqrt(1 / 2000))
