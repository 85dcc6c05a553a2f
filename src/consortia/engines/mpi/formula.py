"""What the workers and servers of an asynchronous run compute, for the chains of one server."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core import random
from consortia.core.contract import Mailbox, Phase
from consortia.engines import rng
from consortia.engines.buffers import Buffers, Window, Yield, empty_buffers
from consortia.engines.mpi.wire import Packed, Wire
from consortia.engines.phases import Carry, Iteration, SiteArrays
from consortia.engines.rng import Layout, PhaseKeys

Array = jax.Array
PyTree = Any


class AsyncKernels:
    """What a worker and a server compute, for the chains of one server.

    Args:
        own: the functions, laid out for one node and the chains of one server.
        server: number of the server.
        mailbox: the exchange.

    Attributes:
        chains: of each server.
    """

    def __init__(self, own: Iteration, server: int, mailbox: Mailbox) -> None:
        (phase,) = own.algorithm.phases
        if phase.local is None or phase.hub is None:
            raise TypeError("a phase with a Mailbox needs a local function and a hub")
        self._phase: Phase = phase
        self._own, self._server, self._mailbox = own, server, mailbox
        self.chains = own.layout.chains

    def keys(self, base: np.ndarray, worker: int) -> PhaseKeys:
        """The keys of this server's chains, of what is private those of one worker."""
        total = self.chains * self._mailbox.servers
        layout = Layout(1, total, False, 1, 1)
        (keys,) = rng.stage_keys(self._own.algorithm.phases, rng.ROUND, jnp.asarray(base), layout)
        shared, private = keys.shared, keys.private[worker]
        if total == 1:
            return PhaseKeys(shared, private)
        first = self._server * self.chains
        here = slice(first, first + self.chains) if self.chains > 1 else first
        return PhaseKeys(shared[here], private[here])

    def wires(self, carry: Carry, arrays: SiteArrays) -> tuple[Wire, Wire]:
        """The forms of a gradient and of a reply."""

        def rows(carry: Carry, keys: PhaseKeys, at: Array, arrays: SiteArrays) -> Any:
            _, outbox = self._sent(carry.node, carry.inbox, keys, at, arrays)
            return self._row(outbox), self._row(carry.inbox)

        keys = jax.eval_shape(lambda: self.keys(random.base_key(0), 0))
        at = jax.ShapeDtypeStruct((3,), jnp.int32)
        gradient, reply = jax.eval_shape(rows, carry, keys, at, arrays)
        return Wire.of(gradient), Wire.of(reply)

    # --- at a worker ------------------------------------------------------------------------------

    def computed(
        self, state: PyTree, reply: Packed, keys: PhaseKeys, at: Array, arrays: SiteArrays
    ) -> tuple[PyTree, Packed]:
        """The next state and the packed message; ``at``: task, warm-up, number of the site."""
        inbox = self._unrow(self.reply_wire.unpack(reply))
        state, outbox = self._sent(state, inbox, keys, at, arrays)
        row = self._row(outbox)
        return state, Wire.of(row).pack(row)

    def _sent(
        self, state: PyTree, inbox: PyTree, keys: PhaseKeys, at: Array, arrays: SiteArrays
    ) -> tuple[PyTree, PyTree]:
        phase, task, warmup = self._phase, at[0], at[1]
        site = arrays.site(0, at[2])

        def at_chain(key: Array, state: Any, inbox: Any) -> Any:
            noise = random.declared(phase.noise, key, task, warmup, None)
            assert phase.local is not None
            state, outbox, _ = phase.local(noise, (), state, inbox, site)
            return state, outbox

        return self._own.over_chains(at_chain)(keys.private, state, inbox)

    # --- at a server ------------------------------------------------------------------------------

    def updated(
        self, carry: Carry, buffers: Buffers, message: Packed, keys: PhaseKeys, at: Array
    ) -> tuple[Carry, Buffers, Packed, Array]:
        """One update: ``at`` is its number, the warm-up, and origin and thinning of the buffers."""
        carry, made = self._after(carry, message, keys, at)
        window = Window(0, 0, at[2], at[3], at[1])
        buffers = self._own.record(buffers, made, at[0] - at[1], window)
        packed = self.reply_wire.pack(self._row(carry.inbox))
        return carry, buffers, packed, self._own.draws_finite(carry)

    def _after(
        self, carry: Carry, message: Packed, keys: PhaseKeys, at: Array
    ) -> tuple[Carry, Yield]:
        """The carry after an update, and what it yields."""
        update, warmup = at[0], at[1]

        def of_chain(key: Array, hub: Any, message: Any) -> Any:
            def declare(rng: random.RandomStreams) -> PyTree:
                rng.server = jnp.int32(self._server)
                return self._phase.shared(rng)

            shared = random.declared(declare, key, update, warmup, None)
            assert self._phase.hub is not None
            return self._phase.hub(shared, hub, message)

        arrived = self._unrow(self.gradient_wire.unpack(message))
        hub, reply, info = self._own.over_chains(of_chain)(keys.shared, carry.hub, arrived)
        carry = Carry(carry.node, hub, reply)
        return carry, self._own.made(carry, {}, dict(info))

    def empty_buffers(self, carry: Carry, keys: PhaseKeys) -> Buffers:
        """Buffers for one chunk of this server's chains."""
        message = [jax.ShapeDtypeStruct(*form) for form in self.gradient_wire.arrays(1)]
        at = jax.ShapeDtypeStruct((4,), jnp.int32)
        _, made = jax.eval_shape(self._after, carry, tuple(message), keys, at)
        return empty_buffers(made, self._own.layout, 1)

    def fix(self, gradient: Wire, reply: Wire) -> None:
        """The forms of the two kinds of message."""
        self.gradient_wire, self.reply_wire = gradient, reply

    def _row(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)

    def _unrow(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[0], tree)
