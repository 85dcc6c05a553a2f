"""Emulated trials: how often the robust interval of a weighted effect holds the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray

import consortia
from consortia.core.parameters import POSTERIOR, UNCONSTRAINED
from tests.models.regression.modes import mode_and_covariance, mode_and_spread

TRIALS, ROWS = 500, 400
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


def weights_of(tables: Any) -> str:
    """Return the weights at the mode of who was treated, in the place of a posterior's mean."""
    made = consortia.regression("arm ~ x + z", tables, family="bernoulli", prior=WIDE)
    at, _ = mode_and_covariance(made)
    natural = made.density.natural({"coefficients": at[None, :2], "intercept": at[None, 2]})
    draws = {
        "coefficients": (("chain", "draw", "c"), natural["coefficients"][None]),
        "intercept": (("chain", "draw"), natural["intercept"][None]),
    }
    posterior = xarray.Dataset(draws)
    tree = xarray.DataTree.from_dict({POSTERIOR: posterior, UNCONSTRAINED: posterior})
    tree.attrs["settings"] = dict(made.metadata.settings)
    return consortia.propensity_weights(tree, estimand="ATE")


@pytest.mark.slow
def test_intervals_of_weighted_effects_hold_the_truth() -> None:
    rng, covered = np.random.default_rng(1), {"y ~ arm": 0, "y ~ arm + x + z": 0}
    for _ in range(TRIALS):
        tables = trial(rng)
        more: dict[str, Any] = {"weights": weights_of(tables), "prior": WIDE}
        more |= {"weights_are": "sampling", "family": "bernoulli"}
        for formula in covered:
            made = consortia.regression(formula, tables, **more)
            mode, spread = mode_and_spread(made)
            covered[formula] += abs(mode[0]) < 1.96 * spread[0]
    shares = {formula: count / TRIALS for formula, count in covered.items()}
    print(shares)
    assert all(0.93 <= share <= 0.97 for share in shares.values())
