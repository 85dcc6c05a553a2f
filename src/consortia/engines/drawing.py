"""Drawing what the phases declare: random numbers for all chains, nodes and rounds of a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from consortia import numbers
from consortia.base import Phase, Route
from consortia.engines.types import Layout

Array = jax.Array
PyTree = Any

FIT, SETUP, ROUND = 0, 1, 2
"""Stages of an algorithm, as coded in the keys of its random numbers."""

ROUTE_STREAM = "node that the chain visits"


class PhaseKeys(NamedTuple):
    """Keys of one phase, uint32; a single chain has no chain axis.

    Attributes:
        shared: (chains, 2), of what all nodes and the hub have in common.
        private: (nodes, chains, 2).
    """

    shared: Array
    private: Array


class Drawn(NamedTuple):
    """The numbers of one phase in one round.

    Attributes:
        shared: chain axis first; a repetition axis in front of it when the phase repeats.
        noise: node and chain axes first, or a function of the node's index that draws them there;
            of a `Route`, the visited node's, chain axis first.
        visited: of a `Route`, the node that each chain visits, int32 (chains,) or scalar.
    """

    shared: PyTree
    noise: PyTree | Callable[[Array], PyTree]
    visited: Array | None = None


@dataclass(frozen=True)
class Counter:
    """Where in the run a set of numbers stands; int32 scalars."""

    iteration: Any
    warmup: Any
    repetition: Any = None

    def draw(self, declare: Callable[[numbers.Numbers], PyTree], key: Array) -> PyTree:
        """What a phase declares, under one key (2,)."""
        return numbers.declared(declare, key, self.iteration, self.warmup, self.repetition)


def stage_keys(
    phases: tuple[Phase, ...], stage: int, base: Array, layout: Layout
) -> tuple[PhaseKeys, ...]:
    """The keys of a stage's phases, from the run's ``base`` key (2,)."""
    nodes = jnp.arange(layout.nodes, dtype=jnp.uint32)

    def of_phase(position: int) -> PhaseKeys:
        def of_chain(chain: Any) -> Array:
            return numbers.phase_key(base, chain, stage * 65536 + position)

        if layout.chains == 1:
            root = of_chain(0)
            private = jax.vmap(lambda node: numbers.node_key(root, node))(nodes)
            return PhaseKeys(numbers.shared_key(root), private)
        roots = jax.vmap(of_chain)(jnp.arange(layout.chains, dtype=jnp.uint32))
        private = jax.vmap(lambda node: jax.vmap(lambda root: numbers.node_key(root, node))(roots))(
            nodes
        )
        return PhaseKeys(jax.vmap(numbers.shared_key)(roots), private)

    return tuple(of_phase(position) for position in range(len(phases)))


def phase_numbers(
    phase: Phase, keys: PhaseKeys, counter: Counter, layout: Layout, weights: Array
) -> Drawn:
    """All numbers of one phase in one round (every repetition of it)."""

    def draw(repetition: Array | None) -> Drawn:
        here = Counter(counter.iteration, counter.warmup, repetition)
        if isinstance(phase.exchange, Route):
            return _visit_numbers(phase, phase.exchange, keys, here, layout, weights)
        noise = jax.vmap(lambda key: _per_chain(phase.noise, key, here, layout))(keys.private)
        return Drawn(_per_chain(phase.shared, keys.shared, here, layout), noise)

    if phase.repeat == 1:
        return draw(None)
    return jax.vmap(draw)(jnp.arange(phase.repeat, dtype=jnp.int32))


def _visit_numbers(
    phase: Phase, route: Route, keys: PhaseKeys, counter: Counter, layout: Layout, weights: Array
) -> Drawn:
    """The node that each chain visits, and the numbers there."""
    shares = weights
    if route.probabilities is not None:
        shares = jnp.asarray(route.probabilities, weights.dtype)
    bounds = jnp.cumsum(shares)

    def shared(rng: numbers.Numbers) -> tuple[PyTree, Array]:
        own = phase.shared(rng)
        return own, rng.uniform(ROUTE_STREAM)

    own, level = _per_chain(shared, keys.shared, counter, layout)
    # Rounding may leave the last bound below one.
    node = jnp.searchsorted(bounds, level * bounds[-1], side="right")
    visited = jnp.minimum(node, layout.nodes - 1).astype(jnp.int32)
    chains = () if layout.chains == 1 else (jnp.arange(layout.chains),)
    key = keys.private[(visited, *chains)]
    return Drawn(own, _per_chain(phase.noise, key, counter, layout), visited)


def round_numbers(
    phases: tuple[Phase, ...],
    keys: tuple[PhaseKeys, ...],
    counter: Counter,
    layout: Layout,
    weights: Array,
) -> tuple[Drawn, ...]:
    """All numbers of one round."""
    return tuple(
        phase_numbers(phase, own, counter, layout, weights)
        for phase, own in zip(phases, keys, strict=True)
    )


def block_numbers(
    phases: tuple[Phase, ...],
    keys: tuple[PhaseKeys, ...],
    first: Array,
    warmup: Array,
    layout: Layout,
    weights: Array,
) -> tuple[Drawn, ...]:
    """All numbers of ``layout.block`` rounds from ``first`` on, round axis first."""

    def at(iteration: Array) -> tuple[Drawn, ...]:
        return round_numbers(phases, keys, Counter(iteration, warmup), layout, weights)

    return jax.vmap(at)(first + jnp.arange(layout.block, dtype=jnp.int32))


def deferred_numbers(
    phases: tuple[Phase, ...],
    keys: tuple[PhaseKeys, ...],
    at: Array,
    warmup: Array,
    layout: Layout,
    weights: Array,
) -> tuple[Drawn, ...]:
    """The numbers of one round, private ones drawn only where and when their node runs."""
    counter = Counter(at, warmup)

    def drawn(phase: Phase, own: PhaseKeys) -> Drawn:
        if phase.repeat > 1 or isinstance(phase.exchange, Route):
            return phase_numbers(phase, own, counter, layout, weights)

        def noise(node: Array) -> PyTree:
            return _per_chain(phase.noise, own.private[node], counter, layout)

        return Drawn(_per_chain(phase.shared, own.shared, counter, layout), noise)

    return tuple(drawn(phase, own) for phase, own in zip(phases, keys, strict=True))


def _per_chain(
    declare: Callable[[numbers.Numbers], PyTree], keys: Array, counter: Counter, layout: Layout
) -> PyTree:
    """What a phase declares, for each chain's key, (chains, 2) or (2,)."""
    if layout.chains == 1:
        return counter.draw(declare, keys)
    return jax.vmap(lambda key: counter.draw(declare, key))(keys)
