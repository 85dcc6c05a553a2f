"""Posterior predictive checks of levels and of times to an event, from counts by site.

Of a response of levels the share of each is compared with that of simulated responses; of a time
the share of events and the mean follow-up. A simulated time ends, as those of the rows did, with
the event or with the follow-up: of a row without an event that is known, of one with an event it is
drawn from the Kaplan-Meier estimate of the site's ends of follow-up, given that it is later. A
person of several intervals lives through one after the other, up to an event in one of them.

Of a site no count below the least of `consortia.data.cells` is shown, nor one from which it
follows; of all sites together those counts that every site shows, sites without any left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from consortia.data.cells import MINIMUM_CELLS, is_large, merged
from consortia.models.regression.checking import ALL, Line, PredictiveCheck, line_of

OTHERS = "other levels"


class Counts(NamedTuple):
    """Counts of a site, observed and in the simulated responses."""

    rows: int  # of the site, or its persons
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
    start: Float[np.ndarray, " rows"] | None = None,
    person: Int[np.ndarray, " rows"] | None = None,
) -> Counts:
    """Return events and follow-up of persons, observed and simulated.

    Args:
        time: of the event, or of the end of a row.
        event: 1 where one was seen.
        simulated: times to the event after each row's start, without an end of follow-up.
        rng: of the ends of follow-up that nobody knows.
        start: of each row; 0 when None.
        person: index of the person of each row; None: each is one.
    """
    start = np.zeros(len(time)) if start is None else start
    person = np.arange(len(time)) if person is None else person
    order = np.lexsort((start, person))
    time, event, start, person = (part[order] for part in (time, event, start, person))
    persons, ill = len(np.unique(person)), len(np.unique(person[event > 0]))
    last = np.append(np.diff(person) > 0, True)
    if (event[~last] > 0).any():  # events recur, and a person stays at risk after one
        last, person = np.ones(len(time), bool), np.arange(len(time))
    ends = _ends_of_follow_up(start, time, event, last, len(simulated), rng)
    happened = simulated[:, order] <= ends
    earlier: Int[np.ndarray, "draws rows"] = np.cumsum(happened, axis=1) - happened
    first = np.searchsorted(person, person)  # the first interval of each row's person
    alive: Bool[np.ndarray, "draws rows"] = earlier == earlier[:, first]
    lived = np.sum(alive * (np.minimum(simulated[:, order], ends) - start), axis=1)
    if persons < MINIMUM_CELLS:
        return Counts(persons, {}, {})
    observed, made = {"follow-up": float(np.sum(time - start))}, {"follow-up": lived}
    if is_large(ill, MINIMUM_CELLS) and is_large(persons - ill, MINIMUM_CELLS):
        observed = {"events": float(event.sum())} | observed
        made = {"events": np.sum(alive & happened, axis=1).astype(float)} | made
    return Counts(persons, observed, made)


def _ends_of_follow_up(
    start: Float[np.ndarray, " rows"],
    time: Float[np.ndarray, " rows"],
    event: Float[np.ndarray, " rows"],
    last: Bool[np.ndarray, " rows"],
    draws: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, "draws rows"]:
    """Return ends of rows: those that are known, else draws of later ends of follow-up."""
    known = event == 0
    ends, counts = np.unique(time[known & last], return_counts=True)
    # events at an end are before it
    under = [np.sum((start < end) & ((time > end) | ((time == end) & known))) for end in ends]
    left = np.concatenate([[1.0], np.cumprod(1 - counts / np.maximum(under, 1))])
    later = np.searchsorted(ends, time, side="right")
    level = left[later] * rng.random((draws, len(time)))
    end_index = len(left) - np.searchsorted(left[::-1], level, side="right") - 1
    # beyond the last known end there is none: the event of every such row is seen
    return np.where(known, time, np.append(ends, np.inf)[end_index])


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


def _lines(site: str, counts: Counts, level: float) -> list[Line]:
    return [
        line_of(site, name, seen / counts.rows, counts.simulated[name] / counts.rows, level)
        for name, seen in counts.observed.items()
    ]
