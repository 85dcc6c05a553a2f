"""Attacks that read rows from a site's answers: by cuts, and from known minibatches.

Both are for logistic regression with an intercept, whose flat position is (β, a).
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

EVALUATIONS = 30
"""Most evaluations of the least squares."""

CLIPPED = 4.0
"""Bound of the features that least squares begin with, in the units of the model."""


def rows_read(read: np.ndarray, rows: np.ndarray) -> int:
    """Count the rows (n, features) that were read."""
    if not len(read):
        return 0
    gaps = np.abs(rows[:, None] - np.asarray(read)[None]).max(axis=2)
    return int((gaps.min(axis=1) <= NEAR).sum())


def by_cuts(
    gradients: Gradients,
    recovered: list[np.ndarray],
    *,
    features: int,
    weight: float,
    precision: float,
    steep: float,
    ends: tuple[float, float],
) -> None:
    """Add to ``recovered`` the features of rows, from gradients at steep positions.

    At θ = S (1, 0, ..., 0, −c) the likelihood is a step at c along the first feature: the gradient
    sums the rows beyond it, and the difference of two cuts holds those between. The cuts are
    halved until one row is left.

    Args:
        gradients: asks the site; what it raises ends the reading.
        recovered: rows, (features,) each.
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
                    recovered.append((lower - other)[:-1])
                elif count > 1 and b - a > NARROWEST:
                    halves.append((a, b, lower, other))
        waiting = halves


def from_minibatches(
    positions: np.ndarray, gradients: np.ndarray, numbers: np.ndarray, rows: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return features (rows, features) and labels (rows,) from gradients of known minibatches.

    Each gradient is an equation in the rows of its minibatch; many are solved by least squares,
    first for each row's share of a gradient, then for the rows themselves.

    Args:
        positions: (m, d), where the gradients were taken.
        gradients: (m, d), of the likelihood, Σ_batch (σ(t_i) − y_i) (x_i, 1) · n_c/B.
        numbers: (m, B), the rows of each.
        rows: n_c.
        size: B.
    """
    from scipy.optimize import least_squares
    from scipy.special import expit

    d = positions.shape[1]
    features = d - 1
    design = np.zeros((len(numbers), rows))
    for row, which in zip(design, numbers, strict=True):
        np.add.at(row, which, rows / size)
    shares = np.linalg.lstsq(design, gradients, rcond=None)[0]
    labels = (shares[:, -1] < 0).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        start = np.clip(np.nan_to_num(shares[:, :-1] / shares[:, -1:]), -CLIPPED, CLIPPED)

    def padded(flat: np.ndarray) -> np.ndarray:
        return np.column_stack([flat.reshape(rows, features), np.ones(rows)])

    def residuals(flat: np.ndarray) -> np.ndarray:
        x = padded(flat)
        return ((design * (expit(positions @ x.T) - labels)) @ x - gradients).ravel()

    def jacobian(flat: np.ndarray) -> np.ndarray:
        x = padded(flat)
        chance = expit(positions @ x.T)
        slope = design * chance * (1 - chance)
        made = np.zeros((len(positions), d, rows, features))
        for k in range(features):
            made[..., k] = (slope * positions[:, [k]])[:, None, :] * x.T[None]
            made[:, k, :, k] += design * (chance - labels)
        return made.reshape(-1, rows * features)

    solved = least_squares(residuals, start.ravel(), jacobian, max_nfev=EVALUATIONS)
    return solved.x.reshape(rows, features), labels
