r"""Coordinates in which bends and funnels are straight: a triangular map of weighted points.

.. math:: u_j = \frac{x_j - m_j(x_{<j})}{\exp s_j(x_{<j})}, \qquad
          \log\left|\frac{du}{d\theta}\right| = -\sum_j s_j(x_{<j}) + \text{const}

with x the standardised parameters in an order in which those come first that drive the spread of
others (the log of a standard deviation between groups, the factor of a product). m_j is linear in
what comes before and quadratic in the drivers, s_j linear in the drivers: a few regressions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

DRIVERS = 2
"""Parameters that others may bend with."""

RIDGE = 1e-3
LARGEST = 4.0
"""Logarithm of a relative scale, at most."""

HALF = 1.2704
"""-E log χ² of one degree of freedom."""


class Flow(NamedTuple):
    """The order of the parameters, their centre and scale, and the coefficients of m and s."""

    order: Int[np.ndarray, " d"]
    centre: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    locations: tuple[Float[np.ndarray, " f"], ...]
    spreads: tuple[Float[np.ndarray, " g"], ...]

    def white(
        self, points: Float[np.ndarray, "n d"]
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Return u of θ, and log |du/dθ|."""
        x = ((points - self.centre) / self.scale)[:, self.order]
        u, volume = np.empty_like(x), np.full(len(x), -np.log(self.scale).sum())
        for index, (location, spread) in enumerate(zip(self.locations, self.spreads, strict=True)):
            log_scale = _log_scale(x[:, :index], spread)
            u[:, index] = (x[:, index] - _location(x[:, :index]) @ location) * np.exp(-log_scale)
            volume -= log_scale
        return u, volume

    def positions(self, u: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return θ of u."""
        x = np.empty_like(u)
        for index, (location, spread) in enumerate(zip(self.locations, self.spreads, strict=True)):
            before = x[:, :index]
            x[:, index] = _location(before) @ location
            x[:, index] += u[:, index] * np.exp(_log_scale(before, spread))
        points = np.empty_like(x)
        points[:, self.order] = x
        return self.centre + self.scale * points


def _location(before: np.ndarray) -> np.ndarray:
    """Return 1, what comes before, and products with the drivers."""
    n, count = before.shape
    columns = [np.ones((n, 1)), before]
    # Beyond what was seen a parabola would leave for elsewhere.
    bounded = np.clip(before, -5, 5)
    for driver in range(min(DRIVERS, count)):
        columns.append(bounded[:, driver : driver + 1] * bounded[:, driver:])
    return np.concatenate(columns, axis=1)


def _log_scale(before: np.ndarray, spread: np.ndarray) -> np.ndarray:
    drivers = before[:, : len(spread) - 1]
    return np.clip(spread[0] + drivers @ spread[1:], -LARGEST, LARGEST)


def fit_flow(points: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"]) -> Flow:
    """Return the map fitted to weighted points."""
    centre = weights @ points
    scale = np.sqrt(weights @ (points - centre) ** 2) + 1e-300
    x = (points - centre) / scale
    order = _order(x, weights)
    x = x[:, order]
    d = x.shape[1]
    effective = 1 / (weights**2).sum()
    locations, spreads = [], []
    for index in range(d):
        before = x[:, :index]
        features = _location(before)
        drivers = np.concatenate([np.ones((len(x), 1)), before[:, :DRIVERS]], axis=1)
        precisions = weights
        for _ in range(2):
            location = _regression(features, x[:, index], precisions, effective)
            rest = x[:, index] - features @ location
            logs = np.log(rest**2 + 1e-6) / 2 + HALF / 2
            spread = _regression(drivers, logs, weights, effective)
            precisions = weights * np.exp(-2 * _log_scale(before, spread))
        locations.append(location)
        spreads.append(spread)
    return Flow(order, centre, scale, tuple(locations), tuple(spreads))


def _regression(
    features: np.ndarray, wanted: np.ndarray, weights: np.ndarray, effective: float
) -> np.ndarray:
    weighted = features * weights[:, None]
    gram = weighted.T @ features
    ridge = np.full(len(gram), (RIDGE + 2 / effective) * weights.sum())
    ridge[0] = 0
    return np.linalg.solve(gram + np.diag(ridge), weighted.T @ wanted)


def _order(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the parameters with those first that tell most of the spread of others."""
    d = x.shape[1]
    scores = np.zeros(d)
    for driver in range(d):
        base = np.stack([np.ones(len(x)), x[:, driver], x[:, driver] ** 2], axis=1)
        gram = (base * weights[:, None]).T @ base
        rest = x - base @ np.linalg.solve(gram + 1e-9 * np.eye(3), (base * weights[:, None]).T @ x)
        logs = np.log(rest**2 + 1e-4)
        logs -= weights @ logs
        centred = x[:, driver] - weights @ x[:, driver]
        covariances = (weights * centred) @ logs
        squares = (weights @ centred**2) * (weights @ logs**2)
        share = covariances**2 / np.maximum(squares, 1e-300)
        share[driver] = 0
        scores[driver] = share.sum()
    return np.argsort(-scores, kind="stable")
