"""Plausibility bounds on sites' messages, checked before the server uses any of them.

A site that lies within these bounds is not found: they keep it from sending the chains where its
next messages would show the rows of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from consortia.core.contract import Phase, Sum
from consortia.core.prior import PriorScale
from consortia.engines.messages.nonfinite import PREFIX
from consortia.runtime.late import PyTree

MAXIMUM_POSITION, MAXIMUM_STEP = 20.0, 20.0
"""Standard deviations of the prior; twice what a site's policy proposes for averages."""

TIMES_MEDIAN = 1000.0
"""A site's largest gradient or move may be so many times the median of the sites'."""

SMALL_MOVE, SMALL_GRADIENT = 1.0, 1.0
"""Medians below these count as these, in standard deviations of the prior or their inverse."""


FEWEST_EQUAL = 8
"""Numbers about several points that are not all the same where they are sums over rows."""


class Sent(NamedTuple):
    """A message of a site with what it answers: both without the axis of the nodes."""

    inbox: PyTree
    outbox: PyTree


@dataclass(frozen=True)
class Judge:
    """Bounds on what an honest site may send."""

    scale: PriorScale  # of the prior
    weights: np.ndarray  # w_c of all sites
    # the farthest that a site may be from the prior's centre, in any parameter, in standard
    # deviations of the prior
    position: float
    step: float  # the farthest that it may move in a message

    def implausible(self, phase: Phase, sent: Mapping[int, Sent]) -> tuple[int, str] | None:
        """Return the first site whose message is implausible, and why; None where all may be.

        Where most sites are beyond a bound the chain itself has gone there, and no site has lied.
        """
        if phase.disclosure is None:
            return None
        far, moved, gradients = {}, {}, {}
        for site, (inbox, outbox) in sent.items():
            disclosure = phase.disclosure(outbox)
            if not isinstance(disclosure.positions, tuple):
                positions = np.asarray(disclosure.positions, np.float64)
                far[site] = _largest(self.scale.distance(positions))
                if phase.evaluation is not None:
                    origin = np.asarray(phase.evaluation(inbox).positions, np.float64)
                    moved[site] = _largest(self.scale.distance(positions, origin))
            if not isinstance(disclosure.gradients, tuple):
                gradient = np.asarray(disclosure.gradients, np.float64)
                share = self.weights[site] if isinstance(phase.exchange, Sum) else 1.0
                with np.errstate(over="ignore"):
                    gradients[site] = _largest(np.abs(gradient) * self.scale.sd / share)
        return (
            _beyond(far, self.position, "its position is {:.3g} prior standard deviations off")
            or _beyond(moved, self.step, "it moved by {:.3g} prior standard deviations in a round")
            or _unlike(moved, SMALL_MOVE, "it moved {:.3g} times as far as the median site")
            or _unlike(gradients, SMALL_GRADIENT, "its gradient is {:.3g} times the median one")
        )


def _largest(values: np.ndarray) -> float:
    """Return the largest finite value: what is not finite ends a run with its own error."""
    return float(np.max(values, where=np.isfinite(values), initial=0.0))


def _beyond(shares: Mapping[int, float], most: float, text: str) -> tuple[int, str] | None:
    beyond = [site for site, value in shares.items() if value > most]
    if not beyond or len(beyond) > len(shares) / 2:
        return None
    return beyond[0], f"{text.format(shares[beyond[0]])}, more than {most:g}"


def _unlike(shares: Mapping[int, float], small: float, text: str) -> tuple[int, str] | None:
    if len(shares) < 3:
        return None
    median = max(float(np.median(list(shares.values()))), small)
    site = max(shares, key=lambda index: shares[index])
    if shares[site] <= TIMES_MEDIAN * median:
        return None
    return site, text.format(shares[site] / median)


def unlike_sums(arrays: Mapping[str, np.ndarray], *, distinct: bool) -> str | None:
    """Check that the arrays of an answer may be sums over rows; return the fault or None.

    Args:
        arrays: as they travel, where marks stand for numbers that are not finite.
        distinct: the answer is about several points.
    """
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            continue
        if not np.isfinite(array).all():
            return f"it sent numbers that are not finite, without a mark, in {name!r}"
        if not distinct or array.ndim != 1:  # curvatures may be constant
            continue
        sent = array[arrays[PREFIX + name] == 0] if PREFIX + name in arrays else array
        if sent.size >= FEWEST_EQUAL and (sent == sent[0]).all():
            return f"all {sent.size} numbers of {name!r} are {sent[0]:g}"
    return None
