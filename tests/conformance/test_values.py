"""A factory's value is its parameters: it compares, hashes and prints by value."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.errors import InputError
from tests.refusals import refused


def test_equal_arguments_give_equal_values_with_equal_hashes(case: Any) -> None:
    one, two = case.method(), case.method()
    assert one is not two
    assert one == two
    assert hash(one) == hash(two)


def test_an_array_argument_compares_as_the_sequence_that_it_holds(case: Any) -> None:
    case.stepping()
    schedule = [0.05 / (1 + i) for i in range(40)]
    assert case.method(step_size=np.asarray(schedule)) == case.method(step_size=tuple(schedule))


def test_a_changed_number_makes_the_value_unequal(case: Any) -> None:
    changed = 0
    for name, value in case.arguments.items():
        if isinstance(value, bool):
            other: Any = not value
        elif isinstance(value, int):
            other = value + 1
        elif isinstance(value, float):
            other = value / 2
        elif isinstance(value, tuple) and all(isinstance(entry, float) for entry in value):
            other = tuple(entry / 2 for entry in value)
        elif value is None:
            other = 1.0
        else:
            continue
        assert case.method(**{name: other}) != case.method(), name
        changed += 1
    assert changed >= 2


def test_the_name_is_the_one_in_the_registry(case: Any) -> None:
    assert case.method().name == case.name


def test_the_parameters_are_plain_values_that_json_holds(case: Any) -> None:
    parameters = case.method().parameters()
    assert json.loads(json.dumps(parameters)).keys() == parameters.keys()


def test_a_value_cannot_be_changed(case: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        case.method().name = "other"


def test_weights_and_prior_shares_are_positive_and_sum_to_one(case: Any) -> None:
    sizes = np.array([4, 7, 12])
    for shares in (case.method().site_weights(sizes), case.method().prior_shares(sizes)):
        assert shares.shape == (3,)
        assert np.all(np.asarray(shares) > 0)
        assert abs(float(np.sum(shares)) - 1) < 1e-14


def test_an_unknown_argument_is_refused(case: Any) -> None:
    with pytest.raises((TypeError, InputError)):
        case.method(steps=3)


@pytest.mark.parametrize("wrong", [0.0, -0.1, float("nan"), float("inf"), "fast"])
def test_a_step_size_that_is_no_positive_number_is_refused(case: Any, wrong: Any) -> None:
    case.stepping()
    with refused(argument="step_size"):
        case.method(step_size=wrong)


def test_a_name_in_the_registry_says_what_it_samples_and_where_it_comes_from() -> None:
    for name, entry in ALGORITHMS.items():
        method = entry.factory(**entry.example)
        assert method.name == name
        assert name in consortia.__all__, f"src/consortia/__init__.pyi does not export {name}"
        assert all(dataclasses.astuple(method.claims)), name
        assert "local" in entry.engines, name
        assert "**Samples**" in (entry.factory.__doc__ or ""), name
        assert "**Draw**" in (entry.factory.__doc__ or ""), name
