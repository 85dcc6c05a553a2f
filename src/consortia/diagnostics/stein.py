r"""The kernel Stein discrepancy: draws beside the gradients of a log-density, with no true draws.

.. math::
    \mathrm{KSD}^2 = \frac1{n^2}\sum_{ij} s_i^\top s_j\, k_{ij} + s_i^\top \nabla_2 k_{ij}
        + s_j^\top \nabla_1 k_{ij} + \operatorname{tr} \nabla_1 \nabla_2 k_{ij}

with s = ∇log π at the draws and the inverse multiquadric kernel k(x, y) = (1 + r²/d)^(-1/2), r the
distance once the draws are whitened. It is 0 for the density's own law only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.errors import wrong

BOOTSTRAPS = 999
"""Random signs, from which the level of independent draws is found."""

LEVEL = 0.95

FEWEST, MOST = 50, 500
"""Draws that are compared: fewer say nothing, and the work grows with their square."""


@dataclass(frozen=True)
class Stein:
    """A discrepancy, and what draws of the density itself would have.

    Attributes:
        value: KSD of the whitened draws.
        level: that 95 % of as many independent draws of the density stay below.
        p_value: share of the bootstraps that are as large.
        points: draws compared.

    Example:
        >>> Stein(value=0.1, level=0.2, p_value=0.4, points=100).value
        0.1
    """

    value: float
    level: float
    p_value: float
    points: int

    def plain(self) -> dict[str, float]:
        """Return plain values, as in JSON."""
        return asdict(self)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Stein:
        """Restore it from the result of `plain`."""
        value, level, p_value = (float(values[name]) for name in ("value", "level", "p_value"))
        return cls(value, level, p_value, int(values["points"]))


def kernel_stein(
    points: Float[np.ndarray, "n d"], scores: Float[np.ndarray, "n d"], *, seed: int = 0
) -> Stein:
    """Return the discrepancy of draws, which should be all but independent, and its level.

    The level is that of a wild bootstrap: of Σ w_i w_j u_ij / n² with random signs w, where u_ij is
    what the discrepancy averages.

    Args:
        points: draws.
        scores: the gradient of the log-density at each.
        seed: of the bootstrap.

    Returns:
        The discrepancy, its level, and the share of bootstraps above it.

    Raises:
        InputError: too few draws, or a number that is not finite.

    Example:
        >>> draws = np.random.default_rng(0).normal(size=(200, 2))
        >>> found = kernel_stein(draws, -draws)
        >>> found.value < 2 * found.level
        True

    Source: Gorham and Mackey (2017) for the kernel; Chwialkowski, Strathmann and Gretton (2016) for
    the bootstrap.
    """
    n = len(points)
    if scores.shape != points.shape:
        raise wrong("scores", f" have shape {scores.shape}, the points {points.shape}.")
    if n < FEWEST:
        raise wrong(
            "points", f": {n} draws are too few for a Stein discrepancy: give {FEWEST} or more."
        )
    if not (np.isfinite(points).all() and np.isfinite(scores).all()):
        raise wrong("scores", " or points hold a value that is not finite.")
    root = _root(points)
    terms = stein_kernel(np.linalg.solve(root, points.T).T, scores @ root)
    value = float(terms.mean())
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (BOOTSTRAPS, n))
    null = np.einsum("bi,bi->b", signs @ terms, signs) / n**2
    at = float(np.quantile(null, LEVEL))
    beyond = int((null >= value).sum())
    return Stein(
        math.sqrt(max(value, 0.0)),
        math.sqrt(max(at, 0.0)),
        (1 + beyond) / (1 + BOOTSTRAPS),
        n,
    )


def stein_kernel(
    points: Float[np.ndarray, "n d"], scores: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, "n n"]:
    """Return the Stein kernel of the inverse multiquadric one between all points."""
    d = points.shape[1]
    square = (points**2).sum(axis=1)
    distance = np.maximum(square[:, None] + square - 2 * points @ points.T, 0) / d
    base = 1 / np.sqrt(1 + distance)
    along = scores @ points.T  # s_i·x_j
    diagonal = np.diagonal(along)
    # ∇₁k = −(x − y) k³/d, and ∇₂k is its opposite.
    slope = base**3 / d
    cross = (diagonal[:, None] - along) + (diagonal[None, :] - along.T)
    trace = base**3 - 3 * distance * base**5 / d
    return scores @ scores.T * base + slope * cross + trace


def _root(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "d d"]:
    """Return L with L L' the draws' covariance; of the sds alone where draws are few."""
    n, d = points.shape
    sd = points.std(axis=0)
    if not (sd > 0).all():
        raise wrong("points", ": a coordinate is constant over all draws.")
    if n < 5 * d:
        return np.diag(sd)
    try:
        return np.linalg.cholesky(np.atleast_2d(np.cov(points.T)))
    except np.linalg.LinAlgError:
        return np.diag(sd)
