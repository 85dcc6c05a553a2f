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


def phase_code(stage: int, position: int) -> int:
    """The number of a phase in key space."""
    return stage * 65536 + position


class Drawn(NamedTuple):
    """The numbers of one phase in one round.

    Attributes:
        shared: chain axis first; behind it a repetition axis in front when the phase repeats.
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

    def numbers(self, key: Array) -> numbers.Numbers:
        """The streams that a phase's functions see."""
        return numbers.Numbers(key, self.iteration, self.warmup, self.repetition)


def without_chain_axis(layout: Layout) -> bool:
    """A single chain runs without a chain axis."""
    return layout.chains == 1


def shared_numbers(phase: Phase, key: Array, code: int, counter: Counter, layout: Layout) -> PyTree:
    """What all nodes and the hub have in common, chain axis first."""

    def draw(chain_key: Array) -> PyTree:
        return phase.shared(counter.numbers(numbers.shared_key(chain_key)))

    return _per_chain(draw, key, code, layout)


def private_numbers(
    phase: Phase, key: Array, code: int, counter: Counter, layout: Layout, node: Array
) -> PyTree:
    """What one node has for itself, chain axis first."""

    def draw(chain_key: Array) -> PyTree:
        return phase.noise(counter.numbers(numbers.node_key(chain_key, node)))

    return _per_chain(draw, key, code, layout)


def visit_numbers(
    phase: Phase, key: Array, code: int, counter: Counter, layout: Layout, weights: Array
) -> Drawn:
    """The node that each chain visits, and the numbers there."""
    route = phase.exchange
    shares = weights
    if isinstance(route, Route) and route.probabilities is not None:
        shares = jnp.asarray(route.probabilities, weights.dtype)
    bounds = jnp.cumsum(shares)

    def draw(chain_key: Array) -> tuple[PyTree, Array]:
        level = counter.numbers(numbers.shared_key(chain_key)).uniform(ROUTE_STREAM)
        # Rounding may leave the last bound below one.
        node = jnp.searchsorted(bounds, level * bounds[-1], side="right")
        node = jnp.minimum(node, layout.nodes - 1).astype(jnp.int32)
        return phase.noise(counter.numbers(numbers.node_key(chain_key, node))), node

    noise, visited = _per_chain(draw, key, code, layout)
    return Drawn(shared_numbers(phase, key, code, counter, layout), noise, visited)


def phase_numbers(
    phase: Phase, key: Array, code: int, counter: Counter, layout: Layout, weights: Array
) -> Drawn:
    """All numbers of one phase in one round (every repetition of it)."""

    def draw(repetition: Array | None) -> Drawn:
        here = Counter(counter.iteration, counter.warmup, repetition)
        if isinstance(phase.exchange, Route):
            return visit_numbers(phase, key, code, here, layout, weights)
        nodes = jnp.arange(layout.nodes, dtype=jnp.int32)
        noise = jax.vmap(lambda node: private_numbers(phase, key, code, here, layout, node))(nodes)
        return Drawn(shared_numbers(phase, key, code, here, layout), noise)

    if phase.repeat == 1:
        return draw(None)
    return jax.vmap(draw)(jnp.arange(phase.repeat, dtype=jnp.int32))


def round_numbers(
    phases: tuple[Phase, ...],
    stage: int,
    key: Array,
    counter: Counter,
    layout: Layout,
    weights: Array,
) -> tuple[Drawn, ...]:
    """All numbers of one round."""
    return tuple(
        phase_numbers(phase, key, phase_code(stage, position), counter, layout, weights)
        for position, phase in enumerate(phases)
    )


def block_numbers(
    phases: tuple[Phase, ...],
    key: Array,
    first: Array,
    warmup: Array,
    layout: Layout,
    weights: Array,
) -> tuple[Drawn, ...]:
    """All numbers of ``layout.block`` rounds from ``first`` on, round axis first."""

    def at(iteration: Array) -> tuple[Drawn, ...]:
        return round_numbers(phases, ROUND, key, Counter(iteration, warmup), layout, weights)

    return jax.vmap(at)(first + jnp.arange(layout.block, dtype=jnp.int32))


def deferred_numbers(
    phases: tuple[Phase, ...],
    key: Array,
    at: Array,
    warmup: Array,
    layout: Layout,
    weights: Array,
) -> tuple[Drawn, ...]:
    """The numbers of one round, private ones drawn only where and when their node runs."""
    counter = Counter(at, warmup)

    def drawn(position: int, phase: Phase) -> Drawn:
        code = phase_code(ROUND, position)
        if phase.repeat > 1 or isinstance(phase.exchange, Route):
            return phase_numbers(phase, key, code, counter, layout, weights)

        def noise(node: Array) -> PyTree:
            return private_numbers(phase, key, code, counter, layout, node)

        return Drawn(shared_numbers(phase, key, code, counter, layout), noise)

    return tuple(drawn(position, phase) for position, phase in enumerate(phases))


def _per_chain(draw: Callable[[Array], PyTree], key: Array, code: int, layout: Layout) -> PyTree:
    if without_chain_axis(layout):
        return draw(numbers.phase_key(key, 0, code))
    chains = jnp.arange(layout.chains, dtype=jnp.uint32)
    return jax.vmap(lambda chain: draw(numbers.phase_key(key, chain, code)))(chains)
