"""Damped Newton steps find a mode whatever the units of the parameters."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia.algorithms import expanding
from consortia.surrogates.curvature import mode_of
from consortia.surrogates.newton import newton
from consortia.theory.potentials import mode_by

RNG = np.random.default_rng(5)
ROWS, WIDTHS = 200, np.array([10.0, 1.0, 1.0, 1.0, 2.0])
X = np.column_stack([np.ones(ROWS), RNG.normal(size=(ROWS, 3))])
Y = X @ [2.0, 1.0, 1.0, 1.0] + RNG.normal(size=ROWS)
UNITS = np.array([1.0, 1e4, 1.0, 1e-4, 1.0])
"""Of an intercept, three coefficients and log σ."""

STARTS = [np.zeros(5), *(2 * RNG.normal(size=(3, 5)))]


def narrow(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float32)


def negative(position: jax.Array) -> jax.Array:
    """Return −log π of a linear regression, in parameters of those units."""
    natural = position / narrow(UNITS)
    away = (narrow(Y) - narrow(X) @ natural[:4]) * jnp.exp(-natural[4])
    return ROWS * natural[4] + (jnp.sum(away**2) + jnp.sum((natural / narrow(WIDTHS)) ** 2)) / 2


def in_one_program(start: np.ndarray) -> np.ndarray:
    found, _, reached = mode_of(negative, jnp.asarray(narrow(start)))
    assert reached
    return np.asarray(found, float)


def between_evaluations(start: np.ndarray) -> np.ndarray:
    @jax.jit
    def derivatives(x: jax.Array) -> tuple[jax.Array, ...]:
        return negative(x), jax.grad(negative)(x), jax.hessian(negative)(x)

    def function(x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        value, slope, curvature = (np.asarray(v, float) for v in derivatives(narrow(x)))
        return float(value), slope, curvature

    return mode_by(function, start)


@pytest.mark.parametrize("search", [in_one_program, between_evaluations])
def test_a_mode_is_found_from_any_start_whatever_the_units(
    search: Callable[[np.ndarray], np.ndarray],
) -> None:
    slope, curvature = jax.grad(negative), jax.jit(jax.hessian(negative))
    for start in STARTS:
        found = search(UNITS * start)
        step = np.linalg.solve(*(np.asarray(f(narrow(found)), float) for f in (curvature, slope)))
        sd = np.sqrt(np.diag(np.linalg.inv(np.asarray(curvature(narrow(found)), float))))
        assert np.abs(step / sd).max() < 0.01  # of a posterior sd


def of_expanding(gradient: jax.Array, curvature: jax.Array) -> jax.Array:
    at = expanding.Second(jnp.zeros(()), gradient, curvature)
    return expanding._tried(jnp.zeros(2), at, jnp.full((), 0.1)).change


def test_a_damped_step_in_other_units_is_the_same_step() -> None:
    gradient, curvature = jnp.array([1.0, -2.0]), jnp.array([[2.0, 0.5], [0.5, 1.0]])
    units = jnp.array([2.0**12, 2.0**-12])
    other = of_expanding(gradient / units, curvature / units[:, None] / units[None])
    np.testing.assert_allclose(other / units, of_expanding(gradient, curvature), rtol=1e-5)


@pytest.mark.parametrize("size", [1e-5, 1e-4, 1e-3])
def test_a_search_ends_where_rounding_hides_the_fall(size: float) -> None:
    """A sum of large terms may be rounded up at its minimum by more than its own last digits."""
    matrix, mode = np.array([[46.0, -13.0], [-13.0, 110.0]]), np.array([0.75, -1.5])
    start = mode + 1e-5

    def rounded(position: jax.Array) -> jax.Array:
        away = position - mode.astype(np.float32)
        near = jnp.max(jnp.abs(away)) < 0.9e-5
        return 0.5 * away @ jnp.asarray(matrix, jnp.float32) @ away + jnp.where(near, size, 0)

    def function(position: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        value = float(rounded(jnp.asarray(position, jnp.float32)))
        return value, matrix @ (position - mode), matrix

    found = newton(function, start, width=np.float32)
    assert found.converged
    np.testing.assert_allclose(found.position, mode, atol=1e-4)
    position, _, converged = mode_of(rounded, jnp.asarray(start, jnp.float32))
    assert bool(converged)
    np.testing.assert_allclose(position, mode, atol=1e-4)
