"""Patterns of categorical columns: which count, and how rare the rarest is."""

from __future__ import annotations

from typing import Any

import numpy as np

import consortia
from consortia.data.patterns import MOST_LEVELS, is_categorical, rarest_pattern, smallest_cell


def test_where_all_columns_are_categorical_their_patterns_count() -> None:
    x = np.array([[0, 0], [0, 0], [0, 1], [1, 1], [1, 1], [1, 1]], float)
    assert smallest_cell({"x": x, "y": np.arange(6)}) == 1
    assert smallest_cell({"x": x[:, :1], "y": np.arange(6)}) == 3
    assert smallest_cell({"a": x[:, 0], "b": x[:, 1].astype(int)}) == 1


def test_beside_measurements_the_values_of_columns_that_have_two_count() -> None:
    measured = np.linspace(0, 1, 40)
    sex = np.repeat([0.0, 1.0], [25, 15])
    rare = np.repeat([0.0, 1.0], [38, 2])
    assert smallest_cell({"x": np.stack([measured, sex], 1), "y": sex}) == 15
    assert smallest_cell({"x": np.stack([measured, sex, rare], 1), "y": sex}) == 2
    score = np.r_[np.zeros(39), 7.0] + (np.arange(40) % 3 == 0)  # 26 rows have the same value
    assert smallest_cell({"x": np.stack([measured, sex, score], 1), "y": rare}) == 14


def test_halves_of_a_column_count_as_its_rarer_value_does() -> None:
    measured = np.linspace(0, 1, 10)
    half = np.repeat([0.0, 1.0], 5)
    assert smallest_cell({"x": np.stack([measured, half], 1), "y": half}) == 5
    tied = np.r_[np.zeros(5), np.arange(1.0, 6.0)]  # half of the rows have one value
    assert smallest_cell({"x": np.stack([measured, tied], 1), "y": half}) == 5
    few = np.r_[np.zeros(4), np.arange(1.0, 7.0)]
    assert smallest_cell({"x": np.stack([measured, few], 1), "y": half}) == 10


def test_without_categorical_columns_there_is_no_pattern() -> None:
    assert smallest_cell({"x": np.linspace(0, 1, 40)[:, None], "y": np.zeros(40)}) == 40


def test_a_column_is_categorical_up_to_a_number_of_values_in_all_rows() -> None:
    few = np.arange(5000) % MOST_LEVELS
    assert is_categorical(few)
    assert not is_categorical(np.r_[few, MOST_LEVELS])
    assert not is_categorical(np.arange(5000.0))


def test_the_order_of_times_is_not_a_covariate() -> None:
    times = np.array([1.0, 1, 2, 2, 2, 3, 4, 4, 5, 6, 7, 8])
    table = {"t": times, "event": np.tile([1.0, 1, 0], 4), "arm": np.repeat([0.0, 1], 6)}
    table |= {"w": 1 + table["arm"]}
    more: dict[str, Any] = {"family": "cox", "weights": "w", "weights_are": "sampling"}
    rows = consortia.regression("Surv(t, event) ~ arm", {"s": table}, **more).rows.site("s")
    assert {"tie_count", "since", "until"} <= {*rows}
    assert rarest_pattern(rows) == smallest_cell(rows) == 6
