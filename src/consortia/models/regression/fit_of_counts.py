"""Posterior predictive checks of levels and of times to an event, from counts by site.

Of a response of levels the share of each is compared with that of simulated responses; of a time
the share of events and the mean follow-up. A simulated time ends, as those of the rows did, with
the event or with the follow-up: of a row without an event that is known, of one with an event it is
drawn from the Kaplan-Meier estimate of the site's ends of follow-up, given that it is later.

Of a site no count below the least of `consortia.data.cells` is shown, nor one from which it
follows; of all sites together those counts that every site shows, sites without any left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from consortia.data.cells import MINIMUM_CELLS, is_large, merged
from consortia.models.regression.checking import ALL, Line, PredictiveCheck, line_of

OTHERS = "other levels"


class Counts(NamedTuple):
    """Counts of a site, observed and in the simulated responses."""

    rows: int  # of the site
    observed: Mapping[str, float]  # by name
    simulated: Mapping[str, Float[np.ndarray, " draws"]]  # by the same names, (draws,) each


def counts_of_levels(
    y: Int[np.ndarray, " rows"], simulated: Int[np.ndarray, "draws rows"], names: Sequence[str]
) -> Counts:
    """Count the rows of each level, an index among ``names``; small levels are merged."""
    seen = {name: int((y == index).sum()) for index, name in enumerate(names)}
    made = {name: (simulated == index).sum(axis=1) for index, name in enumerate(names)}
    shown, rest = merged(seen, MINIMUM_CELLS)
    observed = {name: float(shown[name]) for name in names if name in shown}
    drawn = {name: made[name].astype(float) for name in observed}
    if rest >= MINIMUM_CELLS:
        observed[OTHERS] = float(rest)
        drawn[OTHERS] = len(y) - np.sum([np.zeros(len(simulated)), *drawn.values()], axis=0)
    return Counts(len(y), observed, drawn)


def counts_of_times(
    time: Float[np.ndarray, " rows"],
    event: Float[np.ndarray, " rows"],
    simulated: Float[np.ndarray, "draws rows"],
    rng: np.random.Generator,
) -> Counts:
    """Return events and follow-up, observed and simulated.

    ``event`` is 1 where one was seen; ``simulated`` times to the event have no end of follow-up.
    """
    rows, events = len(time), float(event.sum())
    ends = _ends_of_follow_up(time, event, len(simulated), rng)
    happened = (simulated <= ends).sum(axis=1).astype(float)
    lived = np.minimum(simulated, ends).sum(axis=1)
    if rows < MINIMUM_CELLS:
        return Counts(rows, {}, {})
    observed, made = {"follow-up": float(time.sum())}, {"follow-up": lived}
    if is_large(int(events), MINIMUM_CELLS) and is_large(int(rows - events), MINIMUM_CELLS):
        observed, made = {"events": events} | observed, {"events": happened} | made
    return Counts(rows, observed, made)


def _ends_of_follow_up(
    time: Float[np.ndarray, " rows"],
    event: Float[np.ndarray, " rows"],
    draws: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, "draws rows"]:
    """Return ends of follow-up: those that are known, else draws of later ones."""
    ends, counts = np.unique(time[event == 0], return_counts=True)
    at_risk = np.array([np.sum(time > end) for end in ends]) + counts  # events at an end are before
    left = np.concatenate([[1.0], np.cumprod(1 - counts / np.maximum(at_risk, 1))])
    later = np.searchsorted(ends, time, side="right")
    level = left[later] * rng.random((draws, len(time)))
    end_index = len(left) - np.searchsorted(left[::-1], level, side="right") - 1
    # beyond the last known end there is none: the event of every such row is seen
    return np.where(event == 0, time, np.append(ends, np.inf)[end_index])


def checked_counts(sums: Mapping[str, Counts], level: float) -> PredictiveCheck:
    """Return the table of shares and means, from the counts of every site, by its name."""
    lines = [line for site, counts in sums.items() for line in _lines(site, counts, level)]
    every = [counts for counts in sums.values() if counts.observed]
    first = every[0].observed if every else {}
    names = [name for name in first if all(name in counts.observed for counts in every)]
    names = [name for name in names if name != OTHERS]
    together = Counts(
        sum(counts.rows for counts in every),
        {name: sum(counts.observed[name] for counts in every) for name in names},
        {name: np.sum([counts.simulated[name] for counts in every], axis=0) for name in names},
    )
    return PredictiveCheck((*lines, *_lines(ALL, together, level)), None, level)


def _lines(site: str, one: Counts, level: float) -> list[Line]:
    return [
        line_of(site, name, seen / one.rows, one.simulated[name] / one.rows, level)
        for name, seen in one.observed.items()
    ]
