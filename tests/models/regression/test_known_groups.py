"""Predictions of a group that a site has, of one that it does not have, and of a new site's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import consortia
from tests.refusals import refused

RATES = {"low": 0.02, "high": 0.98, "middle": 0.5, "other": 0.4}
ROWS = 50
FORMULA = "died ~ x + (1 | site:ward)"


def wards(seed: int = 0) -> dict[str, Any]:
    """Return wards at one site, each with as many deaths as its rate says."""
    names = [name for name in RATES for _ in range(ROWS)]
    died = [int(row < round(RATES[name] * ROWS)) for name in RATES for row in range(ROWS)]
    return {"ward": names, "died": died, "x": np.random.default_rng(seed).normal(size=len(names))}


@pytest.fixture(scope="module")
def fitted() -> tuple[consortia.Regression, Any]:
    made = consortia.regression(FORMULA, {"a": wards(), "b": wards(1)}, family="bernoulli")
    rng = np.random.default_rng(2)
    draws = {
        name: np.broadcast_to(np.asarray(value), (2, 200, *np.shape(value))).copy()
        for name, value in made.model.init.items()
    }
    draws["log_sd"] = np.log(2.5) + 0.1 * rng.normal(size=draws["log_sd"].shape)
    return made, draws


def rates(found: Any) -> np.ndarray:
    return np.asarray(found).mean(axis=(0, 1))


def test_a_ward_that_the_site_has_keeps_its_level(fitted: Any) -> None:
    made, draws = fitted
    rows = {"ward": ["high", "low", "middle"], "x": np.zeros(3)}
    found = rates(made.predict(draws, rows, "a"))
    # shrunk towards one half by less than a pseudo-row of each kind
    np.testing.assert_allclose(found, [0.97, 0.03, 0.5], atol=0.03)
    spread = np.asarray(made.predict(draws, rows, "a")).std(axis=(0, 1))
    assert spread.max() < 0.1
    own = np.asarray(made.levels_of(draws, "a", 0).sel(group="high"))
    level = np.log(1 / np.asarray(made.predict(draws, rows, "a"))[..., 0] - 1)
    np.testing.assert_allclose(np.diff(-level[0] - own[0]), 0, atol=1e-4)


def test_a_ward_that_the_site_does_not_have_is_refused_or_taken_for_a_new_one(fitted: Any) -> None:
    made, draws = fitted
    rows = {"ward": ["hihg", "low"], "x": np.zeros(2)}
    with refused(argument="ward", site="a", match="'hihg'.*'high'"):
        made.predict(draws, rows, "a")
    found = made.predict(draws, rows, "a", new_groups=True)
    assert np.asarray(found).std(axis=(0, 1))[0] > 0.25
    np.testing.assert_allclose(rates(found), [0.5, 0.03], atol=0.06)


def test_wards_of_a_new_site_are_new_whatever_they_are_called(fitted: Any) -> None:
    made, draws = fitted
    rows = {"ward": ["high", "low"], "x": np.zeros(2)}
    found = made.predict(draws, rows)
    np.testing.assert_allclose(rates(found), [0.5, 0.5], atol=0.06)
    assert np.asarray(found).std(axis=(0, 1)).min() > 0.25


def test_rows_of_one_ward_have_one_level_in_any_order(fitted: Any) -> None:
    made, draws = fitted
    rows = {"ward": ["low", "new", "high", "low", "new"], "x": np.zeros(5)}
    found = np.asarray(made.predict(draws, rows, "b", new_groups=True, seed=3))
    np.testing.assert_array_equal(found[..., 0], found[..., 3])
    np.testing.assert_array_equal(found[..., 1], found[..., 4])
    alone = np.asarray(made.predict(draws, {"ward": ["low"], "x": [0.0]}, "b", seed=3))
    np.testing.assert_allclose(alone[..., 0], found[..., 0], rtol=1e-5)


@pytest.mark.parametrize("kind", ["file", "frame"])
def test_a_known_ward_is_known_in_files_and_frames(fitted: Any, kind: str, tmp_path: Path) -> None:
    made, draws = fitted

    def table(name: str, values: dict[str, Any]) -> Any:
        frame, path = pd.DataFrame(values), tmp_path / f"{name}.csv"
        frame.to_csv(path, index=False)
        return path if kind == "file" else frame

    sites = {"a": table("a", wards()), "b": table("b", wards(1))}
    other = consortia.regression(FORMULA, sites, family="bernoulli")
    rows = {"ward": ["high", "low", "middle"], "x": [0.5, 0.0, -0.5]}
    wanted = made.predict(draws, rows, "b", seed=4)
    found = other.predict(draws, table("rows", rows), "b", seed=4)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    rows["ward"][1] = "lower"
    with refused(argument="ward", site="b", match="'lower'"):
        other.predict(draws, table("rows", rows), "b")


def test_a_ward_that_two_sites_have_is_at_each_that_of_its_own_rows(fitted: Any) -> None:
    _, draws = fitted
    mended = wards(1)
    mended["ward"] = [{"low": "high", "high": "low"}.get(one, one) for one in mended["ward"]]
    made = consortia.regression(FORMULA, {"a": wards(), "b": mended}, family="bernoulli")
    rows = {"ward": ["high"], "x": np.zeros(1)}
    found = [rates(made.predict(draws, rows, site))[0] for site in "ab"]
    np.testing.assert_allclose(found, [0.97, 0.03], atol=0.03)
