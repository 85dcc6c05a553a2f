"""Federated HMC with a surrogate has the law of NUTS, and many effective draws a message."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

import consortia
from consortia import reference
from consortia.algorithms.federated_hmc import federated_hmc
from consortia.algorithms.federated_hmc_surrogate_fit import NEWTON_STEPS
from consortia.diagnostics.rank_statistics import rhat_and_ess_of

pytest.importorskip("blackjax")

CHAINS, ALL_ROUNDS, WARMUP = 4, 300, 100


@pytest.fixture(scope="module")
def sites():
    """Breast cancer: 569 rows of 30 standardised features and a one, at five unlike sites."""
    x, y = load_breast_cancer(return_X_y=True)
    x = np.column_stack([(x - x.mean(0)) / x.std(0), np.ones(len(x))]).astype(np.float32)
    order = np.argsort(x[:, 0] + np.random.default_rng(0).normal(size=len(x)))
    parts = np.split(order, [40, 120, 250, 400])
    return consortia.Sites.from_list([{"x": x[p], "y": y[p].astype(np.int32)} for p in parts])


@pytest.fixture(scope="module")
def model():
    return consortia.models.logistic_regression(31, intercept=False, prior_scale=1.0)


def draws(tree):
    return np.asarray(tree["posterior"]["coefficients"], np.float64)


def bulk_ess(values):
    return np.asarray(rhat_and_ess_of(np.moveaxis(values, -1, 0))[1])


@pytest.fixture(scope="module")
def nuts(model, sites):
    return draws(reference.nuts(model, sites, draws=1500, warmup=500, chains=CHAINS))


@pytest.fixture(scope="module")
def many(model, sites):
    """64 proposals a round; the fit, the start and the warm-up count as rounds too."""
    method = federated_hmc(force="surrogate", proposals_per_round=64)
    rounds = ALL_ROUNDS - NEWTON_STEPS - 2 - WARMUP
    return consortia.sample(
        model, sites, method, rounds=rounds, warmup=WARMUP, chains=CHAINS, progress=False
    )


def assert_same_law(one, two):
    """Means within 4 standard errors and sds within 4 of theirs, from the bulk ESS of both."""
    ess = bulk_ess(one), bulk_ess(two)
    error = np.sqrt(one.var((0, 1)) / ess[0] + two.var((0, 1)) / ess[1])
    assert np.all(np.abs(one.mean((0, 1)) - two.mean((0, 1))) < 4 * error)
    spread = np.sqrt(1 / (2 * ess[0]) + 1 / (2 * ess[1]))
    assert np.all(np.abs(np.log(one.std((0, 1)) / two.std((0, 1)))) < 4.5 * spread)


def test_many_proposals_a_round_have_the_law_of_nuts(many, nuts):
    assert_same_law(draws(many), nuts)


def test_a_communication_round_gives_at_least_five_effective_draws_a_chain(many):
    # 300 rounds in all, four chains.
    assert bulk_ess(draws(many)).min() / (ALL_ROUNDS * CHAINS) >= 5
    assert float(many["sample_stats"]["acceptance_rate"].mean()) > 0.3


def test_one_proposal_a_round_has_that_law_too_and_beats_the_exact_force(model, sites, nuts):
    method = federated_hmc(force="surrogate", turn=0.9)
    one = consortia.sample(
        model, sites, method, rounds=6000, warmup=1500, chains=CHAINS, progress=False
    )
    assert_same_law(draws(one), nuts)
    exact = consortia.sample(
        model, sites, federated_hmc(), rounds=1000, warmup=400, chains=CHAINS, progress=False
    )
    # Rounds after the warm-up; chains share them.
    rounds = float(exact["sample_stats"]["n_steps"].max("chain").sum())
    ours = bulk_ess(draws(one)).min() / 6000
    theirs = bulk_ess(draws(exact)).min() / rounds
    assert ours >= 1.5 * theirs


def test_without_the_metropolis_test_the_law_is_another(model, sites, nuts, many):
    # What the surrogate proposes, as if all of it were accepted: the control for the gate above.
    method = federated_hmc(force="surrogate", proposals_per_round=64)
    run = consortia.LocalEngine().prepare(
        consortia.target.Target(model, jax.tree.map(np.asarray, model.init)), sites, method, 1
    )
    carry = run.start(0, np.zeros((1, 31), np.float32))
    rng = np.random.default_rng(0)
    proposals = (
        np.asarray(carry.hub["mean"])
        + rng.normal(size=(4, 2000, 31)) @ np.asarray(carry.hub["root"]).T
    )
    with pytest.raises(AssertionError):
        assert_same_law(proposals, nuts)
    assert math.isclose(method.turn, math.pi / 2)
