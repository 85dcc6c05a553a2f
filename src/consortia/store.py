"""A run directory: draws appended chunk by chunk to a Zarr store that opens lazily."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consortia.errors import StoreError
from consortia.results import FORMAT_VERSION, plain_attributes, tree_of

DRAWS = "draws.zarr"
RECORD = "run.json"


class RunStore:
    """The directory of one run while it is written.

    Args:
        path: a directory that does not exist yet, or is empty.

    Raises:
        StoreError: the directory already holds something.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise StoreError(f"store={str(path)!r} is a file: give a directory.")
        if self.path.exists() and any(self.path.iterdir()):
            what = "already holds a run" if (self.path / RECORD).exists() else "is not empty"
            raise StoreError(
                f"store={str(path)!r} {what}: nothing was written. Give another directory, or open "
                "the run with consortia.open_run."
            )
        self._groups: set[str] = set()

    def begin(self, attributes: Mapping[str, Any]) -> None:
        """Makes the directory and writes what is known before the first round."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._write_record({**attributes, "state": "running"})

    def append(self, groups: Mapping[str, Any]) -> None:
        """Adds the draws of one chunk to every group."""
        for name, dataset in groups.items():
            if name in self._groups:
                dataset.to_zarr(
                    self.path / DRAWS, group=name, append_dim="draw", consolidated=False
                )
                continue
            encoding = {
                variable: {"chunks": array.shape}
                for variable, array in dataset.variables.items()
                if "draw" in array.dims
            }
            dataset.to_zarr(
                self.path / DRAWS, group=name, mode="w", encoding=encoding, consolidated=False
            )
            self._groups.add(name)

    def finish(self, attributes: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
        """Writes the groups that do not grow with the draws, and the final record."""
        for name, dataset in extra.items():
            dataset.to_zarr(self.path / DRAWS, group=name, mode="w", consolidated=False)
        self._write_record(attributes)

    def _write_record(self, attributes: Mapping[str, Any]) -> None:
        record = {"format": FORMAT_VERSION, **plain_attributes(attributes)}
        text = json.dumps(record, indent=1)
        temporary = self.path / (RECORD + ".part")
        temporary.write_text(text)
        os.replace(temporary, self.path / RECORD)


def open_run(path: str | os.PathLike[str]) -> Any:
    """Opens a stored run lazily.

    Args:
        path: the run directory given to ``sample(..., store=...)`` or ``consortia run --output``.

    Returns:
        An `xarray.DataTree`, as `consortia.sample` returns it; arrays are read when they are used.

    Raises:
        StoreError: there is no run, or it was written in another format version.
    """
    import xarray
    import zarr

    directory = Path(path)
    record_file = directory / RECORD
    if not record_file.exists():
        raise StoreError(f"{str(path)!r} holds no run: there is no {RECORD} in it.")
    record = json.loads(record_file.read_text())
    version = record.pop("format", None)
    if version != FORMAT_VERSION:
        raise StoreError(
            f"{str(path)!r} was written in format {version}, this version reads {FORMAT_VERSION}: "
            "open it with the version of consortia that wrote it."
        )
    groups = {}
    if (directory / DRAWS).exists():
        for name in zarr.open_group(directory / DRAWS, mode="r").group_keys():
            groups[name] = xarray.open_zarr(
                directory / DRAWS, group=name, consolidated=False, chunks=None
            )
    return tree_of(groups, record)
