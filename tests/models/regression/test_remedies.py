"""Values that a family cannot have: the remedy that is named, and that it works."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.errors import InputError
from tests.refusals import refused

ROWS = 40


def table(**changes: Any) -> dict[str, Any]:
    """Return a table with some values in its fourth row."""
    rng = np.random.default_rng(0)
    made = {
        "stop": rng.integers(2, 90, ROWS).astype(float),
        "start": np.ones(ROWS),
        "event": rng.integers(0, 2, ROWS).astype(float),
        "x": rng.normal(size=ROWS),
        "y": rng.integers(0, 9, ROWS).astype(float),
        "n": np.full(ROWS, 10.0),
        "share": rng.uniform(0.1, 0.9, ROWS),
        "w": np.ones(ROWS),
    }
    for name, value in changes.items():
        made[name][3] = value
    return made


def made(formula: str, changes: dict[str, Any], **options: Any) -> consortia.Regression:
    return consortia.regression(formula, {"a": table(**changes), "b": table()}, **options)


CASES: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    # formula, what is wrong, options, the remedy, the formula with it
    ("Surv(stop, event) ~ x", {"stop": 0}, {"family": "cox"}, "write stop + 0.5 for stop",
     "Surv(stop + 0.5, event) ~ x"),
    ("Surv(stop, event) ~ x", {"stop": 0}, {"family": "weibull"}, "write stop + 0.5 for stop",
     "Surv(stop + 0.5, event) ~ x"),
    ("Surv(start, stop, event) ~ x", {"start": 7, "stop": 7}, {"family": "cox"},
     "write stop + 0.5 for stop", "Surv(start, stop + 0.5, event) ~ x"),
    ("share ~ x", {"share": 0}, {"family": "beta"}, "write I((share * 99 + 0.5) / 100)",
     "I((share * 99 + 0.5) / 100) ~ x"),
    ("share ~ x", {"share": 1}, {"family": "beta"}, "write I((share * 99 + 0.5) / 100)",
     "I((share * 99 + 0.5) / 100) ~ x"),
    ("event ~ x", {"event": 2}, {"family": "bernoulli"}, "event == 2", "I(event == 2) ~ x"),
    ("Surv(stop, event) ~ x", {"event": 2}, {"family": "cox"}, "event == 2",
     "Surv(stop, event == 2) ~ x"),
    ("stop ~ log(y)", {"y": 0}, {}, "write log1p(...)", "stop ~ log1p(y)"),
]  # fmt: skip


@pytest.mark.parametrize(("formula", "changes", "options", "remedy", "mended"), CASES)
def test_a_value_outside_the_family_has_a_remedy_that_works(
    formula: str, changes: dict[str, Any], options: dict[str, Any], remedy: str, mended: str
) -> None:
    with refused(site="a", match=rf"row 4(.|\n)*{re.escape(remedy)}") as caught:
        made(formula, changes, **options)
    assert "missing_values" not in str(caught.value)
    assert len(made(mended, changes, **options).sites.site("a")["y"]) == ROWS


KEPT: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("Surv(stop, event) ~ x", {"stop": 0}, {"family": "cox"}, "stop > 0"),
    ("Surv(stop, event) ~ x", {"stop": -3}, {"family": "weibull"}, "stop > 0"),
    ("Surv(start, stop, event) ~ x", {"start": 90}, {"family": "cox"}, "0 <= start < stop"),
    ("share ~ x", {"share": 0}, {"family": "beta"}, "0 < share < 1"),
    ("stop ~ x", {"stop": 0}, {"family": "gamma"}, "stop > 0"),
    ("y ~ x", {"y": -2}, {"family": "poisson"}, "y >= 0"),
    ("y ~ x", {"n": 0}, {"family": "poisson", "exposure": "n"}, "n > 0"),
    ("y ~ x", {"n": 0}, {"family": "binomial", "trials": "n"}, "n > 0"),
    ("y ~ x", {"w": -0.5}, {"weights": "w"}, "w >= 0"),
]


@pytest.mark.parametrize(("formula", "changes", "options", "keep"), KEPT)
def test_rows_that_cannot_be_are_left_out_by_keep_and_counted(
    formula: str, changes: dict[str, Any], options: dict[str, Any], keep: str
) -> None:
    with refused(site="a", match=re.escape(f'[data] keep = "{keep}"')):
        made(formula, changes, **options)
    found = made(formula, changes, keep=keep, describe={"cells": 1}, **options)
    one = [keep_true(table(**changes), keep).sum(), keep_true(table(), keep).sum()]
    assert [len(found.sites.site(site)["y"]) for site in ("a", "b")] == one
    flow = {line.variable: line.cells for line in found.table_one().flow}
    assert flow["read"] == ("40", "40", "80")
    left = [str(ROWS - count) for count in one]
    assert flow[f"left out, not {keep}"] == (*left, str(2 * ROWS - sum(one)))
    assert flow["analysed"] == (*map(str, one), str(sum(one)))
    assert f" of which {keep} is not true (a " in found.notes[0]


def keep_true(rows: dict[str, Any], keep: str) -> np.ndarray:
    """Mark the rows that satisfy a condition of one or two comparisons."""
    parts = re.split(r" (<=|>=|<|>) ", keep)
    values = [rows[one] if one in rows else float(one) for one in parts[::2]]
    compare = {"<": np.less, ">": np.greater, "<=": np.less_equal, ">=": np.greater_equal}
    holds = [
        compare[sign](values[place], values[place + 1]) for place, sign in enumerate(parts[1::2])
    ]
    return np.all(holds, axis=0)


@pytest.mark.parametrize("sites", [2, 8])
@pytest.mark.parametrize(
    ("formula", "changes", "family", "remedy"),
    [
        ("Surv(stop, event) ~ x", {"stop": 0}, "cox", "write stop + 0.5 for stop"),
        ("share ~ x", {"share": 1}, "beta", "write I((share * 99 + 0.5) / 100)"),
    ],
)
def test_each_site_has_its_line_and_a_remedy_of_all_is_said_once(
    formula: str, changes: dict[str, Any], family: str, remedy: str, sites: int
) -> None:
    names = "abcdefgh"[:sites]
    with pytest.raises(InputError) as caught:
        consortia.regression(formula, {name: table(**changes) for name in names}, family=family)
    lines = str(caught.value).splitlines()
    assert [line[:8] for line in lines] == [f"site '{name}'" for name in names]
    assert all(f"outside the family {family} in" in line for line in lines)
    assert [remedy in line for line in lines] == [False] * (sites - 1) + [True]


def test_shares_of_trials_are_counts_once_they_are_multiplied() -> None:
    rows = [table(), table()]
    for one in rows:
        one["share"] = one["y"] / one["n"]
    with refused(site="site 0", match=re.escape("write I(share * n) for share")):
        consortia.regression("share ~ x", rows, family="binomial", trials="n")
    found = consortia.regression("I(share * n) ~ x", rows, family="binomial", trials="n")
    np.testing.assert_array_equal(found.sites.shards[0]["y"], rows[0]["y"])
    with refused(site="a", match="a count is an integer: round it at the site"):
        made("y ~ x", {"y": 5.5}, family="binomial", trials="n")


def test_a_customary_code_may_be_missing_and_a_number_may_not() -> None:
    with refused(site="a", match=re.escape("a.missing_values] stop = [-9]")):
        made("Surv(stop, event) ~ x", {"stop": -9}, family="cox")
    with pytest.raises(InputError) as caught:
        made("Surv(stop, event) ~ x", {"stop": -37.5}, family="cox")
    assert "missing_values" not in str(caught.value)


def test_keep_may_compare_words_and_refuses_what_is_true_nowhere() -> None:
    rows = [table() | {"ward": ["ICU", "other"] * 20} for _ in range(2)]
    found = consortia.regression("y ~ x", rows, keep="ward == 'ICU'")
    assert found.specification.rows == (20, 20)
    with refused(site="site 0", match="is true of none of the 40 rows"):
        consortia.regression("y ~ x", rows, keep="ward == 'other ward'")
    with refused(site="site 0", match="did you mean 'ward'"):
        consortia.regression("y ~ x", rows, keep="wrad == 'ICU'")


def test_rows_whose_condition_misses_are_not_kept() -> None:
    rows = [table(x=np.nan), table()]
    assert consortia.regression("y ~ n", rows, keep="x > -9").specification.rows == (39, 40)
    other = consortia.regression("y ~ n", rows)
    assert consortia.regression("y ~ n", rows, keep="n > 0").specification.digest != (
        other.specification.digest
    )
