"""The attack that reads rows from a site's answers at steep positions, which cut its rows in two.

It is for logistic regression with an intercept, whose flat position is (β, a).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Gradients = Callable[[np.ndarray], np.ndarray]
"""Function from positions (m, d) to gradients of U_c / w_c there, of the same shape."""

NEAR = 0.05
"""A patient is read where every feature is within this, in the units of the model."""

NARROWEST = 1e-5
"""Cuts are not halved further."""


def rows_read(read: np.ndarray, rows: np.ndarray) -> int:
    """Count the rows (n, features) that were read."""
    if not len(read):
        return 0
    gaps = np.abs(rows[:, None] - np.asarray(read)[None]).max(axis=2)
    return int((gaps.min(axis=1) <= NEAR).sum())


def by_cuts(
    gradients: Gradients,
    found: list[np.ndarray],
    *,
    features: int,
    weight: float,
    precision: float,
    steep: float,
    ends: tuple[float, float],
) -> None:
    """Add to ``found`` the features of rows, from gradients at steep positions.

    At θ = S (1, 0, ..., 0, −c) the likelihood is a step at c along the first feature: the gradient
    sums the rows beyond it, and the difference of two cuts holds those between. The cuts are
    halved until one row is left.

    Args:
        gradients: asks the site; what it raises ends the reading.
        found: rows, (features,) each.
        features: of a row.
        weight: w_c.
        precision: of the prior, of each parameter.
        steep: S.
        ends: between which the first feature is looked for.
    """

    def above(cuts: np.ndarray) -> np.ndarray:
        positions = np.zeros((len(cuts), features + 1))
        positions[:, 0], positions[:, -1] = steep, -steep * cuts
        return (gradients(positions) - precision * positions) * weight

    first, last = above(np.array(ends))
    waiting = [(*ends, first, last)]
    while waiting:
        middles = above(np.array([(low + high) / 2 for low, high, _, _ in waiting]))
        halves = []
        for (low, high, left, right), at in zip(waiting, middles, strict=True):
            cut = (low + high) / 2
            for a, b, lower, other in ((low, cut, left, at), (cut, high, at, right)):
                count = round(float((lower - other)[-1]))
                if count == 1:
                    found.append((lower - other)[:-1])
                elif count > 1 and b - a > NARROWEST:
                    halves.append((a, b, lower, other))
        waiting = halves
