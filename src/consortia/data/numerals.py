"""Columns of plain numbers, read without a string of each: digits, signs, one mark, an exponent.

What else such a column holds is looked at word by word: an empty field, or NA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from consortia.data.fields import Strings
from consortia.data.writing import one_writing

DIGIT, POINT, COMMA, OTHER = 1, 2, 4, 8
"""Kinds of bytes; a sign and an exponent are none of these."""

KINDS = bytearray([OTHER]) * 256
KINDS[ord("0") : ord("9") + 1] = bytes([DIGIT]) * 10
KINDS[ord(".")], KINDS[ord(",")] = POINT, COMMA
for _sign in b"+-eE\0":  # 0 is behind the end of a field
    KINDS[_sign] = 0


class Numerals(NamedTuple):
    """A column of plain numbers and of words that stand for a missing one."""

    given: np.ndarray  # the strings in one writing, (rows,)
    values: np.ndarray  # 0 where a word is, (rows,)
    words: np.ndarray  # rows without a number, (rows,)
    mark: str  # the decimal mark; "" where no number has one


def numerals(strings: Strings, misses: Callable[[str], bool]) -> Numerals | None:
    """Return a column of plain numbers; None of any other.

    Args:
        strings: the column.
        misses: whether a word stands for a missing number.
    """
    if (fixed := strings.fixed()) is None:
        return None
    kinds = np.frombuffer(fixed.tobytes().translate(KINDS), np.uint8).reshape(fixed.shape)
    holds = np.bitwise_or.reduce(kinds, axis=1)
    plain = (holds & (DIGIT | OTHER)) == DIGIT
    plain &= fixed[np.arange(len(fixed)), strings.ends - strings.starts - 1] > 0
    odd = np.flatnonzero(~plain)
    for rows in (odd[:1], odd):  # most columns of words are known by their first
        fields, indices = strings.take(rows).distinct()
        words = one_writing(fields)
        if not all(map(misses, words)):
            return None
    marks = np.bitwise_or.reduce(holds[plain], initial=0) & (POINT | COMMA)
    if marks == POINT | COMMA:
        return None
    given = _joined(fixed).astype(np.dtypes.StringDType())
    given[odd] = np.array(words, given.dtype)[indices]
    if marks == COMMA:
        fixed[fixed == ord(",")] = ord(".")
    values = np.zeros(len(plain))
    try:
        values[plain] = _joined(fixed[plain] if len(odd) else fixed).astype(float)
    except ValueError:  # two marks in one number, or a sign where none can be
        return None
    mark = {0: "", POINT: ".", COMMA: ","}[int(marks)]
    return Numerals(given, values, ~plain, mark)


def _joined(fixed: np.ndarray) -> np.ndarray:
    return fixed.view(f"S{fixed.shape[1]}")[:, 0]
