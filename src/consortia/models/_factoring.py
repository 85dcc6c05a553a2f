"""A sorting of the statements of a model: sums over rows, and statements that read no row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal

from consortia.data.sites import Sites
from consortia.errors import InputError

ROWS = 4
"""Rows of the example by which the inputs of a statement are found."""

RADIUS = 1.0
"""Chains start uniformly in so wide a cube of unconstrained parameters."""

TOLERANCE = 1e-4
"""Tolerance of log-densities in single precision that are to be equal."""


def example_rows(caller: str, rows: Any) -> dict[str, np.ndarray]:
    """Return a few rows, at least two, among which each column differs if it does at all.

    A centred column of the same numbers would look as if it were a sum over rows.

    Raises:
        InputError: they are no columns of one number of rows.
    """
    table = rows.first if isinstance(rows, Sites) else rows
    if not isinstance(table, Mapping):
        raise InputError(f"{caller}: give sites, or a dict of columns, as rows.")
    columns = {str(name): np.asarray(column) for name, column in table.items()}
    lengths = {len(column) for column in columns.values() if column.ndim}
    if len(lengths) != 1 or not all(column.ndim for column in columns.values()) or lengths == {0}:
        raise InputError(f"{caller}: the columns are not arrays with the same number of rows.")
    if lengths == {1}:
        return {name: np.concatenate([column, column]) for name, column in columns.items()}
    chosen = list(range(min(ROWS, *lengths)))
    for column in columns.values():
        if not np.any(column[chosen] != column[0]):
            others = np.any((column != column[0]).reshape(len(column), -1), axis=1)
            chosen += np.flatnonzero(others)[:1].tolist()
    return {name: column[chosen] for name, column in columns.items()}


def single_rows(rows: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return each row by itself."""
    count = len(next(iter(rows.values())))
    return [{name: column[i : i + 1] for name, column in rows.items()} for i in range(count)]


def start(shapes: Mapping[str, tuple[int, ...]], key: jax.Array) -> dict[str, jax.Array]:
    """Return unconstrained parameters of these shapes to start from."""
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.uniform(subkey, shape, minval=-RADIUS, maxval=RADIUS)
        for subkey, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def one_row(kinds: Mapping[str, tuple[tuple[int, ...], Any]]) -> dict[str, jax.Array]:
    """Return one row of zeros of columns (shape of a row, type), for what no row changes."""
    # of NumPy, which has 64-bit types whatever width JAX has
    return {name: jnp.asarray(np.zeros((1, *shape), kind)) for name, (shape, kind) in kinds.items()}


def reads_rows(function: Callable[[Any], Any], rows: Mapping[str, Any]) -> Any:
    """Return for each output of a function of rows whether their values enter it.

    Their number and shapes do not count. Rows of one site cannot show it where a column is the same
    in all of them, and another number at the next site.
    """
    traced, outputs = jax.make_jaxpr(function, return_shape=True)(dict(rows))
    reached = _reached(traced.jaxpr, [True] * len(traced.jaxpr.invars))
    return jax.tree.unflatten(jax.tree.structure(outputs), reached)


def _reached(program: Jaxpr, given: list[bool]) -> list[bool]:
    """Mark the outputs of a program that depend on those inputs."""
    reached = {variable for variable, here in zip(program.invars, given, strict=True) if here}

    def is_reached(variable: Any) -> bool:
        return not isinstance(variable, Literal) and variable in reached

    for step in program.eqns:
        inputs = [is_reached(variable) for variable in step.invars]
        outputs = [any(inputs)] * len(step.outvars)
        if any(inputs) and step.primitive.name == "jit":  # of others all inputs reach all outputs
            outputs = _reached(step.params["jaxpr"].jaxpr, inputs)
        reached |= {variable for variable, here in zip(step.outvars, outputs, strict=True) if here}
    return [is_reached(variable) for variable in program.outvars]


def check_law(caller: str, name: str, whole: np.ndarray, parts: np.ndarray, reads: bool) -> None:
    """Refuse a latent variable whose law depends on the rows.

    Args:
        caller: the function, for messages.
        name: of the latent variable.
        whole: its log-density with all rows, (points,).
        parts: with each single row, (points, rows).
        reads: whether values of the rows enter it.

    Raises:
        InputError: it does.
    """
    if reads or (np.all(np.isfinite(whole)) and not _same(whole, parts)):
        raise InputError(
            f"{caller}: the law of {name!r} depends on the rows, which differ between sites: give "
            "what it depends on as a constant."
        ).at(name)
    if not np.all(np.isfinite(whole)):
        raise InputError(
            f"{caller}: the log-density of {name!r} is {whole[~np.isfinite(whole)][0]:.6g} at "
            "parameters drawn at random: give it a law that is finite wherever chains start."
        )


def is_sum_over_rows(
    caller: str, name: str, whole: np.ndarray, parts: np.ndarray, reads: bool
) -> bool:
    """Return True of a statement that is a sum over rows, False of one that no row changes.

    The arguments are those of `check_law`.

    Raises:
        InputError: it is neither.
    """
    same = _same(whole, parts)
    if same and not reads:
        return False
    with np.errstate(invalid="ignore"):  # of infinite ones no sum can be judged
        close = np.abs(whole - parts.sum(axis=1)) <= TOLERANCE * _size(parts)
    if np.all(close):
        return True
    if same:
        raise InputError(
            f"{caller}: the statement {name!r} is computed from the rows, but is not a sum over "
            "them: it is the same here for one row and for several, and may be another at the next "
            "site. Give what it depends on as a constant, or write it as a sum over rows."
        ).at(name)
    raise InputError(
        f"{caller}: the statement {name!r} does not factor over rows: its log-density "
        f"of {parts.shape[1]} rows is {whole[0]:.6g}, the sum over single ones "
        f"{parts[0].sum():.6g}. Rows that depend on one another, as in a Gaussian process "
        "or with a statistic of all rows, have no likelihood of single rows."
    ).at(name)


def _same(whole: np.ndarray, parts: np.ndarray) -> bool:
    """Return True if single rows have the log-density of all."""
    expected = whole[:, None]
    with np.errstate(invalid="ignore"):
        close = np.abs(parts - expected) <= TOLERANCE * _size(parts)[:, None]
    return bool(np.all((parts == expected) | close))


def _size(parts: np.ndarray) -> np.ndarray:
    """Return the size of log-densities that a tolerance is relative to, (points,)."""
    return np.abs(parts).sum(axis=1) + 1
