"""The phases of an algorithm over nodes and chains as array axes; nothing is compiled here.

Axes: node first, then chain, then the algorithm's own; a single chain has no chain axis at all
(an axis of length one around a map over nodes costs a third of the speed). A phase is cut in two
where its exchange stands, so that an engine may carry the outboxes itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from consortia.core.contract import Algorithm, Phase, Site
from consortia.engines import exchanges, mailbox, slots
from consortia.engines.drawing import Drawn
from consortia.engines.slots import Yield
from consortia.engines.types import Buffers, Carry, Layout, SiteArrays, Window

Array = jax.Array
PyTree = Any


class Iteration:
    """What the nodes and the hub of one process do in an iteration of an algorithm."""

    def __init__(self, algorithm: Algorithm, layout: Layout) -> None:
        self.algorithm = algorithm
        self.layout = layout
        self.mailbox = mailbox.mailbox_of(algorithm)
        self.inbox_per_node = exchanges.inbox_per_node(algorithm.phases)

    def _iteration(
        self, numbers: tuple[Drawn, ...], carry: Carry, sites: SiteArrays
    ) -> tuple[Carry, Yield]:
        """All phases once, and what they yield (repeated phases have no info)."""
        node_info: dict[str, Array] = {}
        hub_info: dict[str, Array] = {}
        per_node = self.inbox_per_node
        for phase, drawn in zip(self.algorithm.phases, numbers, strict=True):
            if not phase.repeated:
                carry, node, hub, _ = self.phase(phase, drawn, carry, sites, per_node)
                node_info |= node
                hub_info |= hub
            else:
                carry = self.repeated(phase, drawn, carry, sites, per_node)
            per_node = exchanges.reply_per_node(phase, per_node)
        return carry, self.made(carry, node_info, hub_info)

    def phase(
        self,
        phase: Phase,
        drawn: Drawn,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
        chains: int | None = None,
    ) -> tuple[Carry, dict[str, Array], dict[str, Array], PyTree]:
        """The carry after the phase, the infos of nodes and hub, and the outboxes."""
        node_state, outbox, node_info = self.send(phase, drawn, carry, sites, per_node, chains)
        message = self.exchanged(phase, outbox, sites)
        sent = carry._replace(node=_where_present(sites.present, node_state, carry.node))
        after, hub_info = self.receive(phase, drawn, sent, outbox, message, chains)
        return after, node_info, hub_info, outbox

    def exchanged(self, phase: Phase, outbox: PyTree, sites: SiteArrays) -> PyTree:
        """The message that the outboxes of all nodes become."""
        weights = sites.weights
        if not isinstance(sites.present, tuple):
            weights = jnp.where(sites.present, weights, 0)
            weights = weights / jnp.sum(weights)
        return exchanges.message_of(phase.exchange, outbox, weights)

    def send(
        self,
        phase: Phase,
        drawn: Drawn,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
        chains: int | None = None,
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """The first half of a phase: node states, outboxes and infos, before the exchange."""
        chains = self.layout.chains if chains is None else chains
        if drawn.visited is not None:
            return self._visit(phase, drawn, carry, sites)
        if phase.local is None:
            return carry.node, (), {}
        local = self.over_chains(phase.local, (0, 0, 0, 0, None), chains)
        node_state, outbox, info = self._at_nodes(local, drawn, carry, sites, per_node)
        return node_state, outbox, dict(info)

    def receive(
        self,
        phase: Phase,
        drawn: Drawn,
        carry: Carry,
        outbox: PyTree,
        message: PyTree,
        chains: int | None = None,
    ) -> tuple[Carry, dict[str, Array]]:
        """The second half: the carry after the exchange and the hub, and the hub's infos."""
        if phase.hub is None:
            reply = message
            if phase.exchange is None:
                reply = carry.inbox if phase.local is None else outbox
            return carry._replace(inbox=reply), {}
        chains = self.layout.chains if chains is None else chains
        hub_state, reply, info = self.over_chains(phase.hub, 0, chains)(
            drawn.shared, carry.hub, message
        )
        if drawn.arrival is not None:
            reply = mailbox.pushed(carry.inbox, reply, drawn.arrival.update)
        return Carry(carry.node, hub_state, reply), dict(info)

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
            site = replace(sites.site(node), weight=weight)
            return local(noise, shared, state, inbox, site)

        here = jax.tree.map(lambda leaf: leaf[index], carry.node)
        state, outbox, _ = self.over_chains(at_chain)(
            drawn.noise, shared, here, inbox, visited, weight
        )
        after = jax.tree.map(lambda leaf, value: leaf.at[index].set(value), carry.node, state)
        return after, outbox, {}

    def repeated(
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
            count = self.over_chains(phase.repeats, 0, chains)(carry.hub)

        def once(repetition: Array, carry: Carry) -> Carry:
            here = jax.tree.map(lambda leaf: leaf[repetition], drawn)
            new, _, _, _ = self.phase(phase, here, carry, sites, per_node, chains)
            if count is None:
                return new
            return kept_where(repetition < count, new, carry, per_node)

        bound = phase.repeat if count is None else jnp.max(count)
        return jax.lax.fori_loop(0, bound, once, carry)

    # --- what is recorded -----------------------------------------------------------------------

    def made(self, carry: Carry, node_info: Any, hub_info: Any) -> Yield:
        """What the iteration that ended in ``carry`` yields."""
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

    def average(self, agents: Array) -> Array:
        """The mean over all nodes of an array (nodes, ...)."""
        return jnp.mean(agents, axis=0)

    def draw(self, carry: Carry) -> Array:
        """The draws of all chains in this state."""
        return self.made(carry, {}, {}).draw

    def record(self, buffers: Buffers, made: Yield, iteration: Array, window: Window) -> Buffers:
        """The buffers with what an iteration, counted from the end of the warm-up, has yielded."""
        per_iteration = self.algorithm.draws.per_iteration
        if per_iteration == 1:
            return slots.record(buffers, made, iteration, window)
        return slots.record_several(buffers, made, iteration, window, self.layout, per_iteration)

    def draws_finite(self, carry: Carry) -> Array:
        """(chains,): are the draws of each chain in this state finite?"""
        draw = self.draw(carry)
        own_axes = tuple(range(0 if self.layout.chains == 1 else 1, draw.ndim))
        return jnp.atleast_1d(jnp.all(jnp.isfinite(draw), axis=own_axes))

    # --- helpers ----------------------------------------------------------------------------------

    def over_chains(
        self, function: Callable[..., Any], axes: Any = 0, chains: int | None = None
    ) -> Callable[..., Any]:
        """A function of one chain, over all chains."""
        chains = self.layout.chains if chains is None else chains
        return function if chains == 1 else jax.vmap(function, in_axes=axes)

    def everywhere(self, tree: PyTree) -> PyTree:
        """The same at every node, node axis first."""
        return copies(tree, self.layout.nodes)

    def outbox_finite(self, outbox: PyTree, visited: Array | None) -> Array:
        """(nodes, chains); where one node acts at a time the others count as finite."""
        nodes, chains = self.layout.nodes, self.layout.chains
        shape = (nodes, chains) if visited is None else (chains,)
        result = jnp.ones(shape, bool)
        for leaf in jax.tree.leaves(outbox):
            result &= jnp.all(jnp.isfinite(leaf).reshape(*shape, -1), axis=-1)
        if visited is None:
            return result
        return jnp.ones((nodes, chains), bool).at[visited, jnp.arange(chains)].set(result)


def copies(tree: PyTree, count: int) -> PyTree:
    """So many equal copies of a pytree along a new first axis."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), tree)


def kept_where(runs: Array, after: Carry, before: Carry, per_node: bool) -> Carry:
    """The carry ``after`` in the chains that run, (chains,), and ``before`` in the others."""

    def keep(axis: int) -> Callable[[Array, Array], Array]:
        return lambda new, old: jnp.where(_at_axis(runs, axis, new), new, old)

    return Carry(
        jax.tree.map(keep(1), after.node, before.node),
        jax.tree.map(keep(0), after.hub, before.hub),
        jax.tree.map(keep(1 if per_node else 0), after.inbox, before.inbox),
    )


def _where_present(present: Array | tuple[()], after: PyTree, before: PyTree) -> PyTree:
    """Node states, in which the sites that did not take part are where they were."""
    if isinstance(present, tuple):
        return after
    return jax.tree.map(lambda a, b: jnp.where(_at_axis(present, 0, a), a, b), after, before)


def _at_axis(flag: Array, axis: int, like: Array) -> Array:
    """``flag``, a scalar or (chains,), shaped so that its axis stands at ``axis`` of ``like``."""
    if flag.ndim == 0:
        return flag
    return flag.reshape((1,) * axis + flag.shape + (1,) * (like.ndim - axis - 1))
