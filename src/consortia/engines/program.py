"""One process's program for an algorithm: its phases, batched over nodes and chains and compiled.

The iteration runs in a loop whose bounds are arguments, so that one compiled program serves every
number of rounds, every chunk, every thinning and every seed, and a run that is cut into pieces
gives the same bits as one that is not. Random numbers are drawn for a block of rounds at once.

Axes: node first, then chain, then the algorithm's own; a single chain has no chain axis at all
(an axis of length one around a map over nodes costs a third of the speed).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from consortia.core.contract import Algorithm, Phase
from consortia.engines import drawing, exchanges, mailbox, slots
from consortia.engines.drawing import Counter, Drawn, PhaseKeys
from consortia.engines.iteration import Iteration, copies
from consortia.engines.slots import Yield
from consortia.engines.types import Buffers, Carry, Layout, Ring, SiteArrays, Window

Array = jax.Array
PyTree = Any
Keys = tuple[PhaseKeys, ...]


class Program(Iteration):
    """The functions of one algorithm in one layout; each is pure and is compiled once."""

    def __init__(
        self, algorithm: Algorithm, layout: Layout, start_values: Callable[..., Any]
    ) -> None:
        super().__init__(algorithm, layout)
        self.start_values = jax.jit(start_values)
        self._shapes: Yield | None = None
        self.start = jax.jit(self._start, static_argnums=1)
        self.fit = jax.jit(self._fit)
        self.setup = jax.jit(self._setup)
        self.advance = jax.jit(self._advance, donate_argnums=(1,))
        self.outboxes_finite = jax.jit(self._outboxes_finite)

        self.keys = jax.jit(self._keys)

    # --- stages -------------------------------------------------------------------------------

    def _keys(self, base: Array) -> Keys:
        """Keys of the phases of every iteration, from the run's base key (2,)."""
        return drawing.stage_keys(self.algorithm.phases, drawing.ROUND, base, self.layout)

    def keys_of(self, phases: tuple[Phase, ...], stage: int, base: Array, layout: Layout) -> Keys:
        """The keys of phases that run before the first iteration."""
        return drawing.stage_keys(phases, stage, base, layout)

    def _start(self, positions: Array, ring: int = 1) -> Carry:
        """The carry before ``setup``; ``positions`` (chains, d), or (d,) for one chain.

        ``ring`` is the number of past replies that a `Mailbox` keeps.
        """
        node, hub, inbox = self.over_chains(self.algorithm.init)(positions)
        if self.mailbox is not None:
            return Carry(copies(node, self.mailbox.workers), hub, Ring(copies(inbox, ring), inbox))
        if self.inbox_per_node and not self.algorithm.setup:
            inbox = self.everywhere(inbox)
        return Carry(self.everywhere(node), hub, inbox)

    def _fit(self, sites: SiteArrays, base: Array, position: Array) -> PyTree:
        """What the ``fit`` phases leave at each site: (state, inbox), node axis first."""
        node, hub, inbox = self.algorithm.init(position)
        carry = Carry(self.everywhere(node), hub, inbox)
        single = Layout(self.layout.nodes, 1, self.layout.map_nodes, 1, 1)
        carry, per_node = self._once(drawing.FIT, self.algorithm.fit, single, carry, sites, base)
        return carry.node, carry.inbox if per_node else self.everywhere(carry.inbox)

    def _setup(self, sites: SiteArrays, base: Array, carry: Carry) -> Carry:
        """The carry after the ``setup`` phases."""
        phases = self.algorithm.setup
        carry, per_node = self._once(drawing.SETUP, phases, self.layout, carry, sites, base)
        if self.inbox_per_node and not per_node:
            carry = carry._replace(inbox=self.everywhere(carry.inbox))
        return carry

    def _once(
        self,
        stage: int,
        phases: tuple[Phase, ...],
        layout: Layout,
        carry: Carry,
        sites: SiteArrays,
        base: Array,
    ) -> tuple[Carry, bool]:
        """Phases that run before the first iteration; is the inbox per node after them?"""
        per_node = False
        keys = self.keys_of(phases, stage, base, layout)
        numbers = drawing.round_numbers(phases, keys, Counter(0, 0), layout, sites.weights)
        for phase, drawn in zip(phases, numbers, strict=True):
            if phase.repeated:
                carry = self.repeated(phase, drawn, carry, sites, per_node, layout.chains)
            else:
                carry, _, _, _ = self.phase(phase, drawn, carry, sites, per_node, layout.chains)
            per_node = exchanges.reply_per_node(phase, per_node)
        return carry, per_node

    def _advance(
        self, carry: Carry, buffers: Buffers, sites: SiteArrays, keys: Keys, window: Window
    ) -> tuple[Carry, Buffers, Array]:
        """Rounds first … stop − 1; the last value (chains,) says which chains are still finite."""
        block, phases = self.layout.block, self.algorithm.phases

        def one_round(
            numbers: tuple[Drawn, ...], at: Array, state: tuple[Carry, Buffers]
        ) -> tuple[Carry, Buffers]:
            carry, made = self._iteration(numbers, state[0], sites)
            return carry, self.record(state[1], made, at - window.warmup, window)

        def one_block(index: Array, state: tuple[Carry, Buffers]) -> tuple[Carry, Buffers]:
            start = index * block
            if block == 1:
                numbers = drawing.deferred_numbers(
                    phases, keys, start, window.warmup, self.layout, sites.weights, sites.events
                )
                return one_round(numbers, start, state)
            numbers = drawing.block_numbers(
                phases, keys, start, window.warmup, self.layout, sites.weights, sites.events
            )

            def body(offset: Array, state: tuple[Carry, Buffers]) -> tuple[Carry, Buffers]:
                here = jax.tree.map(lambda leaf: leaf[offset], numbers)
                return one_round(here, start + offset, state)

            low = jnp.maximum(window.first - start, 0)
            high = jnp.minimum(window.stop - start, block)
            return jax.lax.fori_loop(low, high, body, state)

        blocks = (window.first // block, (window.stop - 1) // block + 1)
        carry, buffers = jax.lax.fori_loop(*blocks, one_block, (carry, buffers))
        return carry, buffers, self.draws_finite(carry)

    def _outboxes_finite(
        self, carry: Carry, sites: SiteArrays, keys: Keys, at: Array, warmup: Array
    ) -> list[Array]:
        """Of each phase of round ``at`` that runs once: (nodes, chains), is its outbox finite?"""
        numbers = self._round_numbers(keys, Counter(at, warmup), sites)
        per_node, result = self.inbox_per_node, []
        for phase, drawn in zip(self.algorithm.phases, numbers, strict=True):
            if not phase.repeated:
                carry, _, _, outbox = self.phase(phase, drawn, carry, sites, per_node)
                result.append(self.outbox_finite(outbox, drawn.visited))
            else:
                carry = self.repeated(phase, drawn, carry, sites, per_node)
            per_node = exchanges.reply_per_node(phase, per_node)
        return result

    def buffers(self, carry: Carry, sites: SiteArrays, keys: Keys) -> Buffers:
        """Empty buffers of one chunk."""
        if self._shapes is None:
            self._shapes = jax.eval_shape(self.yielded, carry, sites, keys)
        return slots.empty_buffers(self._shapes, self.layout, self.algorithm.draws.per_iteration)

    def yielded(self, carry: Carry, sites: SiteArrays, keys: Keys) -> Yield:
        """What one iteration yields, for its shapes."""
        numbers = self._round_numbers(keys, Counter(0, 0), sites)
        return self._iteration(numbers, carry, sites)[1]

    def traffic(self, carry: Carry, sites: SiteArrays, keys: Keys) -> tuple[int, int, int]:
        """(communication rounds, bytes up, bytes down) of one iteration of all chains."""

        def messages(carry: Carry, sites: SiteArrays, keys: Keys) -> list[Any]:
            phases = self.algorithm.phases
            numbers = self._round_numbers(keys, Counter(0, 0), sites)
            per_node, result = self.inbox_per_node, []
            for phase, drawn in zip(phases, numbers, strict=True):
                if phase.repeated:
                    drawn = jax.tree.map(lambda leaf: leaf[0], drawn)
                carry, _, _, outbox = self.phase(phase, drawn, carry, sites, per_node)
                per_node = exchanges.reply_per_node(phase, per_node)
                result.append((outbox, mailbox.latest(carry.inbox)))
            return result

        shapes = jax.eval_shape(messages, carry, sites, keys)
        return exchanges.traffic(self.algorithm.phases, shapes, self.layout.nodes)

    def _round_numbers(self, keys: Keys, counter: Counter, sites: SiteArrays) -> tuple[Drawn, ...]:
        """The numbers of one round."""
        return drawing.round_numbers(
            self.algorithm.phases, keys, counter, self.layout, sites.weights, sites.events
        )
