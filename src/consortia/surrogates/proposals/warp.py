r"""Coordinates in which a lopsided tail is that of a Gaussian.

Rays through the centre show how far the log-posterior reaches either way. An axis along which one
side reaches much farther than the other is mapped to the normal score of its ray's own profile,

.. math:: \theta = c + L\,G(z), \qquad G_k^{-1}(t) = \Phi^{-1}\bigl(F_k(t)\bigr), \qquad
          F_k(t) \propto \int_{-\infty}^t \pi(c + u\,L e_k)\,du

with a monotone spline and bounded linear tails. The surrogate and its envelope live in z, and
log |dz/dθ| is added to their densities: the law of the draws stays exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from scipy import linalg, special

from consortia.surrogates.proposals.rays import Profile

Knots = tuple[np.ndarray, np.ndarray]

LOPSIDED = 0.9
"""|log| of the ratio of a line's two reaches from which on its axis is warped: one side reaches
about 2.5 times as far as the other. Like the thresholds below chosen, not measured: a warp that was
not needed costs points and moves no draw, see above."""

INDEPENDENT = 0.8
"""Length that a unit direction keeps orthogonally to the axes before it, at least: an angle of 53
degrees."""

DEEPEST = 80.0
"""Points of a profile whose log-posterior is lower than that of the centre by more are not used: a
mass of e⁻⁸⁰ is below rounding."""

FEWEST, FINE, KNOTS = 6, 4001, 120
"""Points of a profile at least, points at which it is integrated, and knots of its spline."""

BISECTIONS, NEWTON_STEPS = 15, 4
"""Steps by which the map is inverted between two knots: bisections shorten the interval to 2⁻¹⁵ of
it, Newton's method, which doubles the digits in a step, then reaches rounding."""

STEEPEST = 20.0
"""Slope of G in the tails, at most, and its reciprocal at least: beyond the profile it bounds how
far a step of one in z may lead."""


@runtime_checkable
class Coordinates(Protocol):
    """Coordinates z of positions θ, white where the posterior is standard normal in them."""

    def positions(self, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return θ of z."""

    def white(
        self, points: Float[np.ndarray, "n d"]
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Return z of θ, and log |dz/dθ|."""


class Plain(NamedTuple):
    """The parameters themselves."""

    def positions(self, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return θ."""
        return z

    def white(
        self, points: Float[np.ndarray, "n d"]
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Return θ and 0."""
        return points, np.zeros(len(points))


class Warp(NamedTuple):
    """The map: centre c, root L of a covariance, and of each warped axis the knots (z, t) of G."""

    centre: Float[np.ndarray, " d"]
    root: Float[np.ndarray, "d d"]
    axes: tuple[Knots | None, ...]

    def positions(self, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return θ of z."""
        t = np.array(z)
        for index, knots in enumerate(self.axes):
            if knots is not None:
                t[:, index] = _curve(knots)(z[:, index])[0]
        return self.centre + t @ self.root.T

    def white(
        self, points: Float[np.ndarray, "n d"]
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Return z of θ, and log |dz/dθ|."""
        z = np.linalg.solve(self.root, (points - self.centre).T).T
        volume = np.full(len(points), -np.linalg.slogdet(self.root)[1])
        for index, knots in enumerate(self.axes):
            if knots is not None:
                z[:, index] = _inverse(knots, z[:, index])
                volume -= np.log(_curve(knots)(z[:, index])[1])
        return z, volume


def fit_warp(
    centre: Float[np.ndarray, " d"], covariance: Float[np.ndarray, "d d"], profiles: list[Profile]
) -> Warp | None:
    """Return a warp along the lopsided lines, most lopsided first; None where there is none."""
    root = np.linalg.cholesky(covariance)
    basis: list[np.ndarray] = []
    axes: list[Knots | None] = []
    for profile in sorted(profiles, key=lambda profile: -profile.lopsided):
        if profile.lopsided < LOPSIDED or len(basis) == len(centre):
            break
        # in units of L, in which the covariance is the identity
        direction = linalg.solve_triangular(root, profile.line.direction, lower=True)
        length = float(np.linalg.norm(direction))
        unit = direction / length
        rest = unit - sum((unit @ axis) * axis for axis in basis)  # orthogonal to the basis
        size = np.linalg.norm(rest)
        knots = _scores(profile, length) if size > INDEPENDENT else None
        if knots is not None:
            basis.append(rest / size)
            axes.append(knots)
    if not basis:
        return None
    # The basis is completed to an orthogonal matrix; QR may have changed the signs of its axes.
    rotation = np.linalg.qr(np.column_stack([*basis, np.eye(len(centre))]))[0]
    rotation[:, : len(basis)] = np.column_stack(basis)
    return Warp(centre, root @ rotation, (*axes, *[None] * (len(centre) - len(basis))))


def _scores(profile: Profile, length: float) -> Knots | None:
    """Return knots (z, t) of the normal score of a profile; None where its points are too few."""
    from scipy.interpolate import PchipInterpolator

    steps, heights = profile.line.steps * length, -profile.fall
    inside = np.flatnonzero(heights > -DEEPEST)
    steps, heights = (values[inside[0] : inside[-1] + 1] for values in (steps, heights))
    if len(steps) < FEWEST or not np.isfinite(heights).all():
        return None
    grid = np.linspace(steps[0], steps[-1], FINE)
    logs = PchipInterpolator(steps, heights - heights.max())(grid)
    width = grid[1] - grid[0]
    # Beyond the points the density falls exponentially, no slower than exp(-0.05 |t|).
    slopes = max((logs[1] - logs[0]) / width, 0.05), max((logs[-2] - logs[-1]) / width, 0.05)
    # log of the trapezoids between grid points and of the exponential tails
    areas = np.logaddexp(logs[1:], logs[:-1]) - np.log(2) + np.log(width)
    tails = logs[0] - np.log(slopes[0]), logs[-1] - np.log(slopes[1])
    left = np.logaddexp.accumulate(np.concatenate([[tails[0]], areas]))
    right = np.logaddexp.accumulate(np.concatenate([[tails[1]], areas[::-1]]))[::-1]
    total = np.logaddexp(left[-1], tails[1])
    # The score from the smaller tail keeps its digits; a probability of 1 has no finite one.
    below, above = (np.minimum(part - total, -1e-12) for part in (left, right))
    scores = np.where(left < right, special.ndtri_exp(below), -special.ndtri_exp(above))
    # ties, as by rounding, would make the inverse ambiguous
    rising = np.concatenate([[True], np.diff(np.maximum.accumulate(scores)) > 1e-9])
    wanted = np.linspace(scores[0], scores[-1], KNOTS)
    return wanted, np.interp(wanted, scores[rising], grid[rising])


def _curve(knots: Knots) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return z -> (G, dG/dz), linear beyond the knots with bounded slopes."""
    from scipy.interpolate import PchipInterpolator

    z, t = knots
    spline = PchipInterpolator(z, t)
    slope = spline.derivative()
    ends = np.clip([float(slope(z[0])), float(slope(z[-1]))], 1 / STEEPEST, STEEPEST)

    def at(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inside = np.clip(values, z[0], z[-1])
        off = values - inside
        below, above = off < 0, off > 0
        outer = np.where(below, ends[0], ends[1])
        # where the spline is flat the log of its slope stays finite
        slopes = np.where(below | above, outer, np.maximum(slope(inside), 1e-6))
        return spline(inside) + off * outer, slopes

    return at


def _inverse(knots: Knots, t: np.ndarray) -> np.ndarray:
    """Return z with G(z) = t, by bisection between two knots and then by Newton's method."""
    at, last = _curve(knots), len(knots[0]) - 2
    index = np.clip(np.searchsorted(knots[1], t, side="right") - 1, 0, last)
    low, high = knots[0][index], knots[0][index + 1]
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        under = at(middle)[0] < t
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    z = (low + high) / 2
    for _ in range(NEWTON_STEPS):
        value, slope = at(z)
        z = np.clip(z - (value - t) / slope, low, high)
    slopes = at(knots[0][[0, -1]] + np.array([-1.0, 1.0]))[1]
    z = np.where(t < knots[1][0], knots[0][0] + (t - knots[1][0]) / slopes[0], z)
    return np.where(t > knots[1][-1], knots[0][-1] + (t - knots[1][-1]) / slopes[1], z)
