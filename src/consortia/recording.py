"""Where the draws of a run go, chunk by chunk: to memory or to a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from consortia import naming, results
from consortia.store import RunStore


class Recorder:
    """Takes chunks of draws and gives the groups of the result.

    Args:
        chains: number of chains.
        thin: draws per kept draw.
        per_iteration: draws that one iteration yields.
        warmup: rounds before the first recorded one.
        variables: the parameters' names and places in the flat position.
        sites: names of the sites.
        step_weights: ``iterations -> weights or None``, of the algorithm.
        store: writes each chunk there and keeps none, when given.
        remember: keep the positions in memory too (a stopping rule reads them).

    Attributes:
        kept: draws so far, per chain.
    """

    def __init__(
        self,
        *,
        chains: int,
        thin: int,
        per_iteration: int,
        warmup: int,
        variables: Sequence[naming.Variable],
        sites: Sequence[str],
        step_weights: Callable[[np.ndarray], np.ndarray | None],
        store: RunStore | None,
        remember: bool,
    ) -> None:
        self.kept = 0
        self._chains, self._thin, self._warmup = chains, thin, warmup
        self._per_iteration = per_iteration
        self._variables, self._sites, self._step_weights = variables, sites, step_weights
        self._store, self._remember = store, remember
        self._parts: list[results.Records] = []
        self._positions: list[np.ndarray] = []

    def add(self, buffers: Any, filled: int) -> None:
        """The first ``filled`` slots of the engine's buffers."""
        records = results.Records.of_buffers(buffers, filled, self._chains)
        if self._store is None:
            self._parts.append(records)
        else:
            self._store.append(self._datasets(records, self.kept))
        if self._remember:
            self._positions.append(records.draws)
        self.kept += filled

    def draws_so_far(self) -> np.ndarray:
        """(chains, draws, d)."""
        if len(self._positions) > 1:
            self._positions = [np.concatenate(self._positions, axis=1)]
        return self._positions[0]

    def groups(self) -> dict[str, Any]:
        """The groups of the result that grow with the draws (empty when a store has them)."""
        if self._store is not None or not self._parts:
            return {}
        return self._datasets(results.Records.joined(self._parts), 0)

    def _datasets(self, records: results.Records, first_draw: int) -> dict[str, Any]:
        count = records.draws.shape[1]
        number = self._thin * np.arange(first_draw + 1, first_draw + count + 1) - 1
        last = self._warmup + number // self._per_iteration
        return results.datasets(
            records,
            self._variables,
            self._sites,
            first_draw=first_draw,
            weights=self._step_weights(last),
        )
