"""`MPIEngine`: the same run, with the sites spread over MPI ranks."""

from __future__ import annotations

import base64
import json
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from consortia.core import arguments, fingerprints
from consortia.core.contract import Mailbox, Method, Route
from consortia.core.model import Model
from consortia.core.queries import Conversation
from consortia.core.start import start_values
from consortia.core.target import Target, any_target
from consortia.core.version import __version__
from consortia.data.sites import Sites
from consortia.engines import sharding
from consortia.engines.contract import Engine
from consortia.engines.conversing import Placement, compiled_start
from consortia.engines.local import LocalEngine, effort
from consortia.engines.mailbox import mailbox_of
from consortia.engines.mpi.asynchronous import AsynchronousRun, check_ranks, place_of
from consortia.engines.mpi.communicator import Communicator
from consortia.engines.mpi.panel import MPIPanel
from consortia.engines.mpi.placement import Places
from consortia.engines.mpi.program import RankProgram
from consortia.engines.mpi.run import MPIRun
from consortia.engines.mpi.travelling import TravellingRun
from consortia.engines.phases import Program, SiteArrays, row_of_zeros, site_arrays
from consortia.errors import InputError, RankError
from consortia.runtime.late import jax, jnp

LONGEST_DEADLINE = 1e6
"""Seconds."""

ARRAY = "array in base64"
"""Key of the numbers of an array, as text."""


class MPIEngine(Engine):
    """Runs the sites in the processes of an MPI job, as many of them at each as must be.

    Every process calls `consortia.sample` with the same arguments; rank 0 keeps the draws and
    returns them, the others return None. Averages and sums are one Allgather
    of small messages, or one Allreduce of large ones; in gossip a rank exchanges with the ranks
    that hold a neighbour, in one neighbourhood collective; a travelling chain goes from rank to
    rank as one message. The draws are those of `LocalEngine` up to rounding: large messages are
    summed in another order. A process needs the rows of its own sites only, see
    `consortia.read_sites`.

    Args:
        deadline: seconds that a rank waits for others before the run ends with a `RankError`.
        node_mode: see `LocalEngine`.
        block: see `LocalEngine`.

    Raises:
        MissingExtraError: mpi4py or an MPI library is not installed.
        InputError: an argument is out of its range.

    Example:
        >>> import consortia
        >>> engine = consortia.MPIEngine(deadline=60.0)  # doctest: +SKIP
        >>> tree = consortia.sample(..., engine=engine)  # doctest: +SKIP
    """

    name = "mpi"

    def __init__(
        self, *, deadline: float = 300.0, node_mode: str = "auto", block: int | None = None
    ) -> None:
        self.deadline = arguments.number("deadline", deadline, 0.0, LONGEST_DEADLINE)
        # A rank computes in its own thread: on another one it would wait for a core that the
        # ranks share. Without effect once JAX has started.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self._local = LocalEngine(node_mode=node_mode, block=block)
        self._communicator = Communicator(self.deadline)
        # Nor do the ranks of a machine start more threads together than it has cores.
        share = max(1, sharding.cores() // self._communicator.ranks_here)
        os.environ.setdefault("PJRT_NPROC", str(share))
        _leave_when_nothing_catches(self)

    @property
    def root(self) -> bool:
        """True in the one process that keeps the draws and writes to the terminal."""
        return self.rank == 0

    @property
    def rank(self) -> int:
        """Index of this process."""
        return self._communicator.rank

    @property
    def ranks(self) -> int:
        """Processes of the job."""
        return self._communicator.size

    def abort(self, error: BaseException, code: int) -> None:
        """End this rank's part of the job after an error, so that no other waits for it.

        The others learn of it at their next wait. If one does not answer within seconds the whole
        job is ended with this exit code. An exception that a script does not catch calls it.
        """
        self._communicator.leave(str(error) or type(error).__name__, code)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._communicator.total(np.zeros(1, np.int32))

    def local_sites(self, nodes: int, method: Method) -> np.ndarray:
        """Return the indices of the sites, of ``nodes``, whose rows this rank needs.

        A parameter server needs none.
        """
        if isinstance(method, Conversation):
            return Places(nodes, self.ranks, self.rank).own
        # What is exchanged does not depend on the model, which may be known only with the data.
        box = mailbox_of(method.build(any_target()))
        if box is None:
            return Places(nodes, self.ranks, self.rank).own
        check_ranks(box, self.ranks, nodes)
        worker = place_of(box, self.rank)[1]
        if worker < 0:
            return np.zeros(0, int)
        return np.array([worker if nodes > 1 else 0])

    def allgather(
        self, make: Callable[[], Any], same: Callable[[], Mapping[str, Any]] = dict
    ) -> list[Any]:
        """Return the results of ``make`` at all ranks, in their order: plain values and arrays.

        One step of all ranks, in which each also sends its own settings.
        """
        answer: dict[str, Any] = {}
        error: Exception | None = None
        try:
            answer["made"] = make()
        except Exception as caught:
            error = caught
        try:
            answer["same"] = fingerprints.of_values({**self._kind, **same()})
        except Exception as caught:
            error = error or caught
        if error is not None:
            answer |= {"error": str(error) or type(error).__name__}
            answer |= {"input": isinstance(error, InputError)}
        texts = self._communicator.texts(json.dumps(answer, default=_as_text))
        answers = [json.loads(text, object_hook=_with_arrays) for text in texts]
        fingerprints.check_same(
            {rank: reply["same"] for rank, reply in enumerate(answers) if "same" in reply}, "rank"
        )
        failed = [rank for rank, reply in enumerate(answers) if "error" in reply]
        if not failed:
            return [reply["made"] for reply in answers]
        if error is not None and not answer["input"]:
            raise error
        broken = next((rank for rank in failed if not answers[rank]["input"]), None)
        if broken is not None:
            raise RankError(f"rank {broken} failed: {answers[broken]['error']}") from error
        everywhere = len(failed) == self.ranks
        faults: dict[str, str] = {}
        for rank in failed:
            faults.setdefault(answers[rank]["error"], "" if everywhere else f"rank {rank}: ")
        raise InputError("\n".join(f"{where}{text}" for text, where in faults.items())) from error

    def prepare(
        self, target: Target, sites: Sites, method: Method, chains: int
    ) -> MPIRun | AsynchronousRun:
        """Place this rank's data and make its program; compile nothing yet."""
        algorithm = method.build(target)
        layout = self._local.layout(target, sites, method, chains)
        start = partial(start_values, target)
        box = mailbox_of(algorithm)
        if box is not None:
            arrays = self._of_worker(target.model, box, sites, method)
            whole = Program(algorithm, layout, start)
            return AsynchronousRun(whole, arrays, sites, self._communicator)
        places = Places(len(sites), self.ranks, self.rank)
        worth = effort(target, sites, method, layout)
        arguments = (
            RankProgram(algorithm, layout, start, self._communicator, places, worth),
            site_arrays(target.model, sites, method, places.own),
            sites,
            layout,
            self._communicator,
            places,
        )
        if any(isinstance(phase.exchange, Route) for phase in algorithm.phases):
            weights = method.site_weights(np.asarray(sites.sizes, np.int64))
            return TravellingRun(*arguments, weights=weights)
        return MPIRun(*arguments)

    def panel(self, target: Target, sites: Sites, method: Conversation) -> MPIPanel:
        """Place this rank's data for a conversation; compile nothing yet."""
        places = Places(len(sites), self.ranks, self.rank)
        placement = Placement(places.own, self._local.node_mode == "map")
        start = partial(compiled_start, partial(start_values, target))
        parts = target, sites, method, placement, start
        return MPIPanel(*parts, communicator=self._communicator, places=places)

    def _of_worker(self, model: Model, box: Mailbox, sites: Sites, method: Method) -> SiteArrays:
        """Return the data of this rank's site; of a server one row of zeros, for the shapes."""
        held = self.local_sites(len(sites), method)
        if not len(held):
            unit = jnp.ones(1, jnp.result_type(float))
            row = jax.tree.map(jnp.asarray, row_of_zeros(model, sites))
            return SiteArrays(row, jnp.ones(1, jnp.int32), unit, unit, ())
        arrays = site_arrays(model, sites, method, held)
        if box.shares is None:
            return arrays
        share = jnp.asarray([box.shares[held[0]]], arrays.weights.dtype)
        return arrays._replace(weights=share)

    @property
    def _kind(self) -> dict[str, Any]:
        """Settings that decide bits: each rank draws the shared numbers itself."""
        local = self._local
        return {
            "node_mode or block": (local.node_mode, local.block),
            "version of consortia, JAX or NumPy": (__version__, jax.__version__, np.__version__),
        }


def _as_text(value: Any) -> dict[str, Any]:
    """Return an array as plain values, with its numbers as they are in memory."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"a {type(value).__name__} cannot be sent to other ranks")
    numbers = base64.b64encode(value.tobytes()).decode()
    return {ARRAY: numbers, "dtype": value.dtype.str, "shape": value.shape}


def _with_arrays(given: dict[str, Any]) -> Any:
    """Return the array of such values; others as they are."""
    if ARRAY not in given:
        return given
    return np.frombuffer(base64.b64decode(given[ARRAY]), given["dtype"]).reshape(given["shape"])


_engine: weakref.ref[MPIEngine] | None = None
"""The youngest of this process: over its communicator the other ranks wait."""


def _leave_when_nothing_catches(engine: MPIEngine) -> None:
    """Inform the other ranks from now on of an exception that ends this process."""
    global _engine
    first, _engine = _engine is None, weakref.ref(engine)
    if not first:
        return
    show = sys.excepthook

    def show_and_leave(kind: Any, error: BaseException, trace: Any) -> None:
        show(kind, error, trace)
        sys.stderr.flush()
        engine = None if _engine is None else _engine()
        if engine is not None:
            engine.abort(error, 1)

    sys.excepthook = show_and_leave
