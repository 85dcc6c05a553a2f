"""The values that a compiled program takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from consortia.core.contract import Site

Array = jax.Array
PyTree = Any


class Events(NamedTuple):
    """A stretch of the trace of a `Mailbox`: whose gradient each update takes.

    Attributes:
        first: the update of the first column, int32 scalar.
        worker: (servers, updates), int32, as are the next two.
        task: number of the worker's task.
        staleness: updates of the server since the worker fetched its parameters.
        shares: weight of each worker's site, (servers, workers).
    """

    first: Any
    worker: Any
    task: Any
    staleness: Any
    shares: Any


class Ring(NamedTuple):
    """The inbox of a `Mailbox`: past replies, of which a worker may hold any.

    Attributes:
        replies: pytree of arrays (length, chains, ...); the reply to update l − 1 is at l modulo
            the length.
        last: the latest of them.
    """

    replies: PyTree
    last: PyTree


class SiteArrays(NamedTuple):
    """All sites' data and numbers, node axis first: the arguments behind `Site`.

    ``events`` has no node axis and is empty where no phase has a `consortia.core.contract.Mailbox`;
    ``present`` says which sites take part in an average, (nodes,), and is empty where all do.
    """

    data: PyTree
    sizes: Array
    weights: Array
    prior_shares: Array
    fitted: PyTree
    events: Events | tuple[()] = ()
    present: Array | tuple[()] = ()

    def site(self, index: Any, number: Any = None) -> Site:
        """Return the site at this index; its arrays are indexed where its rows are read.

        ``number`` is its index among all sites, where these are a part; else the same.
        """
        return Site(
            self.data,
            self.sizes[index],
            self.weights[index],
            self.prior_shares[index],
            jax.tree.map(lambda leaf: leaf[index], self.fitted),
            jnp.asarray(index, jnp.int32),
            jnp.asarray(index if number is None else number, jnp.int32),
        )


class Carry(NamedTuple):
    """What an iteration needs from the one before it."""

    node: PyTree
    hub: PyTree
    inbox: PyTree


class Buffers(NamedTuple):
    """What is recorded of a chunk, slot axis first; the last slot is for a block in progress."""

    draws: Array
    agents: Array | None
    hub_info: PyTree
    node_info: PyTree


class Window(NamedTuple):
    """Which rounds a call runs and where their draws go; int32 scalars.

    Draws are counted from the end of the warm-up. Number n of them goes to slot n // thin − origin,
    so that the last of each block of ``thin`` stays.
    """

    first: Any
    stop: Any
    origin: Any
    thin: Any
    warmup: Any


@dataclass(frozen=True)
class Layout:
    """What fixes the compiled program beside the algorithm and the shapes.

    Attributes:
        nodes: number of sites.
        chains: number of independent chains.
        map_nodes: run the sites one after the other (for large gradients) or batched.
        block: rounds whose random numbers are drawn at once.
        slots: kept draws that fit in the buffers of one chunk.
    """

    nodes: int
    chains: int
    map_nodes: bool
    block: int
    slots: int
