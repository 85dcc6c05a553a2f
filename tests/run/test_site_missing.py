"""A site that does not answer stops the run with the draws kept; it is never left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.engines.contract import Engine
from consortia.errors import SiteMissingError
from tests.refusals import refused

LOST = 37
"""The round that site "b" does not answer in."""


@dataclass(frozen=True)
class Sketch(Engine):
    """An engine whose sites answer until one does not: as a real one, it works round by round."""

    lost: int
    tells: bool = True

    name = "sketch"

    def prepare(self, *arguments: Any) -> Any:
        return Run(consortia.LocalEngine().prepare(*arguments), self)


class Run:
    """A local run that ends with the round in which the site is lost."""

    def __init__(self, inner: Any, engine: Sketch) -> None:
        self._inner, self._engine = inner, engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def advance(self, carry: Any, buffers: Any, window: Any) -> Any:
        lost = self._engine.lost
        if window.stop <= lost:
            return self._inner.advance(carry, buffers, window)
        if not self._engine.tells:
            raise SiteMissingError(("b",), waited=0.5, round=lost)
        if window.first < lost:
            carry, buffers, _ = self._inner.advance(carry, buffers, window._replace(stop=lost))
        raise SiteMissingError(("b",), waited=0.5, round=lost, reached=(carry, buffers))


@pytest.fixture(scope="module")
def problem() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 12, 2)).astype(np.float32)
    shards = [{"x": part, "y": part[:, 0]} for part in x]
    return {
        "model": consortia.models.linear_regression(2),
        "sites": consortia.Sites.from_list(shards, names=["a", "b", "c"]),
        "algorithm": consortia.federated_hmc(
            step_size=0.1, leapfrog_steps=2, mass_matrix="identity"
        ),
        "chains": 2,
        "progress": False,
    }


def draws(tree: Any) -> np.ndarray:
    return np.asarray(tree["posterior"]["coefficients"])


def test_the_draws_before_are_kept_and_the_site_is_named(problem: dict[str, Any]) -> None:
    whole = consortia.sample(**problem, rounds=60, warmup=5)
    with refused(SiteMissingError, sites=("b",), waited=0.5) as caught:
        consortia.sample(**problem, rounds=60, warmup=5, engine=Sketch(LOST))
    error = caught.value
    assert error.sites == ("b",)
    assert error.round == LOST
    assert error.reached is None
    np.testing.assert_array_equal(draws(error.tree), draws(whole)[:, : LOST - 5])
    assert "site 'b'" in error.tree.attrs["stopped"]
    assert error.tree.attrs["iterations_run"] == LOST


def test_an_engine_that_kept_nothing_loses_the_rounds_of_its_last_call_only(
    problem: dict[str, Any],
) -> None:
    whole = consortia.sample(**problem, rounds=60)
    with pytest.raises(SiteMissingError) as caught:
        consortia.sample(**problem, rounds=60, engine=Sketch(LOST, tells=False))
    kept = draws(caught.value.tree)
    # The first call is one round long.
    assert 1 <= kept.shape[1] == caught.value.round <= LOST
    np.testing.assert_array_equal(kept, draws(whole)[:, : kept.shape[1]])


def test_a_site_lost_in_the_warm_up_leaves_no_draw(problem: dict[str, Any]) -> None:
    with pytest.raises(SiteMissingError) as caught:
        consortia.sample(**problem, rounds=60, warmup=50, engine=Sketch(LOST))
    assert caught.value.round == LOST
    assert caught.value.tree.attrs["iterations_run"] == LOST
    assert "posterior" not in caught.value.tree.children or not draws(caught.value.tree).size


def test_the_same_engine_with_all_sites_gives_the_draws_of_the_local_one(
    problem: dict[str, Any],
) -> None:
    one = consortia.sample(**problem, rounds=20)
    two = consortia.sample(**problem, rounds=20, engine=Sketch(100))
    np.testing.assert_array_equal(draws(one), draws(two))


def test_a_stored_run_goes_on_where_the_site_was_lost(
    problem: dict[str, Any], tmp_path: Any
) -> None:
    whole = consortia.sample(**problem, rounds=60, engine=Sketch(100))
    with pytest.raises(SiteMissingError):
        consortia.sample(**problem, rounds=60, engine=Sketch(LOST), store=tmp_path / "run")
    parts = {name: problem[name] for name in ("model", "sites", "algorithm")}
    again = consortia.resume(tmp_path / "run", **parts, engine=Sketch(100), progress=False)
    np.testing.assert_array_equal(draws(again), draws(whole))
