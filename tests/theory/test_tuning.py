"""A step size that is chosen by the bias that it will have."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from statistical import unlike

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.errors import InputError
from consortia.theory.bias import Problem, keeps_posterior, law_of, predict_bias
from consortia.theory.inheritance import knows
from consortia.theory.tuning import BiasTarget, choose_step, largest_step, unchosen
from tests.refusals import refused

RNG = np.random.default_rng(0)
ROWS = [{"y": RNG.normal([0.3 * site, -0.2 * site], 1.0, (12, 2))} for site in range(3)]
SITES = consortia.Sites.from_list(ROWS)
MODEL = consortia.Model(
    log_prior=lambda x: -0.5 * jnp.sum(x**2),
    log_likelihood=lambda x, rows: -0.5 * jnp.sum((rows["y"] - x[None]) ** 2, axis=1),
    init=jnp.zeros(2),
)


WITHOUT_LAW = {
    "stale_sgnht": "its thermostat multiplies the momentum: no linear recursion",
    "decentralized_ula": "its step and its consensus decay: there is no long run",
    "private_posterior": "its draws are independent ones of a normal: no recursion",
}
"""Registered methods without an exact law on Gaussian targets, and why."""


def test_every_registered_method_keeps_the_posterior_or_has_a_law_on_gaussian_targets():
    missing = set()
    for name, entry in ALGORITHMS.items():
        method = entry.factory(**entry.example)
        if not knows(law_of, type(method)) and not keeps_posterior(method):
            missing.add(name)
    assert missing == set(WITHOUT_LAW)


def approximate() -> list[Any]:
    """Each approximate method of the registry without a step size, on all rows."""
    found = []
    for entry in ALGORITHMS.values():
        method = entry.factory(**entry.example)
        named = {one.name for one in dataclasses.fields(method)}
        if not keeps_posterior(method) and "step_size" in named:
            options = dict(entry.example) | {"step_size": None}
            if "batch_size" in named:
                options["batch_size"] = None
            found.append(entry.factory(**options))
    return found


@pytest.mark.parametrize("method", approximate(), ids=lambda method: method.name)
def test_the_largest_step_of_each_method_meets_the_target_and_a_longer_one_does_not(method):
    assert unchosen(method)
    problem, target = Problem(MODEL, SITES), BiasTarget()
    if method.name in WITHOUT_LAW:
        with refused(argument="step_size", match="has no oracle"):
            choose_step(problem, method, target, rounds=100, chains=4)
        return
    found = largest_step(problem, method, target)
    if found is None:  # an answer too: with a tenth of any step it would be off as well
        tiny = predict_bias(MODEL, SITES, dataclasses.replace(method, step_size=1e-4))
        assert np.abs(tiny.shift).max() > 0.05 or np.abs(tiny.sd_ratio - 1).max() > 0.05
        return
    here = predict_bias(MODEL, SITES, found.method)
    assert np.abs(here.shift).max() <= 0.05
    assert np.abs(here.sd_ratio - 1).max() <= 0.05
    try:
        longer = dataclasses.replace(method, step_size=1.2 * found.step_size)
    except InputError:  # an argument bounds it
        return
    there = predict_bias(MODEL, SITES, longer)
    if there.shift is not None and there.rounds_per_draw < here.rounds_per_draw:
        assert np.abs(there.shift).max() > 0.05 or np.abs(there.sd_ratio - 1).max() > 0.05


def test_a_step_is_chosen_where_the_prediction_holds():
    """On a Poisson posterior agents that are wider than their average move it."""
    problem, method = Problem(*unlike.posterior("poisson")), unlike.METHODS["de_sgld"]()
    found = largest_step(problem, method, BiasTarget())
    assert found is not None
    assert found.prediction.unsure is None
    longer = dataclasses.replace(method, step_size=1.2 * found.step_size)
    there = predict_bias(*unlike.posterior("poisson"), longer)
    assert np.abs(there.shift).max() > 0.05
    assert np.abs(there.sd_ratio - 1).max() <= 0.05
    assert there.unsure is None
    gaussian = law_of(longer, problem).stationary.mean / problem.near.sd
    assert np.abs(gaussian).max() <= 0.05  # which the Gaussian law alone would allow


def test_no_step_is_chosen_where_the_prediction_holds_at_none():
    """What surrogates at the sites' own modes do to another posterior than a Gaussian one."""
    problem = Problem(*unlike.posterior("poisson"))
    method = consortia.fsgld(None, local_steps=2, surrogate="laplace")
    with refused(argument="step_size", match="may not hold at any step: .*fed"):
        choose_step(problem, method, BiasTarget(), rounds=40_000, chains=4)
    problem = Problem(*unlike.posterior("linear"))
    found = choose_step(problem, method, BiasTarget(), rounds=40_000, chains=4)
    assert found.prediction.unsure is None


@pytest.mark.slow
def test_a_shorter_step_is_chosen_where_it_forgets_faster():
    problem, method = Problem(*unlike.posterior("last layer")), unlike.METHODS["stale_sghmc"]()
    found = largest_step(problem, method, BiasTarget(0.05, 0.1))
    assert found is not None
    longer = dataclasses.replace(method, step_size=1.1 * found.step_size)
    there = predict_bias(*unlike.posterior("last layer"), longer)
    assert np.abs(there.sd_ratio - 1).max() <= 0.1
    assert there.rounds_per_draw > 1.5 * found.rounds_per_draw


def test_a_target_that_is_stated_is_kept_and_a_smaller_one_makes_a_smaller_step():
    problem, method = Problem(MODEL, SITES), consortia.fa_ld(step_size=None, local_steps=3)
    steps = []
    for target in (BiasTarget(0.2, 0.2), BiasTarget(0.05, 0.1), BiasTarget(0.01, 0.01)):
        choice = choose_step(problem, method, target, rounds=10**9, chains=1)
        steps.append(choice.step_size)
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 2 * steps[2]


def test_too_few_rounds_are_warned_of_with_how_many_are_needed_and_what_could():
    problem, method = Problem(MODEL, SITES), consortia.fa_hmc(None, 3, 8)
    target = BiasTarget(1e-4, 1e-4)
    with pytest.warns(UserWarning, match="50 rounds of 2 chains are too few") as caught:
        choice = choose_step(problem, method, target, rounds=50, chains=2)
    text = str(caught[0].message)
    assert "federated_hmc" in text
    needed = int(re.findall(r"([0-9,]+) rounds would make 100", text)[0].replace(",", ""))
    assert needed == math.ceil(50 * choice.rounds_per_draw)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_step(problem, method, target, rounds=needed, chains=2)


@pytest.mark.parametrize("method", approximate(), ids=lambda method: method.name)
def test_each_method_without_a_step_comes_as_far_as_the_choice_in_a_run(method):
    """With few rounds it is warned of, and runs; where there is no law it is refused."""
    if method.name in WITHOUT_LAW:
        with refused(argument="step_size", match="none can be chosen"):
            consortia.sample(MODEL, SITES, method, rounds=1, chains=1, progress=False)
        return
    options: dict[str, Any] = {"chains": 1, "progress": False, "on_divergence": "ignore"}
    with pytest.warns(UserWarning, match="20 rounds of 1 chains are too few"):
        consortia.sample(MODEL, SITES, method, rounds=20, **options)


def test_a_run_chooses_its_step_says_so_keeps_it_and_can_be_resumed(tmp_path):
    method = consortia.fa_ld(step_size=None, local_steps=2)
    plans: list[Any] = []
    options: dict[str, Any] = {"progress": False}
    tree = consortia.sample(
        MODEL, SITES, method, rounds=400, chains=4, store=tmp_path / "run",
        on_plan=plans.append, **options,
    )  # fmt: skip
    (said,) = [text for name, text in plans[0].lines if name == "step_size"]
    assert "chosen: the largest with a predicted bias within 5 %" in said
    longer = consortia.resume(tmp_path / "run", MODEL, SITES, method, rounds=500, **options)
    assert longer["posterior"].sizes["draw"] == 500
    assert longer.attrs["parameters"] == tree.attrs["parameters"]
    assert consortia.summary(longer).verdict.word in ("good", "care")


@pytest.mark.parametrize("wrong", [0.1, (0.1,), (0.1, -1.0), "small"])
def test_a_target_that_is_none_is_refused(wrong):
    method = consortia.fa_ld(step_size=None, local_steps=2)
    with refused(argument="bias_target"):
        consortia.sample(MODEL, SITES, method, rounds=4, bias_target=wrong, chains=1)
