"""mpi4py behind deadlines: the few calls that the engine makes, on NumPy arrays.

Every wait ends, once MPI has started: with what it waited for, with `RankError` when another rank
says that it failed, or with `RankError` when the deadline has passed. Calls of MPI that block are
made only when all ranks have come to them. No object is pickled.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from consortia.errors import MissingExtraError, RankError

NOTICE = 7
"""Tag of a rank's last words, on a communicator of their own."""

SPINS = 4
"""Looks at a request before the processor is given to others."""

PAUSE = 50e-6
PATIENT = 2e-3
"""Seconds of waiting after which a rank sleeps between looks."""

BETWEEN_NOTICES = 0.05
GRACE, GRACE_AFTER_DEATH = 10.0, 2.0
"""Seconds that a rank with an error gives the others to hear of it; dead and halted ones do not."""

HALTED = "tT"
"""Letters of the state of a process that was stopped, by a signal or a debugger."""

LONGEST_NOTICE = 2000

LENGTH_BYTES, AT_ONCE = 8, 8192
"""Bytes of a string's length; and of a string that all ranks exchange in one step, not in two."""


def load_mpi() -> Any:
    """Return mpi4py's MPI; it initialises MPI in this process.

    Raises:
        MissingExtraError: mpi4py is not installed, or finds no MPI library.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingExtraError(
            f"the MPI engine needs mpi4py and an MPI library ({error}): "
            'pip install "consortia[mpi]", then mpiexec -n RANKS consortia run STUDY --engine mpi.'
        ) from error
    return MPI


@dataclass(frozen=True)
class Links:
    """Rows for each neighbouring rank; both sides list them in the order of the nodes."""

    sources: tuple[int, ...]  # ranks from which rows come
    received: tuple[int, ...]  # rows from each of them
    destinations: tuple[int, ...]  # ranks to which rows go
    rows: np.ndarray  # own rows in the order in which they leave, for all destinations in turn
    sent: tuple[int, ...]  # rows to each destination
    graph: tuple[tuple[int, int], ...]  # (receiver, sender) of all ranks, the same at each of them


class Communicator:
    """The ranks of one run.

    Args:
        deadline: seconds that a rank waits for others before it gives up.

    Attributes:
        rank: of this process, from 0.
        size: number of ranks.
        deadline: as given.
        processes: process number of each rank, on its own machine.
    """

    _neighbours: dict[int, int]

    def __init__(self, deadline: float) -> None:
        self._mpi = load_mpi()
        self._world = self._notices = self._mpi.COMM_WORLD
        self._prepare(deadline)
        self._world, self._notices = self._copy(), self._copy()
        self._neighbours = self._on_this_machine()

    def _prepare(self, deadline: float) -> None:
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self.deadline = deadline
        self._looked = 0.0
        self._neighbours = {}
        # An MPI library has some two thousand communicators: those of equal runs are the same.
        self._graphs: dict[tuple[tuple[int, int], ...], Any] = {}
        self._parts: dict[int, Communicator | None] = {}
        self._last_words: list[Any] = []

    def _copy(self) -> Any:
        copy, made = self._mpi.COMM_WORLD.Idup()
        self._wait(made, "all ranks to start")
        return copy

    def _all_here(self) -> None:
        """Wait for all ranks before a call of MPI that blocks until all make it."""
        self._wait(self._world.Ibarrier(), "all ranks to begin a run")

    def _on_this_machine(self) -> dict[int, int]:
        """Return the process ids of the other ranks that run here."""
        here = uuid.uuid5(uuid.NAMESPACE_DNS, f"{platform.node()} {uuid.getnode()}").int
        identity = np.zeros((self.size, 3), np.uint64)
        identity[self.rank] = here >> 64, here & (2**64 - 1), os.getpid()
        every = np.empty_like(identity)
        self._wait(self._world.Iallreduce(identity, every), "all ranks to start")
        same = (every[:, :2] == identity[self.rank, :2]).all(axis=1)
        self.processes = [int(number) for number in every[:, 2]]
        return {r: self.processes[r] for r in range(self.size) if same[r] and r != self.rank}

    @property
    def ranks_here(self) -> int:
        """Number of ranks on this machine."""
        return 1 + len(self._neighbours)

    def among(self, ranks: int) -> Communicator | None:
        """Return the first ``ranks`` by themselves; None at the others. All ranks call it."""
        if ranks not in self._parts:
            self._parts[ranks] = self._part(ranks)
        return self._parts[ranks]

    def _part(self, ranks: int) -> Communicator | None:
        inside = self.rank < ranks
        self._all_here()
        part = self._world.Split(0 if inside else self._mpi.UNDEFINED, self.rank)
        if not inside:
            return None
        result = object.__new__(Communicator)
        result._mpi, result._world, result._notices = self._mpi, part, self._notices
        result._prepare(self.deadline)
        result._neighbours = result._on_this_machine()
        return result

    # --- all ranks --------------------------------------------------------------------------------

    def total(self, array: np.ndarray, into: np.ndarray | None = None) -> np.ndarray:
        """Return the sum over all ranks of an array, at every rank; written ``into`` another."""
        summand = _summable(array)
        if into is not None and into.dtype == summand.dtype:
            self._wait(self._world.Iallreduce(summand, into), "a sum over all ranks")
            return into
        result = np.empty_like(summand)
        self._wait(self._world.Iallreduce(summand, result), "a sum over all ranks")
        if into is None:
            return result.astype(np.asarray(array).dtype, copy=False)
        into[...] = result
        return into

    def gather(self, rows: np.ndarray, into: np.ndarray, counts: np.ndarray) -> None:
        """Fill an array with the rows of all ranks, of which each has so many."""
        numbers = (counts * into[0].size).tolist()
        self._wait(
            self._world.Iallgatherv(np.ascontiguousarray(rows), [into, numbers]),
            "rows of all ranks",
        )

    def total_at_root(self, array: np.ndarray) -> np.ndarray | None:
        """Return the sum over all ranks of an array, at rank 0; None elsewhere."""
        summand = _summable(array)
        result = np.empty_like(summand) if self.rank == 0 else None
        self._wait(self._world.Ireduce(summand, result), "a sum at rank 0")
        return None if result is None else result.astype(np.asarray(array).dtype, copy=False)

    def from_root(self, array: np.ndarray) -> np.ndarray:
        """Return rank 0's array, which has one shape and type everywhere."""
        buffer = np.array(array)
        self._wait(self._world.Ibcast(buffer), "word from rank 0")
        return buffer

    def texts(self, text: str) -> list[str]:
        """Return each rank's text, in the order of the ranks."""
        words = text.encode()
        head = len(words).to_bytes(LENGTH_BYTES, "big") + words
        first = self._gathered(head[:AT_ONCE], AT_ONCE)
        lengths = [int.from_bytes(begun[:LENGTH_BYTES], "big") for begun in first]
        beyond = LENGTH_BYTES + max(lengths) - AT_ONCE
        rest = self._gathered(head[AT_ONCE:], beyond) if beyond > 0 else [b""] * self.size
        whole = zip(first, rest, lengths, strict=True)
        return [(begun + more)[LENGTH_BYTES:][:length].decode() for begun, more, length in whole]

    def _gathered(self, words: bytes, size: int) -> list[bytes]:
        """Return each rank's bytes, filled up to ``size``."""
        block = np.frombuffer(words.ljust(size, b"\0"), np.uint8)
        every = np.empty((self.size, size), np.uint8)
        self._wait(self._world.Iallgather(block, every), "word from all ranks")
        return [row.tobytes() for row in every]

    # --- neighbours -------------------------------------------------------------------------------

    def network(self, links: Links) -> Callable[[list[np.ndarray], list[np.ndarray]], None]:
        """Return an exchange with neighbouring ranks: packed own rows to rows from elsewhere."""
        if links.graph not in self._graphs:
            self._all_here()
            self._graphs[links.graph] = self._world.Create_dist_graph_adjacent(
                links.sources, links.destinations
            )
        graph = self._graphs[links.graph]
        ends = np.cumsum(links.sent)
        groups = np.split(links.rows, ends[:-1]) if len(ends) else []
        # Rows in one piece leave from where they are, for several neighbours too.
        whole = all(np.array_equal(rows, rows[0] + np.arange(len(rows))) for rows in groups)
        begins = [int(rows[0]) for rows in groups] if whole else (ends - links.sent).tolist()
        coming = (np.cumsum(links.received) - links.received).tolist()
        what = f"neighbouring ranks {list(links.sources)}"

        @cache
        def counted(width: int) -> tuple[Any, Any]:
            """Count the numbers to and from each neighbour, with their offsets."""
            return (
                ([rows * width for rows in links.sent], [row * width for row in begins]),
                ([rows * width for rows in links.received], [row * width for row in coming]),
            )

        def exchange(packed: list[np.ndarray], result: list[np.ndarray]) -> None:
            for outbox, arriving in zip(packed, result, strict=True):
                leaving = np.ascontiguousarray(outbox) if whole else outbox[links.rows]
                to, origin = counted(outbox.shape[1])
                request = graph.Ineighbor_alltoallv([leaving, to], [arriving, origin])
                self._wait(request, what)

        return exchange

    # --- one to one -------------------------------------------------------------------------------

    def send(self, packed: Sequence[Any], to: int, tag: int) -> list[Any]:
        """Start to send arrays to a rank; return the requests, with buffers, to be finished."""
        buffers = [np.ascontiguousarray(np.asarray(part)) for part in packed]
        return [(self._world.Isend(buffer, dest=to, tag=tag), buffer) for buffer in buffers]

    def receive(self, into: Sequence[np.ndarray], source: int, tag: int) -> None:
        """Fill arrays with what a rank sends."""
        for buffer in into:
            self._wait(self._world.Irecv(buffer, source=source, tag=tag), f"rank {source}")

    def source_of(self, tag: int) -> int | None:
        """Return the first rank whose message of this kind has arrived; None if none has.

        Between looks the processor is given to others.
        """
        status = self._mpi.Status()
        for _ in range(SPINS):
            if self._world.Iprobe(source=self._mpi.ANY_SOURCE, tag=tag, status=status):
                return int(status.Get_source())
        self._listen_now_and_then()
        _give_way()
        return None

    def next_tag(self, source: int) -> int:
        """Return the kind of the next message from a rank, which is left where it is."""
        status = self._mpi.Status()
        began = time.monotonic()
        while True:
            for _ in range(SPINS):
                if self._world.Iprobe(source=source, tag=self._mpi.ANY_TAG, status=status):
                    return int(status.Get_tag())
            self._pause(began, f"rank {source}")

    def finish(self, requests: Sequence[Any], what: str) -> None:
        """Wait for sends to be done."""
        for request, _ in requests:
            self._wait(request, what)

    # --- failures ---------------------------------------------------------------------------------

    def leave(self, text: str, code: int) -> None:
        """End this rank's part after an error: quietly if all ranks leave, else the whole job.

        Ranks that had ended well before count as not leaving.

        Args:
            text: what happened, for the ranks that do not know.
            code: exit code of the job if it must be ended by force.
        """
        self.tell(text)
        everyone = self._notices.Ibarrier()
        began = time.monotonic()
        deaf = any(not _alive(pid) or _state(pid) in HALTED for pid in self._neighbours.values())
        while not everyone.Test():
            if time.monotonic() - began > (GRACE_AFTER_DEATH if deaf else GRACE):
                self._mpi.COMM_WORLD.Abort(code)
            time.sleep(PAUSE)

    def tell(self, text: str) -> None:
        """Send all other ranks the text of an error, without waiting for them."""
        words = text.encode()[:LONGEST_NOTICE]
        buffer = np.frombuffer(words.ljust(LONGEST_NOTICE), np.uint8)
        for other in range(self.size):
            if other != self.rank:
                # MPI reads the buffer until the request is done, which nobody waits for.
                sent = self._notices.Isend(buffer, dest=other, tag=NOTICE)
                self._last_words.append((sent, buffer))

    def _wait(self, request: Any, what: str) -> None:
        """Wait until a request is done."""
        done = request.Test
        for _ in range(SPINS):
            if done():
                return
        began = time.monotonic()
        while not done():
            self._pause(began, what)

    def _pause(self, began: float, what: str) -> None:
        """Give the processor to others; raises when a wait is to end."""
        waited = self._listen_now_and_then() - began
        if waited > self.deadline:
            self._give_up(what)
        if waited < PATIENT:
            _give_way()
        else:
            time.sleep(PAUSE)

    def _give_up(self, what: str) -> None:
        halted = [rank for rank, process in self._neighbours.items() if _state(process) in HALTED]
        late = "a rank is gone or far behind"
        if halted:
            late = f"rank {', '.join(map(str, halted))} has been halted"
        raise RankError(
            f"rank {self.rank} has waited {self.deadline:g} s for {what}: {late}. Raise "
            "MPIEngine(deadline=...) if it is only slow."
        )

    def _listen_now_and_then(self) -> float:
        """Listen, if that was not done just before; return the time."""
        now = time.monotonic()
        if now - self._looked > BETWEEN_NOTICES:
            self._looked = now
            self._listen()
        return now

    def _listen(self) -> None:
        """Raise what another rank has said of its failure, or that one here has died."""
        status = self._mpi.Status()
        if self._notices.Iprobe(tag=NOTICE, status=status):
            buffer = np.empty(LONGEST_NOTICE, np.uint8)
            self._notices.Recv(buffer, source=status.Get_source(), tag=NOTICE)
            text = buffer.tobytes().decode(errors="replace").rstrip()
            raise RankError(f"rank {status.Get_source()} failed: {text}")
        for rank, process in self._neighbours.items():
            if not _alive(process):
                raise RankError(f"rank {rank} (process {process}) is gone: it was ended.")


def _alive(process: int) -> bool:
    """Return True if a process of this machine runs; a zombie does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is not ours to ask
        return True
    return _state(process) not in "ZX"


def _state(process: int) -> str:
    """Return the letter of a process's state (R, S, T, Z, ...); "?" where it is unknown."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"


def _summable(array: Any) -> np.ndarray:
    """Return an array as MPI can add it: it has no sum of bools."""
    contiguous = np.ascontiguousarray(array)
    return contiguous.astype(np.uint8) if contiguous.dtype == bool else contiguous


_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
"""Lets others have the processor; a sleep of no time takes tens of microseconds at least."""
