"""Rows that stand for several persons: they are counted as those persons' rows would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import consortia

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
