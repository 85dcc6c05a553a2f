"""Digests by which rows are known again, wherever they are."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from consortia.core import trees


def of_sites(names: Sequence[str], digests: Sequence[str]) -> str:
    """Return the SHA-256 of the sites' names and digests, the same wherever the rows are."""
    digest = hashlib.sha256()
    for name, of_site in zip(names, digests, strict=True):
        digest.update(f"{name}\0{of_site}\0".encode())
    return digest.hexdigest()


def of_rows(rows: Any) -> str:
    """Return the SHA-256 of names, types, shapes and content of a pytree's arrays."""
    digest = hashlib.sha256()
    for path, _, leaf in trees.leaves_of(rows):
        digest.update(f"{path}\0{leaf.dtype.str}\0{leaf.shape}\0".encode())
        digest.update(np.ascontiguousarray(leaf).data)
    return digest.hexdigest()


ROW_BYTES = 8
"""Length of a digest; among 10^6 values two different ones collide with probability 3e-8."""


MOST_OF = 0.5
"""Share of the smaller of two sets above which rows, or the values of a column, are the same."""


class RowDigests(NamedTuple):
    """Digests of the cells of some rows, which nobody without a site's secret can check."""

    names: np.ndarray  # of the columns, uint64 (columns,)
    cells: np.ndarray  # of their values, uint64 (rows, columns)
    # of each value that a study takes for another one, uint64 (changes, 2): its column, and what
    # becomes of it
    changes: np.ndarray = np.zeros((0, 2), np.uint64)
    touched: np.ndarray = np.zeros(0, np.int64)  # rows of each change, (changes,)
    used: np.ndarray = np.zeros(0, np.uint64)  # of the columns that the study uses


def of_cells(columns: Mapping[str, tuple[np.ndarray, np.ndarray]], key: bytes) -> RowDigests:
    """Return digests of cells, the same for each writing of a value.

    Numbers count with twelve digits, text in its composed form (NFC), and a missing value as such,
    so that the same rows in another export, with other decimals or another order, are known again.

    Args:
        columns: of each its values and where they miss, by name.
        key: secret of the site.
    """
    cells = [_of_column(values, missing, key) for values, missing in columns.values()]
    return RowDigests(of_names(columns, key), np.stack(cells, axis=1))


def _of_column(values: np.ndarray, missing: np.ndarray, key: bytes) -> np.ndarray:
    known = values[~missing]
    if known.dtype.kind in "biuf":
        distinct, where = np.unique(_rounded(known.astype(np.float64)), return_inverse=True)
        plain = [value.tobytes() for value in distinct + 0.0]  # adding 0 has made -0 one
    else:
        distinct, where = np.unique(known.astype(str), return_inverse=True)
        plain = [unicodedata.normalize("NFC", text).encode() for text in distinct.tolist()]
    digests = b"".join(_keyed(value, key) for value in plain)
    numbers = np.full(len(values), int.from_bytes(_keyed(b"missing", key), "little"), np.uint64)
    numbers[~missing] = np.frombuffer(digests, "<u8")[where] if plain else 0
    return numbers


def _rounded(values: np.ndarray) -> np.ndarray:
    """Return numbers of twelve digits: a change of units and back changes the last of sixteen."""
    size = np.abs(np.where(np.isfinite(values) & (values != 0), values, 1.0))
    exponent = 11 - np.floor(np.log10(size) + 1e-9)  # so that 9.99... and 10 have the same
    unit = 10.0 ** np.abs(exponent)
    whole = np.rint(np.where(exponent > 0, values * unit, values / unit))
    return np.where(exponent > 0, whole / unit, whole * unit)


def of_names(names: Iterable[str], key: bytes) -> np.ndarray:
    """Return digests of strings, which nobody without the key can check, uint64 (names,)."""
    digests = b"".join(_keyed(name.encode(), key) for name in names)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _keyed(value: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(value, key=key[:64], digest_size=ROW_BYTES).digest()


def of_label(label: str, key: bytes) -> str:
    """Return a digest of a group's label, which nobody without the key can check."""
    return _keyed(label.encode(), key).hex()


def number_in_both(left: np.ndarray, other: np.ndarray) -> int:
    """Count the values that two arrays have in common, each as often as both have it."""
    values, counts = np.unique(left, return_counts=True)
    others, of_others = np.unique(other, return_counts=True)
    _, here, there = np.intersect1d(values, others, assume_unique=True, return_indices=True)
    return int(np.minimum(counts[here], of_others[there]).sum())
