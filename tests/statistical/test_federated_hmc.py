"""Federated HMC on ten unlike sites samples what NUTS samples on the pooled data."""

from __future__ import annotations

import numpy as np
import pytest
from needs import needs

import consortia
from consortia.diagnostics import reference
from consortia.dynamics.rank_statistics import rhat_and_ess_of

needs("blackjax")

pytestmark = pytest.mark.slow

FEATURES = 4


@pytest.fixture(scope="module")
def sites():
    rng = np.random.default_rng(11)
    root = np.linalg.cholesky(0.6 * np.ones((FEATURES, FEATURES)) + 0.4 * np.eye(FEATURES))
    shards = []
    for site in range(10):
        x = rng.normal(size=(10 + 6 * site, FEATURES)) @ root.T * [1, 0.2, 3, 1]
        x += rng.normal(size=FEATURES)
        y = (rng.uniform(size=len(x)) < 1 / (1 + np.exp(-x @ rng.normal(size=FEATURES)))) * 1
        shards.append({"x": x.astype(np.float32), "y": y.astype(np.int32)})
    return consortia.Sites.from_list(shards)


@pytest.fixture(scope="module")
def model():
    return consortia.models.logistic_regression(FEATURES, intercept=False)


def draws(tree):
    return np.asarray(tree["posterior"]["coefficients"], np.float64)


def ess(values):
    """Bulk and tail ESS, (d,) each."""
    _, bulk, tail = rhat_and_ess_of(np.moveaxis(values, -1, 0))
    return np.asarray(bulk), np.asarray(tail)


def z_scores(one, two):
    """Differences of means in standard errors, from both bulk ESS."""
    error = np.sqrt(sum(x.var((0, 1)) / ess(x)[0] for x in (one, two)))
    return (one.mean((0, 1)) - two.mean((0, 1))) / error


def sd_ratios(one, two):
    return one.std((0, 1)) / two.std((0, 1))


def gradients_of(tree):
    return float(tree["sample_stats"]["n_steps"].sum())


@pytest.fixture(scope="module")
def nuts(model, sites):
    return reference.nuts(model, sites, draws=1500, warmup=500, chains=4)


@pytest.fixture(scope="module")
def federated(model, sites):
    return consortia.sample(
        model, sites, consortia.federated_hmc(), rounds=1500, warmup=500, chains=4, progress=False
    )


def test_means_and_spreads_are_those_of_nuts(federated, nuts):
    one, two = draws(federated), draws(nuts)
    assert min(ess(one)[0].min(), ess(two)[0].min()) > 2000
    assert np.all(np.abs(z_scores(one, two)) < 4)
    # With 2,000 effective draws each a ratio of sds has a standard error of at most .023.
    assert np.all(np.abs(sd_ratios(one, two) - 1) < 4 * 0.023)


def test_an_approximate_method_fails_that_gate(model, sites, nuts):
    method = consortia.fa_hmc(0.15, leapfrog_steps=3, local_steps=5)
    tree = consortia.sample(model, sites, method, rounds=1500, warmup=200, chains=4, progress=False)
    one, two = draws(tree), draws(nuts)
    off = np.abs(z_scores(one, two)).max() > 4 or np.abs(sd_ratios(one, two) - 1).max() > 0.1
    assert off


def test_it_needs_at_most_twice_the_gradients_of_nuts(federated, nuts):
    ours = ess(draws(federated))[0].min() / gradients_of(federated)
    theirs = ess(draws(nuts))[0].min() / gradients_of(nuts)
    print("bulk ESS a gradient, ours and that of NUTS", ours, theirs)
    assert ours > 0.5 * theirs


def test_with_ten_thousand_effective_draws_spreads_agree_within_three_per_cent(model, sites):
    tree = consortia.sample(
        model, sites, consortia.federated_hmc(), rounds=12_000, warmup=500, chains=4, progress=False
    )
    one = draws(tree)
    two = draws(reference.nuts(model, sites, draws=12_000, warmup=1000, chains=4, seed=1))
    ratios = sd_ratios(one, two)
    print("largest z", np.abs(z_scores(one, two)).max(), "sd ratios", ratios.min(), ratios.max())
    for values in (one, two):
        bulk, tail = ess(values)
        print("smallest ESS", bulk.min(), tail.min())
        assert min(bulk.min(), tail.min()) >= 10_000
    assert np.all(np.abs(z_scores(one, two)) < 4)
    assert np.all(np.abs(sd_ratios(one, two) - 1) < 0.03)
