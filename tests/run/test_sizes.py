"""`plan_size`: intervals of data simulated from the prior; and levels against one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray

import consortia
from consortia.run.calibration import simulated
from tests.refusals import refused

PRIOR = {"coefficients": "normal(0, 0.5)", "sigma": "half_normal(1)", "intercept": "normal(0, 1)"}


def made(formula: str = "y ~ x", **more: Any) -> Any:
    rng = np.random.default_rng(0)
    tables = {
        name: {
            "y": rng.normal(size=40),
            "x": rng.normal(size=40),
            "w": np.ones(40),
            "arm": rng.choice(["a", "b", "c"], 40),
        }
        for name in ("oslo", "lima")
    }
    return consortia.regression(formula, tables, **{"prior": PRIOR} | more)


def test_rows_are_drawn_again_to_each_size_and_responses_are_new() -> None:
    one = made()
    params = one.density.draw(np.random.default_rng(1), 1)
    sites = simulated(one, params, np.random.default_rng(2), 2.5)
    assert tuple(sites.sizes) == (100, 100)
    assert np.isin(sites.site("oslo")["x"], one.rows.site("oslo")["x"]).all()
    assert not np.isin(sites.site("oslo")["y"], one.rows.site("oslo")["y"]).any()


@pytest.mark.slow
def test_four_times_the_rows_halve_the_interval_and_intervals_hold_the_truth() -> None:
    fixed = {**PRIOR, "sigma": "log_normal(0, 0.01)"}  # a spread of 1: widths vary little
    found = consortia.plan_size(
        made(prior=fixed), consortia.few_rounds(), times=[1, 4], simulations=20, level=0.8
    )
    assert found.rows == (80, 320)
    assert found.width[0, 0] / found.width[1, 0] == pytest.approx(2.0, rel=0.15)
    # of 40 intervals of 80 %: 4 standard errors
    assert found.covered.mean() == pytest.approx(0.8, abs=4 * np.sqrt(0.8 * 0.2 / 40))
    assert "9 of 10 below" in str(found)
    assert len(found.to_dataframe()) == 2


@pytest.mark.parametrize(
    ("formula", "more", "argument"),
    [
        ("y ~ x", {"weights": "w"}, "weights"),
        ("y ~ 1 + (1 | site)", {}, "formula"),
    ],
)
def test_what_cannot_be_simulated_is_refused(formula: str, more: Any, argument: str) -> None:
    prior = {} if "site" in formula else PRIOR
    with refused(argument=argument):
        consortia.plan_size(made(formula, prior=prior, **more), consortia.few_rounds())


def test_contrasts_are_differences_of_the_draws() -> None:
    one = made("y ~ x + arm")
    values = np.random.default_rng(3).normal(size=(2, 200, 3))
    basis = one.density.slopes_of_basis
    sampled = values @ np.linalg.inv(basis).T
    posterior = xarray.Dataset(
        {
            "coefficients": (("chain", "draw", "column"), sampled),
            "intercept": (("chain", "draw"), values[..., 0]),
            "log_sigma": (("chain", "draw"), values[..., 1]),
        }
    )
    tree = xarray.DataTree.from_dict({"/posterior": posterior})
    found = one.contrasts(tree, "arm")
    b, c = values[..., one.names.index("arm[b]")], values[..., one.names.index("arm[c]")]
    assert found.names == ("arm: b − a", "arm: c − a", "arm: c − b")
    np.testing.assert_allclose(
        found.median, [np.median(b), np.median(c), np.median(c - b)], rtol=1e-4
    )
    for factor in ("x", "site"):
        with refused(argument="factor", match=f"'{factor}': .*arm"):
            one.contrasts(tree, factor)
    with refused(argument="factor", match="arm is in a product"):
        made("y ~ x * arm").contrasts(tree, "arm")
