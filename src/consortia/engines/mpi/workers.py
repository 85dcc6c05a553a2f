"""Truly asynchronous runs: workers send gradients when they have them, servers answer each alone.

Ranks 0 … S − 1 are the servers, rank S + sW + w is worker w of server s. What crosses the network
is packed, see `consortia.engines.mpi.wire`; a server knows which version each worker holds, since
it has sent it, so that messages carry nothing else. The order in which gradients arrived is kept:
`consortia.latency.recorded` replays it in one process, with the same draws up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from consortia.core import random
from consortia.core.contract import Mailbox, Phase
from consortia.engines import rng
from consortia.engines.buffers import Buffers, Window, Yield, empty_buffers
from consortia.engines.mpi.callback import HostCallback, raised
from consortia.engines.mpi.communicator import Communicator
from consortia.engines.mpi.wire import Packed, Wire
from consortia.engines.phases import Carry, Iteration, SiteArrays
from consortia.engines.rng import Layout, PhaseKeys
from consortia.errors import RankError
from consortia.runtime.late import Array, PyTree, jax, jnp
from consortia.schedules.events import LEAST_SHARE

GRADIENT, REPLY, TASK, END = 100, 200, 300, 400
"""Tags; TASK is the number of a worker's next task, where it is not one more than the last."""

ENOUGH = 50
"""Updates for each worker after which a share that is too small ends the run."""


class AsyncKernels:
    """Computations of a worker and a server, for the chains of one server.

    Attributes:
        chains: of each server.
    """

    def __init__(self, iteration: Iteration, server: int, mailbox: Mailbox) -> None:
        (phase,) = iteration.algorithm.phases
        if phase.local is None or phase.hub is None:
            raise TypeError("a phase with a Mailbox needs a local function and a hub")
        self._phase: Phase = phase
        self._own, self._server, self._mailbox = iteration, server, mailbox
        self.chains = iteration.layout.chains

    def keys(self, base: np.ndarray, worker: int) -> PhaseKeys:
        """Return the keys of this server's chains, of what is private those of one worker."""
        total = self.chains * self._mailbox.servers
        layout = Layout(1, total, False, 1, 1)
        (keys,) = rng.stage_keys(self._own.algorithm.phases, rng.ROUND, base, layout)
        shared, private = keys.shared, keys.private[worker]
        if total == 1:
            return PhaseKeys(shared, private)
        first = self._server * self.chains
        here = slice(first, first + self.chains) if self.chains > 1 else first
        return PhaseKeys(shared[here], private[here])

    def fix(self, carry: Carry, arrays: SiteArrays) -> None:
        """Set the forms of a gradient and of a reply."""

        def rows(carry: Carry, keys: PhaseKeys, at: Array, arrays: SiteArrays) -> Any:
            _, outbox = self._sent(carry.node, carry.inbox, keys, at, arrays)
            return self._row(outbox), self._row(carry.inbox)

        keys = self.keys(random.base_key(0), 0)
        at = jax.ShapeDtypeStruct((3,), jnp.int32)
        gradient, reply = jax.eval_shape(rows, carry, keys, at, arrays)
        self.gradient_wire, self.reply_wire = Wire.of(gradient), Wire.of(reply)

    # --- at a worker ------------------------------------------------------------------------------

    def computed(
        self, state: PyTree, reply: Packed, keys: PhaseKeys, at: Array, arrays: SiteArrays
    ) -> tuple[PyTree, Packed]:
        """Return the next state and the packed message; ``at``: task, warm-up, site."""
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
        """Do one update; ``at``: its index, the warm-up, origin and thinning of the buffers."""
        carry, made = self._after(carry, message, keys, at)
        window = Window(0, 0, at[2], at[3], at[1])
        buffers = self._own.record(buffers, made, at[0] - at[1], window)
        return carry, buffers, self.reply(carry), self._own.draws_finite(carry)

    def reply(self, carry: Carry) -> Packed:
        """Return the packed reply in which a server's state comes to its workers."""
        return self.reply_wire.pack(self._row(carry.inbox))

    def _after(
        self, carry: Carry, message: Packed, keys: PhaseKeys, at: Array
    ) -> tuple[Carry, Yield]:
        """Return the carry after an update, and what it yields."""
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
        """Return buffers for one chunk of this server's chains."""
        message = [jax.ShapeDtypeStruct(*form) for form in self.gradient_wire.arrays(1)]
        at = jax.ShapeDtypeStruct((4,), jnp.int32)
        _, made = jax.eval_shape(self._after, carry, tuple(message), keys, at)
        return empty_buffers(made, self._own.layout, 1)

    def _row(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)

    def _unrow(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[0], tree)


class Worker:
    """One worker: fetches, computes, sends, until its server ends the run."""

    def __init__(
        self, kernels: AsyncKernels, communicator: Communicator, server: int, site: int
    ) -> None:
        self._kernels, self._communicator = kernels, communicator
        self._server, self._site = server, site
        self._task, self._ready = 0, False
        self._sent: list[Any] = []
        self._fetching = HostCallback(self._fetch)
        self._together = jax.jit(self._tasks)

    def serve(self, carry: Carry, keys: PhaseKeys, arrays: SiteArrays, warmup: int) -> None:
        """Process what the server sends until it says that the run has ended.

        Raises:
            RankError: the server says nothing for the deadline, or another rank has failed.
        """
        state = carry.node
        packed = tuple(np.zeros(*form) for form in self._kernels.gradient_wire.arrays(1))
        with raised(self._fetching):
            jax.block_until_ready(self._together(state, packed, keys, np.int32(warmup), arrays))

    def _tasks(
        self, state: PyTree, packed: Packed, keys: PhaseKeys, warmup: Array, arrays: SiteArrays
    ) -> PyTree:
        """Do all tasks, as one program."""
        forms = [jax.ShapeDtypeStruct((1,), jnp.int32)]
        forms += [jax.ShapeDtypeStruct(*form) for form in self._kernels.reply_wire.arrays(1)]

        def fetched(turn: Array, packed: Packed) -> tuple[Array, Array, Packed]:
            turn, (task, *reply) = self._fetching(turn, packed, forms)
            return turn, task[0], tuple(reply)

        def one(now: tuple[PyTree, Array, Array, Packed]) -> tuple[PyTree, Array, Array, Packed]:
            state, turn, task, reply = now
            at = jnp.stack([task, warmup, jnp.int32(self._site)])
            state, packed = self._kernels.computed(state, reply, keys, at, arrays)
            return state, *fetched(turn, packed)

        return jax.lax.while_loop(
            lambda now: now[2] >= 0, one, (state, *fetched(jnp.int32(0), packed))
        )[0]

    def _fetch(self, packed: list[np.ndarray], results: list[np.ndarray]) -> None:
        """Send the gradient of the last task; fetch the next task and reply, −1 at the end."""
        if self._ready:
            self._communicator.finish(self._sent, "the server to take a gradient")
            copies = [part.copy() for part in packed]
            self._sent = self._communicator.send(copies, self._server, GRADIENT)
            self._task += 1
        self._ready = True
        task, *reply = results
        while True:
            tag = self._communicator.next_tag(self._server)
            if tag == REPLY:
                task[0] = self._task
                self._communicator.receive(reply, self._server, tag)
                return
            self._communicator.receive([task], self._server, tag)
            if tag == END:
                task[0] = -1
                return
            self._task = int(task[0])


class Server:
    """One server and what it knows of its workers.

    Attributes:
        done: updates.
        versions: that the workers hold, (workers,).
        held: the packed replies that they hold.
        log: (worker, version, time) of every gradient that arrived, in order.
        lost: (update, chain of this server, worker) of the first draw that is not finite.
    """

    def __init__(
        self,
        kernels: AsyncKernels,
        communicator: Communicator,
        mailbox: Mailbox,
        ranks: list[int],
        names: list[str],
    ) -> None:
        self._kernels, self._communicator, self._mailbox = kernels, communicator, mailbox
        self._ranks, self._names = ranks, names
        self.versions = np.zeros(mailbox.workers, np.int64)
        self.done = 0
        self.log: list[tuple[int, int, float]] = []
        self.lost: tuple[int, int, int] | None = None
        self._began, self._begun = time.monotonic(), False
        self._heard = np.full(mailbox.workers, self._began)
        self._accepted = np.zeros(mailbox.workers, np.int64)
        self._sent: dict[int, list[Any]] = {}
        self.held: list[Packed] = []
        self._warmup = 0
        self._answering: int | None = None
        self._finite = (kernels.chains,)
        self._meeting = HostCallback(self._meet)
        self._together = jax.jit(self._updates, donate_argnums=1)

    def go_on(self, held: list[Packed], log: list[tuple[int, int, float]], warmup: int) -> None:
        """Resume where a run stands; the workers do their tasks in flight again."""
        cap = self._mailbox.max_staleness
        self.held, self.log = held, log
        for worker, version, _ in log:
            accepted = cap is None or self.done - version <= cap
            self.done += accepted
            self._accepted[worker] += accepted and self.done > warmup
            self.versions[worker] = self.done
        self._began -= log[-1][2] if log else 0.0

    def _begin(self, reply: Packed) -> None:
        """Send the first message to every worker."""
        self.held = self.held or [reply] * len(self._ranks)
        tasks = np.bincount([row[0] for row in self.log], minlength=len(self._ranks))
        for worker, rank in enumerate(self._ranks):
            word = self._communicator.send([np.array([tasks[worker]], np.int32)], rank, TASK)
            self._communicator.finish(word, f"worker {worker}")
            self._sent[worker] = self._communicator.send(self.held[worker], rank, REPLY)
        self._heard[:] = time.monotonic()
        self._begun = True

    def advance(self, carry: Carry, buffers: Buffers, keys: PhaseKeys, window: Window) -> Any:
        """Take gradients until update ``window.stop``: (carry, buffers, finite (chains,))."""
        finite = np.ones(self._kernels.chains, bool)
        if self.lost is not None:  # run again, to find where it was lost
            finite[self.lost[1]] = int(window.stop) <= self.lost[0]
            return carry, buffers, finite
        reply = self._kernels.reply(carry)
        if not self._begun:
            self._begin(reply)
        self._warmup = int(window.warmup)
        numbers = np.array([self.done, *window], np.int32)
        with raised(self._meeting):
            carry, buffers, reply, good = self._together(carry, buffers, reply, keys, numbers)
            finite = np.asarray(good)
        if self._answering is not None:
            worker, self._answering = self._answering, None
            self._answer(worker, reply)
            if not finite.all():
                self.lost = (self.done - 1, int(np.flatnonzero(~finite)[0]), worker)
        self._check_shares()
        return carry, buffers, finite

    def _updates(
        self, carry: Carry, buffers: Buffers, reply: Packed, keys: PhaseKeys, numbers: Array
    ) -> tuple[Carry, Buffers, Packed, Array]:
        """Do the updates of a window, as one program; ``numbers``: the first, and the window."""
        _, stop, origin, thin, warmup = numbers[1:]
        forms = [jax.ShapeDtypeStruct(*form) for form in self._kernels.gradient_wire.arrays(1)]

        def one(now: Any) -> Any:
            carry, buffers, reply, _, update, turn = now
            turn, message = self._meeting(turn, reply, forms)
            at = jnp.stack([update, warmup, origin, thin])
            made = self._kernels.updated(carry, buffers, message, keys, at)
            return *made, update + 1, turn

        start = carry, buffers, reply, jnp.ones(self._finite, bool), numbers[0], jnp.int32(0)
        return jax.lax.while_loop(lambda now: (now[4] < stop) & jnp.all(now[3]), one, start)[:4]

    def _meet(self, reply: list[np.ndarray], message: list[np.ndarray]) -> None:
        """Answer the worker of the last update, then take the next gradient that counts."""
        if self._answering is not None:
            self._answer(self._answering, reply)
        cap, self._answering = self._mailbox.max_staleness, None
        while True:
            worker = self._next()
            self._communicator.receive(message, self._ranks[worker], GRADIENT)
            version = int(self.versions[worker])
            self.log.append((worker, version, time.monotonic() - self._began))
            if cap is None or self.done - version <= cap:
                break
            self._answer(worker, reply)
        self.done += 1
        self._accepted[worker] += self.done > self._warmup
        self._answering = worker

    def _answer(self, worker: int, reply: Sequence[Any]) -> None:
        """Send a worker the latest reply."""
        self.versions[worker] = self.done
        self._communicator.finish(self._sent.pop(worker, []), f"worker {worker}")
        self.held[worker] = copies = tuple(np.array(part) for part in reply)
        self._sent[worker] = self._communicator.send(copies, self._ranks[worker], REPLY)

    def _next(self) -> int:
        """Return the worker whose gradient is next in the queue."""
        while True:
            source = self._communicator.source_of(GRADIENT)
            now = time.monotonic()
            if source is not None:
                worker = self._ranks.index(source)
                self._heard[worker] = now
                return worker
            late = np.flatnonzero(now - self._heard > self._communicator.deadline)
            if late.size:
                worker = int(late[0])
                raise RankError(
                    f"rank {self._ranks[worker]} ({self._names[worker]}) has not answered for "
                    f"{self._communicator.deadline:g} s: it is gone or far behind. The draws so "
                    "far are kept; raise MPIEngine(deadline=...) if it is only slow."
                )

    def _check_shares(self) -> None:
        """Refuse that a site sends too rarely where each worker holds its own."""
        total, workers = int(self._accepted.sum()), len(self._ranks)
        if len(set(self._names)) == 1 or total < ENOUGH * workers:
            return
        share = self._accepted / total
        worst = int(np.argmin(share))
        if share[worst] < LEAST_SHARE / workers:
            raise RankError(
                f"{self._names[worst]} (rank {self._ranks[worst]}) sends only {share[worst]:.2%} "
                "of the accepted updates: the chain would leave its data out. The draws so far are "
                "kept."
            )

    def end(self) -> None:
        """Take the gradient that each worker still sends, and lets it go."""
        message = [np.empty(*form) for form in self._kernels.gradient_wire.arrays(1)]
        for worker, rank in enumerate(self._ranks):
            if self._begun:
                self._communicator.receive(message, rank, GRADIENT)
            self._communicator.finish(self._sent.pop(worker, []), f"worker {worker}")
            word = self._communicator.send([np.zeros(1, np.int32)], rank, END)
            self._communicator.finish(word, f"worker {worker} to end")
