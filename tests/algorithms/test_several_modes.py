"""A posterior with several modes: said by few_rounds, or drawn as it is."""

from __future__ import annotations

import json
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from consortia.algorithms.few_rounds import modes, search
from consortia.algorithms.few_rounds.state import Searches

HALF, MASS = 4.0, 0.3


def log_prior(p: Any) -> Any:
    return -jnp.sum(p["x"] ** 2) / 2e6  # as good as flat


def log_likelihood(p: Any, row: Any) -> Any:
    """0.3 N((h, h), I) + 0.7 N((-h, -h), I), the likelihood of the row with y = 1."""
    x, h = p["x"][None], row["h"][:, None]
    upper = jnp.log(MASS) - jnp.sum((x - h) ** 2, axis=1) / 2
    lower = jnp.log(1 - MASS) - jnp.sum((x + h) ** 2, axis=1) / 2
    return row["y"] * jnp.logaddexp(upper, lower)


MODEL = consortia.Model(log_prior, log_likelihood, {"x": jnp.full(2, 0.1)})


def sampled(half: float = HALF, **options: Any) -> tuple[Any, list[str]]:
    """A run, and what it warned of."""
    rows = [{"y": np.full(1, y, np.float32), "h": np.full(1, half, np.float32)} for y in (0, 1)]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        method = consortia.few_rounds(effective_size=400, **options)
        sites = consortia.Sites.from_list(rows)
        tree = consortia.sample(MODEL, sites, method, chains=2, seed=1, progress=False)
    return tree, [str(one.message) for one in seen]


def test_modes_that_the_draws_lack_are_said_and_the_draws_are_called_bad() -> None:
    tree, texts = sampled()
    told = json.loads(tree.attrs["modes"])
    # Laplace's approximation is exact for a Gaussian component.
    assert sorted(round(one["mass"], 2) for one in told) == [MASS, 1 - MASS]
    assert sorted(one["draws"] for one in told) == [0.0, 1.0]
    (text,) = [text for text in texts if "the searches have ended in 2 places" in text]
    assert "components=4" in text
    verdict = consortia.summary(tree).verdict
    assert verdict is not None
    assert verdict.word == "bad"
    assert any("ended in 2 places" in one.text for one in verdict.reasons)


def test_with_a_component_for_each_mode_the_draws_have_the_exact_law() -> None:
    tree, texts = sampled(components=4)
    assert not texts
    x = np.asarray(tree.posterior["x"], float)
    above = (x[..., 0] > 0).mean(axis=1)
    effective = float(consortia.summary(tree).columns["ess_bulk"].min())
    # 4.5 standard errors of the share; a chain that knows one mode is 15 and more away.
    assert abs(above.mean() - MASS) < 4.5 * np.sqrt(MASS * (1 - MASS) / effective)
    for side in (x > 0, x < 0):
        assert abs(x[side].std() - 1) < 4.5 / np.sqrt(2 * MASS * effective)
    # log of the integral of exp(log_prior).
    assert abs(tree.attrs["log_evidence"] - np.log(2 * np.pi)) < 0.1


def test_one_mode_is_not_taken_for_several() -> None:
    tree, texts = sampled(half=0.4)
    assert "modes" not in tree.attrs
    assert not texts


def test_of_two_modes_the_heavier_is_where_the_fit_begins() -> None:
    @jax.jit
    def at(place: Any, spread: Any, height: Any) -> search.Search:
        begun = search.first(jnp.full(1, place))
        best = begun.best._replace(curvature=jnp.full((1, 1), spread**-2))
        best = best._replace(height=best.height._replace(fine=jnp.asarray(height)))
        return begun._replace(best=best, decrement=jnp.zeros(()), convex=jnp.ones((), jnp.int32))

    first, same, far = at(0.0, 1.0, 0.0), at(0.1, 1.0, 0.01), at(20.0, 2.0, 0.0)
    others = jax.tree.map(lambda a, b: jnp.stack([a, b]), same, far)

    @jax.jit
    def found_by(others: search.Search) -> Searches:
        return modes.found(modes.first(jnp.zeros(1))._replace(first=first, others=others))

    found = found_by(others)
    # Masses are as the spreads; what is near the first is not a mode of its own.
    np.testing.assert_allclose(found.modes.shares, [2 / 3, 1 / 3, 0], rtol=1e-5)
    np.testing.assert_allclose(found.modes.centres[:2, 0], [20, 0])
    assert float(found.best.position[0]) == 20
    twice = jax.tree.map(lambda a, b: jnp.stack([a, b]), far, at(19.5, 2.0, 0.5))
    np.testing.assert_allclose(found_by(twice).modes.shares, [2 / 3, 1 / 3, 0], rtol=1e-5)
    low = jax.tree.map(lambda a, b: jnp.stack([a, b]), same, at(20.0, 2.0, 12.0))
    assert modes.told(found_by(low).modes, np.zeros((5, 1))) == []
