"""Description of a site's participants: counts, means and spreads, none of a small cell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consortia.core.arguments import unknown
from consortia.data.cells import MINIMUM_CELLS, Cells, Range, merged, minimum_cells
from consortia.data.columns import COLUMNS_MAX, LEVELS_MAX, Column, as_levels, is_name
from consortia.data.followup import KINDS_MAX, SiteCounts, agreed_times
from consortia.data.patterns import LOOKED_AT, MOST_LEVELS
from consortia.data.received import expect, read_fields
from consortia.errors import InputError, wrong

ALL = "all"
"""The stratum of all rows."""

EVENT, ENDED = "event", "end of follow-up"
DIGITS = 2
"""Decimals of a standard deviation to which means and spreads leave a site."""


Balance = dict[str, tuple[float, ...]]
"""Mean, spread and weighted mean of treated rows, then of the others, by covariate."""

BALANCE_NUMBERS = 6
"""Numbers of an entry of a balance."""


@dataclass(frozen=True)
class Wanted:
    """Description requested of every site's participants, beside what the formula says.

    Raises:
        InputError: an argument cannot be used.
    """

    cells: int = MINIMUM_CELLS  # fewest rows of a cell that leaves a site: 1, or at least 3
    times: tuple[float, ...] = ()  # at which follow-up is reported, of a time to an event
    by: str | None = None  # a categorical column, each level of which has a curve of its own
    # a column of codes, 0 where follow-up ended; when None the event of the formula
    event: str | None = None
    causes: tuple[tuple[int, str], ...] = ()  # names of the codes of ``event``
    treated: str | None = None  # expression that is true of rows whose balance is reported

    @classmethod
    def read(cls, given: Any) -> Wanted:
        """Check a dict that a user gives, and return its values."""
        if not isinstance(given, Mapping):
            raise wrong("describe", f" is {given!r}: give a dict, such as {{'cells': 5}}.")
        known = ("cells", "times", "by", "event", "causes", "treated")
        for name in given:
            if name not in known:
                raise wrong("describe", f": {name!r}: {unknown(str(name), known)}.")
        cells = minimum_cells("describe.cells", given.get("cells", MINIMUM_CELLS))
        times = agreed_times(given["times"]) if "times" in given else ()
        by, event, causes = given.get("by"), given.get("event"), given.get("causes")
        for name, value in (("by", by), ("event", event)):
            if value is not None and (not isinstance(value, str) or not times):
                raise InputError(
                    f"describe.{name} is {value!r}: name a column and also give times."
                ).at(f"describe.{name}")
        if (event is None) != (causes is None):
            raise InputError(
                "describe: give both event and causes (the names of its codes), or neither."
            ).at("describe")
        treated = given.get("treated")
        if treated is not None and not isinstance(treated, str):
            raise wrong("describe.treated", f" is {treated!r}: give an expression of columns.")
        return cls(cells, times, by, event, () if causes is None else _causes(causes), treated)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds of events."""
        return tuple(name for _, name in self.causes) or (EVENT,)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are looked at beside those of the formula."""
        return tuple(name for name in (self.by, self.event) if name is not None)


def _causes(given: Any) -> tuple[tuple[int, str], ...]:
    try:
        causes = tuple(sorted((int(code), str(name)) for code, name in given.items()))
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            f"describe.causes is {given!r}: give names of codes, such as {{1: 'relapse', 2: "
            "'death'}."
        ).at("describe.causes") from None
    names = [name for _, name in causes]
    if not 0 < len(causes) <= KINDS_MAX or causes[0][0] < 1 or len({*names}) < len(names):
        raise wrong("describe.causes", f": give 1 to {KINDS_MAX} codes > 0 with distinct names.")
    return causes


@dataclass(frozen=True)
class SiteDescription:
    """Description of a site's participants; plain values, as in JSON."""

    cells: int  # fewest rows of a cell
    # range of the number of rows that were read; None where it would tell a small cell
    given: Range | None
    missing: Mapping[str, Range]  # by column, the range of the number of rows in which it misses
    # by column, counts of its levels among the analysed rows, and of all others together
    levels: Mapping[str, Cells]
    # by column, mean and standard deviation over the analysed rows that have a value
    numbers: Mapping[str, tuple[float, float]]
    # what the counts of a column are of, where they are not rows
    units: Mapping[str, str] = field(default_factory=dict)
    followup: SiteCounts | None = None  # counts between the agreed times
    not_kept: Range = (0, 0)  # range of the number of rows that the study's ``keep`` leaves out
    # persons of the analysed rows, of whom then are all counts; None where each row is one
    persons: int | None = None
    # of treated and other rows before and with weights, see `Balance`
    balance: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, values: Any) -> SiteDescription:
        """Return a description that another process sent; nothing in it is taken on trust.

        Raises:
            ValueError: the values are no description.
        """
        if isinstance(values, dict):  # runs of earlier versions have none of these
            values = {"not_kept": (0, 0), "persons": None, "balance": {}, **values}
        text = "malformed description of participants"
        parts = read_fields(cls, values, text, followup=SiteCounts.read)
        for name in ("missing", "levels", "numbers", "units", "balance"):
            right = len(parts[name]) <= COLUMNS_MAX and all(map(is_name, parts[name]))
            expect(right, "the names of a description are not strings, or too many")
        expect(all(map(is_name, parts["units"].values())), "the units of a column are no names")
        expect((parts["persons"] or 0) >= 0, "a number of persons is negative")
        for low, high in (parts["given"] or (0, 0), parts["not_kept"], *parts["missing"].values()):
            expect(0 <= low <= high, "a range is not two counts in order")
        for cells in parts["levels"].values():
            right = len(cells.counts) <= LEVELS_MAX and all(map(is_name, cells.counts))
            expect(right, "the cells of a column are not counts by name")
            least = min(cells.rest, *cells.counts.values(), 0)
            expect(least >= 0, "a cell of a column is not a number of rows")
        for count, name in ((2, "numbers"), (BALANCE_NUMBERS, "balance")):
            for of_column in parts[name].values():
                right = len(of_column) == count and all(map(math.isfinite, of_column))
                expect(right, f"the statistics of a column are not {count} numbers")
        return cls(**parts)


def counts_of(texts: np.ndarray, persons: np.ndarray | None = None) -> dict[str, int]:
    """Count the rows of each string, or the persons that they stand for."""
    names, indices = np.unique(texts, return_inverse=True)
    counts = np.bincount(indices, persons, len(names))
    return dict(zip(names.tolist(), map(round, counts.tolist()), strict=True))


def column_cells(
    column: Column, levels: tuple[str, ...], least: int, persons: np.ndarray | None = None
) -> Cells | None:
    """Return the cells of a column's levels; None of a column of measurements.

    A number with few distinct values counts as levels: of them mean and spread tell how many rows
    have each.

    Args:
        column: rows that are analysed; what misses is a cell, which has no name.
        levels: that the column may have, where they are known.
        least: fewest rows of a cell.
        persons: how many each row stands for; None: one.
    """
    of_rows = np.ones(len(column.missing)) if persons is None else persons
    known = ~column.missing & (of_rows > 0)
    if column.kind in ("number", "date") and not levels:
        first = np.unique(column.values[known][:LOOKED_AT])
        if len(first) > MOST_LEVELS or len(np.unique(column.values[known])) > MOST_LEVELS:
            return None
    counts = dict.fromkeys(levels, 0) | counts_of(as_levels(column)[known], of_rows[known])
    if gaps := round(float(of_rows[column.missing].sum())):
        counts |= {"": gaps}
    reported = merged(counts, least)
    return Cells({name: count for name, count in reported.counts.items() if name}, reported.rest)


def mean_and_sd(
    values: np.ndarray, least: int, persons: np.ndarray | None = None
) -> tuple[float, float] | None:
    """Return mean and standard deviation, rounded; None of fewer than twice ``least`` values.

    ``persons`` are how many each value stands for.
    """
    count = len(values) if persons is None else persons.sum()
    if count < max(2 * least, 2):
        return None
    if persons is None:
        mean, sd = float(values.mean()), float(values.std(ddof=1))
    else:
        mean = float(np.average(values, weights=persons))
        sd = float(np.sqrt(persons @ (values - mean) ** 2 / (count - 1)))
    if not (math.isfinite(mean) and math.isfinite(sd) and sd > 0):
        return None
    if least == 1:
        return (mean, sd)
    digits = DIGITS - math.floor(math.log10(sd))
    return (round(mean, digits), round(sd, digits))
