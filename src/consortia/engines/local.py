"""The engine of one process: nodes and chains as array axes of one compiled program."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from consortia.core import arguments, fingerprints
from consortia.core.contract import Algorithm, Mean, Method
from consortia.core.queries import Conversation
from consortia.core.start import start_values
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.engines import rng, sharding
from consortia.engines.contract import Engine
from consortia.engines.conversing import (
    LocalPanel,
    Placement,
    ShardedPanel,
    compiled_start,
)
from consortia.engines.kept import kept
from consortia.engines.phases import Program, site_arrays
from consortia.engines.programs import structure_key
from consortia.engines.rng import Layout
from consortia.engines.run import LocalRun
from consortia.engines.sharding import ShardedProgram, ShardedRun
from consortia.errors import InputError, wrong
from consortia.runtime import compiler
from consortia.runtime.late import jax, jnp

BLOCK_BYTES = 96 * 1024
"""Random numbers drawn at once; larger blocks leave the processor's cache."""

LONGEST_BLOCK = 256
MAP_BYTES = 60_000
"""A site's gradient that reads more than this runs faster one site after the other (measured)."""

CHUNK_BYTES = 4 * 1024 * 1024
MOST_SLOTS = 8192
KEPT_PROGRAMS = 16

_programs: OrderedDict[Any, Program] = OrderedDict()
_starts: OrderedDict[Any, Any] = OrderedDict()
_kept = partial(kept, most=KEPT_PROGRAMS)


class LocalEngine(Engine):
    """Runs all sites and chains in this process, or in all processes of ``jax.distributed``.

    The sites or the chains are divided evenly among devices where `mesh` says so or it costs
    nothing: chains first, which never wait for each other; then sites, whose sums cross the
    devices in every communication round. Draws are the same up to rounding; those
    of `fa_hmc` bit for bit where sites alone are divided and their messages are small.

    Args:
        mesh: a `jax.sharding.Mesh` with the axes ``"nodes"`` and ``"chains"``, or one of them,
            whose lengths divide the number of sites and of chains; in place of ``devices``.
        devices: the devices to divide the run among, or how many of JAX's (if JAX has not started,
            so many are made of the processor); all must be of use. When None, as many of JAX's as
            can be used evenly. The plan says what runs where.
        participation: which sites take part in the averages of which round, warm-up included: bool
            (rounds, sites), as recorded in the group ``participation`` of a `FlowerEngine`'s
            result, whose draws are had again so. The others' states stay as they are, and the
            weights of those that take part are scaled to sum to one. `consortia.schedules.
            participation` makes one from probabilities, or from latencies and a deadline.
        node_mode: ``"vmap"`` (all sites in one batched operation), ``"map"`` (one after the other,
            faster when a site's gradient reads more than about 10 kB) or ``"auto"``.
        block: rounds whose random numbers are drawn at once; chosen by size when None. It changes
            no random number, only rounding; it is recorded with the run.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> import consortia
        >>> consortia.LocalEngine(devices=1, node_mode="map").node_mode
        'map'
    """

    name = "local"

    def __init__(
        self,
        mesh: Any = None,
        devices: Any = None,
        *,
        participation: Any = None,
        node_mode: str = "auto",
        block: int | None = None,
    ) -> None:
        if mesh is not None and devices is not None:
            raise wrong("mesh", " and devices: give one of them; a mesh names its devices.")
        if participation is not None and (mesh is not None or devices is not None):
            raise InputError(
                "participation: a run with some of its sites is not divided among devices; leave "
                "mesh and devices out."
            ).at("participation")
        self.node_mode = arguments.one_of("node_mode", node_mode, ("auto", "vmap", "map"))
        self.block = arguments.optional_whole("block", block, 1)
        self._mesh = mesh
        self._devices = sharding.devices_asked(devices)
        self.participation = None if participation is None else np.asarray(participation, bool)

    @classmethod
    def like(cls, rounding: Mapping[str, Any], *, exact: bool) -> LocalEngine:
        """Return the engine that rounds as that of a stored run; if not ``exact``, any will do.

        Raises:
            InputError: there are fewer devices than the run had.
        """
        nodes, chains = rounding.get("devices", (1, 1))
        if not exact and nodes * chains > len(jax.devices()):
            return cls()
        if nodes * chains == 1:
            return cls(devices=1, node_mode=rounding["node_mode"], block=rounding["block"])
        grid = np.asarray(sharding.found(nodes * chains)).reshape(nodes, chains)
        mesh = jax.sharding.Mesh(grid, (sharding.NODES, sharding.CHAINS))
        return cls(mesh, node_mode=rounding["node_mode"], block=rounding["block"])

    @property
    def root(self) -> bool:
        """True in the one process that keeps the draws and writes to the terminal."""
        return not sharding.are_several() or jax.process_index() == 0

    def abort(self, error: BaseException, code: int) -> None:
        """End this process after an error; of several it ends at once.

        JAX would else wait at its end for the others, which wait for this one.
        """
        if sharding.are_several():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def barrier(self) -> None:
        """Wait for all processes of ``jax.distributed``."""
        if sharding.are_several():
            with sharding.rank_losses():
                from jax.experimental import multihost_utils

                multihost_utils.sync_global_devices("meet")

    def allgather(
        self, make: Callable[[], Any], same: Callable[[], Mapping[str, Any]] = dict
    ) -> list[Any]:
        """Return the result of ``make`` here, where all processes of ``jax.distributed`` agree."""
        result = make()
        if sharding.are_several() and (hexes := fingerprints.of_values(same())):
            digests = np.array([list(bytes.fromhex(text)) for text in hexes.values()], np.uint8)
            with sharding.rank_losses():
                from jax.experimental import multihost_utils

                tables = multihost_utils.process_allgather(digests)
            rows = [[bytes(row).hex() for row in np.asarray(table)] for table in tables]
            every = {number: dict(zip(hexes, row, strict=True)) for number, row in enumerate(rows)}
            fingerprints.check_same(every, "process")
        return [result]

    def prepare(self, target: Target, sites: Sites, method: Method, chains: int) -> LocalRun:
        """Place the data and find or make the program; compile nothing yet."""
        arrays = site_arrays(target.model, sites, method, np.arange(len(sites)))
        if self.participation is not None:
            self._check_participation(method.build(target), len(sites))
            arrays = arrays._replace(present=jnp.ones(len(sites)))
        divided = self._division(sites, method.build(target), chains)
        layout = self.layout(target, sites, method, chains, divided)
        shapes = jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), arrays)
        leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda node: type(node) is tuple)
        shaped = (structure_key(target), tuple(leaves), str(structure))
        key = (target.model, method, layout, divided, shaped)
        start = partial(start_values, target, most=method.gradient_rows)
        # One function for all methods of a model: it is traced and compiled once.
        start = _kept(_starts, (target.model, shaped[0], method.gradient_rows), lambda: start)

        def make() -> Program:
            parts = method.build(target), layout, start
            worth = effort(target, sites, method, layout)
            if divided is None:
                return Program(*parts, worth)
            return ShardedProgram(*parts, divided, worth)

        program = _kept(_programs, key, make)
        if isinstance(program, ShardedProgram):
            return ShardedRun(program, arrays, sites)
        run = LocalRun(program, sites, arrays)
        run.participation = self.participation
        run.averaging = method.averaging_weights(np.asarray(sites.sizes))
        return run

    def panel(self, target: Target, sites: Sites, method: Conversation) -> LocalPanel:
        """Place the data for a conversation; compile nothing yet."""
        if self.participation is not None:
            raise InputError(
                "participation: only averages can be taken over some of the sites (fa_hmc, fa_ld)."
            ).at("participation")
        devices = self._devices_of_sites()
        division = sharding.of_sites(devices, len(sites))
        self._check_all_processes(division)
        every = np.arange(len(sites))
        placement = Placement(every, self.node_mode == "map", division)

        def start() -> Any:
            key = "conversation", target.model, structure_key(target)
            return _kept(_starts, key, lambda: compiled_start(partial(start_values, target)))

        kind = LocalPanel if division is None else ShardedPanel
        panel = kind(target, sites, method, placement, start)
        if len(devices) > panel.parts[0]:
            panel.notes = (
                f"{panel.parts[0]} of {len(devices)} devices is used: each takes whole sites, and "
                f"there are {len(sites)}.",
            )
        return panel

    def _devices_of_sites(self) -> list[Any]:
        """Return the devices among which sites are divided; none where the default one has all."""
        several = sharding.are_several()
        devices = jax.devices() if several else []
        if self._mesh is not None:
            sharding.check_mesh(self._mesh)
            devices = list(self._mesh.devices.flat)
        elif self._devices is not None:
            devices = list(sharding.found(self._devices))
        return list(devices)

    def _check_participation(self, algorithm: Algorithm, nodes: int) -> None:
        assert self.participation is not None
        if self.participation.ndim != 2 or self.participation.shape[1] != nodes:
            raise InputError(
                f"participation has shape {self.participation.shape}: give (rounds, {nodes}), one "
                "bool for each round, warm-up included, and each site."
            ).at("participation")
        if not self.participation.any(axis=1).all():
            raise wrong("participation", ": there is a round in which no site takes part.")
        if not all(isinstance(p.exchange, Mean | None) for p in algorithm.phases):
            raise InputError(
                "participation: only averages can be taken over some of the sites (fa_hmc, fa_ld)."
            ).at("participation")

    def _division(
        self, sites: Sites, algorithm: Algorithm, chains: int
    ) -> sharding.Sharding | None:
        """Return over which devices the run is divided; None: the default one alone."""
        shape = (algorithm, len(sites), chains)
        several = sharding.are_several()
        divided = None
        if self._mesh is not None:
            divided = sharding.of_mesh(self._mesh, *shape)
        elif self.participation is None:
            requested = self._devices is not None or several
            divided = sharding.of_devices(
                sharding.found(self._devices), *shape, requested=requested
            )
        self._check_all_processes(divided)
        return divided

    @staticmethod
    def _check_all_processes(divided: sharding.Sharding | None) -> None:
        """Raise an `InputError` where a process of ``jax.distributed`` would have no device."""
        several = sharding.are_several()
        if several and (divided is None or divided.processes < jax.process_count()):
            raise InputError(
                f"the devices of this run belong to {1 if divided is None else divided.processes} "
                f"of {jax.process_count()} processes: give a mesh or devices of all of them, or "
                "start fewer."
            )

    def layout(
        self,
        target: Target,
        sites: Sites,
        method: Method,
        chains: int,
        divided: sharding.Sharding | None = None,
    ) -> Layout:
        """Choose the batches of nodes, chains and rounds."""
        nodes = len(sites)
        parts = 1 if divided is None else divided.nodes * divided.chains
        cost = method.cost(np.asarray(sites.sizes, np.int64), target.dimension)
        rows = cost.row_gradients / max(cost.gradients, 1)
        row_bytes = sum(leaf.nbytes / leaf.shape[0] for leaf in jax.tree.leaves(sites.first))
        mapped = self.node_mode == "map"
        if self.node_mode == "auto":
            mapped = nodes == 1 or rows * row_bytes > MAP_BYTES
        draws = method.build(target).draws
        draw_bytes = chains * target.dimension * target.dtype.itemsize
        draw_bytes *= 1 + nodes if draws.agents else 1
        places = int(np.clip(CHUNK_BYTES // draw_bytes, 1, MOST_SLOTS))
        places = max(places, draws.per_iteration)
        layout = Layout(nodes, chains, mapped, 1, places)
        if self.block is not None:
            block = self.block
        else:
            numbers = rng.bytes_of_round(method.build(target).phases, layout)
            block = int(np.clip(BLOCK_BYTES * parts // max(numbers, 1), 1, LONGEST_BLOCK))
        return Layout(nodes, chains, mapped, block, places)


def effort(target: Target, sites: Sites, method: Method, layout: Layout) -> compiler.Effort:
    """Return the compiler's effort for the functions of a run.

    Its options follow from the padded rows of all sites: programs are kept by these, and all
    processes of a run round equally.
    """
    padded = np.full(len(sites), max(sites.sizes), np.int64)
    numbers = sum(leaf.size / leaf.shape[0] for leaf in jax.tree.leaves(sites.first)) * padded.sum()
    small = numbers <= compiler.MOST_NUMBERS
    small = small and layout.nodes * layout.chains <= compiler.MOST_STATES
    once = compiler.for_once() if small else {}
    batch = method.gradient_rows
    if method.lightly_compiled and (batch is None or (small and batch <= compiler.FEW_IN_BATCH)):
        return compiler.Effort(once, compiler.lightly())
    return compiler.Effort(once, compiler.for_rounds() if small else {})
