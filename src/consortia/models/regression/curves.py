r"""Kaplan–Meier and cumulative incidence over sites, from counts between agreed times.

.. math::
    \hat S(t_j) = \prod_{i \le j} \Bigl(1 - \frac{d_i}{n_i}\Bigr), \qquad
    \hat F_k(t_j) = \sum_{i \le j} \hat S(t_{i-1}) \frac{d_{ik}}{n_i}

with d events in (t_{j−1}, t_j], of the kind k or of all, and n rows that had neither an event nor
an end of follow-up by t_{j−1}. They are the estimates from all rows with each time put up to the
next agreed one. Where an interval has no end of follow-up before its last event, they are also the
estimates from the times themselves; else `Curve.bounds` has them between two curves, in which
follow-up ends as early and as late as it can have. A site puts off few ends of follow-up to a later
agreed time.

Source: Kaplan and Meier (1958); Aalen and Johansen (1978); Greenwood (1926).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.data.followup import SiteCounts
from consortia.diagnostics.summary import Shown

WIDE = 1.959963984540054
"""The 97.5 % quantile of a normal law."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One stratum's estimates at the times."""

    times: np.ndarray  # at which all sites tell their counts
    at_risk: np.ndarray  # before each
    events: np.ndarray  # up to each since the one before, (times, kinds)
    ended: np.ndarray  # ends of follow-up likewise
    survival: np.ndarray  # probability of no event up to each
    lower: np.ndarray  # 95 % interval of it, on the scale of log(−log)
    upper: np.ndarray  # likewise
    incidence: np.ndarray  # probability of an event of each kind up to each, (times, kinds)
    bounds: np.ndarray  # where the Kaplan–Meier estimate from the times themselves is, (times, 2)


@dataclass(frozen=True, eq=False, repr=False)
class Curves(Shown):
    """Kaplan–Meier and cumulative incidence of all sites that tell counts; `str` renders them."""

    strata: Mapping[str, Curve]  # the estimates, by stratum
    kinds: tuple[str, ...]  # names of the kinds of events
    sites: tuple[str, ...]  # which are in them
    without: tuple[str, ...] = ()  # the sites whose cells are too small

    @property
    def notes(self) -> tuple[str, ...]:
        """The sites that are left out."""
        names = ", ".join(self.without)
        return (f"without {names}: their cells are too small",) if names else ()

    @property
    def _tables(self) -> list[list[list[str]]]:
        """One line a time and stratum."""
        several = len(self.kinds) > 1
        header = ["", "time", "at risk", "ended", *self.kinds, "survival", "2.5 %", "97.5 %"]
        header += [f"incidence of {kind}" for kind in self.kinds] if several else []
        lines = [header]
        for name, curve in self.strata.items():
            for j in range(len(curve.times)):
                numbers = [curve.survival[j], curve.lower[j], curve.upper[j]]
                numbers += curve.incidence[j].tolist() if several else []
                counts = [curve.at_risk[j], curve.ended[j], *curve.events[j].tolist()]
                lines.append(
                    [name, f"{curve.times[j]:g}", *map(str, counts), *(f"{v:.3f}" for v in numbers)]
                )
        return [lines]

    def to_dataframe(self) -> Any:
        """Return one line a stratum and time."""
        import pandas as pd  # heavy, and only wanted here

        parts = []
        for name, curve in self.strata.items():
            columns: dict[str, Any] = {"stratum": name, "time": curve.times}
            shown = ("at_risk", "ended", "survival", "lower", "upper")
            columns |= {field: getattr(curve, field) for field in shown}
            columns |= dict(zip(("lowest", "highest"), curve.bounds.T, strict=True))
            for kind_index, kind in enumerate(self.kinds):
                columns[f"events of {kind}"] = curve.events[:, kind_index]
                columns[f"incidence of {kind}"] = curve.incidence[:, kind_index]
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)


def curves(
    reported: Mapping[str, SiteCounts], times: Sequence[float], kinds: Sequence[str]
) -> Curves | None:
    """Return the estimates of all sites together, at the times that all of them report.

    None where no site has counts up to a time, or no time is common.
    """
    there = {site: s for site, s in reported.items() if len(s.ends) > 1}  # the last is not a time
    without = tuple(site for site in reported if site not in there)
    if not there:
        return None
    common = sorted(set.intersection(*({*s.ends} for s in there.values())))
    if len(common) < 2:
        return None
    names = list(dict.fromkeys(name for s in there.values() for name in s.counts))
    strata = {}
    for name in names:
        cells = np.zeros((len(common), 1 + len(kinds)), int)
        early = np.zeros(len(common), int)
        for s in there.values():
            sent = np.asarray(s.counts.get(name, np.zeros((len(s.ends), 1 + len(kinds)), int)))
            cells += np.add.reduceat(sent, [0, *(s.ends.index(end) + 1 for end in common[:-1])])
            np.add.at(early, np.searchsorted(common, _earliest(s), side="right"), sent[:, 0])
        strata[name] = _curve(cells, early, np.array([*times, np.inf])[np.array(common) - 1])
    return Curves(strata, tuple(kinds), tuple(there), without)


def _earliest(counts: SiteCounts) -> list[int]:
    """Return after how many agreed intervals the ends of follow-up of each sent one begin."""
    begins = dict(zip(counts.ended, [0, *counts.ended[:-1]], strict=True))
    starts = []
    for start, end in zip([0, *counts.ends[:-1]], counts.ends, strict=True):
        inside = [begin for last, begin in begins.items() if start < last <= end]
        starts.append(min([start, *inside]))
    return starts


def _curve(cells: np.ndarray, early: np.ndarray, times: np.ndarray) -> Curve:
    """Return the estimates of one stratum.

    Args:
        cells: ends of follow-up and events in each interval, (intervals, 1 + kinds).
        early: ends of follow-up as early as they may have been.
        times: at which the intervals end.
    """
    before_events = np.concatenate([[0], np.cumsum(cells[:, 1:].sum(axis=1))[:-1]])
    least_at_risk = cells.sum() - before_events - np.cumsum(early)
    leaving = cells.sum(axis=1)
    at_risk = leaving.sum() - np.concatenate([[0], np.cumsum(leaving)[:-1]])
    shown = (times < np.inf) & (at_risk > 0)
    cells, at_risk, times = cells[shown], at_risk[shown], times[shown]
    least_at_risk = least_at_risk[shown]
    ended, events = cells[:, 0], cells[:, 1:]
    every = events.sum(axis=1)
    factor = 1 - every / at_risk
    survival = np.cumprod(factor)
    before = np.concatenate([[1.0], survival[:-1]])
    lowest = np.cumprod(1 - every / np.maximum(least_at_risk, np.maximum(every, 1)))
    with np.errstate(divide="ignore", invalid="ignore"):
        greenwood = np.cumsum(every / (at_risk * (at_risk - every)))
        spread = np.exp(WIDE * np.sqrt(greenwood) / np.abs(np.log(survival)))
        lower, upper = survival**spread, survival ** (1 / spread)
    flat = (survival == 1) | (survival == 0)  # no variance is known at either end
    lower, upper = np.where(flat, survival, lower), np.where(flat, survival, upper)
    incidence = np.cumsum(before[:, None] * events / at_risk[:, None], axis=0)
    bounds = np.stack([lowest, survival], axis=1)
    return Curve(times, at_risk, events, ended, survival, lower, upper, incidence, bounds)
