"""Counts that may leave a site: none below a least number, nor what follows from the others.

A cell is a number of rows. One below the least is merged with all others that are, with those of no
row, and with the smallest that are large enough. Of the merged ones their sum leaves: which of them
is small does not follow from it, because any of them may be. Counts whose sum is not known, such as
missing values by column, leave as the range of `least` numbers in which they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from consortia.core import arguments

MINIMUM_CELLS = 5
"""Rows of a cell, by default."""

LEAST_MINIMUM = 3
"""With a least number of 2 a merged sum can have one explanation only."""

Range = tuple[int, int]


class Cells(NamedTuple):
    """Parts of some rows."""

    counts: Mapping[str, int]  # of the cells that are large enough, or of no row
    rest: int  # rows of all other cells together; 0 where there is none


def minimum_cells(name: str, value: int) -> int:
    """Return a least number of rows: 1, which hides nothing, or one that hides.

    Raises:
        InputError: it is something else.
    """
    least = arguments.whole(name, value, 1)
    return least if least == 1 else arguments.whole(name, value, LEAST_MINIMUM)


def is_large(count: int, least: int) -> bool:
    """Return True if a cell of so many rows may be named: none, or enough."""
    return count == 0 or count >= least


def merged(counts: Mapping[str, int], least: int) -> Cells:
    """Return cells of which none below ``least`` follows from the others and the sum of all."""
    total = sum(counts.values())
    large = {name: count for name, count in counts.items() if count >= least}
    if all(is_large(count, least) for count in counts.values()):
        return Cells(dict(counts), 0)
    # All of the smallest size: the name of the one that is taken would tell which cell is small.
    smallest = min(large.values(), default=0)
    reported = {name: count for name, count in large.items() if count > smallest}
    return Cells(reported, total - sum(reported.values()))


def range_of(count: int, least: int) -> Range:
    """Return the range of ``least`` numbers that holds a count; 0 stands by itself."""
    if least == 1 or count == 0:
        return (count, count)
    low = count // least * least
    return (max(low, 1), low + least - 1)


def union_range(union: int, parts: Sequence[Range], least: int) -> Range | None:
    """Return the range of the size of a union; None where it could tell a part.

    That it is None follows from the ranges of the parts alone: were the union looked at, its
    absence would tell its size, and that of a part.

    Args:
        union: rows that are in at least one part.
        parts: the ranges of the parts' sizes.
        least: fewest rows of a cell.
    """
    highest = sum(top for _, top in parts)
    low, _ = range_of(highest, least)
    for bottom, top in parts:
        if 0 < bottom < least and top <= low - (highest - top):
            return None
    return range_of(union, least)


def split(counts: np.ndarray, least: int) -> list[int]:
    """Return the ends of intervals such that every cell of all of them is large enough.

    The intervals are divided where both parts have no small cell, as near to the middle as can be,
    and so are the parts. Sites without small cells have all ends; the ends that several sites have
    in common are ends of larger cells of each.

    Args:
        counts: (intervals, ...) rows of each cell.
        least: fewest rows of a cell that has any.

    Returns:
        The numbers of intervals after which a sent one ends, the last being all; none where not
        even all together are large enough.
    """

    def whole(begin: int, end: int) -> bool:
        cells = counts[begin:end].sum(axis=0)
        return bool(np.all((cells == 0) | (cells >= least)))

    def ends(begin: int, end: int) -> list[int]:
        middle = (begin + end) / 2
        for at in sorted(range(begin + 1, end), key=lambda cut: (abs(cut - middle), cut)):
            if whole(begin, at) and whole(at, end):
                return [*ends(begin, at), *ends(at, end)]
        return [end]

    return ends(0, len(counts)) if len(counts) and whole(0, len(counts)) else []
