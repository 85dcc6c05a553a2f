"""Files of Excel, SPSS, Stata, SAS and R, and queries of a site's database, as frames.

A code with a label is the level of that name, in the order of the codes; what a file declares to
stand for a missing value misses. Numbers, words and dates are left to `consortia.data.tables`.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from consortia.data.columns import Guess, Source, level
from consortia.data.mending import mend
from consortia.errors import InputError

if TYPE_CHECKING:
    from consortia.data.harmonisation import Harmonisation

DATABASE = "CONSORTIA_DATABASE"
"""Environment variable of a site with the URL of its database, as SQLAlchemy takes it."""

NO_RESULT = re.compile(
    rb'<c r="([A-Z]+[0-9]+)"(?:(?! t="str")[^>])*><f[^>]*?(?:/>|>[^<]*</f>)(?:<v\s*/>|<v></v>)?</c>'
)
"""A formula in a sheet that no program has evaluated: its cell would seem to be empty."""

THOUSANDS = re.compile(r"\.[0-9]{3}$")

Sheet = list[tuple[int, tuple[Any, ...]]]


class Export(NamedTuple):
    """One table as its program has written it."""

    frame: Any  # pandas.DataFrame
    lines: np.ndarray | None = None  # rows of the sheet, (rows,); None: counted from 1
    guesses: Mapping[str, list[Guess]] = {}  # what was taken for what, by column


def texts_of(series: Any) -> np.ndarray | None:
    """Return the strings that a text file would have, of a column that holds some; else None."""
    if series.dtype != object and str(series.dtype) not in ("str", "string"):
        return None
    values = series.to_numpy(object)
    if not any(isinstance(value, str) for value in values):
        return None
    return np.array(
        ["" if gone else _text(entry) for entry, gone in zip(values, series.isna(), strict=True)],
        object,
    )


def _text(value: Any) -> str:
    # 1.2340: with three digits behind the point it may be a thousand in a text file
    text = str(level(value))
    return f"{text}0" if isinstance(value, float) and THOUSANDS.search(text) else text


# --- spreadsheets --------------------------------------------------------------------------------


def _read_sheet(path: Path, source: Source, changes: Harmonisation) -> Export:
    import pandas as pd
    from openpyxl import load_workbook
    from openpyxl.utils.exceptions import InvalidFileException

    try:
        with zipfile.ZipFile(path) as parts:
            sheets = [name for name in parts.namelist() if name.startswith("xl/worksheets/")]
            empty = [cell for name in sheets for cell in NO_RESULT.findall(parts.read(name))]
        book = load_workbook(path, read_only=True, data_only=True)
    except (zipfile.BadZipFile, InvalidFileException, KeyError) as error:
        raise ValueError("it is not an Excel workbook (.xlsx), or it is damaged") from error
    if empty:
        raise InputError(
            f"{path}: the formula in cell {empty[0].decode()} has no result, nor have "
            f"{len(empty) - 1} others: open the file in a spreadsheet program and save it there."
        )
    name, rows = _sheet_of(book, path, source, changes)
    (first, header), *rows = rows
    names = ["" if title is None else str(level(title)).strip() for title in header]
    if rows and sum(map(bool, names)) == 1 < sum(entry is not None for entry in rows[0][1]):
        raise InputError(
            f"{path}, sheet {name!r}, row {first}: {next(filter(None, names))!r} seems to be a "
            "title, not a header: delete everything above the column names."
        )
    width = max(len(values) for _, values in rows) if rows else 0
    columns = [[cells[i] if i < len(cells) else None for _, cells in rows] for i in range(width)]
    names += [""] * (width - len(names))
    kept = [i for i, column in enumerate(columns) if names[i] or any(v is not None for v in column)]
    frame = pd.DataFrame({i: pd.Series(columns[i], dtype=object) for i in kept})
    return Export(
        frame.set_axis([names[i] for i in kept], axis=1), np.array([row for row, _ in rows])
    )


def _sheet_of(book: Any, path: Path, source: Source, changes: Harmonisation) -> tuple[str, Sheet]:
    """Return the sheet that holds the table, by name, without its empty rows."""
    seen = {sheet.title: sheet for sheet in book.worksheets if sheet.sheet_state == "visible"}
    if changes.sheet is not None and changes.sheet not in seen:
        raise InputError(f"{path}: sheet {changes.sheet!r} is not one of {', '.join(seen)}.")
    wanted = list(seen) if changes.sheet is None else [changes.sheet]
    full = {name: rows for name in wanted if (rows := _rows_of(seen[name]))}
    if not full:
        raise InputError(f"{path} is empty: omit it, or give it at least one row.")
    if len(full) > 1:
        line = mend(source.site, "", f'sheet = "{next(iter(full))}"')
        raise InputError(f"{path} has the sheets {', '.join(full)}: choose one with {line}.")
    return next(iter(full.items()))


def _rows_of(sheet: Any) -> Sheet:
    rows = []
    for number, values in enumerate(sheet.iter_rows(values_only=True), 1):
        cells = tuple(map(_cell, values))
        if any(cell is not None for cell in cells):
            rows.append((number, cells))
    return rows


def _cell(value: Any) -> Any:
    """Return the value of a cell as a text file would hold it, numbers as such."""
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, datetime) and (value.hour, value.minute, value.second) == (0, 0, 0):
        return value.date().isoformat()
    return value.isoformat() if hasattr(value, "isoformat") else value


# --- statistical packages ------------------------------------------------------------------------


def _read_labelled(path: Path, source: Source, changes: Harmonisation) -> Export:
    import pandas as pd
    import pyreadstat

    kind = path.suffix.lower().removeprefix(".")
    given: dict[str, Any] = {} if changes.encoding is None else {"encoding": changes.encoding}
    given |= {"user_missing": True} if kind in ("sav", "zsav") else {}
    read = getattr(pyreadstat, f"read_{kind.replace('zsav', 'sav')}")
    try:
        frame, metadata = read(path, **given)
        if kind == "sas7bdat" and (catalogue := path.with_suffix(".sas7bcat")).is_file():
            # given to `read`, it would put words in the place of codes, which have the order
            words = pyreadstat.read_sas7bcat(catalogue, **given)[1].value_labels
            pairs = metadata.variable_to_label.items()
            metadata.variable_value_labels = {name: words.get(label, {}) for name, label in pairs}
    except (pyreadstat.ReadstatError, pyreadstat.PyreadstatError, UnicodeDecodeError) as error:
        encoded = re.search("codec|encod", str(error))
        hint = " " + mend(source.site, "", 'encoding = "cp1252"') if encoded else ""
        raise ValueError(f"{error}{hint}") from error
    guesses: dict[str, list[Guess]] = {}
    columns = []
    for name in frame.columns:
        series, labels = frame[name], metadata.variable_value_labels.get(name, {})
        missing = np.zeros(len(series), bool)
        for part in metadata.missing_ranges.get(name, ()):
            missing |= series.map(lambda v, p=part: _within(v, p["lo"], p["hi"])).to_numpy(bool)
        series = series.mask(missing)
        if missing.any():
            guesses[name] = _say_missing(name, frame[name][missing], labels, source)
        known = set(series.dropna())
        if labels and known and known <= labels.keys():
            codes = sorted(labels.keys() & known)
            order = list(dict.fromkeys(labels[code] for code in codes))
            ordered = metadata.variable_measure.get(name) == "ordinal"
            kind_of = pd.CategoricalDtype(order, ordered=ordered)
            series = series.map(labels, na_action="ignore").astype(kind_of)
        columns.append(series)
    return Export(pd.concat(columns, axis=1) if columns else frame, guesses=guesses)


def _within(value: Any, low: Any, high: Any) -> bool:
    return isinstance(value, type(low)) and low <= value <= high


def _say_missing(name: str, values: Any, labels: Mapping[Any, str], source: Source) -> list[Guess]:
    """Report the codes that a file declares to stand for a missing value."""
    start = f"{source.site}: " if source.site else ""
    return [
        Guess(
            name,
            f"{start}{name}: {labels.get(code, level(code))!r} is missing, as declared in the "
            f"file, in {count:,} row{'s' * (count > 1)}",
            "",
            int(count),
        )
        for code, count in values.value_counts().items()
    ]


def _times(unit: str) -> Callable[[np.ndarray, Any], Any]:
    """Make a constructor of dates or times from R's numbers since 1970."""

    def make(numbers: np.ndarray, attributes: Any) -> Any:
        import pandas as pd

        units = {"D": 1, "us": 1_000_000}[unit]
        known = np.isfinite(numbers)
        whole = np.round(np.where(known, numbers, 0) * units).astype("int64")
        times = whole.astype(f"datetime64[{unit}]")
        return pd.array(np.where(known, times, np.datetime64("NaT")).tolist(), dtype="object")

    return make


TIMES_OF_R = {"Date": _times("D"), "POSIXct": _times("us")}


def _read_r(path: Path, source: Source, changes: Harmonisation) -> Export:
    import pandas as pd
    import rdata

    classes: dict[Any, Any] = {**rdata.conversion.DEFAULT_CLASS_MAP, **TIMES_OF_R}
    try:
        frame = rdata.read_rds(path, constructor_dict=classes)
    except Exception as error:  # its parser lets through whatever a damaged file makes of it
        raise ValueError(f"it was not written by saveRDS, or it is damaged ({error})") from error
    if not isinstance(frame, pd.DataFrame):
        raise InputError(
            f"{path} holds a {type(frame).__name__}, not a data.frame: save a data.frame."
        )
    return Export(frame.reset_index(drop=True))


# --- databases -----------------------------------------------------------------------------------


def _read_query(path: Path, source: Source, changes: Harmonisation) -> Export:
    import pandas as pd
    import sqlalchemy

    url = os.environ.get(DATABASE)
    if not url:
        raise InputError(
            f"{path}: set {DATABASE} at this site to the URL of the database to query, such as "
            "postgresql+psycopg://reader@db/research."
        )
    try:
        with sqlalchemy.create_engine(url).connect() as connection:  # closed without a commit
            frame = pd.read_sql_query(path.read_text(encoding="utf-8"), connection)
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise ValueError(str(error)) from error
    # A database promises no order, and each message to a site reads the rows again.
    places = list(range(frame.shape[1]))
    plain = frame.set_axis(places, axis=1)
    plain = plain.sort_values(
        places, kind="stable", key=lambda keys: keys.astype(str) if keys.dtype == object else keys
    )
    return Export(plain.set_axis(frame.columns, axis=1).reset_index(drop=True))


READERS: dict[str, Callable[[Path, Source, Harmonisation], Export]] = {
    ".xlsx": _read_sheet,
    ".sav": _read_labelled,
    ".zsav": _read_labelled,
    ".dta": _read_labelled,
    ".sas7bdat": _read_labelled,
    ".rds": _read_r,
    ".sql": _read_query,
}
"""Readers by the ending of a file's name."""
