"""Persons that the rows of a site stand for.

Rows are persons unless a weight says how many equal persons each is, or a column names the person
of each interval of ``Surv(start, stop, event)``, who is then counted once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consortia.data.columns import Table, as_levels, column_of, rows_of
from consortia.errors import InputError
from consortia.models.regression.question import Question


@dataclass(frozen=True)
class Persons:
    """Persons of the rows of a table, those that are not analysed included."""

    frequencies: np.ndarray | None  # equal persons that each row stands for, or None
    labels: np.ndarray | None  # index of the person of each row, or None

    @property
    def are_rows(self) -> bool:
        """True if each row is a person."""
        return self.frequencies is None and self.labels is None

    def number(self, rows: np.ndarray) -> int:
        """Count the persons with at least one of some rows, a mask."""
        if self.labels is not None:
            return len(np.unique(self.labels[rows]))
        return int(np.sum(rows) if self.frequencies is None else self.frequencies[rows].sum())

    def weights(self, rows: np.ndarray, starts: np.ndarray) -> np.ndarray | None:
        """Count the persons that each of some rows describes; None where each is one.

        A person's first interval describes the person; ``starts`` are the beginnings of the rows.
        """
        if self.labels is None:
            return None if self.frequencies is None else self.frequencies[rows]
        labels = self.labels[rows]
        first = np.lexsort((starts, labels))
        first = first[np.concatenate([[True], np.diff(labels[first]) > 0])]
        return np.isin(np.arange(len(labels)), first).astype(float)


@dataclass(frozen=True)
class Followed:
    """Follow-up of persons up to their first event."""

    time: np.ndarray  # of the first event, or the end of follow-up, (persons,)
    duration: np.ndarray  # sum of the lengths of a person's intervals, (persons,)
    kind: np.ndarray  # of the first event, 0 where there was none, (persons,)
    events: np.ndarray  # number of events of each person, (persons,)
    gapless: bool  # whether everybody is followed from time 0 without a gap
    first: np.ndarray  # index of a person's first interval among the rows, (persons,)


def followed(
    labels: np.ndarray | None, start: np.ndarray, stop: np.ndarray, kind: np.ndarray
) -> Followed:
    """Return the follow-up of persons from intervals; each row is a person without ``labels``.

    Args:
        labels: index of the person of each interval.
        start: beginnings of the intervals.
        stop: their ends.
        kind: of the event at an end, 0 where there is none.
    """
    labels = np.arange(len(stop)) if labels is None else labels
    order = np.lexsort((start, labels))
    _, first = np.unique(labels[order], return_index=True)
    ends = np.append(first[1:], len(order)) - 1
    start, stop, kind = start[order], stop[order], kind[order]
    person = np.repeat(np.arange(len(first)), ends - first + 1)
    events = np.bincount(person[kind > 0], minlength=len(first))
    at_event = ends.copy()  # the interval with which a person's time to the first event ends
    seen = np.flatnonzero(kind > 0)[::-1]
    at_event[person[seen]] = seen  # the earliest is written last
    joined = np.append([True], start[1:] == stop[:-1])
    joined[first] = start[first] == 0
    return Followed(
        time=stop[at_event],
        duration=np.bincount(person, stop - start, len(first)),
        kind=kind[at_event],
        events=events,
        gapless=bool(joined.all()),
        first=order[first],
    )


def persons_of(question: Question, table: Table, rows: np.ndarray, where: str) -> Persons:
    """Return the persons of all rows of a table, of which ``rows`` are analysed.

    Raises:
        InputError: an analysed row has no person.
    """
    if question.persons is not None:
        column = column_of(table, question.persons, where)
        if missing := int(column.missing[rows].sum()):
            raise InputError(
                f"{where}: persons {question.persons!r}: {missing} analysed rows have no value: "
                "every interval needs its person."
            ).at("persons")
        return Persons(None, np.unique(as_levels(column), return_inverse=True)[1])
    if "weights" not in question.extra or question.samples:
        return Persons(None, None)
    weights = question.extra["weights"].values(table, where)
    if (weights[rows] != np.round(weights[rows])).any():
        return Persons(None, None)
    counts = np.isfinite(weights) & (weights >= 0)  # a row with another weight is one row
    return Persons(np.where(counts, np.round(weights), 1.0), None)


def once_each(question: Question, kept: Table, where: str) -> np.ndarray:
    """Return 1 for the first interval of each person, and 0 for the others, (rows,)."""
    rows = np.ones(rows_of(kept), bool)
    starts = question.entries(kept, where)
    weights = persons_of(question, kept, rows, where).weights(rows, starts)
    return np.ones(len(rows)) if weights is None else weights
