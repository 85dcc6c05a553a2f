"""Patterns of categorical columns, and how many rows share the rarest of them.

Where all columns are categorical a likelihood is a function of the numbers of rows that share each
pattern. These are integers, and a few exact values of it settle all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from consortia.core import trees

AT_RISK = (
    "last",
    "first",
    "late",
    "later",
    "since",
    "until",
    "tie_share",
    "tie_weight",
    "tie_count",
)
"""Names of the arrays that say in which order the times of Cox's model are."""

RESPONSES = ("y", "event", "start", "interval", *AT_RISK)
"""Names of the arrays that are not covariates."""

MOST_LEVELS = 12
"""Distinct values up to which a column is taken for categorical."""

LOOKED_AT = 1000
"""Rows by which most columns of measurements are known as such."""


def smallest_cell(rows: Any) -> int:
    """Count the rows of the rarest pattern of covariates that occurs.

    A pattern is one of all columns together where all are categorical, else a value of a column
    that has two, such as that of a level, or all values beside the most frequent one, of
    half of the rows or more. Without such a column there is none: it is all rows.

    Args:
        rows: a pytree of arrays, (rows, ...).
    """
    columns = _covariates(rows)
    categorical = [column for column in columns if is_categorical(column)]
    if len(categorical) == len(columns):
        return rarest_pattern(rows)
    return min(map(rows_apart, columns))


def rows_apart(column: np.ndarray) -> int:
    """Count the rows without the most frequent value; all rows where fewer than half have it.

    Of two values it is the number of the rarer one, of two equally frequent ones half of the rows.
    A spline with its knots around a patient, or a product with a column that few patients have, is
    0 of all others.
    """
    apart = len(column) - int(np.unique(column, return_counts=True)[1].max(initial=0))
    return apart if 0 < apart <= len(column) / 2 else len(column)


def rarest_pattern(rows: Any) -> int:
    """Count the rows of the rarest pattern of all categorical covariates that occurs.

    Exact sums tell it, whatever other columns there are: their coefficients may be 0.

    Args:
        rows: a pytree of arrays, (rows, ...).
    """
    categorical = [column for column in _covariates(rows) if is_categorical(column)]
    if not categorical:
        return len(trees.leaves_of(rows)[0].value)
    codes = [np.unique(column, return_inverse=True)[1] for column in categorical]
    return int(np.unique(np.stack(codes), axis=1, return_counts=True)[1].min())


def _covariates(rows: Any) -> list[np.ndarray]:
    """Return the columns of covariates, of all arrays."""
    leaves = trees.leaves_of(rows)
    arrays = [
        np.asarray(leaf.value).reshape(len(leaf.value), -1)
        for leaf in leaves
        if not is_response(leaf)
    ]
    return [array[:, index] for array in arrays for index in range(array.shape[1])]


def is_response(leaf: trees.Leaf) -> bool:
    """Return True if an array of the rows is not a covariate; it may be of two models."""
    return bool(leaf.keys) and leaf.keys[-1] in RESPONSES


def is_categorical(column: np.ndarray) -> bool:
    """Return True if a column has few distinct values, also for its length."""
    most = min(MOST_LEVELS, max(len(column) // 2, 2))
    return len(np.unique(column[:LOOKED_AT])) <= most and len(np.unique(column)) <= most
