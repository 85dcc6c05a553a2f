"""Rows that stand for several persons: they are counted as those persons' rows would be."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import xarray

import consortia
from consortia.report.methods import paragraph
from consortia.report.run_report import report_of
from consortia.report.tables import contribution_table

SITES = ("oslo", "lima")


def cells(site: int) -> dict[str, np.ndarray]:
    """Return cells of words with how many persons are in each."""
    rng = np.random.default_rng(site)
    rows = 40
    return {
        "sat": rng.choice(["low", "high"], rows),
        "kind": rng.choice(["flat", "house", "tower"], rows),
        "age": rng.normal(50, 9, rows).round(),
        "trials": rng.integers(5, 9, rows),
        "events": rng.integers(0, 5, rows),
        "time": rng.exponential(3, rows).round(1) + 0.1,
        "seen": rng.integers(0, 2, rows),
        "freq": rng.integers(0, 9, rows),
    }


def expanded(table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a row of each person."""
    rows = np.repeat(np.arange(len(table["freq"])), table["freq"])
    return {name: values[rows] for name, values in table.items()}


@pytest.mark.parametrize(
    ("formula", "options"),
    [
        ("sat ~ kind + age", {"family": "bernoulli"}),
        ("seen ~ kind + age", {"family": "bernoulli"}),
        ("age ~ kind", {}),
        ("events ~ kind + age", {"family": "binomial", "trials": "trials"}),
        ("Surv(time, seen) ~ kind + age", {"family": "weibull"}),
    ],
)
@pytest.mark.parametrize("least", [1, 5])
def test_weighted_rows_have_the_table_1_of_the_persons(
    formula: str, options: dict[str, Any], least: int
) -> None:
    given = {name: cells(place) for place, name in enumerate(SITES)}
    options = {**options, "describe": {"cells": least}}
    weighted = consortia.regression(formula, given, weights="freq", **options).table_one()
    persons = {name: expanded(table) for name, table in given.items()}
    single = consortia.regression(formula, persons, **options).table_one()
    assert weighted.lines == single.lines
    flow = {line.variable: line.cells for line in weighted.flow}
    of_persons = {line.variable: line.cells for line in single.flow}
    assert flow["persons in them"] == of_persons["analysed"]
    assert flow["analysed"] == ("40", "40", "80")
    assert "levels persons (percent)" in weighted.notes[0]


def test_weights_of_a_sample_and_parts_of_persons_are_counted_as_rows() -> None:
    given = {name: cells(place) for place, name in enumerate(SITES)}
    sampled = consortia.regression(
        "age ~ kind", given, weights="time", weights_are="sampling"
    ).table_one()
    assert "persons in them" not in {line.variable for line in sampled.flow}
    parts = consortia.regression("age ~ kind", given, weights="time").table_one()
    assert sampled.lines == parts.lines


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_predictive_checks_are_those_of_the_persons(family: str) -> None:
    left = "sat" if family == "bernoulli" else "events"
    given = {name: cells(place) for place, name in enumerate(SITES)}
    persons = {name: expanded(table) for name, table in given.items()}
    weighted = consortia.regression(f"{left} ~ kind", given, weights="freq", family=family)
    single = consortia.regression(f"{left} ~ kind", persons, family=family)
    rng = np.random.default_rng(0)
    draws = {
        name: np.asarray(value) + 0.1 * rng.normal(size=(2, 60, *np.shape(value)))
        for name, value in single.model.init.items()
    }
    lines = [made.predictive_check(draws, draws=100).lines for made in (weighted, single)]
    for one, other in zip(*lines, strict=True):
        assert (one.site, one.statistic) == (other.site, other.statistic)
        assert one.observed == pytest.approx(other.observed)
        # the intervals of equally many persons; of rows they would be wider by a factor of two
        width = one.upper - one.lower
        assert width == pytest.approx(other.upper - other.lower, rel=0.35)


def test_who_contributed_what_counts_persons_and_their_events() -> None:
    given = {name: cells(place) for place, name in enumerate(SITES)}
    made = consortia.regression("seen ~ kind", given, weights="freq", family="bernoulli")
    posterior = xarray.Dataset(
        {"coefficients": (("chain", "draw", "column"), np.zeros((2, 9, 2)))},
        {"column": list(made.names)},
    )
    tree = xarray.DataTree.from_dict({"/posterior": posterior})
    settings = json.dumps({"regression": dict(made.metadata.settings)})
    tree.attrs.update({"sites": '["oslo", "lima"]', "site_rows": "[40, 40]", "settings": settings})
    report = report_of(tree, sites=made.sites)
    table = contribution_table(report)
    assert table is not None
    assert table.columns[2:] == ("persons", "share of the persons", "events", "events a person")
    for row, own in zip(table.rows, given.values(), strict=False):
        assert row[2] == str(own["freq"].sum())
        assert row[4] == str((own["freq"] * own["seen"]).sum())
    total = sum(int(own["freq"].sum()) for own in given.values())
    assert f"{total} persons in 80 rows at 2 sites" in paragraph(report)


@pytest.mark.parametrize(
    ("formula", "options"),
    [
        ("sat ~ kind + age", {"family": "bernoulli"}),
        ("events ~ kind + age", {"family": "binomial", "trials": "trials"}),
        ("events ~ kind + age", {"family": "poisson"}),
    ],
)
def test_marginal_effects_are_averages_over_the_persons(
    formula: str, options: dict[str, Any]
) -> None:
    given = {name: cells(place) for place, name in enumerate(SITES)}
    persons = {name: expanded(table) for name, table in given.items()}
    weighted = consortia.regression(formula, given, weights="freq", **options)
    single = consortia.regression(formula, persons, **options)
    effects = []
    for made in (weighted, single):
        # in the units of the columns, which are sampled in sds of the rows
        slopes = np.array([0.3, -0.4, 0.02]) * np.array(made.specification.scales)
        slopes = slopes.astype(np.float32)
        at_zero = made.density.natural({"coefficients": slopes, "intercept": np.float32(0)})
        # one intercept at zero of the columns, which have other means over persons than over rows
        draws = {
            "coefficients": np.broadcast_to(slopes, (1, 2, 3)).copy(),
            "intercept": np.full((1, 2), -0.8 - float(at_zero["intercept"])),
        }
        effects.append(made.marginal_effects(draws).over_all.lines)
    for one, other in zip(*effects, strict=True):
        assert str(one.key) == str(other.key)
        assert one.mean == pytest.approx(other.mean, rel=1e-3)
