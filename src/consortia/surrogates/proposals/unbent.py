r"""Coordinates of scores: the parameters themselves, in units in which the map is 1 at the mode.

Scores (`consortia.core.tails`) make the tail of one parameter normal. Where rows inform a sum of
parameters alone, as where a level without events is the one that others are compared with, a
straight ridge of the parameters is a bent one of scores. There a surrogate predicts in

.. math:: z = u_0 + \frac{\theta(u) - \theta(u_0)}{\theta'(u_0)}

better than in scores u. Which of the two it is, held-out points say.

A plain density, whose priors nobody knows, is sampled as it is. Where its tail falls like a power
along a parameter, proposals are drawn in scores of this one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.core.parameters import variables
from consortia.core.tails import Tail
from consortia.core.target import Target


class Unbent(NamedTuple):
    """The map.

    Attributes:
        mode: u₀.
        tail: of every parameter, without heaviness where it is sampled as it is.
    """

    mode: Float[np.ndarray, " d"]
    tail: Tail

    def positions(self, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return u of z."""
        slope = np.exp(self.tail.log_slope(self.mode))
        return self.tail.score(self.tail.value(self.mode) + slope * (z - self.mode))

    def white(
        self, points: Float[np.ndarray, "n d"]
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Return z of u, and log |dz/du|."""
        at_mode = self.tail.log_slope(self.mode)
        away = self.tail.value(points) - self.tail.value(self.mode)
        volume = (self.tail.log_slope(points) - at_mode).sum(axis=1)
        return self.mode + away * np.exp(-at_mode), volume


class Scored(NamedTuple):
    """Scores of parameters that are sampled as they are, though they have the tail of a power."""

    tail: Tail

    def positions(self, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return θ of z."""
        return self.tail.value(z)

    def white(
        self, points: Float[np.ndarray, "n d"]
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Return z of θ, and log |dz/dθ|."""
        z = self.tail.score(points)
        return z, -self.tail.log_slope(z).sum(axis=1)


def tail_of(target: Target) -> Tail | None:
    """Return the laws of all parameters, in their order; None where none is sampled by scores."""
    tails = target.model.tails
    if not tails:
        return None
    parts = []
    for variable in variables(target.structure):
        law = tails.get(variable.name, Tail(0.0, 0.0, 1.0))
        each = [np.broadcast_to(np.asarray(part, float), variable.shape) for part in law]
        parts.append(np.stack([part.reshape(-1) for part in each]))
    return Tail(*np.concatenate(parts, axis=1))
