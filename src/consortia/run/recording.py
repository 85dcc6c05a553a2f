"""Recorders of the draws of a run, chunk by chunk: to memory or to a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from consortia.core import parameters
from consortia.diagnostics.natural import Quantities
from consortia.store import libraries, results
from consortia.store.accumulators import Accumulator
from consortia.store.metadata import Labels, with_labels
from consortia.store.runs import RunStore

BLOCK_BYTES = 2**30
"""Draws in memory are written in place into blocks of at most this size."""

NEVER = 2**62
"""A stride that no run reaches."""


@dataclass(eq=False)
class Recorder:
    """Chunks of draws on their way to the groups of the result.

    Args:
        chains: number of chains.
        draws: kept draws of the whole run, the most that can come.
        thin: draws per kept draw.
        per_iteration: draws that one iteration yields.
        warmup: rounds before the first recorded one.
        variables: the parameters' names and places in the flat position.
        sites: names of the sites.
        step_weights: ``iterations -> weights or None``, of the algorithm.
        store: draws are written there by `write`, and not kept in memory, when given.
        remember: keep the positions in memory too (a stopping rule reads them), with a store.
        stride: draws after which a store is to be written.
        kept: draws so far of a run that is resumed.
        root: draws are kept in this process; otherwise they are only counted.
        labels: names along the axes of the variables.
        natural: the natural quantities of the model.
        accumulator: takes the draws in the place of memory and store, where not all are kept.
    """

    _: KW_ONLY
    chains: int
    thin: int
    variables: Sequence[parameters.Variable]
    sites: Sequence[str]
    natural: Quantities
    store: RunStore | None
    remember: bool
    draws: int = 0
    per_iteration: int = 1
    warmup: int = 0
    step_weights: Callable[[np.ndarray], np.ndarray | None] = lambda iterations: None
    stride: int = NEVER
    kept: int = 0  # draws so far, per chain
    accumulator: Accumulator | None = None
    root: bool = True
    labels: Labels = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stored = self.kept
        self._blocks: list[results.Records] = []
        self._filled = 0  # of the last block
        self._positions: list[np.ndarray] = []
        self._pending: list[results.Records] = []
        remembers = self.remember and self.root and self.accumulator is None
        if remembers and self.store is not None and self.kept:
            stored = self.store.posterior(self.kept)
            self._positions.append(parameters.join(stored, self.variables))

    @property
    def libraries(self) -> tuple[str, ...]:
        """The modules that hold the draws, or store them."""
        if not self.root:
            return ()
        return libraries.IN_MEMORY if self.store is None else libraries.IN_A_STORE

    @property
    def room(self) -> int:
        """Draws until a store is to be written."""
        return self.stride - self.kept % self.stride

    @property
    def full(self) -> bool:
        """True if a store is to be written now."""
        return self.kept > self._stored and self.kept % self.stride == 0

    def add(self, buffers: Any, filled: int) -> None:
        """Take the first ``filled`` slots of the engine's buffers."""
        if not self.root:
            self.kept += filled
            return
        self.take(results.Records.of_buffers(buffers, filled, self.chains))

    def take(self, records: results.Records) -> None:
        """Take records, whose arrays may change afterwards."""
        filled = records.draws.shape[1]
        if self.accumulator is not None:
            self.accumulator.take(records.draws, self._weights(self._iterations(self.kept, filled)))
        elif self.store is None:
            self._write(records)
        else:
            self._pending.append(records.copy())
            if self.remember:
                self._positions.append(self._pending[-1].draws)
        self.kept += filled

    def write(self) -> None:
        """Write the draws since the last time to the store."""
        self._stored = self.kept
        if self.store is None or not self._pending:
            return
        records = results.Records.joined(self._pending)
        first = self.kept - records.draws.shape[1]
        self.store.append(self.natural.beside(self._datasets(records, first)))
        self._pending.clear()

    def _write(self, records: results.Records) -> None:
        """Copy a chunk to the end of the last block, and the rest of it to a new one."""
        taken, count = 0, records.draws.shape[1]
        while taken < count:
            if not self._blocks or self._filled == self._blocks[-1].draws.shape[1]:
                most = max(1, BLOCK_BYTES // max(records.bytes_per_draw, 1))
                room = min(max(self.draws - self.kept, count) - taken, most)
                self._blocks.append(records.room_for(room))
                self._filled = 0
            block = self._blocks[-1]
            fits = min(count - taken, block.draws.shape[1] - self._filled)
            block.put(records.between(taken, taken + fits), self._filled)
            self._filled, taken = self._filled + fits, taken + fits

    def _written(self) -> results.Records:
        """Return all draws in memory."""
        last = self._blocks[-1].between(0, self._filled)
        return results.Records.joined([*self._blocks[:-1], last])

    def state(self) -> dict[str, np.ndarray]:
        """Return a checkpoint's contents apart from the draws in the store."""
        return {} if self.accumulator is None else self.accumulator.state()

    def draws_so_far(self) -> np.ndarray:
        """Return the kept draws so far, (chains, draws, d)."""
        if self._blocks:
            return self._written().draws
        if len(self._positions) > 1:
            self._positions = [np.concatenate(self._positions, axis=1)]
        return self._positions[0]

    def groups(self) -> dict[str, Any]:
        """Return the groups of the result, but for those that the store has already."""
        if self.accumulator is not None:
            made = self.accumulator.groups(self.variables) if self.kept else {}
            named = {name: with_labels(group, self.labels) for name, group in made.items()}
            return self.natural.beside(named)
        if self.store is not None or not self._blocks:
            return {}
        return self.natural.beside(self._datasets(self._written(), 0))

    def _datasets(self, records: results.Records, first_draw: int) -> dict[str, Any]:
        last = self._iterations(first_draw, records.draws.shape[1])
        return results.datasets(
            records,
            self.variables,
            self.sites,
            first_draw=first_draw,
            weights=self._weights(last),
            labels=self.labels,
        )

    def _iterations(self, first_draw: int, count: int) -> np.ndarray:
        """Return the iterations in which these draws were made."""
        indices = self.thin * np.arange(first_draw + 1, first_draw + count + 1) - 1
        return self.warmup + indices // self.per_iteration

    def _weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """Return the step weights; of servers with steps of their own, repeated for all chains."""
        weights = self.step_weights(iterations)
        if weights is None or weights.ndim == 1:
            return weights
        return np.repeat(weights, self.chains // len(weights), axis=0)
