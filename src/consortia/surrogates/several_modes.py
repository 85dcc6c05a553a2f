r"""Other modes: rises along lines to where the prior reaches, and climbs from them.

Along every line through the mode the log-density of a unimodal posterior falls, unless it bends. A
rise is therefore no alarm but a place to climb from. All climbs share their messages:

.. math:: \theta \leftarrow \theta - V (|\lambda| + \delta)^{-1} V^\top \nabla U(\theta)

with a damping δ of each, smaller after a step that helped.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.core.contract import Fault
from consortia.core.prior import PriorScale
from consortia.core.queries import Arrays, Query
from consortia.surrogates.mode_search import CANDIDATES, CONVERGED, Bound, Local, newton, symmetric
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

MOST_CLIMBED = 14
"""Messages of the climbs."""

APART = 30.0
"""Squared distance in standard deviations, by parameter, from which two modes are two."""

LOWEST, LOWEST_BY_PARAMETER = 15.0, 3.0
"""Height below the highest mode at which another one holds nothing to speak of."""

FORGOTTEN, NEAR = 0.002, 4.0
"""Share of the mass from which on a mode must have draws; and what is near it, as `APART`."""

OF_MODES, WIDER, FEW = 0.5, 1.3, 5
"""Share of the proposals that are drawn around several modes, their scale there, and the parameters
up to which they are: with more, draws without a surrogate are too far from the posterior."""


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


def lines_to_prior(
    centre: Float[np.ndarray, " d"], scale: PriorScale, rng: np.random.Generator
) -> list[Line]:
    """Return half-lines from a place to draws of the prior, and along each parameter."""
    d, most = centre.size, WIDEST * scale.sd
    ends = scale.centre + np.clip(rng.standard_normal((LINES, d)) * scale.sd, -most, most)
    along = [np.where(np.eye(d) > 0, scale.centre + side * most, centre) for side in (-1, 1)]
    return [Line(end - centre, SHARES) for end in np.concatenate([ends, *along])]


def points_to_prior(dimension: int) -> int:
    """Return the number of points on these lines."""
    return (LINES + 2 * dimension) * len(SHARES)


def rises(profiles: Sequence[Profile], centre: Float[np.ndarray, " d"]) -> list[np.ndarray]:
    """Return the highest points behind a rise along each line, the highest first."""
    seen = []
    for profile in profiles:
        for side in (-1, 1):
            outwards = profile.line.steps * side >= 0
            outwards &= np.isfinite(profile.fall)
            order = np.argsort(np.abs(profile.line.steps[outwards]))
            fall = profile.fall[outwards][order]
            if not len(fall):
                continue
            lowest = np.maximum.accumulate(fall)
            valley = np.where(lowest > RISE, RISE, deepest(centre.size))
            behind = (lowest - fall > valley + ROUNDED * lowest) & (fall < DEEP * (1 + centre.size))
            if behind.any():
                top = int(np.argmin(np.where(behind, fall, np.inf)))
                seen.append((fall[top], profile.line.at(centre)[outwards][order][top]))
    return [point for _, point in sorted(seen, key=lambda pair: pair[0])[:CANDIDATES]]


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
    damping, best = np.full(count, 0.1), list[Local | None]([None] * count)
    points, done = starts.copy(), np.zeros(count, bool)
    for _ in range(MOST_CLIMBED):
        arrays = {"reference": reference, "points": np.resize(points, (CANDIDATES, d))}
        answer = yield Query("derivatives", arrays, "modes")
        for i in np.flatnonzero(~done).tolist():
            seen = _local(answer, points, i)
            before = best[i]
            better = seen is not None and (before is None or seen.potential < before.potential)
            if better:
                best[i], damping[i] = seen, damping[i] / 8
            else:
                damping[i] = 8 * max(damping[i], 1e-2)
            at = best[i]
            if at is None:  # nothing is finite there
                done[i] = True
                continue
            curved = newton(at)
            done[i] = curved.convex and curved.decrement < CONVERGED
            step = curved.gradient / (curved.size + damping[i] * curved.size.mean())
            points[i] = along(at.position, (at.position - curved.axes @ step / curved.scale)[None])[
                0
            ]
        if done.all():
            break
    return [_mode(at, bool(end)) for at, end in zip(best, done, strict=True) if at is not None]


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
    for mode in sorted(modes, key=lambda one: one.potential):
        if kept and mode.potential > kept[0].potential + deepest(mode.position.size):
            break
        if all(apart(mode.position, other) for other in kept):
            kept.append(mode)
    return kept


def apart(position: Float[np.ndarray, " d"], mode: Mode) -> bool:
    """Return True if a place lies apart from a mode, in the mode's own metric."""
    square = squares(position[None], mode.position, mode.covariance)[0]
    return float(square) > APART * len(position)


def squares(
    points: Float[np.ndarray, "n d"], mean: Float[np.ndarray, " d"], covariance: np.ndarray
) -> Float[np.ndarray, " n"]:
    """Compute squared distances from the mean of a normal law, in its standard deviations."""
    away = points - mean
    return (away * np.linalg.lstsq(covariance, away.T, rcond=None)[0].T).sum(axis=1)


def deepest(dimension: int) -> float:
    """Compute the distance below the highest mode at which another one holds nothing."""
    return LOWEST + LOWEST_BY_PARAMETER * dimension


def with_modes(proposal: Proposal, modes: Sequence[Mode]) -> Proposal:
    """Return a proposal that covers each of several modes by a component of its own."""
    reached = [mode for mode in modes if mode.reached]
    if len(reached) < 2 or len(reached[0].position) > FEW:
        return proposal
    shares = list(OF_MODES * (normalised(log_masses(reached)) + 1 / len(reached)) / 2)
    centres, scales = [one.position for one in reached], [WIDER * one.covariance for one in reached]
    if isinstance(proposal.coordinates, Plain):
        learnt = proposal.envelope
        shares += list((1 - OF_MODES) * learnt.shares)
        centres += list(learnt.centres)
        scales += [root @ root.T for root in learnt.roots]
    return Proposal(mixture_of(shares, centres, scales), None, Plain())


def log_masses(modes: Sequence[Mode]) -> Float[np.ndarray, " m"]:
    """Return the logarithms of what normal laws of these heights and widths hold."""
    return np.array([np.linalg.slogdet(one.covariance)[1] / 2 - one.potential for one in modes])


def unseen(modes: Sequence[Mode], draws: Float[np.ndarray, "c n d"]) -> tuple[Fault, ...]:
    """Return a fault if a mode holds something by its height and width, and has no draws."""
    if len(modes) < 2:
        return ()
    points = draws.reshape(-1, draws.shape[-1])
    for mode, share in zip(modes, normalised(log_masses(modes)), strict=True):
        near = squares(points, mode.position, mode.covariance) < NEAR * (1 + len(mode.position))
        if share > FORGOTTEN and not near.any():
            where = ", ".join(f"{value:.3g}" for value in mode.position)
            text = f"few_rounds: another mode may exist near ({where}), where there are no draws"
            return (Fault(f"{text}. Start chains there (init), or narrow the prior", unseen=True),)
    return ()
