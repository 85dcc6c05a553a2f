"""Durations of simulated tasks."""

from __future__ import annotations

import numpy as np
import pytest

from consortia import latency
from tests.refusals import refused

MODELS = {
    "constant": latency.constant(),
    "lognormal": latency.lognormal(),
    "exponential": latency.exponential(),
    "straggler": latency.straggler(),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_mean_duration_is_one_by_default(name: str) -> None:
    durations = MODELS[name].durations(3, 0, 1, 0, 100_000)
    # Four standard errors; the largest standard deviation here is that of the straggler, 1.4.
    assert abs(durations.mean() - 1) <= 4 * durations.std() / np.sqrt(100_000) + 1e-12
    assert durations.min() > 0


@pytest.mark.parametrize("name", MODELS)
def test_a_duration_does_not_depend_on_how_many_are_asked_for(name: str) -> None:
    model = MODELS[name]
    whole = model.durations(7, 1, 2, 0, 300)
    pieces = [model.durations(7, 1, 2, first, 100) for first in (0, 100, 200)]
    assert np.array_equal(whole, np.concatenate(pieces))


def test_seed_server_worker_and_task_all_change_a_duration() -> None:
    model = latency.exponential()
    here = model.durations(0, 0, 0, 0, 1)[0]
    others = [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    values = [model.durations(*other, 1)[0] for other in others]
    assert len({here, *values}) == 5


def test_laws_have_their_own_spread() -> None:
    count = 200_000
    exponential = latency.exponential().durations(0, 0, 0, 0, count)
    lognormal = latency.lognormal(spread=0.5).durations(0, 0, 0, 0, count)
    straggler = latency.straggler(slowdown=10, probability=0.1).durations(0, 0, 0, 0, count)
    # Var 1 with kurtosis 9: its standard error is sqrt(8/count) = .0063; log-normal less.
    assert exponential.var() == pytest.approx(1, abs=4 * 0.0063)
    assert lognormal.var() == pytest.approx(np.expm1(0.25), abs=0.01)
    assert np.mean(straggler > 1) == pytest.approx(0.1, abs=4 * 0.3 / np.sqrt(count))
    assert straggler.max() / straggler.min() == pytest.approx(10)


def test_the_uniform_numbers_of_a_task_are_independent_of_its_neighbours() -> None:
    first, second = latency.uniforms(5, 0, 0, 0, 100_000)
    pairs = [(first[1:], first[:-1]), (first, second), (first[1:], second[:-1])]
    for left, right in pairs:
        assert abs(np.corrcoef(left, right)[0, 1]) < 4 / np.sqrt(100_000)


def test_models_compare_and_hash_by_value() -> None:
    assert latency.constant((1.0, 2.0)) == latency.constant([1, 2])
    assert hash(latency.lognormal(spread=0.3)) == hash(latency.lognormal(spread=0.3))
    assert latency.lognormal() != latency.exponential()
    assert latency.recorded([(0, 0)]) == latency.recorded(np.array([[0, 0]]))


def test_a_recorded_trace_is_summarised_by_its_length() -> None:
    assert latency.recorded([(0, 0), (0, 1)]).summary() == {"kind": "Recorded", "events": 2}


@pytest.mark.parametrize(
    ("make", "argument", "match"),
    [
        (lambda: latency.constant(0.0), "mean", "positive"),
        (lambda: latency.constant([1.0, -1.0]), "mean", "positive"),
        (lambda: latency.constant("fast"), "mean", "number"),
        (lambda: latency.lognormal(spread=-1), "spread", None),
        (lambda: latency.exponential(server_cost=-1), "server_cost", None),
        (lambda: latency.straggler(slowdown=0.5), "slowdown", None),
        (lambda: latency.straggler(probability=2), "probability", None),
        (lambda: latency.constant((1.0, 2.0)).check(3), "latency", "2.*for 3"),
        (lambda: latency.recorded([]), None, "rows"),
        (lambda: latency.recorded([(0, 0), (1,)]), None, "different lengths"),
        (lambda: latency.recorded([(0.5, 0)]), None, "integer"),
        (lambda: latency.recorded([(0, 0), (0, -1)]), None, "event 1"),
        (lambda: latency.recorded([(0, 0)], times=[1, 2]), "times", None),
        (lambda: latency.recorded([(0, 0), (4, 0)]).check(3), "latency", "worker 4"),
    ],
)
def test_bad_arguments_are_named(make: object, argument: str | None, match: str | None) -> None:
    with refused(argument=argument, match=match):
        make()  # type: ignore[operator]
