"""Bases of several columns by R's words: ``bs``, ``ns`` and ``poly`` with raw powers.

Knots and boundary are stated in the formula: quantiles of the rows are values of single rows, which
no site sends. With equal knots the columns are those of R's ``splines`` package.
"""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.errors import InputError, wrong

CUBIC = 3
MOST_POWERS = 9
WORDS = ("bs", "ns", "poly")


class Basis(NamedTuple):
    """One column of a basis."""

    word: str  # one of `WORDS`
    column: int  # its index, from 0
    knots: tuple[float, ...] = ()  # inside the boundary, ascending; of ``poly`` none
    boundary: tuple[float, ...] = ()  # both ends; of ``poly`` none

    def outside(self, values: Float[np.ndarray, " n"]) -> np.ndarray:
        """Mark the rows where the column is not known: beyond the boundary of ``bs``."""
        if self.word != "bs":
            return np.zeros(values.shape, bool)
        return (values < self.boundary[0]) | (values > self.boundary[1])

    def of(self, values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the column of numbers; those that are not finite, or outside, are NaN."""
        column = np.full(values.shape, np.nan)
        here = np.isfinite(values) & ~self.outside(values)
        if self.word == "poly":
            column[here] = values[here] ** (self.column + 1)
        elif self.word == "bs":
            column[here] = _b_splines(values[here], self)[:, self.column + 1]
        else:
            column[here] = _natural(values[here], self)[:, self.column]
        return column


def bases(tree: ast.Call, text: str) -> list[Basis]:
    """Return the columns that a call of `WORDS` stands for.

    Raises:
        InputError: an argument is missing, or is another one than these.
    """
    assert isinstance(tree.func, ast.Name)
    word = tree.func.id
    given = {str(keyword.arg): keyword.value for keyword in tree.keywords}
    if word == "poly":
        degree = tree.args[1] if len(tree.args) == 2 else given.pop("degree", None)
        raw = given.pop("raw", None)
        written = "" if raw is None else ast.unparse(raw)
        count = degree.value if isinstance(degree, ast.Constant) else None
        if given or written not in ("TRUE", "True", "T") or not isinstance(count, int):
            raise InputError(
                f"formula: {text}: write poly(column, k, raw=TRUE), with raw powers, which are the "
                "same curves: orthogonal ones would need more sums of all rows."
            ).at("formula")
        if not 1 <= count <= MOST_POWERS:
            raise wrong("formula", f": {text}: k is an integer from 1 to {MOST_POWERS}.")
        return [Basis(word, index) for index in range(count)]
    knots = _numbers(given.pop("knots", None), text)
    boundary = _numbers(given.pop("boundary", None), text)
    every = [*boundary[:1], *knots, *boundary[1:]]
    if given or len(tree.args) != 1 or len(boundary) != 2 or every != sorted(set(every)):
        raise InputError(
            f"formula: {text}: write {word}(column, knots=[40, 60], boundary=[20, 80]) with knots "
            "that increase inside the boundary; they cannot follow from df, as quantiles are "
            "values of rows. s(column, k=10) needs none."
        ).at("formula")
    count = len(knots) + (CUBIC if word == "bs" else 1)
    return [Basis(word, index, knots, boundary) for index in range(count)]


def _numbers(node: Any, text: str) -> tuple[float, ...]:
    """Return the numbers of a list, or of R's ``c(...)``."""
    if node is None:
        return ()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "c":
        node = ast.List(node.args, ast.Load())
    try:
        listed = ast.literal_eval(node)
        return tuple(float(number) for number in (listed if isinstance(listed, list) else [listed]))
    except (ValueError, TypeError):
        raise wrong("formula", f": {text}: {ast.unparse(node)} is not a list of numbers.") from None


def _b_splines(
    values: Float[np.ndarray, " n"], basis: Basis, order: int = 0
) -> Float[np.ndarray, "n k"]:
    """Return all cubic B-splines, or their derivatives of an order, inside the boundary."""
    from scipy.interpolate import BSpline  # heavy: only splines need it

    low, high = basis.boundary
    at = np.array([low] * (CUBIC + 1) + [*basis.knots] + [high] * (CUBIC + 1))
    return BSpline(at, np.eye(len(at) - CUBIC - 1), CUBIC)(values, nu=order)


def _natural(values: Float[np.ndarray, " n"], basis: Basis) -> Float[np.ndarray, "n k"]:
    """Return the natural splines of R: without a second derivative at the ends, lines beyond."""
    ends = np.array(basis.boundary)
    inside = np.clip(values, *ends)
    slopes = _b_splines(ends, basis, 1)
    shape = _b_splines(inside, basis) + (values - inside)[:, None] * np.where(
        (values < ends[0])[:, None], slopes[0], slopes[1]
    )
    constraint = _b_splines(ends, basis, 2)[:, 1:]
    turned = np.linalg.qr(constraint.T, mode="complete")[0]
    return shape[:, 1:] @ turned[:, 2:]
