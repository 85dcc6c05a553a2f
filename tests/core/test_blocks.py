"""Sums over many rows: the values and derivatives of one sum, in little memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core import blocks
from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.dynamics import metropolis
from tests.refusals import refused

D = 3


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROWS_AT_ONCE", 50)
    monkeypatch.setattr(blocks, "BLOCK", 16)


def problem(count: int) -> tuple[Target, dict[str, jax.Array], jax.Array]:
    """Return a logistic posterior, its rows and a mask without the last five."""
    rng = np.random.default_rng(count)
    rows = {"x": rng.normal(size=(count, D)), "y": rng.integers(0, 2, count)}
    model = consortia.models.logistic_regression(D)
    mask = jnp.arange(count) < count - 5
    return Target(model, model.init), jax.tree.map(jnp.asarray, rows), mask


@pytest.mark.parametrize("count", [51, 64, 65, 200])
def test_blocks_give_the_sum_its_gradient_and_its_curvature(count: int, small: None) -> None:
    target, rows, mask = problem(count)
    at = jnp.array([0.3, -0.2, 0.5])

    def plain(position: jax.Array) -> jax.Array:
        return jnp.sum(target.summands(position, rows, mask))

    def blocked(position: jax.Array) -> jax.Array:
        return blocks.sum_over_rows(target.summands, position, rows, mask)

    kinds = (lambda f: f, jax.grad, jax.hessian, lambda f: jax.jacrev(jax.grad(f)))
    found, expected = (
        jax.jit(lambda at, f=f: [of(f)(at) for of in kinds])(at) for f in (blocked, plain)
    )
    for ours, whole in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, whole, rtol=1e-5, atol=1e-5)
    several = jnp.stack([at, 2 * at])
    np.testing.assert_allclose(
        jax.jit(jax.vmap(jax.grad(blocked)))(several), jax.vmap(jax.grad(plain))(several), rtol=1e-5
    )


def test_no_array_has_a_number_a_row(small: None) -> None:
    target, rows, mask = problem(6400)
    function = jax.value_and_grad(
        lambda at, rows, mask: blocks.sum_over_rows(target.summands, at, rows, mask)
    )
    compiled = jax.jit(function).lower(jnp.zeros(D), rows, mask).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * mask.size
    plain = jax.value_and_grad(lambda at, *rest: jnp.sum(target.summands(at, *rest)))
    compiled = jax.jit(plain).lower(jnp.zeros(D), rows, mask).compile()
    assert compiled.memory_analysis().temp_size_in_bytes > 4 * mask.size


def test_a_derivative_by_the_rows_is_refused(small: None) -> None:
    target, rows, mask = problem(60)

    def of_rows(x: jax.Array) -> jax.Array:
        at = jnp.zeros(D)
        return blocks.sum_over_rows(target.summands, at, {**rows, "x": x}, mask)

    with refused(argument="log_likelihood", match="than 50"):
        jax.grad(of_rows)(rows["x"])


@pytest.mark.parametrize("count", [51, 200])
def test_potentials_of_many_rows_are_those_of_one_sum(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rows, mask = problem(count)
    site = Site(rows, mask.sum(dtype=jnp.int32), jnp.ones(()), jnp.asarray(0.3))
    at = jnp.array([0.3, -0.2, 0.5])
    whole, gradient = metropolis.potential_and_gradient(target, at, site)
    monkeypatch.setattr(blocks, "ROWS_AT_ONCE", 50)
    monkeypatch.setattr(blocks, "BLOCK", 16)
    found, its_gradient = metropolis.potential_and_gradient(target, at, site)
    alone = metropolis.potential(target, at, site)
    assert float(whole.above(found)) == pytest.approx(0, abs=1e-5)
    assert float(found.above(alone)) == 0
    np.testing.assert_allclose(its_gradient, gradient, rtol=1e-5)
