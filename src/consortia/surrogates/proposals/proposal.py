r"""Proposals that follow a surrogate: an envelope, clipped, sampled by rejection at the server.

.. math:: q(z) \propto e(z)\,\operatorname{clip}\bigl((s(z)/e(z))^\gamma,\ \epsilon,\ M\bigr)

with e a t or a mixture of them, s the surrogate, and γ = 1 unless the surrogate is worth less than
that. The draws are independent and exact, in coordinates z of θ (`consortia.surrogates.
proposals.warp`); the tails are those of e.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from consortia.surrogates.proposals import mixture
from consortia.surrogates.proposals.mixture import BLOCK, Mixture
from consortia.surrogates.proposals.regression import Surrogate
from consortia.surrogates.proposals.warp import Coordinates

TRIALS = 6000
"""Points by which an envelope is fitted to the surrogate."""

REFITS = 6
"""Fits of the envelope, at most."""

WANTED_SHARE, WORST = 0.35, 3.0
"""The fit ends at this effective share of the surrogate's weights, and largest log s/e."""

CAP = 0.9999
"""Quantile of s/e under s at which the ratio is cut, or lower, until enough is accepted."""

FLOOR, RISING = 20.0, 4.0
"""The ratio is at least its mean divided by this, a quarter of it after each tail left out."""

LEAST_ACCEPTED, MOST_TRIED = 0.08, 250_000
"""Share of the envelope's points that are accepted, at least, and how many are tried."""

HALVINGS = 40

COMPONENTS = 9
"""Components of a mixture, with the one that keeps the covariance of all points."""


class Proposal(NamedTuple):
    """A density q of proposals, normalised.

    Attributes:
        envelope: e, in the coordinates.
        surrogate: s; None: q = e.
        coordinates: z of θ.
        power: γ.
        floor: log ε.
        cap: log M.
        log_mass: of the product, by which q is normalised.
        mass_error: standard error of that, from the points that it was estimated with.
    """

    envelope: Mixture
    surrogate: Surrogate | None
    coordinates: Coordinates
    power: float = 1.0
    floor: float = 0.0
    cap: float = 0.0
    log_mass: float = 0.0
    mass_error: float = 0.0

    def log_density(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Return log q of θ."""
        z, volume = self.coordinates.white(points)
        envelope, ratio = self._parts(z)
        return envelope + ratio - self.log_mass + volume

    def ratio(self, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Return log q/e at points in the coordinates, up to a constant."""
        return self._parts(z)[1]

    def _parts(self, z: Float[np.ndarray, "n d"]) -> tuple[np.ndarray, np.ndarray]:
        """Return log e, and the clipped log-ratio."""
        envelope = mixture.log_density(self.envelope, z)
        if self.surrogate is None:
            return envelope, np.zeros(len(z))
        ratio = self.power * (self.surrogate.log_density(z) - envelope)
        return envelope, np.clip(ratio, self.floor, self.cap)

    def sample(
        self, words: Int[np.ndarray, " w"], rng: np.random.Generator, count: int
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Return draws of θ, log q of them, and their places in the stream of the envelope.

        Args:
            words: that name the stream.
            rng: of the server, for the rejection.
            count: of draws; fewer come where too many would have to be tried.
        """
        stream = mixture.stream(words)
        points, densities = [], []
        places: list[np.ndarray] = []
        tried = 0
        while sum(len(part) for part in places) < count and tried < MOST_TRIED:
            block = mixture.draw(self.envelope, stream, BLOCK)
            envelope, ratio = self._parts(block)
            kept = np.flatnonzero(np.log(rng.random(BLOCK)) < ratio - self.cap)
            points.append(block[kept])
            densities.append((envelope + ratio - self.log_mass)[kept])
            places.append(tried + kept)
            tried += BLOCK
        z, density, accepted = (
            np.concatenate(part)[:count] for part in (points, densities, places)
        )
        positions = self.coordinates.positions(z)
        return positions, density + self.coordinates.white(positions)[1], accepted


def clipped(
    surrogate: Surrogate,
    envelope: Mixture,
    coordinates: Coordinates,
    rng: np.random.Generator,
    power: float = 1.0,
    *,
    missed: int = 0,
) -> Proposal:
    """Return the proposal with bounds at which enough of the envelope's points are accepted.

    Args:
        surrogate: s.
        envelope: e.
        coordinates: of both.
        rng: random numbers of the server.
        power: γ.
        missed: how many proposals that came near left out a tail: the lower bound rises.
    """
    points = mixture.draw(envelope, rng, 2 * TRIALS)
    ratio = power * (surrogate.log_density(points) - mixture.log_density(envelope, points))
    lowest = math.log(len(ratio) * FLOOR / RISING**missed)

    def floor_of(cap: float) -> float:  # far out a surrogate may be absurdly high
        return min(float(special.logsumexp(np.minimum(ratio, cap))) - lowest, cap - 1e-9)

    def accepts(cap: float) -> bool:
        return float(np.exp(np.clip(ratio, floor_of(cap), cap) - cap).mean()) >= LEAST_ACCEPTED

    order = np.argsort(ratio)
    mass = np.cumsum(np.exp(ratio[order] - special.logsumexp(ratio)))
    cap = float(ratio[order][min(np.searchsorted(mass, CAP), len(order) - 1)])
    if not accepts(cap):
        low, high = float(ratio.min()), cap  # at the lowest q is e, all of which is accepted
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if accepts(middle) else (low, middle)
        cap = low
    floor = floor_of(cap)
    inside = np.clip(ratio, floor, cap)
    log_mass = float(special.logsumexp(inside) - math.log(len(inside)))
    error = math.sqrt(max(1 / effective_share(inside) - 1, 0) / len(inside))
    return Proposal(envelope, surrogate, coordinates, power, floor, cap, log_mass, error)


def envelope_of(
    log_density: Callable[[np.ndarray], np.ndarray],
    envelope: Mixture,
    bulk: float,
    rng: np.random.Generator,
    *,
    bent: bool,
) -> Mixture:
    """Return an envelope of a surrogate, fitted to it by points that cost nothing.

    A part that an earlier envelope has seen is not lost again: all points count, weighted against
    the mixture of the envelopes that drew them.

    Args:
        log_density: s, in the coordinates.
        envelope: to begin with.
        bulk: depth below the mode up to which the envelope must not be too low.
        rng: random numbers of the server.
        bent: take mixtures at once; else after a single t has not done.
    """
    used: list[Mixture] = []
    points, heights = np.empty((0, envelope.centres.shape[1])), np.empty(0)
    total = np.empty(0)  # log of the sum of the envelopes' densities
    best, best_score = envelope, -math.inf
    for attempt in range(REFITS + 1):
        drawn = mixture.draw(envelope, rng, TRIALS)
        before = [mixture.log_density(part, drawn) for part in used]
        used.append(envelope)
        points = np.concatenate([points, drawn])
        heights = np.concatenate([heights, log_density(drawn)])
        density = mixture.log_density(envelope, points)
        earlier = np.concatenate([total, np.logaddexp.reduce([*before, np.full(TRIALS, -np.inf)])])
        total = np.logaddexp(earlier, density)
        ratio = heights - total + math.log(len(used))
        gaps = (heights - density)[-TRIALS:]
        share = effective_share(np.minimum(gaps, np.quantile(gaps, 0.999)))
        mean = special.logsumexp(ratio) - math.log(len(ratio))
        worst = float((heights - density)[heights > heights.max() - bulk].max() - mean)
        if share / max(worst, 1.0) > best_score:
            best, best_score = envelope, share / max(worst, 1.0)
        if attempt == REFITS or (attempt and share > WANTED_SHARE and worst < WORST):
            break
        components = COMPONENTS if bent or attempt >= 2 else 1
        envelope = mixture.fit_mixture(points, ratio, components, rng)
    return best


def effective_share(log_weights: Float[np.ndarray, " n"]) -> float:
    """Return the effective sample size of weights by their number."""
    twice = 2 * special.logsumexp(log_weights) - special.logsumexp(2 * log_weights)
    return float(math.exp(twice) / len(log_weights))
