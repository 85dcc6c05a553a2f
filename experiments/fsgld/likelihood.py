"""Mean log-likelihoods of rows at the draws of a chain."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia


def mean_log_likelihoods(
    model: consortia.Model, drawn: dict[str, np.ndarray], rows: Any, chosen: np.ndarray
) -> np.ndarray:
    """Return the mean log-likelihood of a row at each of the chosen draws.

    Args:
        model: that was sampled.
        drawn: draws of one chain by parameter, (draws, ...).
        rows: the rows.
        chosen: indices of draws.
    """
    kept = {name: jnp.asarray(values[chosen]) for name, values in drawn.items()}
    return np.asarray(_compiled(model)(kept, rows), np.float64)


@functools.cache
def _compiled(model: consortia.Model) -> Any:
    @jax.jit
    def of_draws(drawn: dict[str, jax.Array], rows: Any) -> jax.Array:
        return jax.lax.map(lambda params: jnp.mean(model.log_likelihood(params, rows)), drawn)

    return of_draws
