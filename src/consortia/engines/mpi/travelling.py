"""Chains that travel between ranks: each visit is computed where the site is, and nowhere else."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core.contract import Phase
from consortia.engines.mpi.communicator import Communicator
from consortia.engines.mpi.pieces import Blocks, Flow
from consortia.engines.mpi.placement import Places
from consortia.engines.mpi.wire import Wire
from consortia.engines.phases import Carry, Iteration, SiteArrays

Array = jax.Array
PyTree = Any


class Travel:
    """The iteration of an algorithm whose only phase has a `consortia.core.contract.Route`.

    A chain's hub state and inbox are at the rank that holds the site it visits next; the places of
    the other chains there are left as they are, and are not looked at.

    Args:
        own: the functions of this rank's nodes.
        phases: of an iteration.
        blocks: random numbers, in which the visits are.
        communicator: the ranks.
        places: which of them holds what.
    """

    def __init__(
        self,
        own: Iteration,
        phases: tuple[Phase, ...],
        blocks: Blocks,
        communicator: Communicator,
        places: Places,
    ) -> None:
        if len(phases) > 1:
            raise TypeError("over MPI a phase with a Route must be the only one")
        (self._phase,) = phases
        self._own, self._blocks = own, blocks
        self._communicator, self._places = communicator, places
        self._chains = own.layout.chains
        self._visit = jax.jit(self._one_visit)
        self._take = jax.jit(self._taken)
        self._put = jax.jit(self._placed)
        self._wire: Wire | None = None

    def visits(self, iteration: int, warmup: int) -> np.ndarray:
        """The site that each chain visits in an iteration, (chains,)."""
        drawn, at = self._blocks.at(iteration, warmup)
        return np.atleast_1d(np.asarray(drawn[0].visited)[at.offset])

    def here(self, iteration: int, warmup: int) -> np.ndarray:
        """(chains,): does this rank hold the site of the visit?"""
        return self._places.owner(self.visits(iteration, warmup)) == self._places.rank

    def visit(
        self, carry: Carry, iteration: int, warmup: int, arrays: SiteArrays
    ) -> tuple[Flow, np.ndarray]:
        """All visits of an iteration at this rank's sites, and which chains they are of."""
        visits = self.visits(iteration, warmup)
        here = self._places.owner(visits) == self._places.rank
        drawn, at = self._blocks.at(iteration, warmup)
        for chain in np.flatnonzero(here):
            node = visits[chain] - self._places.own[0]
            place = np.array([at.offset, chain, node], np.int32)
            carry = self._visit(carry, drawn[0], place, arrays)
        return Flow(carry, (), (), {}, {}), here

    def depart(self, carry: Carry, iteration: int, warmup: int) -> Carry:
        """Sends away the chains whose next visit is elsewhere, and takes in those that come."""
        now = self._places.owner(self.visits(iteration, warmup))
        then = self._places.owner(self.visits(iteration + 1, warmup))
        rank, requests = self._places.rank, []
        for chain in np.flatnonzero((now == rank) & (then != rank)):
            packed = self._take(carry, np.int32(chain))
            requests += self._communicator.send(packed, int(then[chain]), int(chain))
        for chain in np.flatnonzero((now != rank) & (then == rank)):
            packed = [np.empty(part.shape, part.dtype) for part in self._like(carry)]
            self._communicator.receive(packed, int(now[chain]), int(chain))
            carry = self._put(carry, tuple(packed), np.int32(chain))
        self._communicator.finish(requests, "a chain to arrive")
        return carry

    def not_finite(
        self, carry: Carry, iteration: int, warmup: int, arrays: SiteArrays
    ) -> np.ndarray:
        """(own nodes, chains): is what a chain takes away from here not finite?"""
        visits = self.visits(iteration, warmup)
        flow, here = self.visit(carry, iteration, warmup, arrays)
        result = np.zeros((len(self._places.own), self._chains), bool)
        for chain in np.flatnonzero(here):
            packed = self._take(flow.carry, np.int32(chain))
            lost = any(not np.isfinite(np.asarray(part)).all() for part in packed)
            result[visits[chain] - self._places.own[0], chain] = lost
        return result

    # --- compiled -------------------------------------------------------------------------------

    def _one_visit(self, carry: Carry, drawn: Any, place: Array, arrays: SiteArrays) -> Carry:
        """``place``: offset in the block, chain, own node; int32 (3,)."""
        offset, chain, node = place
        local, hub = self._phase.local, self._phase.hub
        if local is None:
            raise TypeError("a phase with a Route needs a local function")
        noise, shared = jax.tree.map(
            lambda leaf: self._of(leaf[offset], chain), (drawn.noise, drawn.shared)
        )
        site = arrays.site(node, node + int(self._places.own[0]))
        at_node = (node,) if self._chains == 1 else (node, chain)
        state = jax.tree.map(lambda leaf: leaf[at_node], carry.node)
        inbox = jax.tree.map(lambda leaf: self._of(leaf, chain), carry.inbox)
        state, reply, _ = local(noise, shared, state, inbox, site)
        hub_state = carry.hub
        if hub is not None:
            own = jax.tree.map(lambda leaf: self._of(leaf, chain), carry.hub)
            new, reply, _ = hub(shared, own, reply)
            hub_state = self._with(carry.hub, new, chain)
        node_state = jax.tree.map(
            lambda leaf, value: leaf.at[at_node].set(value), carry.node, state
        )
        return Carry(node_state, hub_state, self._with(carry.inbox, reply, chain))

    def _of(self, leaf: Array, chain: Array) -> Array:
        return leaf if self._chains == 1 else leaf[chain]

    def _with(self, tree: PyTree, value: PyTree, chain: Array) -> PyTree:
        if self._chains == 1:
            return value
        return jax.tree.map(lambda leaf, one: leaf.at[chain].set(one), tree, value)

    def _taken(self, carry: Carry, chain: Array) -> tuple[Array, ...]:
        tree = jax.tree.map(lambda leaf: self._of(leaf, chain)[None], (carry.hub, carry.inbox))
        return Wire.of(tree).pack(tree)

    def _placed(self, carry: Carry, packed: tuple[Array, ...], chain: Array) -> Carry:
        like = jax.tree.map(lambda leaf: self._of(leaf, chain)[None], (carry.hub, carry.inbox))
        arrived = Wire.of(like).unpack(packed)
        hub, inbox = jax.tree.map(lambda leaf: leaf[0], arrived)
        return Carry(
            carry.node, self._with(carry.hub, hub, chain), self._with(carry.inbox, inbox, chain)
        )

    def _like(self, carry: Carry) -> tuple[Any, ...]:
        return jax.eval_shape(self._taken, carry, jnp.int32(0))
