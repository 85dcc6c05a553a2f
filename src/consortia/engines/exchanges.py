"""Exchanges as array operations over a leading node axis."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from consortia.base import Exchange, Mean, Mix, Phase, Sum

Array = jax.Array
PyTree = Any


def message_of(exchange: Exchange | None, outbox: PyTree, weights: Array) -> PyTree:
    """The message that the outboxes of all nodes become.

    Args:
        exchange: what crosses the network; None leaves the message empty.
        outbox: pytree of arrays (nodes, ...).
        weights: w_c, (nodes,).

    Returns:
        The message without a node axis (`Mean`, `Sum`), or what each node receives (`Mix`).
    """
    match exchange:
        case None:
            return ()
        case Mean():
            return jax.tree.map(lambda leaf: _product(weights, leaf), outbox)
        case Sum():
            return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), outbox)
        case Mix(matrix, times):
            array = jnp.asarray(matrix, weights.dtype)
            for _ in range(times):
                outbox = jax.tree.map(lambda leaf: _product(array, leaf), outbox)
            return outbox


def _product(matrix: Array, leaf: Array) -> Array:
    return jnp.tensordot(matrix.astype(leaf.dtype), leaf, axes=1, precision="highest")


def reply_per_node(phase: Phase, before: bool) -> bool:
    """Whether the inbox after a phase differs from node to node; ``before``: did it already."""
    if isinstance(phase.exchange, Mix):
        return True
    if phase.exchange is None and phase.hub is None:
        return before if phase.local is None else True
    return False


def inbox_per_node(phases: tuple[Phase, ...]) -> bool:
    """Whether the inbox at the start of an iteration differs from node to node."""
    per_node = False
    for _ in range(2):  # the second time with what the iteration before has left
        for phase in phases:
            per_node = reply_per_node(phase, per_node)
    return per_node


def communication(
    exchange: Exchange | None, outbox_bytes: int, reply_bytes: int, nodes: int
) -> tuple[int, int, int]:
    """(rounds, bytes up, bytes down) of one exchange of one chain.

    A star sends every outbox up and every reply down; gossip sends each outbox along each edge of
    the graph, counted as up only.
    """
    match exchange:
        case None:
            return 0, 0, 0
        case Mix(matrix, times):
            edges = sum(
                1
                for i, row in enumerate(matrix)
                for j, weight in enumerate(row)
                if weight and i != j
            )
            return times, times * edges * outbox_bytes, 0
        case _:
            return 1, nodes * outbox_bytes, nodes * reply_bytes
