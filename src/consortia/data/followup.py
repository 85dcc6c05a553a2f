"""Follow-up at a site: counts of its ends between agreed times, none of them small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.data.cells import split
from consortia.data.received import expect, read_fields
from consortia.errors import wrong

TIMES_MAX, STRATA_MAX, KINDS_MAX = 200, 50, 20

TIED = 1e-9
"""Share of the mean time by which times may differ and be equal."""


@dataclass(frozen=True)
class SiteCounts:
    """Follow-up at a site."""

    # numbers of agreed intervals after which a sent one ends; () where even all together have a
    # cell that is too small
    ends: tuple[int, ...]
    # by stratum, of each sent interval the ends of follow-up and then the events of each kind,
    # (sent, 1 + kinds)
    counts: Mapping[str, tuple[tuple[int, ...], ...]]
    # numbers of agreed intervals to which ends of follow-up were put off, because there were few of
    # them before
    ended: tuple[int, ...] = ()

    @classmethod
    def read(cls, values: Any) -> SiteCounts:
        """Return counts that another process sent; nothing in them is taken on trust.

        Raises:
            ValueError: the values are no counts.
        """
        fields = read_fields(cls, values, "these are no counts of follow-up")
        ends, counts = fields["ends"], fields["counts"]
        expect(len(counts) <= STRATA_MAX, "these are no counts of follow-up")
        for numbers in (ends, fields["ended"]):
            rising = list(numbers) == sorted({*numbers})
            right = not numbers or (rising and numbers[0] >= 1 and numbers[-1] <= TIMES_MAX + 1)
            expect(right, "the ends of intervals do not increase")
        expect(ends[-1:] == fields["ended"][-1:], "the ends of intervals are not those of all")
        for rows in counts.values():
            expect(all(min(row, default=0) >= 0 for row in rows), "a count is not a number of rows")
            right = len(rows) == len(ends) and len({*map(len, rows)}) <= 1
            right = right and len(rows[0] if rows else ()) <= 1 + KINDS_MAX
            expect(right, "there are not as many counts as intervals")
        return cls(**fields)

    def fits(self, times: int, kinds: int) -> bool:
        """Return True if the counts are of so many agreed times and kinds of events."""
        widths = {len(row) for rows in self.counts.values() for row in rows}
        return (not self.ends or self.ends[-1] == times + 1) and widths <= {1 + kinds}


def tied_times(times: np.ndarray) -> np.ndarray:
    """Return times of which those that differ by rounding only are equal, the earliest of them.

    Days / 365.25, computed in two ways, differ in the last digits, which would break ties.
    """
    if not times.size:
        return times
    distinct, inverse = np.unique(times, return_inverse=True)
    apart = np.diff(distinct) > TIED * np.abs(distinct).mean()
    first = np.flatnonzero(np.concatenate([[True], apart]))
    which = np.concatenate([[0], np.cumsum(apart)])
    return distinct[first[which]][inverse].reshape(times.shape)


def agreed_times(times: Any) -> tuple[float, ...]:
    """Return times that all sites agree on.

    Raises:
        InputError: they are none, not above 0, not increasing or too many.
    """
    if isinstance(times, (str, bytes)) or not isinstance(times, Sequence):
        raise wrong("times", f" is {times!r}: give a list of times > 0 that increase.")
    agreed = tuple(arguments.positive("times", float(time)) for time in times)
    if not 0 < len(agreed) <= TIMES_MAX or list(agreed) != sorted({*agreed}):
        raise wrong("times", f": give 1 to {TIMES_MAX} times > 0 that increase.")
    return agreed


def site_counts(
    time: np.ndarray,
    kind: np.ndarray,
    strata: Mapping[str, np.ndarray],
    times: Sequence[float],
    kinds: int,
    least: int,
    persons: np.ndarray | None = None,
) -> SiteCounts:
    """Count rows by stratum, interval and end, in cells of ``least`` or more.

    Args:
        time: of each row the event or the end of its follow-up.
        kind: 0 where follow-up ended, else 1, ..., kinds of the event.
        strata: which rows are in which stratum; a row is in one.
        times: agreed; beyond the last one is an interval of its own.
        kinds: of events.
        least: fewest rows of a cell that has any.
        persons: how many each row stands for; None: one.
    """
    intervals = np.searchsorted(times, time, side="left")
    cells = np.zeros((len(times) + 1, len(strata), 1 + kinds), int)
    for number, rows in enumerate(strata.values()):
        counted = 1 if persons is None else persons[rows].astype(int)
        np.add.at(cells[:, number], (intervals[rows], kind[rows].astype(int)), counted)
    cells, ended = put_off(cells, least)
    ends = split(cells, least)
    begins = [0, *ends[:-1]]
    sums = [cells[begin:end].sum(axis=0) for begin, end in zip(begins, ends, strict=False)]
    counts = {
        name: tuple(tuple(interval_sum[number].tolist()) for interval_sum in sums)
        for number, name in enumerate(strata)
        if ends
    }
    return SiteCounts(tuple(ends), counts, tuple(ended) if ends else ())


def put_off(cells: np.ndarray, least: int) -> tuple[np.ndarray, list[int]]:
    """Return cells whose ends of follow-up come later where they are few, and when they come.

    Few ends between two times then leave the events between them to be sent. ``cells`` are
    (intervals, strata, 1 + kinds), the ends of follow-up first.
    """
    ended = split(cells[..., :1], least)
    moved = cells.copy()
    for begin, end in zip([0, *ended[:-1]], ended, strict=False):
        moved[begin:end, :, 0] = 0
        moved[end - 1, :, 0] = cells[begin:end, :, 0].sum(axis=0)
    return moved, ended
