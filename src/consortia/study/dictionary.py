"""A data dictionary: columns with their bounds or levels, which make a registered study.

Between institutions nobody has all tables. Rows are made up from the dictionary, evenly within its
bounds or with the mean and the standard deviation that it states, and a formula, levels, centres
and scales are found from these as from any tables. So what a study registers depends on no patient.
"""

from __future__ import annotations

import contextlib
import csv
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import special

from consortia.core.arguments import unknown
from consortia.core.faults import Faults
from consortia.data.columns import as_levels
from consortia.data.tables import read_table
from consortia.errors import InputError
from consortia.models.regression.registration import UNKNOWN_ROWS, Registration
from consortia.models.regression.specification import Unit

if TYPE_CHECKING:
    from consortia.study.build import Study

ROWS = 420
"""Rows that are made up for a site: of up to seven levels, each equally many."""

SCALES = 4.0
"""Standard deviations between the bounds of a number: most values of a law lie within them."""

DIGITS = 2
"""Digits of a scale, and of a centre up to the same decimal: both are only coordinates."""

NEEDED = "column", "low", "high", "levels"
NUMBER, INTEGER, LEVELS, IDENTIFIER = KINDS = "number", "integer", "levels", "identifier"

ROWS_OF_ONE = 4
"""Made-up rows of a patient, or whatever an identifier is of."""


class Entry(NamedTuple):
    """A column of a data dictionary."""

    column: str  # its name in the sites' tables
    low: float = math.nan
    high: float = math.nan
    mean: float = math.nan  # as usual in such rows; NaN where the dictionary does not say
    sd: float = math.nan
    integer: bool = False  # whether its numbers are integers
    levels: tuple[str, ...] = ()  # of a number ()
    identifier: bool = False  # whether it names what several rows are of, such as a patient

    def values(self, rng: np.random.Generator) -> np.ndarray:
        """Return made-up values, (ROWS,): of integers all between the bounds, equally often."""
        if self.identifier:
            return np.array([f"made up {row // ROWS_OF_ONE}" for row in range(ROWS)], object)
        if self.levels:
            return rng.permutation(np.resize(np.array(self.levels, object), ROWS))
        if math.isfinite(self.sd):
            return rng.permutation(self._usual())
        if self.integer and self.high - self.low < ROWS:
            return rng.permutation(np.resize(np.arange(self.low, self.high + 1), ROWS).astype(int))
        away = np.linspace(-1, 1, ROWS)
        away *= (self.high - self.low) / SCALES / away.std()
        made = rng.permutation((self.low + self.high) / 2 + away)
        return made.round().astype(int) if self.integer else made

    def _usual(self) -> np.ndarray:
        """Return quantiles of the beta law between the bounds with this mean and sd."""
        width = self.high - self.low
        mean, variance = (self.mean - self.low) / width, (self.sd / width) ** 2
        size = mean * (1 - mean) / variance - 1  # a + b of the law
        even = (np.arange(ROWS) + 0.5) / ROWS
        made = self.low + width * special.betaincinv(mean * size, (1 - mean) * size, even)
        return made.round().astype(int) if self.integer else made


def read_dictionary(path: Path) -> dict[str, Entry]:
    """Read a data dictionary: a table with a line for each column, by name.

    Raises:
        InputError: it cannot be used; the message has every line with a fault.
    """
    table = read_table(path, "the data dictionary")
    for name in NEEDED:
        if name not in table:
            raise InputError(
                f"{path}: no column is named {name!r} ({unknown(name, list(table))}). A data "
                "dictionary has a line for each column of the sites' tables: column, low and high "
                "of a number, levels of words with | between them."
            )
    texts = {
        name: np.where(table[name].missing, "", as_levels(table[name])).tolist() for name in table
    }
    faults, entries = Faults(), dict[str, Entry]()
    source = table[NEEDED[0]].source
    for row, column in enumerate(texts["column"]):
        with faults.noted():
            line = {name: values[row].strip() for name, values in texts.items()}
            try:
                entry = _entry(line)
                if column in entries:
                    raise ValueError("the column has a line already")
            except ValueError as error:
                where = str(path) if source is None else source.row(row)
                fault = InputError(f"{where}: {column or 'no column'}: {error}.")
                raise fault.at(**({} if source is None else source.place(row))) from None
            entries[entry.column] = entry
    faults.check()
    return entries


def _entry(line: Mapping[str, str]) -> Entry:
    kind = line.get("type", "") or (LEVELS if line["levels"] else NUMBER)
    if not line["column"] or kind not in KINDS:
        raise ValueError(f"give its name, and as type one of {', '.join(KINDS)}, not {kind}")
    if kind == IDENTIFIER:
        if line["levels"] or line["low"] or line["high"]:
            raise ValueError("an identifier has neither levels nor bounds")
        return Entry(line["column"], identifier=True)
    if kind == LEVELS:
        levels = tuple(level.strip() for level in line["levels"].split("|"))
        if len({*levels} - {""}) < max(len(levels), 2) or line["low"] or line["high"]:
            raise ValueError(
                "give two different levels or more, as yes|no, and neither low nor high"
            )
        return Entry(line["column"], levels=levels)
    try:
        low, high = float(line["low"]), float(line["high"])
    except ValueError:
        raise ValueError(
            f"give low and high of a number, its levels, or the type {IDENTIFIER} where it names "
            "patients or wards"
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"low is {low:g} and high {high:g}: give low < high")
    mean = sd = math.nan
    if line.get("mean") or line.get("sd"):
        with contextlib.suppress(KeyError, ValueError):
            mean, sd = float(line["mean"]), float(line["sd"])
        if not (low < mean < high and 0 < sd < math.sqrt((mean - low) * (high - mean))):
            raise ValueError(
                "give both mean and sd, low < mean < high and sd < sqrt((mean - low)(high - mean))"
            )
    integer = kind == INTEGER
    if integer and (low, high) != (round(low), round(high)):
        raise ValueError(f"low is {low:g} and high {high:g}: give integers")
    return Entry(line["column"], low, high, mean, sd, integer)


def made_up(entries: Mapping[str, Entry], sites: Sequence[str], folder: Path) -> dict[str, Path]:
    """Write a made-up table for each site; return the files by site."""
    files = {}
    for number, site in enumerate(sites):
        rng = np.random.default_rng(number)
        columns = {name: entry.values(rng).tolist() for name, entry in entries.items()}
        files[site] = folder / f"{number}.csv"
        with files[site].open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return files


def registration_of(study: Study, entries: Mapping[str, Entry]) -> Registration:
    """Return levels, centres and scales of a study's formula, as a data dictionary has them.

    Raises:
        InputError: the formula has a column that is not in the dictionary, or cannot be registered.
    """
    question = study.model.question
    if question is None or study.data.files is None:
        raise InputError("a data dictionary registers a study with model.formula and data.files.")
    for name in question.columns:
        if name not in entries:
            raise InputError(
                f"formula: the data dictionary has no line for the column {name!r}: "
                f"{unknown(name, list(entries))}."
            ).at("formula")
    plain = study.model_copy(update={"harmonise": {}})  # what is made up agrees
    with tempfile.TemporaryDirectory() as folder:
        files = made_up(entries, study.data.site_names, Path(folder))
        built = plain.build(files=dict(enumerate(files.values())))
    assert built.regression is not None
    specification = built.regression.specification
    used = {name: entries[name] for name in question.columns}
    numbers = {name: entry for name, entry in used.items() if math.isfinite(entry.low)}
    ranges = {name: (entry.low, entry.high) for name, entry in numbers.items()}
    return replace(rounded(Registration.of(specification), rows=UNKNOWN_ROWS), ranges=ranges)


def rounded(registration: Registration, rows: int | None = None) -> Registration:
    """Return levels and units in which no number tells more of rows than a unit needs.

    ``rows`` take the place of those behind the numbers.
    """
    numbers = {}
    for name, unit in registration.numbers.items():
        digits = DIGITS - 1 - math.floor(math.log10(unit.sd))
        near = digits
        if unit.mean:  # a mean near 0, as of a rare event, keeps its own digits
            near = max(digits, DIGITS - 1 - math.floor(math.log10(abs(unit.mean))))
        behind = unit.rows if rows is None else rows
        mean, sd = round(unit.mean, near), round(unit.sd, digits)
        numbers[name] = Unit(mean, sd, behind)
    return replace(registration, numbers=numbers)
