"""The program of one algorithm over several devices: nodes and chains divided among them.

Every device runs the phases for its own nodes and chains; sums, averages and gossip are collectives
along the axis ``nodes`` of the mesh, and nothing crosses the axis ``chains``. What belongs to no
node (the hub) is computed by all devices alike. Random numbers follow from the keys of nodes and
chains, and are therefore those of one device; sums over nodes are rounded in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from consortia.core.contract import Algorithm, Mailbox, Mean, Mix, Phase, Sum
from consortia.engines import drawing, exchanges, slots
from consortia.engines.division import CHAINS, NODES, Axes, Sharding
from consortia.engines.drawing import PhaseKeys
from consortia.engines.program import Keys, Program
from consortia.engines.types import Buffers, Carry, Layout, Ring, SiteArrays

Array = jax.Array
PyTree = Any


def _axes(node: int | None, chain: int | None) -> Any:
    """`Axes` in the place of arrays that have them."""
    return Axes(node, chain)


_OF_NODES = _axes(0, None)
ARRAYS = SiteArrays(_OF_NODES, _OF_NODES, _OF_NODES, _OF_NODES, _OF_NODES, _axes(None, None))
BUFFERS = Buffers(_axes(None, 1), _axes(1, 2), _axes(None, 1), _axes(1, 2))
EVERYWHERE = PartitionSpec()


class ShardedProgram(Program):
    """As `Program`; its functions take and return arrays that lie on the devices of a mesh."""

    def __init__(
        self,
        algorithm: Algorithm,
        layout: Layout,
        start_values: Callable[..., Any],
        division: Sharding,
    ) -> None:
        super().__init__(algorithm, layout, start_values)
        self.division = division
        own = replace(
            layout, nodes=layout.nodes // division.nodes, chains=layout.chains // division.chains
        )
        inner = _Part(algorithm, own, start_values, layout)
        first, later = self.carry_axes(begun=False), self.carry_axes(begun=True)
        keys = self.key_axes()
        node_chain = PartitionSpec(NODES, CHAINS)

        def compiled(body: Any, takes: tuple[Any, ...], gives: Any, **options: Any) -> Any:
            whole = jax.shard_map(
                body, mesh=division.mesh, in_specs=takes, out_specs=gives, check_vma=False
            )
            return jax.jit(whole, **options)

        arrays, at = division.specs(ARRAYS), division.specs(later)
        before, buffers = division.specs(first), division.specs(BUFFERS)
        of_keys = division.specs(keys)
        self.start = jax.jit(self._start, static_argnums=1, out_shardings=division.shardings(first))
        self.keys = jax.jit(self._keys, out_shardings=division.shardings(keys))
        self.empty = jax.jit(self._empty, out_shardings=division.shardings(BUFFERS))
        self.emptied = jax.jit(slots.emptied, donate_argnums=0)
        self.start_values = compiled(
            start_values,
            (arrays, PartitionSpec(CHAINS)),
            (PartitionSpec(CHAINS), node_chain, node_chain),
        )
        self.fit = compiled(inner._fit, (arrays, EVERYWHERE, EVERYWHERE), PartitionSpec(NODES))
        self.setup = compiled(
            lambda sites, base, carry: self._spread(
                inner._setup(sites, base, self._own(carry, first)), later
            ),
            (arrays, EVERYWHERE, before),
            at,
        )
        self.advance = compiled(
            lambda carry, buffers, sites, keys, window: self._advance_part(
                inner, carry, buffers, sites, keys, window
            ),
            (at, buffers, arrays, of_keys, EVERYWHERE),
            (at, buffers, PartitionSpec(CHAINS)),
            donate_argnums=(1,),
        )
        self.outboxes_finite = compiled(
            lambda carry, sites, keys, at, warmup: inner._outboxes_finite(
                self._own(carry, later), sites, self._own(keys, self.key_axes()), at, warmup
            ),
            (at, arrays, of_keys, EVERYWHERE, EVERYWHERE),
            node_chain,
        )

    def carry_axes(self, *, begun: bool) -> Carry:
        """Of a carry, after ``setup`` or before it."""
        if self.mailbox is not None:
            inbox = Ring(_axes(None, 1), _axes(None, 0))
            return Carry(_axes(None, 1), _axes(None, 0), inbox)
        everywhere = self.inbox_per_node and (begun or not self.algorithm.setup)
        return Carry(_axes(0, 1), _axes(None, 0), _axes(0, 1) if everywhere else _axes(None, 0))

    def key_axes(self) -> tuple[PhaseKeys, ...]:
        """Of the keys of an iteration's phases."""
        return tuple(
            PhaseKeys(_axes(None, 0), _axes(None if isinstance(phase.exchange, Mailbox) else 0, 1))
            for phase in self.algorithm.phases
        )

    def _empty(self, carry: Carry, sites: SiteArrays, keys: Keys) -> Buffers:
        return super().buffers(carry, sites, keys)

    def buffers(self, carry: Carry, sites: SiteArrays, keys: Keys) -> Buffers:
        """Empty buffers of one chunk."""
        return self.empty(carry, sites, keys)

    def _advance_part(
        self,
        inner: Program,
        carry: Carry,
        buffers: Buffers,
        sites: SiteArrays,
        keys: Keys,
        window: Any,
    ) -> tuple[Carry, Buffers, Array]:
        axes = self.carry_axes(begun=True)
        carry, buffers, finite = inner._advance(
            self._own(carry, axes),
            self._own(buffers, BUFFERS),
            sites,
            self._own(keys, self.key_axes()),
            window,
        )
        return self._spread(carry, axes), self._spread(buffers, BUFFERS), finite

    # A device's only chain has no chain axis, like the only chain of a run.

    def _own(self, tree: PyTree, axes: PyTree) -> PyTree:
        return self._reshaped(jnp.squeeze, tree, axes)

    def _spread(self, tree: PyTree, axes: PyTree) -> PyTree:
        return self._reshaped(jnp.expand_dims, tree, axes)

    def _reshaped(self, change: Callable[..., Array], tree: PyTree, axes: PyTree) -> PyTree:
        if self.layout.chains == 1 or self.layout.chains > self.division.chains:
            return tree

        def part(axes: Axes, below: PyTree) -> PyTree:
            if axes.chain is None:
                return below
            return jax.tree.map(lambda leaf: change(leaf, axis=axes.chain), below)

        return jax.tree.map(part, axes, tree, is_leaf=lambda node: isinstance(node, Axes))


class _Part(Program):
    """What one device computes, inside `jax.shard_map`."""

    def __init__(
        self,
        algorithm: Algorithm,
        layout: Layout,
        start_values: Callable[..., Any],
        whole: Layout,
    ) -> None:
        super().__init__(algorithm, layout, start_values)
        self._whole = whole

    def exchanged(self, phase: Phase, outbox: PyTree, sites: SiteArrays) -> PyTree:
        """The message that the outboxes of the nodes of all devices become."""
        if self.layout.nodes == self._whole.nodes:
            return super().exchanged(phase, outbox, sites)
        if isinstance(phase.exchange, Mean | Sum):
            return jax.lax.psum(super().exchanged(phase, outbox, sites), NODES)
        if isinstance(phase.exchange, Mix):
            everyone = jax.lax.all_gather((outbox, sites.weights), NODES, tiled=True)
            mixed = exchanges.message_of(phase.exchange, *everyone)
            return jax.tree.map(lambda leaf: self._cut(leaf, 0, NODES, self.layout.nodes), mixed)
        return super().exchanged(phase, outbox, sites)

    def average(self, agents: Array) -> Array:
        """The mean over the nodes of all devices."""
        return jax.lax.pmean(super().average(agents), NODES)

    def keys_of(self, phases: tuple[Phase, ...], stage: int, base: Array, layout: Layout) -> Keys:
        """The keys of this device's nodes and chains."""
        chains = 1 if stage == drawing.FIT else self._whole.chains
        whole = replace(layout, nodes=self._whole.nodes, chains=chains)

        def own(keys: PhaseKeys) -> PhaseKeys:
            private = self._cut(keys.private, 0, NODES, layout.nodes)
            if chains == 1:
                return PhaseKeys(keys.shared, private)
            private = self._cut(private, 1, CHAINS, layout.chains)
            shared = self._cut(keys.shared, 0, CHAINS, layout.chains)
            if layout.chains > 1:
                return PhaseKeys(shared, private)
            return PhaseKeys(shared[0], private[:, 0])

        return tuple(own(keys) for keys in drawing.stage_keys(phases, stage, base, whole))

    @staticmethod
    def _cut(leaf: Array, axis: int, along: str, count: int) -> Array:
        """This device's part of an array that every device has whole."""
        first = jax.lax.axis_index(along) * count
        return jax.lax.dynamic_slice_in_dim(leaf, first, count, axis)
