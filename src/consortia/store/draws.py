"""The Zarr store of a run's draws: appended to, cut back, checked.

Arrays are cut along the draws into files of equal length, uncompressed (draws are noise) and each
with a checksum. Zarr writes a file under another name and renames it, so that a kill leaves the
old one or the new one. Another checksum, of all draws of an array so far, goes into the
checkpoints: it finds a file that is whole, but of another run.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from consortia.store.durable import sync_directory
from consortia.store.layout import check_hierarchy

DRAW = "draw"
ORDER = "variables"
"""The attribute of a group that names its variables in the order of the run."""
ZARR: dict[str, Any] = {"zarr_format": 3, "use_consolidated": False}
"""Options with which a group is opened: no older format, and no summary by somebody else."""

ALWAYS_WRITTEN = {"array.write_empty_chunks": True}
"""A file that is absent is then a lost one, and never one without content."""


class DrawStore:
    """Groups of arrays that grow along the dimension ``draw``.

    Args:
        path: the Zarr directory.
        chunk: draws in a file, for groups that do not exist yet.
    """

    def __init__(self, path: Path, chunk: int) -> None:
        self.path = path
        self._chunk = chunk
        self._growing: dict[str, dict[str, Any]] = {}
        self._sums: dict[str, int] = {}

    def append(self, groups: Mapping[str, Any]) -> None:
        """Add draws to every group and have them on the disk."""
        for name, dataset in groups.items():
            if name not in self._growing and not (self.path / name).exists():
                self._create(name, dataset)
                continue
            for variable, array in self._arrays(name).items():
                values = dataset.variables[variable]
                axis, new = draw_axis(array), np.asarray(values.values)
                first = array.shape[axis]
                _resize(array, first + new.shape[axis])
                array[_between(array, first, None)] = new
                self._added(f"{name}/{variable}", array, first, new)

    def sums(self) -> dict[str, int]:
        """Return a checksum of the draws of each array so far, by group and name."""
        return dict(self._sums)

    def put(self, name: str, dataset: Any) -> None:
        """Write a group that does not grow, over what was there."""
        self._write(name, dataset, {})

    def cut(self, sums: Mapping[str, int], kept: int) -> None:
        """Leave ``kept`` draws in the groups of these arrays, and remove all other groups.

        What is there must have been checked by `problem`.
        """
        self._growing.clear()
        self._sums = dict(sums) if kept else {}
        names = {name.partition("/")[0] for name in self._sums}
        if self.path.exists() and not names:
            shutil.rmtree(self.path)
        elif self.path.exists():
            for file in self.path.rglob("*.partial"):  # of a write that was cut short
                file.unlink()
            for group in self.path.iterdir():
                if group.is_dir() and group.name not in names:
                    shutil.rmtree(group)
        for name in sorted(names):
            for array in self._arrays(name).values():
                _resize(array, kept)

    def problem(self, sums: Mapping[str, int], kept: int) -> str | None:
        """Read the first ``kept`` draws of these arrays; return a problem with them, or None."""
        if not kept or not sums:
            return None
        import zarr

        try:
            check_hierarchy(self.path)
            groups = list(zarr.open_group(self.path, mode="r", **ZARR).group_keys())
        except Exception as error:  # Zarr raises whatever a damaged description leads to
            return f"their description is damaged ({error})"
        for name in sorted({name.partition("/")[0] for name in sums}):
            if name not in groups:
                return f"the group {name!r} is missing"
            try:
                arrays = self._arrays(name)
            except Exception as error:  # Zarr raises whatever a damaged description leads to
                return f"the description of the group {name!r} is damaged ({error})"
            keys = [key.partition("/") for key in sums]
            if any(variable not in arrays for group, _, variable in keys if group == name):
                return f"an array of the group {name!r} is missing"
            try:
                self._read_others(name)
            except Exception as error:  # whatever a damaged file leads to
                return f"an index of the group {name!r} is damaged ({error})"
            for variable, array in arrays.items():
                reason = _damage(array, kept, sums.get(f"{name}/{variable}"))
                if reason is not None:
                    return f"{name}/{variable}: {reason}"
        return None

    def _create(self, name: str, dataset: Any) -> None:
        chunks: dict[Any, tuple[int, ...]] = {}
        for variable, array in dataset.variables.items():
            if DRAW in array.dims:
                sizes = [self._chunk if d == DRAW else n for d, n in array.sizes.items()]
                chunks[variable] = tuple(max(size, 1) for size in sizes)
        self._write(name, dataset, chunks)
        for variable, array in self._arrays(name).items():
            values = np.asarray(dataset.variables[variable].values)
            self._added(f"{name}/{variable}", array, 0, values)
        sync_directory(self.path)

    def _write(self, name: str, dataset: Any, chunks: Mapping[Any, tuple[int, ...]]) -> None:
        from zarr.codecs import Crc32cCodec

        encoding: dict[Any, Any] = {
            variable: {"compressors": (Crc32cCodec(),)} for variable in dataset.variables
        }
        for variable, lengths in chunks.items():
            encoding[variable]["chunks"] = lengths
        dataset.assign_attrs({ORDER: list(dataset.data_vars)}).to_zarr(
            self.path,
            group=name,
            mode="w",
            encoding=encoding,
            consolidated=False,
            zarr_format=3,
            write_empty_chunks=True,
        )

    def _arrays(self, name: str) -> dict[str, Any]:
        """Return the arrays of a group that grow, opened once."""
        if name not in self._growing:
            import zarr

            with zarr.config.set(ALWAYS_WRITTEN):
                group: Any = zarr.open_group(self.path, path=name, mode="r+", **ZARR)
                self._growing[name] = {
                    variable: array
                    for variable, array in sorted(group.arrays())
                    if DRAW in (array.metadata.dimension_names or ())
                }
        return self._growing[name]

    def _added(self, key: str, array: Any, first: int, new: np.ndarray) -> None:
        """Flush the draws from index ``first`` on and the description to the disk; sum them."""
        files = _files(array, first, array.shape[draw_axis(array)])
        for file in (*files, _folder(array) / "zarr.json"):
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
            sync_directory(file.parent)
        new = new.astype(array.dtype, copy=False)
        self._sums[key] = _sum(new, draw_axis(array), self._sums.get(key, 0))

    def _read_others(self, name: str) -> None:
        """Read the arrays that do not grow, and then the group as a whole."""
        import xarray
        import zarr

        growing = list(self._arrays(name))
        group: Any = zarr.open_group(self.path, path=name, mode="r", **ZARR)
        for variable, array in group.arrays():
            if variable not in growing:
                for chunk in np.ndindex(array.cdata_shape):
                    if not (_folder(array) / array.metadata.encode_chunk_key(chunk)).is_file():
                        raise FileNotFoundError(f"{variable}: a file is missing")
        xarray.open_zarr(
            self.path,
            group=name,
            consolidated=False,
            zarr_format=3,
            chunks=None,
            drop_variables=growing,
        ).load()


def absent_files(arrays: Mapping[str, Any], kept: int) -> Iterator[Path]:
    """Yield the files that are missing of some arrays, of the first ``kept`` draws."""
    for array in arrays.values():
        if DRAW in (array.metadata.dimension_names or ()):
            files = _files(array, 0, kept)
        else:
            keys = map(array.metadata.encode_chunk_key, np.ndindex(array.cdata_shape))
            files = (_folder(array) / key for key in keys)
        yield from (file for file in files if not file.is_file())


def in_order(dataset: Any) -> Any:
    """Return a group that was read with its variables in the order in which they were written."""
    import xarray

    attributes = dict(dataset.attrs)
    written = attributes.pop(ORDER, [])
    present = set(dataset.data_vars)
    names = [name for name in written if name in present] + sorted(present.difference(written))
    variables = {name: dataset[name] for name in names}
    return xarray.Dataset(variables, coords=dataset.coords, attrs=attributes)


def draw_axis(array: Any) -> int:
    """Return the number of an array's axis of draws."""
    return array.metadata.dimension_names.index(DRAW)


def _resize(array: Any, draws: int) -> None:
    shape = list(array.shape)
    shape[draw_axis(array)] = draws
    array.resize(tuple(shape))


def _between(array: Any, first: int, stop: int | None) -> tuple[slice, ...]:
    """Return the index of some draws."""
    return (slice(None),) * draw_axis(array) + (slice(first, stop),)


def _folder(array: Any) -> Path:
    return Path(array.store.root) / array.path


def _files(array: Any, first: int, stop: int) -> Iterator[Path]:
    """Yield the files that hold these draws; only the draws are cut into several."""
    axis = draw_axis(array)
    length = array.chunks[axis]
    for index in range(first // length, -(-stop // length)):
        chunk = tuple(index if dim == axis else 0 for dim in range(array.ndim))
        yield _folder(array) / array.metadata.encode_chunk_key(chunk)


def _sum(draws: np.ndarray, axis: int, before: int) -> int:
    """Return the CRC-32 of draws one after another, from that of those ``before`` on."""
    return zlib.crc32(np.ascontiguousarray(np.moveaxis(draws, axis, 0)).data, before)


def _damage(array: Any, kept: int, wanted: int | None) -> str | None:
    axis = draw_axis(array)
    if array.shape[axis] < kept:
        return f"it holds {array.shape[axis]} draws of {kept}"
    length, checksum = array.chunks[axis], 0
    for index, file in enumerate(_files(array, 0, kept)):
        first, stop = index * length, min((index + 1) * length, kept)
        where = f"draws {first} to {stop - 1}, in {file.name} of {file.parent}"
        if not file.is_file():
            return f"{where}: the file is missing"
        try:
            draws = np.asarray(array[_between(array, first, stop)])
        except Exception as error:  # a checksum, a length, a codec: whatever Zarr finds
            return f"{where}: the file is damaged ({type(error).__name__})"
        checksum = _sum(draws, axis, checksum)
    return None if checksum == wanted else "they are not those of this run"
