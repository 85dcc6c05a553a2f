"""A run over MPI ranks: each holds some sites and computes what concerns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.contract import Site
from consortia.data.sites import Sites
from consortia.engines.buffers import Buffers, Window, infos_at, with_infos
from consortia.engines.contract import Begin, from_names, named
from consortia.engines.mpi.callback import raised
from consortia.engines.mpi.communicator import Communicator
from consortia.engines.mpi.placement import Places
from consortia.engines.mpi.program import RankProgram
from consortia.engines.phases import Carry, SiteArrays
from consortia.engines.rng import Layout
from consortia.engines.run import LocalRun
from consortia.runtime.late import Array, PyTree, jax, jnp


class MPIRun(LocalRun):
    """One algorithm on one set of sites, as one rank sees it."""

    program: RankProgram

    def __init__(
        self,
        program: RankProgram,
        arrays: SiteArrays,
        sites: Sites,
        whole: Layout,
        communicator: Communicator,
        places: Places,
    ) -> None:
        super().__init__(program, sites, arrays)
        self.layout = whole
        self.root = communicator.rank == 0
        self._communicator, self._places = communicator, places

    # --- before the first round -------------------------------------------------------------------

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, (nodes, chains)."""
        prior, values, finite = super().start_values(positions)
        both = self._of_all(np.stack([np.asarray(values), np.asarray(finite)], axis=1))
        return prior, both[:, 0], both[:, 1] > 0

    def _started(self, begin: Begin) -> Carry:
        with raised(*self.program.callbacks.values()):
            return jax.block_until_ready(super()._started(begin))

    # --- between two rounds, see `contract.named` ------------------------------------------------

    def state(self, carry: Carry) -> dict[str, np.ndarray]:
        """Return the carry and what ``fit`` left, of all nodes; all ranks call it."""
        whole = carry._replace(node=jax.tree.map(self._of_all, carry.node))
        if self.program.inbox_per_node:
            whole = whole._replace(inbox=jax.tree.map(self._of_all, carry.inbox))
        return named(whole, "carry") | named(self.fitted, "fitted")

    def _fitted_of(self, state: Mapping[str, np.ndarray], shapes: PyTree) -> PyTree:
        whole = super()._fitted_of(state, jax.tree.map(self._everywhere, shapes))
        return jax.tree.map(self._mine, whole)

    def _carry_of(self, state: Mapping[str, np.ndarray], carry_here: Carry) -> Carry:
        shapes = carry_here._replace(node=jax.tree.map(self._everywhere, carry_here.node))
        if self.program.inbox_per_node:
            shapes = shapes._replace(inbox=jax.tree.map(self._everywhere, carry_here.inbox))
        whole = super()._carry_of(state, shapes)
        carry = whole._replace(node=jax.tree.map(self._mine, whole.node))
        if self.program.inbox_per_node:
            carry = carry._replace(inbox=jax.tree.map(self._mine, whole.inbox))
        return carry

    def block_in_progress(self, buffers: Buffers, slot: int) -> dict[str, np.ndarray]:
        """Return the record so far of a block of thinned rounds, of all nodes."""
        hub, node = infos_at(buffers, slot)
        return named((hub, jax.tree.map(self._of_all, node)), "block")

    def with_block(self, buffers: Buffers, block: Mapping[str, np.ndarray]) -> Buffers:
        """Return empty buffers that continue such a block, in their first slot."""
        hub, node = infos_at(buffers, 0)
        hub, node = from_names(block, (hub, jax.tree.map(self._everywhere, node)), "block")
        return with_infos(buffers, (hub, jax.tree.map(self._mine, node)))

    # --- rounds -----------------------------------------------------------------------------------

    def advance(self, carry: Carry, buffers: Buffers, window: Window) -> Any:
        """Run the rounds of a window; return (carry, buffers, finite (chains,)).

        Raises:
            RankError: another rank failed, or did not answer in time.
        """
        with raised(*self.program.callbacks.values()):
            carry, buffers, finite = super().advance(carry, buffers, window)
            lost = ~np.asarray(finite)
        return carry, buffers, self._communicator.total(lost.astype(np.int32)) == 0

    def _outboxes_finite(self, carry: Carry, at: int, warmup: int) -> list[np.ndarray]:
        with raised(*self.program.callbacks.values()):
            phases = super()._outboxes_finite(carry, at, warmup)
            lost = [(~np.asarray(phase)).astype(np.int32) for phase in phases]
        return [self._of_all(phase) == 0 for phase in lost]

    # --- what the caller sees ---------------------------------------------------------------------

    def agree(self, value: float) -> float:
        """Return rank 0's value, at every rank."""
        return float(self._communicator.from_root(np.array([value], np.float64))[0])

    def collected(self, buffers: Buffers) -> Buffers:
        """Return the draws of all ranks, at rank 0; elsewhere this rank's part."""
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

    def positions(self, carry: Carry) -> np.ndarray:
        """Return the draws of all chains in this state, (chains, d); the last of several draws."""
        draws = super().positions(carry)
        if self.program.algorithm.draws.node is None:
            return draws
        return self._communicator.total(draws * (len(self._places.own) / self._places.nodes))

    @property
    def fitted(self) -> PyTree:
        """Results of ``fit`` at all sites, node axis first; () without such phases."""
        return jax.tree.map(self._of_all, self._arrays.fitted)

    def site(self, name: str) -> Site | None:
        """Return one site of this rank; None if another rank holds it."""
        node = self.names.index(name) - int(self._places.own[0])
        if node not in range(len(self._places.own)):
            return None
        return self._arrays.site(node, node + int(self._places.own[0]))

    def gradients(self, target: Any) -> None:
        """Return None: the rows of other sites are at other ranks."""

    @property
    def where(self) -> list[str]:
        """Sites of each rank, one line each."""
        return self._places.lines(self.names, self._communicator.processes)

    # --- helpers ----------------------------------------------------------------------------------

    def _of_all(self, part: Any) -> np.ndarray:
        """Return every node's, node axis first, from every rank's own."""
        part = np.asarray(part)
        padded = np.zeros((self._places.nodes, *part.shape[1:]), part.dtype)
        padded[self._places.own] = part
        return self._communicator.total(padded)

    def _mine(self, whole: Any) -> Any:
        """Return this rank's part of what has a node axis first."""
        return whole[self._places.own]

    def _everywhere(self, leaf: Any) -> Any:
        """Return the shape for all nodes of what has a node axis first."""
        return jax.ShapeDtypeStruct((self._places.nodes, *leaf.shape[1:]), leaf.dtype)
