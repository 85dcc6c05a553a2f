"""Rows that runs used, recorded as keyed digests of their cells that stay at the site.

A run of rows that were in a run before, or of most of them, draws on the same budget, whatever the
study is. Where only a few rows came or went since, the difference of what two runs release says
what those rows are: such a run is refused. Columns are the same ones by name, or by most of their
values, and rows by all of these columns, or by all but one, which may have been brought up to date:
an export with other decimals, in another order or with a column more is the same data.

Sums over three sets and more tell rows that no two of them tell: those of all, of the young and of
the old, where one patient is both. A run is refused if sums over the rows of all runs so far, with
any factors, leave those of a few rows; and if it takes another value of a few rows than a run
before did.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from consortia.data.digest import MOST_OF, RowDigests, number_in_both
from consortia.store.durable import replace_file

FOLDER = "rows"


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

    def known(self, rows: RowDigests, besides: Sequence[RowDigests] = (), least: int = 1) -> Known:
        """Name the data of some rows; new data have a new name.

        Args:
            rows: that a run uses.
            least: rows that sums over several runs may leave.
            besides: other rows that the same run uses.
        """
        held = list(self._held())
        related = [(name, of, rows_changed(rows, of)) for name, of in held]
        related = [entry for entry in related if entry[2] is not None]
        names = {name for name, *_ in related}
        neighbours = [
            (of, changed) for of in besides if (changed := rows_changed(rows, of)) is not None
        ]
        compared = [*((of, changed) for _, of, changed in related), *neighbours]
        changes = [count for of, _ in compared for count in values_changed(rows, of)]
        if all(changed for _, _, changed in related):  # else a run before had just these rows
            changes += [changed for _, changed in compared if changed]
            disclosed = rows_told(rows, [of for name, of in held if name in names], least)
            changes += [] if disclosed is None else [disclosed]
        data = related[0][0] if related else secrets.token_hex(8)
        return Known(data, min(changes, default=None))

    def keep(self, data: str, rows: RowDigests) -> None:
        """Note rows as some of the data of this name."""
        of_data = [held for name, held in self._held() if name == data]
        if any(_is_known(rows, held) for held in of_data):
            return
        self._folder.mkdir(exist_ok=True, mode=0o700)
        written = io.BytesIO()
        np.savez(written, **rows._asdict())
        path = self._folder / f"{data}-{secrets.token_hex(4)}.npz"
        replace_file(path, [written.getvalue()], private=True)

    def _held(self) -> Iterator[tuple[str, RowDigests]]:
        for path in sorted(self._folder.glob("*.npz")):
            with np.load(path, allow_pickle=False) as stored:
                parts = {name: stored[name] for name in RowDigests._fields}
            yield path.stem.partition("-")[0], RowDigests(**parts)


def rows_changed(left: RowDigests, other: RowDigests) -> int | None:
    """Count the rows that are in one set only; None where the sets are of different data.

    It is the smallest such number over all columns that both have, and over all but one of them,
    where these tell rows apart about as well as all columns do.
    """
    both = left, other
    pairs = np.reshape(_same_columns(left, other), (-1, 2)).astype(int)
    mixed = [_mixed(rows.cells[:, pairs[:, side]]) for side, rows in enumerate(both)]
    totals = [values.sum(axis=1, dtype=np.uint64) for values in mixed]
    needed = [MOST_OF * _distinct(_mixed(rows.cells).sum(axis=1, dtype=np.uint64)) for rows in both]
    smaller = min(len(rows.cells) for rows in both)
    counts = []
    for left_out in (slice(0), *range(len(pairs))):
        hashes = [
            total - values[:, left_out].reshape(len(total), -1).sum(axis=1, dtype=np.uint64)
            for total, values in zip(totals, mixed, strict=True)
        ]
        if any(_distinct(of) <= least for of, least in zip(hashes, needed, strict=True)):
            continue
        same = number_in_both(*hashes)
        if same > MOST_OF * smaller:
            counts.append(len(left.cells) + len(other.cells) - 2 * same)
    changes = [changed for changed in counts if changed]
    return min(changes, default=0) if counts and counts[0] else min(counts, default=None)


def rows_told(rows: RowDigests, held: Sequence[RowDigests], least: int) -> int | None:
    """Count the rows that sums over several sets leave; None of ``least`` or more.

    Rows that are in the same sets are an atom. Some sums over the sets leave those of atoms of few
    rows alone if the sets' indicators have a smaller rank without these atoms.

    Args:
        rows: that a run uses.
        held: rows of other runs; those with other columns are left out.
        least: rows below which they are few.
    """
    sets = [rows, *(of for of in held if set(of.names.tolist()) == set(rows.names.tolist()))]
    if len(sets) < 3:  # two are compared by `rows_changed`, which sees through other columns, too
        return None
    labels = np.concatenate([_labels(of) for of in sets])
    index = np.repeat(np.arange(len(sets)), [len(of.cells) for of in sets])
    distinct, where = np.unique(labels, axis=0, return_inverse=True)
    member = np.zeros((len(distinct), len(sets)), bool)
    member[where.ravel(), index] = True
    atoms, counts = np.unique(member, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    reduced = _echelon(atoms[order].T.astype(float))
    totals = [int(counts[order][abs(line) > ZERO].sum()) for line in reduced]
    return min((total for total in totals if total < least), default=None)


ZERO = 1e-9


def _echelon(matrix: np.ndarray) -> np.ndarray:
    """Return the reduced row echelon form, its rows without those that are 0.

    The first columns become pivots, so that later rows hold the last columns alone.
    """
    rest, row = matrix.copy(), 0
    for column in range(rest.shape[1]):
        if row == len(rest):
            break
        pivot = row + int(np.argmax(abs(rest[row:, column])))
        if abs(rest[pivot, column]) < ZERO:
            continue
        rest[[row, pivot]] = rest[[pivot, row]]
        rest[row] /= rest[row, column]
        others = np.arange(len(rest)) != row
        rest[others] -= np.outer(rest[others, column], rest[row])
        row += 1
    return rest[:row]


def _labels(rows: RowDigests) -> np.ndarray:
    """Label rows by their digest and the number of equal ones before."""
    ordered = rows.cells[:, np.argsort(rows.names)]
    hashes = _mixed(ordered).sum(axis=1, dtype=np.uint64)
    order = np.argsort(hashes, kind="stable")
    first = np.searchsorted(hashes[order], hashes[order])
    repeated = np.empty(len(hashes), np.uint64)
    repeated[order] = np.arange(len(hashes)) - first
    return np.stack([hashes, repeated], axis=1)


def values_changed(left: RowDigests, other: RowDigests) -> list[int]:
    """Return in how many rows each value is taken for another in one of two studies only.

    Columns that only one of the two uses are left out.
    """
    both = np.intersect1d(left.used, other.used)
    changes = []
    for here, there in ((left, other), (other, left)):
        known = set(map(tuple, there.changes.tolist()))
        for change, rows in zip(here.changes.tolist(), here.touched.tolist(), strict=True):
            if rows and change[0] in both and tuple(change) not in known:
                changes.append(rows)
    return changes


def _is_known(rows: RowDigests, held: RowDigests) -> bool:
    same = (np.array_equal(getattr(rows, of), getattr(held, of)) for of in ("changes", "used"))
    return rows_changed(rows, held) == 0 and all(same)


def _same_columns(left: RowDigests, other: RowDigests) -> list[tuple[int, int]]:
    """Return the indices of columns that two sets of rows have in common."""
    smaller, pairs = min(len(left.cells), len(other.cells)), []
    free = set(range(len(other.names)))
    by_name = {name: index for index, name in enumerate(other.names.tolist())}
    for index, name in enumerate(left.names.tolist()):
        values = left.cells[:, index]
        tells_rows = _distinct(values) > MOST_OF * len(values)
        named = [by_name[name]] if name in by_name else []
        for candidate in (*named, *(sorted(free) if tells_rows else ())):
            same = number_in_both(values, other.cells[:, candidate])
            if candidate in free and same > MOST_OF * smaller:
                pairs.append((index, candidate))
                free.remove(candidate)
                break
    return pairs


def _distinct(values: np.ndarray) -> int:
    return len(np.unique(values))


def _mixed(cells: np.ndarray) -> np.ndarray:
    """Return cells so that their sum over columns says of each in which column it lies."""
    salt = np.arange(1, cells.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = cells ^ salt
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
