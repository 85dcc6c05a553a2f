"""Seconds of a log-density where there is much to compute, by which a method sizes its messages."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from consortia.core.contract import Site
from consortia.core.target import Target, in_jax_width
from consortia.data.sites import Sites
from consortia.dynamics.metropolis import at_all, potential

WORK_TIMED = 5_000_000_000
"""Points times rows times parameters of a message from which on its work is timed: some ten seconds
on a busy core."""

POINTS = 8
"""That are evaluated together, as in a message."""


def seconds_of_point(target: Target, sites: Sites, position: Float[np.ndarray, " d"]) -> float:
    """Return the seconds of a log-density at the largest site here, as measured.

    A process without rows, as the server of a network, takes zeros for them: that is its own pace.

    Args:
        target: the posterior.
        sites: the sites.
        position: where.
    """
    sizes = np.asarray(sites.sizes, np.int64)
    largest = max(sites.here or range(len(sites)), key=lambda index: int(sizes[index]))
    rows = sites.shards[largest]
    if not sites.here:
        count = int(sizes[largest])
        rows = jax.tree.map(lambda one: np.zeros((count, *one.shape[1:]), one.dtype), sites.first)
    rows = jax.tree.map(lambda leaf: np.asarray(leaf)[None], rows)
    if target.model.arrange is not None:
        rows = target.model.arrange(rows)
    held = jax.device_put(jax.tree.map(lambda leaf: in_jax_width(leaf[0]), rows))
    points = jnp.asarray(np.broadcast_to(position, (POINTS, target.dimension)), target.dtype)
    jax.block_until_ready(_potentials(target, held, points))  # compiled
    began = time.perf_counter()
    jax.block_until_ready(_potentials(target, held, points))
    return (time.perf_counter() - began) / POINTS


@partial(jax.jit, static_argnums=0)
def _potentials(target: Target, rows: PyTree, points: Float[Array, "K d"]) -> Any:
    one = jnp.ones((), target.dtype)
    site = Site(rows, jnp.int32(jax.tree.leaves(rows)[0].shape[0]), one, one)
    return at_all(target, lambda point: potential(target, point, site), points, site)
