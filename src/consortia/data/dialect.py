"""The dialect of a text file: its encoding, its separator, and the marks in its numbers.

Decimal and thousands marks belong to the file, not to a column: ``45,5`` in one column decides that
``150.000`` in another is a hundred and fifty thousand. What nothing in the file decides is refused
where a number is required.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from consortia.data.columns import level
from consortia.data.fields import SEPARATORS, Strings
from consortia.data.mending import mend
from consortia.data.numerals import Numerals, numerals
from consortia.errors import InputError

if TYPE_CHECKING:
    from consortia.data.harmonisation import Harmonisation

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


WORDS = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", ".", "#N/A"})
"""Words that a file writes for a missing value."""


class Dialect:
    """The marks in the numbers of one file.

    Args:
        separator: of its fields.
        columns: the strings of all columns, by name; read only where a mark has to be decided.
        changes: those that the study makes to the file.
        site: name of the site, for the messages.
        line: of a row, by its index.
        plain: no field can have a decimal comma, as in most files.
    """

    def __init__(
        self,
        separator: str,
        columns: Mapping[str, Strings],
        changes: Harmonisation,
        site: str,
        line: Callable[[int], str],
        *,
        plain: bool = False,
    ) -> None:
        self.plain, self.separator = plain, separator
        self._columns, self._changes = columns, changes
        self._site, self._line = site, line
        self._numerals: dict[str, Numerals | None] = {}

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
        if self._changes.decimal is not None:
            return self._changes.decimal, ""
        if self.plain:
            return ".", ""
        decisive: dict[str, str] = {}
        undecided: dict[str, str] = {}
        for name in self._columns:
            for row, text in self._marked(name, decisive):
                fits = [mark for mark, pattern in PATTERNS.items() if pattern.fullmatch(text)]
                if len(fits) == 1 and fits[0] not in decisive:
                    decisive[fits[0]] = f"{text!r} in {self._line(row)}, column {name!r}"
                elif len(fits) == 2:
                    undecided.setdefault("." if "." in text else ",", text)
        point = mend(self._site, "", 'decimal = "."')
        choice = f'write {point}, or decimal = ","'
        if len(decisive) == 2:
            both = " beside ".join(decisive.values())
            return None, f"the file mixes both decimal marks, {both}: {choice}"
        if decisive:
            return next(iter(decisive)), ""
        if self.separator == ";" and "," in undecided:
            return ",", ""
        if self.separator == "," and "," not in undecided:
            return ".", ""
        if undecided:
            mark, text = next(iter(undecided.items()))
            kinds = (
                "commas seem to separate thousands"
                if mark == ","
                else "dots may separate thousands"
            )
            return None, (
                f"{kinds}: {text!r} is {text.replace(mark, '')} or {text.replace(mark, '.')}, "
                f"and nothing else in the file tells which: {choice}"
            )
        return ".", ""

    def _marked(self, name: str, decisive: Mapping[str, str]) -> Iterator[tuple[int, str]]:
        """Yield rows and strings with a mark of a column of numbers, as long as they may decide."""
        if (numbers := self._plain_numbers(name)) is not None:
            # of a number with one mark, and none with two, the other is never the decimal mark
            if numbers.mark:
                for row in np.flatnonzero(~numbers.words).tolist():
                    if numbers.mark in decisive:
                        return
                    if numbers.mark in numbers.given[row]:
                        yield row, numbers.given[row]
            return
        fields, indices = self._columns[name].distinct()
        texts = [text.strip() for text in fields]
        misses = self._misses(name)
        if len(decisive) < 2 and all(misses(text) or self.is_number(text) for text in texts):
            for index, text in enumerate(texts):
                if not misses(text) and ("," in text or "." in text):
                    yield int(np.argmax(indices == index)), text

    def numerals(self, name: str) -> Numerals | None:
        """Return a column of plain numbers in the file's decimal mark; None of any other."""
        numbers = self._plain_numbers(name)
        if numbers is None or (numbers.mark and numbers.mark != self.decimal):
            return None
        return self._numerals.pop(name)

    def _plain_numbers(self, name: str) -> Numerals | None:
        if name not in self._numerals:
            self._numerals[name] = numerals(self._columns[name], self._misses(name))
        return self._numerals[name]

    def _misses(self, name: str) -> Callable[[str], bool]:
        """Return the test for words that stand for a missing number in a column."""
        declared = {level(code) for code in self._changes.missing_values.get(name, ())}
        return (WORDS | declared).__contains__

    def numbers(self, texts: Sequence[str]) -> tuple[list[float] | None, str]:
        """Return strings as numbers, or None and the reason ("" if they are unlike numbers)."""
        if not all(map(self.is_number, texts)):
            return None, ""
        marked = [text for text in texts if "," in text or "." in text]
        if not marked or self.plain:
            return list(map(float, texts)), ""
        mark = self.decimal
        if mark is None:
            return None, self.reason
        for text in marked:
            if not PATTERNS[mark].fullmatch(text):
                return None, f"{text!r} is not a number in a file whose decimal mark is {mark!r}"
        other = "," if mark == "." else "."
        return [float(text.replace(other, "").replace(mark, ".")) for text in texts], ""

    def is_number(self, text: str) -> bool:
        """Return True for a number, whatever its marks mean."""
        return number_of(text) is not None or (
            not self.plain and NUMBER.fullmatch(text) is not None
        )


def number_of(text: str) -> float | None:
    """Return the number that a string writes, with a decimal point; None where it writes none."""
    if not text.isascii() or "_" in text:  # `float` takes digits of any script, and 1_000
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number


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


def undecodable(path: Path, site: str, encoding: str) -> InputError:
    """Describe the fault that keeps a file from being decoded, with its line and a remedy."""
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        try:
            line.decode(encoding)
        except UnicodeDecodeError as error:
            line_of_toml = mend(site, "", 'encoding = "latin-1"')
            return InputError(
                f"{path} is not encoded in {encoding.upper()} (line {number}, the byte "
                f"0x{line[error.start]:02x}): write {line_of_toml}, or the actual encoding."
            )
    return InputError(f"{path} is not encoded in {encoding.upper()}.")


def separator_of(line: str) -> str:
    """Return the separator by which a line has the most fields."""
    unquoted = re.sub(r'"[^"]*"', "", line)
    return max(SEPARATORS, key=unquoted.count)
