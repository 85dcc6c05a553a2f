"""One rank's program: the phases of its own nodes, with exchanges that cross the network.

A call of a compiled program costs tens of microseconds, as much as an exchange with a neighbour. A
whole window of rounds is therefore one call, in whose midst the host moves packed arrays, see
`consortia.engines.mpi.wire`, wherever a phase exchanges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt32

from consortia import graphs
from consortia.core.contract import Algorithm, Exchange, InTurn, Mean, Mix, Phase, Route, Sum
from consortia.engines import exchanges, rng
from consortia.engines.buffers import Buffers, Window, Yield
from consortia.engines.mpi.callback import HostCallback
from consortia.engines.mpi.communicator import Communicator
from consortia.engines.mpi.placement import Neighbourhood, Places
from consortia.engines.mpi.wire import Wire
from consortia.engines.phases import Keys, Program, SiteArrays
from consortia.engines.rng import Layout, PhaseKeys
from consortia.errors import InputError
from consortia.runtime import compiler
from consortia.runtime.late import Array, PyTree, jax, jnp


class RankProgram(Program):
    """A `Program` of one rank's nodes; random numbers are those that one process would draw.

    Attributes:
        callbacks: what exchanges, by exchange.
    """

    first_turn = np.int32(0)

    def __init__(
        self,
        algorithm: Algorithm,
        whole: Layout,
        start_values: Callable[..., Any],
        communicator: Communicator,
        places: Places,
        effort: compiler.Effort = compiler.FULL,
    ) -> None:
        layout = replace(whole, nodes=len(places.own))
        super().__init__(algorithm, layout, start_values, effort)
        self.nodes_in_all = whole.nodes
        self._whole, self._places = whole, places
        # A draw is summed over the ranks: of an average of all nodes each has its share, of the
        # hub, which every rank has, rank 0 has all.
        self._share = 1.0
        if algorithm.draws.node is not None:
            self._share = len(places.own) / places.nodes
        elif places.rank:
            self._share = 0.0
        self._neighbourhoods: dict[Exchange, Neighbourhood] = {}
        self.callbacks: dict[Exchange, HostCallback] = {}
        for phase in (*algorithm.fit, *algorithm.setup, *algorithm.phases):
            exchange = phase.exchange
            if isinstance(exchange, Mix) and exchange not in self.callbacks:
                mixing = graphs.weights.resolve_any(exchange.matrix, places.nodes)
                around = self._neighbourhoods[exchange] = Neighbourhood.of(mixing, places)
                self.callbacks[exchange] = HostCallback(communicator.network(around.links))
            elif isinstance(exchange, Mean | Sum):
                self.callbacks[exchange] = HostCallback(partial(_together, communicator, places))

    def exchanged(
        self, phase: Phase, outbox: PyTree, sites: SiteArrays, turn: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Return the message that the outboxes of the nodes of all ranks become."""
        exchange = phase.exchange
        if exchange is None or isinstance(exchange, Route):
            return super().exchanged(phase, outbox, sites, turn)
        if isinstance(exchange, Mean | Sum):
            if exchanges.is_in_order(outbox, self.nodes_in_all, self.layout.nodes):
                rows = outbox, sites.weights
                everyone, turn = self._carried(exchange, rows, self.nodes_in_all, turn)
                return exchanges.message_of(exchange, *everyone), turn
            message = exchanges.message_of(exchange, outbox, sites.weights)
            rows = jax.tree.map(lambda leaf: leaf[None], message)
            total, turn = self._carried(exchange, rows, 1, turn)
            return jax.tree.map(lambda leaf: leaf[0], total), turn
        if isinstance(exchange, Mix):
            around = self._neighbourhoods[exchange]
            for _ in range(exchange.times):
                arrived, turn = self._carried(exchange, outbox, sum(around.links.received), turn)
                outbox = _mixed(exchange, around, outbox, arrived)
            return outbox, turn
        name = type(exchange).__name__
        raise InputError(f"the MPI engine cannot carry out a {name} here.")

    def _carried(
        self, exchange: Exchange, rows: PyTree, coming: int, turn: Int32[Array, ""]
    ) -> tuple[PyTree, Array]:
        """Return an exchange's result for this rank's rows, ``coming`` rows, and the next turn."""
        wire = Wire.of(rows)
        forms = [jax.ShapeDtypeStruct(*form) for form in wire.arrays(coming)]
        turn, packed = self.callbacks[exchange](turn, wire.pack(rows), forms)
        return wire.unpack(packed), turn

    def keys(self, stage: int, base: UInt32[np.ndarray, " 2"]) -> Keys:
        """Return the keys of a stage's phases, of what is private for this rank's nodes."""
        whole = replace(self.layout_of(stage), nodes=self._whole.nodes)
        every = rng.stage_keys(self.phases_of(stage), stage, base, whole)
        rank_keys = (PhaseKeys(keys.shared, keys.private[self._places.own]) for keys in every)
        return jax.device_put(tuple(rank_keys))

    def record(self, buffers: Buffers, made: Yield, iteration: Array, window: Window) -> Buffers:
        """Return the buffers with this rank's share of a draw."""
        draw = made.draw * self._share if self._share else jnp.zeros_like(made.draw)
        return super().record(buffers, made._replace(draw=draw), iteration, window)


def _together(
    communicator: Communicator, places: Places, parts: list[np.ndarray], result: list[np.ndarray]
) -> None:
    """Fill the results with the rows of all sites, or with the sum of a row of each rank."""
    for part, into in zip(parts, result, strict=True):
        if len(into) > 1:
            communicator.gather(part, into, np.diff(places.bounds))
        else:
            communicator.total(part, into)


def _mixed(exchange: Mix, around: Neighbourhood, outbox: PyTree, arrived: PyTree) -> PyTree:
    """Mix this rank's outboxes and those of neighbouring ranks at its nodes."""
    weights = jnp.asarray(around.weights, jnp.result_type(float))
    in_turn = isinstance(outbox, InTurn)
    now = weights[outbox.turn.reshape(-1)[0]] if in_turn else weights[0]

    def step(here: Array, other: Array) -> Array:
        change = jnp.zeros_like(here)
        # One neighbour of every agent at a time: a scatter of all takes ten times as long.
        for slot, senders in zip(around.slots, around.senders, strict=True):
            weight = now[slot].astype(here.dtype).reshape((-1,) + (1,) * (here.ndim - 1))
            change = change + weight * (_rows_of(here, other, senders) - here)
        return change if exchange.change else here + change

    if in_turn:
        return InTurn(jax.tree.map(step, outbox.value, arrived.value), outbox.turn)
    return jax.tree.map(step, outbox, arrived)


def _rows_of(here: Array, other: Array, rows: np.ndarray) -> Array:
    """Return rows of both arrays, own first; consecutive ones of one are not gathered."""
    count, first = len(here), int(rows[0])
    if np.array_equal(rows, first + np.arange(len(rows))):
        if first >= count:
            return other[first - count : first - count + len(rows)]
        if first + len(rows) <= count:
            return here[first : first + len(rows)]
    return jnp.concatenate([here, other])[rows]
