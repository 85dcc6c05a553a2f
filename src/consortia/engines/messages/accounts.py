"""The account of a file: information on its values, over versions of its rows and over studies.

An export with other rows, or a study with other columns, says more of the values that it shares
with those before. So one account holds what all answers say, of rows and columns by name: rows are
known again by keyed digests of their cells, all but one of which must be equal, columns left out
that were written anew; and columns by the labels of a model. Rows that a version lacks stay in the
account, as unknown as they were. Of large sites some rows are looked at, and sums over others,
which are the same in all versions.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.data.digest import MOST_OF, RowDigests, number_in_both
from consortia.store.checkpoint import Checkpoint, read, write

MOST_KEPT = 600
"""Values of rows that a version or study does not look at and that an account keeps: those with the
most information."""


NEARLY_ALL = 0.9
"""Share of rows that columns tell apart, by which rows are known again without the other columns:
of other patients, with as many values, a tenth has equal ones by chance."""


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
    """Information on values of some rows, and which rows these are.

    A value is unknown in all answers or counts as known in all: one that was known to some and
    unknown to others would seem less known than it is. Values of rows that are not looked at are
    linear functions of unknown sums, by their weights, and else known.
    """

    columns: Columns
    rows: RowDigests  # that are looked at, and sums over others
    are_sums: np.ndarray  # bool, of each of the rows
    known: np.ndarray  # bool (rows, columns), of values about which more was said than is noted
    root: Float[np.ndarray, "r N"]  # of the information, by rows and then columns
    others: np.ndarray  # digests of the cells of rows that are not looked at
    weights: Float[np.ndarray, "n B"]  # of these in the sums
    whole: bool = True  # whether these are all

    @classmethod
    def empty(cls, names: np.ndarray) -> Account:
        """Return an account of nothing."""
        none, cells = np.zeros(0, bool), np.zeros((0, len(names)), np.uint64)
        columns, rows = Columns((), none, none), RowDigests(names, cells)
        no_values = np.zeros((0, 0))
        return cls(columns, rows, none, no_values.astype(bool), no_values, cells, no_values)

    @classmethod
    def read(cls, path: Path) -> Account | None:
        """Return the account that a file holds; None where there is none."""
        if not path.exists():
            return None
        stored = read(path)
        arrays, names = stored.arrays, tuple(stored.header["columns"])
        columns = Columns(names, arrays["measured"], arrays["counted"])
        rows = RowDigests(arrays["names"], arrays["cells"])
        none = np.zeros((len(rows.cells), len(names)), bool)
        are_sums, known = arrays.get("are_sums", none[:, 0]), arrays.get("known", none)
        # What earlier versions of the package wrote lacks the rows that were not looked at.
        others, weights = arrays.get("others", rows.cells[:0]), arrays.get("weights", np.eye(0))
        whole = bool(stored.header.get("whole", False))
        return cls(columns, rows, are_sums, known, arrays["root"], others, weights, whole)

    def write(self, path: Path) -> None:
        """Write it."""
        arrays = {"names": self.rows.names, "cells": self.rows.cells, "root": self.root}
        arrays |= {"measured": self.columns.measured, "counted": self.columns.counted}
        arrays |= {"are_sums": self.are_sums, "known": self.known}
        arrays |= {"others": self.others, "weights": self.weights}
        header = {"columns": list(self.columns.names), "whole": self.whole}
        write(path, Checkpoint(header, arrays))

    def has_values_of(self, other: Account) -> bool:
        """Return True if both hold information on the same values."""
        pairs = zip(self._values(), other._values(), strict=True)
        return all(np.array_equal(*pair) for pair in pairs)

    def _values(self) -> tuple[Any, ...]:
        parts = self.rows.names, self.rows.cells, self.are_sums, self.known
        return *self.columns, *parts, self.others, self.weights, self.whole

    def and_more(self, information: Float[np.ndarray, "m n"]) -> Account:
        """Return the account with information on its first rows and all columns."""
        rows, width = self.known.shape
        made, first = np.zeros((len(information), rows, width)), information.shape[1]
        first //= max(width, 1)
        made[:, :first] = information.reshape(len(information), first, width)
        made[:, self.known] = 0
        stacked = np.concatenate([self.root, made.reshape(len(made), rows * width)])
        return self._replace(root=triangular_root(stacked))

    def begun(self, study: Looks) -> Account:
        """Return the account as a study needs it: the rows and sums that it looks at come first.

        Other rows stay where the version lacks them, as unknown as they were; those that it has
        count as known from now on.
        """
        names, old, new = np.intersect1d(self.rows.names, study.digests.names, return_indices=True)
        every = study.columns.and_those_of(self.columns)
        looked_at, at = np.flatnonzero(~self.are_sums), study.known_as
        gone = np.setdiff1d(np.arange(len(looked_at)), at)
        parts = self.root.reshape(len(self.root), *self.known.shape)
        sizes = np.einsum("rnk,rnk->n", parts, parts)[looked_at[gone]]
        most = min(MOST_KEPT // max(len(every.names), 1), int((sizes > 0).sum()))
        kept = gone[np.argsort(-sizes, kind="stable")[:most]]
        sums = np.flatnonzero(self.are_sums)[: study.old_sums]
        before = at[study.rows]
        before[before >= len(looked_at)] = -1  # they were not looked at
        indices = np.where(before >= 0, looked_at[before], -1) if len(looked_at) else before
        indices = np.concatenate([indices, sums, np.full(len(study.new_sums), -1), looked_at[kept]])
        cells = [study.digests.cells[study.rows][:, new], self.rows.cells[sums][:, old]]
        cells += [study.new_sums[:, new], self.rows.cells[looked_at[kept]][:, old]]
        root = np.zeros((len(self.root), len(indices), len(every.names)))
        known = np.zeros(root.shape[1:], bool)
        known_before = at[study.rows] >= len(looked_at)
        for index, name in enumerate(self.columns.names):
            column = every.names.index(name)
            root[:, indices >= 0, column] = parts[:, indices[indices >= 0], index]
            known[indices >= 0, column] = self.known[indices[indices >= 0], index]
            known[: len(study.rows), column] |= known_before
        are_sums = np.zeros(len(indices), bool)
        are_sums[len(study.rows) : len(indices) - len(kept)] = True
        return Account(
            every,
            RowDigests(names, np.concatenate(cells)),
            are_sums,
            known,
            root.reshape(len(root), known.size),
            *self._others_of(study, looked_at[np.setdiff1d(gone, kept)], old, new),
            study.whole,
        )

    def _others_of(
        self, study: Looks, lost: np.ndarray, old: np.ndarray, new: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows that are not looked at from now on, and their weights in all sums."""
        looked_at, stay = np.flatnonzero(~self.are_sums), np.ones(len(self.others), bool)
        promoted = study.known_as[study.rows] - len(looked_at)
        stay[promoted[promoted >= 0]] = False
        dropped = np.setdiff1d(study.known_as, study.known_as[study.rows])
        dropped = looked_at[dropped[(dropped >= 0) & (dropped < len(looked_at))]]
        forgotten = np.concatenate([lost, dropped]).astype(int)
        cells = [self.others[stay][:, old], self.rows.cells[forgotten][:, old]]
        cells.append(study.digests.cells[study.more][:, new])
        width = study.weights.shape[1]
        weights = [np.zeros((part, width)) for part in map(len, cells)]
        weights[0][:, : study.old_sums] = self.weights[stay][:, : study.old_sums]
        weights[2][:] = study.weights
        return np.concatenate(cells), np.concatenate(weights)


class Looks(NamedTuple):
    """The values of a version that a study looks at."""

    columns: Columns
    digests: RowDigests  # of all rows of the version
    known_as: np.ndarray  # of each its index among the account's rows and others, -1 of a new one
    rows: np.ndarray  # indices of rows that are looked at
    more: np.ndarray  # indices of new rows that are not
    weights: Float[np.ndarray, "n B"]  # of these in all sums
    old_sums: int  # sums of the account that stay unknown, the first ones
    new_sums: np.ndarray  # digests by which new sums are known again
    whole: bool  # whether the account has all rows that are not looked at


def digests_of_sums(digests: RowDigests, weights: Float[np.ndarray, "n B"]) -> np.ndarray:
    """Draw digests by which sums over rows are known again, and which no row has."""
    made = np.zeros((weights.shape[1], len(digests.names)), np.uint64)
    named = hashlib.sha256(digests.cells.tobytes() + np.ascontiguousarray(weights).tobytes())
    for index, name in enumerate(digests.names):
        rng = np.random.default_rng([int.from_bytes(named.digest()), int(name)])
        made[:, index] = rng.integers(1, 2**64, len(made), np.uint64, endpoint=False)
    return made


def same_rows(before: RowDigests, now: RowDigests) -> np.ndarray:
    """Return of each row now its index before, -1 of a new one; one of its cells may differ.

    Columns with other values in most rows, as of an export with fewer decimals, are left out if the
    others tell nearly all rows apart, and most are the same by all of these.
    """
    _, old, new = np.intersect1d(before.names, now.names, return_indices=True)
    past, present = before.cells[:, old], now.cells[:, new]
    indices_before, most = _matched(past, present), MOST_OF * min(len(past), len(present))
    pairs = zip(past.T, present.T, strict=True)
    kept = np.array([number_in_both(*pair) > most for pair in pairs], bool)
    if kept.all() or not kept.any():
        return indices_before
    there, here = past[:, kept], present[:, kept]
    alone, by_others = _is_unique(there), indices_before.copy()
    if min(alone.mean(), _is_unique(here).mean()) < NEARLY_ALL:
        return indices_before
    left = np.setdiff1d(np.flatnonzero(alone), indices_before)
    index_of = {there[index].tobytes(): index for index in left}
    missing = np.flatnonzero((indices_before < 0) & _is_unique(here))
    by_others[missing] = [index_of.get(here[row].tobytes(), -1) for row in missing]
    return by_others if (by_others >= 0).sum() > most else indices_before


def _is_unique(rows: np.ndarray) -> np.ndarray:
    """Return of each row whether it is like no other."""
    _, where, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    return np.asarray(counts[where.ravel()] == 1)


def _matched(past: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Return of each row its index among those of the past with all cells but one equal, or -1."""
    indices_before, columns = np.full(len(present), -1), past.shape[1]
    for left_out in (slice(0), *range(columns * (columns > 1))) if columns else ():
        left = np.setdiff1d(np.arange(len(past)), indices_before)
        missing = np.flatnonzero(indices_before < 0)
        cells = (np.delete(rows, left_out, axis=1) for rows in (past[left], present[missing]))
        keys, wanted = ([row.tobytes() for row in part] for part in cells)
        waiting: dict[bytes, list[int]] = {}
        for index, key in zip(left[::-1], keys[::-1], strict=True):
            waiting.setdefault(key, []).append(index)
        for row, key in zip(missing, wanted, strict=True):
            if indices := waiting.get(key):
                indices_before[row] = indices.pop()
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
