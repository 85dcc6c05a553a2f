"""One rank's program: what its sites compute between two exchanges, each piece compiled once.

A stage (fit, setup, an iteration) is its phases in order. It is cut where something crosses the
network; what lies between two cuts is one compiled piece. Between the pieces the host exchanges
packed arrays, see `consortia.engines.mpi.wire`.

Random numbers are those that one process would draw for these sites.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from consortia import graphs
from consortia.core.contract import Mix, Phase
from consortia.engines import exchanges, rng
from consortia.engines.buffers import Buffers, Window
from consortia.engines.mpi.placement import Neighbourhood, Places
from consortia.engines.mpi.wire import Packed, Wire
from consortia.engines.phases import Carry, Iteration, SiteArrays, kept_where
from consortia.engines.rng import Counter, Layout, PhaseKeys, PhaseRandomness

Array = jax.Array
PyTree = Any
RandomStreams = tuple[PhaseRandomness, ...]
Carrier = Callable[[int, list[np.ndarray], list[np.ndarray]], None]
"""``(phase, packed own rows, packed arrays)``: fills the latter with what the exchange brings."""


class Flow(NamedTuple):
    """What passes from piece to piece.

    Attributes:
        carry: the state, of this rank's nodes.
        outbox: of the phase whose exchange comes next, own nodes first.
        before: the carry before that phase, where a chain may sit the phase out.
        node_info: infos so far, as is ``hub_info``.
    """

    carry: Carry
    outbox: PyTree
    before: Carry | tuple[()]
    node_info: dict[str, Array]
    hub_info: dict[str, Array]


class At(NamedTuple):
    """Where a piece stands; int32 scalars on the host, sent to the device as one array."""

    offset: int
    repetition: int = 0

    def packed(self) -> np.ndarray:
        """As an array (2,)."""
        return np.array(self, np.int32)


class Stage:
    """The pieces of the phases of one stage.

    Args:
        own: the program of this rank's nodes.
        phases: of the stage.
        chains: the stage's own number of them.
        per_node: whether the inbox differs from node to node before the first phase.
        places: which rank holds what.
    """

    def __init__(
        self,
        own: Iteration,
        phases: tuple[Phase, ...],
        chains: int,
        per_node: bool,
        places: Places,
    ) -> None:
        self.own, self.phases, self.chains, self.places = own, phases, chains, places
        self.per_node: list[bool] = []  # before each phase, and after the last
        for phase in phases:
            self.per_node.append(per_node)
            per_node = exchanges.reply_per_node(phase, per_node)
        self.per_node.append(per_node)
        self.wires: dict[int, Wire] = {}
        self.neighbourhoods = {
            index: Neighbourhood.of(graphs.resolve_any(phase.exchange.matrix, places.nodes), places)
            for index, phase in enumerate(phases)
            if isinstance(phase.exchange, Mix)
        }
        self._repetitions = [
            jax.jit(partial(self.repetitions, index)) for index in range(len(phases))
        ]
        self._begin = [jax.jit(partial(self.begin, index)) for index in range(len(phases))]
        self._end = [jax.jit(partial(self.end, index)) for index in range(len(phases))]
        self._whole = [jax.jit(partial(self.whole, index)) for index in range(len(phases))]
        self._mixed_again = [jax.jit(partial(self.mixed, index)) for index in range(len(phases))]

    # --- on the host ----------------------------------------------------------------------------

    def run(
        self,
        carry: Carry,
        numbers: RandomStreams,
        at: At,
        sites: SiteArrays,
        carrier: Carrier,
        note: Callable[[PyTree], None] | None = None,
    ) -> Flow:
        """All phases, in order; ``note`` is shown the outboxes of those that run once."""
        flow = Flow(carry, (), (), {}, {})
        for index, phase in enumerate(self.phases):
            if phase.exchange is None:
                flow = self._whole[index](flow, numbers[index], at.packed(), sites)
                continue
            for repetition in range(int(self._repetitions[index](flow.carry.hub))):
                here = at._replace(repetition=repetition).packed()
                flow, packed = self._begin[index](flow, numbers[index], here, sites)
                if note is not None and not phase.repeated:
                    note(flow.outbox)
                message = self._exchanged(index, packed, carrier)
                for _ in range(1, getattr(phase.exchange, "times", 1)):
                    flow, packed = self._mixed_again[index](flow, message)
                    message = self._exchanged(index, packed, carrier)
                flow = self._end[index](flow, message, numbers[index], here, sites)
        return flow

    def _exchanged(self, index: int, packed: Packed, carrier: Carrier) -> Packed:
        own = [np.asarray(part) for part in packed]
        result = [np.empty(form.shape, form.dtype) for form in self.arriving(index, packed)]
        carrier(index, own, result)
        return tuple(result)

    # --- compiled -------------------------------------------------------------------------------

    def repetitions(self, index: int, hub: PyTree) -> Array | int:
        """How often a phase is done: as often as the chain wants that wants it most."""
        phase = self.phases[index]
        if phase.repeats is None:
            return phase.repeat
        return jnp.max(self.own.over_chains(phase.repeats, 0, self.chains)(hub))

    def arriving(self, index: int, packed: Packed) -> list[jax.ShapeDtypeStruct]:
        """Shapes and types of what the exchange of a phase brings for packed own rows."""
        shapes = [part.shape for part in packed]
        if index in self.neighbourhoods:
            rows = sum(self.neighbourhoods[index].links.received)
            shapes = [(rows, width) for _, width in shapes]
        return [
            jax.ShapeDtypeStruct(shape, part.dtype)
            for shape, part in zip(shapes, packed, strict=True)
        ]

    def begin(
        self, index: int, flow: Flow, numbers: PhaseRandomness, at: Array, sites: SiteArrays
    ) -> tuple[Flow, Packed]:
        """Up to the exchange of a phase; the packed rows or partial sums to be exchanged."""
        phase, drawn = self.phases[index], self._drawn(index, numbers, at)
        before = flow.carry if phase.repeats is not None else ()
        node, outbox, info = self.own.send(
            phase, drawn, flow.carry, sites, self.per_node[index], self.chains
        )
        if phase.repeated:
            info = {}
        flow = flow._replace(
            carry=flow.carry._replace(node=node),
            outbox=outbox,
            before=before,
            node_info=flow.node_info | info,
        )
        return flow, self._leaving(index, outbox, sites)

    def _leaving(self, index: int, outbox: PyTree, sites: SiteArrays) -> Packed:
        if index not in self.neighbourhoods:
            partial_sum = exchanges.message_of(self.phases[index].exchange, outbox, sites.weights)
            outbox = jax.tree.map(lambda leaf: leaf[None], partial_sum)
        wire = self.wires.setdefault(index, Wire.of(outbox))
        return wire.pack(outbox)

    def mixed(self, index: int, flow: Flow, message: Packed) -> tuple[Flow, Packed]:
        """One more multiplication by W: what was received is sent again."""
        outbox = self._received(index, flow.outbox, message)
        return flow._replace(outbox=outbox), self.wires[index].pack(outbox)

    def end(
        self,
        index: int,
        flow: Flow,
        message: Packed,
        numbers: PhaseRandomness,
        at: Array,
        sites: SiteArrays,
    ) -> Flow:
        """From the exchange of a phase to its end."""
        phase, drawn = self.phases[index], self._drawn(index, numbers, at)
        received = self._received(index, flow.outbox, message)
        carry, info = self.own.receive(phase, drawn, flow.carry, flow.outbox, received, self.chains)
        if isinstance(flow.before, Carry) and phase.repeats is not None:
            runs = at[1] < self.own.over_chains(phase.repeats, 0, self.chains)(flow.before.hub)
            carry = kept_where(runs, carry, flow.before, self.per_node[index])
        if phase.repeated:
            info = {}
        return flow._replace(carry=carry, outbox=(), before=(), hub_info=flow.hub_info | info)

    def whole(
        self, index: int, flow: Flow, numbers: PhaseRandomness, at: Array, sites: SiteArrays
    ) -> Flow:
        """A phase in which nothing crosses the network."""
        phase = self.phases[index]
        drawn = jax.tree.map(lambda leaf: leaf[at[0]], numbers)
        arguments = (phase, drawn, flow.carry, sites, self.per_node[index], self.chains)
        if phase.repeated:
            return flow._replace(carry=self.own.repeated(*arguments))
        carry, node, hub, _ = self.own.phase(*arguments)
        return flow._replace(
            carry=carry, node_info=flow.node_info | node, hub_info=flow.hub_info | hub
        )

    def _drawn(self, index: int, numbers: PhaseRandomness, at: Array) -> PhaseRandomness:
        here = jax.tree.map(lambda leaf: leaf[at[0]], numbers)
        if self.phases[index].repeated:
            here = jax.tree.map(lambda leaf: leaf[at[1]], here)
        return here

    def _received(self, index: int, outbox: PyTree, message: Packed) -> PyTree:
        """What the exchange makes of the own outboxes and what came from other ranks."""
        arrived = self.wires[index].unpack(message)
        if index not in self.neighbourhoods:
            return jax.tree.map(lambda leaf: leaf[0], arrived)
        exchange = self.phases[index].exchange
        around = self.neighbourhoods[index]
        weights = jnp.asarray(around.weights, jnp.result_type(float))
        now = weights[0]
        rest, others, turn = outbox, arrived, {}
        if len(around.weights) > 1 or self._in_turn(index):
            turn = {"turn": outbox["turn"]}
            now = weights[outbox["turn"].reshape(-1)[0]]
            rest = {name: value for name, value in outbox.items() if name != "turn"}
            others = {name: value for name, value in arrived.items() if name != "turn"}

        def step(own: Array, other: Array) -> Array:
            change = jnp.zeros_like(own)
            # One neighbour of every agent at a time: a scatter of all takes ten times as long.
            for slot, heard in zip(around.slots, around.heard, strict=True):
                weight = now[slot].astype(own.dtype).reshape((-1,) + (1,) * (own.ndim - 1))
                change = change + weight * (_rows_of(own, other, heard) - own)
            return change if isinstance(exchange, Mix) and exchange.change else own + change

        mixed = jax.tree.map(step, rest, others)
        return {**mixed, **turn} if turn else mixed

    def _in_turn(self, index: int) -> bool:
        exchange = self.phases[index].exchange
        return isinstance(exchange, Mix) and isinstance(exchange.matrix, graphs.MixingSchedule)


class Blocks:
    """The random numbers of an iteration's phases, drawn for a block of rounds at once.

    Args:
        phases: of an iteration.
        layout: of all nodes.
        own: nodes whose private numbers are wanted.
        weights: of all nodes.

    Attributes:
        keys: of the run, for each phase.
    """

    def __init__(
        self, phases: tuple[Phase, ...], layout: Layout, own: np.ndarray, weights: Array
    ) -> None:
        self._phases, self._layout, self._own, self._weights = phases, layout, own, weights
        self._draw = jax.jit(self.drawn)
        self.keys: tuple[PhaseKeys, ...] = ()
        self._at: tuple[int, int] | None = None
        self._numbers: RandomStreams = ()

    @property
    def length(self) -> int:
        """Rounds of a block."""
        return self._layout.block

    def begin(self, base: np.ndarray) -> None:
        """The keys of a run."""
        self.keys = own_keys(self._phases, rng.ROUND, base, self._layout, self._own)
        self._at = None

    def at(self, iteration: int, warmup: int) -> tuple[RandomStreams, At]:
        """The numbers of the block in which an iteration stands, and where it stands there."""
        index, offset = divmod(iteration, self._layout.block)
        if self._at != (index, warmup):
            start = np.int32(index * self._layout.block)
            self._numbers = self._draw(self.keys, start, np.int32(warmup))
            self._at = (index, warmup)
        return self._numbers, At(offset)

    def drawn(self, keys: tuple[PhaseKeys, ...], first: Array, warmup: Array) -> RandomStreams:
        """The numbers of the block that begins with this iteration; to be compiled."""

        def at(iteration: Array) -> RandomStreams:
            return rng.round_randomness(
                self._phases, keys, Counter(iteration, warmup), self._layout, self._weights
            )

        return jax.vmap(at)(first + jnp.arange(self._layout.block, dtype=jnp.int32))


def _rows_of(own: Array, other: Array, rows: np.ndarray) -> Array:
    """Rows of both arrays, one behind the other; consecutive ones of one are not gathered."""
    count, first = len(own), int(rows[0])
    if np.array_equal(rows, first + np.arange(len(rows))):
        if first >= count:
            return other[first - count : first - count + len(rows)]
        if first + len(rows) <= count:
            return own[first : first + len(rows)]
    return jnp.concatenate([own, other])[rows]


def own_keys(
    phases: tuple[Phase, ...], stage: int, base: np.ndarray, layout: Layout, own: np.ndarray
) -> tuple[PhaseKeys, ...]:
    """The keys of a stage's phases, of what is private only for a rank's nodes."""
    keys = jax.jit(lambda base: rng.stage_keys(phases, stage, base, layout))(base)
    return tuple(PhaseKeys(of_phase.shared, of_phase.private[own]) for of_phase in keys)


class Recording:
    """What a rank records of an iteration: its share of the posterior draw, and its own sites.

    Summed over the ranks the shares are the draw: of an average of all nodes that of the own ones,
    of a hub that every rank has rank 0's, of travelling chains those that are ``here``.
    """

    def __init__(self, own: Iteration, places: Places) -> None:
        self._own = own
        self._share = 1.0
        if own.algorithm.draws.node is not None:
            self._share = own.layout.nodes / places.nodes
        self.record = jax.jit(self.recorded, donate_argnums=0)
        self.finite = jax.jit(self._finite)

    def recorded(self, buffers: Buffers, flow: Flow, at: Array, here: Array) -> Buffers:
        """``at``: iteration after the warm-up, origin, thin, int32 (3,); ``here``: see `record`."""
        made = self._own.made(flow.carry, flow.node_info, flow.hub_info)
        present = here.reshape((-1,) + (1,) * (made.draw.ndim - 1)) if here.size > 1 else here
        draw = jnp.where(present, made.draw * self._share, 0)
        made = made._replace(draw=draw)
        window = Window(0, 0, at[1], at[2], 0)
        return self._own.record(buffers, made, at[0], window)

    def _finite(self, carry: Carry) -> Array:
        """(chains,): are this rank's draws finite?"""
        return self._own.draws_finite(carry)
