"""Weighted sums of a model's predictions over draws, compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from consortia.core.model import Model
from consortia.runtime import compiler
from consortia.runtime.late import PyTree, jax, jnp


@functools.partial(compiler.jit, static_argnames="function")
def weighted_sum(function: Callable[..., Any], draws: PyTree, weights: Any, rows: PyTree) -> Any:
    """Return Σ_s w_s function(θ_s, rows) by a scan over draws, compensated (Kahan)."""

    def add(totals: tuple[Any, Any], draw: tuple[PyTree, Any]) -> tuple[tuple[Any, Any], None]:
        (total, excess), (parameters, weight) = totals, draw
        value = function(parameters, rows)
        term = weight.astype(value.dtype) * value - excess
        after = total + term
        return (after, (after - total) - term), None

    shape = jax.eval_shape(function, jax.tree.map(lambda leaf: leaf[0], draws), rows)
    zero = jnp.zeros(shape.shape, shape.dtype)
    return jax.lax.scan(add, (zero, zero), (draws, weights))[0][0]


@functools.partial(compiler.jit, static_argnames="function")
def log_sum(function: Callable[..., Any], draws: PyTree, weights: Any, rows: PyTree) -> Any:
    """Return log Σ_s w_s exp function(θ_s, rows) by a scan over draws."""

    def add(total: Any, draw: tuple[PyTree, Any]) -> tuple[Any, None]:
        parameters, weight = draw
        value = function(parameters, rows)
        return jnp.logaddexp(total, value + jnp.log(weight).astype(value.dtype)), None

    shape = jax.eval_shape(function, jax.tree.map(lambda leaf: leaf[0], draws), rows)
    return jax.lax.scan(add, jnp.full(shape.shape, -jnp.inf, shape.dtype), (draws, weights))[0]


@functools.partial(compiler.jit, static_argnames=("model", "log_density"))
def sums_over_draws(
    model: Model, log_density: bool, draws: PyTree, weights: Any, rows: PyTree
) -> tuple[Any, ...]:
    """Return Σ_s w_s f_s and Σ_s w_s f_s² of the predictions f_s, and log Σ_s w_s p_s if wanted.

    Args:
        model: with ``predict``.
        log_density: return the log-densities of the rows too.
        draws: parameters with a leading axis.
        weights: (draws,).
        rows: pytree of arrays (rows, ...).
    """
    predict = model.predict
    if predict is None:
        raise TypeError("the model has no predict")
    first = weighted_sum(predict, draws, weights, rows)
    second = weighted_sum(lambda p, r: predict(p, r) ** 2, draws, weights, rows)
    if not log_density:
        return first, second
    return first, second, log_sum(model.log_likelihood, draws, weights, rows)
