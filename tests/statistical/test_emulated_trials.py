"""Emulated trials: how often the robust interval of a weighted effect holds the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray

import consortia
from consortia.core.parameters import POSTERIOR, UNCONSTRAINED
from consortia.models.regression.propensity import ESTIMANDS
from tests.models.regression.modes import mode_and_covariance, mode_and_spread

TRIALS, ROWS = 500, 400
DRAWN, DRAWS = 40, 6
"""Trials in which treatment's coefficients are also drawn, and so often."""
WIDE = {"coefficients": "normal(0, 1000)", "intercept": "normal(0, 1000)"}
COLUMNS = ("arm", "x", "z", "y")


def trial(rng: np.random.Generator) -> dict[str, dict[str, np.ndarray]]:
    """Return the rows of three sites, whose treatment has no effect but depends on covariates."""
    x, z = rng.normal(size=(2, ROWS))
    arm = (rng.random(ROWS) < 1 / (1 + np.exp(-0.2 - 0.7 * x + 0.5 * z))).astype(float)
    y = (rng.random(ROWS) < 1 / (1 + np.exp(0.3 - x - 0.5 * z))).astype(float)
    site = rng.integers(0, 3, ROWS)
    every = dict(zip(COLUMNS, (arm, x, z, y), strict=True))
    return {f"s{at}": {name: one[site == at] for name, one in every.items()} for at in range(3)}


def weights_of(made: Any, at: np.ndarray, estimand: str) -> str:
    """Return the weights at coefficients of who was treated, in the place of a posterior's mean."""
    natural = made.density.natural({"coefficients": at[None, :2], "intercept": at[None, 2]})
    draws = {
        "coefficients": (("chain", "draw", "c"), natural["coefficients"][None]),
        "intercept": (("chain", "draw"), natural["intercept"][None]),
    }
    posterior = xarray.Dataset(draws)
    tree = xarray.DataTree.from_dict({POSTERIOR: posterior, UNCONSTRAINED: posterior})
    tree.attrs["settings"] = dict(made.metadata.settings)
    return consortia.propensity_weights(tree, estimand=estimand)


def estimate(formula: str, tables: Any, weights: str) -> tuple[float, float]:
    """Return the effect of the arm and its robust standard deviation."""
    more: dict[str, Any] = {"weights": weights, "prior": WIDE, "weights_are": "sampling"}
    made = consortia.regression(formula, tables, family="bernoulli", **more)
    mode, spread = mode_and_spread(made)
    return float(mode[0]), float(spread[0])


@pytest.mark.slow
def test_intervals_of_weighted_effects_hold_the_truth() -> None:
    rng, plain = np.random.default_rng(1), "y ~ arm"
    found: dict[tuple[str, str], list[tuple[float, float]]] = {
        (plain, "ATE"): [],
        ("y ~ arm + x + z", "ATE"): [],
        (plain, "ATT"): [],
        (plain, "overlap"): [],
    }
    between = []
    for number in range(TRIALS):
        tables = trial(rng)
        made = consortia.regression("arm ~ x + z", tables, family="bernoulli", prior=WIDE)
        at, covariance = mode_and_covariance(made)
        texts = {name: weights_of(made, at, name) for name in ESTIMANDS}
        for formula, estimand in found:
            found[formula, estimand].append(estimate(formula, tables, texts[estimand]))
        if number < DRAWN:  # weights of a draw each
            other = np.random.default_rng(number).multivariate_normal(at, covariance, DRAWS)
            every = [estimate(plain, tables, weights_of(made, each, "ATE"))[0] for each in other]
            between.append(np.var(every, ddof=1))
    shares, ratios = {}, {}
    for key, pairs in found.items():
        effects, spreads = np.array(pairs).T
        shares[key] = np.mean(np.abs(effects) < 1.96 * spreads)
        ratios[key] = np.sqrt(np.mean(spreads**2)) / effects.std()
    effects, spreads = np.array(found[plain, "ATE"]).T
    within = np.mean(spreads**2)
    ratio = np.sqrt(within + np.mean(between)) / effects.std()
    drawn = np.mean(np.abs(effects) < 1.96 * spreads * np.sqrt(1 + np.mean(between) / within))
    print(shares, ratios, "a draw each", ratio, drawn)
    assert all(0.93 <= share <= 0.97 for share in shares.values())
    assert 1 < ratios[plain, "ATE"] < ratio  # the sandwich is wide, and a draw each widens it
