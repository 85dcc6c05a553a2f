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


class Placement(NamedTuple):
    """Sites of this process, and how they are placed."""

    which: np.ndarray  # their indices among all
    mapped: bool  # always compute them one after the other
    division: Sharding | None = None  # the devices that they are divided over; None: one


class LocalPanel(Panel):
    """The sites of this process, which are all of them, or those that its job gives it.

    NumPy evaluates them, or compiled programs. In a job of several processes a query is sent to all
    of them before they answer it.

    Args:
        target: the posterior.
        sites: names and sizes of all sites.
        method: whose site functions answer.
        placement: of the sites here.
        start: makes the compiled function of `consortia.core.start.start_values`.
    """

    processes: int = 1  # of the job
    _programs: SitePrograms | HostPrograms

    def __init__(
        self,
        target: Target,
        sites: Sites,
        method: Conversation,
        placement: Placement,
        start: Callable[[], Callable[..., Any]],
    ) -> None:
        super().__init__(target, sites, method)
        self._sites, self._start = sites, start
        self._which, self.mapped, self._division = placement
        self._first = int(self._which[0])
        self.way = COMPILED
        if self._division is None:
            self.way = way_of(target, int(np.sum(sites.sizes)), len(sites))
        if self.way == COMPILED:
            self._programs = self._compiled()
        else:
            local_sites = sites if len(self._which) == len(sites) else sites.only(self._which)
            shares = shares_of(method, sites, self._which)
            self._programs = HostPrograms(target, local_sites, shares, self._compiled)

    def _arrays(self) -> SiteArrays:
        """Return the data of the sites here, on the default device."""
        return site_arrays(self.target.model, self._sites, self.method, self._which)

    def _compiled(self) -> SitePrograms:
        """Return the programs of the sites here, whose data are on their devices."""
        held, division, count = self._arrays(), self._division, len(self._which)
        if division is not None:
            extra = -len(self.names) % division.nodes
            held = division.place(jax.tree.map(lambda leaf: _filled(leaf, extra), held), ARRAYS)
        options: dict[str, Any] = {"mapped": self.mapped, "division": division}
        return SitePrograms(self.target, held, self._first, count, **options)

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, (nodes, chains)."""
        if isinstance(self._programs, HostPrograms):
            return self._programs.start_values(np.asarray(positions))
        whole = self._programs.arrays if self._division is None else self._arrays()
        return self._start()(whole, positions)

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
        return {"data": self._programs.memory}

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

    def _send(self, content: bytes) -> bytes:
        """Return the root's bytes, in every process."""
        return content


class ShardedPanel(LocalPanel):
    """All sites, divided over the devices of a mesh; its processes are one or several.

    The last device gets copies of a site where they do not divide evenly, which count nothing.
    """

    _division: Sharding

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        division = self._division
        self.processes = division.processes
        self.root = jax.process_index() == 0
        self.serves = not self.root and self.processes > 1
        self.parts = (division.nodes, 1)

    def _answer(self, query: Query) -> Answer:
        with rank_losses():
            return super()._answer(query)

    def _here(self, tree: PyTree) -> PyTree:
        return self._division.gathered(tree)

    def _send(self, content: bytes) -> bytes:
        from jax.experimental import multihost_utils

        with rank_losses():
            length = multihost_utils.broadcast_one_to_all(np.int32(len(content)))
            if not int(length):
                return b""
            block = np.frombuffer(content.ljust(int(length), b"\0")[: int(length)], np.uint8)
            return np.asarray(multihost_utils.broadcast_one_to_all(block)).tobytes()

    @property
    def devices(self) -> list[Any]:
        """Devices of the mesh."""
        return list(self._division.mesh.devices.flat)

    @property
    def where(self) -> list[str]:
        """Devices of each process, one line each, if there are several."""
        return self._division.where


def _filled(leaf: Any, extra: int) -> np.ndarray:
    host = np.asarray(leaf)
    return np.concatenate([host, np.repeat(host[-1:], extra, axis=0)]) if extra else host


def compiled_start(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the values at a start as a program that runs once."""
    return jax.jit(function, compiler_options=compiler.for_once())
