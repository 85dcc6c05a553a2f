"""The preconditioner of `stale_sgld` that adapts: its law, and what it refuses and says."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from algorithms.stale_problem import MODEL, one_site

import consortia
from consortia.algorithms.stale import stale_sgld
from consortia.dynamics.stochastic_steps import Langevin
from consortia.oracles import psgld_short_memory_variance, stale_sgld_law
from consortia.theory.bias import Problem, law_of
from tests.refusals import refused

CHAINS = 1500


def last_draws(method: object, rounds: int) -> np.ndarray:
    tree = consortia.sample(
        MODEL, one_site(), method, rounds=1, warmup=rounds, chains=CHAINS, seed=2, progress=False
    )
    return np.asarray(tree.posterior.theta, np.float64)[:, 0]


def away(draws: np.ndarray, variance: np.ndarray) -> float:
    """Return the farthest ratio of variances from 1, in standard errors."""
    return float(np.abs(draws.var(axis=0) / variance - 1).max() / math.sqrt(2 / CHAINS))


@pytest.mark.slow
def test_all_of_the_past_has_the_exact_law_with_minibatches_and_late_gradients() -> None:
    method = stale_sgld(0.4, 3, staleness=1, adaptation=1.0, latency=consortia.latency.constant())
    problem = Problem(MODEL, one_site())
    law = law_of(method, problem).stationary
    draws = last_draws(method, 600)
    assert away(draws, law.variance) < 4
    exact = problem.near.precision
    plain = stale_sgld_law(0.4, np.diag(exact), 1).stationary.variance
    for other in (plain, 1 / np.diag(exact)):
        assert away(draws, other) > 8


@pytest.mark.slow
def test_a_short_memory_is_too_wide_as_its_limit_says() -> None:
    draws = last_draws(stale_sgld(0.005, workers=1, adaptation=0.5, floor=0.01), 3000)
    curvature = np.diag(Problem(MODEL, one_site()).near.precision)
    short = [psgld_short_memory_variance(float(own), floor=0.01) for own in curvature]
    assert away(draws, np.array(short)) < 4
    assert away(draws, 1 / curvature) > 10


def test_a_step_weighs_the_squared_gradients_by_their_age() -> None:
    dynamics = Langevin(1.0, 0.5, 0.1)
    state, zero = dynamics.start(np.zeros(1, np.float32)), np.zeros(1, np.float32)
    for gradient in (2.0, 4.0):
        state = dynamics.step(state, np.float32([gradient]), zero, np.float32(0.1))
    first, second = 2.0, math.sqrt((0.5 * 4 + 16) / 1.5)
    moved = -0.1 * (2 / (0.1 + first) + 4 / (0.1 + second))
    assert float(state.position[0]) == pytest.approx(moved, rel=1e-5)
    assert Langevin().start(zero).squares == ()
    assert jax.tree.leaves(Langevin().start(zero)) == [zero]


def test_the_variant_is_named_and_has_no_step_of_its_own_choice() -> None:
    method = stale_sgld(0.1, workers=1, adaptation=0.99)
    assert method.title == "stale_sgld (preconditioned, as pSGLD)"
    assert stale_sgld(0.1, workers=1).title == "stale_sgld"
    assert method.parameters()["adaptation"] == 0.99
    with refused(argument="adaptation", match="must be 1"):
        law_of(method, Problem(MODEL, one_site()))


@pytest.mark.parametrize(
    ("options", "argument", "match"),
    [
        ({"adaptation": 0.0}, "adaptation", "is 0"),
        ({"adaptation": 1.1}, "adaptation", "is 1.1"),
        ({"adaptation": 0.9, "floor": 0.0}, "floor", "is 0"),
        ({"adaptation": 0.9, "step_size": None}, "step_size", "is None"),
    ],
)
def test_arguments_out_of_their_range_are_refused(options: dict, argument: str, match: str) -> None:
    with refused(argument=argument, match=match):
        stale_sgld(options.pop("step_size", 0.1), workers=1, **options)
