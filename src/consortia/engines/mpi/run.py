"""A run over MPI ranks: each holds some sites and computes what concerns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core import random
from consortia.core.contract import Route, Site
from consortia.data.sites import Sites
from consortia.engines import rng
from consortia.engines.buffers import Buffers, Window, Yield, empty_buffers, infos_at, with_infos
from consortia.engines.contract import Run, from_names, named
from consortia.engines.mpi import pieces
from consortia.engines.mpi.carrier import carrier_of
from consortia.engines.mpi.communicator import Communicator
from consortia.engines.mpi.foreign import HostCallback
from consortia.engines.mpi.pieces import At, Flow, Recording, Stage
from consortia.engines.mpi.placement import Places
from consortia.engines.mpi.straight import Straight
from consortia.engines.mpi.travelling import Travel
from consortia.engines.phases import Carry, Program, SiteArrays
from consortia.engines.rng import Counter

Array = jax.Array
PyTree = Any


class MPIRun(Run):
    """One algorithm on one set of sites, as one rank sees it.

    Args:
        whole: the program of all nodes; only its shapes are used.
        own: the program of this rank's nodes.
        arrays: this rank's data.
        sites: names and sizes of all sites.
        weights: w_c of all sites.
        communicator: the ranks.
        places: which of them holds what.
        dimension: d.
    """

    def __init__(
        self,
        whole: Program,
        own: Program,
        arrays: SiteArrays,
        sites: Sites,
        weights: np.ndarray,
        communicator: Communicator,
        places: Places,
        dimension: int,
    ) -> None:
        super().__init__(whole, sites, arrays)
        self.root = communicator.rank == 0
        self._own, self._places = own, places
        self._communicator = communicator
        self._weights = jnp.asarray(weights, jnp.result_type(float))
        phases = whole.algorithm.phases
        travels = any(isinstance(phase.exchange, Route) for phase in phases)
        # Where a chain goes next, and by which numbers, every rank must know.
        keyed = np.arange(places.nodes) if travels else places.own
        self._blocks = pieces.Blocks(phases, self.layout, keyed, self._weights)
        self._travel: Travel | None = None
        self._rounds: Stage | None = None
        if travels:
            self._travel = Travel(own, phases, self._blocks, communicator, places)
        else:
            self._rounds = Stage(own, phases, self.layout.chains, own.inbox_per_node, places)
            self._carrier = carrier_of(self._rounds, communicator)
        self._recording = Recording(own, places)
        self._straight: Straight | None = None
        if self._rounds is not None and HostCallback.serve():
            here = self._recorded_here
            self._straight = Straight(
                self._rounds, self._recording, self._blocks, here, self._carrier
            )
        self._shapes: Yield | None = None
        self._visiting = np.full(self.layout.chains, self.root)
        self._dimension = dimension

    # --- before the first round -------------------------------------------------------------------

    def start_values(self, positions: Array) -> tuple[Any, Any, Any]:
        """Log-prior (chains,), U_c and whether its gradient is finite, both (nodes, chains)."""
        prior, values, finite = self._own.start_values(self._arrays, positions)
        return prior, self._of_all(values), self._of_all(np.asarray(finite, np.int32)) > 0

    def start(self, seed: int, positions: Array, rounds: int = 1, warmup: int = 0) -> Carry:
        """The state before the first round; runs ``fit`` and ``setup``."""
        base = random.base_key(seed)
        algorithm, own = self.program.algorithm, self._own
        self._blocks.begin(base)
        if algorithm.fit:
            node, hub, inbox = algorithm.init(positions[0])
            stage = Stage(own, algorithm.fit, 1, False, self._places)
            carry = Carry(own.everywhere(node), hub, inbox)
            carry = self._once(stage, rng.FIT, base, carry)
            inbox = carry.inbox if stage.per_node[-1] else own.everywhere(carry.inbox)
            self._arrays = self._arrays._replace(fitted=(carry.node, inbox))
        carry = own.start(positions[0] if self.layout.chains == 1 else positions, 1)
        if algorithm.setup:
            stage = Stage(own, algorithm.setup, self.layout.chains, False, self._places)
            carry = self._once(stage, rng.SETUP, base, carry)
            if own.inbox_per_node and not stage.per_node[-1]:
                carry = carry._replace(inbox=own.everywhere(carry.inbox))
        return carry

    def _once(self, stage: Stage, number: int, base: np.ndarray, carry: Carry) -> Carry:
        layout = replace(self.layout, chains=stage.chains)
        keys = pieces.own_keys(stage.phases, number, base, layout, self._places.own)
        drawn = rng.round_randomness(stage.phases, keys, Counter(0, 0), layout, self._weights)
        drawn = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], drawn)
        carrier = carrier_of(stage, self._communicator)
        return stage.run(carry, drawn, At(0), self._arrays, carrier).carry

    # --- between two rounds, see `contract.named` ------------------------------------------------

    def state(self, carry: Carry) -> dict[str, np.ndarray]:
        """The carry and what ``fit`` left, of all nodes, as named arrays; all ranks call it."""
        node = jax.tree.map(self._of_all, carry.node)
        hub, inbox = carry.hub, carry.inbox
        if self._travel is not None:
            hub, inbox = jax.tree.map(self._of_travellers, (hub, inbox))
        elif self._own.inbox_per_node:
            inbox = jax.tree.map(self._of_all, inbox)
        whole = Carry(node, hub, inbox)
        return named(whole, "carry") | named(self.fitted, "fitted")

    def restore(
        self, state: Mapping[str, np.ndarray], seed: int, positions: Array, rounds: int, warmup: int
    ) -> Carry:
        """This rank's part of a state, in place of `start`; nothing is fitted.

        Raises:
            StoreError: the state is of another run.
        """
        base = random.base_key(seed)
        self._blocks.begin(base)
        if self.program.algorithm.fit:
            arrays = jax.tree.map(self._everywhere, self._arrays)
            key = jax.ShapeDtypeStruct((2,), jnp.uint32)
            shapes = jax.eval_shape(self.program.fit, arrays, key, positions[0])
            fitted = from_names(state, shapes, "fitted")
            self._arrays = self._arrays._replace(fitted=jax.tree.map(self._mine, fitted))
        carry, _ = self._abstract()
        whole = from_names(state, carry, "carry")
        inbox = whole.inbox
        if self._own.inbox_per_node:
            inbox = jax.tree.map(self._mine, inbox)
        return Carry(jax.tree.map(self._mine, whole.node), whole.hub, inbox)

    def block_in_progress(self, buffers: Buffers, slot: int) -> dict[str, np.ndarray]:
        """What is recorded so far of a block of thinned rounds, of all nodes."""
        hub, node = infos_at(buffers, slot)
        return named((hub, jax.tree.map(self._of_all, node)), "block")

    def with_block(self, buffers: Buffers, block: Mapping[str, np.ndarray]) -> Buffers:
        """Empty buffers that go on with such a block, in their first slot."""
        hub, node = infos_at(buffers, 0)
        shapes = (hub, jax.tree.map(self._everywhere, node))
        hub, node = from_names(block, shapes, "block")
        return with_infos(buffers, (hub, jax.tree.map(self._mine, node)))

    # --- rounds -----------------------------------------------------------------------------------

    def advance(self, carry: Carry, buffers: Buffers, window: Window) -> Any:
        """Runs the rounds of a window: (carry, buffers, finite (chains,)); consumes ``buffers``."""
        warmup = int(window.warmup)
        straight = self._straight
        if straight is not None:
            carry, buffers = straight.advance(carry, buffers, window, self._arrays)
            return carry, buffers, self._all_finite(carry, warmup, int(window.stop))
        for iteration in range(int(window.first), int(window.stop)):
            flow, here = self._iterate(carry, iteration, warmup)
            place = np.array([iteration - warmup, window.origin, window.thin], np.int32)
            buffers = self._recording.record(buffers, flow, place, here)
            carry = flow.carry
            if self._travel is not None:
                carry = self._travel.depart(carry, iteration, warmup)
        return carry, buffers, self._all_finite(carry, warmup, int(window.stop))

    def _all_finite(self, carry: Carry, warmup: int, stop: int) -> np.ndarray:
        """(chains,): are the draws of each chain finite, wherever it is?"""
        lost = ~np.asarray(self._recording.finite(carry))
        if self._travel is not None:
            self._visiting = self._travel.here(stop, warmup)
            lost &= self._visiting
        return self._communicator.total(lost.astype(np.int32)) == 0

    def _iterate(self, carry: Carry, iteration: int, warmup: int) -> tuple[Flow, np.ndarray]:
        """One iteration, and which chains this rank records."""
        if self._travel is not None:
            return self._travel.visit(carry, iteration, warmup, self._arrays)
        if self._rounds is None:
            raise RuntimeError("a run has rounds or travels")
        drawn, at = self._blocks.at(iteration, warmup)
        flow = self._rounds.run(carry, drawn, at, self._arrays, self._carrier)
        return flow, self._recorded_here

    @property
    def _recorded_here(self) -> np.ndarray:
        """(chains,): does this rank have a share in their draws? Not of travelling chains."""
        every = self.root or self.program.algorithm.draws.node is not None
        return np.full(self.layout.chains, every)

    def site_not_finite(self, carry: Carry, at: int, warmup: int, chain: int) -> str | None:
        """The first site whose message of round ``at`` is not finite in this chain."""
        lost_here: list[np.ndarray] = []
        if self._travel is not None:
            self._visiting = self._travel.here(at, warmup)
            lost_here.append(self._travel.not_finite(carry, at, warmup, self._arrays))
        elif self._rounds is not None:
            drawn, place = self._blocks.at(at, warmup)

            def note(outbox: PyTree) -> None:
                lost_here.append(~np.asarray(self._own.outbox_finite(outbox, None)))

            self._rounds.run(carry, drawn, place, self._arrays, self._carrier, note)
        for own in lost_here:
            lost = self._of_all(own.astype(np.int32))
            if lost[:, chain].any():
                return self.names[int(np.flatnonzero(lost[:, chain])[0])]
        return None

    # --- what the caller sees ---------------------------------------------------------------------

    def agree(self, value: float) -> float:
        """Rank 0's value, at every rank: whatever hangs on a clock must be the same everywhere."""
        return float(self._communicator.from_root(np.array([value], np.float64))[0])

    def buffers(self, carry: Carry) -> Buffers:
        """Empty buffers for this rank's part of the draws of one chunk."""
        if self._shapes is None:
            self._shapes = jax.eval_shape(self.program.yielded, *self._whole())
        shapes, count = self._shapes, len(self._places.own)

        def own(leaf: Any) -> Any:
            return jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype)

        cut = shapes._replace(
            agents=None if shapes.agents is None else own(shapes.agents),
            node_info=jax.tree.map(own, shapes.node_info),
        )
        return empty_buffers(cut, self.layout, self.draws_per_iteration)

    def collected(self, buffers: Buffers) -> Any:
        """The draws of all ranks, at rank 0; elsewhere this rank's part."""
        whole = self._communicator.total_at_root

        def nodes(part: Any) -> Any:
            part = np.asarray(part)
            padded = np.zeros((part.shape[0], self._places.nodes, *part.shape[2:]), part.dtype)
            padded[:, self._places.own] = part
            return whole(padded)

        draws = whole(np.asarray(buffers.draws))
        agents = None if buffers.agents is None else nodes(buffers.agents)
        info = {name: nodes(part) for name, part in buffers.node_info.items()}
        if draws is None:
            return buffers
        return Buffers(jnp.asarray(draws), agents, buffers.hub_info, info)

    def position(self, carry: Carry, chain: int) -> np.ndarray:
        """What a chain draws in this state, (d,); the last of several draws."""
        draw = np.asarray(self._own.draw(carry))
        draw = draw.reshape(self.layout.chains, -1, draw.shape[-1])[chain, -1]
        if self._travel is not None:  # only where the chain is has it moved
            return self._communicator.total(np.where(self._visiting[chain], draw, 0))
        if self.program.algorithm.draws.node is not None:
            share = len(self._places.own) / self._places.nodes
            return self._communicator.total(draw * share)
        return draw

    @property
    def fitted(self) -> Any:
        """What the ``fit`` phases left at all sites, node axis first; () without such phases."""
        return jax.tree.map(self._of_all, self._arrays.fitted)

    def site(self, name: str) -> Site | None:
        """Return one site of this rank; None if another rank holds it."""
        node = self.names.index(name) - int(self._places.own[0])
        if node not in range(len(self._places.own)):
            return None
        return self._arrays.site(node, node + int(self._places.own[0]))

    def traffic(self, carry: Carry) -> tuple[int, int, int]:
        """Return (communication rounds, bytes up, bytes down) of one iteration of all chains."""
        return self.program.traffic(*self._whole())

    @property
    def where(self) -> list[str]:
        """Which rank holds which sites, one line each."""
        return self._places.told(self.names, self._communicator.processes)

    # --- helpers ----------------------------------------------------------------------------------

    def _of_all(self, own: Any) -> np.ndarray:
        """Of every node, node axis first, from every rank's own."""
        own = np.asarray(own)
        padded = np.zeros((self._places.nodes, *own.shape[1:]), own.dtype)
        padded[self._places.own] = own
        return self._communicator.total(padded)

    def _mine(self, whole: Any) -> Any:
        """This rank's part of what has a node axis first."""
        return whole[self._places.own]

    def _everywhere(self, leaf: Any) -> Any:
        """The shape for all nodes of what has a node axis first."""
        return jax.ShapeDtypeStruct((self._places.nodes, *leaf.shape[1:]), leaf.dtype)

    def _of_travellers(self, part: Any) -> np.ndarray:
        """Of every chain, from the rank where it is."""
        part = np.asarray(part)
        here = self._visiting if self.layout.chains > 1 else bool(self._visiting[0])
        shaped = np.reshape(here, np.shape(here) + (1,) * (part.ndim - np.ndim(here)))
        return self._communicator.total(np.where(shaped, part, np.zeros_like(part)))

    def _whole(self) -> tuple[Carry, SiteArrays, Any]:
        keys = jax.eval_shape(lambda: self.program.keys(random.base_key(0)))
        return *self._abstract(), keys

    def _abstract(self) -> tuple[Carry, SiteArrays]:
        """Shapes of the carry and the arrays of all nodes in one process."""
        arrays = jax.tree.map(self._everywhere, self._arrays)
        chains = () if self.layout.chains == 1 else (self.layout.chains,)
        position = jax.ShapeDtypeStruct((*chains, self._dimension), jnp.result_type(float))
        carry = jax.eval_shape(lambda position: self.program.start(position, 1), position)
        if self.program.algorithm.setup:
            carry = jax.eval_shape(
                self.program.setup, arrays, jax.ShapeDtypeStruct((2,), jnp.uint32), carry
            )
        return carry, arrays
