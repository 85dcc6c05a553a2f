"""All points that the sites have evaluated, and what they weigh."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from consortia.algorithms.few_rounds.mixture import normalised

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
        return float(1 / (normalised(self.log_weights) ** 2).sum())


@dataclass
class Memory:
    """Points and log-densities of all messages.

    Attributes:
        points: θ of all of them, (n, d).
        heights: log π, relative to the reference.
        batches: of the last messages the points that were drawn, log π, and log q.
    """

    points: Float[np.ndarray, "n d"]
    heights: Float[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0))
    batches: list[tuple[np.ndarray, np.ndarray, Density]] = field(default_factory=list)

    def add(self, points: np.ndarray, heights: np.ndarray, drawn: int, density: Density) -> None:
        """Take the points of a message, of which the first ones were drawn from a density."""
        finite = np.isfinite(heights)
        self.points = np.concatenate([self.points, points[finite]])
        self.heights = np.concatenate([self.heights, heights[finite]])
        own = finite[:drawn]
        batch = points[:drawn][own], heights[:drawn][own], density
        self.batches = [*self.batches, batch][-KEPT:]

    @property
    def best(self) -> Float[np.ndarray, " d"]:
        """The point of the largest density."""
        return self.points[np.argmax(self.heights)]

    def weighted(self) -> Weighted:
        """Return the last drawn points against the mixture of what drew them."""
        points, heights = (np.concatenate([b[i] for b in self.batches]) for i in (0, 1))
        counts = np.array([len(batch[0]) for batch in self.batches])
        each = [
            batch[2](points) + math.log(count / counts.sum())
            for batch, count in zip(self.batches, counts, strict=True)
            if count
        ]
        return Weighted(points, heights, heights - special.logsumexp(each, axis=0))
