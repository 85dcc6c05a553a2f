r"""Coordinates of hierarchical models whose groups are integrated out.

Given the standard deviation τ between J groups, their common level is known up to √(v + τ²/J), and
log τ has the tail of an exponential law to the left: with few groups a funnel with a long neck.
The model knows which parameters these are (`consortia.Model.group_sd`), and in coordinates z with

.. math::
    \theta_k = \begin{cases} z_k & z_k \ge m_k \\
               m_k - u - u^2/2,\quad u = m_k - z_k & z_k < m_k\end{cases}
    \quad (k \text{ a } \log\tau), \qquad
    \theta_j = m_j + (z_j - m_j)\sqrt{\frac{v_j + s_j^2}{v_j + s_j(m)^2}}

it is nearly Gaussian; m is about the mode, v + s(m)² the variances there, and s = τ/√J, 0 of all
parameters on which it depends, so that the map is one to one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from consortia.core.target import Target

OWN_SHARE = 0.1
"""Part of a variance at the mode that v is, at least."""

Spread = Callable[[np.ndarray], np.ndarray]
SpreadOf = tuple[Bool[np.ndarray, " d"], Spread]
"""The parameters that are log τ, and θ -> s."""


class Groups(NamedTuple):
    """The map.

    Attributes:
        mode: m.
        variance: v + s(m)².
        spreads: which parameters are log τ.
        group_sd: θ -> s, (n, d) each.
    """

    mode: Float[np.ndarray, " d"]
    variance: Float[np.ndarray, " d"]
    spreads: Bool[np.ndarray, " d"]
    group_sd: Spread

    def positions(self, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return θ of z."""
        below = np.where(self.spreads, np.maximum(self.mode - z, 0), 0)
        moved = z - below**2 / 2
        return self.mode + (moved - self.mode) * np.exp(self._log_scale(moved))

    def white(
        self, points: Float[np.ndarray, "n d"]
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Return z of θ, and log |dz/dθ|."""
        log_scale = self._log_scale(points)
        z = self.mode + (points - self.mode) * np.exp(-log_scale)
        fall = np.where(self.spreads, np.maximum(self.mode - points, 0), 0)
        below = np.sqrt(1 + 2 * fall) - 1
        z = np.where(fall > 0, self.mode - below, z)
        return z, -(log_scale + np.log1p(below)).sum(axis=1)

    def _log_scale(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return log √((v + s²)/(v + s(m)²)); 0 of the parameters on which s depends."""
        at_mode = self.group_sd(self.mode[None])[0] ** 2
        left = np.maximum(self.variance - at_mode, OWN_SHARE * self.variance)
        return 0.5 * np.log((left + self.group_sd(points) ** 2) / (left + at_mode))


def groups_of(target: Target, start: Float[np.ndarray, " d"]) -> SpreadOf | None:
    """Find the parameters log τ and the function s; None of a model without groups."""
    if target.model.group_sd is None:
        return None
    moved = start + np.eye(len(start))  # s is proportional to τ
    apart = target.group_sds(moved) - target.group_sds(np.asarray(start)[None])
    spreads = np.any(apart != 0, axis=1)

    def group_sd(points: np.ndarray) -> np.ndarray:
        # s depends on the log τ alone; far out they are cut where single precision ends.
        bounded = np.clip(np.where(spreads, points, 0), -40, 40).astype(target.dtype)
        width = max(-len(bounded) % BLOCK, BLOCK * (not len(bounded)))
        padded = np.concatenate([bounded, np.zeros((width, bounded.shape[1]), bounded.dtype)])
        parts = [target.group_sds(part) for part in padded.reshape(-1, BLOCK, bounded.shape[1])]
        return np.concatenate(parts)[: len(bounded)]

    return spreads, group_sd


BLOCK = 1024
"""Points at which s is computed together, by one program."""
