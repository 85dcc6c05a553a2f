"""Digests by which rows are known again, wherever they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

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
"""Length of a row's digest; among 10^6 rows two different ones collide with probability 3e-8."""


def of_each_row(path: Path, key: bytes) -> list[bytes]:
    """Return a digest of every row of a site's file, which nobody without the key can check.

    All columns of the file count, whichever a study uses: the rows of two studies are known as the
    same ones where they come from one file.

    Args:
        path: a text table with a header, an .npz file, or what `pandas` reads.
        key: secret of the site.
    """
    return [
        hashlib.blake2b(row, key=key[:64], digest_size=ROW_BYTES).digest() for row in _rows(path)
    ]


def of_label(label: str, key: bytes) -> str:
    """Return a digest of a group's label, which nobody without the key can check."""
    return hashlib.blake2b(label.encode(), key=key[:64], digest_size=ROW_BYTES).hexdigest()


def _rows(path: Path) -> Iterable[bytes]:
    kind = path.suffix.lower()
    if kind == ".npz":
        with np.load(path, allow_pickle=False) as stored:
            arrays = [np.ascontiguousarray(stored[name]) for name in sorted(stored.files)]
        return (b"".join(row.tobytes() for row in rows) for rows in zip(*arrays, strict=True))
    if kind in (".parquet", ".feather", ".arrow"):
        import pandas as pd

        frame = pd.read_parquet(path) if kind == ".parquet" else pd.read_feather(path)
        return (repr(row).encode() for row in frame.itertuples(index=False, name=None))
    _, *lines = path.read_bytes().splitlines()
    return (line for line in lines if line.strip())
