"""All points that the sites have evaluated, and what they weigh."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from consortia.surrogates.proposals.mixture import normalised

Density = Callable[[np.ndarray], np.ndarray]

KEPT = 4
"""Messages whose points are weighted against the mixture of their proposals."""


class Weighted(NamedTuple):
    """Points θ, log π there up to a constant, and log π/q with q what drew them."""

    points: Float[np.ndarray, "n d"]
    heights: Float[np.ndarray, " n"]
    log_weights: Float[np.ndarray, " n"]

    @property
    def effective(self) -> float:
        """Effective number of the points."""
        if not len(self.points):
            return 0.0
        return float(1 / (normalised(self.log_weights) ** 2).sum())


class Drawn(NamedTuple):
    """The points that one message drew from a density, log π there, and log q of itself.

    ``others`` holds log q there of kept messages, by their numbers.
    """

    number: int
    points: Float[np.ndarray, "n d"]
    heights: Float[np.ndarray, " n"]
    density: Density
    others: dict[int, Float[np.ndarray, " n"]]


@dataclass
class Memory:
    """Points and log-densities of all messages.

    Attributes:
        points: θ of all of them, (n, d).
        heights: log π, relative to the first reference.
        drawn: of the last messages those that were drawn from a proposal.
        noises: standard deviations of what the sites have added to each of the heights.
    """

    points: Float[np.ndarray, "n d"]
    heights: Float[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0))
    drawn: list[Drawn] = field(default_factory=list)
    noises: Float[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0))
    _count: int = 0
    _weighted: Weighted | None = None

    def add(
        self,
        points: np.ndarray,
        heights: np.ndarray,
        drawn: int,
        density: Density,
        noise: float = 0.0,
    ) -> None:
        """Take the points of a message, of which the first ones were drawn from a density."""
        finite = np.isfinite(heights)
        self.points = np.concatenate([self.points, points[finite]])
        self.heights = np.concatenate([self.heights, heights[finite]])
        self.noises = np.concatenate([self.noises, np.full(finite.sum(), noise)])
        kept = finite[:drawn]
        self._count += 1
        batch = Drawn(self._count, points[:drawn][kept], heights[:drawn][kept], density, {})
        self.drawn, self._weighted = [*self.drawn, batch][-KEPT:], None

    def forget_drawn(self) -> None:
        """Weight no earlier points any more; they stay in the regressions."""
        self.drawn, self._weighted = [], None

    @property
    def best(self) -> Float[np.ndarray, " d"]:
        """The point of the largest density."""
        return self.points[np.argmax(self.heights)]

    def weighted(self) -> Weighted:
        """Return the last drawn points against the mixture of what drew them."""
        if self._weighted is not None:
            return self._weighted
        total = max(sum(len(batch.points) for batch in self.drawn), 1)
        weights = []
        for batch in self.drawn:
            for other in self.drawn:
                if other.number not in batch.others:
                    batch.others[other.number] = other.density(batch.points)
            each = [
                batch.others[other.number] + math.log(max(len(other.points), 1) / total)
                for other in self.drawn
            ]
            weights.append(batch.heights - special.logsumexp(each, axis=0))
        points, heights = (np.concatenate([batch[i] for batch in self.drawn]) for i in (1, 2))
        self._weighted = Weighted(points, heights, np.concatenate(weights))
        return self._weighted
