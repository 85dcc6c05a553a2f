"""Columns that are named as what stands beside a formula are columns like others."""

from __future__ import annotations

import numpy as np
import pytest

import consortia

CASES = [
    ("y ~ response", "gaussian", {}, "response"),
    ("y ~ exposure", "poisson", {"exposure": "days"}, "exposure"),
    ("Surv(days, dead) ~ time", "weibull", {}, "time"),
    ("Surv(days, dead) ~ event", "weibull", {}, "event"),
]


@pytest.mark.parametrize(("formula", "family", "options", "column"), CASES)
def test_a_column_named_like_a_part_of_the_response_keeps_its_own_unit(
    formula: str, family: str, options: dict, column: str
) -> None:
    rng = np.random.default_rng(0)

    def table() -> dict[str, np.ndarray]:
        return {
            "y": rng.poisson(3.0, 50),
            "days": rng.uniform(100, 200, 50),
            "dead": rng.integers(0, 2, 50),
            "z": rng.normal(1_000, 50, 50),
        }

    tables = {"north": table(), "south": table()}
    named = {
        name: {column if key == "z" else key: v for key, v in one.items()}
        for name, one in tables.items()
    }
    found = consortia.regression(formula, named, family=family, **options)
    plain = consortia.regression(
        formula.replace(f"~ {column}", "~ z"), tables, family=family, **options
    )
    for one, other in zip(found.sites, plain.sites, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    start = {name: np.asarray(value) for name, value in plain.model.init.items()}
    assert found.model.log_prior(start) == plain.model.log_prior(start)
