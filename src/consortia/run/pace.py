"""Seconds of a log-density, by which a method sizes its messages, and those of many gradients."""

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
from consortia.dynamics.metropolis import at_all, potential, potential_and_gradient

WORK_TIMED = 5_000_000_000
"""Points times rows times parameters of a message from which on its work is timed: some ten seconds
on a busy core."""

POINTS, GRADIENTS = 8, 64
"""That are evaluated together, as in a message."""


def seconds_of_point(
    target: Target, sites: Sites, position: Float[np.ndarray, " d"], *, gradient: bool = False
) -> float:
    """Return the seconds of a log-density at the largest site here, as measured.

    A process without rows, as the server of a network, takes zeros for them: that is its own pace.

    Args:
        target: the posterior.
        sites: the sites.
        position: where.
        gradient: take the gradient with it.
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
    count = GRADIENTS if gradient else POINTS
    points = jnp.asarray(np.broadcast_to(position, (count, target.dimension)), target.dtype)
    jax.block_until_ready(_evaluated(target, gradient, held, points))  # compiled
    began = time.perf_counter()
    jax.block_until_ready(_evaluated(target, gradient, held, points))
    return (time.perf_counter() - began) / count


def seconds_of_gradients(
    target: Target, sites: Sites, position: Float[np.ndarray, " d"], count: int
) -> float:
    """Return the seconds of so many gradients at all sites here, as measured at the largest.

    A process without rows, as the server of a network, takes one site: they work side by side.
    """
    sizes = [int(sites.sizes[index]) for index in sites.here] or [1]
    each = seconds_of_point(target, sites, position, gradient=True)
    return count * each * sum(sizes) / max(sizes)


@partial(jax.jit, static_argnums=(0, 1))
def _evaluated(target: Target, gradient: bool, rows: PyTree, points: Float[Array, "K d"]) -> Any:
    function = potential_and_gradient if gradient else potential
    one = jnp.ones((), target.dtype)
    site = Site(rows, jnp.int32(jax.tree.leaves(rows)[0].shape[0]), one, one)
    return at_all(target, lambda point: function(target, point, site), points, site)
