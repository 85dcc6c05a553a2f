"""The forecast of FSGLD's law takes the surrogates that the sites fitted, or gives no number."""

from __future__ import annotations

import json
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from statistical.unlike import posterior

import consortia
from benchmarks.choices import regression
from consortia.oracles import travelling_law
from consortia.surrogates import Gaussian, Recipe
from consortia.theory import tuning
from consortia.theory.bias import Problem, law_of, predict_bias

SHARDS, ROWS, STEP = 4, 50, 1e-3
MODEL = consortia.Model(
    log_prior=lambda theta: -0.5 * jnp.sum(theta**2),
    log_likelihood=lambda theta, rows: -0.5 * jnp.sum((rows["x"] - theta[None]) ** 2, axis=1),
    init=np.zeros(2, np.float32),
)


def sites() -> consortia.Sites:
    rng = np.random.default_rng(0)
    centres = rng.uniform(-3, 3, (SHARDS, 1, 2))
    rows = centres + rng.normal(size=(SHARDS, ROWS, 2))
    return consortia.Sites.from_list([{"x": x.astype(np.float32)} for x in rows])


def method(**options: object) -> consortia.fsgld:
    return consortia.fsgld(STEP, 5, 10, replace=False, examination="warn", **options)


def test_before_the_sites_have_fitted_their_surrogates_there_is_no_number():
    found = predict_bias(MODEL, sites(), method(surrogate="sgld_moments"))
    assert found.sd_ratio is None
    assert "surrogates that the sites fit" in found.reason


def test_where_all_is_gaussian_an_anchored_surrogate_is_the_likelihood_and_has_its_law():
    found = predict_bias(MODEL, sites(), method(surrogate="anchored"))
    exact = [Gaussian(x["x"].mean(axis=0), 1 / ROWS) for x in sites()]
    np.testing.assert_allclose(
        found.sd_ratio, predict_bias(MODEL, sites(), method(surrogate=exact)).sd_ratio, rtol=1e-4
    )


def test_corrections_have_the_law_of_the_surrogates_that_they_come_from():
    rng = np.random.default_rng(1)
    centre, own = rng.normal(size=(3, 2)), np.full(3, 20.0)
    precisions = np.stack([np.diag([18.0, 25.0]), np.diag([22.0, 15.0]), 20 * np.eye(2)])
    means = centre + 0.01 * rng.normal(size=(3, 2))
    options = {"step_size": 1e-3, "local_steps": 5, "prior_precision": 1.0, "strength": 1.0}
    given = [Gaussian.from_precision(m, p) for m, p in zip(means, precisions, strict=True)]
    pulls = np.einsum("sij,sj->si", precisions, means)
    corrections = pulls - pulls.sum(0) / 3, precisions - precisions.sum(0) / 3
    one, two = (
        travelling_law(centre, own, **options, **what).stationary
        for what in ({"surrogates": given}, {"corrections": corrections})
    )
    np.testing.assert_allclose(one.mean, two.mean)
    np.testing.assert_allclose(one.covariance, two.covariance)


@pytest.mark.predicted
@pytest.mark.parametrize("seed", [0, 1])
def test_the_forecast_from_fitted_moments_is_the_spread_that_is_measured(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = consortia.sample(
            MODEL,
            sites(),
            method(surrogate=Recipe("sgld_moments", warmup=300)),
            rounds=3000,
            warmup=100,
            chains=4,
            seed=seed,
            progress=False,
        )
    found = json.loads(tree.attrs["prediction"])
    assert found["reason"] is None
    total = SHARDS * ROWS + 1
    drawn = np.asarray(tree["posterior"]["theta"]).reshape(-1, 2).std(axis=0) * np.sqrt(total)
    np.testing.assert_allclose(found["sd_ratio"], drawn, rtol=0.2)
    ideal = predict_bias(MODEL, sites(), method(surrogate="anchored")).sd_ratio
    assert np.max(drawn) > 1.5 * np.max(ideal)  # ideal surrogates would have been a wrong forecast


@pytest.mark.predicted
def test_settings_are_chosen_by_the_surrogates_that_will_be_fitted_where_they_are():
    """Expansions at a start away from the mode are worse than at the mode, which permits longer
    steps; after the fit the forecast is the one of the choice."""
    model, rows = posterior("logistic")
    method, options = consortia.fsgld(local_steps=4), {"rounds": 10**6, "chains": 2}
    far, mode = Problem(model, rows), Problem(model, rows).near.mode
    near = Problem(model, rows, jnp.asarray(mode, jnp.float32))
    far, near = (
        tuning.choose_step(problem, method, tuning.BiasTarget(), **options)
        for problem in (far, near)
    )
    assert "surrogates follow likelihoods" in far.margin
    assert near.step_size > 1.3 * far.step_size
    tree = consortia.sample(model, rows, far.method, rounds=20, warmup=5, chains=2, progress=False)
    after = tree.attrs["prediction"]
    after = json.loads(after) if isinstance(after, str) else after
    np.testing.assert_allclose(after["sd_ratio"], far.prediction.sd_ratio, rtol=2e-3)
    np.testing.assert_allclose(after["shift"], far.prediction.shift, atol=5e-3)


@pytest.mark.predicted
def test_in_many_parameters_chains_without_settings_start_where_surrogates_are_right():
    """The first one at the mode, so that the forecast after the fit is that of the choice."""
    model, rows = regression("logistic", 16, 5, 11, 0.2)
    problem, target = Problem(model, rows, from_mode=True), tuning.BiasTarget()
    choice = tuning.choose_step(problem, consortia.fsgld(), target, rounds=10**6, chains=2)
    tree = consortia.sample(model, rows, consortia.fsgld(), rounds=200, chains=2, progress=False)
    after = json.loads(tree.attrs["prediction"])
    np.testing.assert_allclose(after["sd_ratio"], choice.prediction.sd_ratio, rtol=2e-3)
    np.testing.assert_allclose(after["shift"], choice.prediction.shift, atol=5e-3)
    far = law_of(choice.method, Problem(model, rows))  # with surrogates of the model's start
    assert far.unsure or not far.stable or not target.met(far, problem.near)


def test_likelihoods_that_leave_their_expansions_in_a_long_visit_have_no_forecast():
    model, rows = posterior("student")
    problem = Problem(model, rows)
    short, long = (law_of(consortia.fsgld(4e-4, steps), problem) for steps in (4, 4000))
    assert short.unsure == ""
    assert "far from Gaussian for so long a visit" in long.unsure
