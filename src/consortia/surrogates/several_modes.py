r"""Other modes: rises along lines to where the prior reaches, and climbs from them.

Along every line through the mode the log-density of a unimodal posterior falls, unless it bends. A
rise is therefore no alarm but a place to climb from, unless bent ways from it lead uphill to the
mode, which the next message shows. All climbs share their messages:

.. math:: \theta \leftarrow \theta - V (|\lambda| + \delta)^{-1} V^\top \nabla U(\theta)

with a damping δ of each, smaller after a step that helped.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from consortia.core.contract import Fault
from consortia.core.prior import PriorScale
from consortia.core.queries import Arrays, Query
from consortia.surrogates.local_fits import Law
from consortia.surrogates.mode_search import CANDIDATES, CONVERGED, Bound, Local, newton, symmetric
from consortia.surrogates.proposals.memory import Density, Memory, Weighted
from consortia.surrogates.proposals.mixture import mixture_of, normalised
from consortia.surrogates.proposals.proposal import Proposal
from consortia.surrogates.proposals.rays import Line, Profile
from consortia.surrogates.proposals.warp import Plain

LINES = 12
"""Lines to points of the prior, beside those along each parameter."""

SHARES = np.linspace(0.1, 1.1, 12)
"""Places along each, as shares of the way to its point."""

WIDEST = 2.5
"""Standard deviations of the prior that a point lies from its centre, at most."""

RISE, ROUNDED, DEEP = 3.0, 1e-5, 20.0
"""Smallest rise behind a valley that counts, the share of a fall that may be rounding, and how far
below the centre, by the number of parameters and one more, a rise leads nowhere. Without a valley
the centre is only not quite the mode, unless the rise is large."""

WAYS, OF_WAYS = np.linspace(0.125, 1.0, 8), 0.25
"""Places along a bent way from the mode to a rise, and the largest share of points on all ways."""

MOST_CLIMBED = 14
"""Messages of the climbs."""

APART = 30.0
"""Squared distance in standard deviations, by parameter, from which two modes are two."""

LOWEST, LOWEST_BY_PARAMETER = 15.0, 3.0
"""Height below the highest mode at which another one holds nothing to speak of."""

FORGOTTEN, NEAR = 0.002, 4.0
"""Share of the mass from which on a mode must have draws; and what is near it, as `APART`."""

OF_MODES, OF_MODES_OF_MANY, FEW, WIDER, OF_PRIOR = 0.5, 0.9, 5, 1.3, 0.1
"""Share of the proposals that are drawn around several modes, with more than so many parameters
nearly all: no single surrogate predicts them. And their scale there, and the share of those that
the prior draws, by these."""

SHOWN = 6
"""Coordinates of a place in a message, the first."""

UNVISITED = (
    "another mode may exist near ({}), where points of a high density lie and no draw: give init "
    "there in a second run, or a prior that says which of the two is meant"
)

OVER_PRIOR = 3
"""Parameters up to which points are spread over the whole prior; with more hardly any would lie at
a mode."""

UNSEEN = 3.0
"""log π/q above its mean at which a proposal is far too low: there are no draws."""


class Mode(NamedTuple):
    """The end of a climb.

    Attributes:
        position: the mode, or where the climb ended.
        covariance: the inverse curvature there.
        potential: U relative to the reference.
        reached: False if the climb had not ended.
    """

    position: Float[np.ndarray, " d"]
    covariance: Float[np.ndarray, "d d"]
    potential: float
    reached: bool

    @property
    def law(self) -> Law:
        """Mean and covariance."""
        return self.position, self.covariance


def lines_to_prior(
    centre: Float[np.ndarray, " d"], scale: PriorScale, rng: np.random.Generator
) -> list[Line]:
    """Return half-lines from a place to draws of the prior, and along each parameter."""
    d, most = centre.size, WIDEST * scale.sd
    ends = scale.centre + np.clip(rng.standard_normal((LINES, d)) * scale.sd, -most, most)
    along = [np.where(np.eye(d) > 0, scale.centre + side * most, centre) for side in (-1, 1)]
    return [Line(end - centre, SHARES) for end in np.concatenate([ends, *along])]


def rises(profiles: Sequence[Profile], centre: Float[np.ndarray, " d"]) -> list[np.ndarray]:
    """Return the highest points behind a rise along each line, the highest first."""
    seen = []
    for profile in profiles:
        for side in (-1, 1):
            outwards = profile.line.steps * side >= 0
            outwards &= np.isfinite(profile.fall)
            order = np.argsort(np.abs(profile.line.steps[outwards]))
            fall = profile.fall[outwards][order]
            behind = _behind(fall, centre.size) & (fall < DEEP * (1 + centre.size))
            if behind.any():
                top = int(np.argmin(np.where(behind, fall, np.inf)))
                seen.append((fall[top], profile.line.at(centre)[outwards][order][top]))
    return [point for _, point in sorted(seen, key=lambda pair: pair[0])]


def _behind(fall: Float[np.ndarray, " s"], dimension: int) -> Bool[np.ndarray, " s"]:
    """Return the places, from the centre outwards, that are higher than a valley before them."""
    lowest = np.maximum.accumulate(fall)
    valley = np.where(lowest > RISE, RISE, deepest(dimension))
    return lowest - fall > valley + ROUNDED * lowest


def ways_to(
    places: Sequence[Float[np.ndarray, " d"]], centre: Float[np.ndarray, " d"], count: int
) -> list[Line]:
    """Return parabolas to some places, on each of which one parameter moves first, or last.

    Args:
        places: of rises, of which the first have ways.
        centre: where the ways begin.
        count: points of the message.
    """
    d = centre.size
    orders = 2 * np.concatenate([np.eye(d), 1 - np.eye(d)]) - 1
    most = int(OF_WAYS * count) // (2 * d * len(WAYS))
    bends = [(rise - centre, order) for rise in places[:most] for order in orders]
    return [Line(away + order * away, WAYS, -order * away) for away, order in bends]


def not_uphill(
    places: Sequence[Float[np.ndarray, " d"]],
    ways: Sequence[tuple[Profile, Float[np.ndarray, " s"]]],
) -> list[Float[np.ndarray, " d"]]:
    """Return the places that no way has shown to belong to the mode at the centre.

    Either a proposal has predicted the height there, or one way leads there by no valley, and none
    over half of the height behind a valley that was not predicted.

    Args:
        places: of rises.
        ways: the profiles of `ways_to`, as far as there are, and log π/q there above its mean.
    """
    left = []
    for index, rise in enumerate(places):
        each = ways[2 * rise.size * index :][: 2 * rise.size]
        known = [(way.fall, ratio) for way, ratio in each if np.isfinite(way.fall).all()]
        predicted = any(abs(ratio[-1]) < UNSEEN for _, ratio in known)
        behind = [_behind(fall, rise.size) for fall, _ in known]
        higher = any(
            (valley & (fall < fall[-1] / 2) & ~(np.abs(ratio) < UNSEEN)).any()
            for (fall, ratio), valley in zip(known, behind, strict=True)
        )
        cut_off = higher or all(valley.any() for valley in behind)
        if len(each) < 2 * rise.size or (cut_off and not predicted):
            left.append(rise)
    return left


def climb(
    starts: Float[np.ndarray, "c d"], reference: Float[np.ndarray, " d"], along: Bound
) -> Generator[Query, Arrays, list[Mode]]:
    """Climb from several places with shared messages, and return the ends.

    Args:
        starts: at least one, at most `CANDIDATES`.
        reference: where U is zero.
        along: bound of the steps, see `consortia.surrogates.mode_search.within`.
    """
    count, d = starts.shape
    nowhere = Local(reference, np.inf, np.zeros(d), np.eye(d))
    best, damping, done = [nowhere] * count, np.full(count, 0.1), np.zeros(count, bool)
    points, climbers = np.resize(starts, (CANDIDATES, d)), np.arange(CANDIDATES) % count
    tried = damping[climbers]
    for _ in range(MOST_CLIMBED):
        answer = yield Query("derivatives", {"reference": reference, "points": points}, "modes")
        places = [_local(answer, points, k) or nowhere for k in range(CANDIDATES)]
        for i in np.flatnonzero(~done).tolist():
            slots = np.flatnonzero(climbers == i).tolist()
            top = min(slots, key=lambda k: places[k].potential)
            if places[top].potential < best[i].potential:
                best[i], damping[i] = places[top], tried[top] / 8
            else:
                damping[i] = 8 * max(tried[slots].max(), 1e-2)
            curved = newton(best[i])
            done[i] = best[i] is nowhere or (curved.convex and curved.decrement < CONVERGED)
        if done.all():
            break
        # those that have ended leave room for shorter steps of the others; longer ones might end
        # at another mode
        climbers = np.resize(np.flatnonzero(~done), CANDIDATES)
        tried = damping[climbers] * 8.0 ** (np.arange(CANDIDATES) // (~done).sum())
        steps = zip(climbers.tolist(), tried, strict=True)
        points = np.stack([_uphill(best[i], along, damped) for i, damped in steps])
    return [_mode(at, bool(end)) for at, end in zip(best, done, strict=True) if at is not nowhere]


def _uphill(at: Local, along: Bound, damping: float) -> Float[np.ndarray, " d"]:
    """Return the end of a damped Newton step."""
    curved = newton(at)
    step = curved.gradient / (curved.size + damping * curved.size.mean())
    return along(at.position, (at.position - curved.axes @ step / curved.scale)[None])[0]


def _local(answer: Arrays, points: Float[np.ndarray, "c d"], index: int) -> Local | None:
    parts = [np.asarray(answer[name][index], float) for name in ("gradients", "curvatures")]
    potential = float(answer["potentials"][index])
    if not (np.isfinite(potential) and all(np.isfinite(part).all() for part in parts)):
        return None
    curvature = symmetric(parts[1], points.shape[1])
    return Local(points[index].copy(), potential, parts[0], curvature)


def _mode(at: Local, reached: bool) -> Mode:
    curved = newton(at)
    position = at.position
    if reached:
        position = position - curved.root @ (curved.root.T @ at.gradient)
    return Mode(position, curved.root @ curved.root.T, at.potential, reached)


def distinct(modes: Sequence[Mode]) -> list[Mode]:
    """Return the modes that lie apart and hold something, the highest first."""
    kept: list[Mode] = []
    for mode in sorted(modes, key=lambda candidate: candidate.potential):
        high = not kept or mode.potential <= kept[0].potential + deepest(mode.position.size)
        if high and apart(mode.position, (other.law for other in kept)):
            kept.append(mode)
    return kept


def apart(position: Float[np.ndarray, " d"], laws: Iterable[Law]) -> bool:
    """Test a place for being in the bulk of none of some normal laws."""
    bulk = APART * len(position)
    return all(squares(position[None], *law)[0] > bulk for law in laws)


def further(laws: list[Law]) -> list[Law]:
    """Select the laws of modes that lie apart from the first and from one another."""
    kept = laws[:1]
    for law in laws[1:]:
        if apart(law[0], kept) and all(apart(other[0], [law]) for other in kept):
            kept.append(law)
    return kept[1:]


def squares(
    points: Float[np.ndarray, "n d"], mean: Float[np.ndarray, " d"], covariance: np.ndarray
) -> Float[np.ndarray, " n"]:
    """Compute squared distances from the mean of a normal law, in its standard deviations."""
    away = points - mean
    return (away * np.linalg.lstsq(covariance, away.T, rcond=None)[0].T).sum(axis=1)


def deepest(dimension: int) -> float:
    """Compute the distance below the highest mode at which another one holds nothing."""
    return LOWEST + LOWEST_BY_PARAMETER * dimension


def uncovered(
    before: Weighted, density: Density, log_mean: float
) -> tuple[float, Float[np.ndarray, "m d"]]:
    """Find the points of a posterior at which a proposal is far too low.

    Args:
        before: weighted points of earlier proposals.
        density: log q.
        log_mean: logarithm of the mean of π/q.

    Returns:
        Their share of the mass, and those that hold something, the highest first.
    """
    beyond = before.heights - density(before.points) - log_mean > UNSEEN
    share = float(normalised(before.log_weights)[beyond].sum())
    beyond &= before.heights > before.heights.max() - deepest(before.points.shape[1])
    return share, before.points[beyond][np.argsort(-before.heights[beyond])]


def spread_out(
    points: Sequence[Float[np.ndarray, " d"]], modes: Sequence[Mode], sd: Float[np.ndarray, " d"]
) -> list[np.ndarray]:
    """Choose points apart from the modes and from one another, the highest first.

    Args:
        points: the highest first.
        modes: that are known.
        sd: of the prior, the unit of distances.
    """
    points = [point for point in points if apart(point, (mode.law for mode in modes))]
    chosen = points[:1]
    while chosen and len(chosen) < min(CANDIDATES - 1, len(points)):
        away = np.abs(np.stack(points)[:, None] - np.stack(chosen)) / sd
        away = away.max(axis=2).min(axis=1)
        chosen.append(points[np.argmax(away)])
    return chosen


def with_modes(proposal: Proposal, modes: Sequence[Mode], prior: PriorScale) -> Proposal:
    """Return a proposal that covers each of several modes by a component of its own.

    Of few parameters another component is as wide as the prior.
    """
    reached = [mode for mode in modes if mode.reached]
    if len(reached) < 2:
        return proposal
    held = OF_MODES if len(prior.sd) <= FEW else OF_MODES_OF_MANY
    shares = list(held * (normalised(log_masses(reached)) + 1 / len(reached)) / 2)
    centres, scales = [m.position for m in reached], [WIDER * m.covariance for m in reached]
    if len(prior.sd) <= OVER_PRIOR:
        shares, centres = [*shares, OF_PRIOR], [*centres, prior.centre]
        scales.append(np.diag(prior.sd**2))
    if isinstance(proposal.coordinates, Plain):
        learnt = proposal.envelope
        shares += list((1 - held) * learnt.shares)
        centres += list(learnt.centres)
        scales += [root @ root.T for root in learnt.roots]
    return Proposal(mixture_of(shares, centres, scales), None, Plain())


def log_masses(modes: Sequence[Mode]) -> Float[np.ndarray, " m"]:
    """Return the logarithms of what normal laws of these heights and widths hold."""
    return np.array([np.linalg.slogdet(mode.covariance)[1] / 2 - mode.potential for mode in modes])


def unseen(
    modes: Sequence[Mode], guesses: list[Law], memory: Memory, draws: Float[np.ndarray, "n d"]
) -> tuple[Fault, ...]:
    """Find the suspected modes that have no draws.

    Args:
        modes: ends of climbs; those count that hold something by their height and width.
        guesses: laws of others, which count where points of a high density lie.
        memory: the points.
        draws: of the run.
    """
    d, best = draws.shape[1], memory.heights.max(initial=-np.inf)
    shares = normalised(log_masses(modes)) if len(modes) > 1 else np.zeros(len(modes))
    held = zip(modes, shares > FORGOTTEN, strict=True)
    laws = [(mode.law, NEAR * (1 + d)) for mode, holds in held if holds]
    for law in guesses:
        near = squares(memory.points, *law) < APART * d
        if memory.heights[near].max(initial=-np.inf) > best - deepest(d) / 2:
            laws.append((law, APART * d))
    places = [law[0] for law, near in laws if not (squares(draws, *law) < near).any()]
    texts = [", ".join(f"{value:.3g}" for value in position[:SHOWN]) for position in places]
    return tuple(Fault(UNVISITED.format(text), unseen=True) for text in texts)
