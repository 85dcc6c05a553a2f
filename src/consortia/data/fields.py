"""Fields of a text file: where each begins and ends among its bytes.

Most files are cut by NumPy, those with odd quotes or ends of lines by `csv`. No string is made
before it is needed: a column of numbers never needs one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from consortia.errors import InputError

SEPARATORS = (",", ";", "\t", "|")

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line with its end, as a file that is opened with ``newline=""`` has them."""

MOST_BYTES = 40
"""Length of the longest field of a column that is read at a fixed width."""

Value = TypeVar("Value", bound=Hashable)


class Strings(NamedTuple):
    """The fields of one column, in UTF-8."""

    content: bytes  # `MOST_BYTES` further ones follow the last field
    starts: np.ndarray  # (rows,)
    ends: np.ndarray  # (rows,)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Strings:
        """Return fields that hold these strings."""
        fields = [text.encode() for text in texts]
        content = b"".join([*fields, bytes(MOST_BYTES)])
        ends = np.cumsum([len(field) for field in fields], dtype=np.intp)
        ends = ends.astype(_index_type(len(content)))
        return cls(content, ends - np.array([len(field) for field in fields], ends.dtype), ends)

    def fixed(self) -> np.ndarray | None:
        """Return the bytes, (rows, width), 0 behind the end of a field; None of longer fields."""
        lengths = self.ends - self.starts
        width = max(int(lengths.max()), 1)
        if width > MOST_BYTES:
            return None
        content = np.frombuffer(self.content, np.uint8)
        fixed = np.lib.stride_tricks.sliding_window_view(content, width)[self.starts]
        fixed *= np.arange(width) < lengths[:, None]
        return fixed

    def take(self, rows: np.ndarray) -> Strings:
        """Return some of the rows, by index."""
        return self._replace(starts=self.starts[rows], ends=self.ends[rows])

    def encoded(self) -> list[bytes]:
        """Return the fields."""
        bounds = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [self.content[start:end] for start, end in bounds]

    def distinct(self) -> tuple[list[str], np.ndarray]:
        """Return the distinct fields in the order of their first rows, and each row's index."""
        fields, indices = indexed(self.encoded())
        return [field.decode() for field in fields], indices


def indexed(values: Iterable[Value]) -> tuple[list[Value], np.ndarray]:
    """Return the distinct values in the order of their first rows, and each row's index."""
    indices: dict[Value, int] = {}
    rows = np.array([indices.setdefault(value, len(indices)) for value in values], dtype=np.intp)
    return list(indices), rows


class Fields(NamedTuple):
    """The fields of all rows, one row after the other; the first is the header."""

    content: bytes
    starts: np.ndarray  # (fields,)
    ends: np.ndarray  # (fields,)
    counts: np.ndarray  # fields of each row, (rows,)
    lines: np.ndarray  # of the file, (rows,)

    @property
    def header(self) -> list[str]:
        """The fields of the first row."""
        count = int(self.counts[0])
        first = Strings(self.content, self.starts[:count], self.ends[:count])
        return [field.decode() for field in first.encoded()]

    def columns(self) -> list[Strings]:
        """Return the columns under the header; every row must have as many fields as it."""
        count = int(self.counts[0])
        bounds = [places.reshape(-1, count)[1:].T for places in (self.starts, self.ends)]
        return [Strings(self.content, *map(np.array, both)) for both in zip(*bounds, strict=True)]


def cut(text: str, separator: str, path: Path, skipped: int) -> Fields:
    """Return the fields of the text of a file without its first lines, of which ``skipped`` tells.

    Raises:
        InputError: a quote is where none can be, or has no end; the message names the line.
    """
    content = text.encode()
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n")
    if separator in SEPARATORS and b"\r" not in content:
        fields = _at_separators(content, ord(separator), skipped)
        if fields is not None:
            return fields
    return _by_csv(text, separator, path, skipped)


def _at_separators(content: bytes, separator: int, skipped: int) -> Fields | None:
    """Return the fields; None where only `csv` knows what a quote means, or refuses a field."""
    length = len(content) + (not content.endswith(b"\n"))
    content = content.ljust(length, b"\n") + bytes(MOST_BYTES)
    array = np.frombuffer(content, np.uint8, length)
    breaks, quotes = array == ord("\n"), array == ord('"')
    marks = breaks | (array == separator)
    if quotes.any():
        opening, closing = (places := np.flatnonzero(quotes))[::2], places[1::2]
        if len(places) % 2 or not (marks[opening - 1].all() and marks[closing + 1].all()):
            return None
        quoted = np.logical_xor.accumulate(quotes)
        if (breaks & quoted).any():
            return None
        marks &= ~quoted
    ends = np.flatnonzero(marks).astype(_index_type(length))
    last = np.flatnonzero(breaks[ends])  # the field that ends a line
    counts = np.diff(last, prepend=-1)
    starts = np.concatenate([[0], ends[:-1] + 1], dtype=ends.dtype)
    if (ends - starts).max() > csv.field_size_limit():
        return None
    blank = (counts == 1) & (ends[last] == starts[last])
    if blank.any():
        kept = np.repeat(~blank, counts)
        starts, ends = starts[kept], ends[kept]
    if quotes.any():
        within = quotes[starts].astype(ends.dtype)
        starts, ends = starts + within, ends - within
    lines = np.flatnonzero(~blank) + 1 + skipped
    return Fields(content, starts, ends, counts[~blank], lines)


def _by_csv(text: str, separator: str, path: Path, skipped: int) -> Fields:
    lines_of_text = (line[0] for line in LINE.finditer(text))
    reader = csv.reader(lines_of_text, delimiter=separator, skipinitialspace=True, strict=True)
    parts: list[str] = []
    rows: list[tuple[int, int]] = []
    try:
        for row in reader:
            if row:
                parts += row
                rows.append((len(row), reader.line_num + skipped))
    except csv.Error as error:
        hint = " (is it UTF-16? write its encoding)" if "\0" in text.partition("\n")[0] else ""
        line = reader.line_num + skipped
        raise InputError(f"{path}, line {line}: {error}{hint}.").at(line=line) from error
    content, starts, ends = Strings.of(parts)
    counts, lines = np.array(rows, dtype=np.intp).reshape(-1, 2).T
    return Fields(content, starts, ends, counts, lines)


def _index_type(length: int) -> type[np.signedinteger]:
    return np.int32 if length < 2**31 else np.int64
