"""The account of a file: information on its values, over versions of its rows and over studies.

An export with other rows, or a study with other columns, says more of the values that it shares
with those before. So one account holds what all answers say, of rows and columns by name: rows are
known again by keyed digests of their cells, all but one of which must be equal, and columns by the
labels of a model. What another version or study has no longer is taken for known while its answers
are judged, which can only make the count of settled rows larger, and stays in the account.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.data.digest import RowDigests
from consortia.store.checkpoint import Checkpoint, read, write

MOST_KEPT = 600
"""Values of rows that a version or study does not look at and that an account keeps: those with the
most information."""


class Columns(NamedTuple):
    """Columns of unknown values."""

    names: tuple[str, ...]
    measured: np.ndarray  # bool, of each whether it is a measurement, the others being categorical
    counted: np.ndarray  # bool, of each whether it is a covariate

    def and_those_of(self, other: Columns) -> Columns:
        """Return these columns, and those of others that are not among them."""
        more = [index for index, name in enumerate(other.names) if name not in self.names]
        return Columns(
            (*self.names, *(other.names[index] for index in more)),
            np.concatenate([self.measured, other.measured[more]]),
            np.concatenate([self.counted, other.counted[more]]),
        )


class Account(NamedTuple):
    """Information on values of some rows: its root, by rows and then columns."""

    columns: Columns
    rows: RowDigests  # that are looked at, and sums over others
    root: Float[np.ndarray, "r N"]
    are_sums: np.ndarray  # bool, of each of the rows

    @classmethod
    def read(cls, path: Path) -> Account | None:
        """Return the account that a file holds; None where there is none."""
        if not path.exists():
            return None
        stored = read(path)
        arrays, names = stored.arrays, tuple(stored.header["columns"])
        columns = Columns(names, arrays["measured"], arrays["counted"])
        rows = RowDigests(arrays["names"], arrays["cells"])
        are_sums = arrays.get("are_sums", np.zeros(len(rows.cells), bool))
        return cls(columns, rows, arrays["root"], are_sums)

    def write(self, path: Path) -> None:
        """Write it."""
        flags = {"measured": self.columns.measured, "counted": self.columns.counted}
        arrays = {"names": self.rows.names, "cells": self.rows.cells, "root": self.root}
        flags["are_sums"] = self.are_sums
        write(path, Checkpoint({"columns": list(self.columns.names)}, arrays | flags))

    def is_of(self, rows: RowDigests, columns: Sequence[str]) -> bool:
        """Return True if these are its rows and columns."""
        same = self.columns.names == tuple(columns)
        return same and all(np.array_equal(*each) for each in zip(self.rows, rows, strict=True))

    def of(self, rows: RowDigests, columns: Sequence[str]) -> Float[np.ndarray, "r N"]:
        """Return the information on other rows and columns, 0 where there is none."""
        known = same_rows(self.rows, rows)
        shape = len(self.root), len(self.rows.cells), len(self.columns.names)
        parts = self.root.reshape(shape)
        made = np.zeros((len(parts), len(rows.cells), len(columns)))
        for index, name in enumerate(columns):
            if name in self.columns.names:
                values = parts[:, known[known >= 0], self.columns.names.index(name)]
                made[:, known >= 0, index] = values
        return made.reshape(len(parts), -1)

    def joined(
        self, rows: RowDigests, columns: Columns, information: Float[np.ndarray, "m N"]
    ) -> Account:
        """Return the account with more information; it keeps other rows, and all other columns.

        Args:
            rows: that are looked at; sums over others count as known from now on.
            columns: of the study.
            information: by these rows and then columns.
        """
        known, every = same_rows(self.rows, rows), columns.and_those_of(self.columns)
        parts = self.root.reshape(len(self.root), len(self.rows.cells), len(self.columns.names))
        sizes = np.einsum("rnk,rnk->n", parts, parts)
        sizes[known[known >= 0]] = sizes[self.are_sums] = 0
        most = MOST_KEPT // max(len(every.names), 1)
        kept = [index for index in np.argsort(-sizes, kind="stable")[:most] if sizes[index] > 0]
        names, old, new = np.intersect1d(self.rows.names, rows.names, return_indices=True)
        joint = rows
        if len(names) and kept:
            cells = np.concatenate([rows.cells[:, new], self.rows.cells[np.ix_(kept, old)]])
            joint, known = RowDigests(names, cells), np.concatenate([known, kept])
        before = np.zeros((len(parts), len(joint.cells), len(every.names)))
        for index, name in enumerate(self.columns.names):
            at = every.names.index(name)
            before[:, known >= 0, at] = parts[:, known[known >= 0], index]
        looked_at, width = len(rows.cells), len(columns.names)
        added = np.zeros((len(information), *before.shape[1:]))
        added[:, :looked_at, :width] = information.reshape(-1, looked_at, width)
        stacked = np.concatenate([before, added]).reshape(len(before) + len(added), -1)
        return Account(every, joint, triangular_root(stacked), np.zeros(len(joint.cells), bool))


def same_rows(before: RowDigests, now: RowDigests) -> np.ndarray:
    """Return of each row now its index before, -1 of a new one; one of its cells may differ."""
    _, old, new = np.intersect1d(before.names, now.names, return_indices=True)
    past, present = before.cells[:, old], now.cells[:, new]
    indices_before = np.full(len(present), -1)
    if not len(old):
        return indices_before
    whole = np.dtype((np.void, past.dtype.itemsize * len(old)))
    keys = [np.ascontiguousarray(cells).view(whole).ravel() for cells in (past, present)]
    waiting: dict[bytes, list[int]] = {}
    for index, key in enumerate(keys[0]):
        waiting.setdefault(key.tobytes(), []).append(index)
    for row in np.flatnonzero(np.isin(keys[1], keys[0])):
        if indices := waiting[keys[1][row].tobytes()]:
            indices_before[row] = indices.pop(0)
    for index in sorted(index for indices in waiting.values() for index in indices):
        differ = (present != past[index]).sum(axis=1)
        differ[indices_before >= 0] = len(old)
        if differ.min() <= 1 < len(old):
            indices_before[differ.argmin()] = index
    return indices_before


def triangular_root(stacked: Float[np.ndarray, "m N"]) -> Float[np.ndarray, "r N"]:
    """Return R with the same products R'R = A'A, or hardly larger ones."""
    products = products_of(stacked)
    if products is None:
        return np.asarray(np.linalg.qr(stacked, mode="r"))
    products[np.diag_indices_from(products)] += LEAST_ADDED
    return np.asarray(np.linalg.cholesky(products).T)


def products_of(stacked: Float[np.ndarray, "m N"]) -> Float[np.ndarray, "N N"] | None:
    """Return A'A; None where its rounding would hide what a column's width tells, which is 1."""
    products = stacked.T @ stacked
    return products if products.diagonal().max(initial=0.0) < MOST_PRODUCT else None


MOST_PRODUCT, LEAST_ADDED = 1e9, 1e-4
"""Information on a value above which products lose too much, and what is added to it, so that they
have a root: a row is settled by 100."""
