"""The minimum of a smooth function by damped Newton steps, inside a compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from consortia.surrogates.curvature import hessian

Array = jax.Array

MOST_STEPS = 100
TOLERANCE = 1e-6
"""On g'H⁻¹g, the squared distance to the minimum in standard deviations of the Gaussian there."""


class _Search(NamedTuple):
    position: Array
    value: Array
    gradient: Array
    matrix: Array
    damping: Array
    step: Array
    converged: Array


def mode_of(function: Callable[[Array], Array], start: Array) -> tuple[Array, Array, Array]:
    """The minimum nearest downhill from a start, with the second derivative there.

    Each step solves (H + damping · I) δ = −g and is taken when the function falls; the damping
    shrinks after a step that is taken and grows after one that is not.

    Returns:
        The minimum (d,), the second derivative (d, d), and whether it was reached.
    """

    def look(position: Array) -> tuple[Array, Array, Array]:
        value, gradient = jax.value_and_grad(function)(position)
        return value, gradient, hessian(function, position, full=True)

    def goes_on(search: _Search) -> Array:
        return ~search.converged & (search.step < MOST_STEPS)

    def advance(search: _Search) -> _Search:
        damped = search.matrix + search.damping * jnp.eye(start.size, dtype=start.dtype)
        change = -jnp.linalg.solve(damped, search.gradient)
        fall = -jnp.dot(search.gradient, change)
        trial = search.position + change
        value, gradient, matrix = look(trial)
        # Near the minimum a fall is lost in the rounding of the sum.
        slack = 8 * jnp.finfo(start.dtype).eps * jnp.abs(search.value)
        better = (fall >= 0) & (value <= search.value + slack) & jnp.all(jnp.isfinite(matrix))
        size = jnp.max(jnp.abs(jnp.diag(search.matrix)))

        def take(new: Array, old: Array) -> Array:
            return jnp.where(better, new, old)

        smaller = jnp.where(search.damping < 1e-6 * size, 0, search.damping / 10)
        larger = jnp.maximum(10 * search.damping, 1e-3 * size)
        return _Search(
            take(trial, search.position),
            take(value, search.value),
            take(gradient, search.gradient),
            take(matrix, search.matrix),
            jnp.where(better, smaller, larger),
            search.step + 1,
            better & (fall < TOLERANCE) & (search.damping <= 1e-3 * size),
        )

    value, gradient, matrix = look(start)
    begin = 1e-3 * jnp.max(jnp.abs(jnp.diag(matrix)))
    search = _Search(
        start, value, gradient, matrix, begin, jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    )
    search = jax.lax.while_loop(goes_on, advance, search)
    return search.position, search.matrix, search.converged
