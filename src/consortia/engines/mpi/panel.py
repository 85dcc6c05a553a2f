"""A panel over MPI ranks: rank 0 runs the conversation, each answers for its own sites."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.queries import Query
from consortia.engines.conversing import LocalPanel
from consortia.engines.mpi.communicator import Communicator
from consortia.engines.mpi.placement import Places
from consortia.engines.panel import Answer, simulated_noise
from consortia.runtime.late import Array


class MPIPanel(LocalPanel):
    """The sites of all ranks, as one rank sees them.

    A query is a broadcast of its length and one of its bytes; an answer one sum at rank 0.
    """

    def __init__(self, *parts: Any, communicator: Communicator, places: Places) -> None:
        super().__init__(*parts)
        self.root, self.processes = communicator.rank == 0, communicator.size
        self.serves = not self.root
        self._communicator, self._places = communicator, places

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, (nodes, chains)."""
        prior, values, finite = super().start_values(positions)
        here = np.stack([np.asarray(values), np.asarray(finite)], axis=1)
        both = self._communicator.total(self._of_all(here))
        return prior, both[:, 0], both[:, 1] > 0

    def _send(self, content: bytes) -> bytes:
        length = int(self._communicator.from_root(np.array([len(content)], np.int64))[0])
        if not length:
            return b""
        block = np.frombuffer(content, np.uint8) if self.root else np.empty(length, np.uint8)
        return self._communicator.from_root(block).tobytes()

    def _answer(self, query: Query) -> Answer:
        """Return the answer of all sites at rank 0, nothing elsewhere."""
        function = self.function(query)
        sums = self._of_process(function, query)
        if not function.summed:
            sums = {name: self._of_all(values) for name, values in sums.items()}
        shapes = {name: sums[name].shape for name in sorted(sums)}
        flat = np.concatenate([sums[name].ravel() for name in shapes] or [np.zeros(0)])
        total = self._communicator.total_at_root(flat)
        if total is None:
            return {}
        ends = np.cumsum([int(np.prod(shape, dtype=int)) for shape in shapes.values()])
        parts = zip(shapes.items(), np.split(total, ends[:-1]), strict=True)
        answer = {name: part.reshape(shape) for (name, shape), part in parts}
        return simulated_noise(function, query, answer, len(self.names))

    def _of_all(self, part: np.ndarray) -> np.ndarray:
        """Return zeros but for this rank's sites, site axis first."""
        padded = np.zeros((self._places.nodes, *part.shape[1:]), part.dtype)
        padded[self._places.own] = part
        return padded

    @property
    def where(self) -> list[str]:
        """Sites of each rank, one line each."""
        return self._places.lines(self.names, self._communicator.processes)
