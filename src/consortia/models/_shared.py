"""Densities and probabilities that several ready models have, and checks of their batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from consortia.core.arrays import is_host
from consortia.runtime.late import Array as Array
from consortia.runtime.late import jax, jnp

PyTree = Any


def log_normal_density(values: Array, scale: float | Array) -> Array:
    r"""Return log N(v; 0, s²) of each value, −½ (v/s)² − log s − ½ log 2π."""
    log_scale = math.log(scale) if is_host(values) else jnp.log(scale)
    return -0.5 * (values / scale) ** 2 - log_scale - 0.5 * math.log(2 * math.pi)


def as_features(x: Any, like: Array) -> Array:
    """Return data in the type of the parameters; narrow types are widened here, per batch."""
    return jnp.asarray(x).astype(like.dtype)


def two_classes(log_odds: Array) -> Array:
    """Return the probabilities of the classes 0 and 1, (rows, 2)."""
    return jnp.stack([jax.nn.sigmoid(-log_odds), jax.nn.sigmoid(log_odds)], axis=-1)


def log_class_probability(scores: Array, labels: Any) -> Array:
    """Return log P(y), (rows,), of classes with probabilities ∝ exp(score), (rows, classes)."""
    classes = jnp.arange(scores.shape[-1], dtype=jnp.int32)
    # A mask, not a gather: the gradient of a gather is a scatter.
    chosen = jnp.asarray(labels).astype(jnp.int32)[:, None] == classes[None, :]
    return jnp.sum(jnp.where(chosen, scores, 0.0), axis=-1) - jax.nn.logsumexp(scores, axis=-1)


def wrong_batch(batch: PyTree, features: int) -> str | None:
    """Describe a batch's difference from dict(x=(rows, features), y=(rows,)), or return None."""
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


def wrong_classes(batch: PyTree, features: int, classes: int) -> str | None:
    """Describe a fault in a batch whose responses are labels 0, ..., classes − 1."""
    return wrong_batch(batch, features) or wrong_labels(batch["y"], classes)


def wrong_labels(labels: np.ndarray, classes: int) -> str | None:
    """Find labels that are not among 0, ..., classes − 1, or return None."""
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
