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
from consortia.errors import InputError

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
            raise InputError(f"describe is {given!r}: give a dict, such as {{'cells': 5}}.")
        known = ("cells", "times", "by", "event", "causes", "treated")
        for name in given:
            if name not in known:
                raise InputError(f"describe: {name!r}: {unknown(str(name), known)}.")
        cells = minimum_cells("describe.cells", given.get("cells", MINIMUM_CELLS))
        times = agreed_times(given["times"]) if "times" in given else ()
        by, event, causes = given.get("by"), given.get("event"), given.get("causes")
        for name, value in (("by", by), ("event", event)):
            if value is not None and (not isinstance(value, str) or not times):
                raise InputError(
                    f"describe.{name} is {value!r}: name a column and also give times."
                )
        if (event is None) != (causes is None):
            raise InputError(
                "describe: give both event and causes (the names of its codes), or neither."
            )
        treated = given.get("treated")
        if treated is not None and not isinstance(treated, str):
            raise InputError(f"describe.treated is {treated!r}: give an expression of columns.")
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
        found = tuple(sorted((int(code), str(name)) for code, name in given.items()))
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            f"describe.causes is {given!r}: give names of codes, such as {{1: 'relapse', 2: "
            "'death'}."
        ) from None
    names = [name for _, name in found]
    if not 0 < len(found) <= KINDS_MAX or found[0][0] < 1 or len({*names}) < len(names):
        raise InputError(f"describe.causes: give 1 to {KINDS_MAX} codes > 0 with distinct names.")
    return found


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
        names = {"cells", "given", "missing", "levels", "numbers", "units", "followup"}
        names |= {"not_kept", "persons", "balance"}
        if isinstance(values, dict):  # runs of earlier versions have none of these
            values = {"not_kept": (0, 0), "persons": None, "balance": {}, **values}
        if not isinstance(values, dict) or values.keys() != names:
            raise ValueError("malformed description of participants")
        tables = [values[name] for name in ("missing", "levels", "numbers", "units", "balance")]
        if type(values["cells"]) is not int or not all(isinstance(one, dict) for one in tables):
            raise ValueError("malformed description of participants")
        for table in tables:
            if len(table) > COLUMNS_MAX or not all(map(is_name, table)):
                raise ValueError("the names of a description are not strings, or too many")
        missing, levels, numbers, units, balance = tables
        if not all(map(is_name, units.values())):
            raise ValueError("the units of a description are not strings")
        followup, persons = values["followup"], values["persons"]
        if persons is not None and (type(persons) is not int or persons < 0):
            raise ValueError("a number of persons is not an integer")
        return cls(
            values["cells"],
            None if values["given"] is None else _range(values["given"]),
            {name: _range(one) for name, one in missing.items()},
            {name: _cells(one) for name, one in levels.items()},
            {name: _numbers(one, 2) for name, one in numbers.items()},
            units,
            None if followup is None else SiteCounts.read(followup),
            _range(values["not_kept"]),
            persons,
            {name: _numbers(one, BALANCE_NUMBERS) for name, one in balance.items()},
        )


def _range(values: Any) -> Range:
    right = isinstance(values, (list, tuple)) and len(values) == 2
    if not right or not all(type(one) is int for one in values) or not 0 <= values[0] <= values[1]:
        raise ValueError("a range is not two counts in order")
    return (values[0], values[1])


def _cells(values: Any) -> Cells:
    right = isinstance(values, (list, tuple)) and len(values) == 2 and isinstance(values[0], dict)
    if not right or len(values[0]) > LEVELS_MAX or not all(map(is_name, values[0])):
        raise ValueError("the cells of a column are not counts by name")
    if not all(type(one) is int and one >= 0 for one in (*values[0].values(), values[1])):
        raise ValueError("a cell of a column is not a number of rows")
    return Cells(values[0], values[1])


def _numbers(values: Any, count: int) -> Any:
    right = isinstance(values, (list, tuple)) and len(values) == count
    if not right or not all(type(one) in (int, float) and math.isfinite(one) for one in values):
        raise ValueError(f"the statistics of a column are not {count} numbers")
    return tuple(map(float, values))


def counts_of(texts: np.ndarray, persons: np.ndarray | None = None) -> dict[str, int]:
    """Count the rows of each string, or the persons that they stand for."""
    names, place = np.unique(texts, return_inverse=True)
    counts = np.bincount(place, persons, len(names))
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
    known = ~column.missing
    if column.kind in ("number", "date") and not levels:
        first = np.unique(column.values[known][:LOOKED_AT])
        if len(first) > MOST_LEVELS or len(np.unique(column.values[known])) > MOST_LEVELS:
            return None
    of_rows = np.ones(len(known)) if persons is None else persons
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
