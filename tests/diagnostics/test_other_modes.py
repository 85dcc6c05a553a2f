"""Chains that agree at one of several modes: the verdict names the place of another one."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from statistical.unseen import CASES, contradicting

import consortia
from consortia.core.target import Target
from consortia.diagnostics import other_modes
from consortia.diagnostics.verdict import Severity
from consortia.theory.bias import Problem

EXACT = consortia.federated_hmc()
LENGTH: dict[str, Any] = {"warmup": 200, "rounds": 600, "chains": 4, "seed": 1, "progress": False}


def sampled(case: Any) -> Any:
    return consortia.sample(case.model, consortia.Sites.from_list(case.sites), EXACT, **LENGTH)


@pytest.mark.parametrize("name", ["sites that contradict one another", "a square and a scale"])
def test_a_mode_that_no_chain_has_visited_is_unknown_with_its_place(name: str) -> None:
    """Both were GOOD: half of the mass, and a sixth of it."""
    case = CASES[name]()
    tree = sampled(case)
    draws = np.asarray(tree["posterior"]["x"])[..., 0].ravel()
    low, high = (-2, 27) if "sites" in name else (-2.2, 2.2)
    other = high if np.median(draws) < np.mean([low, high]) else low
    assert abs(draws - other).min() > 1  # no chain has gone there
    summary = consortia.summary(tree)
    assert summary.verdict.severity is Severity.UNKNOWN
    assert "another mode may exist near (" in summary.text()


def test_one_mode_stays_good() -> None:
    case = contradicting(2.0, 14)
    verdict = consortia.summary(sampled(case)).verdict
    assert verdict.severity is Severity.GOOD
    assert verdict.explanation == "All checks passed."


def test_of_fifteen_parameters_modes_are_sought_too() -> None:
    model = consortia.Model(
        lambda p: -jnp.sum(p["x"] ** 2) / 2,
        lambda p, rows: -((rows["y"] - p["x"][0]) ** 2) / 2,
        {"x": jnp.zeros(15)},
    )
    sites = consortia.Sites.from_list([{"y": np.ones(5, np.float32)}])
    given = consortia.federated_hmc(step_size=0.4, leapfrog_steps=4, mass_matrix="identity")
    length = LENGTH | {"warmup": 100, "rounds": 2000}
    verdict = consortia.summary(consortia.sample(model, sites, given, **length)).verdict
    assert verdict.severity is Severity.GOOD
    assert verdict.explanation == "All checks passed."


@pytest.mark.parametrize(
    ("name", "others"),
    [("sites that contradict one another", [[24.8]]), ("a square and a scale", [[-2.0, -0.1]])],
)
def test_a_forecast_sees_modes_beside_its_own(name: str, others: list[list[float]]) -> None:
    """Of methods with a bias nobody had looked: GOOD over half of the mass."""
    case = CASES[name]()
    found = Problem(case.model, consortia.Sites.from_list(case.sites)).near.others
    assert found is not None
    np.testing.assert_allclose(found, others, atol=0.5)


def test_a_posterior_that_is_gaussian_around_its_mode_alone_is_seen() -> None:
    def two(p: Any, rows: Any) -> Any:
        away = (p["x"][0] + rows["y"]) ** 2 / 2, (p["x"][0] - rows["y"]) ** 2 / 2
        return jnp.logaddexp(-away[0], -away[1])

    def wide(p: Any) -> Any:
        return -jnp.sum((p["x"] / 20) ** 2) / 2

    sites = consortia.Sites.from_list([{"y": np.full(2, 12.5, np.float32)}])
    near = Problem(consortia.Model(wide, two, {"x": jnp.zeros(1) - 9.0}), sites).near
    assert not near.gaussian
    np.testing.assert_allclose(near.others, [[12.5]], atol=0.1)
    normal = consortia.Model(wide, lambda p, r: -((p["x"][0] - r["y"]) ** 2), {"x": jnp.zeros(1)})
    assert Problem(normal, sites).near.gaussian
    assert Problem(normal, sites).near.others == ()


def test_few_draws_are_not_looked_at() -> None:
    case = contradicting(2.0, 14)
    target, sites = Target(case.model, case.model.init), consortia.Sites.from_list(case.sites)
    assert other_modes.record_of(target, sites, np.zeros(1), np.zeros((4, 50, 1))) == {}


def test_of_a_formula_modes_are_sought_and_the_sites_compared() -> None:
    """Nobody had looked, and the verdict did not say so."""
    rng, sites = np.random.default_rng(3), {}
    for name, slope in (("a", 1.0), ("b", 1.0), ("c", 4.0)):
        x = rng.normal(size=40)
        sites[name] = {"x": x, "y": slope * x + rng.normal(size=40)}
    made = consortia.regression("y ~ x", sites)
    target = Target(made.model, made.model.init)
    draws = rng.normal([0.0, 2.0, 0.5], 0.1, (4, 200, 3))
    record = other_modes.record_of(target, made.sites, np.zeros(3), draws)
    assert record["modes_sought"]
    assert record["faults"] == []
    q, freedom = record["disagreement"]
    assert freedom == 2 * 3  # three sites, three parameters
    assert q > 5 * freedom
