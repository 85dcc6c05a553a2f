"""The mode of a smooth function, by damped Newton steps, over an array namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from consortia.core.arrays import Array, is_host, namespace, repeat

NEWTON_STEPS = 100
NEWTON_TOLERANCE = 1e-6
"""Bound on g'H⁻¹g, the squared distance to the minimum in the Gaussian's standard deviations."""

Pieces = Callable[[Array], tuple[Any, Array, Array]]
"""Function from a position to value, gradient and second derivative there."""


class Mode(NamedTuple):
    """The minimum nearest downhill from a start."""

    position: Array  # (d,)
    matrix: Array  # second derivative there, (d, d)
    converged: Any  # whether it was reached


class _Search(NamedTuple):
    position: Array
    value: Any
    gradient: Array
    matrix: Array
    damping: Any
    step: Any
    converged: Any


def damped(matrix: Array, damping: Any) -> Array:
    """Return H + damping · |diag H|, with one in place of an element that is zero."""
    xp = namespace(matrix)
    size = xp.abs(xp.diag(matrix))
    return matrix + damping * xp.diag(xp.where(size > 0, size, 1))


def newton(function: Pieces, start: Array, *, width: Any = None) -> Mode:
    """Return the mode by damped Newton steps from a start.

    Each step solves (H + damping · |diag H|) δ = −g and is taken when the function falls; the
    damping shrinks after a step that is taken and grows after one that is not. The steps do not
    depend on the units of the parameters.

    Args:
        function: the function with two derivatives; of NumPy's arrays it may send messages.
        start: where the search begins, (d,); of NumPy's arrays in double precision.
        width: type of the values, whose rounding hides a fall near the minimum; that of the start
            when None.
    """
    start = np.asarray(start, np.float64) if is_host(start) else start
    xp, eps = namespace(start), float(np.finfo(width or start.dtype).eps)

    def goes_on(search: _Search) -> Any:
        searching = ~search.converged & (search.step < NEWTON_STEPS)
        return searching & xp.all(xp.isfinite(search.matrix))

    @np.errstate(all="ignore")  # of NumPy: a step of NaN is not taken
    def advance(search: _Search) -> _Search:
        first = search.step < 0  # looks at the start itself, so that one program looks at both
        change = -_solved(damped(search.matrix, search.damping), search.gradient)
        fall = -xp.dot(search.gradient, change)
        trial = search.position + change
        value, gradient, matrix = function(trial)
        # Near the minimum a fall is lost in the rounding of the sum.
        slack = 8 * eps * xp.abs(search.value)
        finite = (fall >= 0) & xp.all(xp.isfinite(matrix))
        better = (finite & (value <= search.value + slack)) | first

        def take(new: Any, old: Any) -> Any:
            return xp.where(better, new, old)

        smaller = xp.where(search.damping < 1e-6, 0, search.damping / 10)
        larger = xp.maximum(10 * search.damping, 1e-3)
        return _Search(
            take(trial, search.position),
            take(value, search.value),
            take(gradient, search.gradient),
            take(matrix, search.matrix),
            xp.where(first, 1e-3, take(smaller, larger)),
            search.step + 1,
            # Of a sum of large terms rounding may exceed the slack: a step so short is the last.
            ~first & finite & (fall < NEWTON_TOLERANCE) & (search.damping <= 1e-3),
        )

    zero, unit = xp.zeros((), start.dtype), xp.ones((), start.dtype)
    nothing = xp.zeros_like(start), xp.zeros((start.size, start.size), start.dtype)
    search = _Search(start, zero, *nothing, unit, xp.int32(-1), xp.zeros((), bool))
    search = repeat(advance, goes_on, search, start)
    return Mode(search.position, search.matrix, search.converged)


def _solved(matrix: Array, vector: Array) -> Array:
    """Return the solution, not a number where there is none."""
    try:
        return namespace(matrix).linalg.solve(matrix, vector)
    except np.linalg.LinAlgError:
        return np.full_like(vector, np.nan)
