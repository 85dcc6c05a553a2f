"""NUTS on the pooled data: the right law, the names of the model, a record of its cost."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import needs

from consortia import Model, Sites, models
from consortia.core.target import Target
from consortia.diagnostics.reference import nuts
from consortia.errors import MissingExtraError
from tests.refusals import refused

needs("blackjax", extra="reference")

DRAWS, CHAINS = 1000, 4


@pytest.fixture(scope="module")
def sites() -> Sites:
    rng = np.random.default_rng(5)
    shards = []
    for rows in (30, 9, 21):
        x = rng.normal(size=(rows, 3)).astype(np.float32)
        y = (x @ np.array([1.0, -2.0, 0.5]) + 2.0 + rng.normal(size=rows)).astype(np.float32)
        shards.append({"x": x, "y": y})
    return Sites.from_list(shards)


@pytest.fixture(scope="module")
def model() -> Model:
    return models.linear_regression(3, noise_scale=1.0, prior_scale=2.0, intercept=True)


@pytest.fixture(scope="module")
def tree(model: Model, sites: Sites) -> Any:
    return nuts(model, sites, draws=DRAWS, warmup=300, chains=CHAINS, seed=3)


def exact(sites: Sites) -> tuple[np.ndarray, np.ndarray]:
    """Mean (4,) and covariance (4, 4) of the coefficients and the intercept."""
    rows = sites.pooled()
    x = np.column_stack([rows["x"], np.ones(sites.rows)]).astype(np.float64)
    covariance = np.linalg.inv(x.T @ x + np.eye(4) / 4)
    return covariance @ x.T @ rows["y"], covariance


def flat(tree: Any) -> np.ndarray:
    posterior = tree["posterior"]
    parts = [posterior["coefficients"].values, posterior["intercept"].values[..., None]]
    return np.concatenate(parts, axis=2).astype(np.float64)


def test_draws_follow_the_exact_posterior_of_all_sites_rows(tree, sites):
    mean, covariance = exact(sites)
    sd = np.sqrt(np.diag(covariance))
    diagnostics = tree["diagnostics"]
    ess = np.append(diagnostics["coefficients"].values[1], diagnostics["intercept"].values[1])
    assert ess.min() > 1000
    draws = flat(tree)
    z = (draws.mean(axis=(0, 1)) - mean) / (sd / np.sqrt(ess))
    # Four two-sided tests at 4 standard errors: p = 2.5e-4 together.
    assert np.abs(z).max() < 4
    # The sd of 1,000 independent draws has a relative error of 2.2 %.
    ratio = draws.std(axis=(0, 1)) / sd
    np.testing.assert_allclose(ratio, 1, atol=4 * 0.0224)


def test_leaving_a_site_out_would_be_seen(tree, sites):
    fewer = Sites.from_list([sites.site(0), sites.site(2)])
    mean, covariance = exact(fewer)
    standard_error = np.sqrt(np.diag(covariance) / 1000)
    assert np.abs((flat(tree).mean(axis=(0, 1)) - mean) / standard_error).max() > 4


def test_variables_are_named_as_those_of_a_run(tree):
    assert set(tree["posterior"].data_vars) == {"coefficients", "intercept"}
    assert tree["posterior"]["coefficients"].shape == (CHAINS, DRAWS, 3)
    assert tree["posterior"]["intercept"].dims == ("chain", "draw")


def test_the_record_counts_divergences_gradients_and_seconds(tree):
    statistics = tree["sample_stats"]
    assert tree.attrs["divergences"] == int(statistics["diverging"].sum()) == 0
    # Warm-up costs at least one leapfrog step a draw.
    assert tree.attrs["gradients"] >= int(statistics["n_steps"].sum()) + 300 * CHAINS
    assert tree.attrs["seconds"] > 0
    assert "blackjax" in tree.attrs["versions"]
    assert 0.6 < float(statistics["acceptance_rate"].mean()) < 0.99


def test_chains_differ_and_step_sizes_are_frozen_after_warm_up(tree):
    draws = flat(tree)
    assert not np.array_equal(draws[0], draws[1])
    steps = tree["sample_stats"]["step_size"].values
    assert (steps == steps[:, :1]).all()
    assert len(np.unique(steps[:, 0])) == CHAINS


def test_the_one_loop_makes_the_draws_of_blackjaxs_own_warm_up(x64):
    import blackjax

    rng = np.random.default_rng(2)
    x = rng.normal(size=(40, 2))
    y = (x @ np.array([1.0, -2.0]) > rng.logistic(size=40)).astype(float)
    model, sites = models.logistic_regression(2), Sites.from_list([{"x": x, "y": y}])
    warmup, draws = 150, 20  # a first, a middle and a last window
    tree = nuts(model, sites, draws=draws, warmup=warmup, chains=1, seed=6)

    target = Target(model, {"coefficients": jnp.zeros(2)})
    rows = sites.pooled()

    def density(theta):
        return jnp.sum(target.log_likelihood(theta, rows)) + target.log_prior(theta)

    warm_key, draw_key = jax.random.split(jax.random.split(jax.random.key(np.uint64(6)), 1)[0])
    adaptation = blackjax.window_adaptation(
        blackjax.nuts, density, initial_step_size=0.1, target_acceptance_rate=0.8
    )
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        (state, tuned), _ = adaptation.run(warm_key, jnp.zeros(2), warmup)
        kernel = jax.jit(blackjax.nuts(density, **tuned).step)
        expected = []
        for key in jax.random.split(draw_key, draws):
            state, _ = kernel(key, state)
            expected.append(state.position)
    np.testing.assert_allclose(tree["sample_stats"]["step_size"][0], tuned["step_size"], rtol=1e-9)
    # The same operations in another program: rounding, which few draws do not enlarge to more.
    np.testing.assert_allclose(tree["posterior"]["coefficients"][0], expected, atol=1e-7)


def test_a_start_without_density_is_refused_before_sampling(sites):
    model = Model(
        lambda params: jnp.where(params["a"] > 0, 0.0, -jnp.inf),
        lambda params, batch: params["a"] * batch["y"],
        {"a": np.zeros((), np.float32)},
    )
    with refused(argument="init", match="chain 0"):
        nuts(model, sites, draws=10, warmup=20)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("draws", 3), ("warmup", 0), ("chains", 0), ("seed", -1), ("target_acceptance", 1.5)],
)
def test_arguments_out_of_range_are_named(model, sites, argument, value):
    with refused(argument=argument, match=str(value)):
        nuts(model, sites, **{argument: value})


def test_without_blackjax_the_error_names_the_extra(model, sites, monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(MissingExtraError, match=r"consortia\[reference\]"):
        nuts(model, sites)
