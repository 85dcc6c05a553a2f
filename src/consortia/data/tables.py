"""Tables as people have them: text of any dialect, files of programs, frames, dicts of arrays.

A column keeps the strings or integers that were read. It is parsed on its first use, and nothing
is guessed from more than one file.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consortia.data.columns import Column, Guess, Kind, LazyTable, Source, level
from consortia.data.dialect import (
    DECLARED,
    WORDS,
    Dialect,
    encoding_of,
    number_of,
    separator_of,
    undecodable,
)
from consortia.data.exports import READERS, Export, texts_of
from consortia.data.fields import LINE, Fields, Strings, cut, indexed
from consortia.data.mending import in_formula, key, mend, rows_text, text
from consortia.data.numerals import Numerals
from consortia.data.writing import one_writing
from consortia.errors import InputError, located

if TYPE_CHECKING:
    from consortia.data.harmonisation import Harmonisation

TRUTHS = {"true": 1.0, "false": 0.0}
EXACT = 2**53
"""Integers beyond it are not all numbers of their own in float64."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})"
DATE = re.compile(
    rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([ T][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]+)?)?{ZONE}?)?"
)
MONTH = r"(jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[a-zä]*"
OTHER_DATE = re.compile(
    r"((?P<first>[0-9]{1,2})[./-](?P<second>[0-9]{1,2})[./-](?P<year>[0-9]{4})"
    r"|[0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{2}"
    r"|[0-9]{4}[./-][0-9]{1,2}[./-][0-9]{1,2}"
    rf"|[0-9]{{1,2}}[. -]*{MONTH}[. -]*([0-9]{{2}}|[0-9]{{4}}))"
    r"([ T,]+[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?( ?[ap]m)?)?",
    re.IGNORECASE,
)
"""A date in another order, with other marks or other words than ISO 8601's."""

BOUND = re.compile(r"(?=.*[<>≤≥~+])[<>≤≥~]?=? ?([0-9]+([.,][0-9]+)?) ?\+?")
"""A number with a sign that it is a bound, as of ages from 90 on, or below a limit of detection."""

YEARS = (1678, 2261)
"""Years of dates that every version of pandas has; others usually stand for no date."""

NEARLY = re.compile(r"[<>≤≥~≈]?\s*[+\-−–]?\s*\d[\d.,'\u00a0\u202f ]*\s*[%‰]?")
"""A number with something beside it; digits of any script."""

FEW = 10
"""Distinct numbers up to which a frame's strings of numbers are taken for levels."""

MOST_SHOWN = 40
"""Characters of a value in a message."""


def read_table(
    source: Any, where: str, *, site: str = "", harmonise: Harmonisation | None = None
) -> LazyTable:
    """Return the table of a file, a DataFrame, an Arrow table or a dict of columns.

    Args:
        source: a path (.csv, .tsv, .txt, .xlsx, .sav, .zsav, .dta, .sas7bdat, .rds, .sql,
            .parquet, .feather, .arrow, .npz), a `pandas.DataFrame`, whatever has ``to_pandas``
            (Arrow, Polars), or a dict of columns.
        where: what it is, for the messages.
        site: name of the site that has it, for the messages.
        harmonise: changes that the study makes to it.

    Raises:
        InputError: it cannot be read; the message names the file, the line (the header being the
            first) and the column where there are any.
    """
    from consortia.data.harmonisation import NONE  # pydantic is heavy: only who gives a table pays

    changes = harmonise or NONE
    if isinstance(source, (str, Path)):
        with located(site=site, file=str(source)):
            return _read_file(Path(source), site, changes)
    import pandas as pd  # heavy, and no text file needs it

    frame = source.to_pandas() if hasattr(source, "to_pandas") else source
    if isinstance(frame, Mapping):
        try:
            frame = pd.DataFrame(
                {str(name): np.asarray(column) for name, column in frame.items()}, copy=False
            )
        except ValueError as error:
            text = f"{where}: columns of different lengths: {error}."
            raise InputError(text).at("data") from error
    if not isinstance(frame, pd.DataFrame):
        raise InputError(
            f"{where} is a {type(source).__name__}: give a file, a DataFrame or a dict of columns."
        ).at("data")
    return _of_frame(frame, Source(where, site), changes)


# --- files ---------------------------------------------------------------------------------------


def _read_file(path: Path, site: str, changes: Harmonisation) -> LazyTable:
    readers = dict.fromkeys((".csv", ".tsv", ".txt"), read_text) | {".npz": _read_npz}
    arrow = {".parquet": "read_parquet", ".feather": "read_feather", ".arrow": "read_feather"}
    kind = path.suffix.lower()
    if kind not in {**readers, **arrow, **READERS}:
        raise InputError(f"{path}: give one of {', '.join((*readers, *READERS, *arrow))}.")
    if not path.is_file():
        raise InputError(f"{path}: no such file.")
    try:
        if kind in readers:
            return readers[kind](path, site, changes)
        if kind in READERS:
            source = Source(str(path), site, unit="row")
            made = READERS[kind](path, source, changes)
            return _of_frame(made.frame, source._replace(lines=made.lines), changes, made)
        import pandas as pd

        return _of_frame(getattr(pd, arrow[kind])(path), Source(str(path), site), changes)
    except ImportError as error:
        reader, extra = ("pyarrow", "parquet") if kind in arrow else (error.name, "tables")
        raise InputError(
            f'{path}: {kind} files are read by {reader}: pip install "consortia[{extra}]".'
        ) from error
    except UnicodeError as error:
        raise undecodable(path, site, encoding_of(path, changes.encoding)) from error
    except (ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def _read_npz(path: Path, site: str, changes: Harmonisation) -> LazyTable:
    import pandas as pd

    return _of_frame(pd.DataFrame(read_npz(path)), Source(str(path), site), changes)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file of `numpy.savez`, with an axis of rows each.

    Raises:
        InputError: it is damaged, or holds Python objects.
    """
    try:
        arrays = {}
        with zipfile.ZipFile(path) as stored:
            for entry in stored.infolist():
                if entry.file_size > max(EXPANDED_BYTES, EXPANSION * entry.compress_size):
                    raise ValueError(f"{entry.file_size:,} bytes in {entry.compress_size:,}")
                with stored.open(entry) as content:
                    array = np.lib.format.read_array(content, allow_pickle=False)
                    if content.read(1):  # at the end of an entry its sum is checked, too
                        raise ValueError("an array is longer than its header says")
                arrays[entry.filename.removesuffix(".npy")] = np.atleast_1d(array)
    except (*DAMAGED, ValueError, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{path} cannot be read: it is damaged or too large ({reason})."
        ) from error
    return arrays


EXPANDED_BYTES, EXPANSION = 2**28, 200
"""An array may have so many bytes, or so many times those that it is packed into. Chosen."""

DAMAGED = (zipfile.BadZipFile, EOFError, zlib.error, MemoryError, NotImplementedError, RuntimeError)
"""Errors of a packed file, some bits of which are not those that were written."""


def read_text(path: Path, site: str, changes: Harmonisation) -> LazyTable:
    """Return the table of a text file, of any dialect.

    Raises:
        InputError: it is not a table; the message names the file and the line.
        UnicodeError: it is in another encoding.
    """
    text = path.read_bytes().decode(encoding_of(path, changes.encoding))
    line, skipped = LINE.match(text), 0
    first = line[0] if line else ""
    if declared := DECLARED.fullmatch(first):
        separator, skipped = declared[1], 1
    else:
        separator = separator_of(first)
    fields = cut(text[len(first) :] if skipped else text, separator, path, skipped)
    if len(fields.counts) < 2:
        raise InputError(f"{path}: no rows below the header.")
    _check_header(path, fields, separator)
    lines = fields.lines[1:]
    source = Source(str(path), site, lines)
    head = f"{path}, line {fields.lines[0]}"
    given = _without_empty(fields)
    names = _new_names([name for name, _ in given], head, site, changes)
    columns = dict(zip(names, (strings for _, strings in given), strict=True))
    dialect = Dialect(
        *(separator, columns, changes, site),
        lambda row: f"line {int(lines[row])}",
        plain=separator == "," and '"' not in text and changes.decimal is None,
    )

    def maker(name: str) -> Callable[[], Column]:
        def make() -> Column:
            made = None if name in changes.recode else dialect.numerals(name)
            if made is not None:
                column = _of_numerals(name, made, source, changes)
            else:
                column = _of_texts(name, *columns[name].distinct(), dialect, source, changes)
            if dialect.plain:  # else another column may have to look at it
                del columns[name]
            return column

        return make

    return LazyTable({name: maker(name) for name in names}, len(lines), head)


def _check_header(path: Path, fields: Fields, separator: str) -> None:
    """Refuse rows that do not have a value for each name."""
    header, counts = fields.header, fields.counts
    given = [name.strip() for name in header if name.strip()]
    if counts[1] > len(header) == 1 or (len(given) == 1 < len(header) == counts[1]):
        raise InputError(
            f"{path}, line {fields.lines[0]}: {_shown(given[0]) if given else 'it'} seems to be "
            "a title, not a header: delete everything above the column names."
        ).at(line=int(fields.lines[0]))
    for row in np.flatnonzero(counts != len(header))[:1]:
        raise InputError(
            f"{path}, line {fields.lines[row]}: {counts[row]} fields under {len(header)} names "
            f"(the separator is {separator!r})."
        ).at(line=int(fields.lines[row]))


def _without_empty(fields: Fields) -> list[tuple[str, Strings]]:
    """Return the columns, by name, but those that have neither a name nor a value.

    Where every line ends in a separator there is one.
    """
    return [
        (name, strings)
        for name, strings in zip(fields.header, fields.columns(), strict=True)
        if name.strip() or any(text.strip() for text in strings.distinct()[0])
    ]


def _new_names(given: Sequence[str], where: str, site: str, changes: Harmonisation) -> list[str]:
    """Return the names of the columns in one writing, renamed; refuse doubled and empty ones."""
    names = one_writing([str(name) for name in given])
    names = changes.new_names(names, where)
    doubled = sorted({name for name in names if names.count(name) > 1})
    if "" in names or doubled:
        what = "a column without a name: remove it (pandas: index=False), or write "
        what += mend(site, "rename", '"" = "row"')
        if doubled and "" not in names:
            what = f"the name {doubled[0]!r} twice"
        raise InputError(f"{where} has {what}.")
    changes.check_columns(names, where)
    return names


# --- columns of strings --------------------------------------------------------------------------


def _of_numerals(name: str, made: Numerals, source: Source, changes: Harmonisation) -> Column:
    """Return a column of plain numbers."""
    words = made.words & (made.given != "")
    if name in changes.missing_values:
        declared = _declared_missing(made.given[words].tolist(), changes.missing_values[name])
        words[words] = ~declared
    column = Column("number", made.values, made.words, given=made.given)
    return _finished(name, column, words, [], source, changes)


def _of_texts(
    name: str,
    given: Sequence[str],
    rows: np.ndarray,
    dialect: Dialect | None,
    source: Source,
    changes: Harmonisation,
) -> Column:
    """Return a column of strings, its kind found from all its values.

    Args:
        name: of the column.
        given: its distinct strings.
        rows: index of each row's string among them.
        dialect: of the file; strings of a frame, which has none, stay strings.
        source: where they were read.
        changes: those that the study makes.
    """
    texts, guesses = one_writing(given), []
    if recoded := changes.recode.get(name):
        lists, there = f"{_at(source)}{name}: recode lists", set(texts)
        absent = (word for word in recoded if word not in there)
        guesses += [Guess(name, f"{lists} {_shown(word)}, which no row has") for word in absent]
        texts = [recoded.get(text, text) for text in texts]
    texts, indices = indexed(texts)
    rows = indices[rows]
    empty = np.array([text == "" for text in texts])
    if name in changes.missing_values:
        empty |= _declared_missing(texts, changes.missing_values[name])
    words = ~empty & np.array([text in WORDS for text in texts])
    column = _as_kind(name, texts, rows, empty | words, dialect, source)
    if column.kind == "text" and words.any():
        # in a column of words only the empty field misses
        levels = np.where(empty, "", np.array(texts, dtype=object)).astype(str)
        column = column._replace(values=levels[rows], missing=empty[rows])
        if name not in changes.missing_values:
            counts = np.bincount(rows)
            for index in np.flatnonzero(words):
                guesses.append(word_kept(name, source.site, texts[index], int(counts[index])))
        words[:] = False
    return _finished(name, column, words[rows], guesses, source, changes)


def _finished(
    name: str,
    column: Column,
    words: np.ndarray,
    guesses: Sequence[Guess],
    source: Source,
    changes: Harmonisation,
) -> Column:
    """Return a column with what is said of the words that miss, in the unit of the study."""
    if column.kind == "number":
        codes = [number_of(level(code)) for code in changes.missing_values.get(name, ())]
        missing = column.missing | np.isin(
            column.values, [number for number in codes if number is not None]
        )
        kind: Kind = "empty" if missing.all() else "number"
        doubt = _too_large(column.values[~missing])
        column = column._replace(kind=kind, missing=missing, doubt=doubt)
    if column.given is not None and words.any():
        counts = Counter[str](column.given[words].tolist())
        column = column._replace(words=words)
        for word, count in counts.items():
            sentence = f"{_at(source)}{name}: {_shown(word)} is missing, in {rows_text(count)}"
            guesses = [*guesses, Guess(name, sentence, "", count)]
    if changes.scale.get(name, 1.0) != 1.0:
        if column.kind != "number":
            raise InputError(f"{source.name}: scale: the column {name!r} holds no numbers.")
        column = column._replace(values=column.values * changes.scale[name])
    return column._replace(guesses=(*column.guesses, *guesses), source=source)


def _as_kind(
    name: str,
    texts: Sequence[str],
    rows: np.ndarray,
    absent: np.ndarray,
    dialect: Dialect | None,
    source: Source,
) -> Column:
    """Return a column as what all its strings are; ``absent`` are those that stand for no value."""
    known = [text for text, gone in zip(texts, absent, strict=True) if not gone]
    given, missing = np.array(texts, dtype=object), absent[rows]

    def of(kind: Kind, values: Sequence[float] | np.ndarray) -> Column:
        every = np.zeros(len(texts))
        every[~absent] = values
        return Column(kind, every[rows], missing, given=given[rows])

    if not known:
        return of("empty", [])
    reason = ""
    if all(text.lower() in TRUTHS for text in known):
        return of("truth", [TRUTHS[text.lower()] for text in known])
    if dialect is not None:
        numbers, reason = dialect.numbers(known)
        if numbers is not None:
            return of("number", numbers)
        first, dates = _year_first(known)
        if all(DATE.fullmatch(date) for date in dates):
            by_text = dict(zip(known, dates, strict=True))
            written = np.array([by_text.get(text, text) for text in texts], dtype=object)[rows]
            sentence = f"{_at(source)}{name}: dates are read as {first} first"
            guesses = (Guess(name, sentence, "", int((~missing).sum())),) if first else ()
            return _of_dates(name, written, missing, source)._replace(guesses=guesses)
    doubt = _doubt(name, texts, rows, absent, source, dialect, reason)
    return Column("text", np.where(absent, "", given).astype(str)[rows], missing, doubt)


def _doubt(
    name: str,
    texts: Sequence[str],
    rows: np.ndarray,
    absent: np.ndarray,
    source: Source,
    dialect: Dialect | None,
    reason: str,
) -> str:
    """Find what suggests that strings are numbers or dates; "" where nothing does.

    Unless most of them are dates, the reason why it cannot be read as numbers comes first.
    """
    known = [text for text, gone in zip(texts, absent, strict=True) if not gone]
    levels = f"write C({in_formula(name)}) for a factor"
    if dialect is None and all(DATE.fullmatch(text) for text in known):
        return f"its strings are dates: convert them (pandas.to_datetime), or {levels}"
    dated = np.array([bool(DATE.fullmatch(text) or OTHER_DATE.fullmatch(text)) for text in texts])
    odd, of = ~absent & ~dated, "dates"
    if 2 * odd.sum() >= len(known):
        if reason:
            return reason
        of = "numbers"
        odd = ~absent & [
            number_of(text) is None and (dialect is None or not dialect.is_number(text))
            for text in texts
        ]
        if dialect is None and not odd.any():
            if len(known) <= FEW:  # somebody has made strings of codes
                return ""
            return f"its strings are numbers: convert them (pandas.to_numeric), or {levels}"
        if odd.sum() == len(known) and not all(NEARLY.fullmatch(text) for text in known):
            return ""
    elif not odd.any():
        odd = ~absent & [DATE.fullmatch(text) is None for text in texts]
        row = int(np.argmax(odd[rows]))
        first = texts[rows[row]]
        return (
            f"its strings look like dates, the first in {source.at(row)}: {_shown(first)}; "
            "only year-month-day is read as a date, and another order where days above 12 show it: "
            f"write {_written_out(first)}; or {levels}"
        )
    wrong = odd[rows]
    row = int(np.argmax(wrong))
    where = source.at(row)
    first = texts[rows[row]]
    hint = ""
    if first.isdigit() and not first.isascii():
        hint = ", whose digits are not 0 to 9"
    code = mend(source.site, "missing_values", f"{key(name)} = [{text(first)}]")
    bound = BOUND.fullmatch(first)
    if bound and of == "numbers":
        value = mend(source.site, f"recode.{key(name)}", f"{text(first)} = {text(bound[1])}")
        levels = f"{value} takes it for the number; {levels}"
    return (
        f"{int(wrong.sum())} of {int((~absent)[rows].sum())} values are not {of}, the first "
        f"in {where}: {_shown(first)}{hint}: {levels}, or {code} if it means a missing value, or "
        "correct them"
    )


def _year_first(dates: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return dates as year-month-day, and day or month, whichever values above 12 show as first."""
    parts = [OTHER_DATE.fullmatch(date) for date in dates]
    if any(part is None or part.end("year") != part.end() for part in parts):
        return "", dates
    most = {unit: max(int(part[unit]) for part in parts if part) for unit in ("first", "second")}
    if (most["first"] > 12) == (most["second"] > 12):
        return "", dates
    month, day = sorted(most, key=lambda unit: most[unit])
    iso = [f"{part['year']}-{part[month]:0>2}-{part[day]:0>2}" for part in parts if part]
    return "day" if day == "first" else "month", iso


def _written_out(date: str) -> str:
    """Return a date as year-month-day, twice where its day and month can be either."""
    match = OTHER_DATE.fullmatch(date)
    if match is None or match["year"] is None:
        return "2024-01-31 for 31 January 2024"
    first, second, year = match["first"].zfill(2), match["second"].zfill(2), match["year"]
    forms = {"day": f"{year}-{second}-{first}", "month": f"{year}-{first}-{second}"}
    if first == second or first > "12":
        return forms["day"]
    if second > "12":
        return forms["month"]
    return ", ".join(f"{form} if the {unit} comes first" for unit, form in forms.items())


def _too_large(numbers: np.ndarray) -> str:
    if (np.abs(numbers) >= EXACT).any() and bool((numbers == np.round(numbers)).all()):
        return "it holds integers beyond 2^53, of which only the first 16 digits are kept"
    return ""


def _of_dates(name: str, texts: np.ndarray, missing: np.ndarray, source: Source) -> Column:
    """Return a column of strings of dates, as days since 1970-01-01.

    A date that cannot be used makes the whole column doubtful: it matters only where it is used.
    """
    distinct, rows = indexed(texts[~missing].tolist())
    times = [_time_of(value) for value in distinct]
    days, values = (
        np.array([np.nan if time is None else _days(time) for time in times]),
        np.zeros(len(texts)),
    )
    values[~missing] = days[rows]
    wrong, doubt = np.isnan(values) & ~missing, ""
    zoned = np.array([time is not None and time.tzinfo is not None for time in times])[rows]
    if wrong.any():
        row = int(np.argmax(wrong))
        line = mend(source.site, "missing_values", f"{key(name)} = [{text(texts[row])}]")
        where = source.at(row)
        doubt = (
            f"not every value is a date of the years {YEARS[0]} to {YEARS[1]}, the first in "
            f"{where}: {texts[row]!r}: {line} if it means a missing value, or correct it"
        )
    elif zoned.any() and not zoned.all():
        doubt = (
            f"{int(zoned.sum())} of {len(zoned)} times have a time zone and the others do not: "
            "write all with one, or all without"
        )
    return Column("date", values, missing, doubt, given=texts, source=source)


def _time_of(value: str) -> datetime | None:
    """Return the time that a string is; None where it is none, or of years that nobody means."""
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return time if YEARS[0] <= time.year <= YEARS[1] else None


def _days(time: datetime) -> float:
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (zoned - EPOCH) / timedelta(days=1)


def _declared_missing(texts: Sequence[str], codes: Sequence[str | int | float]) -> np.ndarray:
    """Return True for the strings that are a code for a missing value, as strings or as numbers."""
    names = {level(code) for code in codes}
    numbers = {number_of(name) for name in names} - {None}
    return np.array([text in names or number_of(text) in numbers for text in texts], dtype=bool)


def word_kept(name: str, site: str, word: str, count: int) -> Guess:
    """Report a word such as NA that is taken as a level."""
    where = f"{site}: " if site else ""
    sentence = (
        f"{where}{name}: {_shown(word)} is a level, not a missing value, in {rows_text(count)}"
    )
    line = mend(site, "missing_values", f"{key(name)} = []")
    return Guess(name, sentence, f"{line} confirms it, [{text(word)}] makes it missing", count)


def _at(source: Source) -> str:
    return f"{source.site}: " if source.site else ""


def _shown(value: str) -> str:
    return repr(value if len(value) <= MOST_SHOWN else f"{value[:MOST_SHOWN]}...")


# --- frames --------------------------------------------------------------------------------------


def _of_frame(
    frame: Any, source: Source, changes: Harmonisation, file: Export | None = None
) -> LazyTable:
    given = [str(name) for name in frame.columns]
    if not len(frame) or not given:
        raise InputError(f"{source.name} is empty: omit it, or give it at least one row.")
    names = _new_names(given, source.name, source.site, changes)

    dialect, guesses = None, {}
    if file is not None:  # its strings are what they would be in a text file
        strings = {
            name: Strings.of(texts)
            for index, name in enumerate(names)
            if (texts := texts_of(frame.iloc[:, index])) is not None
        }
        dialect = Dialect(",", strings, changes, source.site, source.at)
        guesses = dict(zip(names, map(file.guesses.get, given), strict=True))

    def maker(index: int, name: str) -> Callable[[], Column]:
        def make() -> Column:
            column = _of_series(name, frame.iloc[:, index], source, changes, dialect)
            return column._replace(guesses=(*(guesses.get(name) or ()), *column.guesses))

        return make

    makers = {name: maker(index, name) for index, name in enumerate(names)}
    return LazyTable(makers, len(frame), source.name)


def _of_series(
    name: str, series: Any, source: Source, changes: Harmonisation, dialect: Dialect | None
) -> Column:
    import pandas as pd

    where, missing = f"{source.name}, column {name!r}", series.isna().to_numpy(bool)
    known = series[~missing] if missing.any() else series
    values = np.zeros(len(series))
    if not len(known):
        return Column("empty", values, missing, source=source)
    if isinstance(series.dtype, pd.CategoricalDtype) and name not in changes.recode:
        return _of_categories(name, series, missing, source, changes)
    if isinstance(series.dtype, pd.CategoricalDtype):
        known = known.astype(series.cat.categories.dtype)
    inferred = pd.api.types.infer_dtype(known, skipna=True)
    texts = None if dialect is None else texts_of(series)
    if inferred in ("string", "mixed-integer") or name in changes.recode or texts is not None:
        if texts is None:
            texts = np.full(len(series), "", dtype=object)
            texts[~missing] = [level(known_value) for known_value in known.tolist()]
        # what is recoded is read as a file's: "yes" as "1" is a number where other sites have one
        if name in changes.recode and dialect is None:
            points = changes.model_copy(update={"decimal": "."})
            dialect = Dialect(",", {}, points, source.site, str)
        return _of_texts(name, *indexed(texts.tolist()), dialect, source, changes)
    if inferred == "boolean":
        values[~missing] = known.to_numpy(bool)
        return Column("truth", values, missing, source=source)
    if inferred in ("datetime64", "datetime", "date"):
        given = np.full(len(series), "", dtype=object)
        given[~missing] = [known_value.isoformat() for known_value in known.tolist()]
        if name in changes.missing_values:
            missing = missing | _declared_missing(given.tolist(), changes.missing_values[name])
        return _of_dates(name, given, missing, source)
    if inferred not in ("integer", "floating", "mixed-integer-float", "decimal"):
        raise InputError(f"{where}: it is {inferred}: give numbers, strings or dates.").at(name)
    numbers = known.to_numpy(float)
    written: np.ndarray | None = None
    if inferred != "floating":
        written = np.full(len(series), "", dtype=object)
        written[~missing] = [level(number) for number in known.tolist()]
    if missing.any():
        values[~missing] = numbers
    else:  # the frame's own memory, where it holds such numbers
        values = numbers.view()
        values.flags.writeable = False
    if name in changes.missing_values:
        codes = [float(code) for code in changes.missing_values[name] if is_number(code)]
        missing = missing | np.isin(values, codes)
    if name in changes.scale:
        values = values * changes.scale[name]
    doubt = _too_large(numbers) if inferred == "integer" else ""
    return Column("number", values, missing, doubt, given=written, source=source)


def is_number(value: Any) -> bool:
    """Return True for a value that `float` reads."""
    try:
        float(value)
    except ValueError:
        return False
    return True


def _of_categories(
    name: str, series: Any, missing: np.ndarray, source: Source, changes: Harmonisation
) -> Column:
    """Return a Categorical as levels, in the order in which they are declared."""
    order = one_writing([level(category) for category in series.cat.categories.tolist()])
    codes = series.cat.codes.to_numpy()
    texts = np.where(missing, "", np.array([*order, ""], dtype=object)[codes]).astype(str)
    missing = missing | (texts == "")
    if name in changes.missing_values:
        missing = missing | _declared_missing(texts.tolist(), changes.missing_values[name])
    kept = tuple(dict.fromkeys(category for category in order if category))
    return Column(
        "text",
        np.where(missing, "", texts),
        missing,
        order=kept,
        ordered=bool(series.cat.ordered),
        source=source,
    )
