"""Many points at once take no more memory than a site has."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.dynamics import metropolis

ROWS, POINTS, NODES = 100, 4096, 81


def test_a_likelihood_of_a_site_with_many_numbers_a_row_is_evaluated_at_few_points_at_once() -> (
    None
):
    nodes = jnp.linspace(-1, 1, NODES)

    def of_site(theta: Any, rows: Any, mask: Any) -> Any:
        at = jnp.cumsum((rows["y"][:, None] - theta - nodes[None]) ** 2, axis=1)
        return -jnp.sum(jnp.where(mask[:, None], jnp.sort(at, axis=1), 0))

    model = consortia.Model(None, None, jnp.zeros(()), site_log_likelihood=of_site)
    target = Target(model, jnp.zeros(()))
    one = jnp.ones(())
    site = Site({"y": jnp.zeros(ROWS)}, jnp.asarray(ROWS, jnp.int32), one, one)

    def at_all(positions: Any) -> Any:
        def function(position: Any) -> Any:
            return metropolis.potential(target, position, site).value

        return metropolis.at_all(target, function, positions, site)

    compiled = jax.jit(at_all).lower(jnp.zeros((POINTS, 1))).compile()
    # All at once are 133 MB in each of several arrays.
    assert compiled.memory_analysis().temp_size_in_bytes < 20e6


def test_points_are_taken_in_blocks_that_stay_in_a_cache() -> None:
    columns, rows, points = 8, 128, 20_000
    model = consortia.models.logistic_regression(columns)
    target = Target(model, model.init)
    one = jnp.ones(())
    data = {"x": jnp.ones((rows, columns)), "y": jnp.ones(rows, jnp.int32)}
    site = Site(data, jnp.asarray(rows, jnp.int32), one, one)

    def at_all(positions: Any) -> Any:
        def function(position: Any) -> Any:
            return metropolis.potential(target, position, site).value

        return metropolis.at_all(target, function, positions, site)

    compiled = jax.jit(at_all).lower(jnp.zeros((points, columns))).compile()
    # All values are 10 MB in each of several arrays, the points .6 MB.
    assert compiled.memory_analysis().temp_size_in_bytes < 4e6


def test_of_many_rows_blocks_are_taken_at_many_points_and_nothing_is_lost() -> None:
    columns, rows, points = 3, 70_000, 200
    rng = np.random.default_rng(0)
    x, at = rng.normal(size=(rows, columns)), rng.normal(size=(points, columns))
    x, at = x.astype(np.float32), at.astype(np.float32)
    model = consortia.models.logistic_regression(columns)
    target = Target(model, model.init)
    one = jnp.ones(())
    data = {"x": jnp.asarray(x), "y": jnp.zeros(rows, jnp.int32)}
    site = Site(data, jnp.asarray(rows - 5, jnp.int32), one, one)
    compiled = jax.jit(partial(metropolis.potentials, target, site=site)).lower(at).compile()
    # All rows at all points are 56 MB in each of several arrays.
    assert compiled.memory_analysis().temp_size_in_bytes < 10e6
    found = compiled(at)
    odds = x[:-5].astype(float) @ at.T.astype(float)
    prior = (at.astype(float) ** 2).sum(axis=1) / 2 + columns * np.log(2 * np.pi) / 2
    wanted = np.logaddexp(0, odds).sum(axis=0) + prior
    values = np.asarray(found.coarse, float) + np.asarray(found.fine, float)
    np.testing.assert_allclose(values, wanted, atol=0.02)  # 90,000 in single precision: .008
