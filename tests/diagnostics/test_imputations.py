"""Draws given several imputations: what differs between them is no fault of the sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray

from consortia.diagnostics import convergence, summary
from consortia.diagnostics.verdict import Severity

CHAINS, DRAWS = 4, 400


def tree_of(draws: np.ndarray, imputations: int | None) -> Any:
    """Return a result of draws (chain, m × draw) of one coordinate, as a run has it."""
    coords = {}
    if imputations is not None:
        coords["imputation"] = ("draw", np.repeat(np.arange(imputations), DRAWS))
    posterior = xarray.Dataset({"beta": (("chain", "draw"), draws)}, coords=coords)
    tree = xarray.DataTree.from_dict({"posterior": posterior})
    tree.attrs.update({"algorithm": "few_rounds", "imputations": imputations})
    return tree


def drawn(imputations: int, between: float, seed: int = 0) -> np.ndarray:
    """Return independent draws, of variance 1 given an imputation, whose means differ."""
    rng = np.random.default_rng(seed)
    means = np.repeat(between * rng.standard_normal(imputations), DRAWS)
    return means + rng.standard_normal((CHAINS, imputations * DRAWS))


def found(tree: Any, title: str) -> Any:
    return next(one for one in summary(tree).verdict.checks if one.title == title)


def test_posteriors_that_differ_between_imputations_leave_r_hat_and_ess_alone():
    draws = drawn(20, 1.0)
    own, blind = convergence(tree_of(draws, 20)), convergence(tree_of(draws, None))
    assert own.r_hat["beta"] < 1.02
    # independent draws, so as many as there are; 20 % is beyond the error of 20 sums of 1600
    assert 0.8 < own.ess_bulk["beta"] / draws.size < 1.2
    assert blind.r_hat["beta"] > 1.05 or blind.ess_bulk["beta"] < 400
    assert found(tree_of(draws, 20), "Do the chains agree?").severity is Severity.GOOD
    assert found(tree_of(draws, 20), "Are there enough draws?").severity is Severity.GOOD


def test_chains_apart_within_one_imputation_are_still_seen():
    draws = drawn(20, 0.0)
    draws[0, 3 * DRAWS : 4 * DRAWS] += 2.0
    assert convergence(tree_of(draws, 20)).r_hat["beta"] > 1.05


def test_the_fraction_of_missing_information_is_that_of_the_variances():
    fractions, errors = [], []
    for seed in range(10):
        table = summary(tree_of(drawn(20, 1.0, seed), 20))
        fractions.append(table["fmi"][0])
        errors.append(table["mcse_mean"][0])
    # B = W = 1: (r + 2/(ν + 3))/(r + 1) with r = 1.05 is 0.525; its error is
    # √(2/19)/4 = 0.08 a table, 0.026 of ten, and the mean of a ratio is below it
    assert abs(np.mean(fractions) - 0.525) < 0.08
    assert abs(np.mean(errors) - 1 / np.sqrt(20)) < 0.04
    assert summary(tree_of(drawn(20, 0.0), 20))["fmi"][0] < 0.02


def test_the_verdict_says_how_much_is_missing_and_how_many_imputations_it_takes():
    enough, few = tree_of(drawn(60, 0.5), 60), tree_of(drawn(4, 1.0), 4)
    check = found(enough, "How much information is missing?")
    assert check.severity is Severity.GOOD
    assert "60 imputations are enough" in check.reason
    check = found(few, "How much information is missing?")
    assert check.severity is Severity.WARNING
    assert "4 imputations are too few" in check.reason
    assert "Take" in check.action
    assert "fmi is the fraction of missing information" in str(summary(few))
