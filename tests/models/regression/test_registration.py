"""A study that states what its sites would agree on has the formula of one whose sites did."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.errors import InputError
from consortia.models.regression.construction import place_of, question_of
from consortia.models.regression.registration import Registration
from consortia.models.regression.specification import Specification
from consortia.study.registered import Registered
from tests.refusals import refused

ROWS = 40


def tables(seed: int = 0) -> dict[str, dict[str, Any]]:
    found = {}
    for name in ("oslo", "lima"):
        rng = np.random.default_rng(seed + len(found))
        crp = rng.gamma(2.0, 3.0, ROWS)
        found[name] = {
            "age": rng.normal(61.0 + 3 * len(found), 11.3, ROWS),
            "crp": np.where(rng.uniform(size=ROWS) < 0.2, np.nan, crp),
            "full": crp,
            "stage": rng.choice(["II", "I", "IV"], ROWS).tolist(),
            "grade": rng.integers(1, 4, ROWS),
            "surgeon": rng.choice(["a", "b", "c"], ROWS).tolist(),
            "died": rng.choice(["no", "yes"], ROWS).tolist(),
            "nausea": rng.choice(["no", "some", "much"], ROWS).tolist(),
            "falls": rng.poisson(1.3, ROWS),
            "days": rng.exponential(9.0, ROWS) + 0.1,
            "seen": rng.integers(0, 2, ROWS),
        }
    return found


FORMULAS: list[tuple[str, str, dict[str, Any]]] = [
    ("full ~ age * stage + C(grade, 2) + log(days)", "gaussian", {}),
    ("died ~ center(age) + scale(days) + s(full, k=5) + site", "bernoulli", {}),
    ("died ~ stage + (1 + age | site) + (1 | shared(surgeon))", "bernoulli", {}),
    ("died ~ age + crp + stage", "bernoulli", {"missing": "indicator"}),
    ("nausea ~ age + stage", "ordinal", {"levels": {"nausea": ["no", "some", "much"]}}),
    ("falls ~ age", "negative_binomial", {"exposure": "days"}),
    ("Surv(days, seen) ~ age + stage", "piecewise_exponential", {}),
    ("full ~ age", "gaussian", {"weights": "days", "weights_are": "sampling"}),
    ("Surv(days, seen) ~ age", "weibull", {"weights": "full", "weights_are": "sampling"}),
]


def agreed(formula: str, family: str, options: dict[str, Any]) -> Specification:
    return consortia.regression(formula, tables(), family=family, **options).specification


def read(registration: Registration) -> Registration:
    table = tomllib.loads(registration.toml())["registered"]
    return Registered.model_validate(table).registration


@pytest.mark.parametrize(("formula", "family", "options"), FORMULAS)
def test_what_was_agreed_can_be_stated_to_the_last_bit(
    formula: str, family: str, options: dict[str, Any]
) -> None:
    then = agreed(formula, family, options)
    question = question_of(formula, family, **options)
    now = read(Registration.of(then)).specification(question, then.sites)
    assert now.digest == then.digest
    assert now.levels == then.levels
    np.testing.assert_array_equal(now.basis, then.basis)


def test_what_is_missing_or_not_in_the_formula_is_named_with_the_line_to_write() -> None:
    question = question_of("died ~ age + C(grade) + stage", "bernoulli")
    stated = Registered.model_validate({"numbers": {"age": {"centre": 60.0, "scale": 10.0}}})
    lines = r'registered.levels."C\(grade\)" = \[reference, ...\].\nregistered: stage is missing'
    with refused(argument="registered", match=lines) as caught:
        stated.registration.specification(question, ("oslo", "lima"))
    assert len(caught.value.faults) == 2
    assert "registered: age" not in str(caught.value)  # it is stated
    weighted = question_of("full ~ age", "gaussian", weights="days", weights_are="sampling")
    unit = {"centre": 0.0, "scale": 1.0}
    stated = Registered.model_validate(
        {"numbers": {"age": unit, "response()": unit, "weights()": unit}}
    )
    with pytest.raises(InputError, match="weights are divided by it"):
        stated.registration.specification(weighted, ("oslo", "lima"))
    stated = Registered.model_validate({"levels": {"stag": ["I", "II"]}})
    with pytest.raises(InputError, match="did you mean 'stage'"):
        stated.registration.specification(question, ("oslo", "lima"))


@pytest.mark.parametrize(
    ("formula", "options", "argument", "match"),
    [
        ("died ~ crp", {"missing": "impute"}, "registered", "which values are missing"),
        ("died ~ age", {"describe": {"cells": 5}}, "registered", "no such message"),
        ("died ~ age + (1 | surgeon)", {}, "registered", r"\(surgeon\)"),
    ],
)
def test_what_only_sites_can_say_is_not_registered(
    formula: str, options: dict[str, Any], argument: str, match: str
) -> None:
    question = question_of(formula, "bernoulli", **options)
    with refused(argument=argument, match=match):
        Registration({}, {}, {}).specification(question, ("oslo", "lima"))


def test_a_level_that_is_not_registered_is_refused_with_file_and_line(tmp_path) -> None:
    path = tmp_path / "oslo.csv"
    path.write_text("stage,died\nI,0\nII,1\nIII,1\n")
    question = question_of("died ~ stage", "bernoulli")
    stated = Registered.model_validate({"levels": {"stage": ["I", "II"]}}).registration
    stated.specification(question, ("oslo", "lima"))
    table = consortia.data.tables.read_table(path, "site 'oslo'", site="oslo")
    with pytest.raises(InputError) as caught:
        stated.check(question, table, "oslo", lambda *at: place_of(table, "oslo", *at))
    text = str(caught.value)
    assert "oslo.csv" in text
    assert "line 4" in text
    assert "'III', which is none of the levels that the study registers (I, II)" in text
    assert "[harmonise.oslo.recode.stage]" in text


def test_a_scale_far_from_a_site_is_doubted_and_a_near_one_is_not() -> None:
    question = question_of("full ~ age", "gaussian")
    facts = question.facts(consortia.data.tables.read_table(tables()["oslo"], "oslo"), "oslo")
    of = {"response()": {"centre": 6.0, "scale": 4.0}}
    near = Registered.model_validate({"numbers": of | {"age": {"centre": 55.0, "scale": 20.0}}})
    far = Registered.model_validate({"numbers": of | {"age": {"centre": 0.06, "scale": 0.01}}})
    assert near.registration.doubts(facts, "oslo") == []
    (doubt,) = far.registration.doubts(facts, "oslo")
    assert "age has the mean" in doubt
    assert "another unit" in doubt
