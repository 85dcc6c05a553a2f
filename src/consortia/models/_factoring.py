"""Which statements of a model written elsewhere are sums over rows: found out by numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.data.sites import Sites
from consortia.errors import InputError

ROWS = 4
"""Of the example, by which it is found out what a statement depends on."""

RADIUS = 1.0
"""Chains start uniformly in so wide a cube of unconstrained parameters."""

TOLERANCE = 1e-4
"""Of log-densities in single precision that are to be equal."""


def example_rows(caller: str, rows: Any) -> dict[str, np.ndarray]:
    """Return a few rows, at least two and not all alike.

    Raises:
        InputError: they are no columns of one number of rows.
    """
    table = rows.first if isinstance(rows, Sites) else rows
    if not isinstance(table, Mapping):
        raise InputError(f"{caller}: give sites, or a dict of columns, as rows.")
    found = {str(name): np.asarray(column)[:ROWS] for name, column in table.items()}
    lengths = {len(column) for column in found.values() if column.ndim}
    if len(lengths) != 1 or not all(column.ndim for column in found.values()) or lengths == {0}:
        raise InputError(f"{caller}: the columns are no arrays of one number of rows.")
    if lengths == {1}:
        found = {name: np.concatenate([column, column]) for name, column in found.items()}
    return found


def one_row(kinds: Mapping[str, tuple[tuple[int, ...], Any]]) -> dict[str, jax.Array]:
    """Return one row of zeros of columns (shape of a row, type), for what no row changes."""
    # of NumPy, which has 64-bit types whatever width JAX has
    return {name: jnp.asarray(np.zeros((1, *shape), kind)) for name, (shape, kind) in kinds.items()}


def is_sum_over_rows(caller: str, name: str, whole: np.ndarray, parts: np.ndarray) -> bool:
    """Return True of a statement that is a sum over rows, False of one that no row changes.

    Args:
        caller: the function, for messages.
        name: of the statement.
        whole: its log-density of all rows, (points,).
        parts: of each single row, (points, rows).

    Raises:
        InputError: it is neither.
    """
    size = np.abs(parts).sum(axis=1) + 1
    if np.all(np.abs(whole - parts.sum(axis=1)) <= TOLERANCE * size):
        return True
    if np.all(np.abs(parts - whole[:, None]) <= TOLERANCE * size[:, None]):
        return False
    raise InputError(
        f"{caller}: the statement {name!r} does not factor over rows: its log-density "
        f"of {parts.shape[1]} rows is {whole[0]:.6g}, the sum over single ones "
        f"{parts[0].sum():.6g}. Rows that depend on one another, as in a Gaussian process "
        "or with a statistic of all rows, have no likelihood a row."
    )
