"""From the recorded arrays of a run to an `xarray.DataTree` in ArviZ's layout."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from consortia.core import parameters

FORMAT_VERSION = 2


class Records:
    """The recorded arrays of one chunk or of a whole run, on the host.

    Attributes:
        draws: (chains, draws, d).
        agents: (chains, draws, sites, d) or None.
        hub_info: name to (chains, draws).
        node_info: name to (chains, draws, sites).
    """

    def __init__(
        self,
        draws: np.ndarray,
        agents: np.ndarray | None,
        hub_info: Mapping[str, np.ndarray],
        node_info: Mapping[str, np.ndarray],
    ) -> None:
        self.draws = draws
        self.agents = agents
        self.hub_info = dict(hub_info)
        self.node_info = dict(node_info)

    @classmethod
    def of_buffers(cls, buffers: Any, filled: int, chains: int) -> Records:
        """The filled slots of the engine's buffers, as views of them: to be copied, not kept."""

        def host(array: Any, nodes: bool) -> np.ndarray:
            array = np.asarray(array)[:filled]
            if chains == 1:
                array = np.expand_dims(array, 2 if nodes else 1)
            if nodes:  # (draws, sites, chains, ...) to (chains, draws, sites, ...)
                return np.moveaxis(array, 2, 0)
            return np.moveaxis(array, 1, 0)

        return cls(
            host(buffers.draws, False),
            None if buffers.agents is None else host(buffers.agents, True),
            {name: host(array, False) for name, array in buffers.hub_info.items()},
            {name: host(array, True) for name, array in buffers.node_info.items()},
        )

    def _map(self, function: Callable[..., np.ndarray], *others: Records) -> Records:
        """The same records with a function applied to every array (and its like in others)."""

        def named(pick: Callable[[Records], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
            return {
                name: function(array, *(pick(other)[name] for other in others))
                for name, array in pick(self).items()
            }

        agents = None
        if self.agents is not None:
            agents = function(self.agents, *(other.agents for other in others))
        return Records(
            function(self.draws, *(other.draws for other in others)),
            agents,
            named(lambda records: records.hub_info),
            named(lambda records: records.node_info),
        )

    @property
    def bytes_per_draw(self) -> int:
        """Of all arrays and chains."""
        arrays = [self.draws, *self.hub_info.values(), *self.node_info.values()]
        if self.agents is not None:
            arrays.append(self.agents)
        return sum(array[:, :1].nbytes for array in arrays)

    def room_for(self, draws: int) -> Records:
        """Records without content, of the same kind, with so many draws."""
        return self._map(lambda array: np.empty((len(array), draws, *array.shape[2:]), array.dtype))

    def put(self, part: Records, first: int) -> None:
        """Copies other records to the places from number ``first`` on."""

        def copy(array: np.ndarray, own: np.ndarray) -> np.ndarray:
            array[:, first : first + own.shape[1]] = own
            return array

        self._map(copy, part)

    def copy(self) -> Records:
        """The same arrays in memory of their own."""
        return self._map(np.array)

    def between(self, first: int, stop: int) -> Records:
        """A view of some draws."""
        return self._map(lambda array: array[:, first:stop])

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Records:
        """The chunks of a run, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return parts[0]._map(lambda *arrays: np.concatenate(arrays, axis=1), *parts[1:])


def datasets(
    records: Records,
    variables: Sequence[parameters.Variable],
    sites: Sequence[str],
    *,
    first_draw: int,
    weights: np.ndarray | None,
) -> dict[str, Any]:
    """The groups ``posterior``, ``sample_stats`` and ``agents`` as datasets.

    Args:
        records: what was recorded.
        variables: the parameters' names and places in the flat position.
        sites: names of the sites.
        first_draw: index of the first draw of these records in the run.
        weights: step weight of each draw, (draws,) or (chains, draws), or None when the step size
            does not vary.
    """
    from arviz_base import dict_to_dataset

    count = records.draws.shape[1]
    coordinates = {
        "chain": np.arange(records.draws.shape[0]),
        "draw": np.arange(first_draw, first_draw + count),
    }

    def dataset(arrays: dict[str, np.ndarray], **options: Any) -> Any:
        made = dict_to_dataset(
            arrays,
            check_conventions=False,
            coords=coordinates | options.pop("coords", {}),
            **options,
        )
        made.attrs.clear()  # the root of the tree carries the record of the run
        return made

    groups = {"posterior": dataset(parameters.split(records.draws, variables))}
    stats: dict[str, np.ndarray] = dict(records.hub_info)
    if weights is not None:
        stats["weight"] = weights
    if stats:
        no_chain = {"sample_dims": ["chain", "draw"]}
        made = dataset(dict(records.hub_info), **no_chain) if records.hub_info else None
        if weights is not None:
            import xarray

            over = ("chain", "draw")[-weights.ndim :]
            weight = xarray.DataArray(
                weights, dims=over, coords={dim: coordinates[dim] for dim in over}
            )
            made = (
                xarray.Dataset({"weight": weight}) if made is None else made.assign(weight=weight)
            )
        groups["sample_stats"] = made
    arrays = dict(records.node_info)
    if records.agents is not None:
        arrays |= parameters.split(records.agents, variables)
    if arrays:
        dims = {
            name: ["agent", *(f"{name}_dim_{i}" for i in range(array.ndim - 3))]
            for name, array in arrays.items()
        }
        names = np.array(sites, dtype=object)  # Zarr has no stable form of fixed-length text
        groups["agents"] = dataset(arrays, dims=dims, coords={"agent": names})
    return groups


def tree_of(groups: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    """A DataTree of these groups with the record of the run at its root."""
    import xarray

    tree = xarray.DataTree.from_dict({f"/{name}": group for name, group in groups.items()})
    tree.attrs.update(plain_attributes(attributes))
    return tree


def plain_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that netCDF and Zarr can hold: numbers and text, anything else as JSON."""
    plain: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, bool) or value is None or isinstance(value, (dict, list, tuple)):
            plain[name] = json.dumps(value)
        elif isinstance(value, np.generic):
            plain[name] = value.item()
        else:
            plain[name] = value
    return plain


def versions() -> dict[str, str]:
    """Versions of what computed the run."""
    import jax

    from consortia.core.version import __version__

    return {
        "consortia": __version__,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
