"""What the ready models have in common: Gaussian densities, argument checks, batch checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
PyTree = Any


def log_normal_density(values: Array, scale: float | Array) -> Array:
    r"""log N(v; 0, s²) of each value, −½ (v/s)² − log s − ½ log 2π."""
    return -0.5 * (values / scale) ** 2 - jnp.log(scale) - 0.5 * math.log(2 * math.pi)


def as_features(x: Any, like: Array) -> Array:
    """The features in the type of the parameters; narrow types are widened here, per batch."""
    return jnp.asarray(x).astype(like.dtype)


def zeros(*shape: int) -> np.ndarray:
    """A start at zero. On the host, so that making a model does not start JAX."""
    return np.zeros(shape, np.float32)


def wrong_batch(batch: PyTree, features: int) -> str | None:
    """What keeps a batch from being dict(x=(rows, features), y=(rows,)), or None."""
    if not isinstance(batch, Mapping):
        return f"the data are a {type(batch).__name__}, not a dict(x=(rows, {features}), y=(rows,))"
    missing = [key for key in ("x", "y") if key not in batch]
    if missing:
        return (
            f"the key {missing[0]!r} is missing (there are: {', '.join(map(str, batch))}); "
            f"give dict(x=(rows, {features}), y=(rows,))"
        )
    x, y = np.shape(batch["x"]), np.shape(batch["y"])
    if len(x) != 2:
        return f"x has shape {x}, not (rows, {features}): flatten each row to its features"
    if x[1] != features:
        return f"x has {x[1]} columns, but the model was made with features={features}"
    if y != x[:1]:
        return f"y has shape {y}, not ({x[0]},): one number per row of x"
    for key in ("x", "y"):
        if np.asarray(batch[key]).dtype.kind not in "biuf":
            return f"{key} has type {np.asarray(batch[key]).dtype}, not real numbers"
    return None


def wrong_labels(labels: np.ndarray, classes: int) -> str | None:
    """Which labels are not among 0, ..., classes − 1, or None."""
    labels = np.asarray(labels)
    values, counts = np.unique(labels, return_counts=True)
    known = np.isin(values, np.arange(classes))
    if known.all():
        return None
    outside = ", ".join(str(value) for value in values[~known][:5])
    more = ", ..." if (~known).sum() > 5 else ""
    remedy = "code −1 as 0" if classes == 2 and set(values.tolist()) <= {-1, 1} else "recode them"
    return (
        f"y holds labels outside 0..{classes - 1}: {outside}{more} "
        f"({int(counts[~known].sum())} of {labels.size} rows); {remedy}"
    )
