"""Points a message by the measured seconds of a log-density and of a message."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings

import jax
import numpy as np
import pytest
from parity import problem
from parity.comparing import assert_same_run
from parity.flower_sites import Sites

import consortia
from consortia.algorithms.few_rounds import FIT_ROUNDS, PATIENCE, few_rounds
from consortia.core.target import Target
from consortia.errors import InputError, SiteRefusedError
from consortia.run import execution
from consortia.run.pace import seconds_of_point

SLOW = 0.11
"""Seconds a point with which PATIENCE allows fewer than 300."""

K = math.ceil(PATIENCE / SLOW)


@pytest.fixture
def slow(monkeypatch):
    """Every log-density takes so long, and each is timed."""
    timed = []
    monkeypatch.setattr(execution, "WORK_TIMED", 0)
    monkeypatch.setattr(execution, "seconds_of_point", lambda *given: timed.append(1) or SLOW)
    return timed


def sampled(**more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        given = {"chains": 2, "seed": problem.SEED, "rounds": 3, "progress": False, **more}
        method = given.pop("method", few_rounds(effective_size=None))
        return consortia.sample(problem.MODEL, problem.sites(3), method, **given)


@pytest.mark.parametrize(("point", "message"), [(0.1, 0.05), (0.1, 20.0), (0.02, 100.0)])
def test_the_chosen_number_of_points_takes_the_least_time_of_all_that_are_allowed(point, message):
    """Beside every other K: draws take as many points in all, the fit K in each of its rounds."""
    method = few_rounds()
    wanted, chosen = method.points, method.paced(point, message, 3).points

    def seconds(k):
        return (FIT_ROUNDS + wanted / k) * (message + k * point)

    allowed = range(max(256, math.ceil(PATIENCE / point)), wanted + 1)
    assert chosen in allowed
    assert seconds(chosen) <= 1.0001 * min(map(seconds, allowed))


def test_many_parameters_keep_as_many_points_as_a_fit_needs_and_quick_ones_all():
    assert few_rounds().paced(10.0, 0.0, 100).points == 1600
    assert few_rounds().paced(1e-4, 5.0, 3) == few_rounds()
    assert few_rounds(proposals=4000).open_points(3) == 0


@pytest.mark.slow
def test_a_run_says_its_points_and_keeps_them_when_it_is_resumed_however_fast_it_is_then(
    slow, tmp_path
):
    """It is the run that asked for so many; nothing is timed when it goes on."""
    plans = []
    sampled(on_plan=plans.append, store=tmp_path / "run")
    line = dict(plans[0].lines)["chosen"]
    assert f"{{'proposals': {K}}}, in place of 4,000" in line
    sites, method = problem.sites(3), few_rounds(effective_size=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = consortia.resume(
            tmp_path / "run", problem.MODEL, sites, method, rounds=5, progress=False
        )
    assert slow == [1]
    used = [one for one in json.loads(tree.attrs["rounds_used"]) if one["for"] != "mode"]
    assert {one["points"] for one in used} == {K + K % 2}
    asked = sampled(rounds=5, method=few_rounds(effective_size=None, proposals=K))
    for name, draws in asked["posterior"].data_vars.items():
        assert np.array_equal(draws, tree["posterior"][name])


@pytest.mark.engines
def test_sites_over_messages_are_told_the_points_and_refuse_others_than_their_study_has(
    slow, tmp_path
):
    with jax.enable_x64(True):
        case = Sites(tmp_path, "few_rounds", 3, 2, proposals=None, warmup=0)
        assert_same_run(case.sampled(rounds=3), sampled(method=case.method))
        for number in range(3):
            other = few_rounds(proposals=64, components=3, effective_size=None)
            case.restart(number, method=other)
        with pytest.raises(SiteRefusedError):
            case.sampled(rounds=3)
    assert any("is not open" in str(error) for error in case.gates[0].errors.values())


@pytest.mark.parametrize("chosen", [{"proposals": 63}, {"proposals": 4001}, {"chains": 2}])
def test_a_chosen_number_that_the_study_does_not_leave_open_is_refused(chosen):
    with pytest.raises(InputError):
        few_rounds().with_chosen(chosen, 16)
    with pytest.raises(InputError, match="nothing is left open"):
        consortia.fa_ld(step_size=0.1, local_steps=2).with_chosen(chosen, 16)


def test_a_log_density_is_timed_where_the_rows_are_and_of_zeros_where_none_is():
    sites, target = problem.sites(3), Target(problem.MODEL, problem.MODEL.init)
    away = dataclasses.replace(
        sites,
        shards=tuple({n: a[:0] for n, a in shard.items()} for shard in sites.shards),
        elsewhere=frozenset(range(3)),
    )
    for some in (sites, away):
        assert 0 < seconds_of_point(target, some, np.zeros(target.dimension)) < 10
