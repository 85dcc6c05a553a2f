"""Fits to the points of all messages: the next proposal, and the next rays.

First a surrogate in the parameters themselves, then along warped tails. Where neither predicts what
was held out, the coordinates and the mixture are taken that cover weighted points best, and the
surrogate counts for as much as it has earned there.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import special

from consortia.surrogates.proposals import FEW_PARAMETERS, mixture, proposal, regression
from consortia.surrogates.proposals.flow import fit_flow
from consortia.surrogates.proposals.groups import Groups
from consortia.surrogates.proposals.memory import Memory, Weighted
from consortia.surrogates.proposals.mixture import Mixture
from consortia.surrogates.proposals.proposal import Proposal
from consortia.surrogates.proposals.rays import Profile
from consortia.surrogates.proposals.regression import Surrogate
from consortia.surrogates.proposals.warp import Coordinates, Plain, fit_warp

EXACT, TRUSTED = 0.02, 0.3
"""Held-out errors of a surrogate below which no warp is tried, and below which it is followed."""

LOST, MISFIT = 2.0, 1.0
"""Effective points below which nothing is known of the bulk if no surrogate predicts; and error of
a quadratic regression above which it does not, with few effective points."""

FEW = 8.0
"""Effective weighted points, by the number of parameters, from which an envelope is begun."""

SHRUNK = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Shares of the curvature's covariance in an envelope of many parameters: one of them is taken."""

USABLE = 0.95
"""Share of the points that coordinates must map to finite places."""

STRETCHED, STRETCHED_SHARE, OF_GROUPS = 3.0, 0.15, 0.1
"""Standard deviations of components along lines that were not covered, and their share, also of
hierarchical models: their long tails hold little."""


class Missed(NamedTuple):
    """Lines that proposals left out, by their directions; and how many that came near did so."""

    directions: list[Float[np.ndarray, " d"]]
    proposals: int


class Learnt(NamedTuple):
    """The next proposal; None where no regression is finite.

    Attributes:
        proposal: q.
        covariance: of the posterior, as far as it is known, for the next rays.
        error: of the surrogate at held-out points; of a quadratic regression at its own; nan of
            no regression.
        lost: whether the points do not say where the bulk lies.
    """

    proposal: Proposal | None
    covariance: Float[np.ndarray, "d d"]
    error: float
    lost: bool = False


def learn(
    memory: Memory,
    profiles: list[Profile],
    covariance: Float[np.ndarray, "d d"],
    missed: Missed,
    rng: np.random.Generator,
    base: Coordinates,
    *,
    guess: Float[np.ndarray, "d d"],
    bent: bool,
    doubted: bool,
    other: Coordinates | None = None,
) -> Learnt:
    """Return the next proposal.

    Args:
        memory: all points.
        profiles: of the lines of the last message.
        covariance: by which these were chosen.
        missed: what the last proposals left out.
        rng: random numbers of the server.
        base: the parameters themselves, or coordinates that the model suggests.
        guess: the covariance by the curvature at the mode.
        bent: take mixtures at once.
        doubted: surrogates were followed and have failed: take what covers weighted points.
        other: coordinates to be tried beside ``base``.
    """
    if len(memory.points) <= 2 * memory.points.shape[1]:  # hardly any is finite
        return Learnt(None, covariance, math.inf)
    try:
        if memory.points.shape[1] > FEW_PARAMETERS:
            learnt = _weighted(memory, guess, missed, rng)
        else:
            fitted, coordinates = _surrogate(memory, profiles, covariance, rng, base, other)
            if fitted.error < TRUSTED and not doubted:
                learnt = _following(fitted, coordinates, memory, covariance, missed, rng, bent=bent)
            else:
                learnt = _pooled(fitted, coordinates, memory, missed, rng)
    except (ArithmeticError, ValueError, np.linalg.LinAlgError):  # too few finite points
        return Learnt(None, covariance, math.inf)
    if learnt.proposal is not None and not _has_width(learnt.proposal.envelope):
        return Learnt(None, covariance, math.inf)
    return learnt if _definite(learnt.covariance) else learnt._replace(covariance=covariance)


def _has_width(envelope: Mixture) -> bool:
    """Test an envelope for roots that sites can invert in 32 bits, as of equal points none is."""
    widths = np.diagonal(envelope.roots, axis1=1, axis2=2)
    return bool(np.isfinite(envelope.roots).all() and widths.min() > np.finfo(np.float32).tiny)


def _definite(covariance: Float[np.ndarray, "d d"]) -> bool:
    """Test a covariance for full rank, as rays need it: one of a few points has no width."""
    try:
        np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return False
    return True


def _weighted(
    memory: Memory,
    guess: Float[np.ndarray, "d d"],
    missed: Missed,
    rng: np.random.Generator,
) -> Learnt:
    """Return proposals from one or two t near weighted points.

    With many parameters a regression that predicts would need more terms than there are points.
    Its quadratic part needs fewer, and says by their heights what weighted points alone say badly.
    It is blind to skewness, whose tail it leaves out: half of the proposals have mean and
    covariance of the points. With still more parameters a regression would take too long, and a
    covariance needs more points than there are: it is shrunk towards the guess, by as much as
    serves the half of the points that it was not learnt from.
    """
    weighted = memory.weighted()
    n, d = weighted.points.shape
    if d <= regression.MOST_QUADRATIC:
        shares = mixture.tempered(weighted.log_weights, min(math.comb(d + 2, 2), n / 4))
        root = mixture.cholesky_root(guess)
        mean, covariance, error = regression.fit_quadratic(weighted, shares, memory.best, root, rng)
        middle, spread = mixture.moments(weighted.points, shares)
        scales = [mixture.INFLATED * covariance, _scale_of(spread)]
        envelope = mixture.mixture_of([0.5, 0.5], [mean, middle], scales)
        envelope = _stretched(envelope, missed, Plain(), memory.best)
        lost = error > MISFIT and weighted.effective < FEW * d
        return Learnt(Proposal(envelope, None, Plain()), covariance, error, lost)
    shares = mixture.tempered(weighted.log_weights, mixture.TEMPERED * d)
    half = rng.random(len(shares)) < 0.5
    mean, covariance = mixture.moments(weighted.points[half], shares[half])
    held = _held(_mapped(Plain(), weighted.points), weighted, shares, ~half)
    scores = [(_covered(_between(mean, covariance, guess, part), held), part) for part in SHRUNK]
    mean, covariance = mixture.moments(weighted.points, shares)
    envelope = _between(mean, covariance, guess, max(scores)[1])
    envelope = _stretched(envelope, missed, Plain(), memory.best)
    return Learnt(Proposal(envelope, None, Plain()), covariance, math.nan)


def _between(mean: np.ndarray, covariance: np.ndarray, guess: np.ndarray, share: float) -> Mixture:
    """Return the t whose scale is between those of a covariance and of a guess."""
    scale = (1 - share) * _scale_of(covariance) + share * guess
    return mixture.mixture_of([1.0], [mean], [scale])


def _scale_of(covariance: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """Return the scale matrix of a t with a covariance, which is made wider."""
    return covariance * (1 - 2 / mixture.freedom(len(covariance))) * mixture.INFLATED


class _Held(NamedTuple):
    """Points that were held out in some coordinates, log π there, and what each weighs."""

    z: Float[np.ndarray, "h d"]
    heights: Float[np.ndarray, " h"]
    weights: Float[np.ndarray, " h"]


def _held(
    mapped: tuple[np.ndarray, np.ndarray, np.ndarray],
    weighted: Weighted,
    share: Float[np.ndarray, " n"],
    chosen: Bool[np.ndarray, " n"],
) -> _Held:
    """Return those of the chosen points that the coordinates map to usable places."""
    z, volume, usable = mapped
    rest = chosen & usable
    return _Held(z[rest], weighted.heights[rest] - volume[rest], share[rest] + 1e-300)


def _covered(envelope: Mixture, held: _Held) -> float:
    """Return the logarithm of the effective share that an envelope would have at some points."""
    logs = np.log(held.weights)
    ratio = held.heights - mixture.log_density(envelope, held.z)
    ratio = np.clip(ratio - np.average(ratio, weights=held.weights), -40, 40)
    both = special.logsumexp(logs + ratio) + special.logsumexp(logs - ratio)
    return float(2 * special.logsumexp(logs) - both)


def _following(
    fitted: Surrogate,
    coordinates: Coordinates,
    memory: Memory,
    covariance: Float[np.ndarray, "d d"],
    missed: Missed,
    rng: np.random.Generator,
    *,
    bent: bool,
) -> Learnt:
    """Return proposals from a surrogate that predicts."""
    bulk = memory.points.shape[1] / 2 + 9
    begun = _begun(fitted, coordinates, memory.weighted(), covariance, rng, bent=bent)
    envelope = proposal.envelope_of(fitted.log_density, begun, bulk, rng, bent=bent)
    envelope = _stretched(envelope, missed, coordinates, memory.best)
    clipped = proposal.clipped(fitted, envelope, coordinates, rng, missed=missed.proposals)
    z = mixture.draw(envelope, rng, 3000)
    ratio = clipped.ratio(z)
    return Learnt(clipped, _robust_covariance(coordinates.positions(z), ratio), fitted.error)


def _pooled(
    fitted: Surrogate,
    coordinates: Coordinates,
    memory: Memory,
    missed: Missed,
    rng: np.random.Generator,
) -> Learnt:
    """Return proposals that cover weighted points, and follow the surrogate as far as it earned."""
    weighted = memory.weighted()
    shares = mixture.tempered(weighted.log_weights, mixture.TEMPERED * memory.points.shape[1])
    given = coordinates
    coordinates, envelope = _covering(weighted, shares, given, rng)
    if coordinates is not given:
        refitted = _fitted(coordinates, memory, rng, least=0.0)
        assert refitted is not None
        fitted = refitted
    power = _earned(fitted, envelope, memory, coordinates)
    envelope = _stretched(envelope, missed, coordinates, memory.best)
    clipped = proposal.clipped(fitted, envelope, coordinates, rng, power, missed=missed.proposals)
    lost = fitted.error > TRUSTED and weighted.effective < LOST
    return Learnt(clipped, mixture.moments(weighted.points, shares)[1], fitted.error, lost)


def _surrogate(
    memory: Memory,
    profiles: list[Profile],
    covariance: np.ndarray,
    rng: np.random.Generator,
    base: Coordinates,
    other: Coordinates | None,
) -> tuple[Surrogate, Coordinates]:
    """Return the surrogate in the coordinates in which it predicts best."""
    best = _fitted(base, memory, rng)
    if best is None:
        best, base = _fitted(Plain(), memory, rng, least=0.0), Plain()
    assert best is not None
    if best.error >= EXACT and isinstance(base, Plain):
        for tried in (other, fit_warp(memory.best, covariance, profiles)):
            fitted = None if tried is None else _fitted(tried, memory, rng)
            if tried is not None and fitted is not None and fitted.error < best.error:
                best, base = fitted, tried
    return best, base


def _fitted(
    coordinates: Coordinates, memory: Memory, rng: np.random.Generator, least: float = USABLE
) -> Surrogate | None:
    """Fit the surrogate in some coordinates, where they suit; None if they suit few points."""
    z, volume, usable = _mapped(coordinates, memory.points)
    if usable.mean() < least:
        return None
    heights = (memory.heights - volume)[usable]
    return regression.fit_surrogate(z[usable], heights, rng, memory.noises[usable])


def _mapped(
    coordinates: Coordinates, points: Float[np.ndarray, "n d"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return z, log |dz/dθ|, and which of the points have usable ones."""
    z, volume = coordinates.white(points)
    return z, volume, np.isfinite(volume) & np.all(np.abs(z) < 1e6, axis=1)


def _begun(
    fitted: Surrogate,
    coordinates: Coordinates,
    weighted: Weighted,
    covariance: np.ndarray,
    rng: np.random.Generator,
    *,
    bent: bool,
) -> Mixture:
    """Return the envelope from which that of a surrogate is fitted."""
    z, _, usable = _mapped(coordinates, weighted.points)
    d = z.shape[1]
    if weighted.effective > FEW * d:
        components = proposal.COMPONENTS if bent else 1
        return mixture.fit_mixture(z[usable], weighted.log_weights[usable], components, rng)
    best = z[usable][np.argmax(weighted.heights[usable])]
    spread = covariance
    if not isinstance(coordinates, Plain):
        spread = np.cov(z[usable].T).reshape(d, d)
    scale = 1.2 * fitted.root @ fitted.root.T
    return mixture.mixture_of([0.8, 0.2], [fitted.centre, best], [scale, spread])


def _robust_covariance(
    points: Float[np.ndarray, "n d"], log_ratio: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "d d"]:
    """Return the covariance of weighted points without those far out."""
    weights = mixture.tempered(log_ratio, len(points) / 4)
    low, high = np.quantile(points, (0.1, 0.9), axis=0)
    inside = np.all((points > low - 3 * (high - low)) & (points < high + 3 * (high - low)), axis=1)
    return mixture.moments(points, weights * inside)[1]


def _covering(
    weighted: Weighted,
    share: Float[np.ndarray, " n"],
    warp: Coordinates,
    rng: np.random.Generator,
) -> tuple[Coordinates, Mixture]:
    """Return the coordinates and the mixture that cover a held-out half of weighted points best.

    Args:
        weighted: the points.
        share: their tempered weights.
        warp: coordinates to be tried beside the parameters themselves and a triangular map.
        rng: random numbers of the server.
    """
    half = rng.random(len(share)) < 0.5
    first = share[half] / share[half].sum()
    tried: list[tuple[Coordinates, Coordinates | None]] = [(warp, warp)]
    if weighted.points.shape[1] <= FEW_PARAMETERS:
        tried.append((fit_flow(weighted.points[half], first), None))
        if not isinstance(warp, Plain):
            tried.append((Plain(), Plain()))
    scores = []
    for index, (of_half, _) in enumerate(tried):
        mapped = z, _, usable = _mapped(of_half, weighted.points)
        if usable.mean() < USABLE:
            continue
        held = _held(mapped, weighted, share, ~half)
        for components in (1, proposal.COMPONENTS) if len(tried) > 1 else (1,):
            learnt = half & usable
            fitted = mixture.fit_mixture(z[learnt], weighted.log_weights[learnt], components, rng)
            scores.append((_covered(fitted, held), index, components))
    _, index, components = max(scores)
    of_all = tried[index][1]
    coordinates: Coordinates = fit_flow(weighted.points, share) if of_all is None else of_all
    z, _, usable = _mapped(coordinates, weighted.points)
    return coordinates, mixture.fit_mixture(
        z[usable], weighted.log_weights[usable], components, rng
    )


def _earned(
    fitted: Surrogate, envelope: Mixture, memory: Memory, coordinates: Coordinates
) -> float:
    """Return γ: the slope of log π/e on log s/e at held-out points near the mode, from 0 to 1."""
    z, volume, usable = _mapped(coordinates, memory.points)
    held = np.flatnonzero(usable)[fitted.held_out]
    heights = memory.heights[held]
    weights = np.exp(-(heights.max() - heights) / 2)
    density = mixture.log_density(envelope, z[held])

    def centred(values: np.ndarray) -> np.ndarray:
        return np.clip(values - np.average(values, weights=weights), -4, 4)

    seen, wanted = centred(fitted.predicted - density), centred(heights - volume[held] - density)
    slope = (weights * seen * wanted).sum() / ((weights * seen**2).sum() + 1e-12)
    return float(np.clip(slope, 0.05, 1))


def _stretched(
    envelope: Mixture,
    missed: Missed,
    coordinates: Coordinates,
    centre: Float[np.ndarray, " d"],
) -> Mixture:
    """Return the envelope with components along the lines that were not covered."""
    if not missed.directions:
        return envelope
    middle = coordinates.white(centre[None])[0][0]
    whole = envelope.roots[-1] @ envelope.roots[-1].T
    share = OF_GROUPS if isinstance(coordinates, Groups) else STRETCHED_SHARE
    scales = []
    for direction in missed.directions:
        ends = coordinates.white(np.stack([centre - direction, centre + direction]))[0]
        along = STRETCHED * (ends[1] - ends[0]) / 2
        scales.append(whole + np.outer(along, along))
    shares = [*((1 - share) * envelope.shares), *[share / len(scales)] * len(scales)]
    old = [root @ root.T for root in envelope.roots]
    return mixture.mixture_of(shares, [*envelope.centres, *[middle] * len(scales)], [*old, *scales])
