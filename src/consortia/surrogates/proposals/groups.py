r"""Coordinates of hierarchical models whose groups are integrated out.

Given the standard deviation τ between J groups, their common level is known up to √(v + τ²/J), and
log τ has the tail of an exponential law to the left: with few groups a funnel with a long neck.
The model knows which parameters these are (`consortia.Model.group_sd`), and in coordinates z with

.. math::
    \theta_k = \begin{cases} z_k & z_k \ge m_k \\
               m_k - u - u^2/2,\quad u = m_k - z_k & z_k < m_k\end{cases}
    \quad (k \text{ a } \log\tau), \qquad
    \theta_j = m_j + (z_j - m_j)\sqrt{\frac{v_j + s_j^2}{v_j + s_j(m)^2}}

it is nearly Gaussian; m is about the mode, v the variance that the rows of all sites leave where τ
is 0, and s = τ/√J, 0 of all parameters on which it depends, so that the map is one to one. Levels
and slopes that are correlated between the sites move together, by the Cholesky factors A of
diag(v) + diag(s) R diag(s):

.. math:: \theta_b = m_b + A(\theta)\,A(m)^{-1}\,(z_b - m_b)

Given a correlation near ±1 they lie along a ridge, which turns with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from consortia.core.target import Target

WIDER = 1.5
"""Factor of v: that of sums over sites is of a Gaussian law of their rows."""

ROUNDING = 1e-10
"""Part of s² that is added to v, so that there are factors A in 64 bits where R is singular."""

Bundle = tuple[Int[np.ndarray, " K"], Float[np.ndarray, "n K K"]]
"""Parameters that are correlated between the sites, and the Cholesky factors of R."""


class SpreadOf(NamedTuple):
    """The spread between sites as a function of the parameters.

    Attributes:
        spreads: which of them are log τ.
        group_sd: θ -> s, (n, d) each.
        bundles: θ -> what is correlated.
    """

    spreads: Bool[np.ndarray, " d"]
    group_sd: Callable[[np.ndarray], np.ndarray]
    bundles: Callable[[np.ndarray], list[Bundle]]


class Groups(NamedTuple):
    """The map.

    Attributes:
        mode: m.
        variance: v.
        spread_of: the model's s and R.
    """

    mode: Float[np.ndarray, " d"]
    variance: Float[np.ndarray, " d"]
    spread_of: SpreadOf

    def positions(self, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return θ of z."""
        below = np.where(self.spread_of.spreads, np.maximum(self.mode - z, 0), 0)
        moved = z - below**2 / 2
        points = self.mode + (moved - self.mode) * np.exp(self._log_scale(moved))
        for members, root, at_mode in self._roots(moved):
            away = np.linalg.solve(at_mode, (z - self.mode)[:, members].T).T
            points[:, members] = self.mode[members] + (root @ away[..., None])[..., 0]
        return points

    def white(
        self, points: Float[np.ndarray, "n d"]
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Return z of θ, and log |dz/dθ|."""
        log_scale = self._log_scale(points)
        z = self.mode + (points - self.mode) * np.exp(-log_scale)
        fall = np.where(self.spread_of.spreads, np.maximum(self.mode - points, 0), 0)
        below = np.sqrt(1 + 2 * fall) - 1
        z = np.where(fall > 0, self.mode - below, z)
        for members, root, at_mode in self._roots(points):
            away = np.linalg.solve(root, (points - self.mode)[:, members, None])
            z[:, members] = self.mode[members] + (at_mode @ away)[..., 0]
            ratio = np.diagonal(root, axis1=1, axis2=2) / np.diagonal(at_mode)
            log_scale[:, members] = np.log(ratio)
        return z, -(log_scale + np.log1p(below)).sum(axis=1)

    def _log_scale(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return log √((v + s²)/(v + s(m)²)); 0 of the parameters on which s depends."""
        of_points, at_mode = (
            self.variance + self.spread_of.group_sd(each) ** 2 for each in (points, self.mode[None])
        )
        return 0.5 * np.log(of_points / at_mode)

    def _roots(self, points: Float[np.ndarray, "n d"]) -> list[tuple[np.ndarray, ...]]:
        """Return the members of each bundle, A at points (n, K, K), and A at the mode (K, K)."""
        places = np.concatenate([points, self.mode[None]])
        sds, roots = self.spread_of.group_sd(places), list[tuple[np.ndarray, ...]]()
        for members, factors in self.spread_of.bundles(places):
            scaled = sds[:, members, None] * factors
            apart = self.variance[members] + ROUNDING * sds[:, members] ** 2
            both = np.linalg.cholesky(scaled @ scaled.mT + apart[:, None] * np.eye(len(members)))
            roots.append((members, both[:-1], both[-1]))
        return roots


def groups_of(target: Target, start: Float[np.ndarray, " d"]) -> SpreadOf | None:
    """Find the parameters log τ, the function s and what is correlated; None without groups."""
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

    return SpreadOf(spreads, group_sd, target.group_bundles)


BLOCK = 1024
"""Points at which s is computed together, by one program."""
