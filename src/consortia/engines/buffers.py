"""Buffers on the device for the draws of a chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int32

from consortia.engines.rng import Layout
from consortia.runtime.late import Array, PyTree, jax, jnp


class Window(NamedTuple):
    """Rounds that a call runs, and where their draws go; int32 scalars.

    Draws are counted from the end of the warm-up. Number n of them goes to slot n // thin − origin,
    so that the last of each block of ``thin`` stays.
    """

    first: Any
    stop: Any
    origin: Any
    thin: Any
    warmup: Any


class Buffers(NamedTuple):
    """Records of a chunk, slot axis first; the last slot is for a block in progress."""

    draws: Float[Array, "slots *chains d"]
    agents: Float[Array, "slots nodes *chains d"] | None
    hub_info: PyTree
    node_info: PyTree


class Yield(NamedTuple):
    """Records of one iteration, as arrays or their shapes."""

    # (chains, d), or (chains, per_iteration, d) where that is more than one; a single chain has
    # no chain axis
    draw: Any
    agents: Any  # (nodes, chains, d), or None
    node_info: dict[str, Any]  # scalars (nodes, chains) by name
    hub_info: dict[str, Any]  # scalars (chains,) by name


def zeros_from_host(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return zeros on the device, for which nothing is compiled."""
    return jax.device_put(np.zeros(shape, dtype))


def empty_buffers(
    shapes: Yield,
    layout: Layout,
    per_iteration: int,
    zeros: Callable[[tuple[int, ...], Any], Array] = zeros_from_host,
) -> Buffers:
    """Return buffers without a draw, for iterations that yield arrays of these shapes."""
    draw = shapes.draw
    if per_iteration > 1:
        axis = 0 if layout.chains == 1 else 1
        without = draw.shape[:axis] + draw.shape[axis + 1 :]
        draw = jax.ShapeDtypeStruct(without, draw.dtype)
    slots = layout.slots + 1

    def empty(shape: jax.ShapeDtypeStruct) -> Array:
        return zeros((slots, *shape.shape), shape.dtype)

    def averages(shape: jax.ShapeDtypeStruct) -> Array:
        return zeros((slots, *shape.shape), jnp.result_type(float))

    return Buffers(
        empty(draw),
        None if shapes.agents is None else empty(shapes.agents),
        jax.tree.map(averages, shapes.hub_info),
        jax.tree.map(averages, shapes.node_info),
    )


def emptied(buffers: Buffers) -> Buffers:
    """Return the buffers for the next chunk: draws are written over, averages start from zero."""

    def zeros(leaf: Array) -> Array:
        return zeros_from_host(leaf.shape, leaf.dtype)

    hub, node = jax.tree.map(zeros, (buffers.hub_info, buffers.node_info))
    return buffers._replace(hub_info=hub, node_info=node)


def infos_at(buffers: Buffers, slot: int) -> PyTree:
    """Return the infos of one slot, on the host; the average so far of a block in progress."""
    infos = (buffers.hub_info, buffers.node_info)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[slot].copy(), infos)


def with_infos(buffers: Buffers, infos: PyTree) -> Buffers:
    """Return the buffers with such infos in the first slot."""

    def put(leaf: Array, value: Any) -> Array:
        host = np.array(leaf)  # on the host, where nothing is compiled
        host[0] = value
        return jax.device_put(host)

    hub, node = jax.tree.map(put, (buffers.hub_info, buffers.node_info), infos)
    return buffers._replace(hub_info=hub, node_info=node)


def record(buffers: Buffers, made: Yield, iteration: Int32[Array, ""], window: Window) -> Buffers:
    """Return the buffers with one draw in its slot, over the earlier ones of its block of ``thin``.

    Infos are averaged over that block. ``iteration`` counts from the end of the warm-up.
    """
    thin = window.thin
    slot = iteration // thin - window.origin

    def put(buffer: Array, value: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(buffer, value, slot, 0)

    def average(buffer: Array, value: Array) -> Array:
        return buffer.at[slot].add(value.astype(buffer.dtype) / thin.astype(buffer.dtype))

    return Buffers(
        put(buffers.draws, made.draw),
        None if buffers.agents is None else put(buffers.agents, made.agents),
        jax.tree.map(average, buffers.hub_info, made.hub_info),
        jax.tree.map(average, buffers.node_info, made.node_info),
    )


def record_several(
    buffers: Buffers,
    made: Yield,
    iteration: Int32[Array, ""],
    window: Window,
    layout: Layout,
    per_iteration: int,
) -> Buffers:
    """Return the buffers with the kept ones of several draws, and a hub's info at each of them.

    Agents and infos of nodes are not recorded.
    """
    number = iteration * per_iteration + jnp.arange(per_iteration, dtype=jnp.int32)
    slot = number // window.thin - window.origin
    kept = ((number + 1) % window.thin == 0) & (slot >= 0)
    slot = jnp.where(kept, slot, layout.slots + 1)  # out of bounds, and so dropped
    draws = made.draw if layout.chains == 1 else jnp.moveaxis(made.draw, 1, 0)

    def stand(buffer: Array, value: Array) -> Array:
        return buffer.at[slot].set(value.astype(buffer.dtype), mode="drop")

    return buffers._replace(
        draws=buffers.draws.at[slot].set(draws, mode="drop"),
        hub_info=jax.tree.map(stand, buffers.hub_info, made.hub_info),
    )


def held_bytes(arrays: PyTree, buffers: PyTree, carry: PyTree, copies: int) -> dict[str, int]:
    """Return the bytes that a run holds, by what they are for; draws are arrays or shapes."""
    return {
        "data": sum(leaf.nbytes for leaf in jax.tree.leaves(arrays)),
        "draws of a chunk": sum(
            leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(buffers)
        ),
        "state": copies * sum(leaf.nbytes for leaf in jax.tree.leaves(carry)),
    }
