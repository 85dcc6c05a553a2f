"""A run over several devices, in one process or in those of ``jax.distributed``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.engines import hosts
from consortia.engines.local_run import LocalRun, gradients
from consortia.engines.sharded import ARRAYS, BUFFERS, ShardedProgram
from consortia.engines.types import Buffers, Carry, SiteArrays, Window

Array = jax.Array
PyTree = Any


class ShardedRun(LocalRun):
    """As `LocalRun`, its arrays on the devices of a mesh; every process runs it.

    What is recorded, kept in checkpoints and shown is gathered first, by all processes together:
    all of them call the methods that need it.
    """

    program: ShardedProgram

    def __init__(
        self,
        program: ShardedProgram,
        arrays: SiteArrays,
        sites: Sites,
    ) -> None:
        super().__init__(program, arrays, sites)
        self.root = jax.process_index() == 0
        self.division = program.division
        self.parts = (self.division.nodes, self.division.chains)
        self._arrays = self.division.place(arrays, ARRAYS)
        self._gather = jax.jit(
            lambda tree: tree,
            out_shardings=NamedSharding(self.division.mesh, PartitionSpec()),
        )

    # --- between two rounds -----------------------------------------------------------------------

    def start_values(self, positions: Array) -> Any:
        """As of `LocalRun`."""
        return self._here(super().start_values(_on_host(positions)))

    def start(self, seed: int, positions: Array, rounds: int = 1, warmup: int = 0) -> Carry:
        """As of `LocalRun`."""
        return super().start(seed, _on_host(positions), rounds, warmup)

    def restore(
        self, state: Mapping[str, np.ndarray], seed: int, positions: Array, rounds: int, warmup: int
    ) -> Carry:
        """As of `LocalRun`, on these devices."""
        carry = super().restore(state, seed, _on_host(positions), rounds, warmup)
        self._arrays = self._arrays._replace(
            fitted=self.division.place(self._arrays.fitted, ARRAYS.fitted)
        )
        return self.division.place(carry, self.program.carry_axes(begun=True))

    def with_block(self, buffers: Buffers, block: Mapping[str, np.ndarray]) -> Buffers:
        """As of `LocalRun`, on these devices."""
        begun = super().with_block(self._here(buffers), block)
        return self.division.place(begun, BUFFERS)

    def emptied(self, buffers: Buffers) -> Buffers:
        """The buffers of a chunk whose draws have been taken, for the next one."""
        return self.program.emptied(buffers)

    def advance(self, carry: Carry, buffers: Buffers, window: Window) -> Any:
        """As of `LocalRun`."""
        with hosts.losses_told():
            carry, buffers, finite = super().advance(carry, buffers, window)
            return carry, buffers, self._here(finite)

    @property
    def devices(self) -> list[Any]:
        """Devices of the mesh, nodes first."""
        return list(self.division.mesh.devices.flat)

    # --- several processes ------------------------------------------------------------------------

    def agree(self, value: float) -> float:
        """The value of the process that is the root."""
        if self.division.processes == 1:
            return value
        with hosts.losses_told():
            return float(multihost_utils.broadcast_one_to_all(np.float64(value)))

    @property
    def where(self) -> list[str]:
        """Which process holds which devices, one line each, if there are several."""
        held: dict[int, list[str]] = {}
        for device in self.division.mesh.devices.flat:
            held.setdefault(device.process_index, []).append(f"{device.platform}:{device.id}")
        if len(held) == 1:
            return []
        return [f"process {index}: {', '.join(names)}" for index, names in sorted(held.items())]

    # --- what is asked between rounds -------------------------------------------------------------

    def site(self, name: str) -> Site | None:
        """Return one site, as a visiting chain sees it; all processes call it."""
        node = self.names.index(name)
        arrays = self._arrays._replace(events=())
        own = self._here(jax.tree.map(lambda leaf: leaf[node : node + 1], arrays))
        return own.site(0, node)

    def gradients(self, target: Target) -> Callable[[Array], Array]:
        """Return position (d,) ↦ ∇U_c of all rows of each site, (nodes, d)."""
        if self.division.processes == 1:
            return super().gradients(target)
        here = jax.tree.map(lambda leaf: leaf.addressable_data(0), self._arrays)
        whole = here._replace(events=())
        return lambda position: gradients(target.model, target.unravel(position), whole)

    def _here(self, tree: PyTree) -> PyTree:
        """Arrays of all devices, whole in this process."""
        if self.division.processes == 1:
            return tree
        with hosts.losses_told():
            gathered = jax.block_until_ready(self._gather(tree))
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), gathered)


def _on_host(positions: Any) -> Any:
    """Starting points that every process gives alike to all of its devices."""
    return np.asarray(positions)
