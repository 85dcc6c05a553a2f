r"""Absolute risks of people: restricted mean survival times, and incidences of competing causes.

.. math::
    \mathrm{RMST} = \int_0^{\tau} S(t \mid x)\, dt, \qquad
    F_k(t \mid x) = \int_0^t S(s^-\mid x)\, d\Lambda_k(s \mid x), \qquad
    S = \exp\Bigl(-\sum_k \Lambda_k\Bigr)

with Λ_k the cumulative hazard of one cause, in which events of the others end the follow-up.

Source: Royston and Parmar (2013); Kalbfleisch and Prentice (2002), chapter 8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from consortia.models.regression.baseline import SiteRows
from consortia.models.regression.specification import Specification

SMOOTH_TIMES, MOST_STEPS = 200, 2000
"""Times at which smooth curves are computed, and at which steps are."""


def curve_times(
    agreed: Specification, sites: Sequence[SiteRows], end: float
) -> Float[np.ndarray, " times"]:
    """Return the times, 0 and ``end`` included, between which a curve is a step or nearly linear.

    ``sites`` are those whose baseline hazard changes at events; without one, curves are smooth.
    """
    if sites:
        every = [site.rows["y"][site.rows["event"] > 0] for site in sites]
        steps = np.unique(np.concatenate(every))
        steps = steps[(steps > 0) & (steps < end)]
        if len(steps) > MOST_STEPS:
            steps = steps[np.linspace(0, len(steps) - 1, MOST_STEPS).astype(int)]
        return np.array([0.0, *steps, end])
    smooth = end * np.linspace(0, 1, SMOOTH_TIMES + 1) ** 2  # a Weibull hazard may begin steeply
    cuts = [cut for cut in agreed.breaks if cut < end]
    return np.unique([*smooth, *cuts])


def restricted_mean(
    hazards: Float[np.ndarray, "draws times"], times: Float[np.ndarray, " times"], *, steps: bool
) -> Float[np.ndarray, " draws"]:
    """Return the area under survival; ``hazards`` are cumulative, at the times, 0 the first."""
    survival, width = np.exp(-hazards), np.diff(times)
    if steps:
        return survival[:, :-1] @ width
    return (survival[:, :-1] + survival[:, 1:]) / 2 @ width


CERTAIN = 700.0
"""Cumulative hazard by which an event is certain; exp(-hazard) of a larger one underflows."""


def incidences(
    hazards: Float[np.ndarray, "causes draws times"],
) -> Float[np.ndarray, "causes draws times"]:
    """Return the incidence of each cause, of cumulative hazards at times of which 0 is the first.

    Between two times the hazards of the causes are in proportion.
    """
    hazards = np.minimum(hazards, CERTAIN)
    steps = np.diff(hazards, axis=-1)
    total = steps.sum(axis=0)
    before = np.exp(-hazards.sum(axis=0))[:, :-1]
    leaving = before * -np.expm1(-total)
    share = steps / np.where(total > 0, total, 1.0)
    return np.concatenate(
        [np.zeros_like(hazards[..., :1]), np.cumsum(leaving * share, axis=-1)], -1
    )
