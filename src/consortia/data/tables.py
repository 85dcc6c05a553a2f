"""Tables as people have them: CSV of any dialect, Parquet, Feather, npz, frames, dicts of arrays.

A column keeps the strings or integers that were read. It is parsed on its first use, and nothing
is guessed from more than one file.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consortia.data.columns import Column, Guess, Kind, LazyTable, Source, level
from consortia.data.dialect import (
    DECLARED,
    WORDS,
    Dialect,
    encoding_of,
    scanned,
    separator_of,
    undecodable,
)
from consortia.data.mending import in_formula, key, mend, text
from consortia.data.writing import one_writing
from consortia.errors import InputError

if TYPE_CHECKING:
    from consortia.data.harmonisation import Harmonisation

TRUTHS = {"true": 1.0, "false": 0.0}
EXACT = 2**53
"""Integers beyond it are not all numbers of their own in float64."""

ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})"
DATE = re.compile(
    rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([ T][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]+)?)?{ZONE}?)?"
)
OTHER_DATE = re.compile(
    r"[0-9]{1,2}[./-][0-9]{1,2}[./-]([0-9]{2}|[0-9]{4})|[0-9]{4}[./][0-9]{1,2}[./][0-9]{1,2}"
)
"""A date in another order or with other marks than ISO 8601's."""

YEARS = (1678, 2261)
"""Years of dates that every version of pandas has; others usually stand for no date."""

MICROSECONDS = 86_400e6
"""Microseconds of a day."""

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
        source: a path (.csv, .tsv, .txt, .parquet, .feather, .arrow, .npz), a
            `pandas.DataFrame`, whatever has ``to_pandas`` (Arrow, Polars), or a dict of columns.
        where: what it is, for the messages.
        site: name of the site that has it, for the messages.
        harmonise: changes that the study makes to it.

    Raises:
        InputError: it cannot be read; the message names the file, the line (the header being the
            first) and the column where there are any.
    """
    import pandas as pd  # heavy: only who gives a table pays for it

    from consortia.data.harmonisation import NONE  # pydantic is, too

    changes = harmonise or NONE
    if isinstance(source, (str, Path)):
        return _read_file(Path(source), site, changes)
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
    return _of_frame(frame, Source(where, site), changes)


# --- files ---------------------------------------------------------------------------------------


def _read_file(path: Path, site: str, changes: Harmonisation) -> LazyTable:
    import pandas as pd

    readers = {".csv": _read_csv, ".tsv": _read_csv, ".txt": _read_csv, ".npz": _read_npz}
    arrow = {".parquet": pd.read_parquet, ".feather": pd.read_feather, ".arrow": pd.read_feather}
    kind = path.suffix.lower()
    if kind not in {**readers, **arrow}:
        raise InputError(f"{path}: give one of {', '.join((*readers, *arrow))}.")
    if not path.is_file():
        raise InputError(f"{path}: there is no such file.")
    try:
        if kind in readers:
            return readers[kind](path, site, changes)
        return _of_frame(arrow[kind](path), Source(str(path), site), changes)
    except ImportError as error:
        raise InputError(
            f'{path}: {kind} files are read by pyarrow: pip install "consortia[parquet]".'
        ) from error
    except UnicodeError as error:
        raise undecodable(path, site, encoding_of(path, changes.encoding)) from error
    except (ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def _read_npz(path: Path, site: str, changes: Harmonisation) -> LazyTable:
    import pandas as pd

    with np.load(path, allow_pickle=False) as stored:
        frame = pd.DataFrame({name: stored[name] for name in stored.files})
    return _of_frame(frame, Source(str(path), site), changes)


def _read_csv(path: Path, site: str, changes: Harmonisation) -> LazyTable:
    with path.open(encoding=encoding_of(path, changes.encoding), newline="") as lines:
        first, skipped = lines.readline(), 0
        if declared := DECLARED.fullmatch(first):
            separator, skipped = declared[1], 1
        else:
            separator = separator_of(first)
            lines.seek(0)
        reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
        try:
            found = [(reader.line_num + skipped, fields) for fields in reader if fields]
        except csv.Error as error:
            hint = " (is it UTF-16? write its encoding)" if "\0" in first else ""
            raise InputError(f"{path}, line {reader.line_num + skipped}: {error}{hint}.") from error
    if len(found) < 2:
        raise InputError(f"{path}: there are no rows under the header.")
    _check_header(path, found, separator)
    found = _without_empty(found)
    numbers = np.array([line for line, _ in found[1:]])
    source = Source(str(path), site, numbers)
    head = f"{path}, line {found[0][0]}"
    names = _new_names(found[0][1], head, site, changes)
    columns = dict(zip(names, zip(*(fields for _, fields in found[1:]), strict=True), strict=True))
    quoted, ascii = scanned(path)
    plain = separator == "," and not quoted and changes.decimal is None
    dialect = Dialect(
        *(separator, columns, changes.decimal, site),
        lambda place: f"line {int(numbers[place])}",
        plain=plain,
        ascii=ascii,
    )

    def maker(name: str) -> Callable[[], Column]:
        def make() -> Column:
            given = columns.pop(name) if plain else columns[name]
            return _of_texts(name, given, dialect, source, changes)

        return make

    return LazyTable({name: maker(name) for name in names}, len(numbers), head)


def _check_header(path: Path, found: Sequence[tuple[int, list[str]]], separator: str) -> None:
    """Refuse rows that do not have a value for each name."""
    (first, header), (_, second) = found[0], found[1]
    given = [name for name in header if name.strip()]
    if len(second) > len(header) == 1 or (len(given) == 1 < len(header) == len(second)):
        raise InputError(
            f"{path}, line {first}: {_shown(given[0]) if given else 'it'} seems to be a title, and "
            "no header: leave out what stands above the names of the columns."
        )
    for line, fields in found[1:]:
        if len(fields) != len(header):
            raise InputError(
                f"{path}, line {line}: {len(fields)} fields under {len(header)} names "
                f"(they are set apart by {separator!r})."
            )


def _without_empty(found: Sequence[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """Return the rows without columns that have neither a name nor a value.

    Where every line ends in a separator there is one.
    """
    unnamed = [place for place, name in enumerate(found[0][1]) if not name.strip()]
    empty = {
        place for place in unnamed if not any(fields[place].strip() for _, fields in found[1:])
    }
    if not empty:
        return list(found)
    return [
        (line, [one for place, one in enumerate(fields) if place not in empty])
        for line, fields in found
    ]


def _new_names(given: Sequence[str], where: str, site: str, changes: Harmonisation) -> list[str]:
    """Return the names of the columns in one writing, renamed; refuse doubled and empty ones."""
    names = one_writing([str(name) for name in given])
    names = changes.new_names(names, where)
    doubled = sorted({name for name in names if names.count(name) > 1})
    if "" in names or doubled:
        what = "a column without a name: leave it out (pandas: index=False), or write "
        what += mend(site, "rename", '"" = "row"')
        if doubled and "" not in names:
            what = f"the name {doubled[0]!r} twice"
        raise InputError(f"{where} has {what}.")
    changes.check_columns(names, where)
    return names


# --- columns of strings --------------------------------------------------------------------------


def _of_texts(
    name: str,
    given: Sequence[str],
    dialect: Dialect | None,
    source: Source,
    changes: Harmonisation,
) -> Column:
    """Return a column of strings, its kind found from all its values.

    ``dialect`` is that of a file; strings of a frame, without one, stay strings.
    """
    ascii = dialect is not None and dialect.ascii
    listed, guesses = one_writing(given, ascii=ascii), []
    if words := changes.recode.get(name):
        guesses += _unused(name, words, set(listed), source)
        listed = [words.get(one, one) for one in listed]
    texts = np.array(listed, dtype=object)
    words_missing = np.array([one in WORDS for one in listed])
    empty = words_missing.copy()
    empty[words_missing] = texts[words_missing] == ""
    if name in changes.missing_values:
        empty |= _declared_missing(texts, changes.missing_values[name])
        words_missing |= empty
    column = _as_kind(name, texts, words_missing, dialect, source)
    counts = Counter(texts[words_missing & ~empty].tolist())
    if column.kind == "text" and counts:
        # in a column of words only the empty field misses
        column = column._replace(values=np.where(empty, "", texts).astype(str), missing=empty)
        if name not in changes.missing_values:
            guesses += [word_kept(name, source.site, *one) for one in counts.items()]
    elif counts:
        column = column._replace(words=words_missing & ~empty)
        for word, count in counts.items():
            said = f"{_at(source)}{name}: {_shown(word)} is missing, in {_rows(count)}"
            guesses.append(Guess(name, said, "", count))
    if changes.scale.get(name, 1.0) != 1.0:
        if column.kind != "number":
            raise InputError(f"{source.name}: scale: the column {name!r} holds no numbers.")
        column = column._replace(values=column.values * changes.scale[name])
    return column._replace(guesses=(*column.guesses, *guesses), source=source)


def _as_kind(
    name: str, texts: np.ndarray, missing: np.ndarray, dialect: Dialect | None, source: Source
) -> Column:
    known, values = texts[~missing], np.zeros(len(texts))
    if not len(known):
        return Column("empty", values, missing, given=texts)

    def of(kind: Kind, found: Any) -> Column:
        values[~missing] = np.asarray(found, float)
        return Column(kind, values, missing, given=texts)

    reason, distinct = "", set(known)
    if all(one.lower() in TRUTHS for one in distinct):
        return of("truth", [TRUTHS[one.lower()] for one in known])
    if dialect is not None:
        numbers, reason = dialect.numbers(known)
        if numbers is not None:
            return of("number", numbers)._replace(doubt=_too_large(numbers))
        if all(DATE.fullmatch(one) for one in distinct):
            return _of_dates(name, texts, missing, source)
    doubt = reason or _doubt(name, texts, missing, source, file=dialect is not None)
    return Column("text", np.where(missing, "", texts).astype(str), missing, doubt)


def _doubt(name: str, texts: np.ndarray, missing: np.ndarray, source: Source, *, file: bool) -> str:
    """Return why strings may be meant as numbers or dates, or ""."""
    import pandas as pd

    known = texts[~missing]
    distinct = sorted(set(known))
    levels = f"write C({in_formula(name)}) for levels"
    if all(OTHER_DATE.fullmatch(one) for one in distinct):
        return (
            f"its strings seem to be dates: write them as year-month-day, 2024-01-31; or {levels}"
        )
    if not file and all(DATE.fullmatch(one) for one in distinct):
        return f"its strings are dates: convert them (pandas.to_datetime), or {levels}"
    plain = ~pd.to_numeric(pd.Series(distinct, dtype=object), errors="coerce").isna().to_numpy(bool)
    if not file and plain.all():
        if len(distinct) <= FEW:  # somebody has made strings of codes
            return ""
        return f"its strings are numbers: convert them (pandas.to_numeric), or {levels}"
    if not plain.any() and not all(NEARLY.fullmatch(one) for one in distinct):
        return ""
    wrong = np.isin(known.astype(str), np.array(distinct)[~plain])
    place = np.flatnonzero(~missing)[np.flatnonzero(wrong)[0]]
    where = f"row {place + 1}" if source.lines is None else f"line {source.lines[place]}"
    first = str(texts[place])
    hint = ""
    if first.isdigit() and not first.isascii():
        hint = ", whose digits are not 0 to 9"
    code = mend(source.site, "missing_values", f"{key(name)} = [{text(first)}]")
    return (
        f"{int(wrong.sum())} of {len(known)} values are no numbers, the first in {where}: "
        f"{_shown(first)}{hint}: {levels}, or {code} where it stands for a missing value, or "
        "correct them"
    )


def _too_large(numbers: np.ndarray) -> str:
    if (np.abs(numbers) >= EXACT).any() and bool((numbers == np.round(numbers)).all()):
        return "it holds integers beyond 2^53, of which numbers keep the first 16 digits"
    return ""


def _of_dates(name: str, texts: np.ndarray, missing: np.ndarray, source: Source) -> Column:
    """Return a column of strings of dates, as days since 1970-01-01.

    A date that cannot be used makes the whole column doubtful: it matters only where it is used.
    """
    import pandas as pd

    known, values = texts[~missing], np.zeros(len(texts))
    zoned = np.array([re.search(rf":[0-9.]+{ZONE}$", one) is not None for one in known])
    dates = pd.to_datetime(pd.Series(known.tolist()), utc=True, format="ISO8601", errors="coerce")
    wrong = ~dates.dt.year.between(*YEARS).to_numpy(bool)
    days = dates.mask(wrong).dt.as_unit("us").to_numpy("datetime64[us]").astype(float)
    values[~missing] = np.where(wrong, np.nan, days / MICROSECONDS)
    doubt = ""
    if wrong.any():
        place = int(np.flatnonzero(~missing)[np.flatnonzero(wrong)[0]])
        line = mend(source.site, "missing_values", f"{key(name)} = [{text(texts[place])}]")
        where = f"row {place + 1}" if source.lines is None else f"line {source.lines[place]}"
        doubt = (
            f"not every value is a date of the years {YEARS[0]} to {YEARS[1]}, the first in "
            f"{where}: {texts[place]!r}: {line} where it stands for a missing value, or correct it"
        )
    elif zoned.any() and not zoned.all():
        doubt = (
            f"{int(zoned.sum())} of {len(zoned)} times have a time zone and the others none: write "
            "all with one, or all without"
        )
    return Column("date", values, missing, doubt, given=texts, source=source)


def _declared_missing(texts: np.ndarray, codes: Sequence[str | int | float]) -> np.ndarray:
    """Return which strings are one of the codes for a missing value, as strings or as numbers."""
    import pandas as pd

    names = [level(code) for code in codes]
    found = np.isin(texts.astype(str), names)
    numbers = pd.to_numeric(pd.Series(names, dtype=object), errors="coerce").dropna()
    if len(numbers):
        values = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce")
        found |= values.isin(numbers).to_numpy(bool)
    return found


def word_kept(name: str, site: str, word: str, count: int) -> Guess:
    """Return what is said of a word such as NA that is taken as a level."""
    where = f"{site}: " if site else ""
    said = f"{where}{name}: {_shown(word)} is a level, and not missing, in {_rows(count)}"
    line = mend(site, "missing_values", f"{key(name)} = []")
    return Guess(name, said, f"{line} confirms it, [{text(word)}] makes it missing", count)


def _unused(name: str, words: Mapping[str, str], there: set[str], source: Source) -> list[Guess]:
    absent = [word for word in words if word not in there]
    return [
        Guess(name, f"{_at(source)}{name}: recode names {_shown(one)}, which no row has")
        for one in absent
    ]


def _at(source: Source) -> str:
    return f"{source.site}: " if source.site else ""


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _shown(value: str) -> str:
    return repr(value if len(value) <= MOST_SHOWN else f"{value[:MOST_SHOWN]}...")


# --- frames --------------------------------------------------------------------------------------


def _of_frame(frame: Any, source: Source, changes: Harmonisation) -> LazyTable:
    given = [str(name) for name in frame.columns]
    if not len(frame) or not given:
        raise InputError(f"{source.name} is empty: leave it out, or give it at least one row.")
    names = _new_names(given, source.name, source.site, changes)

    def maker(place: int, name: str) -> Callable[[], Column]:
        return lambda: _of_series(name, frame.iloc[:, place], source, changes)

    makers = {name: maker(place, name) for place, name in enumerate(names)}
    return LazyTable(makers, len(frame), source.name)


def _of_series(name: str, series: Any, source: Source, changes: Harmonisation) -> Column:
    import pandas as pd

    where, missing = f"{source.name}, column {name!r}", series.isna().to_numpy(bool)
    known = series[~missing]
    values = np.zeros(len(series))
    if not len(known):
        return Column("empty", values, missing, source=source)
    if isinstance(series.dtype, pd.CategoricalDtype) and name not in changes.recode:
        return _of_categories(name, series, missing, source, changes)
    if isinstance(series.dtype, pd.CategoricalDtype):
        known = known.astype(series.cat.categories.dtype)
    found = pd.api.types.infer_dtype(known, skipna=True)
    if found in ("string", "mixed-integer") or name in changes.recode:
        texts = np.full(len(series), "", dtype=object)
        texts[~missing] = [level(one) for one in known.tolist()]
        # what is recoded is read as a file's: "yes" as "1" is a number where other sites have one
        recoded = name in changes.recode
        dialect = Dialect(",", {}, ".", source.site, str) if recoded else None
        return _of_texts(name, texts.tolist(), dialect, source, changes)
    if found == "boolean":
        values[~missing] = known.to_numpy(bool)
        return Column("truth", values, missing, source=source)
    if found in ("datetime64", "datetime", "date"):
        given = np.full(len(series), "", dtype=object)
        given[~missing] = [one.isoformat() for one in known.tolist()]
        if name in changes.missing_values:
            missing = missing | _declared_missing(given, changes.missing_values[name])
        return _of_dates(name, given, missing, source)
    if found not in ("integer", "floating", "mixed-integer-float", "decimal"):
        raise InputError(f"{where}: its values are {found}: give numbers, strings or dates.")
    numbers = known.to_numpy(float)
    given = np.full(len(series), "", dtype=object)
    given[~missing] = [level(one) for one in known.tolist()] if found != "floating" else ""
    values[~missing] = numbers
    if name in changes.missing_values:
        codes = [float(one) for one in changes.missing_values[name] if is_number(one)]
        missing = missing | np.isin(values, codes)
    values = values * changes.scale.get(name, 1.0)
    doubt = _too_large(numbers) if found == "integer" else ""
    kept = given if found != "floating" else None
    return Column("number", values, missing, doubt, given=kept, source=source)


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
    order = one_writing([level(one) for one in series.cat.categories.tolist()])
    codes = series.cat.codes.to_numpy()
    texts = np.where(missing, "", np.array([*order, ""], dtype=object)[codes]).astype(str)
    missing = missing | (texts == "")
    if name in changes.missing_values:
        missing = missing | _declared_missing(texts, changes.missing_values[name])
    kept = tuple(dict.fromkeys(one for one in order if one))
    return Column(
        "text",
        np.where(missing, "", texts),
        missing,
        order=kept,
        ordered=bool(series.cat.ordered),
        source=source,
    )
