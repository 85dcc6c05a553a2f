r"""Scores: coordinates in which a law whose density falls like a power is nearly normal.

Where the rows say nothing of a parameter, its posterior has the tail of its prior, which no
proposal of finite width covers. With Student's t, ν degrees of freedom, centre c and scale s, of

.. math:: \theta = c + s\,a\,u\,e^{u^2/2\nu}, \qquad a^2 = \frac{\nu + 3}{\nu + 1}

u has normal tails and at 0 the curvature of N(0, 1). A density gets the Jacobian, so that its law
stays exact.

Source: Goerg, "The Lambert way to Gaussianize heavy-tailed data with the inverse of Tukey's h
transformation as a special case" (2015).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from consortia.core.arrays import Array, namespace

FARTHEST = 23.0
"""Logarithm of the stretch from which on it is constant: of a Cauchy law 1e-11 of the mass lies
beyond, where the terms of a log-likelihood are so large that their sum has no digits."""


class Tail(NamedTuple):
    """The law above; its numbers may be arrays, of as many parameters.

    Attributes:
        heaviness: 1/ν, 0 of a normal law.
        centre: c.
        scale: s.
    """

    heaviness: Any
    centre: Any
    scale: Any

    def value(self, scores: Array) -> Array:
        """Return θ of u."""
        h, centre, scale = self._like(scores)
        return centre + scale * self._slope_at_centre(h) * scores * self._stretch(scores, h)

    def log_slope(self, scores: Array) -> Array:
        """Return log dθ/du."""
        xp, (h, _, scale) = namespace(scores), self._like(scores)
        stretch = h * scores**2 / 2
        bent = xp.where(stretch < FARTHEST, stretch + xp.log1p(2 * stretch), FARTHEST)
        return xp.log(scale * self._slope_at_centre(h)) + bent

    def score(self, values: np.ndarray) -> np.ndarray:
        """Return u of θ."""
        from scipy.special import lambertw  # heavy: only a start needs it

        values = np.asarray(values, float)
        h, centre, scale = self._like(values)
        away = (values - centre) / (scale * self._slope_at_centre(h))
        heavy = np.where(h > 0, h, 1.0)
        bent = np.sign(away) * np.sqrt(lambertw(heavy * away**2).real / heavy)
        bent = np.where(heavy * bent**2 / 2 < FARTHEST, bent, away * np.exp(-FARTHEST))
        return np.where(h > 0, bent, away)

    def _like(self, values: Array) -> tuple[Array, Array, Array]:
        xp, shape = namespace(values), values.shape
        h, centre, scale = (xp.broadcast_to(xp.asarray(part, values.dtype), shape) for part in self)
        return h, centre, scale

    @staticmethod
    def _slope_at_centre(h: Array) -> Array:
        return namespace(h).sqrt((1 + 3 * h) / (1 + h))

    @staticmethod
    def _stretch(scores: Array, h: Array) -> Array:
        xp = namespace(scores)
        return xp.exp(xp.minimum(h * scores**2 / 2, FARTHEST))
