"""The Zarr store of a run's draws: appended to, cut back, checked.

Arrays are cut along the draws into files of equal length, uncompressed (draws are noise) and each
with a checksum. Zarr writes a file beside its place and renames it, so that a kill leaves the old
one or the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from consortia.checkpoint import sync_directory

DRAW = "draw"
ALWAYS_WRITTEN = {"array.write_empty_chunks": True}
"""A file that is absent is then a lost one, and never one without content."""


class DrawFiles:
    """Groups of arrays that grow along the dimension ``draw``.

    Args:
        path: the Zarr directory.
        chunk: draws in a file, for groups that do not exist yet.
    """

    def __init__(self, path: Path, chunk: int) -> None:
        self.path = path
        self._chunk = chunk
        self._growing: dict[str, dict[str, Any]] = {}

    def append(self, groups: Mapping[str, Any]) -> None:
        """Adds draws to every group and has them on the disk."""
        for name, dataset in groups.items():
            if name not in self._growing and not (self.path / name).exists():
                self._create(name, dataset)
                continue
            for variable, array in self._arrays(name).items():
                values = dataset.variables[variable]
                axis, new = values.dims.index(DRAW), np.asarray(values.values)
                first = array.shape[axis]
                shape = list(array.shape)
                shape[axis] += new.shape[axis]
                array.resize(tuple(shape))
                place = [slice(None)] * new.ndim
                place[axis] = slice(first, None)
                array[tuple(place)] = new
                self._sync(array, axis, first)

    def names(self) -> list[str]:
        """The groups that grow."""
        return sorted(self._growing)

    def put(self, name: str, dataset: Any) -> None:
        """Writes a group that does not grow, over what was there."""
        dataset.to_zarr(
            self.path, group=name, mode="w", consolidated=False, write_empty_chunks=True
        )

    def remove(self, name: str) -> None:
        """Removes a group, if it is there."""
        self._growing.pop(name, None)
        shutil.rmtree(self.path / name, ignore_errors=True)

    def cut(self, names: list[str], kept: int) -> str | None:
        """Leaves ``kept`` draws in each of these groups and removes all others.

        Returns:
            What is wrong with the draws that should be there, or None.
        """
        self._growing.clear()
        if self.path.exists():
            for file in self.path.rglob("*.partial"):  # of a write that was cut short
                file.unlink()
            for group in self.path.iterdir():
                if group.is_dir() and (kept == 0 or group.name not in names):
                    shutil.rmtree(group)
        if kept == 0:
            return None
        problem = self.problem(names, kept)
        if problem is None:
            for name in names:
                for array in self._arrays(name).values():
                    axis = array.metadata.dimension_names.index(DRAW)
                    shape = list(array.shape)
                    shape[axis] = kept
                    array.resize(tuple(shape))
        return problem

    def problem(self, names: list[str], kept: int) -> str | None:
        """Reads the first ``kept`` draws of these groups; what is wrong with them, or None."""
        for name in names:
            if not (self.path / name).is_dir():
                return f"the group {name!r} is missing"
            try:
                arrays = self._arrays(name)
            except Exception as error:  # Zarr raises whatever a damaged description leads to
                return f"the description of the group {name!r} is damaged ({error})"
            if not arrays:
                return f"the group {name!r} has no draws"
            try:
                self._read_others(name)
            except Exception as error:  # whatever a damaged file leads to
                return f"an index of the group {name!r} is damaged ({error})"
            for variable, array in arrays.items():
                reason = _damage(array, kept)
                if reason is not None:
                    return f"{name}/{variable}: {reason}"
        return None

    def _create(self, name: str, dataset: Any) -> None:
        from zarr.codecs import Crc32cCodec

        encoding: dict[str, Any] = {}
        for variable, array in dataset.variables.items():
            if DRAW in array.dims:
                sizes = [self._chunk if d == DRAW else n for d, n in array.sizes.items()]
                encoding[variable] = {
                    "chunks": tuple(max(size, 1) for size in sizes),
                    "compressors": (Crc32cCodec(),),
                }
        dataset.to_zarr(
            self.path,
            group=name,
            mode="w",
            encoding=encoding,
            consolidated=False,
            write_empty_chunks=True,
        )
        for array in self._arrays(name).values():
            self._sync(array, array.metadata.dimension_names.index(DRAW), 0)
        sync_directory(self.path)

    def _arrays(self, name: str) -> dict[str, Any]:
        """The arrays of a group that grow, opened once."""
        if name not in self._growing:
            import zarr

            with zarr.config.set(ALWAYS_WRITTEN):
                group: Any = zarr.open_group(self.path, path=name, mode="r+")
                self._growing[name] = {
                    variable: array
                    for variable, array in sorted(group.arrays())
                    if DRAW in (array.metadata.dimension_names or ())
                }
        return self._growing[name]

    def _read_others(self, name: str) -> None:
        """Reads the arrays that do not grow, and then the group as a whole."""
        import xarray
        import zarr

        growing = list(self._arrays(name))
        group: Any = zarr.open_group(self.path, path=name, mode="r")
        for variable, array in group.arrays():
            if variable not in growing:
                for place in np.ndindex(array.cdata_shape):
                    if not (_folder(array) / array.metadata.encode_chunk_key(place)).is_file():
                        raise FileNotFoundError(f"{variable}: a file is missing")
        xarray.open_zarr(
            self.path, group=name, consolidated=False, chunks=None, drop_variables=growing
        ).load()

    def _sync(self, array: Any, axis: int, first: int) -> None:
        """Has the files from draw number ``first`` on, and the description, on the disk."""
        for file in (*_files(array, axis, first, array.shape[axis]), _folder(array) / "zarr.json"):
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
            sync_directory(file.parent)


def _folder(array: Any) -> Path:
    return Path(array.store.root) / array.path


def _files(array: Any, axis: int, first: int, stop: int) -> Iterator[Path]:
    """The files that hold these draws; only the draws are cut into several."""
    length = array.chunks[axis]
    for index in range(first // length, -(-stop // length)):
        place = tuple(index if dim == axis else 0 for dim in range(array.ndim))
        yield _folder(array) / array.metadata.encode_chunk_key(place)


def _damage(array: Any, kept: int) -> str | None:
    axis = array.metadata.dimension_names.index(DRAW)
    if array.shape[axis] < kept:
        return f"it holds {array.shape[axis]} draws of {kept}"
    length = array.chunks[axis]
    for number, file in enumerate(_files(array, axis, 0, kept)):
        first, stop = number * length, min((number + 1) * length, kept)
        where = f"draws {first} to {stop - 1}, in {file.name} of {file.parent}"
        if not file.is_file():
            return f"{where}: the file is missing"
        place = [slice(None)] * array.ndim
        place[axis] = slice(first, stop)
        try:
            array[tuple(place)]
        except Exception as error:  # a checksum, a length, a codec: whatever Zarr finds
            return f"{where}: the file is damaged ({type(error).__name__})"
    return None
