"""Chains that travel between ranks: each visit is computed where the site is, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np

from consortia.core.contract import Phase
from consortia.engines import rng
from consortia.engines.buffers import Buffers, Window
from consortia.engines.contract import Begin, named
from consortia.engines.mpi.run import MPIRun
from consortia.engines.mpi.wire import Wire
from consortia.engines.phases import Carry, Keys, Program, SiteArrays
from consortia.engines.rng import PhaseRandomness
from consortia.runtime.late import Array, PyTree, jax, jnp


class TravellingRun(MPIRun):
    """The run of an algorithm whose only phase has a `consortia.core.contract.Route`.

    A chain's hub state and inbox are at the rank that holds the site it visits next; the places of
    the other chains there are left as they are, and are not looked at.

    Args:
        weights: w_c of all sites; as of `MPIRun` are the others.
    """

    def __init__(self, *arguments: Any, weights: np.ndarray) -> None:
        super().__init__(*arguments)
        phases = self.program.algorithm.phases
        if len(phases) > 1:
            raise TypeError("over MPI a phase with a Route must be the only one")
        self._phase: Phase = phases[0]
        self._weights = jnp.asarray(weights, jnp.result_type(float))
        self._one = self.layout.chains == 1
        self._visiting = np.full(self.layout.chains, self.root)
        self._block: tuple[int, int] | None = None
        self._randomness: tuple[PhaseRandomness, ...] = ()
        self._route: Keys = ()
        self._draw = jax.jit(self._of_block)
        self._visit = jax.jit(self._visited)
        self._take = jax.jit(self._taken)
        self._put = jax.jit(self._placed)
        self._record = jax.jit(self._recorded, donate_argnums=0)
        self._finite = jax.jit(self.program.draws_finite)

    # --- where the chains are ---------------------------------------------------------------------

    def _begin(self, begin: Begin) -> tuple[Any, int]:
        # Where a chain goes next, and by which random numbers, every rank must know.
        base, ring = super()._begin(begin)
        phases, layout = self.program.algorithm.phases, self.layout
        self._route = jax.device_put(rng.stage_keys(phases, rng.ROUND, base, layout))
        self._block = None
        return base, ring

    def _at(self, iteration: int, warmup: int) -> tuple[PhaseRandomness, int]:
        """Return the randomness of the block in which an iteration stands, and its offset there."""
        index, offset = divmod(iteration, self.layout.block)
        if self._block != (index, warmup):
            start = np.int32(index * self.layout.block)
            self._randomness = self._draw(self._route, start, np.int32(warmup))
            self._block = index, warmup
        return self._randomness[0], offset

    def _of_block(self, keys: Keys, first: Array, warmup: Array) -> tuple[PhaseRandomness, ...]:
        source = rng.Source(self.layout, self._weights)
        begin = rng.Counter(first, warmup)
        return rng.block_randomness(self.program.algorithm.phases, keys, begin, source)

    def _visits(self, iteration: int, warmup: int) -> np.ndarray:
        """Return the site that each chain visits in an iteration, (chains,)."""
        drawn, offset = self._at(iteration, warmup)
        return np.atleast_1d(np.asarray(drawn.visited)[offset])

    def _owners(self, iteration: int, warmup: int) -> np.ndarray:
        """Return the rank that holds the site of each chain's visit, (chains,)."""
        return self._places.owner(self._visits(iteration, warmup))

    # --- rounds -----------------------------------------------------------------------------------

    def advance(self, carry: Carry, buffers: Buffers, window: Window) -> Any:
        """Run the rounds of a window; return (carry, buffers, finite (chains,))."""
        warmup = int(window.warmup)
        for iteration in range(int(window.first), int(window.stop)):
            carry = self._iterate(carry, iteration, warmup)
            recorded_at = np.array([iteration - warmup, window.origin, window.thin], np.int32)
            here = self._owners(iteration, warmup) == self._places.rank
            buffers = self._record(buffers, carry, recorded_at, here)
            carry = self._depart(carry, iteration, warmup)
        lost = ~np.asarray(self._finite(carry))
        self._visiting = self._owners(int(window.stop), warmup) == self._places.rank
        lost &= self._visiting
        return carry, buffers, self._communicator.total(lost.astype(np.int32)) == 0

    def _iterate(self, carry: Carry, iteration: int, warmup: int) -> Carry:
        """Return the carry after all visits of an iteration at this rank's sites."""
        visits = self._visits(iteration, warmup)
        drawn, offset = self._at(iteration, warmup)
        for chain in np.flatnonzero(self._places.owner(visits) == self._places.rank):
            node = visits[chain] - self._places.own[0]
            visit = np.array([offset, chain, node], np.int32)
            carry = self._visit(carry, drawn, visit, self._arrays)
        return carry

    def _depart(self, carry: Carry, iteration: int, warmup: int) -> Carry:
        """Send away the chains whose next visit is elsewhere, and take in those that come."""
        now, then = self._owners(iteration, warmup), self._owners(iteration + 1, warmup)
        rank, requests = self._places.rank, []
        for chain in np.flatnonzero((now == rank) & (then != rank)):
            packed = self._take(carry, np.int32(chain))
            requests += self._communicator.send(packed, int(then[chain]), int(chain))
        for chain in np.flatnonzero((now != rank) & (then == rank)):
            forms = jax.eval_shape(self._taken, carry, jnp.int32(0))
            packed = [np.empty(part.shape, part.dtype) for part in forms]
            self._communicator.receive(packed, int(now[chain]), int(chain))
            carry = self._put(carry, tuple(packed), np.int32(chain))
        self._communicator.finish(requests, "a chain to arrive")
        return carry

    def _outboxes_finite(self, carry: Carry, at: int, warmup: int) -> list[np.ndarray]:
        """Test the result of each chain's visit for finite values, (nodes, chains)."""
        visits = self._visits(at, warmup)
        self._visiting = self._places.owner(visits) == self._places.rank
        after = self._iterate(carry, at, warmup)
        lost = np.zeros((len(self._places.own), self.layout.chains), np.int32)
        for chain in np.flatnonzero(self._visiting):
            packed = self._take(after, np.int32(chain))
            finite = all(np.isfinite(np.asarray(part)).all() for part in packed)
            lost[visits[chain] - self._places.own[0], chain] = not finite
        return [self._of_all(lost) == 0]

    # --- what the caller sees ---------------------------------------------------------------------

    def state(self, carry: Carry) -> dict[str, np.ndarray]:
        """Return the carry and what ``fit`` left, of all nodes; all ranks call it."""
        node = jax.tree.map(self._of_all, carry.node)
        hub, inbox = jax.tree.map(self._of_travellers, (carry.hub, carry.inbox))
        return named(Carry(node, hub, inbox), "carry") | named(self.fitted, "fitted")

    def _of_travellers(self, part: Any) -> np.ndarray:
        """Return every chain's, from the rank where it is."""
        part = np.asarray(part)
        here = bool(self._visiting[0]) if self._one else self._visiting
        shaped = np.reshape(here, np.shape(here) + (1,) * (part.ndim - np.ndim(here)))
        return self._communicator.total(np.where(shaped, part, np.zeros_like(part)))

    def positions(self, carry: Carry) -> np.ndarray:
        """Return the draws of all chains in this state, (chains, d), from their ranks."""
        draw = np.asarray(self.program.draw(carry))
        positions = draw.reshape(self.layout.chains, -1, draw.shape[-1])[:, -1]
        return self._communicator.total(np.where(np.reshape(self._visiting, (-1, 1)), positions, 0))

    # --- compiled ---------------------------------------------------------------------------------

    def _recorded(self, buffers: Buffers, carry: Carry, at: Array, here: Array) -> Buffers:
        """Record; ``at``: iteration after the warm-up, origin, thin, (3,); ``here``: (chains,)."""
        made = self.program.made(carry, {}, {})
        present = here[0] if self._one else here.reshape((-1,) + (1,) * (made.draw.ndim - 1))
        made = made._replace(draw=jnp.where(present, made.draw, 0))
        return Program.record(self.program, buffers, made, at[0], Window(0, 0, at[1], at[2], 0))

    def _visited(
        self, carry: Carry, drawn: PhaseRandomness, visit: Array, arrays: SiteArrays
    ) -> Carry:
        """Do one visit; ``visit``: offset in the block, chain, own node; int32 (3,)."""
        offset, chain, node = visit
        here = jax.tree.map(lambda leaf: leaf[offset], drawn)
        inbox = jax.tree.map(lambda leaf: self._of(leaf, chain), carry.inbox)
        number = node + int(self._places.own[0])
        node_state, reply = self.program.visit_of_chain(
            self._phase, here, chain, node, number, carry.node, inbox, arrays
        )
        hub = self._phase.hub
        hub_state = carry.hub
        if hub is not None:
            chain_state = jax.tree.map(lambda leaf: self._of(leaf, chain), carry.hub)
            shared = jax.tree.map(lambda leaf: self._of(leaf, chain), here.shared)
            new, reply, _ = hub(shared, chain_state, reply)
            hub_state = self._with(carry.hub, new, chain)
        return Carry(node_state, hub_state, self._with(carry.inbox, reply, chain))

    def _of(self, leaf: Array, chain: Array) -> Array:
        return leaf if self._one else leaf[chain]

    def _with(self, tree: PyTree, value: PyTree, chain: Array) -> PyTree:
        if self._one:
            return value
        return jax.tree.map(lambda leaf, updated: leaf.at[chain].set(updated), tree, value)

    def _taken(self, carry: Carry, chain: Array) -> tuple[Array, ...]:
        tree = jax.tree.map(lambda leaf: self._of(leaf, chain)[None], (carry.hub, carry.inbox))
        return Wire.of(tree).pack(tree)

    def _placed(self, carry: Carry, packed: tuple[Array, ...], chain: Array) -> Carry:
        like = jax.tree.map(lambda leaf: self._of(leaf, chain)[None], (carry.hub, carry.inbox))
        hub, inbox = jax.tree.map(lambda leaf: leaf[0], Wire.of(like).unpack(packed))
        return Carry(
            carry.node, self._with(carry.hub, hub, chain), self._with(carry.inbox, inbox, chain)
        )
