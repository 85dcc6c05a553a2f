"""A run of an asynchronous method over MPI, as one server or one worker sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core import random
from consortia.core.contract import Mailbox
from consortia.data.sites import Sites
from consortia.engines import mailbox as mailboxes
from consortia.engines.buffers import Buffers, Window, held_bytes, infos_at, with_infos
from consortia.engines.contract import Begin, Run, from_names, named
from consortia.engines.mpi.communicator import Communicator
from consortia.engines.mpi.workers import AsyncKernels, Server, Worker
from consortia.engines.phases import Carry, Program, SiteArrays
from consortia.engines.rng import PhaseKeys
from consortia.errors import InputError
from consortia.latency import Recorded, recorded
from consortia.runtime.late import Array, jax, jnp
from consortia.schedules.events import simulate


class AsynchronousRun(Run):
    """One asynchronous method on one set of sites, as one rank sees it.

    Args:
        whole: the program of all nodes; only its shapes are used, and its start values.
        arrays: the data of this worker's site; of a server, a row that has their shapes.
        sites: names and sizes of all sites.
        communicator: the ranks.
    """

    keys: PhaseKeys  # of the only phase, of this rank's chains, once the run is started
    servers: Communicator  # the servers by themselves, where this rank is one

    def __init__(
        self, whole: Program, arrays: SiteArrays, sites: Sites, communicator: Communicator
    ) -> None:
        if whole.mailbox is None:
            raise TypeError("an asynchronous run needs a Mailbox")
        super().__init__(whole, sites, arrays)
        self.root = communicator.rank == 0
        self._box, self._communicator = whole.mailbox, communicator
        self._place = place_of(self._box, communicator.rank)
        servers = communicator.among(self._box.servers)
        self.serves = servers is None
        if servers is not None:
            self.servers = servers
        layout = replace(self.layout, nodes=1, chains=self.layout.chains // self._box.servers)
        self._own = Program(whole.algorithm, layout, whole.start_values)
        self._kernels = AsyncKernels(self._own, self._place[0], self._box)
        self._server: Server | None = None
        self._warmup = 0

    # --- before the first round -------------------------------------------------------------------

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, (nodes, chains)."""
        prior, values, finite = self._own.start_values(self._arrays, positions)
        both = self._of_all(np.stack([np.asarray(values), np.asarray(finite)], axis=1))
        return prior, both[:, 0], both[:, 1] > 0

    def _started(self, begin: Begin) -> Carry:
        """Return the state of one server's chains before the next round."""
        server, worker = self._place
        chains = self._own.layout.chains
        here = begin.positions[server * chains : (server + 1) * chains]
        node, hub, inbox = self._own.over_chains(self.program.algorithm.init)(
            here[0] if chains == 1 else here
        )
        carry = Carry(node, hub, inbox)
        self._kernels.fix(carry, self._arrays)
        base = random.base_key(begin.seed)
        self.keys = self._kernels.keys(base, max(worker, 0))
        self._warmup = begin.warmup
        if not self.serves:
            ranks = [rank_of(self._box, server, w) for w in range(self._box.workers)]
            names = [self._site_of(w) for w in range(self._box.workers)]
            self._server = Server(self._kernels, self._communicator, self._box, ranks, names)
            if begin.state is not None:
                return self._taken_up(begin.state, carry)
        return carry

    def _site_of(self, worker: int) -> str:
        return self.names[worker if len(self.names) > 1 else 0]

    # --- between two updates, see `contract.named` ------------------------------------------------

    def state(self, carry: Carry) -> dict[str, np.ndarray]:
        """Return all servers' states, what their workers hold, and the log; servers call it."""
        server, box = self.server, self._box
        if jax.tree.leaves(carry.node):
            raise TypeError("over MPI the workers of a Mailbox have no state of their own")
        chains = {
            name: self._of_servers(value[None])
            for name, value in named((carry.hub, carry.inbox), "server").items()
        }
        reply = tuple(np.asarray(part) for part in self._kernels.reply(carry))
        held = server.held or [reply] * box.workers
        replies = {
            f"held[{kind}]": self._of_servers(np.concatenate(parts)[None])
            for kind, parts in zip(
                self._kernels.reply_wire.kinds, zip(*held, strict=True), strict=True
            )
        }
        log, lengths = self._log()
        return chains | replies | {"log": log, "lengths": lengths}

    def _taken_up(self, state: Mapping[str, np.ndarray], carry: Carry) -> Carry:
        """Return the state of one server's chains; its shapes are those of a carry at the start."""
        server, box = self._place[0], self._box
        mine = {name: values[server] for name, values in state.items()}
        shapes = jax.eval_shape(lambda: (carry.hub, carry.inbox))
        hub, inbox = from_names(mine, shapes, "server")
        kinds = self._kernels.reply_wire.kinds
        held = [tuple(mine[f"held[{k}]"][w : w + 1] for k in kinds) for w in range(box.workers)]
        rows = mine["log"][: int(mine["lengths"])]
        self.server.go_on(held, [(int(w), int(v), float(t)) for w, v, t in rows], self._warmup)
        return Carry(carry.node, hub, inbox)

    def block_in_progress(self, buffers: Buffers, slot: int) -> dict[str, np.ndarray]:
        """Return the record so far of a block of thinned updates."""
        infos = infos_at(buffers, slot)
        infos_by_name = named(infos, "block").items()
        return {name: self._of_servers(value[None]) for name, value in infos_by_name}

    def with_block(self, buffers: Buffers, block: Mapping[str, np.ndarray]) -> Buffers:
        """Return empty buffers that go on with such a block, in their first slot."""
        mine = {name: values[self._place[0]] for name, values in block.items()}
        return with_infos(buffers, from_names(mine, infos_at(buffers, 0), "block"))

    def _of_servers(self, of_server: np.ndarray) -> np.ndarray:
        """Return every server's, server axis first, from each one's own, (1, ...)."""
        padded = np.zeros((self._box.servers, *of_server.shape[1:]), of_server.dtype)
        padded[self._place[0]] = of_server[0]
        return self.servers.total(padded)

    def _log(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (worker, version, time) of all servers, (servers, longest, 3), and lengths."""
        log = self.server.log
        lengths = self._of_servers(np.array([len(log)], np.int64))
        rows = np.zeros((1, int(lengths.max()), 3))
        rows[0, : len(log)] = np.array(log).reshape(-1, 3)
        return self._of_servers(rows), lengths

    # --- while it runs ----------------------------------------------------------------------------

    def serve(self, carry: Carry) -> None:
        """Do a worker's whole part of the run."""
        server, worker = self._place
        site = worker if len(self.names) > 1 else 0
        served = Worker(self._kernels, self._communicator, server, site)
        served.serve(carry, self.keys, self._arrays, self._warmup)

    def advance(self, carry: Carry, buffers: Buffers, window: Window) -> Any:
        """Take the updates of a window: (carry, buffers, finite (chains,))."""
        carry, buffers, good = self.server.advance(carry, buffers, self.keys, window)
        lost = self._of_servers((~good).astype(np.int32)[None])
        return carry, buffers, lost.reshape(-1) == 0

    def finish(self) -> None:
        """End the workers."""
        if self._server is not None:
            self._server.end()

    def site_not_finite(self, carry: Carry, at: int, warmup: int, chain: int) -> str | None:
        """Return the site of the gradient that came before the first draw that is not finite."""
        lost = self.server.lost
        workers = self._of_servers(np.array([-1 if lost is None else lost[2]], np.int64))
        worker = int(workers[chain // self._own.layout.chains])
        return self._site_of(worker) if worker >= 0 else None

    def agree(self, value: float) -> float:
        """Return rank 0's value, at every server."""
        return float(self.servers.from_root(np.array([value], np.float64))[0])

    def outcome(self, done: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the run's log: attributes, and the group ``events`` for a replay."""
        import xarray

        rows, lengths = self._log()
        events = [
            (server, int(worker), int(version), at)
            for server, count in enumerate(lengths)
            for worker, version, at in rows[server, :count]
        ]
        if not events or done <= self._warmup:
            return {}, {}
        table = np.array([event[:3] for event in events], np.int64)
        times = np.array([event[3] for event in events])
        trace = simulate(
            recorded(table, times=times),
            workers=self._box.workers,
            servers=self._box.servers,
            max_staleness=self._box.max_staleness,
            updates=done,
            warmup=self._warmup,
        )
        facts = mailboxes.facts_of(trace)
        facts["elapsed_time"] = facts.pop("simulated_time")
        group = xarray.Dataset(
            {"log": (("event", "column"), table), "time": (("event",), times)},
            coords={"column": np.array(["server", "worker", "version"], dtype=object)},
        )
        if self._box.by_share and self._box.shares is not None and self.root:
            mailboxes.compare_shares(np.asarray(self._box.shares), trace.shares, self.names)
        return facts, {"events": group}

    # --- what the caller sees ---------------------------------------------------------------------

    def buffers(self, carry: Carry) -> Buffers:
        """Return empty buffers for this server's chains."""
        return self._kernels.empty_buffers(carry, self.keys)

    def collected(self, buffers: Buffers) -> Buffers:
        """Return the draws of all servers, at rank 0; elsewhere this server's."""
        total, chains = self.layout.chains, self._own.layout.chains
        if total == chains:
            return buffers
        first = self._place[0] * chains

        def whole(part: Any) -> Any:
            part = np.asarray(part)
            part = np.expand_dims(part, 1) if chains == 1 else part
            padded = np.zeros((len(part), total, *part.shape[2:]), part.dtype)
            padded[:, first : first + chains] = part
            return self.servers.total_at_root(padded)

        info = {name: whole(part) for name, part in buffers.hub_info.items()}
        draws = whole(buffers.draws)
        return buffers if draws is None else Buffers(jnp.asarray(draws), None, info, {})

    def positions(self, carry: Carry) -> np.ndarray:
        """Return the draws of all chains in this state, (chains, d)."""
        draw = np.asarray(self._own.draw(carry), np.float64)
        here = np.nan_to_num(draw.reshape(1, self._own.layout.chains, -1))
        return self._of_servers(here).reshape(self.layout.chains, -1)

    def traffic(self, carry: Carry) -> list[tuple[int, int, int]]:
        """Return (messages to a server, bytes up, bytes down) of one update of all chains."""
        servers = self._box.servers
        up, down = (
            servers * sum(w * np.dtype(k).itemsize for w, k in zip(f.widths, f.kinds, strict=True))
            for f in (self._kernels.gradient_wire, self._kernels.reply_wire)
        )
        return [(1, up, down)]

    def memory(self, carry: Carry) -> dict[str, int]:
        """Return bytes that this rank holds, by what they are for."""
        buffers = jax.eval_shape(lambda: self._kernels.empty_buffers(carry, self.keys))
        return held_bytes(self._arrays, buffers, carry, copies=1)

    @property
    def where(self) -> list[str]:
        """Roles of the ranks, one line each."""
        lines = []
        for rank, process in enumerate(self._communicator.processes):
            server, worker = place_of(self._box, rank)
            what = f"worker {worker} of server {server}: {self._site_of(worker)}"
            lines.append(
                f"rank {rank} (process {process}): " + (f"server {server}" if worker < 0 else what)
            )
        return lines

    # --- helpers ----------------------------------------------------------------------------------

    @property
    def server(self) -> Server:
        """This rank's server."""
        if self._server is None:
            raise RuntimeError("this rank is a worker")
        return self._server

    def _of_all(self, of_server: Any) -> np.ndarray:
        """Return every site's, node axis first, from the first workers of server 0."""
        of_server = np.asarray(of_server)
        padded = np.zeros((len(self.names), *of_server.shape[1:]), of_server.dtype)
        if self._place[0] == 0 and 0 <= self._place[1] < len(self.names):
            padded[self._place[1]] = of_server[0]
        return self._communicator.total(padded)


def check_ranks(box: Mailbox, ranks: int, nodes: int) -> None:
    """Refuse what cannot run on so many ranks."""
    wanted = box.servers * (1 + box.workers)
    if ranks != wanted:
        raise InputError(
            f"{box.servers} servers with {box.workers} workers each are {wanted} processes, the "
            f"job has {ranks}: start it with mpiexec -n {wanted}."
        )
    if nodes > 1 and nodes != box.workers:
        raise InputError(
            f"there are {nodes} sites for {box.workers} workers: give each worker its own site, or "
            "one site to all."
        )
    if isinstance(box.latency, Recorded):
        raise InputError("a recorded trace is replayed in one process: leave engine out.")
    if nodes > 1 and box.by_share and box.shares is None:
        raise InputError(
            "where each worker holds its own site, real processes cannot know beforehand how often "
            "each will send: declare shares=(...), one for each site, which `update_shares` of an "
            "earlier run says; or take aggregate='latest', which needs none."
        )


def place_of(box: Mailbox, rank: int) -> tuple[int, int]:
    """Return (server, worker) of a rank; worker −1 is the server itself."""
    if rank < box.servers:
        return rank, -1
    return divmod(rank - box.servers, box.workers)


def rank_of(box: Mailbox, server: int, worker: int) -> int:
    """Return the rank of a worker."""
    return box.servers + server * box.workers + worker
