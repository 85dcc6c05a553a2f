"""Drawing what the phases declare: random numbers for all chains, nodes and rounds of a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int32, UInt32

from consortia.core import random
from consortia.core.contract import Mailbox, Phase, Route
from consortia.runtime.late import Array, PyTree, jax, jnp

AnyArray = Array | np.ndarray
"""An array of JAX, or on the host."""

FIT, SETUP, ROUND = 0, 1, 2
"""Stages of an algorithm, as coded in the keys of its random numbers."""

ROUTE_STREAM = "node that the chain visits"


@dataclass(frozen=True)
class Layout:
    """Settings that fix the compiled program beside the algorithm and the shapes."""

    nodes: int  # number of sites
    chains: int  # number of independent chains
    map_nodes: bool  # run the sites one after the other (for large gradients) or batched
    block: int  # rounds whose random numbers are drawn at once
    slots: int  # kept draws that fit in the buffers of one chunk


class Events(NamedTuple):
    """A stretch of the trace of a `Mailbox`: whose gradient each update takes."""

    first: Int32[Array, ""]  # the update of the first column, int32 scalar
    worker: Int32[Array, "servers updates"]  # (servers, updates), int32, as are the next two
    task: Int32[Array, "servers updates"]  # number of the worker's task
    # updates of the server since the worker fetched its parameters
    staleness: Int32[Array, "servers updates"]
    shares: Float[Array, "servers workers"]  # weight of each worker's site, (servers, workers)


class PhaseKeys(NamedTuple):
    """Keys of one phase, uint32; a single chain has no chain axis.

    Attributes:
        shared: (chains, 2), of what all nodes and the hub have in common.
        private: (nodes, chains, 2), of a `Mailbox` (workers, chains, 2).
    """

    shared: UInt32[AnyArray, "*chains 2"]
    private: UInt32[AnyArray, "nodes *chains 2"]


class Arrival(NamedTuple):
    """The message that each chain's server takes in one update; (chains,), scalars of one chain."""

    update: Int32[Array, ""]  # l, the updates before this one; int32 scalar
    worker: Int32[Array, "*chains"]  # numbered within its server, int32
    # τ; the message was computed at the reply to update l − τ − 1
    staleness: Int32[Array, "*chains"]
    weight: Float[Array, "*chains"]  # of the worker's site


class PhaseRandomness(NamedTuple):
    """The numbers of one phase in one round."""

    shared: PyTree  # chain axis first; a repetition axis in front of it when the phase repeats
    # node and chain axes first, or a function of the node's index that draws them there; of a
    # `Route` or `Mailbox`, that of the one node that acts, chain axis first
    noise: PyTree | Callable[[Array], PyTree]
    # there, the site of that node, int32 (chains,) or scalar
    visited: Int32[Array, "*chains"] | None = None
    arrival: Arrival | None = None  # of a `Mailbox`, whose message arrives


@dataclass(frozen=True)
class Counter:
    """Position of a set of numbers in the run; int32 scalars."""

    iteration: Any
    warmup: Any
    repetition: Any = None

    def draw(
        self,
        declare: Callable[[random.RandomStreams], PyTree],
        key: UInt32[AnyArray, " 2"],
    ) -> PyTree:
        """Draw the numbers that a phase declares, under one key (2,)."""
        return random.declared(declare, key, self.iteration, self.warmup, self.repetition)


class Source(NamedTuple):
    """Settings that numbers depend on beside their phase, keys and place in the run."""

    layout: Layout  # of nodes and chains
    # of the sites, by which a `Route` chooses where it says nothing else
    weights: Float[Array, " nodes"]
    events: Events | tuple[()] = ()  # of a `Mailbox`


def stage_keys(
    phases: tuple[Phase, ...], stage: int, base: UInt32[AnyArray, " 2"], layout: Layout
) -> tuple[PhaseKeys, ...]:
    """Return the keys of a stage's phases, on the host, from the run's ``base`` key (2,)."""
    chains = np.arange(layout.chains)

    def of_phase(position: int) -> PhaseKeys:
        exchange = phases[position].exchange
        count = exchange.workers if isinstance(exchange, Mailbox) else layout.nodes
        roots = random.phase_key(base, chains, stage * 65536 + position)
        keys = PhaseKeys(
            random.shared_key(roots), random.node_key(roots, np.arange(count)[:, None])
        )
        return PhaseKeys(keys.shared[0], keys.private[:, 0]) if layout.chains == 1 else keys

    return tuple(of_phase(position) for position in range(len(phases)))


def phase_randomness(
    phase: Phase, keys: PhaseKeys, counter: Counter, source: Source
) -> PhaseRandomness:
    """Return all numbers of one phase in one round (every repetition of it)."""
    if isinstance(phase.exchange, Mailbox):
        return _arrival_randomness(phase, phase.exchange, keys, counter, source)

    def draw(repetition: Array | None) -> PhaseRandomness:
        here = Counter(counter.iteration, counter.warmup, repetition)
        return once_randomness(phase, keys, here, source)

    if not phase.repeated:
        return draw(None)
    return jax.vmap(draw)(jnp.arange(phase.repeat, dtype=jnp.int32))


def once_randomness(
    phase: Phase, keys: PhaseKeys, counter: Counter, source: Source
) -> PhaseRandomness:
    """Return the numbers of one repetition of a phase in which nothing arrives one at a time.

    They are those of the nodes whose private ``keys`` are given.
    """
    if isinstance(phase.exchange, Route):
        return _visit_randomness(phase, phase.exchange, keys, counter, source)
    layout = source.layout
    noise = jax.vmap(lambda key: _per_chain(phase.noise, key, counter, layout))(keys.private)
    return PhaseRandomness(_per_chain(phase.shared, keys.shared, counter, layout), noise)


def _visit_randomness(
    phase: Phase, route: Route, keys: PhaseKeys, counter: Counter, source: Source
) -> PhaseRandomness:
    """Return the node that each chain visits, and the numbers there."""
    layout, shares = source.layout, source.weights
    if route.probabilities is not None:
        shares = jnp.asarray(route.probabilities, shares.dtype)
    bounds = jnp.cumsum(shares)

    def shared(rng: random.RandomStreams) -> tuple[PyTree, Array]:
        numbers = phase.shared(rng)
        return numbers, rng.uniform(ROUTE_STREAM)

    numbers, level = _per_chain(shared, keys.shared, counter, layout)
    # Rounding may leave the last bound below one.
    node = jnp.searchsorted(bounds, level * bounds[-1], side="right")
    visited = jnp.minimum(node, layout.nodes - 1).astype(jnp.int32)
    chains = () if layout.chains == 1 else (jnp.arange(layout.chains),)
    key = keys.private[(visited, *chains)]
    return PhaseRandomness(numbers, _per_chain(phase.noise, key, counter, layout), visited)


def _arrival_randomness(
    phase: Phase, mailbox: Mailbox, keys: PhaseKeys, counter: Counter, source: Source
) -> PhaseRandomness:
    """Return the numbers of the worker that arrives, by its task, and of the server, by update."""
    layout, events = source.layout, source.events
    if not isinstance(events, Events):
        raise TypeError("a phase with a Mailbox needs a trace of events")
    alone = layout.chains == 1
    servers = jnp.arange(mailbox.servers, dtype=jnp.int32)
    column = jnp.asarray(counter.iteration, jnp.int32) - events.first

    # Chains of one server share its events: each value is repeated for all of them.
    def of_chains(values: Array) -> Array:
        return values[0] if alone else jnp.repeat(values, layout.chains // mailbox.servers)

    workers = events.worker[:, column]
    worker, task, staleness, weight, server = (
        of_chains(values)
        for values in (
            workers,
            events.task[:, column],
            events.staleness[:, column],
            events.shares[servers, workers],
            servers,
        )
    )

    def shared(key: AnyArray, server: Array) -> PyTree:
        def declare(rng: random.RandomStreams) -> PyTree:
            rng.server = server
            return phase.shared(rng)

        return random.declared(declare, key, counter.iteration, counter.warmup, None)

    def noise(key: AnyArray, task: Array) -> PyTree:
        return random.declared(phase.noise, key, task, counter.warmup, None)

    key = keys.private[(worker,) if alone else (worker, jnp.arange(layout.chains))]
    if not alone:
        shared, noise = jax.vmap(shared), jax.vmap(noise)
    update = jnp.asarray(counter.iteration, jnp.int32)
    return PhaseRandomness(
        shared(keys.shared, server),
        noise(key, task),
        worker if layout.nodes > 1 else jnp.zeros_like(worker),
        Arrival(update, worker, staleness, weight),
    )


def round_randomness(
    phases: tuple[Phase, ...], keys: tuple[PhaseKeys, ...], counter: Counter, source: Source
) -> tuple[PhaseRandomness, ...]:
    """Return all numbers of one round."""
    pairs = zip(phases, keys, strict=True)
    return tuple(phase_randomness(phase, key, counter, source) for phase, key in pairs)


def bytes_of_round(phases: tuple[Phase, ...], layout: Layout) -> int:
    """Return the bytes of all numbers of one round, by what the phases declare."""
    total, integer = 0, 4
    for phase in phases:
        alone = isinstance(phase.exchange, Route | Mailbox)
        each = _bytes_of(phase.shared) + _bytes_of(phase.noise) * (1 if alone else layout.nodes)
        if alone:
            each += integer  # which node
        if isinstance(phase.exchange, Mailbox):  # and its worker, staleness and weight
            each += 2 * integer + jnp.result_type(float).itemsize
            total += integer  # the update
        total += each * layout.chains * phase.repeat
    return total


def _bytes_of(declare: Callable[[random.RandomStreams], PyTree]) -> int:
    """Return the bytes that one declaration takes."""
    shapes = jax.eval_shape(lambda: declare(random.RandomStreams(0, 0)))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def block_randomness(
    phases: tuple[Phase, ...], keys: tuple[PhaseKeys, ...], first: Counter, source: Source
) -> tuple[PhaseRandomness, ...]:
    """Return all numbers of ``layout.block`` rounds from ``first`` on, round axis first."""

    def at(iteration: Array) -> tuple[PhaseRandomness, ...]:
        return round_randomness(phases, keys, Counter(iteration, first.warmup), source)

    return jax.vmap(at)(first.iteration + jnp.arange(source.layout.block, dtype=jnp.int32))


def deferred_randomness(
    phases: tuple[Phase, ...], keys: tuple[PhaseKeys, ...], counter: Counter, source: Source
) -> tuple[PhaseRandomness, ...]:
    """Return the numbers of one round, private ones drawn only where and when their node runs."""
    layout = source.layout

    def drawn(phase: Phase, key: PhaseKeys) -> PhaseRandomness:
        if phase.repeated or isinstance(phase.exchange, Route | Mailbox):
            return phase_randomness(phase, key, counter, source)

        def noise(node: Array) -> PyTree:
            return _per_chain(phase.noise, key.private[node], counter, layout)

        return PhaseRandomness(_per_chain(phase.shared, key.shared, counter, layout), noise)

    return tuple(drawn(phase, key) for phase, key in zip(phases, keys, strict=True))


def _per_chain(
    declare: Callable[[random.RandomStreams], PyTree],
    keys: UInt32[AnyArray, "*chains 2"],
    counter: Counter,
    layout: Layout,
) -> PyTree:
    """Draw the numbers that a phase declares, for each chain's key, (chains, 2) or (2,)."""
    if layout.chains == 1:
        return counter.draw(declare, keys)
    return jax.vmap(lambda key: counter.draw(declare, key))(keys)
