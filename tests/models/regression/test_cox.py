"""Cox's model stratified by site: a likelihood of each site, in methods that take all its rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core.target import Target
from tests.refusals import refused

RNG = np.random.default_rng(4)
N = 40
TABLE = {
    "x": RNG.normal(size=N),
    "arm": RNG.choice(["a", "b"], N),
    "time": np.ceil(RNG.exponential(5.0, N)),  # with ties
    "died": (RNG.random(N) < 0.6).astype(int),
}
SITES = {
    "oslo": {key: column[:25] for key, column in TABLE.items()},
    "lima": {key: column[25:39] for key, column in TABLE.items()},
    "bern": {key: column[39:] for key, column in TABLE.items()},
}


def made(**more: Any) -> Any:
    return consortia.regression("Surv(time, died) ~ x + arm", SITES, family="cox", **more)


def by_hand(table: dict[str, np.ndarray], x_mean: float, x_sd: float, b: np.ndarray) -> float:
    """Return Efron's log partial likelihood of a site, written as its definition."""
    eta = b[0] * (table["x"] - x_mean) / x_sd + b[1] * (table["arm"] == "b")
    time, died, total = table["time"], table["died"] > 0, 0.0
    for at in np.unique(time[died]):
        risk, events = np.exp(eta[time >= at]).sum(), eta[(time == at) & died]
        for k in range(len(events)):
            total -= np.log(risk - k / len(events) * np.exp(events).sum())
        total += events.sum()
    return total


def test_the_likelihood_of_a_site_is_efron_s(x64: None) -> None:
    one, b = made(), np.array([0.7, -0.4])
    of_site = jax.jit(jax.value_and_grad(one.model.site_log_likelihood))
    params = {"coefficients": jnp.asarray(b)}
    assert set(one.model.init) == {"coefficients"}
    moments = TABLE["x"].mean(), TABLE["x"].std()
    for name, table in SITES.items():
        rows = one.sites.site(name)
        mask = np.ones(len(rows["y"]), bool)
        value, gradient = of_site(params, rows, mask)
        np.testing.assert_allclose(value, by_hand(table, *moments, b), rtol=1e-10, atol=1e-12)
        step = 1e-6  # central differences: an error of step² and of rounding over step, 1e-9
        numeric = [
            (by_hand(table, *moments, b + u) - by_hand(table, *moments, b - u)) / (2 * step)
            for u in step * np.eye(2)
        ]
        np.testing.assert_allclose(gradient["coefficients"], numeric, rtol=1e-6, atol=1e-7)


def test_padding_does_not_count(x64: None) -> None:
    one = made()
    rows = one.sites.site("lima")
    params = {"coefficients": jnp.asarray([0.7, -0.4])}
    padded = {key: np.concatenate([a, np.repeat(a[:1], 9, axis=0)]) for key, a in rows.items()}
    mask = np.arange(len(padded["y"])) < len(rows["y"])
    of_site = jax.jit(one.model.site_log_likelihood)
    whole = of_site(params, rows, np.ones(len(rows["y"]), bool))
    np.testing.assert_allclose(of_site(params, padded, mask), whole, rtol=1e-12)


@pytest.mark.slow
def test_it_is_sampled_and_the_reference_agrees() -> None:
    one = made()
    tree = consortia.sample(
        one.model,
        one.sites,
        consortia.federated_hmc(leapfrog_steps=4, step_size=0.2, mass_matrix="identity"),
        rounds=400,
        warmup=50,
        chains=4,
        progress=False,
    )
    estimates = one.estimates(tree)
    assert estimates.effect == "hazard ratio"
    # the mode, from the sites' likelihoods and the prior by Newton's steps
    target = Target(one.model, one.model.init)

    def potential(at: jax.Array) -> jax.Array:
        parts = [
            jnp.sum(target.summands(at, shard, jnp.ones(len(shard["y"]), bool)))
            for shard in one.sites
        ]
        return -jnp.sum(jnp.stack(parts)) - target.log_prior(at)

    at, hessian = jnp.zeros(2), jax.jit(jax.hessian(potential))
    gradient = jax.jit(jax.grad(potential))
    for _ in range(8):
        at = at - jnp.linalg.solve(hessian(at), gradient(at))
    sd = np.sqrt(np.diag(np.linalg.inv(np.asarray(hessian(at)))))
    draws = np.asarray(tree["posterior"]["coefficients"]).reshape(-1, 2)
    # the posterior is near its Gaussian; a wrong likelihood moves it by its sd
    assert np.abs((draws.mean(axis=0) - np.asarray(at)) / sd).max() < 0.25
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.2)


def test_minibatches_of_it_are_refused_by_name() -> None:
    one = made()
    with refused(argument="batch_size", match="fa_hmc.*of 4"):
        consortia.sample(
            one.model,
            one.sites,
            consortia.fa_hmc(step_size=0.1, local_steps=2, leapfrog_steps=2, batch_size=4),
            rounds=1,
            chains=1,
        )
    with refused(argument="site_log_likelihood"):
        one.model.log_likelihood(one.model.init, one.sites.first)


def test_full_batches_of_it_are_taken() -> None:
    one = made()
    tree = consortia.sample(
        one.model,
        one.sites,
        consortia.fa_hmc(step_size=0.02, local_steps=2, leapfrog_steps=2),
        rounds=5,
        progress=False,
        chains=1,
    )
    assert np.isfinite(tree["posterior"]["coefficients"]).all()


def test_a_model_with_both_likelihoods_or_a_wrong_one_is_refused() -> None:
    one = made()
    with refused(argument="log_likelihood", match="site_log_likelihood"):
        consortia.Model(
            one.model.log_prior,
            lambda params, batch: batch["y"],
            one.model.init,
            site_log_likelihood=one.model.site_log_likelihood,
        )
    rows = consortia.Model(
        one.model.log_prior,
        None,
        one.model.init,
        site_log_likelihood=lambda params, rows, mask: rows["y"] * params["coefficients"][0],
    )
    with refused(argument="site_log_likelihood", match=r"\(3,\)"):
        consortia.sample(rows, one.sites, consortia.federated_hmc(), rounds=1, warmup=30, chains=1)
