"""Panels of `consortia.LocalEngine`: all sites in this process, on one device or several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.core.queries import Conversation, Query, SiteFunction
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.engines.host import COMPILED, HostPrograms, shares_of, way_of
from consortia.engines.panel import Answer, Panel, rounded_sum, simulated_noise
from consortia.engines.phases import SiteArrays, site_arrays
from consortia.engines.programs import SitePrograms
from consortia.engines.sharding import ARRAYS, Sharding, rank_losses
from consortia.runtime import compiler
from consortia.runtime.late import Array, PyTree, jax
from consortia.store.answers import packed, unpacked

Programs = SitePrograms | HostPrograms


class PanelParts(NamedTuple):
    """Parts that a panel is made of whose engine holds rows itself."""

    target: Target  # the posterior
    sites: Sites  # names and sizes of all sites
    method: Conversation  # whose site functions answer
    programs: Programs  # by which the sites of this process answer
    # the values at positions (chains, d), of `consortia.core.start.start_values`
    start_values: Callable[[Any], tuple[Any, Any, Any]]
    mapped: bool  # always compute sites one after the other
    memory: int  # bytes of the rows in this process
    way: str  # how the sites are evaluated
    first: int  # index of the first of them among all


class Placement(NamedTuple):
    """Sites of this process, and how they are placed."""

    which: np.ndarray  # their indices among all
    mapped: bool  # always compute them one after the other
    division: Sharding | None = None  # the devices that they are divided over; None: one


def parts_of(
    target: Target,
    sites: Sites,
    method: Conversation,
    placement: Placement,
    start: Callable[[], Callable[..., Any]],
) -> PanelParts:
    """Return the parts of a panel, whose sites NumPy evaluates or compiled programs.

    Args:
        target: the posterior.
        sites: all of them.
        method: whose site functions answer.
        placement: of the sites here.
        start: makes the compiled function of `consortia.core.start.start_values`.
    """
    which, division, common = placement.which, placement.division, (target, sites, method)
    first = int(which[0])

    def arrays() -> SiteArrays:
        made = site_arrays(target.model, sites, method, which)
        if division is None:
            return made
        extra = -len(sites) % division.nodes
        return division.place(jax.tree.map(lambda leaf: _filled(leaf, extra), made), ARRAYS)

    def programs(held: SiteArrays) -> SitePrograms:
        options: dict[str, Any] = {"mapped": placement.mapped}
        return SitePrograms(target, held, first, len(which), division=division, **options)

    way = COMPILED if division is not None else way_of(target, int(np.sum(sites.sizes)))
    if way != COMPILED:
        own = sites if len(which) == len(sites) else sites.only(which)
        host = HostPrograms(
            target, own, shares_of(method, sites, which), lambda: programs(arrays())
        )
        return PanelParts(
            *common, host, host.start_values, placement.mapped, host.memory, way, first
        )
    held = arrays()
    memory = sum(leaf.nbytes for leaf in jax.tree.leaves(held.data))

    def at_start(positions: Any) -> tuple[Any, Any, Any]:
        whole = held if division is None else site_arrays(target.model, sites, method, which)
        return start()(whole, positions)

    return PanelParts(*common, programs(held), at_start, placement.mapped, memory, way, first)


class LocalPanel(Panel):
    """The sites of this process, which are all of them, or those that its job gives it.

    In a job of several processes a query is sent to all of them before they answer it.

    Args:
        parts: of the panel.
    """

    processes: int = 1  # of the job

    def __init__(self, parts: PanelParts) -> None:
        super().__init__(parts.target, parts.sites, parts.method)
        self._parts, self._programs, self.mapped = parts, parts.programs, parts.mapped
        self.way = parts.way
        self._first = parts.first

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, (nodes, chains)."""
        return self._parts.start_values(positions)

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
        return {"data": self._parts.memory}

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
        super().__init__(parts)
        self.division, self.processes = division, division.processes
        self.root = jax.process_index() == 0
        self.serves = not self.root and self.processes > 1
        self.parts = (division.nodes, 1)
        everywhere = jax.sharding.NamedSharding(division.mesh, jax.sharding.PartitionSpec())
        self._gather = jax.jit(lambda tree: tree, out_shardings=everywhere)

    def _answer(self, query: Query) -> Answer:
        with rank_losses():
            return super()._answer(query)

    def _here(self, tree: PyTree) -> PyTree:
        if self.processes == 1:
            return tree
        gathered = jax.block_until_ready(self._gather(tree))
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), gathered)

    def _send(self, own: bytes) -> bytes:
        from jax.experimental import multihost_utils

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


def compiled_start(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the values at a start as a program that runs once."""
    return jax.jit(function, compiler_options=compiler.for_once())
