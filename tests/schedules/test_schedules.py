"""Schedules as values, and the prescribed step sizes against figures worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia import schedules
from consortia.schedules import as_schedule, evaluate
from tests.refusals import refused

EVERY_KIND = [
    schedules.constant(0.1),
    schedules.polynomial(0.1, 10.0, 0.6),
    schedules.fa_hmc_stages(0.1, 3),
    as_schedule(np.linspace(0.1, 0.05, 40)),
]

# Default precision is float32: a rounding or two of 6e-8, more through exp2 and pow.
SINGLE = 1e-6


def by_name(schedule: Any) -> str:
    return type(schedule).__name__


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=by_name)
def test_schedule_under_jit_with_a_traced_iteration_equals_the_one_on_the_host(schedule):
    host = evaluate(schedule, range(40))
    traced = jax.jit(schedule)
    inside = [float(traced(jnp.int32(t))) for t in range(40)]
    np.testing.assert_allclose(inside, host, rtol=SINGLE)
    np.testing.assert_allclose([float(schedule(t)) for t in range(40)], host, rtol=SINGLE)


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=by_name)
def test_schedule_runs_in_a_scan_and_keeps_the_default_float_type(schedule):
    def body(total, t):
        return total + schedule(t), schedule(t)

    total, steps = jax.lax.scan(body, jnp.zeros(()), jnp.arange(20, dtype=jnp.int32))
    assert steps.dtype == total.dtype == jnp.float32
    assert schedule(jnp.arange(6, dtype=jnp.int32).reshape(2, 3)).shape == (2, 3)


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=by_name)
def test_schedule_follows_double_precision(schedule, x64):
    values = evaluate(schedule, range(5))
    assert values.dtype == np.float64
    assert values[0] == pytest.approx(0.1, rel=1e-15)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (schedules.constant(0.1), as_schedule(0.1), schedules.constant(0.2)),
        (
            schedules.polynomial(1, 2, 0.5),
            schedules.polynomial(1.0, np.float64(2.0), 0.5),
            schedules.polynomial(1, 2, 0.6),
        ),
        (
            schedules.fa_hmc_stages(0.1, 3),
            schedules.fa_hmc_stages(0.1, np.int64(3)),
            schedules.fa_hmc_stages(0.1, 4),
        ),
        (as_schedule([0.2, 0.1]), as_schedule(np.array([0.2, 0.1])), as_schedule([0.1, 0.2])),
    ],
    ids=["Constant", "Polynomial", "Stages", "Tabulated"],
)
def test_schedules_with_the_same_numbers_are_equal_and_hash_alike(one, same, other):
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert len({one, same, other}) == 2


def test_equal_schedules_share_one_compiled_program():
    traces = []

    def step(schedule, t):
        traces.append(schedule)
        return schedule(t)

    compiled = jax.jit(step, static_argnums=0)
    for _ in range(3):
        compiled(schedules.fa_hmc_stages(0.1, 3), jnp.int32(5))
        compiled(as_schedule([0.2, 0.1]), jnp.int32(1))
    assert len(traces) == 2


def test_schedules_cannot_be_changed():
    with pytest.raises(AttributeError):
        schedules.constant(0.1).value = 0.2  # type: ignore[misc]


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=by_name)
def test_a_fractional_iteration_is_refused(schedule):
    with refused(argument="iteration"):
        schedule(1.5)


# --- polynomial ----------------------------------------------------------------------------------


def test_polynomial_falls_as_printed():
    schedule = schedules.polynomial(0.4, 10.0, 0.5)
    # 10 / (10 + t) = 1, 1/4, 1/9 at these iterations.
    np.testing.assert_allclose(evaluate(schedule, [0, 30, 80]), [0.4, 0.2, 0.4 / 3], rtol=SINGLE)


@pytest.mark.parametrize(
    ("power", "diverges", "summable"),
    [
        (0.0, True, False),
        (0.5, True, False),
        (0.51, True, True),
        (1.0, True, True),
        (1.01, False, True),
    ],
)
def test_polynomial_says_which_annealing_conditions_hold(power, diverges, summable):
    schedule = schedules.polynomial(1.0, 1.0, power)
    assert schedule.sum_diverges is diverges
    assert schedule.squares_summable is summable
    assert schedule.satisfies_annealing_conditions is (diverges and summable)


# --- FA-HMC --------------------------------------------------------------------------------------


def test_stages_double_in_length_and_fall_by_the_square_root_of_two():
    first = 3
    steps = evaluate(schedules.fa_hmc_stages(0.8, first), range(first * 31))
    expected = np.concatenate([[0.8 / math.sqrt(2.0) ** s] * (first * 2**s) for s in range(5)])
    np.testing.assert_allclose(steps, expected, rtol=SINGLE)


def test_stage_boundaries_are_exact_far_out():
    first = 7
    schedule = schedules.fa_hmc_stages(1.0, first)
    for stage in range(1, 27):
        start = first * (2**stage - 1)
        before, at = evaluate(schedule, [start - 1, start])
        # A boundary that is one iteration off would give a ratio of 1.
        assert at / before == pytest.approx(1.0 / math.sqrt(2.0), rel=SINGLE)


def test_squared_steps_of_every_stage_sum_to_the_same():
    # t_s η_s² is the same for all stages: each contracts by the same factor.
    steps = evaluate(schedules.fa_hmc_stages(0.3, 4), range(4 * 15)).astype(np.float64) ** 2
    stages = np.split(steps, [4, 12, 28])
    np.testing.assert_allclose([stage.sum() for stage in stages], 4 * 0.09, rtol=4 * SINGLE)


def test_first_stage_contracts_by_eight_and_one_synchronisation_less_does_not():
    eta, steps, iterations, mu = 0.05, 4, 3, 0.7
    rounds = schedules.fa_hmc_first_stage(
        eta, leapfrog_steps=steps, local_steps=iterations, strong_convexity=mu
    )
    shrink = 1.0 - mu * (steps * eta) ** 2 / 4.0
    assert shrink ** (iterations * rounds) <= 1.0 / 8.0 < shrink ** (iterations * (rounds - 1))


FA_HMC: dict[str, Any] = {
    "smoothness": 4.0,
    "dimension": 25,
    "accuracy": 0.5,
    "leapfrog_steps": 5,
    "local_steps": 2,
    "weights": [0.25] * 4,
}


@pytest.mark.parametrize(
    ("change", "gamma"),
    [
        # ε / (T √d) = 0.5 / (2 · 5) = 0.05, below 1 / L = 0.25.
        ({}, 0.05),
        ({"accuracy": 10.0}, 0.25),
        # ε² / (d T² (1 - ρ) N) = 0.25 / (25 · 4 · 0.5 · 4).
        ({"momentum_correlation": 0.5}, 0.25 / 200.0),
        # ε² K / (d Σ w² σ² / L) = 0.25 · 5 / (25 · ¼ · 100 / 4); the sum of the squares is 4 / 16.
        ({"gradient_noise": 100.0}, 1.25 / 156.25),
        ({"constant": 0.5}, 0.025),
    ],
)
def test_constant_step_size_is_each_bound_of_the_theorem_in_turn(change, gamma):
    eta = schedules.fa_hmc_step_size(**(FA_HMC | change))
    assert eta == pytest.approx(math.sqrt(gamma) / 5.0, rel=1e-14)


# --- stale gradients -----------------------------------------------------------------------------


def test_stale_error_step_size_is_the_one_of_the_paper_and_minimises_its_bound():
    # The experiment's C = 1/30 and L = 500 τ: h = .0042 / τ.
    for tau in (1, 5, 20):
        h = schedules.stale_error_step_size(500 * tau, staleness=tau, constant=1 / 30)
        assert h == pytest.approx(0.0041999 / tau, rel=1e-4)
    total, tau = 10_000, 4.0
    grid = np.geomspace(1e-4, 1e-1, 20_001)
    best = grid[np.argmin(1.0 / (total * grid) + tau**2 * grid**2)]
    # The minimum of a/h + b h² is at (a / 2b)^(1/3): C = 2^(-1/3). The grid is spaced by 3e-4.
    h = schedules.stale_error_step_size(total, staleness=tau, constant=2 ** (-1 / 3))
    assert h == pytest.approx(best, rel=5e-4)


@pytest.mark.parametrize("order", [1, 2])
def test_stale_variance_step_size_minimises_its_bound(order):
    total = 5_000
    grid = np.geomspace(1e-4, 1.0, 20_001)
    best = grid[np.argmin(1.0 / (total * grid) + grid ** (2 * order))]
    constant = (2.0 * order) ** (-1.0 / (2 * order + 1))
    h = schedules.stale_variance_step_size(total, order=order, constant=constant)
    assert h == pytest.approx(best, rel=7e-4)


# --- gossip --------------------------------------------------------------------------------------


def test_gossip_step_sizes_are_those_of_the_budget():
    # log √K = 2 log 10 at K = 10^4.
    eta = schedules.de_sgld_step_size(10_000, strong_convexity=21.0, constant=1.5)
    assert eta == pytest.approx(1.5 * 2.0 * math.log(10.0) / (21.0 * 1e4), rel=1e-14)
    accelerated = schedules.de_sghmc_step_size(10_000, strong_convexity=21.0, constant=1.5)
    assert accelerated == pytest.approx(math.sqrt(eta), rel=1e-14)


# --- making and evaluating -----------------------------------------------------------------------


def test_numbers_arrays_and_functions_become_schedules():
    for number in (0.1, np.float64(0.1), jnp.float32(0.1), np.array(0.1)):
        assert isinstance(as_schedule(number), schedules.Constant)
    assert as_schedule(1) == schedules.constant(1.0)
    for table in ([0.2, 0.1], (0.2, 0.1), np.array([0.2, 0.1]), jnp.array([0.2, 0.1])):
        found = as_schedule(table)
        assert isinstance(found, schedules.Tabulated)
        assert found.length == 2
    function = schedules.polynomial(0.1, 1.0, 0.6)
    assert as_schedule(function) is function


def test_a_step_size_that_is_still_to_be_chosen_cannot_be_evaluated():
    with refused(argument="step_size", match="is None"):
        as_schedule(None)(0)


def test_a_table_beyond_its_end_is_not_a_number():
    assert math.isnan(float(as_schedule([0.2, 0.1])(2)))
    with refused(argument="step_size", match="iteration 2"):
        evaluate(as_schedule([0.2, 0.1]), range(4))


@pytest.mark.parametrize(
    "value",
    [0.0, -0.1, math.nan, math.inf, True, "0.1", 1j, [], [[0.1]], [0.1, -0.1], [0.1, [0.2]]],
    ids=repr,
)
def test_what_is_no_step_size_is_refused_by_name(value):
    with refused(argument="step_size"):
        as_schedule(value)
    with refused(argument="pull"):
        as_schedule(value, "pull")


@pytest.mark.parametrize(
    ("function", "argument", "match"),
    [
        (lambda t: 0.1 if t < 3 else 0.2, "step_size", "jnp.where"),
        (lambda t: 0.1 - 0.05 * t.astype(float), "step_size", "iteration 2"),
        (lambda t: jnp.ones(2), "step_size", "shape"),
        (lambda t: t + 1, "step_size", "int32"),
    ],
    ids=["branch", "falls below zero", "two numbers", "whole numbers"],
)
def test_a_function_that_is_no_schedule_is_explained(function, argument, match):
    with refused(argument=argument, match=match):
        evaluate(as_schedule(function), range(5))


def test_a_function_of_the_iteration_is_evaluated():
    def warm(t):
        return jnp.where(t < 2, 0.1, 0.2)

    np.testing.assert_allclose(evaluate(as_schedule(warm), [0, 1, 2]), [0.1, 0.1, 0.2], rtol=SINGLE)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: schedules.constant(0.0), "step_size"),
        (lambda: schedules.polynomial(0.1, 0.0, 0.6), "offset"),
        (lambda: schedules.polynomial(0.1, 1.0, -0.1), "power"),
        (lambda: schedules.fa_hmc_stages(-0.1, 3), "initial"),
        (lambda: schedules.fa_hmc_stages(0.1, 0), "first_stage"),
        (lambda: schedules.fa_hmc_stages(0.1, 2.0), "first_stage"),
        (lambda: schedules.fa_hmc_step_size(**(FA_HMC | {"weights": [0.5, 0.6]})), "weights"),
        (lambda: schedules.fa_hmc_step_size(**(FA_HMC | {"accuracy": 0.0})), "accuracy"),
        (
            lambda: schedules.fa_hmc_first_stage(
                1.0, leapfrog_steps=2, local_steps=1, strong_convexity=1.0
            ),
            "step_size",
        ),
        (lambda: schedules.stale_error_step_size(10, staleness=0, constant=1.0), "staleness"),
        (lambda: schedules.stale_variance_step_size(10, order=0, constant=1.0), "order"),
        (lambda: schedules.de_sgld_step_size(1, strong_convexity=1.0, constant=2.0), "budget"),
        (lambda: schedules.de_sgld_step_size(10, strong_convexity=1.0, constant=1.0), "constant"),
    ],
)
def test_bad_input_is_refused_with_the_name_of_the_argument(make, argument):
    with refused(argument=argument):
        make()
