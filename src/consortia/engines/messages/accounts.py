"""The account of a file: information on its values, over versions of its rows and over studies.

An export with other rows, or a study with other columns, says more of the values that it shares
with those before. So one account holds what all answers say, of rows and columns by name: rows are
known again by keyed digests of their cells, all but one of which must be equal, and columns by the
labels of a model. What another version or study has no longer stays in the account, as unknown as
it was. Of large sites some rows are looked at, and sums over others, which all versions share.
"""

from __future__ import annotations

import hashlib
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


class Sums(NamedTuple):
    """Unknown sums of rows that are not looked at.

    The values of such a row are linear functions of the sums, by its weights, and else known. All
    versions of a file share them: a sum of some rows of a version would tell those that are new in
    the next, if the others were other unknowns there.
    """

    rows: RowDigests
    weights: Float[np.ndarray, "n B"]
    whole: bool = True  # whether all rows that are not looked at are among these

    def digests(self, names: np.ndarray) -> np.ndarray:
        """Return the digests by which the sums are known again, which no row has."""
        made = np.zeros((self.weights.shape[1], len(names)), np.uint64)
        for index, weights in enumerate(self.weights.T):
            added = np.flatnonzero(weights)
            parts = self.rows.cells[added], weights[added]
            named = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
            for at, name in enumerate(names):
                rng = np.random.default_rng([int.from_bytes(named), int(name)])
                made[index, at] = rng.integers(1, 2**64, None, np.uint64, endpoint=False)
        return made

    def and_over(self, rows: RowDigests, weights: Float[np.ndarray, "m C"]) -> Sums:
        """Return these sums and more over further rows, each row with its weights in all C."""
        names = self.rows.names if len(self.rows.cells) else rows.names
        cells = np.zeros((len(rows.cells), len(names)), np.uint64)
        _, here, there = np.intersect1d(names, rows.names, return_indices=True)
        cells[:, here] = rows.cells[:, there]
        wider = np.pad(self.weights, ((0, 0), (0, weights.shape[1] - self.weights.shape[1])))
        joint = np.concatenate([self.rows.cells.reshape(-1, len(names)), cells])
        return Sums(RowDigests(names, joint), np.concatenate([wider, weights]), self.whole)

    def known(self) -> Sums:
        """Return none, all their rows being known."""
        return self._replace(weights=self.weights[:, :0])


NO_SUMS = Sums(RowDigests(np.zeros(0, np.uint64), np.zeros((0, 0), np.uint64)), np.zeros((0, 0)))


class Account(NamedTuple):
    """Information on values of some rows: its root, by rows and then columns."""

    columns: Columns
    rows: RowDigests  # that are looked at, and sums over others
    root: Float[np.ndarray, "r N"]
    are_sums: np.ndarray  # bool, of each of the rows
    sums: Sums

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
        if "weights" not in arrays:  # earlier versions of the package wrote none
            return cls(columns, rows, arrays["root"], are_sums, NO_SUMS._replace(whole=False))
        others = RowDigests(arrays["others_names"], arrays["others"])
        sums = Sums(others, arrays["weights"], stored.header["whole"])
        return cls(columns, rows, arrays["root"], are_sums, sums)

    def write(self, path: Path) -> None:
        """Write it."""
        flags = {"measured": self.columns.measured, "counted": self.columns.counted}
        arrays = {"names": self.rows.names, "cells": self.rows.cells, "root": self.root}
        flags["are_sums"] = self.are_sums
        others, weights, whole = self.sums
        arrays |= {"others_names": others.names, "others": others.cells, "weights": weights}
        header = {"columns": list(self.columns.names), "whole": whole}
        write(path, Checkpoint(header, arrays | flags))

    def is_of(self, rows: RowDigests, columns: Sequence[str]) -> bool:
        """Return True if these are its rows and columns."""
        same = self.columns.names == tuple(columns)
        return same and all(np.array_equal(*each) for each in zip(self.rows, rows, strict=True))

    def joined(
        self,
        rows: RowDigests,
        columns: Columns,
        information: Float[np.ndarray, "m N"],
        are_sums: np.ndarray,
        sums: Sums,
    ) -> Account:
        """Return the account with more information; it keeps other rows, and all other columns.

        Args:
            rows: that are looked at, and sums; those that are not among them count as known.
            columns: of the study.
            information: by these rows and then columns.
            are_sums: of each of the rows.
            sums: what these are.
        """
        known, every = same_rows(self.rows, rows), columns.and_those_of(self.columns)
        parts = self.root.reshape(len(self.root), len(self.rows.cells), len(self.columns.names))
        sizes = np.einsum("rnk,rnk->n", parts, parts)
        sizes[known[known >= 0]] = sizes[self.are_sums] = 0
        most = MOST_KEPT // max(len(every.names), 1)
        kept = [index for index in np.argsort(-sizes, kind="stable")[:most] if sizes[index] > 0]
        names, old, new = np.intersect1d(self.rows.names, rows.names, return_indices=True)
        joint, looked_at_before = rows, np.flatnonzero(~self.are_sums)
        if len(names) and kept:
            cells = np.concatenate([rows.cells[:, new], self.rows.cells[np.ix_(kept, old)]])
            joint, known = RowDigests(names, cells), np.concatenate([known, kept])
        # Rows that are forgotten count as known if a later version has them.
        lost = self.rows.cells[np.setdiff1d(looked_at_before, known)]
        weights = np.zeros((len(lost), sums.weights.shape[1]))
        sums = sums.and_over(RowDigests(self.rows.names, lost), weights)
        before = np.zeros((len(parts), len(joint.cells), len(every.names)))
        for index, name in enumerate(self.columns.names):
            at = every.names.index(name)
            before[:, known >= 0, at] = parts[:, known[known >= 0], index]
        looked_at, width = len(rows.cells), len(columns.names)
        added = np.zeros((len(information), *before.shape[1:]))
        added[:, :looked_at, :width] = information.reshape(-1, looked_at, width)
        stacked = np.concatenate([before, added]).reshape(len(before) + len(added), -1)
        flags = np.concatenate([are_sums, np.zeros(len(joint.cells) - looked_at, bool)])
        return Account(every, joint, triangular_root(stacked), flags, sums)


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
