"""Rows that runs used, recorded as keyed digests of their cells that stay at the site.

A run of rows that were in a run before, or of most of them, draws on the same budget, whatever the
study is. Where only a few rows came or went since, the difference of what two runs release says
what those rows are: such a run is refused. Columns are the same ones by name, or by most of their
values, and rows by all of these columns, or by all but one, which may have been brought up to date:
an export with other decimals, in another order or with a column more is the same data.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from consortia.data.digest import RowDigests
from consortia.store.durable import replace_file

FOLDER = "rows"
MOST_OF = 0.5
"""Share of the smaller of two sets above which rows, or the values of a column, are the same."""


class Known(NamedTuple):
    """Facts about some rows."""

    data: str  # name of the data whose budget they draw on
    # fewest rows that came or went since a run before; None where none or all did
    changed: int | None


class Holdings:
    """The rows of all runs of a site.

    Args:
        folder: of the site; the digests lie in ``rows`` there, a file for each set of rows.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    def known(self, rows: RowDigests, besides: Sequence[RowDigests] = ()) -> Known:
        """Return which data some rows are of; new data have a new name.

        Args:
            rows: that a run uses.
            besides: other rows that the same run uses.
        """
        data, changes = None, []
        for name, held in self._held():
            changed = rows_changed(rows, held)
            if changed is None:
                continue
            data = data or name
            if changed == 0:
                return Known(name, None)
            changes.append(changed)
        changes += [changed for other in besides if (changed := rows_changed(rows, other))]
        return Known(data or secrets.token_hex(8), min(changes, default=None))

    def keep(self, data: str, rows: RowDigests) -> None:
        """Note rows as some of the data of this name."""
        if any(rows_changed(rows, held) == 0 for name, held in self._held() if name == data):
            return
        self._folder.mkdir(exist_ok=True, mode=0o700)
        written = io.BytesIO()
        np.savez(written, **rows._asdict())
        path = self._folder / f"{data}-{secrets.token_hex(4)}.npz"
        replace_file(path, [written.getvalue()], own=True)

    def _held(self) -> Iterator[tuple[str, RowDigests]]:
        for path in sorted(self._folder.glob("*.npz")):
            with np.load(path, allow_pickle=False) as stored:
                yield path.stem.partition("-")[0], RowDigests(stored["names"], stored["cells"])


def rows_changed(one: RowDigests, other: RowDigests) -> int | None:
    """Return how many rows are in one set only; None where the sets are of different data.

    It is the smallest such number over all columns that both have, and over all but one of them,
    where these tell rows apart about as well as all columns do.
    """
    both = one, other
    pairs = np.reshape(_same_columns(one, other), (-1, 2)).astype(int)
    mixed = [_mixed(rows.cells[:, pairs[:, side]]) for side, rows in enumerate(both)]
    totals = [values.sum(axis=1, dtype=np.uint64) for values in mixed]
    needed = [MOST_OF * _distinct(_mixed(rows.cells).sum(axis=1, dtype=np.uint64)) for rows in both]
    smaller = min(len(rows.cells) for rows in both)
    found = []
    for left_out in (slice(0), *range(len(pairs))):
        hashes = [
            total - values[:, left_out].reshape(len(total), -1).sum(axis=1, dtype=np.uint64)
            for total, values in zip(totals, mixed, strict=True)
        ]
        if any(_distinct(of) <= least for of, least in zip(hashes, needed, strict=True)):
            continue
        same = _in_both(*hashes)
        if same > MOST_OF * smaller:
            found.append(len(one.cells) + len(other.cells) - 2 * same)
    changes = [changed for changed in found if changed]
    return min(changes, default=0) if found and found[0] else min(found, default=None)


def _same_columns(one: RowDigests, other: RowDigests) -> list[tuple[int, int]]:
    """Return the indices of columns that two sets of rows have in common."""
    smaller, pairs = min(len(one.cells), len(other.cells)), []
    free = set(range(len(other.names)))
    by_name = {name: index for index, name in enumerate(other.names.tolist())}
    for index, name in enumerate(one.names.tolist()):
        values = one.cells[:, index]
        tells_rows = _distinct(values) > MOST_OF * len(values)
        named = [by_name[name]] if name in by_name else []
        for candidate in (*named, *(sorted(free) if tells_rows else ())):
            same = _in_both(values, other.cells[:, candidate])
            if candidate in free and same > MOST_OF * smaller:
                pairs.append((index, candidate))
                free.remove(candidate)
                break
    return pairs


def _distinct(values: np.ndarray) -> int:
    return len(np.unique(values))


def _in_both(one: np.ndarray, other: np.ndarray) -> int:
    """Return how many values two arrays have in common, each as often as both have it."""
    values, counts = np.unique(one, return_counts=True)
    others, of_others = np.unique(other, return_counts=True)
    _, here, there = np.intersect1d(values, others, assume_unique=True, return_indices=True)
    return int(np.minimum(counts[here], of_others[there]).sum())


def _mixed(cells: np.ndarray) -> np.ndarray:
    """Return cells so that their sum over columns says of each in which column it lies."""
    salt = np.arange(1, cells.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = cells ^ salt
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
