"""The mode of a smooth function that NumPy evaluates, by damped Newton steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.surrogates.curvature import NEWTON_STEPS, NEWTON_TOLERANCE

Pieces = Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]
"""Function from a position to value, gradient and second derivative there."""


class Mode(NamedTuple):
    """The minimum nearest downhill from a start."""

    position: Float[np.ndarray, " d"]
    matrix: Float[np.ndarray, "d d"]  # second derivative there
    converged: bool


def newton(function: Pieces, start: Float[np.ndarray, " d"], *, width: Any = np.float64) -> Mode:
    """Return the mode as `consortia.surrogates.curvature.mode_of` finds it.

    Each step solves (H + damping · |diag H|) δ = −g and is taken when the function falls; the
    damping shrinks after a step that is taken and grows after one that is not.

    Args:
        function: the function with two derivatives.
        start: where the search begins.
        width: type of the values, whose rounding hides a fall near the minimum.
    """
    position, damping = np.asarray(start, np.float64), 1e-3
    value, gradient, matrix = function(position)
    for _ in range(NEWTON_STEPS):
        size = np.abs(np.diag(matrix))
        damped = matrix + damping * np.diag(np.where(size > 0, size, 1))
        if not np.isfinite(damped).all():
            break
        change = -_solved(damped, gradient)
        fall = -float(gradient @ change)
        trial = position + change
        with np.errstate(all="ignore"):
            pieces = function(trial)
        finite = fall >= 0 and np.isfinite(pieces[2]).all()
        better = finite and pieces[0] <= value + 8 * float(np.finfo(width).eps) * abs(value)
        # Of a sum of large terms rounding may exceed that: a step so short is the last.
        done = finite and fall < NEWTON_TOLERANCE and damping <= 1e-3
        if better:
            position, (value, gradient, matrix) = trial, pieces
        if done:
            return Mode(position, matrix, True)
        smaller = 0.0 if damping < 1e-6 else damping / 10
        damping = smaller if better else max(10 * damping, 1e-3)
    return Mode(position, matrix, False)


def _solved(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return the solution, not a number where there is none."""
    try:
        return np.linalg.solve(matrix, vector)
    except np.linalg.LinAlgError:
        return np.full_like(vector, np.nan)
