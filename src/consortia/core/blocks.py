"""Sums over many rows, a block at a time, so that no array of one number a row is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consortia.errors import InputError
from consortia.runtime.late import Array, PyTree, jax, jnp

ROWS_AT_ONCE = 2**20
"""Rows up to which a sum is one operation on arrays."""

BLOCK = 2**16
"""Rows of a block; sums with compensation are half as fast in blocks of 2^12."""


def are_many(mask: Array) -> bool:
    """Return True if the rows (n,) are so many that they are taken in blocks."""
    return mask.shape[0] > ROWS_AT_ONCE


def map_blocks(
    function: Callable[[PyTree, Array], PyTree],
    rows: PyTree,
    mask: Array,
    block: int | None = None,
) -> PyTree:
    """Return the values of a function of each block's rows and mask, stacked.

    Args:
        function: from a pytree of leaves (block, ...) and a mask (block,).
        rows: pytree, leaves (n, ...), n >= block.
        mask: bool (n,), False where the rows are padding.
        block: rows of a block; `BLOCK` when None.
    """
    count, block = mask.shape[0], block or BLOCK

    def of_block(number: Array) -> PyTree:
        # The last block begins earlier, and leaves out what the one before it has.
        first = jnp.minimum(number * block, count - block)
        part, kept = jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, block), (rows, mask)
        )
        return function(part, kept & (first + jnp.arange(block) >= number * block))

    return jax.lax.map(of_block, jnp.arange(-(-count // block)))


def sum_over_rows(
    summands: Callable[[Array, PyTree, Array], Array], position: Array, rows: PyTree, mask: Array
) -> Array:
    r"""Return the sum of a function over rows, which can be differentiated in the position.

    .. math:: \sum_i m_i f(\theta, z_i)

    Of many rows the gradient is summed in the same pass as the value, and nothing of a block is
    kept.

    Args:
        summands: from position, rows and mask to the masked values (rows,).
        position: θ, (dimension,).
        rows: pytree, leaves (n, ...).
        mask: m, bool (n,).

    Raises:
        InputError: many rows, and a derivative by them is taken.
    """
    if not are_many(mask):
        return jnp.sum(summands(position, rows, mask))

    def of_block(position: Array, rows: PyTree, mask: Array) -> Array:
        return jnp.sum(summands(position, rows, mask))

    @jax.custom_jvp
    def total(position: Array, rows: PyTree, mask: Array) -> Array:
        return jnp.sum(map_blocks(lambda *block: of_block(position, *block), rows, mask))

    def tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
        moved, *others = tangents
        zero = jax.custom_derivatives.SymbolicZero
        if not all(isinstance(leaf, zero) for leaf in jax.tree.leaves(others)):
            raise InputError(
                f"a likelihood of more than {ROWS_AT_ONCE:,} rows is differentiated in its "
                "parameters only: take derivatives by the rows of fewer at a time."
            ).at("log_likelihood")
        position, rows, mask = primals
        values, gradients = map_blocks(
            lambda *block: jax.value_and_grad(of_block)(position, *block), rows, mask
        )
        return jnp.sum(values), jnp.sum(gradients, axis=0) @ moved

    total.defjvp(tangent, symbolic_zeros=True)
    return total(position, rows, mask)
