"""Tables of named columns as people have them: text, truth values, dates, and values that miss.

A table is a dict of `Column`; it comes from a file (CSV of the common dialects, Parquet, Feather,
npz), a DataFrame, an Arrow table or a dict of arrays. Nothing is guessed from more than one file:
what several sites must agree on is for `consortia.data.facts`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from consortia.core.arguments import one_of, unknown
from consortia.core.printable import is_printable
from consortia.data.preparation import Moments
from consortia.errors import InputError

Kind = Literal["number", "truth", "date", "text", "empty"]

MISSING = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", ".", "#N/A"})
"""What a file writes for a value that misses."""

SEPARATORS = (",", ";", "\t", "|")
POLICIES = ("refuse", "complete", "indicator", "impute")
"""What is done with rows in which a value misses."""

COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][+-]?\d+)?")
"""A number with a decimal comma, thousands perhaps set apart by dots."""

THOUSANDS = re.compile(r"[+-]?(\d+|[1-9]\d{0,2}(,\d{3})+)(\.\d+)?")
"""A number with a decimal point, thousands perhaps set apart by commas."""

DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?")
OTHER_DATE = re.compile(r"\d{1,2}[./-]\d{1,2}[./-](\d{2}|\d{4})|\d{4}[./]\d{1,2}[./]\d{1,2}")
"""A date in another order or with other marks than ISO 8601's."""

TRUTHS = {"true": 1.0, "false": 0.0}

COLUMNS_MAX, LEVELS_MAX, NAME_MAX = 10_000, 10_000, 1000
"""Of one table; beyond, what another process sends is refused."""

NEARLY = 0.9
"""With so large a share of numbers the rest of a column is taken for slips."""

FEW = 10
"""Distinct values up to which texts that look like numbers may well be levels."""


class Column(NamedTuple):
    """One column of a table.

    Attributes:
        kind: what it holds; "empty" where every value misses.
        values: float64 (rows,): numbers, 0 and 1, days since 1970; texts where the kind is "text".
            Anything where a value misses.
        missing: bool (rows,).
        doubt: why it may be of another kind than it seems, or "".
    """

    kind: Kind
    values: np.ndarray
    missing: np.ndarray
    doubt: str = ""

    def take(self, rows: np.ndarray) -> Column:
        """Return some of the rows, by index or by mask."""
        return self._replace(values=self.values[rows], missing=self.missing[rows])


Table = dict[str, Column]


def rows_of(table: Table) -> int:
    """Return the number of rows."""
    return len(next(iter(table.values())).values)


@dataclass(frozen=True)
class TableFacts:
    """What a formula must know of a table at one site; plain values, and no row is among them.

    Attributes:
        given: rows, before those with missing values were left out.
        kinds: of the columns that are used, by name.
        missing: how many values of each miss.
        moments: `consortia.data.preparation.Moments.plain` of values (rows,), by expression.
        levels: of factors, by expression.
    """

    given: int
    kinds: Mapping[str, Kind]
    missing: Mapping[str, int]
    moments: Mapping[str, Any]
    levels: Mapping[str, tuple[str, ...]]

    @classmethod
    def read(cls, values: Any) -> TableFacts:
        """Return facts that another process sent; nothing in them is taken on trust.

        Raises:
            ValueError: the values are no facts; the text holds none of them.
        """
        names = {"given", "kinds", "missing", "moments", "levels"}
        if not isinstance(values, dict) or values.keys() != names:
            raise ValueError("these are no facts of a table")
        given = values["given"]
        tables = [values[name] for name in ("kinds", "missing", "moments", "levels")]
        if type(given) is not int or given < 1 or not all(isinstance(one, dict) for one in tables):
            raise ValueError("these are no facts of a table")
        for table in tables:
            if len(table) > COLUMNS_MAX or not all(_is_name(name) for name in table):
                raise ValueError("the names of a table are not texts, or too many")
        kinds, missing, moments, levels = tables
        if not all(kind in get_args(Kind) for kind in kinds.values()):
            raise ValueError("a column is of no kind that there is")
        if not all(type(count) is int and 0 <= count <= given for count in missing.values()):
            raise ValueError("there are more missing values than rows")
        for plain in moments.values():
            rows = plain[0] if isinstance(plain, list) and plain else None
            if type(rows) is not int or not 0 < rows <= given:
                raise ValueError("the moments are not those of the rows")
            Moments.check_plain(plain, rows, None)
        for found in levels.values():
            if not isinstance(found, (list, tuple)) or len(found) > LEVELS_MAX:
                raise ValueError(f"a factor has more than {LEVELS_MAX} levels")
            if not all(_is_name(one) for one in found) or len(set(found)) != len(found):
                raise ValueError("the levels of a factor are not distinct texts")
        return cls(given, kinds, missing, moments, {k: tuple(v) for k, v in levels.items()})


def _is_name(value: Any) -> bool:
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
        found = ", ".join(f"{name!r} {count}" for name, count in counts.items() if count)
        raise InputError(
            f"{where}: values are missing in {found} of {rows_of(table)} rows. Give "
            "missing='complete' to leave these rows out, missing='indicator' to keep them with a "
            "column that marks them, or missing='impute' to draw the values at the site, several "
            "times."
        )
    needed = columns if policy == "complete" else always
    kept = ~np.any([table[name].missing for name in needed], axis=0)
    if not kept.any():
        worst = max(needed, key=lambda name: counts[name])
        remedy = "leave out the column or the site"
        if policy == "complete" and worst not in always:
            remedy += ", or give missing='indicator' or 'impute'"
        raise InputError(
            f"{where}: no row is complete; of {rows_of(table)} rows {counts[worst]} have no value "
            f"of {worst!r}: {remedy}."
        )
    return {name: column.take(kept) for name, column in table.items()}


# --- reading -------------------------------------------------------------------------------------


def read_table(source: Any, where: str) -> Table:
    """Return the table of a file, a DataFrame, an Arrow table or a dict of columns.

    Args:
        source: a path (.csv, .tsv, .txt, .parquet, .feather, .arrow, .npz), a
            `pandas.DataFrame`, whatever has ``to_pandas`` (Arrow, Polars), or a dict of columns.
        where: what it is, for the messages.

    Raises:
        InputError: it cannot be read; the message names the file, the line (the header being the
            first) and the column where there are any.
    """
    import pandas as pd  # heavy: only who gives a table pays for it

    if isinstance(source, (str, Path)):
        return _read_file(Path(source))
    frame = source.to_pandas() if hasattr(source, "to_pandas") else source
    if isinstance(frame, Mapping):
        try:
            frame = pd.DataFrame({str(name): np.asarray(column) for name, column in frame.items()})
        except ValueError as error:
            raise InputError(f"{where}: no table of columns of one length: {error}.") from error
    if not isinstance(frame, pd.DataFrame):
        raise InputError(
            f"{where} is a {type(source).__name__}: give a file, a DataFrame or a dict of columns."
        )
    return _of_frame(frame, where)


def column_of(table: Table, name: str, where: str) -> Column:
    """Return a column by its name; refuse an unknown one with the nearest."""
    if name not in table:
        raise InputError(f"{where}: {name!r} is no column: {unknown(name, table)}.")
    return table[name]


def _read_file(path: Path) -> Table:
    import pandas as pd

    readers = {".csv": _read_csv, ".tsv": _read_csv, ".txt": _read_csv, ".npz": _read_npz}
    arrow = {".parquet": pd.read_parquet, ".feather": pd.read_feather, ".arrow": pd.read_feather}
    if path.suffix not in {**readers, **arrow}:
        raise InputError(f"{path}: give one of {', '.join((*readers, *arrow))}.")
    if not path.is_file():
        raise InputError(f"{path}: there is no such file.")
    try:
        if path.suffix in readers:
            return readers[path.suffix](path)
        return _of_frame(arrow[path.suffix](path), str(path))
    except ImportError as error:
        raise InputError(
            f"{path}: {path.suffix} files are read by pyarrow: pip install 'consortia[parquet]'."
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not written in UTF-8: save it so.") from error
    except (ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def _read_npz(path: Path) -> Table:
    import pandas as pd

    with np.load(path, allow_pickle=False) as stored:
        return _of_frame(pd.DataFrame({name: stored[name] for name in stored.files}), str(path))


def _read_csv(path: Path) -> Table:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        unquoted = re.sub(r'"[^"]*"', "", lines.readline())
        separator = max(SEPARATORS, key=unquoted.count)
        lines.seek(0)
        reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
        try:
            found = [(reader.line_num, fields) for fields in reader if fields]
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}: {error}.") from error
    if len(found) < 2:
        raise InputError(f"{path}: there are no rows under the header.")
    header = [name.strip() for name in found[0][1]]
    doubled = sorted({name for name in header if header.count(name) > 1})
    if "" in header or doubled:
        what = "a column without a name: name it, or leave it out (pandas: index=False)"
        if doubled and "" not in header:
            what = f"the name {doubled[0]!r} twice"
        raise InputError(f"{path}: line 1 has {what}.")
    for line, fields in found[1:]:
        if len(fields) != len(header):
            raise InputError(
                f"{path}, line {line}: {len(fields)} fields under {len(header)} names "
                f"(they are set apart by {separator!r})."
            )
    numbers = [line for line, _ in found[1:]]
    columns = zip(*(fields for _, fields in found[1:]), strict=True)
    return {
        name: _parsed(texts, numbers, separator, f"{path}, column {name!r}")
        for name, texts in zip(header, columns, strict=True)
    }


def _parsed(given: Sequence[str], lines: Sequence[int], separator: str, where: str) -> Column:
    """Return a column of a file, its kind found from all its values."""
    import pandas as pd

    texts = np.array([text.strip() for text in given], dtype=object)
    missing = np.array([text in MISSING for text in texts])
    known = texts[~missing]
    values = np.zeros(len(texts))
    if not len(known):
        return Column("empty", values, missing)

    def of(kind: Kind, found: Any) -> Column:
        values[~missing] = np.asarray(found, float)
        return Column(kind, values, missing)

    numbers = pd.to_numeric(pd.Series(known), errors="coerce").to_numpy(float)
    wrong = np.isnan(numbers)
    if not wrong.any():
        return of("number", numbers)
    thousands = all(THOUSANDS.fullmatch(text) for text in known)
    if all(COMMA.fullmatch(text) for text in known) and not (thousands and separator != ";"):
        plain = [text.replace(".", "").replace(",", ".") for text in known]
        return of("number", np.array(plain, float))
    if all(text.lower() in TRUTHS for text in known):
        return of("truth", [TRUTHS[text.lower()] for text in known])
    if all(DATE.fullmatch(text) for text in known):
        try:
            return of("date", _days(pd.to_datetime(pd.Series(known), utc=True, format="ISO8601")))
        except ValueError as error:
            raise InputError(f"{where}: not every value is a date: {error}.") from error
    doubt = ""
    if thousands:
        doubt = "commas seem to set thousands apart: write the numbers without them"
    elif len(set(known)) > FEW and all(OTHER_DATE.fullmatch(text) for text in known):
        doubt = "its texts seem to be dates: write them as year-month-day, 2024-01-31"
    elif wrong.mean() <= 1 - NEARLY and len(set(known)) > FEW:
        line = lines[np.flatnonzero(~missing)[np.flatnonzero(wrong)[0]]]
        doubt = (
            f"{int(wrong.sum())} of {len(known)} values are no numbers, the first in line {line}: "
            "correct them, or leave them empty"
        )
    return Column("text", np.where(missing, "", texts).astype(str), missing, doubt)


def _days(dates: Any) -> np.ndarray:
    """Return days since 1970-01-01 of a series of dates."""
    import pandas as pd

    return ((dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)).to_numpy(float)


def _of_frame(frame: Any, where: str) -> Table:
    names = [str(name) for name in frame.columns]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InputError(f"{where}: the column {doubled[0]!r} is there twice.")
    if not len(frame) or not names:
        raise InputError(f"{where} is empty: leave it out, or give it at least one row.")
    return {
        name: _of_series(frame.iloc[:, place], f"{where}, column {name!r}")
        for place, name in enumerate(names)
    }


def _doubt(texts: np.ndarray) -> str:
    """Return why a frame's texts may be meant as numbers or dates, or ""."""
    import pandas as pd

    if len(set(texts)) <= FEW:
        return ""
    if all(DATE.fullmatch(text) or OTHER_DATE.fullmatch(text) for text in texts):
        return "its texts are dates: convert them (pandas.to_datetime), or write C(...) for levels"
    wrong = pd.to_numeric(pd.Series(texts), errors="coerce").isna().to_numpy(bool)
    if not wrong.any() or all(COMMA.fullmatch(text) for text in texts):
        return "its texts are numbers: convert them (pandas.to_numeric), or write C(...) for levels"
    if wrong.mean() <= 1 - NEARLY:
        return (
            f"{int(wrong.sum())} of {len(texts)} values are no numbers: correct them, or leave "
            "them empty"
        )
    return ""


def _of_series(series: Any, where: str) -> Column:
    import pandas as pd

    missing = series.isna().to_numpy(bool)
    known = series[~missing]
    values = np.zeros(len(series))
    if not len(known):
        return Column("empty", values, missing)
    if isinstance(series.dtype, pd.CategoricalDtype):
        known = known.astype(series.cat.categories.dtype)
    found = pd.api.types.infer_dtype(known, skipna=True)
    kind: Kind
    if found == "boolean":
        kind, given = "truth", known.to_numpy(bool)
    elif found in ("integer", "floating", "mixed-integer-float", "decimal"):
        kind, given = "number", known.to_numpy(float)
    elif found in ("datetime64", "datetime", "date"):
        kind, given = "date", _days(pd.to_datetime(known, utc=True))
    elif found == "string":
        texts = np.full(len(series), "", dtype=object)
        texts[~missing] = known.to_numpy(dtype=object)
        missing = missing | np.array([not text.strip() for text in texts.astype(str)])
        if missing.all():
            return Column("empty", values, missing)
        return Column("text", texts.astype(str), missing, _doubt(texts[~missing].astype(str)))
    else:
        raise InputError(f"{where}: its values are {found}: give numbers, texts or dates.")
    values[~missing] = given
    return Column(kind, values, missing)
