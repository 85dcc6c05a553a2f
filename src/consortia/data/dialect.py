"""The dialect of a text file: its encoding, its separator, and the marks in its numbers.

Decimal and thousands marks belong to the file, not to a column: ``45,5`` in one column decides that
``150.000`` in another is a hundred and fifty thousand. What nothing in the file decides is refused
where a number is required.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from consortia.data.mending import mend
from consortia.errors import InputError

SEPARATORS = (",", ";", "\t", "|")
DECLARED = re.compile(r"sep=(.)\s*", re.IGNORECASE)
"""A first line that gives Excel the separator."""

MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte order marks; with UTF-16 a NUL stands beside every plain letter."""

EXPONENT = r"([eE][+-]?[0-9]+)?"
PATTERNS = {
    ".": re.compile(rf"[+-]?([0-9]+|[1-9][0-9]{{0,2}}(,[0-9]{{3}})+)?(\.[0-9]*)?{EXPONENT}"),
    ",": re.compile(rf"[+-]?([0-9]+|[1-9][0-9]{{0,2}}(\.[0-9]{{3}})+)?(,[0-9]*)?{EXPONENT}"),
}
"""A number by its decimal mark, thousands perhaps set apart by the other mark."""

NUMBER = re.compile(r"[+-]?[0-9.,]*[0-9][0-9.,]*([eE][+-]?[0-9]+)?")


class Dialect:
    """The marks in the numbers of one file.

    Args:
        separator: of its fields.
        columns: the strings of all columns, by name; read only where a mark has to be decided.
        decimal: the mark that the study declares for the file, or None.
        site: name of the site, for the messages.
        line: of a row, by its index.
        plain: no field can have a decimal comma, as in most files.
        ascii: all fields are in ASCII.
    """

    def __init__(
        self,
        separator: str,
        columns: Mapping[str, Sequence[str]],
        decimal: str | None,
        site: str,
        line: Callable[[int], str],
        *,
        plain: bool = False,
        ascii: bool = False,
    ) -> None:
        self.plain, self.ascii = plain, ascii
        self.separator, self._columns, self._declared = separator, columns, decimal
        self._site, self._line = site, line

    @property
    def decimal(self) -> str | None:
        """The decimal mark, or None where nothing decides."""
        return self._decided[0]

    @property
    def reason(self) -> str:
        """Reason why there is no decimal mark."""
        return self._decided[1]

    @cached_property
    def _decided(self) -> tuple[str | None, str]:
        if self._declared is not None:
            return self._declared, ""
        found: dict[str, str] = {}
        open_marks: dict[str, str] = {}
        for name, given in self._columns.items():
            distinct = {text.strip() for text in given}
            if not any("." in text or "," in text for text in distinct):
                continue
            numbers = {text for text in distinct if NUMBER.fullmatch(text)}
            if len(numbers) < len(distinct - WORDS) or len(found) == 2:
                continue
            for text in numbers:
                fits = [mark for mark, pattern in PATTERNS.items() if pattern.fullmatch(text)]
                marks = [mark for mark in ".," if mark in text]
                if len(fits) == 1 and fits[0] not in found:
                    place = [one.strip() for one in given].index(text)
                    found[fits[0]] = f"{text!r} in {self._line(place)}, column {name!r}"
                elif len(fits) == 2 and marks:
                    open_marks.setdefault(marks[0], text)
        point = mend(self._site, "", 'decimal = "."')
        choice = f'write {point}, or decimal = ","'
        if len(found) == 2:
            both = " beside ".join(found.values())
            return None, f"the file has numbers with both decimal marks, {both}: {choice}"
        if found:
            return next(iter(found)), ""
        if self.separator == ";" and "," in open_marks:
            return ",", ""
        if self.separator == "," and "," not in open_marks:
            return ".", ""
        if open_marks:
            mark, text = next(iter(open_marks.items()))
            kinds = "commas seem to set thousands apart" if mark == "," else "dots may do so"
            return None, (
                f"{kinds}: {text!r} is {text.replace(mark, '')} or {text.replace(mark, '.')}, and "
                f"nothing in the file decides: {choice}"
            )
        return ".", ""

    def numbers(self, known: np.ndarray) -> tuple[np.ndarray | None, str]:
        """Return strings as numbers, or None and the reason ("" if they are unlike numbers)."""
        import pandas as pd

        series = pd.Series(known, dtype=object)
        if self.plain:
            found = pd.to_numeric(series, errors="coerce").to_numpy(float)
            return (None, "") if np.isnan(found).any() else (found, "")
        marked = {text for text in set(known) if "," in text or "." in text}
        if not all(NUMBER.fullmatch(text) for text in set(known)):
            return None, ""
        if not marked:
            return pd.to_numeric(series, errors="coerce").to_numpy(float), ""
        mark = self.decimal
        if mark is None:
            return None, self.reason
        for text in marked:
            if not PATTERNS[mark].fullmatch(text):
                return None, f"{text!r} is not a number in a file whose decimal mark is {mark!r}"
        other = "," if mark == "." else "."
        texts = series.str.replace(other, "", regex=False).str.replace(mark, ".", regex=False)
        return pd.to_numeric(texts).to_numpy(float), ""


WORDS = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", ".", "#N/A"})
"""Words that a file writes for a missing value."""


def encoding_of(path: Path, declared: str | None) -> str:
    """Return the encoding of a file, from its first bytes."""
    with path.open("rb") as content:
        first = content.read(4)
    for mark, name in MARKS.items():
        if first.startswith(mark):
            return name
    return declared or "utf-8"


def fitting_encoding(path: Path) -> str:
    """Return an encoding that a text file may be in: UTF-8, or one of Western Europe."""
    if path.suffix.lower() not in (".csv", ".tsv", ".txt") or not path.is_file():
        return "utf-8"
    if encoding_of(path, None) != "utf-8":
        return "utf-8"  # its first bytes say what it is
    content = path.read_bytes()
    for encoding in ("utf-8", "cp1252"):
        try:
            content.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return "latin-1"


def scanned(path: Path) -> tuple[bool, bool]:
    """Return whether a file has quotes, and whether it is in ASCII."""
    quoted, ascii = False, True
    with path.open("rb") as content:
        while part := content.read(2**22):
            quoted, ascii = quoted or b'"' in part, ascii and part.isascii()
    return quoted, ascii


def undecodable(path: Path, site: str, encoding: str) -> InputError:
    """Return why a file cannot be decoded, with the line and what mends it."""
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        try:
            line.decode(encoding)
        except UnicodeDecodeError as error:
            line_of_toml = mend(site, "", 'encoding = "latin-1"')
            return InputError(
                f"{path} is not written in {encoding.upper()} (line {number}, the byte "
                f"0x{line[error.start]:02x}): write {line_of_toml}, or the encoding that it has."
            )
    return InputError(f"{path} is not written in {encoding.upper()}.")


def separator_of(line: str) -> str:
    """Return the separator by which a line has the most fields."""
    unquoted = re.sub(r'"[^"]*"', "", line)
    return max(SEPARATORS, key=unquoted.count)
