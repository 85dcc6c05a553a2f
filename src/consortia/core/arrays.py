"""Mathematics over two array libraries: NumPy on the host, JAX where programs are compiled.

A function that is written with `namespace` takes arrays of either kind and returns the same kind.
NumPy's ones are evaluated at once; JAX's may be traced, differentiated and compiled. Of the
functions below NumPy's and SciPy's own are slow or missing: `logaddexp`, `log1p` and `expit` are
not vectorised, and take five times as long as `exp` and `log`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from consortia.runtime.late import jax, jnp

Array = Any
"""An array of NumPy or of JAX."""


VALUES_AT_ONCE = 2**16
"""Numbers that NumPy computes together, 512 KiB; more leave a processor's cache (of the second
level, 1 to 2 MiB a core today, with room for what is computed from them). Chosen, not measured."""


SUMMED_IN_SINGLE = 64
"""Numbers in single precision that are added before their sum is: of rows of size one it is exact
to about 1e-6, some ten times what each of them is."""


def is_host(values: Any) -> bool:
    """Return True for NumPy's arrays and plain numbers."""
    return isinstance(values, np.ndarray | np.generic | float | int)


def namespace(values: Any) -> Any:
    """Return `numpy` or `jax.numpy`, whose functions take these values."""
    if is_host(values):
        return np
    return jnp


def special(values: Any) -> Any:
    """Return `scipy.special` or `jax.scipy.special` likewise."""
    if is_host(values):
        import scipy.special  # heavy, and only wanted by families with such functions

        return scipy.special
    import jax.scipy.special

    return jax.scipy.special


def softplus(values: Array) -> Array:
    """Return log(1 + exp(v)), of NumPy with an absolute error of half a unit at one."""
    if not is_host(values):
        return jax.nn.softplus(values)
    with np.errstate(over="ignore"):
        rest = np.asarray(np.exp(values))
    rest += 1
    np.log(rest, out=rest)
    if np.max(rest, initial=0.0) == np.inf:
        np.copyto(rest, values, where=np.isinf(rest))
    return rest


def log_sigmoid(values: Array) -> Array:
    """Return log σ(v)."""
    return -softplus(-values)


def sigmoid(values: Array) -> Array:
    """Return σ(v) = 1/(1 + exp(−v))."""
    if not is_host(values):
        return jax.nn.sigmoid(values)
    with np.errstate(over="ignore"):  # far down it is 1/∞
        return 1 / (1 + np.exp(-values))


def logsumexp(values: Array, axis: int) -> Array:
    """Return log Σ exp(v) over an axis; −∞ where all values are."""
    if not is_host(values):
        return jax.nn.logsumexp(values, axis=axis)
    most = np.max(values, axis=axis, keepdims=True)
    most = np.where(np.isfinite(most), most, 0)
    with np.errstate(divide="ignore"):
        total = np.log(np.sum(np.exp(values - most), axis=axis))
    return total + np.squeeze(most, axis=axis)


def constant(values: Any) -> Any:
    """Return a pytree that is not differentiated through."""
    if all(is_host(leaf) for leaf in (values.values() if isinstance(values, dict) else [values])):
        return values
    return jax.tree.map(jax.lax.stop_gradient, values)


def sums_of_groups(values: Array, group: Array, count: int) -> Array:
    """Return the sums (..., count) of values (..., rows) over the rows of each group."""
    if is_host(values):
        group = np.asarray(group)
        order = np.argsort(group, kind="stable")
        present, first = np.unique(group[order], return_index=True)
        total = np.zeros((*values.shape[:-1], count))
        if len(first):
            ordered = values if np.all(np.diff(group) >= 0) else values[..., order]
            total[..., present] = np.add.reduceat(ordered, first, axis=-1, dtype=np.float64)
        return total
    moved = jax.ops.segment_sum(jnp.moveaxis(values, -1, 0), group, count)
    return jnp.moveaxis(moved, 0, -1)


def sum_rows(values: Array) -> Array:
    """Return the sum over the last axis; of NumPy's arrays in double precision."""
    if not is_host(values):
        return values.sum(axis=-1)
    if values.dtype != np.float32:
        return np.sum(values, axis=-1, dtype=np.float64)
    # A product of matrices takes a tenth of the time of a sum that converts each number.
    ones, total = np.ones(SUMMED_IN_SINGLE, np.float32), np.zeros(values.shape[:-1])
    for at in range(0, values.shape[-1], SUMMED_IN_SINGLE):
        part = values[..., at : at + SUMMED_IN_SINGLE]
        total += part @ ones[: part.shape[-1]]
    return total


def repeat(step: Callable[[Any], Any], goes_on: Callable[[Any], Any], begun: Any, like: Any) -> Any:
    """Return the state after steps while a condition holds; ``like`` says in which library."""
    if not is_host(like):
        return jax.lax.while_loop(goes_on, step, begun)
    while goes_on(begun):
        begun = step(begun)
    return begun


def at_each(
    function: Callable[[Array], Array], points: np.ndarray, like: Array, most: int, values: int
) -> Array:
    """Return a function at each of some constant points, first axis.

    Args:
        function: of one point (k,), or of several (m, 1, ..., 1, k) before the axes of ``like``.
        points: (n, k).
        like: array whose library and type they have.
        most: points that JAX computes side by side.
        values: numbers that a value of the function is made of: NumPy computes as many together as
            stay in a processor's cache.
    """
    if is_host(like):
        apart = points.astype(like.dtype).reshape(len(points), *[1] * (like.ndim - 1), -1)
        width = max(VALUES_AT_ONCE // max(values, 1), 1)
        parts = [function(apart[at : at + width]) for at in range(0, len(apart), width)]
        return np.concatenate(parts)
    from consortia.runtime.compiler import map_in_blocks

    each = jnp.asarray(points, like.dtype)
    if len(points) > most:
        return map_in_blocks(function, each, most)
    return jax.vmap(function)(each)


def one_by_one(function: Callable[[Any], Array], values: Array, like: Array) -> Array:
    """Return a function of each of some values, first axis, one after the other."""
    if is_host(like):
        return np.stack([function(value) for value in values.astype(like.dtype)])
    return jax.lax.map(function, jnp.asarray(values, like.dtype))
