"""Digests by which rows are known again, wherever they are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def of_sites(names: Sequence[str], digests: Sequence[str]) -> str:
    """Return the SHA-256 of the sites' names and digests, the same wherever the rows are."""
    digest = hashlib.sha256()
    for name, of_site in zip(names, digests, strict=True):
        digest.update(f"{name}\0{of_site}\0".encode())
    return digest.hexdigest()


def of_rows(rows: Any) -> str:
    """Return the SHA-256 of names, types, shapes and content of a pytree's arrays."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
        where = jax.tree_util.keystr(path)
        digest.update(f"{where}\0{leaf.dtype.str}\0{leaf.shape}\0".encode())
        digest.update(np.ascontiguousarray(leaf).data)
    return digest.hexdigest()
