"""Panels of `consortia.LocalEngine`: all sites in this process, on one device or several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from consortia.core.queries import Conversation, Query, SiteFunction
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.engines.panel import Answer, Panel, rounded_sum, simulated_noise
from consortia.engines.phases import SiteArrays
from consortia.engines.programs import SitePrograms
from consortia.engines.sharding import ARRAYS, Sharding, rank_losses
from consortia.runtime import compiler
from consortia.store.answers import packed, unpacked

StartValues = Callable[[SiteArrays, Float[Array, "chains d"]], tuple[Any, Any, Any]]


class PanelParts(NamedTuple):
    """Parts that a panel is made of whose engine holds rows itself."""

    target: Target  # the posterior
    sites: Sites  # names and sizes of all sites
    method: Conversation  # whose site functions answer
    arrays: SiteArrays  # data of the sites of this process
    start_values: StartValues  # the compiled function of `consortia.core.start.start_values`
    mapped: bool  # always compute sites one after the other
    lasting: bool  # see `SitePrograms`


class LocalPanel(Panel):
    """The sites of this process, which are all of them, or those that its job gives it.

    In a job of several processes a query is sent to all of them before they answer it.

    Args:
        parts: of the panel.
        first: index of the first of this process's sites among all.
        count: how many of them there are; all when None.
        division: the devices that they are divided over; None: one.
    """

    processes: int = 1  # of the job

    def __init__(
        self,
        parts: PanelParts,
        first: int = 0,
        count: int | None = None,
        division: Sharding | None = None,
    ) -> None:
        target, sites, method, arrays, self._start_values, self.mapped, lasting = parts
        super().__init__(target, sites, method)
        self._arrays, self._first, count = arrays, first, len(sites) if count is None else count
        options: dict[str, Any] = {"mapped": self.mapped, "lasting": lasting}
        self._programs = SitePrograms(target, arrays, first, count, division=division, **options)

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, (nodes, chains)."""
        return self._start_values(self._arrays, positions)

    def ask(self, query: Query, number: int = 0) -> Answer:
        """Return the answer of all sites; only the root asks."""
        if self.processes > 1:
            self._send(packed(query))
        return self._answer(query)

    def serve(self) -> None:
        """Answer the root's queries until it ends.

        Raises:
            RankError: another process is gone, late or has failed.
        """
        while data := self._send(b""):
            self._answer(unpacked(data))

    def finish(self) -> None:
        """End the processes that serve."""
        if self.processes > 1 and self.root:
            self._send(b"")

    def memory(self) -> dict[str, int]:
        """Return the bytes of the data here: of all devices, and of this process under MPI."""
        return {"data": sum(leaf.nbytes for leaf in jax.tree.leaves(self._arrays.data))}

    def _answer(self, query: Query) -> Answer:
        """Return the answer of all sites, where the root is."""
        function = self.function(query)
        answer = self._of_process(function, query)
        return simulated_noise(function, query, answer, len(self.names))

    def _of_process(self, function: SiteFunction, query: Query) -> Answer:
        """Return the answer of the sites of this process; each rounds its own where it does."""
        arrays = self.completed(query)
        if function.rounding is None:
            return self._programs.answer(function, arrays, self._here)
        each = self._programs.answer(replace(function, summed=False), arrays, self._here)
        return rounded_sum(function, query, each, self.sizes, self._first)

    def _here(self, tree: PyTree) -> PyTree:
        """Return arrays of all devices, whole in this process."""
        return tree

    def _send(self, own: bytes) -> bytes:
        """Return the root's bytes, in every process."""
        return own


class ShardedPanel(LocalPanel):
    """All sites, divided over the devices of a mesh; its processes are one or several.

    The last device gets copies of a site where they do not divide evenly, which count nothing.
    """

    def __init__(self, parts: PanelParts, division: Sharding) -> None:
        self._undivided: SiteArrays | None = parts.arrays  # until the start was looked at
        extra = -len(parts.sites) % division.nodes
        filled = jax.tree.map(lambda leaf: _filled(leaf, extra), parts.arrays)
        super().__init__(parts._replace(arrays=division.place(filled, ARRAYS)), division=division)
        self.division, self.processes = division, division.processes
        self.root = jax.process_index() == 0
        self.serves = not self.root and self.processes > 1
        self.parts = (division.nodes, 1)
        everywhere = NamedSharding(division.mesh, PartitionSpec())
        self._gather = jax.jit(lambda tree: tree, out_shardings=everywhere)

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, (nodes, chains)."""
        assert self._undivided is not None
        found = self._start_values(self._undivided, positions)
        self._undivided = None
        return found

    def _answer(self, query: Query) -> Answer:
        with rank_losses():
            return super()._answer(query)

    def _here(self, tree: PyTree) -> PyTree:
        if self.processes == 1:
            return tree
        gathered = jax.block_until_ready(self._gather(tree))
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), gathered)

    def _send(self, own: bytes) -> bytes:
        with rank_losses():
            length = multihost_utils.broadcast_one_to_all(np.int32(len(own)))
            if not int(length):
                return b""
            block = np.frombuffer(own.ljust(int(length), b"\0")[: int(length)], np.uint8)
            return np.asarray(multihost_utils.broadcast_one_to_all(block)).tobytes()

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
