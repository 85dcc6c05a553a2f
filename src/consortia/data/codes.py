"""Numbers in a column that may be codes for a missing value: 999 among ages, -9 among counts."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

CODE = re.compile(r"-?(9+|8{2,}|7{2,})(\.0)?|-[1-9]")
"""Numbers that are customary codes."""

MOST_CODES = 3
"""Most codes of one column and one side of it."""

FEWEST = 5
"""Rows below which nothing is far outside the rest."""

FAR_BELOW = -7
"""Several negative numbers from which on are no steps of a scale through 0."""

SHORT = 100
"""Codes below it may well be the number that they are."""

WIDE = 10
"""A gap by so many ranges of the rest is odd below any repeated value."""


class Outlier(NamedTuple):
    """A number that may be a code."""

    value: float  # the number
    rows: int  # in how many rows it is
    why: str  # what is odd about it


def suspicious(values: np.ndarray) -> list[Outlier]:
    """Return repeated values far outside the rest, and negative ones in a positive column.

    Args:
        values: (rows,), those that are known.
    """
    if len(values) < FEWEST:
        return []
    distinct, counts = np.unique(values, return_counts=True)
    outliers = _beyond(distinct, counts)
    outliers += [
        outlier._replace(value=-outlier.value) for outlier in _beyond(-distinct[::-1], counts[::-1])
    ]
    negative = distinct < 0
    alone = negative.sum() == 1 or (negative.any() and distinct[negative].max() <= FAR_BELOW)
    if alone and negative.sum() <= MOST_CODES and (~negative).sum() > 1:
        outliers += [
            Outlier(float(value), int(count), "no other value is negative")
            for value, count in zip(distinct[negative], counts[negative], strict=True)
            # nobody types a code of many decimals: that is a logarithm, or a centred number
            if (count > 1 and value == np.round(value, 1)) or CODE.fullmatch(f"{value:g}")
        ]
    return list({outlier.value: outlier for outlier in outliers}.values())


def _beyond(distinct: np.ndarray, counts: np.ndarray) -> list[Outlier]:
    """Return the largest values where a gap wider than the range of the rest is below them."""
    for index in range(max(len(distinct) - MOST_CODES, 2), len(distinct)):
        rest = distinct[index - 1] - distinct[0]
        gap = distinct[index] - distinct[index - 1]
        above = range(index, len(distinct))
        codes = all(_is_code(float(distinct[i]), int(counts[i])) for i in above)
        if gap > rest and (codes or (gap > WIDE * rest and bool((counts[index:] > 1).all()))):
            # The nearest other value is that of a single row, which stays at its site.
            return [
                Outlier(float(distinct[i]), int(counts[i]), "it is far away from all other values")
                for i in above
            ]
    return []


def _is_code(value: float, rows: int) -> bool:
    """Return True if a number is a customary code; a short one, such as 77, is so in two rows."""
    return CODE.fullmatch(f"{abs(value):g}") is not None and (rows > 1 or abs(value) >= SHORT)
