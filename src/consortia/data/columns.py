"""Tables of named columns as people have them: text, booleans, dates, and missing values.

A table maps names to a `Column`; `consortia.data.tables` makes one from a file or a frame. What
several sites must agree on is for `consortia.data.facts`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from consortia.core.arguments import one_of, unknown
from consortia.core.printable import is_printable
from consortia.data.mending import rows_text
from consortia.data.preparation import Moments
from consortia.data.received import expect, read_fields
from consortia.errors import InputError

Kind = Literal["number", "truth", "date", "text", "empty"]

POLICIES = ("refuse", "complete", "indicator", "impute")
"""Treatments of rows in which a value is missing."""

COLUMNS_MAX, LEVELS_MAX, NAME_MAX = 10_000, 10_000, 1000
"""Most columns of one table; a message of another process with more is refused."""

GUESSES_MAX = 1000
"""Most guesses of one site."""


class Guess(NamedTuple):
    """One thing that was taken to mean something when a column was read."""

    column: str  # its name
    text: str  # what was taken for what, a sentence
    confirm: str = ""  # what confirms it or mends it; "" where there is nothing to confirm
    rows: int = 0  # in how many rows

    def __str__(self) -> str:
        """Return the sentence, with what confirms it."""
        return f"{self.text}; {self.confirm}" if self.confirm else self.text


class Source(NamedTuple):
    """Source of a column."""

    name: str  # of the file, or of the site
    site: str = ""  # name of the site, "" where it is not known
    lines: np.ndarray | None = None  # of the file, (rows,), or None: rows are then counted from 1
    unit: str = "line"  # what is counted

    def row(self, index: int) -> str:
        """Describe the place of a row in words."""
        return f"{self.name}, {self.at(index)}"

    def place(self, row: int) -> dict[str, Any]:
        """Return site, file and line of a row, for `consortia.errors.ConsortiaError.at`."""
        if self.lines is None:
            return {"site": self.site}
        return {"site": self.site, "file": self.name, "line": int(self.lines[row])}

    def at(self, index: int) -> str:
        """Describe the place of a row in its file in words."""
        if self.lines is None:
            return f"row {index + 1}"
        return f"{self.unit} {int(self.lines[index])}"

    def take(self, rows: np.ndarray) -> Source:
        """Return the places of some of the rows, by index or by mask."""
        if self.lines is not None:
            return self._replace(lines=self.lines[rows])
        count = len(rows) if rows.dtype == bool else int(rows.max(initial=-1)) + 1
        return self._replace(lines=np.arange(1, count + 1)[rows], unit="row")


class Column(NamedTuple):
    """One column of a table."""

    kind: Kind  # what it holds; "empty" where every value misses
    # float64 (rows,): numbers, 0 and 1, days since 1970; strings where the kind is "text".
    # Anything where a value misses.
    values: np.ndarray
    missing: np.ndarray  # bool (rows,)
    doubt: str = ""  # why it is not a term without ``C(...)``, or ""
    # of numbers and dates the strings or integers as they were read, (rows,), of which levels and
    # groups are made; None: they are made of the values
    given: np.ndarray | None = None
    # levels of a column that was declared to have them (`pandas.Categorical`), or ()
    order: tuple[str, ...] = ()
    ordered: bool = False  # whether their order means something
    guesses: tuple[Guess, ...] = ()  # what was taken for what
    source: Source | None = None  # where it was read, or None
    # rows whose value misses because of a word such as NA, (rows,); None where none does
    words: np.ndarray | None = None

    def take(self, rows: np.ndarray) -> Column:
        """Return some of the rows, by index or by mask."""
        if rows.dtype == bool and rows.all():
            return self
        given = None if self.given is None else self.given[rows]
        words = None if self.words is None else self.words[rows]
        source = None if self.source is None else self.source.take(rows)
        return self._replace(
            values=self.values[rows],
            missing=self.missing[rows],
            given=given,
            source=source,
            words=words,
        )

    def with_levels(self, levels: Sequence[str]) -> Column:
        """Return the column in which words that name a level do not miss."""
        if self.given is None or self.words is None:
            return self
        return self._with_words(self.words & np.isin(_texts(self.given), levels), ())

    def as_words(self, guess_of: Callable[[str, int], Guess]) -> Column:
        """Return a column of which levels alone are used: words such as NA are levels, too.

        ``guess_of`` returns what is said of a word in so many rows.
        """
        if self.given is None or self.words is None or not self.words.any():
            return self
        counts = Counter(self.given[self.words].tolist())
        return self._with_words(self.words, [guess_of(*pair) for pair in counts.items()])

    def _with_words(self, words: np.ndarray, guesses: Sequence[Guess]) -> Column:
        if self.given is None or not words.any():
            return self
        texts = np.where(words, _texts(self.given), as_levels(self))
        return self._replace(
            kind="text",
            values=texts,
            missing=self.missing & ~words,
            given=None,
            guesses=tuple(guesses),
            words=None,
        )


Table = Mapping[str, Column]


class LazyTable(Mapping[str, Column]):
    """A table whose columns are parsed on their first use.

    Args:
        makers: what parses a column, by its name.
        rows: how many there are.
        head: where the names of the columns are, in words.
    """

    def __init__(
        self, makers: Mapping[str, Callable[[], Column]], rows: int, head: str = ""
    ) -> None:
        self.makers, self.rows, self.head = dict(makers), rows, head
        self._made: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self._made:
            self._made[name] = self.makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)

    def __len__(self) -> int:
        return len(self.makers)

    def take(self, rows: np.ndarray) -> LazyTable:
        """Return some of the rows, by index."""

        def taken(name: str) -> Callable[[], Column]:
            return lambda: self[name].take(rows)

        return LazyTable({name: taken(name) for name in self.makers}, len(rows), self.head)


def rows_of(table: Table) -> int:
    """Return the number of rows."""
    if isinstance(table, LazyTable):
        return table.rows
    return len(next(iter(table.values())).values)


def column_of(table: Table, name: str, where: str) -> Column:
    """Return a column by its name; refuse an unknown one with the nearest."""
    if name not in table:
        raise InputError(f"{where}: {name!r} is not a column: {unknown(name, table)}.").at(name)
    return table[name]


def as_levels(column: Column) -> np.ndarray:
    """Return the values of a column as names of levels; those that miss are ""."""
    if column.kind == "text":
        return column.values
    if column.kind == "truth":
        names = np.where(column.values > 0, "True", "False")
    elif column.given is not None:
        names = _texts(column.given)
    else:
        names = np.array([level(value) for value in column.values.tolist()], dtype=str)
    return np.where(column.missing, "", names)


def coded_levels(column: Column) -> tuple[list[str], np.ndarray]:
    """Return the names of the levels of a column, and their indices by row; -1 where one misses."""
    given = column.values if column.given is None else column.given
    if column.kind == "truth":
        given = column.values > 0
    different, inverse = np.unique(given[~column.missing], return_inverse=True)
    names = np.array([level(value) for value in different.tolist()], dtype=str)
    order = np.argsort(names)
    codes = np.full(len(given), -1)
    codes[~column.missing] = np.argsort(order)[inverse]
    return names[order].tolist(), codes


def _texts(given: np.ndarray) -> np.ndarray:
    """Return strings or integers as strings; NumPy does not cast a ``StringDType`` to them."""
    return np.array(given.tolist(), dtype=str)


def level(value: Any) -> str:
    """Return the name of a level, of a number without a needless ".0"."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value)


@dataclass(frozen=True)
class TableFacts:
    """Facts that a formula needs of a table at one site; plain values, and no row is among them."""

    given: int  # rows, before those with missing values were left out
    kinds: Mapping[str, Kind]  # of the columns that are used, by name
    missing: Mapping[str, int]  # how many values of each miss
    # `consortia.data.preparation.Moments.plain` of values (rows,), by expression
    moments: Mapping[str, Any]
    levels: Mapping[str, tuple[str, ...]]  # of factors, by expression
    # of columns that were declared to have levels, whether these are ordered
    declared: Mapping[str, bool] = field(default_factory=dict)
    guesses: tuple[Guess, ...] = ()  # what was taken for what: `Guess`
    # of columns of groups, their number (0: not sent) and keyed digests of their labels
    groups: Mapping[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    not_kept: int = 0  # rows that the study's ``keep`` leaves out; they are none of ``given``

    @classmethod
    def read(cls, values: Any) -> TableFacts:
        """Return facts that another process sent; nothing in them is taken on trust.

        Raises:
            ValueError: the values are no facts; the text holds none of them.
        """
        facts = read_fields(cls, values, "these are no facts of a table")
        given, names = facts["given"], "the names of a table are not strings, or too many"
        expect(given >= 1 and facts["not_kept"] >= 0, "these are no facts of a table")
        for name in ("kinds", "missing", "moments", "levels", "declared", "groups"):
            expect(len(facts[name]) <= COLUMNS_MAX and all(map(is_name, facts[name])), names)
        most = max(facts["missing"].values(), default=0)
        expect(most <= given, "there are more missing values than rows")
        expect(min(facts["missing"].values(), default=0) >= 0, "a number of rows is negative")
        for plain in facts["moments"].values():
            rows: Any = plain[0] if isinstance(plain, list) and plain else None
            expect(type(rows) is int and 0 < rows <= given, "the moments are not those of the rows")
            Moments.check_plain(plain, rows, None)
        for levels in facts["levels"].values():
            expect(len(levels) <= LEVELS_MAX, f"a factor has more than {LEVELS_MAX} levels")
            distinct = all(map(is_name, levels)) and len(set(levels)) == len(levels)
            expect(distinct, "the levels of a factor are not distinct strings")
        expect(len(facts["guesses"]) <= GUESSES_MAX, f"there are more than {GUESSES_MAX} guesses")
        for guess in facts["guesses"]:
            right = all(map(is_name, guess[:3])) and 0 <= guess.rows <= given
            expect(right, "a guess is not three strings and a number of rows")
        for count, digests in facts["groups"].values():
            right = 0 <= count <= given and len(digests) <= given and all(map(is_name, digests))
            expect(right, "groups are not a number and digests")
        return cls(**facts)


class TableError(InputError):
    """A table that cannot be used.

    Attributes:
        known: what it tells nevertheless, to be compared with other sites' tables; None where it
            cannot be read.
    """

    def __init__(self, text: str, known: TableFacts | None = None) -> None:
        super().__init__(text)
        self.known = known


def is_name(value: Any) -> bool:
    """Return True for a printable string of at most `NAME_MAX` characters."""
    return isinstance(value, str) and len(value) <= NAME_MAX and is_printable(value)


# --- missing values ------------------------------------------------------------------------------


def without_missing(
    table: Table, columns: Sequence[str], always: Sequence[str], policy: str, where: str
) -> Table:
    """Return the rows that a policy keeps, all columns of them.

    Args:
        table: the rows.
        columns: those that are used.
        always: of these, the ones (the response) in which no policy can do without a value.
        policy: ``"refuse"`` rows with a missing value, keep the ``"complete"`` ones, or keep all
            that have the ``always`` columns (``"indicator"``, ``"impute"``).
        where: what the table is, for the messages.

    Raises:
        InputError: a value misses and the policy is to refuse, or no row is left.
    """
    one_of("missing", policy, POLICIES)
    counts = {name: int(table[name].missing.sum()) for name in columns}
    if policy == "refuse" and any(counts.values()):
        gaps = ", ".join(f"{name!r} {count}" for name, count in counts.items() if count)
        raise InputError(
            f"{where}: values are missing in {gaps} of {rows_of(table)} rows. Give "
            "missing='complete' to leave these rows out, missing='indicator' to keep them with "
            "an indicator column, or missing='impute' for multiple imputation at the site."
        ).at(next(name for name, count in counts.items() if count))
    needed = columns if policy == "complete" else always
    kept = ~np.any([table[name].missing for name in needed], axis=0)
    if not kept.any():
        worst = max(needed, key=lambda name: counts[name])
        remedy = "leave the column or the site out"
        if policy == "complete" and worst not in always:
            remedy += ", or give missing='indicator' or 'impute'"
        raise InputError(
            f"{where}: no row is complete; {worst!r} has no value in {counts[worst]} of "
            f"{rows_text(rows_of(table))}: {remedy}."
        ).at(worst)
    return {name: column.take(kept) for name, column in table.items()}
