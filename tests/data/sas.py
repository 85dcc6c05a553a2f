"""Files of SAS, written by the library within pyreadstat, which has no function for them itself."""

from __future__ import annotations

import ctypes
import datetime
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

STRING, DOUBLE = 0, 5
"""Types of a column."""

EPOCH = datetime.date(1960, 1, 1)
ENCODING_AT, ENCODINGS = 70, {"utf-8": 20, "latin-1": 29, "cp1252": 62}
"""Place in a file of the number of its encoding, and numbers."""

WRITER = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def library() -> Any:
    """Return the library; its functions give pointers."""
    from pyreadstat import _readstat_writer

    functions = ctypes.CDLL(_readstat_writer.__file__)
    for name in ("writer_init", "add_variable", "add_label_set"):
        getattr(functions, f"readstat_{name}").restype = ctypes.c_void_p
    return functions


def collected(write: Callable[[Any, ctypes.c_void_p], None]) -> bytes:
    """Return the bytes that a function writes with a library and a writer."""
    functions, parts = library(), []
    writer = ctypes.c_void_p(functions.readstat_writer_init())

    def take(data: int, length: int, context: int) -> int:
        parts.append(ctypes.string_at(data, length))
        return length

    callback = WRITER(take)
    functions.readstat_set_data_writer(writer, callback)
    write(functions, writer)
    assert functions.readstat_end_writing(writer) == 0
    functions.readstat_writer_free(writer)
    return b"".join(parts)


def write_sas(
    path: Path,
    frame: pd.DataFrame,
    labels: Mapping[str, Mapping[float, str]] | None = None,
    encoding: str = "utf-8",
) -> Path:
    """Write columns of numbers, words and dates, and next to them the catalogue of labels.

    A string of one letter in a column of numbers is a special missing value, `.A` to `.Z`.
    """
    labels = labels or {}

    def write_rows(functions: Any, writer: ctypes.c_void_p) -> None:
        insert = [column_writer(functions, writer, frame[name], encoding) for name in frame]
        for name, (variable, _) in zip(frame, insert, strict=True):
            if name in labels:
                functions.readstat_variable_set_format(variable, name.upper().encode())
        rows = ctypes.c_long(len(frame))
        assert functions.readstat_begin_writing_sas7bdat(writer, None, rows) == 0
        for row in frame.itertuples(index=False):
            functions.readstat_begin_row(writer)
            for (variable, give), value in zip(insert, row, strict=True):
                give(variable, value)
            assert functions.readstat_end_row(writer) == 0

    def write_labels(functions: Any, writer: ctypes.c_void_p) -> None:
        for name, words in labels.items():
            format_of = functions.readstat_add_label_set(writer, DOUBLE, name.upper().encode())
            for code, label in words.items():
                given = ctypes.c_double(code), label.encode(encoding)
                functions.readstat_label_double_value(ctypes.c_void_p(format_of), *given)
        assert functions.readstat_begin_writing_sas7bcat(writer, None) == 0

    parts = {path: write_rows, path.with_suffix(".sas7bcat"): write_labels}
    for file, write in parts.items():
        data = bytearray(collected(write))
        data[ENCODING_AT] = ENCODINGS[encoding]
        file.write_bytes(data)
    return path


def column_writer(
    functions: Any, writer: ctypes.c_void_p, column: pd.Series, encoding: str
) -> tuple[ctypes.c_void_p, Callable[[ctypes.c_void_p, Any], None]]:
    """Return a column of a file that is being written, and what writes a value into it."""
    texts = [value for value in column if isinstance(value, str)]
    words = any(len(text) > 1 for text in texts) or len(texts) == len(column) > 0
    width = max([len(text.encode(encoding)) for text in texts], default=1) if words else 8
    name = str(column.name).encode(encoding)
    variable = ctypes.c_void_p(
        functions.readstat_add_variable(
            writer, name, STRING if words else DOUBLE, ctypes.c_size_t(width)
        )
    )
    days = any(isinstance(value, datetime.date) for value in column)
    if days:
        functions.readstat_variable_set_format(variable, b"DATE9")

    def give(variable: ctypes.c_void_p, value: Any) -> None:
        if words:
            functions.readstat_insert_string_value(writer, variable, value.encode(encoding))
        elif isinstance(value, str):
            tag = ctypes.c_char(value.encode())
            functions.readstat_insert_tagged_missing_value(writer, variable, tag)
        elif isinstance(value, datetime.date):
            number = ctypes.c_double((value - EPOCH).days)
            functions.readstat_insert_double_value(writer, variable, number)
        elif math.isnan(value):
            functions.readstat_insert_missing_value(writer, variable)
        else:
            functions.readstat_insert_double_value(writer, variable, ctypes.c_double(value))

    return variable, give
