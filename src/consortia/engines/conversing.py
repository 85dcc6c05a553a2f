"""Panels of `consortia.LocalEngine`: all sites in this process, on one device or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from consortia.core.queries import Conversation, Query
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.engines.panel import Answer, Panel, simulated_noise
from consortia.engines.phases import SiteArrays
from consortia.engines.programs import SitePrograms
from consortia.engines.sharding import ARRAYS, Sharding, rank_losses
from consortia.runtime import compiler
from consortia.store.answers import packed, unpacked

StartValues = Callable[[SiteArrays, Float[Array, "chains d"]], tuple[Any, Any, Any]]


class PanelParts(NamedTuple):
    """Parts that a panel is made of whose engine holds rows itself.

    Attributes:
        target: the posterior.
        sites: names and sizes of all sites.
        method: whose site functions answer.
        arrays: data of the sites of this process.
        start_values: the compiled function of `consortia.core.start.start_values`.
        mapped: always compute sites one after the other.
        lasting: see `SitePrograms`.
    """

    target: Target
    sites: Sites
    method: Conversation
    arrays: SiteArrays
    start_values: StartValues
    mapped: bool
    lasting: bool


class LocalPanel(Panel):
    """All sites in this process."""

    def __init__(self, parts: PanelParts) -> None:
        target, sites, method, arrays, start_values, mapped, lasting = parts
        super().__init__(target, sites, method)
        self.mapped = mapped
        self._arrays, self._start_values = arrays, start_values
        self._programs = SitePrograms(target, arrays, 0, len(sites), mapped=mapped, lasting=lasting)

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, (nodes, chains)."""
        return self._start_values(self._arrays, positions)

    def ask(self, query: Query, number: int = 0) -> Answer:
        """Return the answer of all sites."""
        function = self.function(query)
        answer = self._programs.answer(function, self.completed(query))
        return simulated_noise(function, query, answer, len(self.names))

    def memory(self) -> dict[str, int]:
        """Return the bytes of the data."""
        return {"data": sum(leaf.nbytes for leaf in jax.tree.leaves(self._arrays.data))}


class ShardedPanel(Panel):
    """All sites, divided over the devices of a mesh; its processes are one or several.

    The last device gets copies of a site where they do not divide evenly, which count nothing.

    Args:
        parts: of the panel; the data are the same in every process.
        division: the devices.
    """

    def __init__(self, parts: PanelParts, division: Sharding) -> None:
        target, sites, method, arrays, start_values, mapped, lasting = parts
        super().__init__(target, sites, method)
        self.mapped, self.division = mapped, division
        self.root = jax.process_index() == 0
        self.serves = not self.root and division.processes > 1
        self.parts = (division.nodes, 1)
        self._start_values = start_values
        self._undivided: SiteArrays | None = arrays  # until the start was looked at
        extra = -len(sites) % division.nodes
        self._arrays = division.place(
            jax.tree.map(lambda leaf: _filled(leaf, extra), arrays), ARRAYS
        )
        self._programs = SitePrograms(
            target,
            self._arrays,
            0,
            len(sites),
            mapped=mapped,
            division=division,
            lasting=lasting,
        )
        everywhere = NamedSharding(division.mesh, PartitionSpec())
        self._gather = jax.jit(lambda tree: tree, out_shardings=everywhere)

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, (nodes, chains)."""
        assert self._undivided is not None
        found = self._start_values(self._undivided, positions)
        self._undivided = None
        return found

    def ask(self, query: Query, number: int = 0) -> Answer:
        """Return the answer of all sites.

        Raises:
            RankError: another process is gone.
        """
        if self.division.processes > 1:
            self._send(packed(query))
        return self._answer(query)

    def serve(self) -> None:
        """Answer the root's queries until it ends."""
        while data := self._send(b""):
            self._answer(unpacked(data))

    def finish(self) -> None:
        """End the processes that serve."""
        if self.division.processes > 1 and self.root:
            self._send(b"")

    def _answer(self, query: Query) -> Answer:
        function = self.function(query)
        with rank_losses():
            answer = self._programs.answer(function, self.completed(query), self._here)
        return simulated_noise(function, query, answer, len(self.names))

    def _here(self, tree: PyTree) -> PyTree:
        """Return arrays of all devices, whole in this process."""
        if self.division.processes == 1:
            return tree
        gathered = jax.block_until_ready(self._gather(tree))
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), gathered)

    def _send(self, own: bytes) -> bytes:
        """Return the root's bytes, in every process."""
        with rank_losses():
            length = multihost_utils.broadcast_one_to_all(np.int32(len(own)))
            if not int(length):
                return b""
            block = np.frombuffer(own.ljust(int(length), b"\0")[: int(length)], np.uint8)
            return np.asarray(multihost_utils.broadcast_one_to_all(block)).tobytes()

    def memory(self) -> dict[str, int]:
        """Return the bytes of the data, of which each device holds its part."""
        return {"data": sum(leaf.nbytes for leaf in jax.tree.leaves(self._arrays.data))}

    @property
    def devices(self) -> list[Any]:
        """Devices of the mesh."""
        return list(self.division.mesh.devices.flat)

    @property
    def where(self) -> list[str]:
        """Devices of each process, one line each, if there are several."""
        return self.division.where


def _filled(leaf: Any, extra: int) -> np.ndarray:
    host = np.asarray(leaf)
    return np.concatenate([host, np.repeat(host[-1:], extra, axis=0)]) if extra else host


def compiled_start(function: Callable[..., Any]) -> StartValues:
    """Return the values at a start as a program that runs once."""
    return jax.jit(function, compiler_options=compiler.for_once())
