"""Over which devices the nodes and chains of a run are divided."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from consortia.core import arguments
from consortia.core.contract import Algorithm, Mailbox, Route
from consortia.errors import InputError

PyTree = Any

NODES, CHAINS = "nodes", "chains"
"""Names of the axes of a mesh."""


class Axes(NamedTuple):
    """Where the node and chain axes of an array stand; None: it has none."""

    node: int | None
    chain: int | None


@dataclass(frozen=True)
class Sharding:
    """A mesh of devices with the axes ``nodes`` and ``chains``.

    Attributes:
        mesh: (nodes, chains) devices.
        chain_axis: whether arrays have a chain axis at all: a single chain has none.
    """

    mesh: Mesh
    chain_axis: bool

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

    def spec(self, axes: Axes) -> PartitionSpec:
        """How an array with such axes is cut."""
        names: list[str | None] = [None] * (1 + max(axes.node or 0, axes.chain or 0))
        if axes.node is not None:
            names[axes.node] = NODES
        if axes.chain is not None and self.chain_axis:
            names[axes.chain] = CHAINS
        while names and names[-1] is None:  # a scalar has no axis at all
            names.pop()
        return PartitionSpec(*names)

    def specs(self, tree: PyTree) -> PyTree:
        """The same of a pytree of `Axes`."""
        return jax.tree.map(self.spec, tree, is_leaf=_is_axes)

    def shardings(self, tree: PyTree) -> PyTree:
        """As shardings."""
        return jax.tree.map(
            lambda axes: NamedSharding(self.mesh, self.spec(axes)), tree, is_leaf=_is_axes
        )

    def place(self, tree: PyTree, axes: PyTree) -> PyTree:
        """Arrays on the host, the same in every process, on the devices of the mesh."""

        def put(axes: Axes, part: PyTree) -> PyTree:
            sharding = NamedSharding(self.mesh, self.spec(axes))

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
    """The argument ``devices`` of an engine, checked; starts as many CPU devices where it can.

    Raises:
        InputError: it is not a number of devices or a sequence of them.
    """
    if devices is None:
        return None
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        wrong = [device for device in devices if not isinstance(device, jax.Device)]
        if not devices or wrong:
            raise InputError(f"devices is {devices!r}: give a number, or devices of JAX.")
        return tuple(devices)
    count = arguments.whole("devices", devices, 1)
    offer_cpu_devices(count)
    return count


def offer_cpu_devices(count: int) -> None:
    """Lets JAX make so many devices of the processor, if it has not started or been told yet."""
    told = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not told and "JAX_NUM_CPU_DEVICES" not in os.environ:
        with contextlib.suppress(RuntimeError):  # JAX has started, with the devices that it has
            jax.config.update("jax_num_cpu_devices", count)


def cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def found(devices: Sequence[Any] | int | None) -> Sequence[Any]:
    """The devices that were asked for; all of JAX's where none were.

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
            f"devices is {devices}, but JAX has {len(there)} ({there[0].platform}): ask for fewer, "
            f"or set JAX_NUM_CPU_DEVICES={devices} before the start to divide the processor."
        )
    return tuple(there[:devices])


def of_mesh(mesh: Any, algorithm: Algorithm, nodes: int, chains: int) -> Sharding | None:
    """The division that a mesh asks for.

    Raises:
        InputError: it is not a mesh, its axes have other names or do not divide, or the algorithm
            cannot be cut there.
    """
    if not isinstance(mesh, Mesh):
        raise InputError(f"mesh is {mesh!r}: give a jax.sharding.Mesh.")
    strange = [str(name) for name in mesh.axis_names if name not in (NODES, CHAINS)]
    if strange:
        raise InputError(
            f"mesh has the axis {strange[0]!r}: name its axes 'nodes' and 'chains', or one of them."
        )
    parts = {name: int(mesh.shape.get(name, 1)) for name in (NODES, CHAINS)}
    for name, count in ((NODES, nodes), (CHAINS, chains)):
        if count % parts[name]:
            raise InputError(
                f"mesh has {parts[name]} devices along {name!r}, which does not divide the "
                f"{count} {name if count > 1 else name[:-1]} of this run: give an axis whose "
                f"length divides {count}."
            )
    refused = _cannot(algorithm, parts[NODES], parts[CHAINS])
    if refused:
        raise InputError(f"mesh: {refused}")
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
    cut_nodes: bool = True,
    all_of_them: bool,
) -> Sharding | None:
    """As many of these devices as divide the run evenly; None for JAX's first alone.

    Chains are divided first: they never wait for each other.

    Args:
        devices: in order.
        algorithm: what runs.
        nodes: number of sites.
        chains: of all servers.
        cut_nodes: whether to divide the nodes too.
        all_of_them: refuse to leave one out.

    Raises:
        InputError: not all can be used.
    """
    for count in range(len(devices), 0, -1):
        for along_chains in range(count, 0, -1):
            along_nodes, rest = divmod(count, along_chains)
            if rest or chains % along_chains or nodes % along_nodes:
                continue
            if along_nodes > 1 and not cut_nodes:
                continue
            if not _cannot(algorithm, along_nodes, along_chains):
                grid = np.asarray(devices[:count]).reshape(along_nodes, along_chains)
                return _division(grid, chains)
        if all_of_them:
            break
    reason = _cannot(algorithm, len(devices), len(devices))
    raise InputError(
        f"devices: {len(devices)} do not divide {chains} chain{'s' * (chains > 1)} and {nodes} "
        f"site{'s' * (nodes > 1)} evenly{'; ' + reason if reason else ''}: ask for a number that "
        "divides one of them, or change run.chains."
    )


def _division(grid: np.ndarray, chains: int) -> Sharding | None:
    if grid.size == 1 and grid.flat[0] == jax.devices()[0]:
        return None
    return Sharding(Mesh(grid, (NODES, CHAINS)), chains > 1)


def _cannot(algorithm: Algorithm, along_nodes: int, along_chains: int) -> str | None:
    """Why the algorithm's run cannot be cut so, or None."""
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
