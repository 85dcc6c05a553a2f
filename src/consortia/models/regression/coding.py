"""Columns of terms with levels: indicators of so many levels that no column is a sum of others.

A factor of levels spans the intercept and its *reduced* form, all its levels but the reference. A
term is so the sum of all products of these; what earlier terms span is left out, and the rest is
written with as few products as possible: ``(product) + (product):(reduced) = (product):(whole)``.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np

Part = tuple[str, bool]
"""A factor, and whether it is reduced: without the indicator of its reference."""

Key = tuple[tuple[str, int | None], ...]
"""The factors that a column is the product of, with the index of a level, or None of a number."""


def columns_of(terms: Sequence[tuple[str, ...]], levels: Mapping[str, Sequence[str]]) -> list[Key]:
    """List the columns of terms; the levels of a product's first factor run first."""
    spanned: set[frozenset[Part]] = set()
    columns: list[Key] = []
    for term in terms:
        choices = [[(text, True), None] if text in levels else [(text, False)] for text in term]
        products = [
            tuple(part for part in chosen if part is not None)
            for chosen in itertools.product(*choices)
        ]
        products = [factors for factors in products if frozenset(factors) not in spanned]
        spanned.update(map(frozenset, products))
        for product in _simplified(products):
            coded = [
                [(text, index) for index in range(int(reduced), len(levels[text]))]
                if text in levels
                else [(text, None)]
                for text, reduced in reversed(product)
            ]
            columns += [chosen[::-1] for chosen in itertools.product(*coded)]
    return columns


def _simplified(products: Collection[tuple[Part, ...]]) -> list[tuple[Part, ...]]:
    """Write a sum of products with as few as possible."""
    written: list[tuple[Part, ...]] = []
    for product in sorted(products, key=len):
        for other in written:
            more = [part for part in product if part not in other]
            if len(product) == len(other) + 1 and len(more) == 1 and more[0][1]:
                written.remove(other)
                whole = tuple((part[0], False) if part == more[0] else part for part in product)
                written = _simplified([*written, whole])
                break
        else:
            written.append(product)
    return written


def matrix_of(columns: Sequence[Key], values: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """Compute the columns, (rows, p), from the factors' numbers and indices of levels."""
    matrix = np.ones((rows, len(columns)))
    for column, key in zip(matrix.T, columns, strict=True):
        for text, index in key:
            column *= values[text] if index is None else values[text] == index
    return matrix
