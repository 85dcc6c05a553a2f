"""The recorded arrays of a run as an `xarray.DataTree` in ArviZ's layout."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from consortia.core import parameters
from consortia.core.version import __version__
from consortia.store.metadata import Labels, with_labels

FORMAT_VERSION = 4

MOMENTS = "moments"
"""Group of the moments of all draws, where they are not all kept."""


class Records(NamedTuple):
    """The recorded arrays of one chunk or of a whole run, on the host."""

    draws: np.ndarray  # (chains, draws, d)
    agents: np.ndarray | None  # (chains, draws, sites, d) or None
    hub_info: Mapping[str, np.ndarray]  # name to (chains, draws)
    node_info: Mapping[str, np.ndarray]  # name to (chains, draws, sites)

    @classmethod
    def of_buffers(cls, buffers: Any, filled: int, chains: int) -> Records:
        """Return the filled slots of the engine's buffers as views, to be copied and not kept."""

        def host(array: Any, *, nodes: bool) -> np.ndarray:
            array = np.asarray(array)[:filled]
            if chains == 1:
                array = np.expand_dims(array, 2 if nodes else 1)
            # (draws, sites, chains, ...) or (draws, chains, ...), to chains first
            return np.moveaxis(array, 2 if nodes else 1, 0)

        return cls(
            host(buffers.draws, nodes=False),
            None if buffers.agents is None else host(buffers.agents, nodes=True),
            {name: host(array, nodes=False) for name, array in buffers.hub_info.items()},
            {name: host(array, nodes=True) for name, array in buffers.node_info.items()},
        )

    def each(self, function: Callable[..., np.ndarray], *others: Records) -> Records:
        """Return the records of a function of the arrays in one place of all of them."""

        def of(*parts: Any) -> Any:
            if isinstance(parts[0], Mapping):
                return {name: of(*(part[name] for part in parts)) for name in sorted(parts[0])}
            return None if parts[0] is None else function(*parts)

        return Records(*map(of, self, *others))

    def arrays(self) -> list[np.ndarray]:
        """Return all arrays."""
        infos = [info[name] for info in (self.hub_info, self.node_info) for name in sorted(info)]
        return [self.draws, *([] if self.agents is None else [self.agents]), *infos]

    @property
    def bytes_per_draw(self) -> int:
        """Bytes of all arrays and chains."""
        return sum(array[:, :1].nbytes for array in self.arrays())

    def room_for(self, draws: int) -> Records:
        """Return records without content, of the same kind, with so many draws."""
        return self.each(lambda a: np.empty((len(a), draws, *a.shape[2:]), a.dtype))

    def put(self, part: Records, first: int) -> None:
        """Copy other records to the draws from index ``first`` on."""
        for array, chunk in zip(self.arrays(), part.arrays(), strict=True):
            array[:, first : first + chunk.shape[1]] = chunk

    def copy(self) -> Records:
        """Return the same arrays in memory of their own."""
        return self.each(np.array)

    def between(self, first: int, stop: int) -> Records:
        """Return a view of some draws."""
        return self.each(lambda array: array[:, first:stop])

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Records:
        """Return the chunks of a run one after the other."""
        if len(parts) == 1:
            return parts[0]
        return parts[0].each(lambda *arrays: np.concatenate(arrays, axis=1), *parts[1:])


def datasets(
    records: Records,
    variables: Sequence[parameters.Variable],
    sites: Sequence[str],
    *,
    first_draw: int,
    weights: np.ndarray | None,
    labels: Labels | None = None,
) -> dict[str, Any]:
    """Return the groups ``posterior``, ``sample_stats`` and ``agents`` as datasets.

    Args:
        records: what was recorded.
        variables: the parameters' names and places in the flat position.
        sites: names of the sites.
        first_draw: index of the first draw of these records in the run.
        weights: step weight of each draw, (draws,) or (chains, draws), or None when the step size
            does not vary.
        labels: names along the axes of the variables, see `consortia.store.metadata.Metadata`.
    """
    import xarray

    coordinates: dict[str, Any] = {
        "chain": np.arange(records.draws.shape[0]),
        "draw": np.arange(first_draw, first_draw + records.draws.shape[1]),
    }

    def dataset(arrays: Mapping[str, np.ndarray], *over: str) -> Any:
        return with_labels(dataset_of(arrays, coordinates, over), labels or {})

    groups = {"posterior": dataset(parameters.split(records.draws, variables), "chain", "draw")}
    stats = xarray.Dataset()
    if records.hub_info:
        stats = dataset(records.hub_info, "chain", "draw")
    if weights is not None:
        over = ("chain", "draw")[-weights.ndim :]
        coords = {dim: coordinates[dim] for dim in over}
        stats = stats.assign(weight=xarray.DataArray(weights, dims=over, coords=coords))
    if stats.data_vars:
        groups["sample_stats"] = stats
    arrays = dict(records.node_info)
    if records.agents is not None:
        arrays |= parameters.split(records.agents, variables)
    if arrays:
        # Zarr has no stable form of fixed-length text
        coordinates["agent"] = np.array(sites, dtype=object)
        groups["agents"] = dataset(arrays, "chain", "draw", "agent")
    return groups


def dataset_of(
    arrays: Mapping[str, np.ndarray], coordinates: Mapping[str, np.ndarray], over: Sequence[str]
) -> Any:
    """Return arrays as a dataset in ArviZ's layout.

    ``over`` names the first axes of every array; the others are ``NAME_dim_0`` and so on. Axes
    without coordinates are counted from 0.
    """
    import xarray  # heavy, and only wanted here

    variables, along = {}, {}
    for name, array in arrays.items():
        axes = [*over, *(f"{name}_dim_{i}" for i in range(array.ndim - len(over)))]
        variables[name] = (axes, array)
        for axis, size in zip(axes, array.shape, strict=True):
            along[axis] = coordinates.get(axis, np.arange(size))
    return xarray.Dataset(variables, coords=along)


def tree_of(groups: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    """Return a DataTree of these groups with the record of the run at its root."""
    import xarray

    tree = xarray.DataTree.from_dict({f"/{name}": group for name, group in groups.items()})
    tree.attrs.update(plain_attributes(attributes))
    return tree


def plain_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for netCDF and Zarr: numbers and text as they are, all else as JSON."""
    plain: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, bool) or value is None or isinstance(value, (dict, list, tuple)):
            plain[name] = json.dumps(value)
        elif isinstance(value, np.generic):
            plain[name] = value.item()
        else:
            plain[name] = value
    return plain


def versions() -> dict[str, str | None]:
    """Return the versions of what computed the run; None of what is not installed."""
    installed: dict[str, str | None] = dict.fromkeys(("jax", "jaxlib"))
    for name in installed:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # by consortia-site
            installed[name] = importlib.metadata.version(name)
    return {
        "consortia": __version__,
        **installed,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
