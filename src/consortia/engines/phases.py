"""The loop over an algorithm's phases: half a phase at the nodes, the exchange, half at the hub.

Axes: node first, then chain, then the algorithm's own; a single chain has no chain axis at all
(an axis of length one around a map over nodes costs a third of the speed). A phase is cut in two
where its exchange stands, so that an engine may carry the outboxes itself.

The iteration runs in a loop whose bounds are arguments, so that one compiled program serves every
number of rounds, every chunk, every thinning and every seed, and a run that is cut into pieces
gives the same bits as one that is not. Random numbers are drawn for a block of rounds at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int32, UInt32

from consortia.core import trees
from consortia.core.contract import Algorithm, Method, Phase, Site
from consortia.core.model import Model
from consortia.core.target import in_jax_width
from consortia.data.sites import Sites
from consortia.engines import exchanges, mailbox, rng
from consortia.engines.buffers import (
    Buffers,
    Window,
    Yield,
    empty_buffers,
    record,
    record_several,
)
from consortia.engines.mailbox import Ring
from consortia.engines.rng import Counter, Events, Layout, PhaseKeys, PhaseRandomness, Source
from consortia.runtime import compiler
from consortia.runtime.late import Array, PyTree, jax, jnp

Keys = tuple[PhaseKeys, ...]


class SiteArrays(NamedTuple):
    """All sites' data and numbers, node axis first: the arguments behind `Site`.

    ``events`` has no node axis and is empty where no phase has a `consortia.core.contract.Mailbox`;
    ``present`` has the weights of sites that take part in an average, (nodes,), 0 of the others; it
    is empty where all do.
    """

    data: PyTree
    sizes: Int32[Array, " nodes"]
    weights: Float[Array, " nodes"]
    prior_shares: Float[Array, " nodes"]
    fitted: PyTree
    events: Events | tuple[()] = ()
    present: Float[Array, " nodes"] | tuple[()] = ()

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


def rows_of_sites(model: Model, sites: Sites, which: np.ndarray) -> PyTree:
    """Return the rows of these sites as they are held, site axis first: in JAX's own width."""
    return _held(model, (sites if len(which) == len(sites) else sites.only(which)).padded())


def row_of_zeros(model: Model, sites: Sites) -> PyTree:
    """Return a row of zeros as rows of sites are held, (1, 1, ...) each, for shapes and types."""

    def zeros(leaf: np.ndarray) -> np.ndarray:
        return np.zeros((1, 1, *leaf.shape[1:]), leaf.dtype)

    return _held(model, trees.map_leaves(zeros, sites.first))


def _held(model: Model, padded: PyTree) -> PyTree:
    arranged = padded if model.arrange is None else model.arrange(padded)
    return trees.map_leaves(in_jax_width, arranged)


def site_arrays(model: Model, sites: Sites, method: Method, which: np.ndarray) -> SiteArrays:
    """Return the data and numbers of these sites, by index, on the default device."""
    sizes = np.asarray(sites.sizes, np.int64)
    dtype = jnp.result_type(float)
    # Put as they are: `jnp.asarray` would compile a program for each type.
    put = jax.device_put
    return SiteArrays(
        data=put(rows_of_sites(model, sites, which)),
        sizes=put(sizes[which].astype(np.int32)),
        weights=put(np.asarray(method.site_weights(sizes)[which], dtype)),
        prior_shares=put(np.asarray(method.prior_shares(sizes)[which], dtype)),
        fitted=(),
    )


class Carry(NamedTuple):
    """The state between two iterations."""

    node: PyTree  # states of the nodes, node axis first
    hub: PyTree  # states of the hub
    inbox: PyTree  # what the nodes have received last
    turn: Any = ()  # inside a program whose exchanges leave it, int32 that orders them; else ()


class Iteration:
    """An iteration of an algorithm at the nodes and the hub of one process."""

    first_turn: Any = ()  # of `Carry`, at the begin of a program

    def __init__(self, algorithm: Algorithm, layout: Layout) -> None:
        self.algorithm = algorithm
        self.layout = layout
        self.mailbox = mailbox.mailbox_of(algorithm)
        self.inbox_per_node = exchanges.inbox_per_node(algorithm.phases)

    def run_phases(
        self,
        phases: tuple[Phase, ...],
        randomness: tuple[PhaseRandomness, ...],
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
        note: Callable[[PhaseRandomness, PyTree], None] | None = None,
    ) -> tuple[Carry, bool, dict[str, Array], dict[str, Array]]:
        """Run phases in order: half at the nodes, the exchange, half at the hub, for each.

        ``note`` is called with the randomness and the outboxes of each phase that runs once.

        Returns:
            The carry after the last phase; True if its inbox differs from node to node; infos of
            nodes and hub.
        """
        node_info: dict[str, Array] = {}
        hub_info: dict[str, Array] = {}
        for phase, drawn in zip(phases, randomness, strict=True):
            if phase.repeated:
                carry = self.repeated(phase, drawn, carry, sites, per_node)
            else:
                carry, node, hub, outbox = self.phase(phase, drawn, carry, sites, per_node)
                node_info |= node
                hub_info |= hub
                if note is not None:
                    note(drawn, outbox)
            per_node = exchanges.reply_per_node(phase, per_node)
        return carry, per_node, node_info, hub_info

    def phase(
        self,
        phase: Phase,
        drawn: PhaseRandomness,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
    ) -> tuple[Carry, dict[str, Array], dict[str, Array], PyTree]:
        """Run a phase; return the carry, the infos of nodes and hub, and the outboxes."""
        node_state, outbox, node_info = self.send(phase, drawn, carry, sites, per_node)
        message, turn = self.exchanged(phase, outbox, sites, carry.turn)
        node = _where_present(sites.present, node_state, carry.node)
        sent = carry._replace(node=node, turn=turn)
        after, hub_info = self.receive(phase, drawn, sent, outbox, message)
        return after, node_info, hub_info, outbox

    def exchanged(
        self, phase: Phase, outbox: PyTree, sites: SiteArrays, turn: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Return the message that the outboxes of all nodes become, and the next turn."""
        weights = sites.weights
        if not isinstance(sites.present, tuple):
            weights = sites.present / jnp.sum(sites.present)
        return exchanges.message_of(phase.exchange, outbox, weights), turn

    def send(
        self,
        phase: Phase,
        drawn: PhaseRandomness,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """Do the first half of a phase; return node states, outboxes and infos."""
        if drawn.visited is not None:
            return self._visit(phase, drawn, carry, sites)
        if phase.local is None:
            return carry.node, (), {}
        local = self.over_chains(phase.local, (0, 0, 0, 0, None))
        node_state, outbox, info = self._at_nodes(local, drawn, carry, sites, per_node)
        return node_state, outbox, dict(info)

    def receive(
        self,
        phase: Phase,
        drawn: PhaseRandomness,
        carry: Carry,
        outbox: PyTree,
        message: PyTree,
    ) -> tuple[Carry, dict[str, Array]]:
        """Do the second half, from the exchange on; return the carry and the hub's infos."""
        if phase.hub is None:
            reply = message
            if phase.exchange is None:
                reply = carry.inbox if phase.local is None else outbox
            return carry._replace(inbox=reply), {}
        hub_state, reply, info = self.at_hub(phase)(drawn.shared, carry.hub, message)
        if drawn.arrival is not None:
            reply = mailbox.pushed(carry.inbox, reply, drawn.arrival.update)
        return carry._replace(hub=hub_state, inbox=reply), dict(info)

    def at_hub(self, phase: Phase) -> Callable[..., Any]:
        """Return ``hub`` of a phase, over all chains."""
        if phase.hub is None:
            raise TypeError("the phase has no hub function")
        return self.over_chains(phase.hub)

    def _at_nodes(
        self,
        local: Callable[..., Any],
        drawn: PhaseRandomness,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
    ) -> Any:
        """Run ``local`` at every node, batched or one node after the other."""
        mapped, deferred = self.layout.map_nodes, callable(drawn.noise)

        def at_node(node: Array, inputs: Any) -> Any:
            noise, state, inbox, data, size, weight, share, fitted = inputs
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

        inputs = (
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
            return jax.lax.map(lambda arguments: at_node(*arguments), (nodes, inputs))
        return jax.vmap(at_node)(nodes, inputs)

    def _visit(self, phase: Phase, drawn: PhaseRandomness, carry: Carry, sites: SiteArrays) -> Any:
        """Run ``local`` of each chain at the one node that acts; infos have no node axis.

        Of a `Mailbox` it is a worker: what is common to the server's update is not known to it.
        """
        if phase.local is None or drawn.visited is None:
            raise TypeError("a phase with a Route or a Mailbox needs a local function")
        local, visited, arrival = phase.local, drawn.visited, drawn.arrival
        inbox, shared, actor = carry.inbox, drawn.shared, visited
        weight = sites.weights[visited]
        if arrival is not None:
            inbox = mailbox.held(carry.inbox, arrival)
            shared, actor, weight = (), arrival.worker, arrival.weight
        index = (actor,) if self.layout.chains == 1 else (actor, jnp.arange(actor.size))

        def at_chain(
            noise: Any, shared: Any, state: Any, inbox: Any, node: Array, weight: Array
        ) -> Any:
            site = replace(sites.site(node), weight=weight)
            return local(noise, shared, state, inbox, site)

        here = jax.tree.map(lambda leaf: leaf[index], carry.node)
        state, outbox, _ = self.over_chains(at_chain)(
            drawn.noise, shared, here, inbox, visited, weight
        )
        after = jax.tree.map(lambda leaf, value: leaf.at[index].set(value), carry.node, state)
        return after, outbox, {}

    def visit_of_chain(
        self,
        phase: Phase,
        drawn: PhaseRandomness,
        chain: Any,
        node: Any,
        number: Any,
        states: PyTree,
        inbox: PyTree,
        sites: SiteArrays,
    ) -> tuple[PyTree, PyTree]:
        """Run ``local`` of a `Route` for one chain at one node, and no other.

        Args:
            phase: with the route.
            drawn: the randomness of all chains at the nodes that they visit.
            chain: index of the chain.
            node: index of the node here.
            number: index of the node among all.
            states: of the nodes, node axis first.
            inbox: of this chain.
            sites: data of the nodes.

        Returns:
            The states of the nodes, and the chain's outbox.
        """
        if phase.local is None:
            raise TypeError("a phase with a Route needs a local function")
        alone = self.layout.chains == 1
        noise, shared = jax.tree.map(
            lambda leaf: leaf if alone else leaf[chain], (drawn.noise, drawn.shared)
        )
        index = (node,) if alone else (node, chain)
        state = jax.tree.map(lambda leaf: leaf[index], states)
        state, outbox, _ = phase.local(noise, shared, state, inbox, sites.site(node, number))
        after = jax.tree.map(lambda leaf, value: leaf.at[index].set(value), states, state)
        return after, outbox

    def repeated(
        self,
        phase: Phase,
        drawn: PhaseRandomness,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
    ) -> Carry:
        """Run a phase several times in a row, in some chains fewer times than in others."""

        def once(repetition: Array, carry: Carry) -> Carry:
            here = jax.tree.map(lambda leaf: leaf[repetition], drawn)
            return self.phase(phase, here, carry, sites, per_node)[0]

        if phase.repeats is None:
            return jax.lax.fori_loop(0, phase.repeat, once, carry)
        counts = self.over_chains(phase.repeats)

        def due(repeats: tuple[Array, Carry]) -> Array:
            return repeats[0] < jnp.max(counts(repeats[1].hub))

        def again(repeats: tuple[Array, Carry]) -> tuple[Array, Carry]:
            repetition, before = repeats
            after = once(repetition, before)
            return repetition + 1, kept_where(
                repetition < counts(before.hub), after, before, per_node
            )

        return jax.lax.while_loop(due, again, (jnp.int32(0), carry))[1]

    # --- what is recorded -----------------------------------------------------------------------

    def made(self, carry: Carry, node_info: Any, hub_info: Any) -> Yield:
        """Return the yield of the iteration that ended in ``carry``."""
        draws = self.algorithm.draws
        if draws.hub is not None:
            draw = self.over_chains(draws.hub)(carry.hub, mailbox.latest(carry.inbox))
            return Yield(draw, None, node_info, hub_info)
        if draws.node is None:
            raise TypeError("Draws needs one of hub and node")
        inbox = carry.inbox if self.inbox_per_node else self.everywhere(carry.inbox)
        agents = jax.vmap(self.over_chains(draws.node))(carry.node, inbox)
        mean = self.average(agents)
        return Yield(mean, agents if draws.agents else None, node_info, hub_info)

    def average(self, agents: Float[Array, "nodes ..."]) -> Float[Array, " ..."]:
        """Return the mean over all nodes of an array (nodes, ...)."""
        return jnp.mean(agents, axis=0)

    def draw(self, carry: Carry) -> Array:
        """Return the draws of all chains in this state."""
        return self.made(carry, {}, {}).draw

    def record(self, buffers: Buffers, made: Yield, iteration: Array, window: Window) -> Buffers:
        """Return the buffers with what an iteration yields, counted from the end of warm-up."""
        per_iteration = self.algorithm.draws.per_iteration
        if per_iteration == 1:
            return record(buffers, made, iteration, window)
        return record_several(buffers, made, iteration, window, self.layout, per_iteration)

    def draws_finite(self, carry: Carry) -> Bool[Array, " chains"]:
        """Return (chains,), whether the draws of each chain in this state are finite."""
        draw = self.draw(carry)
        own_axes = tuple(range(0 if self.layout.chains == 1 else 1, draw.ndim))
        return jnp.atleast_1d(jnp.all(jnp.isfinite(draw), axis=own_axes))

    # --- helpers ----------------------------------------------------------------------------------

    def over_chains(self, function: Callable[..., Any], axes: Any = 0) -> Callable[..., Any]:
        """Return a function of one chain, over all chains."""
        return function if self.layout.chains == 1 else jax.vmap(function, in_axes=axes)

    def everywhere(self, tree: PyTree) -> PyTree:
        """Return the same at every node, node axis first."""
        return copies(tree, self.layout.nodes)


def copies(tree: PyTree, count: int) -> PyTree:
    """Return so many equal copies of a pytree along a new first axis."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), tree)


def kept_where(runs: Array, after: Carry, before: Carry, per_node: bool) -> Carry:
    """Return the carry ``after`` in the chains that run, (chains,), ``before`` in the others."""

    def keep(axis: int) -> Callable[[Array, Array], Array]:
        return lambda new, old: jnp.where(_at_axis(runs, axis, new), new, old)

    return Carry(
        jax.tree.map(keep(1), after.node, before.node),
        jax.tree.map(keep(0), after.hub, before.hub),
        jax.tree.map(keep(1 if per_node else 0), after.inbox, before.inbox),
        after.turn,
    )


def _where_present(present: Array | tuple[()], after: PyTree, before: PyTree) -> PyTree:
    """Return node states, in which the sites that did not take part are where they were."""
    if isinstance(present, tuple):
        return after
    return jax.tree.map(lambda a, b: jnp.where(_at_axis(present > 0, 0, a), a, b), after, before)


def _at_axis(flag: Array, axis: int, like: Array) -> Array:
    """Return ``flag``, a scalar or (chains,), with its axis where ``axis`` of ``like`` is."""
    if flag.ndim == 0:
        return flag
    return flag.reshape((1,) * axis + flag.shape + (1,) * (like.ndim - axis - 1))


class Program(Iteration):
    """The functions of one algorithm in one layout; each is pure and is compiled once."""

    def __init__(
        self,
        algorithm: Algorithm,
        layout: Layout,
        start_values: Callable[..., Any],
        effort: compiler.Effort = compiler.FULL,
    ) -> None:
        super().__init__(algorithm, layout)
        self.nodes_in_all = layout.nodes
        self.effort = effort
        self.start_values = jax.jit(start_values, compiler_options=effort.once)
        self._shapes: tuple[Yield, list[Any]] | None = None
        self._traced: dict[Any, Callable[..., Any]] = {}
        self.fit = jax.jit(self._fit, compiler_options=effort.once)
        self.begin = jax.jit(self._begin, static_argnums=1, compiler_options=effort.once)
        self.advance = jax.jit(
            self._advance,
            donate_argnums=(1,),
            compiler_options=effort.often,
        )
        self.outboxes_finite = jax.jit(self._outboxes_finite, compiler_options=effort.once)

    def send(
        self,
        phase: Phase,
        drawn: PhaseRandomness,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """Do the first half of a phase, which is traced once for all functions that hold it."""
        send = super().send
        if callable(drawn.noise):
            return send(phase, drawn, carry, sites, per_node)

        def sent(drawn: PhaseRandomness, carry: Carry, sites: SiteArrays) -> Any:
            return send(phase, drawn, carry, sites, per_node)

        key = "send", id(phase), per_node, self.layout.chains
        return self._traced.setdefault(key, jax.jit(sent, inline=True))(drawn, carry, sites)

    def at_hub(self, phase: Phase) -> Callable[..., Any]:
        """Return ``hub`` of a phase, which is traced once for all functions that hold it."""
        made = jax.jit(super().at_hub(phase), inline=True)
        return self._traced.setdefault(("hub", id(phase), self.layout.chains), made)

    # --- stages -------------------------------------------------------------------------------

    def keys(self, stage: int, base: UInt32[np.ndarray, " 2"]) -> Keys:
        """Return the keys of a stage's phases, from the run's base key (2,).

        Of what is private those of the nodes of this process.
        """
        keys = rng.stage_keys(self.phases_of(stage), stage, base, self.layout_of(stage))
        return jax.device_put(keys)

    def phases_of(self, stage: int) -> tuple[Phase, ...]:
        """Return the phases of a stage."""
        algorithm = self.algorithm
        return {rng.FIT: algorithm.fit, rng.SETUP: algorithm.setup}.get(stage, algorithm.phases)

    def layout_of(self, stage: int) -> Layout:
        """Return the layout of a stage: ``fit`` has no chains."""
        if stage != rng.FIT:
            return self.layout
        return Layout(self.layout.nodes, 1, self.layout.map_nodes, 1, 1)

    def _begin(
        self, positions: Float[Array, "*chains d"], ring: int, sites: SiteArrays, keys: Keys
    ) -> Carry:
        """Return the carry before the first round, with ``ring`` past replies of a `Mailbox`."""
        carry = self._start(positions, ring)
        return self._setup(sites, keys, carry) if self.algorithm.setup else carry

    def _start(self, positions: Float[Array, "*chains d"], ring: int) -> Carry:
        """Return the carry before ``setup``."""
        node, hub, inbox = self.over_chains(self.algorithm.init)(positions)
        if self.mailbox is not None:
            return Carry(copies(node, self.mailbox.workers), hub, Ring(copies(inbox, ring), inbox))
        if self.inbox_per_node and not self.algorithm.setup:
            inbox = self.everywhere(inbox)
        return Carry(self.everywhere(node), hub, inbox)

    def _fit(self, sites: SiteArrays, keys: Keys, position: Float[Array, " d"]) -> PyTree:
        """Run the ``fit`` phases at each site, and return (state, inbox), node axis first."""
        node, hub, inbox = self.algorithm.init(position)
        carry = Carry(self.everywhere(node), hub, inbox)
        carry, per_node = self._once(rng.FIT, carry, sites, keys)
        return carry.node, carry.inbox if per_node else self.everywhere(carry.inbox)

    def _setup(self, sites: SiteArrays, keys: Keys, carry: Carry) -> Carry:
        """Return the carry after the ``setup`` phases."""
        carry, per_node = self._once(rng.SETUP, carry, sites, keys)
        if self.inbox_per_node and not per_node:
            carry = carry._replace(inbox=self.everywhere(carry.inbox))
        return carry

    def _once(self, stage: int, carry: Carry, sites: SiteArrays, keys: Keys) -> tuple[Carry, bool]:
        """Run a stage before the rounds; return also whether the inbox is per node then."""
        program, phases = copy.copy(self), self.phases_of(stage)
        program.layout = self.layout_of(stage)
        source = Source(program.layout, sites.weights)
        numbers = rng.round_randomness(phases, keys, Counter(0, 0), source)
        begun = carry._replace(turn=self.first_turn)
        carry, per_node, _, _ = program.run_phases(phases, numbers, begun, sites, False)
        return carry._replace(turn=()), per_node

    def _advance(
        self,
        carry: Carry,
        buffers: Buffers,
        sites: SiteArrays,
        keys: Keys,
        window: Window,
    ) -> tuple[Carry, Buffers, Array]:
        """Run rounds first … stop − 1; return also which chains are still finite, (chains,)."""
        block, phases = self.layout.block, self.algorithm.phases
        source = Source(self.layout, sites.weights, sites.events)

        def one_round(
            numbers: tuple[PhaseRandomness, ...], at: Array, state: tuple[Carry, Buffers]
        ) -> tuple[Carry, Buffers]:
            per_node = self.inbox_per_node
            carry, _, *infos = self.run_phases(phases, numbers, state[0], sites, per_node)
            made = self.made(carry, *infos)  # without infos of repeated phases
            return carry, self.record(state[1], made, at - window.warmup, window)

        def one_block(index: Array, state: tuple[Carry, Buffers]) -> tuple[Carry, Buffers]:
            start = index * block
            first = Counter(start, window.warmup)
            if block == 1:
                numbers = rng.deferred_randomness(phases, keys, first, source)
                return one_round(numbers, start, state)
            numbers = rng.block_randomness(phases, keys, first, source)

            def body(offset: Array, state: tuple[Carry, Buffers]) -> tuple[Carry, Buffers]:
                here = jax.tree.map(lambda leaf: leaf[offset], numbers)
                return one_round(here, start + offset, state)

            # A window may begin and end within a block: the numbers are those of the whole run.
            low = jnp.maximum(window.first - start, 0)
            high = jnp.minimum(window.stop - start, block)
            return jax.lax.fori_loop(low, high, body, state)

        blocks = (window.first // block, (window.stop - 1) // block + 1)
        begun = carry._replace(turn=self.first_turn)
        carry, buffers = jax.lax.fori_loop(*blocks, one_block, (begun, buffers))
        return carry._replace(turn=()), buffers, self.draws_finite(carry)

    def _outboxes_finite(
        self, carry: Carry, sites: SiteArrays, keys: Keys, at: Array, warmup: Array
    ) -> list[Array]:
        """Return of each phase of round ``at`` that runs once, (nodes, chains), if it is finite."""
        numbers = self._round_randomness(keys, Counter(at, warmup), sites)
        result: list[Array] = []
        nodes, chains = self.layout.nodes, self.layout.chains

        def note(drawn: PhaseRandomness, outbox: PyTree) -> None:
            shape = (nodes, chains) if drawn.visited is None else (chains,)
            finite = jnp.ones(shape, bool)
            for leaf in jax.tree.leaves(outbox):
                finite &= jnp.all(jnp.isfinite(leaf).reshape(*shape, -1), axis=-1)
            if drawn.visited is not None:  # the others count as finite
                everywhere = jnp.ones((nodes, chains), bool)
                finite = everywhere.at[drawn.visited, jnp.arange(chains)].set(finite)
            result.append(finite)

        begun = carry._replace(turn=self.first_turn)
        phases, per_node = self.algorithm.phases, self.inbox_per_node
        self.run_phases(phases, numbers, begun, sites, per_node, note=note)
        return result

    def buffers(self, carry: Carry, sites: SiteArrays, keys: Keys) -> Buffers:
        """Return empty buffers of one chunk."""
        made, _ = self.shapes(carry, sites, keys)
        return empty_buffers(made, self.layout, self.algorithm.draws.per_iteration)

    def traffic(self, carry: Carry, sites: SiteArrays, keys: Keys) -> list[tuple[int, int, int]]:
        """Return (communication rounds, bytes up, bytes down) of each phase of all chains."""
        messages = self.shapes(carry, sites, keys)[1]
        return exchanges.traffic(
            self.algorithm.phases, messages, self.layout.nodes, self.nodes_in_all
        )

    def shapes(self, carry: Carry, sites: SiteArrays, keys: Keys) -> tuple[Yield, list[Any]]:
        """Return shapes: what one iteration yields, and outbox and inbox of each phase.

        They follow from the algorithm, the layout and the arrays, and are traced once.
        """
        if self._shapes is None:
            self._shapes = jax.eval_shape(self._yield_and_messages, carry, sites, keys)
        return self._shapes

    def _yield_and_messages(
        self, carry: Carry, sites: SiteArrays, keys: Keys
    ) -> tuple[Yield, list[Any]]:
        numbers = self._round_randomness(keys, Counter(0, 0), sites)
        per_node, messages = self.inbox_per_node, []
        carry = carry._replace(turn=self.first_turn)
        node_info: dict[str, Array] = {}
        hub_info: dict[str, Array] = {}
        for phase, drawn in zip(self.algorithm.phases, numbers, strict=True):
            if phase.repeated:
                drawn = jax.tree.map(lambda leaf: leaf[0], drawn)
            carry, node, hub, outbox = self.phase(phase, drawn, carry, sites, per_node)
            if not phase.repeated:  # whose infos are not recorded
                node_info |= node
                hub_info |= hub
            per_node = exchanges.reply_per_node(phase, per_node)
            messages.append((outbox, mailbox.latest(carry.inbox)))
        return self.made(carry, node_info, hub_info), messages

    def _round_randomness(
        self, keys: Keys, counter: Counter, sites: SiteArrays
    ) -> tuple[PhaseRandomness, ...]:
        """Return the numbers of one round."""
        source = Source(self.layout, sites.weights, sites.events)
        return rng.round_randomness(self.algorithm.phases, keys, counter, source)
