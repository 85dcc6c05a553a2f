"""Text files are cut into the fields that `csv` finds in them, whichever way they are cut."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consortia.data.fields import Fields, Strings, cut
from tests.refusals import refused


def rows_of(fields: Fields) -> list[tuple[int, list[str]]]:
    strings = Strings(fields.content, fields.starts, fields.ends)
    texts = iter([field.decode() for field in strings.encoded()])
    return [
        (line, [next(texts) for _ in range(count)])
        for line, count in zip(fields.lines.tolist(), fields.counts.tolist(), strict=True)
    ]


def by_csv(text: str, separator: str) -> list[tuple[int, list[str]]] | str:
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True
    )
    try:
        return [(reader.line_num, fields) for fields in reader if fields]
    except csv.Error as error:
        return f"line {reader.line_num}: {error}."


PIECES = ["a", "1.5", "é", ",", ";", '"', '""', '"b,c"', '"d"', " ", "\n", "\r\n", "\r", "\0", "\t"]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join), st.sampled_from(",;\t"))
@example('a,b\n"c\nd",1\n2,3\n', ",")
@example('a,b\n"c,d",""\n\n"",2', ",")
@example('"a" ,b\n1,2\n', ",")
@example("a,b\n\n 1,2\r\n\r\n", ",")
@example('a,b\n"""c""",1\n', ",")
@example('a,b\n1,5" pipe\n2,6" pipe\n', ",")
def test_a_file_has_the_fields_and_lines_that_csv_finds(text: str, separator: str) -> None:
    expected = by_csv(text, separator)
    if isinstance(expected, str):
        with refused(match=re.escape(expected.rstrip("."))):
            cut(text, separator, Path("site.csv"), 0)
        return
    found = rows_of(cut(text, separator, Path("site.csv"), 0))
    assert without_blanks(found) == without_blanks(expected)


def without_blanks(rows: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """Return rows without the blanks before a field, which are no part of it."""
    return [(line, [field.lstrip(" ") for field in fields]) for line, fields in rows]


def test_a_field_that_csv_refuses_for_its_length_is_refused(tmp_path: Path) -> None:
    with refused(line=2, match="line 2: field larger than field limit"):
        cut("a,b\n" + "1" * 200_000 + ",2\n", ",", tmp_path, 0)


def test_fields_of_one_width_end_where_they_end() -> None:
    strings = cut("a,b\n1,22\n333,\n,4\n", ",", Path("site.csv"), 0).columns()[1]
    fixed = strings.fixed()
    assert fixed is not None
    assert [bytes(row) for row in fixed] == [b"22", b"\0\0", b"4\0"]
    long = cut("a\n" + "1" * 41 + "\n", ",", Path("site.csv"), 0).columns()[0]
    assert long.fixed() is None
    assert long.take(np.array([0])).distinct()[0] == ["1" * 41]
