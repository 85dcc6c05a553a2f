"""Offsets: around which rate the intercept is expected, and one that is meant as an exposure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.models.regression.construction import question_of
from consortia.models.regression.registration import Registration

ROWS = 60


def tables() -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(3)
    return {
        name: {
            "y": rng.poisson(3, ROWS),
            "died": rng.integers(0, 2, ROWS),
            "t": rng.exponential(9, ROWS) + 0.1,
            "N": rng.integers(1_000, 70_000, ROWS).astype(float),
            "beds": rng.integers(2, 40, ROWS).astype(float),
            "z": rng.normal(-2, 1, ROWS),
            "x": rng.normal(size=ROWS),
        }
        for name in ("oslo", "lima")
    }


def centre(formula: str, family: str, **options: Any) -> float:
    made = consortia.regression(formula, tables(), family=family, **options)
    return float(made.priors["intercept"].arguments[0])


def every(name: str) -> np.ndarray:
    return np.concatenate([one[name] for one in tables().values()]).astype(float)


@pytest.mark.parametrize("family", ["poisson", "negative_binomial", "zero_inflated_poisson"])
def test_an_offset_of_a_logarithm_gives_the_prior_of_the_exposure(family: str) -> None:
    wanted = math.log(every("y").mean() / every("N").mean())
    assert centre("y ~ x", family, exposure="N") == pytest.approx(wanted)
    assert centre("y ~ x + offset(log(N))", family) == pytest.approx(wanted)
    both = math.log(every("y").mean() / (every("N") * every("beds")).mean())
    assert centre("y ~ x + offset(log(beds))", family, exposure="N") == pytest.approx(both)


@pytest.mark.parametrize(
    ("formula", "family", "wanted"),
    [
        ("t ~ x + offset(z)", "gaussian", lambda: every("t").mean() - every("z").mean()),
        ("died ~ x + offset(z)", "bernoulli", lambda: -every("z").mean()),
        (
            "t ~ x + offset(z)",
            "gamma",
            lambda: math.log(every("t").mean() / np.exp(every("z")).mean()),
        ),
        (
            "Surv(t, died) ~ x + offset(z)",
            "weibull",
            lambda: math.log(every("died").mean() / np.exp(every("z")).mean()),
        ),
        ("y ~ x", "poisson", lambda: math.log(every("y").mean())),
    ],
)
def test_the_intercept_is_expected_less_the_offset(formula: str, family: str, wanted: Any) -> None:
    assert centre(formula, family) == pytest.approx(wanted())


@pytest.mark.parametrize(
    ("column", "family"),
    [
        ("N", "poisson"),
        ("beds", "poisson"),
        ("N", "negative_binomial"),
        ("beds", "weibull"),
        ("beds", "cox"),
        ("N", "bernoulli(cloglog)"),
    ],
)
def test_an_offset_that_is_no_logarithm_is_asked_about(column: str, family: str) -> None:
    of_times = {"cox": "Surv(t, died)", "weibull": "Surv(t, died)"}
    left = (of_times | {"bernoulli(cloglog)": "died"}).get(family, "y")

    def doubts(offset: str) -> list[str]:
        made = consortia.regression(f"{left} ~ x + offset({offset})", tables(), family=family)
        return [str(one) for one in made.readings if one.confirm]

    (first, _) = doubts(column)
    assert f"to the logarithm of the {'rate' if left == 'y' else 'hazard'}" in first
    assert f"offset(log({column})) divides by it; offset(1 * {column}) confirms it" in first
    assert doubts(f"log({column})") == doubts(f"1 * {column} / 40") == doubts("z") == []


def test_a_registered_study_states_what_its_offset_multiplies() -> None:
    made = consortia.regression("y ~ x + offset(log(N))", tables(), family="poisson")
    stated = Registration.of(made.specification)
    question = question_of("y ~ x + offset(log(N))", "poisson")
    again = stated.specification(question, made.specification.sites)
    assert again.digest == made.specification.digest
    assert again.units["exposure()"].mean == pytest.approx(every("N").mean())
