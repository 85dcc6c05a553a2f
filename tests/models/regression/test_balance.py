"""Balance of treated and other rows: sums of sites beside pooled rows, and what stays hidden."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.data.description import SiteDescription
from consortia.errors import InputError
from tests.models.regression.test_propensity import sites_of

ARM = "arm == 'hormone'"
WEIGHTS = f"exp((1 - ({ARM}))*(0.05*(age - 50) - 0.2*(grade == 'g3') + 0.3*(nodes > 3)))"
# differences of pooled rows before weights, of tests/references/propensity.R
R = {"age": 0.574211057, "nodes": 0.0343121744, "grade[g3]": -0.117086263}


def made(tables: dict[str, Any], weights: str = WEIGHTS, cells: int = 1) -> Any:
    more: dict[str, Any] = {"weights": weights, "weights_are": "sampling"}
    more |= {"describe": {"treated": ARM, "cells": cells}, "family": "bernoulli"}
    return consortia.regression("event ~ arm", tables, **more)


def lines_of(regression: Any) -> dict[str, tuple[str, ...]]:
    return {line.variable: line.cells for line in regression.table_one().balance}


def both(cell: str) -> tuple[float, ...]:
    return tuple(map(float, cell.split(" → ")))


def odds(table: dict[str, np.ndarray]) -> np.ndarray:
    of_nodes = 0.3 * (table["nodes"] > 3)
    return np.exp(0.05 * (table["age"] - 50) - 0.2 * (table["grade"] == "g3") + of_nodes)


def differences(table: dict[str, np.ndarray], values: np.ndarray, *, share: bool) -> np.ndarray:
    """Compute both differences from rows."""
    a = table["arm"] == "hormone"
    w = np.where(a, 1.0, odds(table))
    sides = [values[a], values[~a]]
    spreads = [x.mean() * (1 - x.mean()) if share else x.var(ddof=1) for x in sides]
    means = [[x.mean(), np.average(x, weights=w[s])] for x, s in zip(sides, (a, ~a), strict=True)]
    return (np.array(means[0]) - means[1]) / np.sqrt(sum(spreads) / 2)


@pytest.mark.parametrize("count", [3, 8])
def test_differences_are_those_of_rows_at_each_site_and_overall(count: int) -> None:
    tables = sites_of(count)
    lines = lines_of(made(tables))
    pooled = {name: np.concatenate([one[name] for one in tables.values()]) for name in tables["s0"]}
    for place, table in enumerate([*tables.values(), pooled]):
        for name, values, share in (
            ("age", table["age"], False),
            ("nodes", table["nodes"], False),
            ("grade[g3]", (table["grade"] == "g3").astype(float), True),
        ):
            wanted = differences(table, values, share=share)
            np.testing.assert_allclose(both(lines[name][place]), wanted, atol=6e-4)
    for name, before in R.items():
        assert both(lines[name][-1])[0] == pytest.approx(before, abs=6e-4)
    arms = pooled["arm"] == "hormone"
    w = odds(pooled)[~arms]
    assert lines["treated, other rows"][-1] == "246, 440"
    assert lines["their effective number"][-1] == f"246.0, {w.sum() ** 2 / (w**2).sum():.1f}"


def test_they_are_in_the_text_and_in_the_data_frame() -> None:
    found = made(sites_of(3)).table_one()
    assert "standardised mean differences, before → with weights" in str(found)
    frame = found.to_dataframe()
    assert "grade[g2]" in set(frame[frame["part"] == "balance"]["variable"])


def test_no_small_cell_is_told() -> None:
    tables = sites_of(3)
    one = tables["s0"]
    few = np.flatnonzero((one["arm"] == "hormone") & (one["grade"] == "g1"))
    kept = np.setdiff1d(np.arange(len(one["age"])), few[3:])
    tables["s0"] = {name: values[kept] for name, values in one.items()}
    lines = lines_of(made(tables, cells=5))
    # three treated rows have g1, and g1 with the smallest other level is not told
    assert lines["grade[g1]"][0] == "n/a"
    assert [name for name in lines if lines[name][0] != "n/a" and name.startswith("grade")] == [
        "grade[g2]"
    ]
    described = made(tables, cells=5).descriptions["s0"].balance
    assert all(round(value, 4) == value for value in described["age"])
    few = np.flatnonzero(one["arm"] == "hormone")
    kept = np.setdiff1d(np.arange(len(one["age"])), few[9:])
    tables["s0"] = {name: values[kept] for name, values in one.items()}
    assert not made(tables, cells=5).descriptions["s0"].balance  # nine treated rows
    assert lines_of(made(tables, cells=5))["age"][0] == "n/a"


def test_a_row_that_has_most_of_the_weight_hides_the_site() -> None:
    text = "1 + 1e6*exp(-1e4*(age - 61)**2)*(nodes == 6)"
    tables = {"s0": sites_of(1)["s0"]}
    for cells, told in ((1, True), (5, False)):
        assert bool(made(tables, text, cells).descriptions["s0"].balance) == told


def test_it_travels_and_is_read_again() -> None:
    one = made(sites_of(3), cells=5).descriptions["s1"]
    plain = json.loads(json.dumps(asdict(one)))
    assert SiteDescription.read(plain).balance == one.balance
    plain["balance"]["age"] = [1.0, 2.0]
    with pytest.raises(ValueError, match="not 6 numbers"):
        SiteDescription.read(plain)
    del plain["balance"]  # of an earlier version
    assert SiteDescription.read(plain).balance == {}


@pytest.mark.parametrize("treated", [3, "sex == 'f'"])
def test_treated_rows_are_an_expression_of_columns(treated: Any) -> None:
    with pytest.raises(InputError, match="treated|'sex' is not a column"):
        consortia.regression("event ~ arm", sites_of(2), describe={"treated": treated})
