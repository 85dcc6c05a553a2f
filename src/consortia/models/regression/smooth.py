r"""Smooth functions of one number: natural cubic splines, cut into a line and what curves.

A natural cubic spline with values δ at its knots has :math:`\int f''^2 = \delta^\top D^\top B^{-1}
D\,\delta` with second differences D and a band matrix B (Wood, "Generalized Additive Models", 2nd
ed., 5.3.1). With :math:`\delta = D^\top (D D^\top)^{-1} L u`, :math:`B = L L^\top`, this is
:math:`u^\top u`, and only straight lines are left out: a smooth is a line and u ~ N(0, sd²).

Knots are evenly spaced over three standard deviations to both sides of the mean, so that no site
tells quantiles, which are values of rows; beyond, the function is a straight line.
"""

from __future__ import annotations

import numpy as np

REACH = 3.0
"""Standard deviations that the knots reach to both sides."""

USUAL = np.linspace(-2, 2, 81)
"""Points at which columns are scaled: with u ~ N(0, 1) the function's mean variance is 1 here."""


def curved(values: np.ndarray, knots: int) -> np.ndarray:
    """Return the columns (rows, knots − 2) of what curves, of values in standard deviations."""
    at = np.linspace(-REACH, REACH, knots)
    shapes = _shapes(at)
    scale = np.sqrt(np.mean(np.sum(np.square(_spline(USUAL, at) @ shapes), axis=1)))
    return _spline(values, at) @ shapes / scale


def _shapes(at: np.ndarray) -> np.ndarray:
    """Return the values at the knots of each function, Dᵀ (D Dᵀ)⁻¹ L."""
    import scipy.linalg  # heavy: only smooths need it

    h = np.diff(at)
    inner = len(at) - 2
    D, B = np.zeros((inner, len(at))), np.zeros((inner, inner))
    for i in range(inner):
        D[i, i : i + 3] = 1 / h[i], -1 / h[i] - 1 / h[i + 1], 1 / h[i + 1]
        B[i, i] = (h[i] + h[i + 1]) / 3
        if i + 1 < inner:
            B[i, i + 1] = B[i + 1, i] = h[i + 1] / 6
    # Cholesky, not eigenvectors: the same columns at every site, signs included
    return D.T @ scipy.linalg.solve(D @ D.T, np.linalg.cholesky(B), assume_a="pos")


def _spline(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the matrix that takes values at the knots to the natural spline, lines outside."""
    from scipy.interpolate import CubicSpline  # heavy: only smooths need it

    spline = CubicSpline(at, np.eye(len(at)), bc_type="natural")
    inside = np.clip(values, at[0], at[-1])
    return spline(inside) + (values - inside)[:, None] * spline(inside, 1)
