"""Lines and parabolas through the centre: how far a posterior reaches, and what is not covered.

Statistics of the draws cannot see a tail that no chain has visited. Points along half-lines can:
they travel in the message that carries the proposals, and cost nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.core.prior import PriorScale

STEPS = np.array([0.7, 1.5, 2.5, 4.0, 6.0, 8.5, 12.0, 17.0, 24.0, 34.0, 48.0])
"""Distances of the first rays' points, in standard deviations."""

SHARES = np.array([0.04, 0.1, 0.18, 0.27, 0.37, 0.48, 0.6, 0.72, 0.85, 1.0, 1.15])
"""Distances of later rays' points, as shares of how far the ray was seen to reach."""

FARTHEST = 80.0
"""Standard deviations that a ray reaches, at most."""

FARTHEST_BENT, FARTHEST_SIDE = 6.0, 12.0
"""The same of a parabola through all points, and through those on one side. Beyond, it hardly
follows a tail, and answers settle rows of sites with few of them."""

DROP = 25.0
"""A ray reaches to where the log-posterior has fallen by so much."""

HEAVY, POWER, SLOWER = 18.0, 1.7, 0.9
"""A far tail that has fallen by more holds nothing. One like a power falls equally wherever the
distance doubles, an exponential one twice as much each time. The limit is nearer to this one, since
a ray does not run quite along the tail. In the last quarter a power falls by .71 of what it falls
in the third: behind a plateau an exponential tail passes for a power but for that."""

PLATEAU = 0.5
"""Wherever the distance doubles a power falls by no less than before. Less than this share of it:
the ray comes near to a ridge that bends, and the tail is not like a power."""

FAR = 4.0 ** np.arange(1, 6)
"""Far places, in standard deviations of the prior: from one to the next an exponential law falls
four times as much as before, a power equally."""

PRIOR_DROP = 100.0
"""Fall of the log-prior below that at the centre at which first rays end: 14 standard deviations of
a normal prior. Beyond it a density holds nothing unless rows ask for it by e^100, where climbs
lead, and sums of large terms are rounded to false peaks: at 17 by 1,000 in 64 bits, of gammaln."""

OUTWARD, IN_REACH, AS_FAR = 2, 0.999, np.geomspace(0.08, 1.0, 11)
"""Lines along the directions in which points lie farthest out, the share of the points within their
reach, and places as shares of it."""

UNCOVERED = 1.2
"""log π/q above which a proposal does not cover a place: its draws would stay there for long."""

UNSEEN = 4.0
"""log π/q from which all mass of a place counts as missed; below it a part, in proportion to π/q:
N proposals estimate a mass m with weights w = π/q with the variance m w/N. At `MOST_MISSED` its
standard error is .004 of the line's mass for N = 4,000, and .01 for N = 600."""

OF_NOISE = 2.0
"""Standard deviations of the sites' noise by which a ratio is lower before it counts."""

MOST_MISSED, MOST_MISSED_BENT = 1e-3, 4e-3
"""Mass along a line, and along a parabola, that a proposal may hardly cover. A parabola follows a
tail, so that its mass there is nearer to the posterior's, where a line's is much smaller."""

APART = 1e-4
"""Largest relative change of variances that makes them unequal."""

SHORTER, NEAREST = 0.8, 0.01
"""Factor by which a parabola is shortened, and steps below which it is left."""

FINE = 2001
"""Places at which a profile is integrated."""


class Line(NamedTuple):
    """A curve centre + s · direction + s² · bend, and how far its points lie on either side.

    Attributes:
        direction: one standard deviation long, (d,).
        steps: s of the points, from the farthest below to that above.
        bend: (d,), or 0 of a straight line.
    """

    direction: Float[np.ndarray, " d"]
    steps: Float[np.ndarray, " s"]
    bend: Float[np.ndarray, " d"] | float = 0.0

    @property
    def bent(self) -> bool:
        """True of a parabola."""
        return bool(np.any(self.bend))

    def up_to(self, farthest: float) -> Line:
        """Return the part of the line within so many steps."""
        return self._replace(steps=self.steps[np.abs(self.steps) <= farthest])

    def at(self, centre: Float[np.ndarray, " d"]) -> Float[np.ndarray, "s d"]:
        """Return the points."""
        return centre + self.steps[:, None] * (self.direction + self.steps[:, None] * self.bend)


class Profile(NamedTuple):
    """A line whose points have been evaluated, the centre among them.

    Attributes:
        line: with the centre as a step of 0.
        fall: of the log-posterior below that of the centre, infinite where it is not finite.
    """

    line: Line
    fall: Float[np.ndarray, " s"]

    def reach(self, side: int, drop: float = DROP) -> float:
        """Return the distance at which the log-density has fallen by ``drop`` on a side."""
        steps, fall = self._outwards(side)
        fall = np.maximum.accumulate(fall)
        if fall[-1] <= drop:
            return float(steps[-1] * 1.6)
        beyond = int(np.argmax(fall > drop))
        if not np.isfinite(fall[beyond]):
            return float(steps[beyond])
        return float(np.interp(drop, fall[beyond - 1 : beyond + 1], steps[beyond - 1 : beyond + 1]))

    def _outwards(self, side: int) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
        """Return distances from the centre on a side and the falls there, the centre first."""
        on_side = self.line.steps * side >= 0
        order = np.argsort(self.line.steps[on_side] * side)
        return (self.line.steps[on_side] * side)[order], self.fall[on_side][order]

    @property
    def heavy(self) -> bool:
        """True if on a side the density falls no faster than a power of the distance."""
        for side in (-1, 1):
            steps, fall = (values[1:] for values in self._outwards(side))
            if len(steps) and steps[0] > 0 and fall[-1] < HEAVY:
                places = np.log(steps[-1] / np.array([8.0, 4.0, 2.0, 4 / 3, 1.0]))
                *falls, third, last = np.diff(np.interp(places, np.log(steps), fall))
                falls = np.array([*falls, third + last])
                slower = last < SLOWER * third and (falls[1:] < POWER * falls[:-1]).all()
                if slower and min(*falls, last) > 0 and falls[-1] > PLATEAU * falls[-2]:
                    return True
        return False

    def far_share(self, sd: Float[np.ndarray, " d"], best: float) -> float:
        """Estimate the share of the mass at the places of `far_lines`, 0 of a tail that ends.

        Args:
            sd: of the posterior, as far as it is known.
            best: log-density of the highest point of all above that of the centre.
        """
        steps, fall = (values[1:] for values in self._outwards(1))
        if not np.isfinite(fall).all():
            return 0.0
        falls = np.diff(fall)
        if (falls[1:] > 2 * np.maximum(falls[:-1], 0.0)).any():
            return 0.0
        width = np.sqrt(2 * np.pi) * np.min(sd / np.maximum(np.abs(self.line.direction), 1e-300))
        return float(np.sum(steps * np.exp(-fall - best)) * np.log(FAR[0]) / width)

    @property
    def lopsided(self) -> float:
        """Absolute log ratio of its reach on one side to that on the other."""
        return abs(float(np.log(self.reach(1) / self.reach(-1))))

    def missed(
        self, log_ratio: Float[np.ndarray, " s"]
    ) -> tuple[float, list[Float[np.ndarray, " d"]]]:
        """Return the share of the mass where log π/q is above `UNCOVERED`, and the ways to it.

        Up to `UNSEEN` a place counts in proportion to π/q. Of a straight line there is one way, of
        a parabola one for each side that has a part of it.
        """
        grid, mass = self._masses()
        ratio = np.interp(grid, self.line.steps, np.nan_to_num(log_ratio, nan=-700))
        lost = mass * (ratio > UNCOVERED) * np.exp(np.minimum(ratio - UNSEEN, 0))
        if not self.line.bent:
            return float(lost.sum() / mass.sum()), [self.line.direction]
        ways = []
        for side in (grid < 0, grid > 0):
            if (share := float(lost[side].sum())) > 0:
                middle = float(grid[side] @ lost[side]) / share
                ways.append(self.line.direction + middle * self.line.bend)
        return float(lost.sum() / mass.sum()), ways

    def mass_beyond(self, lowest: float, highest: float) -> float:
        """Return the share of the line's mass below one step or above another."""
        grid, mass = self._masses()
        return float(mass[(grid < lowest) | (grid > highest)].sum() / mass.sum())

    def _masses(self) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        grid = np.linspace(self.line.steps[0], self.line.steps[-1], FINE)
        fall = np.minimum(self.fall - self.fall.min(), 700)  # of the highest point 0
        return grid, np.exp(-np.interp(grid, self.line.steps, fall))


def lines_through(
    covariance: Float[np.ndarray, "d d"], most: int, profiles: list[Profile]
) -> list[Line]:
    """Return lines along the columns of the covariance and the principal axes.

    Args:
        covariance: of the posterior, as far as it is known.
        most: lines; the first ones of the columns are always among them.
        profiles: of the lines before, which say how far they reach; empty before the first.
    """
    # Rounding must choose neither among axes of equal variance nor the sign of one.
    apart = np.diag(covariance) * APART * np.arange(len(covariance)) / len(covariance)
    values, axes = np.linalg.eigh(covariance + np.diag(apart))
    axes = axes * np.sign(axes[np.argmax(np.abs(axes), axis=0), np.arange(len(axes))])
    columns = (covariance / np.sqrt(np.diag(covariance))).T
    # of a tail like a power the largest eigenvalue hides the others
    principal = (axes * np.sqrt(np.maximum(values, np.finfo(float).eps * values.max()))).T
    directions = np.concatenate([columns, principal[::-1]])[:most]
    lines = []
    for index, direction in enumerate(directions):
        sides = []
        for side in (-1, 1):
            steps = STEPS
            if profiles:
                before = profiles[index]
                size = float(np.linalg.norm(before.line.direction) / np.linalg.norm(direction))
                reach = before.reach(side) * size
                steps = min(1.1 * reach, FARTHEST) * SHARES
            sides.append(side * steps)
        lines.append(Line(direction, np.concatenate([sides[0][::-1], sides[1]])))
    return lines


def outward_lines(
    points: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"],
    centre: Float[np.ndarray, " d"],
) -> list[Line]:
    r"""Return lines along the directions in which points lie farther out than normal ones would.

    They end where the points do, or half-way: such a direction is known no better. In coordinates
    z in which the points have a unit covariance they are the first eigenvectors of the mean of
    :math:`|z|^2 z z^T`, whatever combinations of the parameters these are.

    Args:
        points: of the posterior.
        weights: of the points, with the sum 1.
        centre: of the lines.

    Source: Cardoso, "Source separation using higher order moments" (1989).
    """
    away = points - centre
    sd = np.sqrt(np.maximum(weights @ away**2, 1e-300))
    values, axes = np.linalg.eigh((weights * (away / sd).T) @ (away / sd))
    root = sd[:, None] * axes * np.sqrt(np.maximum(values, 1e-12))
    z = np.linalg.solve(root, away.T)
    outer = np.linalg.eigh((weights * (z**2).sum(axis=0) * z) @ z.T)[1][:, : -OUTWARD - 1 : -1]
    lines = []
    for direction, along in zip((root @ outer).T, np.abs(outer.T @ z), strict=True):
        order = np.argsort(along)
        reach = along[order][np.searchsorted(np.cumsum(weights[order]), IN_REACH)]
        steps = reach * np.concatenate([-AS_FAR[::-1], AS_FAR])
        lines += [Line(direction, steps), Line(direction, steps / 2)]
    return lines


def far_lines(scale: PriorScale) -> list[Line]:
    """Return half-lines along each parameter to where only a law like a power holds anything."""
    axes = np.diag(scale.sd)
    return [Line(side * axis, FAR) for axis in axes for side in (-1, 1)]


def to_prior_end(
    lines: list[Line], centre: Float[np.ndarray, " d"], log_prior: Float[np.ndarray, " r"]
) -> list[Line]:
    """Return lines with shorter steps where the prior has fallen by more than `PRIOR_DROP`.

    Half-lines that reach beyond have no points left: no law like a power falls so far.

    Args:
        lines: through the centre, or from it.
        centre: of the lines.
        log_prior: at `points_of` the lines.
    """
    shortened = []
    for line, pair in zip(lines, along_lines(lines, log_prior), strict=True):
        prior, sides = profile_of(*pair), []
        for side in (-1, 1):
            steps = line.steps[line.steps * side > 0]
            if len(steps):
                part = prior.reach(side, PRIOR_DROP) / np.abs(steps).max()
                steps = steps[:0] if part < 1 and line.steps[0] > 0 else steps * min(part, 1.0)
            sides.append(steps)
        shortened.append(line._replace(steps=np.concatenate(sides)))
    return shortened


def parabolas_through(
    points: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"],
    centre: Float[np.ndarray, " d"],
    most: int,
) -> list[Line]:
    """Return the parabolas of all parameters on each of them, by weighted least squares.

    Where the posterior bends, a tail lies beside every straight line. After those of all points
    come, as far as there is room, those of the points on either side alone, the far ones most: a
    ridge need not be a parabola.

    Args:
        points: of the posterior.
        weights: of the points, with the sum 1.
        centre: where all of them meet, near the mode.
        most: parabolas.
    """
    d = points.shape[1]
    if d == 1:  # nothing can bend
        return []
    away = points - centre
    # points without a weight lie so far out that their fourth powers are infinite
    steps = np.clip(away / np.sqrt(np.maximum(weights @ away**2, 1e-300)), -1e30, 1e30)
    far, near = (STEPS[reach >= STEPS] for reach in (FARTHEST_BENT, FARTHEST_SIDE))
    parabolas: list[Line] = []
    for side, along in ((0, np.concatenate([-far[::-1], far])), (1, near), (-1, -near[::-1])):
        columns = steps[:, : max(most - len(parabolas), 0)]
        side_weights = weights[:, None] * (np.maximum(side * columns, 0) ** 2 if side else 1)
        powers = [(side_weights * columns**power).sum(axis=0)[:, None, None] for power in (2, 3, 4)]
        gram = np.block([[powers[0], powers[1]], [powers[1], powers[2]]])
        products = [(side_weights * columns**power).T @ away for power in (1, 2)]
        laid = np.linalg.pinv(gram, hermitian=True) @ np.stack(products, axis=1)
        parabolas += [Line(direction, along, bend) for direction, bend in laid]
    return parabolas


def within(
    lines: list[Line],
    centre: Float[np.ndarray, " d"],
    scale: PriorScale,
    farthest: float | Float[np.ndarray, " d"],
) -> list[Line]:
    """Return lines with shorter steps where a point would lie too far out.

    Args:
        lines: through the centre.
        centre: of the lines.
        scale: of the prior.
        farthest: standard deviations of the prior from its centre, in each parameter.
    """
    shortened = []
    away = (centre - scale.centre) / scale.sd
    for line in lines:
        move, sides = np.abs(line.direction) / scale.sd, []
        for side in (-1, 1):
            steps = line.steps[line.steps * side > 0]
            if line.bent:
                steps = _inside(line, steps, centre, scale, farthest)
            elif len(steps):
                room = farthest - away * np.sign(side * line.direction)
                most = np.divide(room, move, out=np.full_like(move, np.inf), where=move > 0).min()
                steps = steps * np.clip(most / np.abs(steps).max(), 0.01, 1.0)
            sides.append(steps)
        shortened.append(line._replace(steps=np.concatenate(sides)))
    return shortened


def _inside(
    line: Line,
    steps: Float[np.ndarray, " s"],
    centre: Float[np.ndarray, " d"],
    scale: PriorScale,
    farthest: float | Float[np.ndarray, " d"],
) -> Float[np.ndarray, " s"]:
    """Return steps on one side of a curve, shortened until all are inside."""
    while np.abs(steps).max(initial=0.0) > NEAREST:
        if (scale.distance(line._replace(steps=steps).at(centre)) <= farthest).all():
            break
        steps = SHORTER * steps
    return steps


def points_of(lines: list[Line], centre: Float[np.ndarray, " d"]) -> Float[np.ndarray, "r d"]:
    """Return the points of all lines, and the centre as the last."""
    return np.concatenate([*(line.at(centre) for line in lines), centre[None]])


def along_lines(
    lines: list[Line], values: Float[np.ndarray, " r"]
) -> list[tuple[Line, Float[np.ndarray, " s"]]]:
    """Return of each line, with the centre at step 0, the values at its points."""
    pairs, begin = [], 0
    for line in lines:
        line_values = values[begin : begin + len(line.steps)]
        begin += len(line_values)
        centre_index = int(np.searchsorted(line.steps, 0.0))
        steps = np.insert(line.steps, centre_index, 0.0)
        pairs.append((line._replace(steps=steps), np.insert(line_values, centre_index, values[-1])))
    return pairs


def not_covered(
    profiles: list[Profile], log_ratios: list[Float[np.ndarray, " s"]], noise: float = 0.0
) -> tuple[float, list[Float[np.ndarray, " d"]]]:
    """Return the largest mass that a proposal hardly covers, and the ways to all too large ones.

    Args:
        profiles: of lines and parabolas.
        log_ratios: log π/q at the steps of each.
        noise: standard deviation of what all sites add to log π.
    """
    largest, ways = 0.0, []
    for profile, log_ratio in zip(profiles, log_ratios, strict=True):
        mass, uncovered = profile.missed(log_ratio - OF_NOISE * noise)
        largest = max(largest, mass)
        if mass >= (MOST_MISSED_BENT if profile.line.bent else MOST_MISSED):
            ways.extend(uncovered)
    return largest, ways


def profile_of(line: Line, heights: Float[np.ndarray, " s"]) -> Profile:
    """Return the fall of log π along a line, from its values there and at step 0."""
    centre = heights[line.steps == 0][0]
    finite = np.isfinite(heights)
    base = centre if np.isfinite(centre) else heights.max(initial=0.0, where=finite)
    fall = np.where(finite, base - np.where(finite, heights, 0.0), np.inf)
    return Profile(line, np.where(line.steps == 0, 0.0, fall))
