"""Bases by R's words: the columns of R's splines, from one site or several."""

from __future__ import annotations

import insides
import numpy as np
import pytest

import consortia
from tests.refusals import refused

AT = np.array([20.0, 33.5, 50.0, 71.0, 80.0])
NATURAL = """
 0.06858051103644007 -0.08382788824877138  0.3330082023676918 0.1198366195478397 -0.4556962025316455
-0.22860170345480019  0.35741042114669819  0.4614012302029319 0.3842906332532329  0.5189873417721516
 0.16002119241836016 -0.25018729480268875 -0.2944094325706239 0.4934346519608321  0.9367088607594938
"""
CUBIC = """
0 0.5128945312500001 0.03125 0          0
0 0.4015195312500001 0.46875 0.0151875  0
0 0.0512578125       0.46875 0.22021875 0
0 0                  0.03125 0.59821875 0
0 0                  0       0.166375   1
"""
"""Of R 4.2.2, splines::ns with Boundary.knots c(25, 75), so that two rows lie beyond, and
splines::bs with c(20, 80); both with knots c(40, 60), a row for each column."""

NS, BS = "ns(x, knots=[40, 60], boundary=[25, 75])", "bs(x, knots=c(40, 60), boundary=[20, 80])"


def columns(formula: str, sites: int = 1) -> tuple[tuple[str, ...], np.ndarray]:
    """Return names and columns, in the units of the table, without the intercept's."""
    parts = np.array_split(np.arange(len(AT)), sites)
    y, z = np.arange(5.0), np.array([1.0, 0.0, 2.0, 1.0, 3.0])
    tables = {
        f"s{place}": {"x": AT[part], "y": y[part], "z": z[part]} for place, part in enumerate(parts)
    }
    made = consortia.regression(formula, tables)
    spec = made.specification
    found = [insides.design_matrix(spec, made.tables[name], name) for name in spec.sites]
    return made.names, np.concatenate(found)[:, 1:]


@pytest.mark.parametrize("sites", [1, 2])
@pytest.mark.parametrize(("term", "wanted"), [(NS, NATURAL), (BS, CUBIC)], ids=["ns", "bs"])
def test_columns_are_those_of_r(term: str, wanted: str, sites: int) -> None:
    names, found = columns(f"y ~ {term}", sites)
    R = np.array([line.split() for line in wanted.strip().split("\n")], float).T
    np.testing.assert_allclose(found, R, atol=1e-12)
    assert names == tuple(f"{term}{number}" for number in range(1, R.shape[1] + 1))


def test_powers_are_raw_and_products_are_of_all_columns() -> None:
    names, found = columns("y ~ z:poly(x, 2, raw=TRUE)")
    assert names == ("z:poly(x, 2, raw=TRUE)1", "z:poly(x, 2, raw=TRUE)2")
    z = np.array([1.0, 0.0, 2.0, 1.0, 3.0])
    np.testing.assert_allclose(found, np.stack([z * AT, z * AT**2], axis=1))


@pytest.mark.parametrize(
    ("formula", "argument", "match"),
    [
        ("y ~ ns(x, df=3)", "formula", "quantiles are values of rows"),
        (
            "y ~ bs(x, knots=[90], boundary=[20, 80])",
            "formula",
            "knots that increase inside the boundary",
        ),
        ("y ~ bs(x, knots=[x], boundary=[20, 80])", "formula", "is not a list of numbers"),
        ("y ~ poly(x, 2)", "formula", "raw=TRUE"),
        ("y ~ poly(x, 40, raw=TRUE)", "formula", "from 1.*to 9"),
        ("y ~ I(ns(x))", "formula", "stands outermost"),
        ("ns(y, boundary=[20, 80]) ~ x", "formula", "give a column or an expression"),
        ("y ~ bs(x, knots=[40], boundary=[30, 80])", "x", "in 1.*of 5"),
    ],
)
def test_what_cannot_be_agreed_on_is_refused(formula: str, argument: str, match: str) -> None:
    with refused(argument=argument, match=match):
        columns(formula)


def test_the_effect_of_a_column_goes_through_its_basis() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(25, 75, 200)
    tables = {
        "a": {"x": x[:120], "y": x[:120] ** 2 / 100},
        "b": {"x": x[120:], "y": x[120:] ** 2 / 100},
    }
    made = consortia.regression(f"y ~ {NS}", tables)
    draws = {"intercept": np.zeros((1, 4)), "log_sigma": np.zeros((1, 4))}
    X = np.concatenate([made.rows.site(name)["x"] for name in ("a", "b")])
    fitted = np.linalg.lstsq(np.column_stack([X, np.ones(200)]), x**2 / 100, rcond=None)[0]
    draws["coefficients"] = np.broadcast_to(fitted[:-1], (1, 4, 3))
    found = made.marginal_effects(draws)
    np.testing.assert_allclose(np.mean(found.draws), np.mean(x / 50), rtol=0.02)


@pytest.mark.parametrize("missing", ["complete", "indicator"])
def test_a_value_that_misses_is_not_outside_the_boundary(missing: str) -> None:
    holes = {"x": np.array([np.nan, 33.5, 50.0, 71.0, 80.0]), "y": np.arange(5.0)}
    made = consortia.regression(f"y ~ {BS}", {"s": holes}, missing=missing)
    assert len(made.rows.site("s")["y"]) == (4 if missing == "complete" else 5)


def test_an_effect_at_the_boundary_is_the_slope_there() -> None:
    x = np.array([20.0, 20.0001, 50.0, 79.9999, 80.0])
    made = consortia.regression(f"y ~ {BS}", {"s": {"x": x, "y": x}})
    draws = {"intercept": np.zeros((1, 1)), "log_sigma": np.zeros((1, 1))}
    draws["coefficients"] = np.array([[[1.0, 2.0, 3.0, 4.0, 5.0]]])
    found = made.marginal_effects(draws)

    def mean(at: np.ndarray) -> np.ndarray:
        return np.asarray(made.predict(draws, {"x": at, "y": at}, "s"))[0, 0]

    step = 1e-2 * np.array([1, 1, 1, -1, -1])
    wanted = np.mean((mean(x + step) - mean(x)) / step)
    np.testing.assert_allclose(found.draws[0], wanted, rtol=2e-3)
    with refused(argument="x"):
        made.marginal_effects(draws, data={"s": {"x": x + np.array([0, 0, 0, 0, 1.0])}})
