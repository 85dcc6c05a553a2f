"""Curvature of one shard's likelihood at a point, and the mode of a smooth function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.runtime import compiler
from consortia.runtime.late import Array, PyTree, jax, jnp
from consortia.surrogates.newton import Mode, newton

MOST_ROWS = 1024
"""Rows that a curvature is computed from; larger sites take a random sample of them."""

ROWS_AT_ONCE = 64
COLUMNS_AT_ONCE = 16


def log_likelihood(target: Target, position: Array, rows: PyTree, weights: Array) -> Array:
    """Return Σ_i weight_i log p(z_i | θ); rows of weight 0 are left out, whatever their value."""
    values = target.log_likelihood(position, rows)
    return jnp.sum(jnp.where(weights > 0, weights * values, 0))


def all_rows(site: Site, dtype: Any) -> tuple[PyTree, Array]:
    """Return all rows of a site and their weights: 1, and 0 for padding."""
    rows, mask = site.all()
    return rows, mask.astype(dtype)


def sampled(site: Site) -> bool:
    """Return True if `some_rows` takes a sample at these sites."""
    leaf = jax.tree.leaves(site.data)[0]
    return leaf.shape[0 if site.node is None else 1] > MOST_ROWS


def some_rows(site: Site, bits: Array, dtype: Any) -> tuple[PyTree, Array]:
    """Return up to `MOST_ROWS` rows of a site, with weights that make their sum unbiased."""
    if not sampled(site):
        return all_rows(site, dtype)
    weight = jnp.asarray(site.size, dtype) / MOST_ROWS
    return site.rows(site.index(bits)), jnp.full(MOST_ROWS, weight)


def curvature(
    target: Target, position: Array, rows: PyTree, weights: Array, kind: str, *, full: bool
) -> Array:
    """Return minus the second derivative of `log_likelihood`, or what stands for it.

    Args:
        target: the model.
        position: θ, (d,).
        rows: rows of the shard.
        weights: of the rows, (rows,).
        kind: ``"hessian"``, d products with the second derivative; or ``"empirical_fisher"``, the
            sum of the rows' squared gradients, one gradient a row.
        full: the matrix (d, d), else its diagonal (d,).
    """
    if kind == "empirical_fisher":
        return _empirical_fisher(target, position, rows, weights, full)

    def negative(theta: Array) -> Array:
        return -log_likelihood(target, theta, rows, weights)

    return hessian(negative, position, full=full)


def hessian(function: Callable[[Array], Array], position: Array, *, full: bool) -> Array:
    """Return the second derivatives of a scalar function: (d, d), or their diagonal (d,)."""
    gradient = jax.grad(function)

    def column(index: Array) -> Array:
        unit = (jnp.arange(position.size, dtype=index.dtype) == index).astype(position.dtype)
        product = jax.jvp(gradient, (position,), (unit,))[1]
        return product if full else product[index]

    indices = jnp.arange(position.size, dtype=jnp.int32)
    result = compiler.map_in_blocks(column, indices, COLUMNS_AT_ONCE)
    return (result + result.T) / 2 if full else result


def _empirical_fisher(
    target: Target, position: Array, rows: PyTree, weights: Array, full: bool
) -> Array:
    def square(row: PyTree, weight: Array) -> Array:
        alone = jax.tree.map(lambda leaf: leaf[None], row)
        gradient = jax.grad(lambda theta: target.log_likelihood(theta, alone)[0])(position)
        return jnp.where(weight > 0, gradient, 0) * jnp.sqrt(weight)

    def add(total: Array, start: Array) -> tuple[Array, None]:
        index = start + jnp.arange(block, dtype=start.dtype)
        inside = index < length
        index = jnp.minimum(index, length - 1)
        chosen = jax.tree.map(lambda leaf: leaf[index], rows)
        weight = jnp.where(inside, weights[index], 0)
        gradients = jax.vmap(square)(chosen, weight)
        return total + (gradients.T @ gradients if full else jnp.sum(gradients**2, axis=0)), None

    length = weights.shape[0]
    block = min(ROWS_AT_ONCE, length)
    d = position.size
    empty = jnp.zeros((d, d) if full else (d,), position.dtype)
    starts = jnp.arange(0, length, block, dtype=jnp.int32)
    return jax.lax.scan(add, empty, starts)[0]


def mode_of(function: Callable[[Array], Array], start: Array) -> Mode:
    """Return the minimum nearest downhill from a start, by `newton`; JAX finds the derivatives."""

    def pieces(position: Array) -> tuple[Array, Array, Array]:
        value, gradient = jax.value_and_grad(function)(position)
        return value, gradient, hessian(function, position, full=True)

    return newton(pieces, start)
