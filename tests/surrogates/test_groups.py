"""Coordinates of hierarchical models: one to one, and with the law of what is common to sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special

import consortia
from consortia.core.target import Target
from consortia.surrogates.proposals.groups import Groups, groups_of

FORMULAS = tuple(f"y ~ x + z + ({terms} | site)" for terms in ("1", "1 + x", "1 + x + z"))
SITES = 4


def made(formula: str, **options: Any) -> tuple[Target, Groups]:
    """Return the posterior of a formula, and coordinates around some mode."""
    rng, tables = np.random.default_rng(3), {}
    for site in range(SITES):
        x, z = rng.normal(size=(2, 60)) * [[1.0], [3.0]]
        tables[f"s{site}"] = {"x": x, "z": z, "y": x + rng.normal(size=60) + 0.1 * site}
    model = consortia.regression(formula, tables, **options).model
    target = Target(model, model.init)
    start = np.asarray(target.ravel(model.init), np.float64)
    groups = groups_of(target, start)
    assert groups is not None
    mode = start + 0.2 * rng.normal(size=len(start))
    return target, Groups(mode, rng.uniform(0.001, 0.01, len(start)), groups)


@pytest.mark.parametrize("formula", FORMULAS)
def test_coordinates_are_one_to_one_and_their_volume_is_that_of_differences(formula: str) -> None:
    target, groups = made(formula)
    d = target.dimension
    points = groups.mode + np.random.default_rng(4).normal(size=(30, d))
    z, log_volume = groups.white(points)
    np.testing.assert_allclose(groups.positions(z), points, rtol=1e-6, atol=1e-6)
    moves = 1e-5 * np.eye(d)
    for point, wanted in zip(points, log_volume, strict=True):
        ahead, behind = groups.white(point + moves)[0], groups.white(point - moves)[0]
        slopes = (ahead - behind) / 2e-5
        # s is in single precision, so that differences have an error of about 1e-3
        assert np.linalg.slogdet(slopes)[1] == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize("formula", FORMULAS[1:])
def test_common_levels_and_slopes_have_the_covariance_of_their_spread(formula: str) -> None:
    """Given τ and R it is diag(v) + diag(s) R diag(s)."""
    target, groups = made(formula)
    point = groups.mode + np.random.default_rng(5).normal(size=target.dimension)
    places = target.layout.places
    size = formula.split("(")[1].count("+") + 1
    slopes = places["coefficients"][0].start + np.arange(size - 1)
    members = np.array([places["intercept"][0].start, *slopes])

    def covariance(at: np.ndarray) -> np.ndarray:
        params = target.layout.params(at[None])
        first, *others = special.erf(params["correlation_score"][0] / np.sqrt(2))
        correlation = np.array([[1, first], [first, 1]])
        if others:  # partial ones of the third column
            third = first * others[0] + others[1] * np.sqrt((1 - first**2) * (1 - others[0] ** 2))
            column = np.array([[others[0]], [third]])
            correlation = np.block([[correlation, column], [column.T, np.ones((1, 1))]])
        s = groups.spread_of.group_sd(at[None])[0, members]  # τ/√J in the parameters' units
        return np.diag(groups.variance[members]) + correlation * np.outer(s, s)

    z, moves = groups.white(point[None])[0], np.zeros((size, target.dimension))
    moves[np.arange(size), members] = 1e-3
    ends = groups.positions(z + moves), groups.positions(z - moves)
    jacobian = (ends[0] - ends[1])[:, members].T / 2e-3
    at_mode = jacobian @ covariance(groups.mode) @ jacobian.T
    np.testing.assert_allclose(at_mode, covariance(point), rtol=1e-3)
