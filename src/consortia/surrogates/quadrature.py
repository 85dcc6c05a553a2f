r"""The error that a rule of quadrature inside the likelihood adds to the posterior.

With e the error of log π of a run, its law is :math:`\pi e^{e}`. Around the mean of a normal
posterior, along :math:`u_j = \Sigma_{\cdot j}/\sigma_j`, on which all else follows θ_j,

.. math::
    \text{shift}_j \approx \tfrac14\,(e(2u_j) - e(-2u_j)), \qquad
    \text{sd ratio}_j \approx 1 + \tfrac18\,(e(2u_j) - 2 e(0) + e(-2u_j))

in posterior standard deviations of θ_j.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.core.model import Integration

REACH, FARTHER = 2.0, 3.0
"""Standard deviations at which the effect is measured on either side; and the error alone."""

NEAREST = 0.005
"""Share of the draws that stand for a quantile, at most."""

TOLERANCE = 0.01
"""Error of log π at any of the points, up to which a rule is fine enough."""

NEAR = 0.2
"""Error of log π up to which it will do for a surrogate, whose own is larger (0.3 to 0.7)."""


class Effect(NamedTuple):
    """The effect of a rule's error on the posterior.

    Attributes:
        error: largest |e| at any point, against the middle.
        shift: largest shift of a mean, in posterior standard deviations.
        low, high: smallest and largest ratio of the standard deviations.
    """

    error: float
    shift: float
    low: float
    high: float

    def plain(self) -> dict[str, Any]:
        """Return plain values, as in JSON."""
        return {name: float(value) for name, value in self._asdict().items()}


def points_around(
    mean: Float[np.ndarray, " d"], covariance: Float[np.ndarray, "d d"]
) -> Float[np.ndarray, "m d"]:
    """Return the middle, then 2 u_j of each parameter, −2 u_j, and both farther out."""
    sd = np.sqrt(np.diagonal(covariance))
    along = (covariance / np.where(sd > 0, sd, 1.0)).T
    steps = [along * reach * sign for reach in (REACH, FARTHER) for sign in (1, -1)]
    return mean + np.concatenate([np.zeros((1, len(mean))), *steps])


def points_among(draws: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m d"]:
    """Return places like those of `points_around` where draws are: means of some of them.

    A skewed posterior has none at three standard deviations on one side, and a bent one none on a
    line. They are those nearest to the quantiles of each parameter.
    """
    count, order = len(draws), np.argsort(draws, axis=0)
    places = [draws.mean(axis=0)[None]]
    for reach in (REACH, FARTHER):
        beyond = count * math.erfc(reach / math.sqrt(2)) / 2
        some = max(int(min(beyond, count * NEAREST)), 1)
        first = int(count - beyond - some / 2)
        for ranks in (order[first : first + some], order[::-1][first : first + some]):
            places.append(draws[ranks].mean(axis=0))
    return np.concatenate(places)


def effect_of(errors: Float[np.ndarray, " m"]) -> Effect:
    """Return the effect of errors at the points of `points_around`."""
    middle, (up, down, *_) = errors[0], errors[1:].reshape(4, -1)
    ratio = 1 + (up - 2 * middle + down) / (2 * REACH**2)
    shift = np.abs(up - down) / (2 * REACH)
    error = np.abs(errors - middle).max()
    return Effect(float(error), float(shift.max()), float(ratio.min()), float(ratio.max()))


def report_of(
    errors: Float[np.ndarray, "m rules"], measured: Sequence[int], choices: Sequence[int]
) -> dict[str, Any]:
    """Return the record's entry on the first rule that is fine enough, else on the last.

    Args:
        errors: of rules at the points of `points_around`.
        measured: their nodes, ascending; the last is what the others are measured against.
        choices: nodes of those that may be taken.
    """
    effects = {
        nodes: effect_of(errors[:, rule_index])
        for rule_index, nodes in enumerate(measured[:-1])
        if nodes in choices
    }
    fine = [nodes for nodes, effect in effects.items() if effect.error <= TOLERANCE]
    nodes = fine[0] if fine else max(effects)
    return {"nodes": nodes, "against": measured[-1], **effects[nodes].plain()}


def chosen(
    errors: Float[np.ndarray, "m rules"], rules: Integration, used: int
) -> tuple[int, dict[str, Any] | None]:
    """Return the first rule that is fine enough, the one in use or a finer one, and its report.

    Where none of those compared is, return the next, of which nothing is known yet.
    """
    compared, finer = rules.measured(used), [rule for rule in rules.choices if rule >= used]
    report = report_of(errors, compared, finer)
    unknown = [rule for rule in finer if rule not in compared[:-1]]
    if report["error"] <= TOLERANCE or not unknown:
        return report["nodes"], report
    return unknown[0], None


def is_near(errors: Float[np.ndarray, "m rules"], rules: Integration, used: int) -> bool:
    """Return True if the rule in use will do to fit a surrogate; a common error counts too."""
    return bool(np.abs(errors[:, rules.measured(used).index(used)]).max() <= NEAR)
