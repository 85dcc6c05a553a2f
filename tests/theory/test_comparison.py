"""Bias against messages of several methods: beside laws of single settings, and a run."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sparse import sparse
from theory.test_settings import TARGET, problem_of

import consortia
from consortia.diagnostics.figures import comparison as drawn
from consortia.theory import comparison
from consortia.theory.bias import Problem, known_law

CHAINS = 4


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problem_of("unlike")


def test_a_point_is_the_law_of_the_settings_and_counts_what_passes_one_after_the_other(problem):
    chosen = consortia.fa_hmc(0.05, 3, 2)
    law = known_law(chosen, problem)
    off = max(
        np.abs(law.stationary.bias / problem.near.sd).max(),
        np.abs(law.stationary.sd_ratio - 1).max(),
    )
    bias, messages = comparison.point(chosen, problem, CHAINS)
    assert bias == pytest.approx(off)
    assert messages == pytest.approx(law.rounds_per_draw * 400 / CHAINS)
    late = consortia.stale_sgld(1e-3, workers=4)
    rounds = known_law(late, problem).rounds_per_draw
    assert comparison.point(late, problem, CHAINS)[1] == pytest.approx(rounds * 100 / 4)


@pytest.mark.slow
def test_curves_fall_and_meet_the_target_where_the_settings_were_chosen(problem):
    curves, reasons = comparison.curves(problem, TARGET, CHAINS)
    assert {"fa_hmc", "stale_sgld", "de_sgld"} <= {curve.name for curve in curves}
    for curve in curves:
        assert list(curve.biases) == sorted(curve.biases)
        assert list(curve.messages) == sorted(curve.messages, reverse=True)
        assert curve.biases[0] < TARGET.mean, curve.name
    assert set(reasons) | {curve.name for curve in curves} == set(comparison.candidates(4))


def test_a_method_without_visible_bias_and_a_study_with_a_large_one_are_drawn_at_the_edges(
    monkeypatch, tmp_path
):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(drawn, "write_figure", lambda figure, path: figure)
    curve = comparison.Curve("fa_hmc", (0.0, 1e-7, 0.03), (400.0, 300.0, 200.0))
    figure = drawn.draw_comparison([curve], {"few_rounds": 3.0}, tmp_path / "a.png", (2.0, 90.0))
    (axes,) = figure.axes
    lines = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
    assert lines["fa_hmc"] == [drawn.SEEN, 0.03]  # the cheaper of two at the edge
    assert lines["this study"] == [drawn.MOST]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert (labels[0], labels[-1]) == ("≤ 0.002", "≥ 0.5")


def test_many_parameters_are_compared_in_a_few_directions(monkeypatch):
    monkeypatch.setattr(comparison, "candidates", lambda sites: {"fa_hmc": {}, "dsgld": {}})
    curves, reasons = comparison.curves(problem_of("ill-conditioned", d=20), TARGET, CHAINS)
    assert {"fa_hmc", "dsgld"} <= {curve.name for curve in curves}, reasons


@pytest.mark.parametrize(
    ("kind", "d"),
    sparse(itertools.product(["unlike", "unlike and ill-conditioned"], [3, 12]), [("unlike", 12)]),
)
def test_the_messages_of_federated_hmc_are_those_of_a_run(kind, d):
    problem = problem_of(kind, d=d)
    tree = consortia.sample(
        problem.model, problem.sites, consortia.federated_hmc(), rounds=400, warmup=300,
        chains=CHAINS, seed=2, progress=False,
    )  # fmt: skip
    sent = float(np.mean(np.asarray(tree.sample_stats.n_steps)))
    assert 100 * sent == pytest.approx(comparison.exact_messages(problem, CHAINS), rel=0.3)
    assert np.min(consortia.summary(tree)["ess_bulk"]) > 0.9 * 400 * CHAINS
