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

from consortia.base import Algorithm, Phase, Site
from consortia.engines import drawing, exchanges, mailbox, slots
from consortia.engines.drawing import Counter, Drawn, PhaseKeys
from consortia.engines.slots import Yield
from consortia.engines.types import Buffers, Carry, Layout, Ring, SiteArrays, Window

Array = jax.Array
PyTree = Any
Keys = tuple[PhaseKeys, ...]


class Program:
    """The functions of one algorithm in one layout; each is pure and is compiled once."""

    def __init__(
        self, algorithm: Algorithm, layout: Layout, start_values: Callable[..., Any]
    ) -> None:
        self.algorithm = algorithm
        self.layout = layout
        self.start_values = jax.jit(start_values)
        self.mailbox = mailbox.mailbox_of(algorithm)
        self._inbox_per_node = exchanges.inbox_per_node(algorithm.phases)
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

    def _start(self, positions: Array, ring: int = 1) -> Carry:
        """The carry before ``setup``; ``positions`` (chains, d), or (d,) for one chain.

        ``ring`` is the number of past replies that a `Mailbox` keeps.
        """
        node, hub, inbox = self._over_chains(self.algorithm.init)(positions)
        if self.mailbox is not None:
            return Carry(
                _copies(node, self.mailbox.workers), hub, Ring(_copies(inbox, ring), inbox)
            )
        if self._inbox_per_node and not self.algorithm.setup:
            inbox = self._everywhere(inbox)
        return Carry(self._everywhere(node), hub, inbox)

    def _fit(self, sites: SiteArrays, base: Array, position: Array) -> PyTree:
        """What the ``fit`` phases leave at each site: (state, inbox), node axis first."""
        node, hub, inbox = self.algorithm.init(position)
        carry = Carry(self._everywhere(node), hub, inbox)
        single = Layout(self.layout.nodes, 1, self.layout.map_nodes, 1, 1)
        carry, per_node = self._once(drawing.FIT, self.algorithm.fit, single, carry, sites, base)
        return carry.node, carry.inbox if per_node else self._everywhere(carry.inbox)

    def _setup(self, sites: SiteArrays, base: Array, carry: Carry) -> Carry:
        """The carry after the ``setup`` phases."""
        phases = self.algorithm.setup
        carry, per_node = self._once(drawing.SETUP, phases, self.layout, carry, sites, base)
        if self._inbox_per_node and not per_node:
            carry = carry._replace(inbox=self._everywhere(carry.inbox))
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
        keys = drawing.stage_keys(phases, stage, base, layout)
        numbers = drawing.round_numbers(phases, keys, Counter(0, 0), layout, sites.weights)
        for phase, drawn in zip(phases, numbers, strict=True):
            if phase.repeated:
                carry = self._repeated(phase, drawn, carry, sites, per_node, layout.chains)
            else:
                carry, _, _, _ = self._phase(phase, drawn, carry, sites, per_node, layout.chains)
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
            return carry, self._record(state[1], made, at - window.warmup, window)

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
        draw = self.draw(carry)
        own_axes = tuple(range(0 if self.layout.chains == 1 else 1, draw.ndim))
        return carry, buffers, jnp.atleast_1d(jnp.all(jnp.isfinite(draw), axis=own_axes))

    def _outboxes_finite(
        self, carry: Carry, sites: SiteArrays, keys: Keys, at: Array, warmup: Array
    ) -> list[Array]:
        """Of each phase of round ``at`` that runs once: (nodes, chains), is its outbox finite?"""
        numbers = self._round_numbers(keys, Counter(at, warmup), sites)
        per_node, result = self._inbox_per_node, []
        for phase, drawn in zip(self.algorithm.phases, numbers, strict=True):
            if not phase.repeated:
                carry, _, _, outbox = self._phase(phase, drawn, carry, sites, per_node)
                result.append(self._finite(outbox, drawn.visited))
            else:
                carry = self._repeated(phase, drawn, carry, sites, per_node)
            per_node = exchanges.reply_per_node(phase, per_node)
        return result

    # --- an iteration and its phases ------------------------------------------------------------

    def _iteration(
        self, numbers: tuple[Drawn, ...], carry: Carry, sites: SiteArrays
    ) -> tuple[Carry, Yield]:
        """All phases once, and what they yield (repeated phases have no info)."""
        node_info: dict[str, Array] = {}
        hub_info: dict[str, Array] = {}
        per_node = self._inbox_per_node
        for phase, drawn in zip(self.algorithm.phases, numbers, strict=True):
            if not phase.repeated:
                carry, node, hub, _ = self._phase(phase, drawn, carry, sites, per_node)
                node_info |= node
                hub_info |= hub
            else:
                carry = self._repeated(phase, drawn, carry, sites, per_node)
            per_node = exchanges.reply_per_node(phase, per_node)
        return carry, self._yield(carry, node_info, hub_info)

    def _phase(
        self,
        phase: Phase,
        drawn: Drawn,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
        chains: int | None = None,
    ) -> tuple[Carry, dict[str, Array], dict[str, Array], PyTree]:
        """The carry after the phase, the infos of nodes and hub, and the outboxes."""
        chains = self.layout.chains if chains is None else chains
        node_state, outbox, node_info = carry.node, (), {}
        if drawn.visited is not None:
            node_state, outbox, node_info = self._visit(phase, drawn, carry, sites)
        elif phase.local is not None:
            local = self._over_chains(phase.local, (0, 0, 0, 0, None), chains)
            node_state, outbox, node_info = self._at_nodes(local, drawn, carry, sites, per_node)
        message = exchanges.message_of(phase.exchange, outbox, sites.weights)
        if phase.hub is not None:
            hub = self._over_chains(phase.hub, 0, chains)
            hub_state, reply, hub_info = hub(drawn.shared, carry.hub, message)
            if drawn.arrival is not None:
                reply = mailbox.pushed(carry.inbox, reply, drawn.arrival.update)
            return Carry(node_state, hub_state, reply), dict(node_info), dict(hub_info), outbox
        reply = message
        if phase.exchange is None:
            reply = carry.inbox if phase.local is None else outbox
        return Carry(node_state, carry.hub, reply), dict(node_info), {}, outbox

    def _at_nodes(
        self,
        local: Callable[..., Any],
        drawn: Drawn,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
    ) -> Any:
        """``local`` at every node, batched or one node after the other."""
        mapped, deferred = self.layout.map_nodes, callable(drawn.noise)

        def at_node(node: Array, own: Any) -> Any:
            noise, state, inbox, data, size, weight, share, fitted = own
            site = Site(
                sites.data if mapped else data,
                size,
                weight,
                share,
                fitted,
                node if mapped else None,
            )
            numbers = drawn.noise(node) if callable(drawn.noise) else noise
            return local(numbers, drawn.shared, state, inbox if per_node else carry.inbox, site)

        own = (
            () if deferred else drawn.noise,
            carry.node,
            carry.inbox if per_node else (),
            () if mapped else sites.data,
            sites.sizes,
            sites.weights,
            sites.prior_shares,
            sites.fitted,
        )
        nodes = jnp.arange(self.layout.nodes, dtype=jnp.int32)
        if mapped:
            return jax.lax.map(lambda arguments: at_node(*arguments), (nodes, own))
        return jax.vmap(at_node)(nodes, own)

    def _visit(self, phase: Phase, drawn: Drawn, carry: Carry, sites: SiteArrays) -> Any:
        """``local`` of each chain at the one node that acts; infos have no node axis.

        Of a `Mailbox` it is a worker: what is common to the server's update is not known to it.
        """
        if phase.local is None or drawn.visited is None:
            raise TypeError("a phase with a Route or a Mailbox needs a local function")
        local, visited, arrival = phase.local, drawn.visited, drawn.arrival
        inbox, shared, place = carry.inbox, drawn.shared, visited
        weight = sites.weights[visited]
        if arrival is not None:
            inbox = mailbox.held(carry.inbox, arrival)
            shared, place, weight = (), arrival.worker, arrival.weight
        index = (place,) if self.layout.chains == 1 else (place, jnp.arange(place.size))

        def at_chain(
            noise: Any, shared: Any, state: Any, inbox: Any, node: Array, weight: Array
        ) -> Any:
            size, share = sites.sizes[node], sites.prior_shares[node]
            fitted = jax.tree.map(lambda leaf: leaf[node], sites.fitted)
            site = Site(sites.data, size, weight, share, fitted, node)
            return local(noise, shared, state, inbox, site)

        here = jax.tree.map(lambda leaf: leaf[index], carry.node)
        state, outbox, _ = self._over_chains(at_chain)(
            drawn.noise, shared, here, inbox, visited, weight
        )
        after = jax.tree.map(lambda leaf, value: leaf.at[index].set(value), carry.node, state)
        return after, outbox, {}

    def _repeated(
        self,
        phase: Phase,
        drawn: Drawn,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
        chains: int | None = None,
    ) -> Carry:
        """A phase that runs several times in a row, in some chains fewer times than in others."""
        count = None
        if phase.repeats is not None:
            count = self._over_chains(phase.repeats, 0, chains)(carry.hub)

        def once(repetition: Array, carry: Carry) -> Carry:
            here = jax.tree.map(lambda leaf: leaf[repetition], drawn)
            new, _, _, _ = self._phase(phase, here, carry, sites, per_node, chains)
            if count is None:
                return new
            runs = repetition < count

            def keep(axis: int) -> Callable[[Array, Array], Array]:
                return lambda after, before: jnp.where(_at_axis(runs, axis, after), after, before)

            return Carry(
                jax.tree.map(keep(1), new.node, carry.node),
                jax.tree.map(keep(0), new.hub, carry.hub),
                jax.tree.map(keep(1 if per_node else 0), new.inbox, carry.inbox),
            )

        bound = phase.repeat if count is None else jnp.max(count)
        return jax.lax.fori_loop(0, bound, once, carry)

    # --- what is recorded -----------------------------------------------------------------------

    def _yield(self, carry: Carry, node_info: Any, hub_info: Any) -> Yield:
        """What the iteration that ended in ``carry`` yields."""
        draws = self.algorithm.draws
        if draws.hub is not None:
            draw = self._over_chains(draws.hub)(carry.hub, mailbox.latest(carry.inbox))
            return Yield(draw, None, node_info, hub_info)
        if draws.node is None:
            raise TypeError("Draws needs one of hub and node")
        inbox = carry.inbox if self._inbox_per_node else self._everywhere(carry.inbox)
        agents = jax.vmap(self._over_chains(draws.node))(carry.node, inbox)
        mean = jnp.mean(agents, axis=0)
        return Yield(mean, agents if draws.agents else None, node_info, hub_info)

    def draw(self, carry: Carry) -> Array:
        """The draws of all chains in this state."""
        return self._yield(carry, {}, {}).draw

    def _record(self, buffers: Buffers, made: Yield, iteration: Array, window: Window) -> Buffers:
        per_iteration = self.algorithm.draws.per_iteration
        if per_iteration == 1:
            return slots.record(buffers, made, iteration, window)
        return slots.record_several(buffers, made, iteration, window, self.layout, per_iteration)

    def buffers(self, carry: Carry, sites: SiteArrays, keys: Keys) -> Buffers:
        """Empty buffers of one chunk."""
        if self._shapes is None:
            self._shapes = jax.eval_shape(self._yielded, carry, sites, keys)
        return slots.empty_buffers(self._shapes, self.layout, self.algorithm.draws.per_iteration)

    def _yielded(self, carry: Carry, sites: SiteArrays, keys: Keys) -> Yield:
        numbers = self._round_numbers(keys, Counter(0, 0), sites)
        return self._iteration(numbers, carry, sites)[1]

    def traffic(self, carry: Carry, sites: SiteArrays, keys: Keys) -> tuple[int, int, int]:
        """(communication rounds, bytes up, bytes down) of one iteration of all chains."""

        def messages(carry: Carry, sites: SiteArrays, keys: Keys) -> list[Any]:
            phases = self.algorithm.phases
            numbers = self._round_numbers(keys, Counter(0, 0), sites)
            per_node, result = self._inbox_per_node, []
            for phase, drawn in zip(phases, numbers, strict=True):
                if phase.repeated:
                    drawn = jax.tree.map(lambda leaf: leaf[0], drawn)
                carry, _, _, outbox = self._phase(phase, drawn, carry, sites, per_node)
                per_node = exchanges.reply_per_node(phase, per_node)
                result.append((outbox, mailbox.latest(carry.inbox)))
            return result

        shapes = jax.eval_shape(messages, carry, sites, keys)
        return exchanges.traffic(self.algorithm.phases, shapes, self.layout.nodes)

    # --- helpers ----------------------------------------------------------------------------------

    def _over_chains(
        self, function: Callable[..., Any], axes: Any = 0, chains: int | None = None
    ) -> Callable[..., Any]:
        chains = self.layout.chains if chains is None else chains
        return function if chains == 1 else jax.vmap(function, in_axes=axes)

    def _everywhere(self, tree: PyTree) -> PyTree:
        return _copies(tree, self.layout.nodes)

    def _round_numbers(self, keys: Keys, counter: Counter, sites: SiteArrays) -> tuple[Drawn, ...]:
        """The numbers of one round."""
        return drawing.round_numbers(
            self.algorithm.phases, keys, counter, self.layout, sites.weights, sites.events
        )

    def _finite(self, outbox: PyTree, visited: Array | None) -> Array:
        """(nodes, chains); where one node acts at a time the others count as finite."""
        nodes, chains = self.layout.nodes, self.layout.chains
        shape = (nodes, chains) if visited is None else (chains,)
        result = jnp.ones(shape, bool)
        for leaf in jax.tree.leaves(outbox):
            result &= jnp.all(jnp.isfinite(leaf).reshape(*shape, -1), axis=-1)
        if visited is None:
            return result
        return jnp.ones((nodes, chains), bool).at[visited, jnp.arange(chains)].set(result)


def _copies(tree: PyTree, count: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), tree)


def _at_axis(flag: Array, axis: int, like: Array) -> Array:
    """``flag``, a scalar or (chains,), shaped so that its axis stands at ``axis`` of ``like``."""
    if flag.ndim == 0:
        return flag
    return flag.reshape((1,) * axis + flag.shape + (1,) * (like.ndim - axis - 1))
