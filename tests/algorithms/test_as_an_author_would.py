"""What authors of the methods look for: names, variants, staleness, local losses, optimisers."""

from __future__ import annotations

import json
import re
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

import consortia
from consortia.algorithms.registry import ALGORITHMS, GONE, SETTINGS, advice_on
from consortia.cli.commands import app
from consortia.diagnostics.verdict import Severity
from consortia.oracles import GaussianAgents, de_sgld_law, fa_hmc_law
from consortia.study.sampling import AlgorithmTable
from consortia.theory.bias import predict_bias
from tests.refusals import refused


def problem() -> tuple[consortia.Model, consortia.Sites]:
    rng = np.random.default_rng(0)
    rows = [
        {"x": rng.normal(size=(40, 2)).astype(np.float32), "y": rng.integers(0, 2, 40)}
        for _ in range(3)
    ]
    return consortia.models.logistic_regression(2), consortia.Sites.from_list(rows)


# --- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["svrg_ld", "saga_ld", pytest.param("sgld_cv", marks=pytest.mark.slow)]
)
def test_control_variates_take_the_noise_of_minibatches_out(name):
    # Rows N(θ, 1): their gradients differ by constants, which cancel to rounding.
    rng = np.random.default_rng(1)
    shards = [{"y": (m + rng.normal(size=30)).astype(np.float32)} for m in (-1.0, 0.0, 3.0)]
    model = consortia.Model(
        lambda theta: -0.5 * jnp.sum(theta**2),
        lambda theta, rows: -0.5 * (rows["y"] - theta[0]) ** 2,
        np.zeros(1, np.float32),
    )
    setting = SETTINGS[name]
    kept = name == "sgld_cv"  # at a point that stays, of agents that take one step
    options = {"step_size": 0.01} if kept else {"step_size": 0.05, "local_steps": 5}
    options |= setting.arguments
    method = ALGORITHMS[setting.algorithm].factory(**options)
    sites = consortia.Sites.from_list(shards)
    tree = consortia.sample(
        model, sites, method, rounds=150, warmup=50, chains=200, seed=0, progress=False
    )
    draws = np.asarray(tree["posterior"]["theta"], np.float64)[:, ::10].ravel()
    centres = 90 / 91 * np.array([shard["y"].mean() for shard in shards], np.float64)
    if kept:
        agents = GaussianAgents(np.full(3, 91 / 3), means=centres)
        settled = de_sgld_law(agents, "complete", step_size=0.01).stationary
    else:
        settled = fa_hmc_law(
            centres, np.full(3, 91.0), np.full(3, 1 / 3), step_size=0.05,
            leapfrog_steps=1, local_steps=5, debias=True,
        ).stationary  # fmt: skip
    sd = float(np.sqrt(settled.variance[0]))
    assert abs(draws.mean() - float(settled.mean[0])) < 4 * sd / np.sqrt(len(draws))
    assert draws.var() == pytest.approx(sd**2, rel=4 * np.sqrt(2 / len(draws)))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_method_of_another_name_is_a_setting_that_can_be_made(name):
    setting = SETTINGS[name]
    entry = ALGORITHMS[setting.algorithm]
    made = entry.factory(**entry.example | setting.arguments)
    assert made.name == setting.algorithm
    told = CliRunner().invoke(app, ["algorithms", name, "--json"])
    assert told.exit_code == 0
    assert json.loads(told.output)[name]["algorithm"] == setting.algorithm


@pytest.mark.parametrize("name", [*SETTINGS, *GONE])
def test_an_unknown_name_is_answered_in_the_package_and_in_a_study(name):
    advice = advice_on(name)
    assert advice.startswith(f"{name} {'was' if name in GONE else 'is'} ")
    with pytest.raises(AttributeError, match=re.escape(advice)):
        getattr(consortia, name)
    with pytest.raises(ValidationError, match=re.escape(advice)):
        AlgorithmTable(name=name)


def test_a_name_that_nobody_knows_is_refused_still():
    told = CliRunner().invoke(app, ["algorithms", "sgldd"])
    assert told.exit_code != 0


@pytest.mark.parametrize("name", GONE)
def test_a_method_that_is_gone_is_answered_with_what_to_take(name):
    assert name not in ALGORITHMS
    told = CliRunner().invoke(app, ["algorithms", name])
    assert told.exit_code == 2
    assert GONE[name] in told.output


@pytest.mark.parametrize(
    ("method", "title"),
    [
        (consortia.fsgld(1e-3, 5, surrogate="moments"), "fsgld (FSGLD as published)"),
        (
            consortia.fsgld(1e-3, 5),
            "fsgld (FSGLD, anchored surrogates instead of the published ones)",
        ),
        (consortia.dsgld(1e-3, 5), "dsgld"),
        (
            consortia.decentralized_hmc(0.1, "ring", variant="published"),
            "decentralized_hmc (MA-HMC as published)",
        ),
        (consortia.decentralized_hmc(0.1, "ring"), "decentralized_hmc (MA-HMC, corrected)"),
        (consortia.fa_ld(0.1, 5, temperature=0.0), "fa_ld at temperature 0, an optimiser"),
    ],
)
def test_a_variant_has_its_name(method, title):
    assert method.title == title


def test_the_name_of_a_variant_is_in_its_result():
    model, sites = problem()
    tree = consortia.sample(
        model, sites, consortia.fsgld(1e-3, 5, surrogate="moments"), rounds=5, progress=False
    )
    assert tree.attrs["title"] == "fsgld (FSGLD as published)"
    assert consortia.fsgld(1e-3, 5, surrogate="moments") == consortia.fsgld(
        1e-3, 5, surrogate="sgld_moments"
    )


# --- local losses ------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, (0.5, 0.5), (0.2, 0.8)])
def test_local_losses_are_the_potentials_of_federated_averaging(weights):
    losses = [lambda x: 0.5 * jnp.sum((x - 20) ** 2), lambda x: jnp.sum((x - 1) ** 2) / 8]
    model, sites = consortia.models.local_losses(losses, jnp.zeros(2), weights)
    one, two = weights or (0.5, 0.5)
    method = consortia.fa_hmc(0.02, 5, 10, weights=weights)
    found = predict_bias(model, sites, method)
    precision = one + two / 4
    np.testing.assert_allclose(found.mean, (20 * one + two / 4) / precision, rtol=1e-5)
    np.testing.assert_allclose(found.sd, precision**-0.5, rtol=1e-5)
    law = fa_hmc_law(
        np.array([[20.0], [1.0]]), np.array([[1.0], [0.25]]), np.array([one, two]),
        step_size=0.02, leapfrog_steps=5, local_steps=10,
    ).stationary  # fmt: skip
    np.testing.assert_allclose(found.shift * found.sd, law.bias[0], rtol=1e-3)
    np.testing.assert_allclose(found.sd_ratio * found.sd, law.sd[0], rtol=1e-3)


def test_local_losses_that_do_not_fit_are_refused():
    with refused(argument="losses"):
        consortia.models.local_losses([], jnp.zeros(1))
    with refused(argument="weights", match="2.*for 1"):
        consortia.models.local_losses([jnp.sum], jnp.zeros(1), (0.5, 0.5))


# --- staleness ---------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", [consortia.stale_sgld, consortia.stale_sghmc])
def test_staleness_stands_for_the_workers(factory):
    more = {} if factory is consortia.stale_sgld else {"friction": 1.0}
    late = factory(0.01, batch_size=4, staleness=3, **more)
    assert late == factory(0.01, batch_size=4, workers=4, **more)
    assert "staleness" not in late.parameters()
    with refused(argument="workers", match="workers=W, or staleness=W-1"):
        factory(0.01, batch_size=4, **more)
    with refused(argument="workers", match="workers=4.*staleness=4"):
        factory(0.01, batch_size=4, workers=4, staleness=4, **more)


# --- optimisers --------------------------------------------------------------------------------


@pytest.mark.predicted
@pytest.mark.parametrize(
    "method",
    [
        consortia.fa_ld(0.1, 5, temperature=0.0),
        consortia.de_sgld(0.005, "complete", correction="extra", temperature=0.0),
        consortia.stale_sgld(0.005, workers=3, temperature=0.0, aggregate="latest"),
    ],
    ids=lambda method: method.name,
)
def test_an_optimiser_is_judged_as_one(method):
    model, sites = problem()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = consortia.sample(model, sites, method, rounds=1500, seed=0, progress=False)
        verdict = consortia.summary(tree).verdict
    assert verdict.headline == "An optimiser has found a mode; nothing was sampled"
    assert verdict.severity is Severity.UNKNOWN
    assert tree.attrs["samples"] == "nothing: it finds a mode"
    assert "nan" not in " ".join(verdict.lines())


def test_an_optimiser_that_still_moves_has_not_arrived():
    model, sites = problem()
    method = consortia.fa_ld(0.01, 1, temperature=0.0)
    tree = consortia.sample(model, sites, method, rounds=20, progress=False)
    verdict = consortia.summary(tree).verdict
    assert verdict.headline == "An optimiser has not found a mode; nothing was sampled"
    assert "Run longer" in verdict.lines()[1]
