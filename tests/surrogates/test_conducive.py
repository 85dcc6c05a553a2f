"""The conducive gradient: mean zero over the sites, whatever the exchange and the oracle."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import insides
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia import gradients, surrogates
from consortia.algorithms import fa_hmc, gossip
from consortia.core import random
from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.surrogates import Gaussian, given_correction

pytestmark = pytest.mark.usefixtures("x64")

MEANS = np.array([[1.0, 2.0], [-3.0, 0.5], [0.3, -2.0]])
PRECISIONS = np.array([[[3.0, 0.4], [0.4, 1.0]], [[0.7, 0.0], [0.0, 2.0]], [[5.0, -1], [-1, 4.0]]])
THETA = np.array([0.7, -1.1])


def given() -> tuple[Gaussian, ...]:
    return tuple(Gaussian.from_precision(m, P) for m, P in zip(MEANS, PRECISIONS, strict=True))


def target() -> Target:
    def log_prior(theta: Any) -> Any:
        return -jnp.sum((theta - 0.5) ** 2)

    def log_likelihood(theta: Any, batch: Any) -> Any:
        return -0.1 * jnp.sum((batch["x"] - theta[None, :]) ** 4, axis=1)

    return Target(consortia.Model(log_prior, log_likelihood, np.zeros(2)), np.zeros(2))


def sites(weights: Any) -> list[Site]:
    rng = np.random.default_rng(0)
    data = {"x": jnp.asarray(rng.normal(size=(3, 8, 2)))}
    return [
        Site(data, jnp.int32(size), jnp.asarray(w), jnp.asarray(w), (), *[jnp.asarray(node)] * 2)
        for node, (size, w) in enumerate(zip((8, 5, 6), weights, strict=True))
    ]


def log_density(site: int, theta: Any) -> Any:
    deviation = theta - MEANS[site]
    return -0.5 * deviation @ PRECISIONS[site] @ deviation


@pytest.mark.parametrize("weights", [(1 / 3, 1 / 3, 1 / 3), (0.6, 0.1, 0.3)])
@pytest.mark.parametrize("strength", [1.0, 0.4])
def test_the_corrections_sum_to_zero_over_the_sites(weights: Any, strength: float):
    plain = gradients.exact(target())
    corrected = surrogates.conducive(plain, strength, given_correction(given()))
    changes = [
        np.asarray(
            corrected.bind(site)((), jnp.asarray(THETA)) - plain.bind(site)((), jnp.asarray(THETA))
        )
        for site in sites(weights)
    ]
    # s_c times the correction of the estimate of ∇U, which is the change of ∇U_c over s_c
    assert np.abs(changes).max() > 0.1
    np.testing.assert_allclose(np.sum(changes, axis=0), 0, atol=1e-12)


@pytest.mark.parametrize("weights", [(1 / 3, 1 / 3, 1 / 3), (0.6, 0.1, 0.3)])
def test_divided_by_the_weight_it_is_minus_the_published_gradient(weights: Any):
    plain = gradients.exact(target())
    corrected = surrogates.conducive(plain, 0.7, given_correction(given()))
    each = [
        np.asarray(jax.grad(lambda t, s=s: log_density(s, t))(jnp.asarray(THETA))) for s in range(3)
    ]
    for number, site in enumerate(sites(weights)):
        change = corrected.bind(site)((), jnp.asarray(THETA)) - plain.bind(site)(
            (), jnp.asarray(THETA)
        )
        conducive = sum(each) - each[number] / weights[number]
        np.testing.assert_allclose(change / weights[number], -0.7 * conducive, rtol=1e-10)


def test_without_strength_it_is_the_oracle_itself():
    plain = gradients.exact(target())
    assert surrogates.conducive(plain, 0.0, given_correction(given())) is plain


@pytest.mark.parametrize("kind", ["minibatch", "noisy", "control_variate"])
def test_it_wraps_every_oracle_and_asks_for_the_same_numbers(kind: str):
    zero = jnp.zeros(2)
    plain = {
        "minibatch": gradients.minibatch(target(), 4),
        "noisy": gradients.noisy(gradients.exact(target()), 0.3, 2),
        "control_variate": gradients.control_variate(
            gradients.minibatch(target(), 4), zero, zero, zero, jnp.ones((), bool)
        ),
    }[kind]
    corrected = surrogates.conducive(plain, 1.0, given_correction(given()))
    site = sites((0.6, 0.1, 0.3))[1]
    key = random.node_key(jnp.asarray(random.base_key(3)), 1)
    drawn = [
        random.declared(lambda rng, o=oracle: o.numbers(rng, "g", (1,)), key, 0, 0, None)
        for oracle in (plain, corrected)
    ]
    jax.tree.map(np.testing.assert_array_equal, *drawn)
    prepared = plain.prepare(drawn[0], site)
    change = corrected.bind(site)(prepared, jnp.asarray(THETA)) - plain.bind(site)(
        prepared, jnp.asarray(THETA)
    )
    exact = given_correction(given())(site).at(jnp.asarray(THETA))
    np.testing.assert_allclose(change, exact, rtol=1e-9)


def test_no_surrogate_changes_the_sum_of_the_gradients():
    corrected = surrogates.conducive(gradients.exact(target()), 1.0, given_correction(given()))
    weights = (0.6, 0.1, 0.3)
    total = sum(corrected.bind(site)((), jnp.asarray(THETA)) for site in sites(weights))
    whole = sum(
        gradients.exact(target()).bind(dataclasses.replace(site, prior_share=jnp.asarray(1 / 3)))(
            (), jnp.asarray(THETA)
        )
        for site in sites(weights)
    )
    np.testing.assert_allclose(total, whole, rtol=1e-12)


# --- on another exchange -------------------------------------------------------------------------

UNLIKE = consortia.Sites.from_list(
    [{"mean": np.array([m]), "curvature": np.array([k])} for m, k in ((20.0, 1.0), (1.0, 0.25))]
)
MODE = (20.0 * 1.0 + 1.0 * 0.25) / 1.25


def two_gaussians() -> consortia.Model:
    """Sites with the potentials curvature/4 · (θ − mean)², no prior."""

    def log_likelihood(theta: Any, batch: Any) -> Any:
        deviation = theta[None, :] - batch["mean"][:, None]
        return -0.25 * batch["curvature"] * jnp.sum(deviation**2, axis=1)

    return consortia.Model(lambda theta: -0.0 * jnp.sum(theta**2), log_likelihood, np.zeros(1))


class CorrectedGossip(gossip.DESGHMC):
    """DE-SGHMC whose agents fit surrogates first; its oracle is wrapped by the test."""

    def build(self, target: Target) -> Any:
        settings = surrogates.Settings("full", 1.0, 1e-3, 1, None, True)
        fit = surrogates.fit_phases(surrogates.Recipe("anchored"), target, settings)
        return super().build(target)._replace(fit=fit)


def test_with_conducive_gradients_every_agent_of_sghmc_comes_to_rest_at_the_mode(monkeypatch: Any):
    # Without noise an agent rests where its own pull and its neighbours' balance. With exact
    # surrogates all agents follow the gradient of the whole potential.
    plain = consortia.de_sghmc(
        0.05, 2.0, mixing=((0.75, 0.25), (0.25, 0.75)), temperature=0.0, draws="agents"
    )

    def rest(method: Any) -> np.ndarray:
        tree = consortia.sample(
            two_gaussians(), UNLIKE, method, rounds=3000, progress=False, chains=1
        )
        return np.asarray(tree["agents"]["theta"].isel(draw=-1)).ravel()

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the model has no prior")
        assert np.abs(rest(plain) - MODE).max() > 0.1
        insides.wrap_gradients(monkeypatch, "gossip", surrogates.conducive)
        # An agent's curvature is 0.3125: the slowest mode falls by exp(−0.05 · 0.3125 / 2) a step.
        found = rest(CorrectedGossip(**vars(plain)))
        assert found.shape == (2,)
        np.testing.assert_allclose(found, MODE, atol=1e-7)


class CorrectedAveraging(fa_hmc.FAHMC):
    """FA-HMC whose sites fit surrogates first; its oracle is wrapped by the test."""

    def build(self, target: Target) -> Any:
        step = float(self.step_size(jnp.int32(0))) ** 2
        settings = surrogates.Settings("full", 1.0, step, self.local_steps, None, True)
        fit = surrogates.fit_phases(surrogates.Recipe("anchored"), target, settings)
        return super().build(target)._replace(fit=fit)


def test_with_conducive_gradients_fa_hmc_has_no_bias_from_unlike_sites(monkeypatch: Any):
    model, pair = two_gaussians(), UNLIKE
    plain = consortia.fa_hmc(0.1, 5, 10)

    def mean_of_draws(method: Any) -> float:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the model has no prior")
            tree = consortia.sample(
                model, pair, method, rounds=60, warmup=40, chains=300, progress=False, seed=2
            )
        return float(np.asarray(tree["posterior"]["theta"]).mean())

    law = consortia.oracles.fa_hmc_law(
        [20.0, 1.0], [1.0, 0.25], [0.5, 0.5], step_size=0.1, leapfrog_steps=5, local_steps=10
    )
    # 300 independent chains of standard deviation 1.3, averages of 60 correlated draws: a standard
    # error of 0.08 at the very most.
    assert abs(mean_of_draws(plain) - (MODE + law.stationary.bias[0])) < 0.32
    insides.wrap_gradients(monkeypatch, "fa_hmc", surrogates.conducive)
    corrected = CorrectedAveraging(**vars(plain))
    assert abs(law.stationary.bias[0]) > 1
    assert abs(mean_of_draws(corrected) - MODE) < 0.32
