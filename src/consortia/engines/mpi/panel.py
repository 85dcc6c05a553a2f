"""A panel over MPI ranks: rank 0 runs the conversation, each answers for its own sites."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Array, Float

from consortia.core.queries import Query
from consortia.engines.conversing import PanelParts
from consortia.engines.mpi.communicator import Communicator
from consortia.engines.mpi.placement import Places
from consortia.engines.panel import Answer, Panel, simulated_noise
from consortia.engines.programs import SitePrograms
from consortia.store.answers import packed, unpacked


class MPIPanel(Panel):
    """The sites of all ranks, as one rank sees them.

    A query is a broadcast of its length and one of its bytes; an answer one sum at rank 0.

    Args:
        parts: of the panel; the data are those of this rank's sites.
        communicator: the ranks.
        places: which of them holds what.
    """

    def __init__(self, parts: PanelParts, communicator: Communicator, places: Places) -> None:
        target, sites, method, arrays, start_values, mapped, lasting = parts
        super().__init__(target, sites, method)
        self.root = communicator.rank == 0
        self.serves, self.mapped = not self.root, mapped
        self._arrays, self._start_values = arrays, start_values
        self._communicator, self._places = communicator, places
        first, count = int(places.own[0]), len(places.own)
        self._programs = SitePrograms(target, arrays, first, count, mapped=mapped, lasting=lasting)

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, (nodes, chains)."""
        prior, values, finite = self._start_values(self._arrays, positions)
        own = np.stack([np.asarray(values), np.asarray(finite)], axis=1)
        both = self._communicator.total(self._of_all(own))
        return prior, both[:, 0], both[:, 1] > 0

    def ask(self, query: Query, number: int = 0) -> Answer:
        """Return the answer of all sites; only rank 0 asks.

        Raises:
            RankError: another rank failed, or did not answer in time.
        """
        self._send(packed(query))
        answer = self._answer(query)
        assert answer is not None
        return simulated_noise(self.function(query), query, answer, len(self.names))

    def serve(self) -> None:
        """Answer rank 0's queries until it ends.

        Raises:
            RankError: it asks nothing for the deadline, or another rank has failed.
        """
        while data := self._send(b""):
            self._answer(unpacked(data))

    def finish(self) -> None:
        """End the ranks that serve."""
        if self.root:
            self._send(b"")

    def _send(self, own: bytes) -> bytes:
        """Return rank 0's bytes, at every rank."""
        length = int(self._communicator.from_root(np.array([len(own)], np.int64))[0])
        if not length:
            return b""
        block = np.frombuffer(own, np.uint8) if self.root else np.empty(length, np.uint8)
        return self._communicator.from_root(block).tobytes()

    def _answer(self, query: Query) -> Answer | None:
        """Return the answer of all sites at rank 0, None elsewhere."""
        function = self.function(query)
        own = self._programs.answer(function, self.completed(query))
        if not function.summed:
            own = {name: self._of_all(values) for name, values in own.items()}
        shapes = {name: own[name].shape for name in sorted(own)}
        flat = np.concatenate([own[name].ravel() for name in shapes] or [np.zeros(0)])
        total = self._communicator.total_at_root(flat)
        if total is None:
            return None
        ends = np.cumsum([int(np.prod(shape, dtype=int)) for shape in shapes.values()])
        parts = zip(shapes.items(), np.split(total, ends[:-1]), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}

    def _of_all(self, own: np.ndarray) -> np.ndarray:
        """Return zeros but for this rank's sites, site axis first."""
        padded = np.zeros((self._places.nodes, *own.shape[1:]), own.dtype)
        padded[self._places.own] = own
        return padded

    @property
    def where(self) -> list[str]:
        """Sites of each rank, one line each."""
        return self._places.lines(self.names, self._communicator.processes)
