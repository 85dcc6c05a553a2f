"""A run over several devices, in one process or in those of ``jax.distributed``.

Every device runs the phases for its own nodes and chains; sums, averages and gossip are collectives
along the axis ``nodes`` of the mesh, and nothing crosses the axis ``chains``. What belongs to no
node (the hub) is computed by all devices equally. Random numbers follow from the keys of nodes and
chains, and are therefore those of one device; so are sums over nodes, unless messages are so large
that they are summed on each device first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt32

from consortia.core import arguments
from consortia.core.contract import Algorithm, Mailbox, Mean, Mix, Phase, Route, Site, Sum
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.engines import exchanges, rng
from consortia.engines.buffers import Buffers, Window, empty_buffers
from consortia.engines.contract import Begin
from consortia.engines.mailbox import Ring
from consortia.engines.phases import Carry, Keys, Program, SiteArrays
from consortia.engines.rng import Layout, PhaseKeys
from consortia.engines.run import LocalRun, gradients
from consortia.errors import InputError, RankError, wrong
from consortia.runtime import compiler, late
from consortia.runtime.late import Array, PyTree, jax, jnp

# --- devices -------------------------------------------------------------------------------------


NODES, CHAINS = "nodes", "chains"
"""Names of the axes of a mesh."""


class Axes(NamedTuple):
    """Positions of the node and chain axes of an array; None: it has none."""

    node: int | None
    chain: int | None


@dataclass(frozen=True)
class Sharding:
    """A mesh of devices with the axes ``nodes`` and ``chains``."""

    mesh: jax.sharding.Mesh  # (nodes, chains) devices
    chain_axis: bool  # whether arrays have a chain axis at all: a single chain has none

    @property
    def nodes(self) -> int:
        """Parts into which the nodes are divided."""
        return int(self.mesh.shape[NODES])

    @property
    def chains(self) -> int:
        """Parts into which the chains are divided."""
        return int(self.mesh.shape[CHAINS])

    @property
    def processes(self) -> int:
        """Processes that hold a device of the mesh."""
        return len({device.process_index for device in self.mesh.devices.flat})

    @property
    def where(self) -> list[str]:
        """Devices of each process, one line each, if there are several."""
        held: dict[int, list[str]] = {}
        for device in self.mesh.devices.flat:
            held.setdefault(device.process_index, []).append(f"{device.platform}:{device.id}")
        if len(held) == 1:
            return []
        return [f"process {index}: {', '.join(names)}" for index, names in sorted(held.items())]

    def gathered(self, tree: PyTree) -> PyTree:
        """Return arrays of all devices, whole in this process; all processes call it."""
        if self.processes == 1:
            return tree
        with rank_losses():
            whole = jax.block_until_ready(self._everywhere(tree))
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), whole)

    @cached_property
    def _everywhere(self) -> Callable[[PyTree], PyTree]:
        """A program whose results are whole on every device."""
        whole = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        return jax.jit(lambda tree: tree, out_shardings=whole)

    def spec(self, axes: Axes) -> jax.sharding.PartitionSpec:
        """Return the partition of an array with such axes."""
        names: list[str | None] = [None] * (1 + max(axes.node or 0, axes.chain or 0))
        if axes.node is not None:
            names[axes.node] = NODES
        if axes.chain is not None and self.chain_axis:
            names[axes.chain] = CHAINS
        while names and names[-1] is None:  # a scalar has no axis at all
            names.pop()
        return jax.sharding.PartitionSpec(*names)

    def specs(self, tree: PyTree) -> PyTree:
        """Return the partition of a pytree of arrays with such `Axes`."""
        return jax.tree.map(self.spec, tree, is_leaf=_is_axes)

    def shardings(self, tree: PyTree) -> PyTree:
        """Return the shardings of a pytree of `Axes`."""
        return jax.tree.map(
            lambda axes: jax.sharding.NamedSharding(self.mesh, self.spec(axes)),
            tree,
            is_leaf=_is_axes,
        )

    def place(self, tree: PyTree, axes: PyTree) -> PyTree:
        """Return arrays on the host, the same in every process, on the devices of the mesh."""

        def put(axes: Axes, part: PyTree) -> PyTree:
            sharding = jax.sharding.NamedSharding(self.mesh, self.spec(axes))

            def leaf(value: Any) -> Any:
                host = np.asarray(value)
                return jax.make_array_from_callback(
                    host.shape, sharding, lambda index: host[index], dtype=host.dtype
                )

            return jax.tree.map(leaf, part)

        return jax.tree.map(put, axes, tree, is_leaf=_is_axes)


def _is_axes(node: Any) -> bool:
    return isinstance(node, Axes)


# --- choosing ------------------------------------------------------------------------------------


def devices_asked(devices: int | Sequence[Any] | None) -> Sequence[Any] | int | None:
    """Return the argument ``devices`` checked; start as many CPU devices where that can be.

    Raises:
        InputError: it is not a number of devices or a sequence of them.
    """
    if devices is None:
        return None
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        strange = [device for device in devices if not isinstance(device, jax.Device)]
        if not devices or strange:
            raise wrong("devices", f" is {devices!r}: give a number, or devices of JAX.")
        return tuple(devices)
    count = arguments.whole("devices", devices, 1)
    offer_cpu_devices(count)
    return count


def are_several() -> bool:
    """Return True in one of several processes of ``jax.distributed``.

    Asking JAX for the number of processes would start it.
    """
    return late.is_loaded() and jax.distributed.is_initialized()


def offer_cpu_devices(count: int) -> None:
    """Let JAX make so many devices of the processor, if it has not started yet."""

    def offer() -> None:
        with contextlib.suppress(RuntimeError):  # JAX has started, with the devices that it has
            jax.config.update("jax_num_cpu_devices", count)

    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not forced and "JAX_NUM_CPU_DEVICES" not in os.environ:
        late.when_loaded(offer)


def cores() -> int:
    """Return processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def found(devices: Sequence[Any] | int | None) -> Sequence[Any]:
    """Return the requested devices; all of JAX's where none are requested.

    Raises:
        InputError: there are fewer.
    """
    if devices is None:
        return tuple(jax.devices())
    if not isinstance(devices, int):
        return devices
    there = jax.devices()
    if len(there) < devices:
        raise InputError(
            f"devices is {devices}, but JAX has {len(there)} ({there[0].platform}): request fewer, "
            f"or set JAX_NUM_CPU_DEVICES={devices} before the start to divide the processor."
        ).at("devices")
    return tuple(there[:devices])


def check_mesh(mesh: Any) -> None:
    """Raise an `InputError` where this is not a mesh, or its axes have other names."""
    if not isinstance(mesh, jax.sharding.Mesh):
        raise wrong("mesh", f" is {mesh!r}: give a jax.sharding.Mesh.")
    strange = [str(name) for name in mesh.axis_names if name not in (NODES, CHAINS)]
    if strange:
        raise InputError(
            f"mesh has the axis {strange[0]!r}: name its axes 'nodes' and 'chains', or one of them."
        ).at("mesh")


def of_sites(devices: Sequence[Any], nodes: int) -> Sharding | None:
    """Return the sites divided over as many of these devices as there are sites; None for one.

    Without devices they are on the default one, too.
    """
    used = np.asarray(devices[: max(min(len(devices), nodes), 1)])
    return _division(used.reshape(-1, 1), 1)


def of_mesh(mesh: Any, algorithm: Algorithm, nodes: int, chains: int) -> Sharding | None:
    """Return the division that a mesh requests.

    Raises:
        InputError: it is not a mesh, its axes have other names or do not divide, or the algorithm
            cannot be cut there.
    """
    check_mesh(mesh)
    parts = {name: int(mesh.shape.get(name, 1)) for name in (NODES, CHAINS)}
    for name, count in ((NODES, nodes), (CHAINS, chains)):
        if count % parts[name]:
            raise InputError(
                f"mesh has {parts[name]} devices along {name!r}, which does not divide the "
                f"{count} {name if count > 1 else name[:-1]} of this run: give an axis whose "
                f"length divides {count}."
            ).at("mesh")
    refused = _cannot(algorithm, parts[NODES], parts[CHAINS])
    if refused:
        raise wrong("mesh", f": {refused}")
    flat = mesh.devices
    if mesh.axis_names == (CHAINS, NODES):
        flat = flat.T
    return _division(flat.reshape(parts[NODES], parts[CHAINS]), chains)


def of_devices(
    devices: Sequence[Any],
    algorithm: Algorithm,
    nodes: int,
    chains: int,
    *,
    requested: bool,
) -> Sharding | None:
    """Return as many of these devices as divide the run evenly; None for JAX's first alone.

    Chains are divided first: they never wait for each other.

    Where devices are ``requested``, nodes are divided too, and no device is left out.

    Raises:
        InputError: not all can be used.
    """
    for count in range(len(devices), 0, -1):
        for along_chains in range(count, 0, -1):
            along_nodes, rest = divmod(count, along_chains)
            if rest or chains % along_chains or nodes % along_nodes:
                continue
            if along_nodes > 1 and not requested:
                continue
            if not _cannot(algorithm, along_nodes, along_chains):
                grid = np.asarray(devices[:count]).reshape(along_nodes, along_chains)
                return _division(grid, chains)
        if requested:
            break
    reason = _cannot(algorithm, len(devices), len(devices))
    raise InputError(
        f"devices: {len(devices)} do not divide {chains} chain{'s' * (chains > 1)} and {nodes} "
        f"site{'s' * (nodes > 1)} evenly{'; ' + reason if reason else ''}: request a number that "
        "divides one of them, or change run.chains."
    ).at("devices")


def _division(grid: np.ndarray, chains: int) -> Sharding | None:
    if not grid.size or (grid.size == 1 and grid.flat[0] == jax.devices()[0]):
        return None
    return Sharding(jax.sharding.Mesh(grid, (NODES, CHAINS)), chains > 1)


def _cannot(algorithm: Algorithm, along_nodes: int, along_chains: int) -> str | None:
    """Find an obstacle to dividing the algorithm's run so; None where there is none."""
    for phase in (*algorithm.fit, *algorithm.setup, *algorithm.phases):
        if isinstance(phase.exchange, Route | Mailbox) and along_nodes > 1:
            return (
                "one site acts at a time in this algorithm, so its nodes cannot be divided; "
                "divide the chains (a mesh axis 'chains')."
            )
        if isinstance(phase.exchange, Mailbox) and jax.process_count() > 1:
            return "a parameter server is simulated in one process; use consortia.MPIEngine."
        if isinstance(phase.exchange, Mailbox) and phase.exchange.servers > 1 < along_chains:
            return "the chains of several servers cannot be divided; use one device."
    return None


# --- processes -----------------------------------------------------------------------------------

SECONDS_TO_JOIN = 120
"""Seconds that a process waits at the start for the others."""


SLURM = "slurm"
"""Name in the place of an address: Slurm knows process 0, how many there are, and this one."""


def join(coordinator: str, processes: int | None = None, process: int | None = None) -> None:
    """Make the devices of all processes those of JAX; before anything else starts JAX.

    Nothing is encrypted, and whoever reaches the port can join: for a trusted network only.

    Args:
        coordinator: ``"HOST:PORT"`` at which process 0 listens, or `SLURM`.
        processes: how many.
        process: number of this one, from 0.

    Raises:
        InputError: an argument is out of its range, or JAX has started already.
        RankError: the others have not come in time.
    """
    cluster: dict[str, Any] = {}
    if coordinator == SLURM:
        cluster["cluster_detection_method"] = SLURM
        if "SLURM_PROCID" not in os.environ:
            raise InputError(
                f"coordinator is {SLURM!r}, and this is not a task of Slurm: start the processes "
                "with srun, or give HOST:PORT."
            ).at("coordinator")
    else:
        processes, process = _checked(coordinator, processes, process)
        cluster |= {"coordinator_address": coordinator}
        cluster |= {"num_processes": processes, "process_id": process}
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(**cluster, initialization_timeout=SECONDS_TO_JOIN)
    except jax.errors.JaxRuntimeError as error:
        this, every = (process, processes) if process is not None else ("of Slurm", "its")
        raise RankError(
            f"process {this} found not all of {every} processes at {coordinator} within "
            f"{SECONDS_TO_JOIN} s: start all of them, with the same address ({error})."
        ) from error
    except RuntimeError as error:
        raise InputError(f"the processes cannot be joined: {error}.") from error


def _checked(coordinator: str, processes: int | None, process: int | None) -> tuple[int, int]:
    """Return the number of processes and the index of this one; refuse what cannot be."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(
            f"coordinator is {coordinator!r}: give HOST:PORT, as in 10.0.0.1:9911, or {SLURM}."
        ).at("coordinator")
    processes = arguments.whole("processes", processes, 1)
    process = arguments.whole("process", process, 0)
    if process >= processes:
        raise wrong("process", f" is {process}: number the {processes} processes from 0.")
    return processes, process


@contextlib.contextmanager
def rank_losses() -> Iterator[None]:
    """Raise the loss of a process, in what all do together, as a `RankError`."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not jax.distributed.is_initialized():
            raise
        raise RankError(
            f"process {jax.process_index()} lost another of the {jax.process_count()} processes "
            f"of this run, which has ended or cannot be reached ({error})."
        ) from error


# --- the program ---------------------------------------------------------------------------------


def _axes(node: int | None, chain: int | None) -> Any:
    """Return `Axes` in the place of arrays that have them."""
    return Axes(node, chain)


_OF_NODES = _axes(0, None)
ARRAYS = SiteArrays(_OF_NODES, _OF_NODES, _OF_NODES, _OF_NODES, _OF_NODES, _axes(None, None))
BUFFERS = Buffers(_axes(None, 1), _axes(1, 2), _axes(None, 1), _axes(1, 2))


class ShardedProgram(Program):
    """A `Program` of which the functions take and return arrays on the devices of a mesh."""

    def __init__(
        self,
        algorithm: Algorithm,
        layout: Layout,
        start_values: Callable[..., Any],
        division: Sharding,
        effort: compiler.Effort = compiler.FULL,
    ) -> None:
        super().__init__(algorithm, layout, start_values, effort)
        self.division = division
        part = replace(
            layout, nodes=layout.nodes // division.nodes, chains=layout.chains // division.chains
        )
        inner = _Part(algorithm, part, start_values, layout)
        # Before ``setup`` all nodes have one inbox, after it perhaps each its own: other axes.
        first, later = self.carry_axes(begun=False), self.carry_axes(begun=True)
        PartitionSpec = jax.sharding.PartitionSpec
        node_chain = PartitionSpec(NODES, CHAINS)

        def compiled(body: Any, takes: tuple[Any, ...], gives: Any, **options: Any) -> Any:
            whole = jax.shard_map(
                body, mesh=division.mesh, in_specs=takes, out_specs=gives, check_vma=False
            )
            return jax.jit(whole, **{"compiler_options": effort.once} | options)

        arrays, at = division.specs(ARRAYS), division.specs(later)
        before, buffers = division.specs(first), division.specs(BUFFERS)
        # Keys lie where their nodes and chains are: each device draws the numbers of its own.
        of_keys = division.specs(self.key_axes(rng.ROUND))
        self._empty = jax.jit(self._zeros, out_shardings=division.shardings(BUFFERS))
        self.emptied = jax.jit(_emptied, donate_argnums=0)
        self.start_values = compiled(
            start_values,
            (arrays, PartitionSpec(CHAINS)),
            (PartitionSpec(CHAINS), node_chain, node_chain),
        )
        self.fit = compiled(
            inner._fit,
            (arrays, division.specs(self.key_axes(rng.FIT)), PartitionSpec()),
            PartitionSpec(NODES),
        )
        of_setup = self.key_axes(rng.SETUP)
        set_up = jax.shard_map(
            lambda sites, keys, carry: self._spread(
                inner._setup(sites, self._own(keys, of_setup), self._own(carry, first)), later
            ),
            mesh=division.mesh,
            in_specs=(arrays, division.specs(of_setup), before),
            out_specs=at,
            check_vma=False,
        )

        def begin(positions: Any, ring: int, sites: SiteArrays, keys: Keys) -> Carry:
            carry = self._start(positions, ring)
            return set_up(sites, keys, carry) if algorithm.setup else carry

        self.begin = jax.jit(
            begin,
            static_argnums=1,
            out_shardings=division.shardings(later),
            compiler_options=effort.once,
        )

        def advance(
            carry: Carry, buffers: Buffers, sites: SiteArrays, keys: Keys, window: Any
        ) -> Any:
            part = self._own(carry, later), self._own(buffers, BUFFERS)
            own_keys = self._own(keys, self.key_axes(rng.ROUND))
            carry, buffers, finite = inner._advance(*part, sites, own_keys, window)
            return self._spread(carry, later), self._spread(buffers, BUFFERS), finite

        self.advance = compiled(
            advance,
            (at, buffers, arrays, of_keys, PartitionSpec()),
            (at, buffers, PartitionSpec(CHAINS)),
            donate_argnums=(1,),
            compiler_options=effort.often,
        )
        self.outboxes_finite = compiled(
            lambda carry, sites, keys, at, warmup: inner._outboxes_finite(
                self._own(carry, later),
                sites,
                self._own(keys, self.key_axes(rng.ROUND)),
                at,
                warmup,
            ),
            (at, arrays, of_keys, PartitionSpec(), PartitionSpec()),
            node_chain,
        )

    def carry_axes(self, *, begun: bool) -> Carry:
        """Return the axes of a carry, after ``setup`` or before it."""
        if self.mailbox is not None:
            inbox = Ring(_axes(None, 1), _axes(None, 0))
            return Carry(_axes(None, 1), _axes(None, 0), inbox)
        everywhere = self.inbox_per_node and (begun or not self.algorithm.setup)
        return Carry(_axes(0, 1), _axes(None, 0), _axes(0, 1) if everywhere else _axes(None, 0))

    def keys(self, stage: int, base: UInt32[np.ndarray, " 2"]) -> Keys:
        """Return the keys of a stage's phases, on the devices of their nodes and chains."""
        whole = rng.stage_keys(self.phases_of(stage), stage, base, self.layout_of(stage))
        return self.division.place(whole, self.key_axes(stage))

    def key_axes(self, stage: int) -> tuple[PhaseKeys, ...]:
        """Return the axes of the keys of a stage's phases."""
        chain = (None, None) if stage == rng.FIT else (0, 1)
        return tuple(
            PhaseKeys(
                _axes(None, chain[0]),
                _axes(None if isinstance(phase.exchange, Mailbox) else 0, chain[1]),
            )
            for phase in self.phases_of(stage)
        )

    def buffers(self, carry: Carry, sites: SiteArrays, keys: Keys) -> Buffers:
        """Return empty buffers of one chunk, on the devices."""
        self.shapes(carry, sites, keys)
        return self._empty()

    def _zeros(self) -> Buffers:
        assert self._shapes is not None
        each = self.algorithm.draws.per_iteration
        return empty_buffers(self._shapes[0], self.layout, each, jnp.zeros)

    # A device's only chain has no chain axis, like the only chain of a run.

    def _own(self, tree: PyTree, axes: PyTree) -> PyTree:
        return self._reshaped(jnp.squeeze, tree, axes)

    def _spread(self, tree: PyTree, axes: PyTree) -> PyTree:
        return self._reshaped(jnp.expand_dims, tree, axes)

    def _reshaped(self, change: Callable[..., Array], tree: PyTree, axes: PyTree) -> PyTree:
        if self.layout.chains == 1 or self.layout.chains > self.division.chains:
            return tree

        def part(axes: Axes, below: PyTree) -> PyTree:
            if axes.chain is None:
                return below
            return jax.tree.map(lambda leaf: change(leaf, axis=axes.chain), below)

        return jax.tree.map(part, axes, tree, is_leaf=_is_axes)


class _Part(Program):
    """The program of one device, inside `jax.shard_map`."""

    def __init__(
        self,
        algorithm: Algorithm,
        layout: Layout,
        start_values: Callable[..., Any],
        whole: Layout,
    ) -> None:
        super().__init__(algorithm, layout, start_values)
        self._whole = whole

    def exchanged(
        self, phase: Phase, outbox: PyTree, sites: SiteArrays, turn: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Return the message that the outboxes of the nodes of all devices become."""
        apart = self.layout.nodes < self._whole.nodes
        if not (apart and isinstance(phase.exchange, Mean | Sum | Mix)):
            return super().exchanged(phase, outbox, sites, turn)
        mixes, nodes = isinstance(phase.exchange, Mix), self.layout.nodes
        if mixes or exchanges.is_in_order(outbox, self._whole.nodes, nodes):
            everyone = jax.lax.all_gather((outbox, sites.weights), NODES, tiled=True)
            message = exchanges.message_of(phase.exchange, *everyone)
            if mixes:
                message = jax.tree.map(lambda leaf: self._cut(leaf, 0, NODES, nodes), message)
            return message, turn
        message, turn = super().exchanged(phase, outbox, sites, turn)
        return jax.lax.psum(message, NODES), turn

    def average(self, agents: Float[Array, "nodes ..."]) -> Float[Array, " ..."]:
        """Return the mean over the nodes of all devices."""
        return jax.lax.pmean(super().average(agents), NODES)

    @staticmethod
    def _cut(leaf: Array, axis: int, along: str, count: int) -> Array:
        """Return this device's part of an array that every device has whole."""
        first = jax.lax.axis_index(along) * count
        return jax.lax.dynamic_slice_in_dim(leaf, first, count, axis)


# --- the run -------------------------------------------------------------------------------------


class ShardedRun(LocalRun):
    """A `LocalRun` with its arrays on the devices of a mesh; every process runs it.

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
        super().__init__(program, sites, arrays)
        self.root = jax.process_index() == 0
        self.division = program.division
        self.parts = (self.division.nodes, self.division.chains)
        self._arrays = self.division.place(arrays, ARRAYS)

    # --- between two rounds -----------------------------------------------------------------------

    def start_values(self, positions: Float[Array, "chains d"]) -> Any:
        """Return the values of `LocalRun`."""
        on_host: Any = np.asarray(positions)  # every process gives them to all of its devices
        return self._here(super().start_values(on_host))

    def _started(self, begin: Begin) -> Carry:
        on_host: Any = np.asarray(begin.positions)
        carry = super()._started(begin._replace(positions=on_host))
        if begin.state is None:
            return carry
        self._arrays = self._arrays._replace(
            fitted=self.division.place(self._arrays.fitted, ARRAYS.fitted)
        )
        return self.division.place(carry, self.program.carry_axes(begun=True))

    def with_block(self, buffers: Buffers, block: Mapping[str, np.ndarray]) -> Buffers:
        """Return the buffers of `LocalRun`, on these devices."""
        begun = super().with_block(self._here(buffers), block)
        return self.division.place(begun, BUFFERS)

    def emptied(self, buffers: Buffers) -> Buffers:
        """Return the buffers of a chunk whose draws have been taken, for the next one."""
        return self.program.emptied(buffers)

    def advance(self, carry: Carry, buffers: Buffers, window: Window) -> Any:
        """Advance as `LocalRun`."""
        with rank_losses():
            carry, buffers, finite = super().advance(carry, buffers, window)
            return carry, buffers, self._here(finite)

    @property
    def devices(self) -> list[Any]:
        """Devices of the mesh, nodes first."""
        return list(self.division.mesh.devices.flat)

    # --- several processes ------------------------------------------------------------------------

    def agree(self, value: float) -> float:
        """Return the value of the process that is the root."""
        if self.division.processes == 1:
            return value
        with rank_losses():
            from jax.experimental import multihost_utils

            return float(multihost_utils.broadcast_one_to_all(np.float64(value)))

    @property
    def where(self) -> list[str]:
        """Devices of each process, one line each, if there are several."""
        return self.division.where

    # --- queries between rounds -------------------------------------------------------------------

    def site(self, name: str) -> Site | None:
        """Return one site, as a visiting chain sees it; all processes call it."""
        node = self.names.index(name)
        arrays = self._arrays._replace(events=())
        site_arrays = self._here(jax.tree.map(lambda leaf: leaf[node : node + 1], arrays))
        return site_arrays.site(0, node)

    def gradients(
        self,
        target: Target,
    ) -> Callable[[Float[Array, " d"]], Float[Array, "nodes d"]] | None:
        """Return position (d,) ↦ ∇U_c of all rows of each site, (nodes, d)."""
        if self.division.processes == 1:
            return super().gradients(target)
        here = jax.tree.map(lambda leaf: leaf.addressable_data(0), self._arrays)
        whole = here._replace(events=())
        return lambda position: gradients(target.model, target.unravel(position), whole)

    def _here(self, tree: PyTree) -> PyTree:
        """Return arrays of all devices, whole in this process."""
        return self.division.gathered(tree)


def _emptied(buffers: Buffers) -> Buffers:
    hub, node = jax.tree.map(jnp.zeros_like, (buffers.hub_info, buffers.node_info))
    return buffers._replace(hub_info=hub, node_info=node)
