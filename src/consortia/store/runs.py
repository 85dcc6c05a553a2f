"""A run directory: draws appended to a Zarr store that opens lazily, a record, and checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from consortia.core.arguments import hinted
from consortia.core.parameters import POSTERIOR, as_sampled
from consortia.core.printable import printable
from consortia.errors import InputError, StoreError, warn, wrong
from consortia.store.answers import Answers
from consortia.store.checkpoint import Checkpoint, Checkpoints
from consortia.store.draws import DRAW, ZARR, DrawStore, absent_files, draw_axis, in_order
from consortia.store.durable import read_regular, remove_parts, replace_file, writing
from consortia.store.layout import check_hierarchy
from consortia.store.results import FORMAT_VERSION, plain_attributes, tree_of

DRAWS = "draws.zarr"
RECORD = "run.json"
LOCK = "run.lock"
NAME_BYTES, PATH_BYTES = 255, 4095
"""Bytes of a name in a directory, and of a path, at most."""

RECORD_BYTES = 2**26
"""The longest record; one with a hundred thousand sites is far shorter."""

REQUEST = ("study.toml", "command.json")
"""Files that the command line writes before a run begins."""


def read_path(path: Any) -> Path:
    """Return the path of a directory; refuse what names none.

    Raises:
        InputError: it is neither a string nor a path, or no file system has such a name.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise InputError(
            f"store is {printable(repr(path), most=100)}: give the path of a directory."
        ).at("store")
    text = os.fspath(path)
    try:
        longest = max(map(len, os.fsencode(text).split(b"/")))
    except UnicodeEncodeError:
        raise wrong("store", ": the path holds a lone surrogate; no file can have it.") from None
    if "\0" in text or not text or longest > NAME_BYTES or len(text) > PATH_BYTES:
        raise InputError(
            f"store is {printable(repr(text), most=100)}: no directory can have this name."
        ).at("store")
    return Path(path)


def check_python() -> None:
    """Refuse a Python without assertions.

    Raises:
        StoreError: it runs with -O; Zarr reads its own descriptions within assertions.
    """
    if sys.flags.optimize:
        raise StoreError(
            "Python runs with -O or PYTHONOPTIMIZE, with which Zarr cannot read what it wrote: "
            "leave it out, or sample without a store."
        )


class RunStore:
    """The directory of one run while it is written.

    Args:
        path: a directory that does not exist yet, or is empty.
        existing: the run that is there is to be resumed.

    Raises:
        StoreError: the directory already holds something, or holds no run to resume.
    """

    def __init__(self, path: str | os.PathLike[str], *, existing: bool = False) -> None:
        check_python()
        self.path = read_path(path)
        self.specification: dict[str, Any] = {}
        self._record: dict[str, Any] = {}
        self._number = 0
        self._lock: Any = None
        self._files = DrawStore(self.path / DRAWS, 1)
        self._checkpoints = Checkpoints(self.path)
        if self.path.exists() and not self.path.is_dir():
            raise StoreError(f"store={str(path)!r} is a file: give a directory.")
        if not existing:
            self._check_free()
        elif not self.path.is_dir():
            raise StoreError(f"{str(path)!r} is not a directory: give that of a stored run.")

    def _check_free(self) -> None:
        if not self.path.exists():
            return
        entries = {entry.name for entry in self.path.iterdir()}
        if REQUEST[1] in entries:  # a run that was never begun
            entries -= set(REQUEST)
        if entries - {LOCK}:
            what = "already holds a run" if holds_run(self.path) else "is not empty"
            raise StoreError(
                f"store={str(self.path)!r} {what}: nothing was written. Give another directory, "
                "open the run with consortia.open_run, or continue it: consortia.resume, or the "
                "command `consortia resume`."
            ).at("store", file=str(self.path))

    # --- one writer at a time --------------------------------------------------------------------

    def claim(self, *, existing: bool = False) -> None:
        """Make the directory and lock it; the lock ends with the process, however it ends.

        Raises:
            StoreError: another process writes there, or has written since this object was made.
        """
        from filelock import FileLock, Timeout

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / LOCK)
            lock.acquire(timeout=0)
        except Timeout:
            raise StoreError(
                f"{str(self.path)!r} is being written by another process: wait until it has ended, "
                "or give another directory."
            ).at(file=str(self.path)) from None
        except OSError as error:
            raise StoreError(f"{str(self.path)!r} cannot be written: {error}.") from error
        self._lock = lock
        if not existing:
            self._check_free()
        with writing(self.path):
            remove_parts(self.path)

    def release(self) -> None:
        """Let others write."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # --- writing ---------------------------------------------------------------------------------

    def begin(
        self,
        attributes: Mapping[str, Any],
        specification: Mapping[str, Any],
        stride: int = 1,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Write what is known before the first round that is to be run.

        Args:
            attributes: the record so far.
            specification: by which the run is recognised when it is resumed.
            stride: draws of a chain that go into one file.
            checkpoint: beyond which draws are removed; None: all are.
        """
        self._record, self.specification = dict(attributes), dict(specification)
        self._files = DrawStore(self.path / DRAWS, stride)
        sums = {} if checkpoint is None else checkpoint.header["draws"]
        with writing(self.path):
            self._files.cut(sums, 0 if checkpoint is None else checkpoint.kept)
        self._write_record({**attributes, "state": "running"})

    def cut_into(self, stride: int) -> None:
        """Put ``stride`` draws into one file, before the first are appended."""
        self._files = DrawStore(self.path / DRAWS, stride)

    @property
    def answers(self) -> Answers:
        """The stored answers of a conversation."""
        return Answers(self.path)

    def append(self, groups: Mapping[str, Any]) -> None:
        """Add the draws of one chunk to every group."""
        with writing(self.path):
            self._files.append(groups)

    def save(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Write a checkpoint that counts the draws that were appended so far."""
        self._number += 1
        whole = {
            **header,
            "number": self._number,
            "draws": self._files.sums(),
            "record": plain_attributes(self._record),
            "specification": self.specification,
        }
        with writing(self.path):
            self._checkpoints.save(Checkpoint(whole, dict(arrays)))

    def finish(
        self, attributes: Mapping[str, Any], extra: Mapping[str, Any], state: str = "finished"
    ) -> None:
        """Write the groups that do not grow with the draws, and the final record."""
        with writing(self.path):
            for name, dataset in extra.items():
                self._files.put(name, dataset)
            self._write_record({**attributes, "state": state})

    def _write_record(self, attributes: Mapping[str, Any]) -> None:
        content = {**plain_attributes(attributes), "specification": self.specification}
        record = {"format": FORMAT_VERSION, "checksum": checksum(content), **content}
        with writing(self.path):
            replace_file(self.path / RECORD, [json.dumps(record, indent=1).encode()])

    # --- resuming --------------------------------------------------------------------------------

    def reopen(self) -> Checkpoint | None:
        """Return the latest checkpoint whose draws are there; warn of what is damaged.

        Returns:
            None when the run has no checkpoint yet; its record says then how it was begun.

        Raises:
            StoreError: there is no run, it is of another format version, or nothing that is left
                of it can be resumed. Nothing was changed then.
        """
        checkpoints, problems = self._checkpoints.readable()
        usable: Checkpoint | None = None
        for checkpoint in checkpoints:
            problem = self._files.problem(checkpoint.header["draws"], checkpoint.kept)
            if problem is None:
                usable = checkpoint
                break
            problems.append(f"the draws of round {checkpoint.done}: {problem}")
        if usable is None and problems and self.answers.present:
            for problem in problems:
                warn(f"{problem}: all draws are made again from the stored answers")
            _, self.specification = read_record(self.path)
            return None
        if usable is None and problems:
            raise StoreError(
                f"{str(self.path)!r} cannot be continued: {'; '.join(problems)}. Nothing was "
                "changed. What can still be read opens with consortia.open_run; a new run with "
                "the same seed in another directory makes the same draws."
            ).at(file=str(self.path))
        if usable is None:
            _, self.specification = read_record(self.path)
            return None
        for problem in problems:
            warn(f"{problem}: continuing from round {usable.done}")
        self._checkpoints.retain(usable)
        self.specification = usable.header["specification"]
        self._number = usable.header["number"]
        return usable

    @property
    def finished(self) -> bool:
        """True if the run that was reopened was written to its end, as its record says."""
        try:
            record, specification = read_record(self.path)
        except StoreError:
            return False
        return record.get("state") == "finished" and specification == self.specification

    def posterior(self, kept: int) -> dict[str, np.ndarray]:
        """Return the first draws of every coordinate that was sampled, (chains, kept, ...)."""
        tree = as_sampled(open_run(self.path))
        arrays = tree["posterior"].data_vars.items()
        return {str(name): np.asarray(array.isel(draw=slice(0, kept))) for name, array in arrays}


def checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# --- reading -------------------------------------------------------------------------------------


def holds_run(directory: Path) -> bool:
    """Return True if a run was begun there, whatever is left of it."""
    return (directory / RECORD).exists() or Checkpoints(directory).present


def read_record(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the record of a run and its specification, from ``run.json``.

    Raises:
        StoreError: there is none, it was written in another format version, or it is damaged.
    """
    file = Path(path) / RECORD
    if not file.exists():
        raise StoreError(f"{str(path)!r} holds no run: there is no {RECORD} in it.")
    from consortia.store.record import Record, Specification, fits  # pydantic is heavy

    try:
        record = json.loads(read_regular(file, RECORD_BYTES))
        version, given = record.pop("format"), record.pop("checksum", None)
        specification = dict(record.get("specification", {}))
        damaged = version == FORMAT_VERSION and not (
            given == checksum(record)
            and fits(Record, record)
            and (not specification or fits(Specification, specification))
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        damaged = True
    if damaged:
        raise DamagedRecord(f"{str(file)!r} is damaged: it is not what was written.")
    if version != FORMAT_VERSION:
        older = isinstance(version, int) and version < FORMAT_VERSION
        age = "an older" if older else "a newer"
        raise StoreError(
            f"{str(path)!r} was written in format {version} by {age} version of consortia, this "
            f"version reads {FORMAT_VERSION}: open it with the version that wrote it."
        ).at(file=str(path))
    record.pop("specification", None)
    return record, specification


class DamagedRecord(StoreError):  # noqa: N818 - says what is there
    """The file ``run.json`` is not what was written."""


@hinted
def open_run(path: str | os.PathLike[str]) -> Any:
    """Open a stored run lazily.

    Args:
        path: the run directory given to ``sample(..., store=...)`` or ``consortia run --output``.

    Returns:
        An `xarray.DataTree`, as `consortia.sample` returns it; arrays are read when they are used.
        Of a run that has not ended it holds the draws up to its last checkpoint.

    Raises:
        StoreError: there is no run, it was written in another format version, or it is damaged.

    Example:
        >>> import consortia
        >>> tree = consortia.open_run("runs/breast_cancer")  # doctest: +SKIP
        >>> tree["posterior"].sizes["draw"]  # doctest: +SKIP
        2000
    """
    import zarr

    check_python()
    directory = read_path(path)
    kept = None
    try:
        record, _ = read_record(directory)
    except DamagedRecord as error:
        checkpoints, _ = Checkpoints(directory).readable()
        if not checkpoints:
            raise
        record = dict(checkpoints[0].header["record"])
        warn(f"{error} The last checkpoint's is used.")
        record["state"] = "running"
    if record.get("state") == "running":
        checkpoints, _ = Checkpoints(directory).readable()
        kept = checkpoints[0].kept if checkpoints else 0
    groups = {}
    if (directory / DRAWS).exists() and kept != 0:
        try:
            check_hierarchy(directory / DRAWS)
            names = zarr.open_group(directory / DRAWS, mode="r", **ZARR).group_keys()
            for name in sorted(names, key=lambda name: (name != POSTERIOR, name)):
                _check_whole(directory, name, kept)
                groups[name] = in_order(_group(directory / DRAWS, name, kept))
        except StoreError:
            raise
        except Exception as error:  # Zarr and xarray raise whatever a damaged description leads to
            raise StoreError(
                f"{str(path)!r}: the description of its draws is damaged "
                f"({printable(str(error), most=500)})."
            ).at(file=str(path)) from error
    return tree_of(groups, record)


LENGTHS_MAX = 8
"""Lengths that the arrays of one group may have; a write that was cut short leaves two."""


def _check_whole(directory: Path, name: str, kept: int | None) -> None:
    """Refuse a group of which a file is missing, as of a run that was copied in part.

    Raises:
        StoreError: one is missing; the message names it.
    """
    import zarr

    arrays: dict[str, Any] = dict(
        zarr.open_group(directory / DRAWS, path=name, mode="r", **ZARR).arrays()
    )
    count = 0
    if kept is not None:
        count = kept
    elif DRAW in arrays:
        count = arrays[DRAW].shape[0]
    for absent in absent_files(arrays, count):
        raise StoreError(
            f"{str(directory)!r} is not whole: the file {absent.relative_to(directory)} is "
            "missing. Copy the directory of the run again, with all files."
        ).at(file=str(absent.relative_to(directory)))


def _group(path: Path, name: str, kept: int | None) -> Any:
    """Open one group lazily; of a run that has not ended its first ``kept`` draws.

    Its arrays may be of unlike lengths then: a write was cut short between them. Draws that are
    counted from 0 are so without their indices being read, which would take 8 bytes a draw.
    """
    import pandas
    import xarray
    import zarr

    def opened(without: list[str]) -> Any:
        return xarray.open_zarr(
            path,
            group=name,
            consolidated=False,
            zarr_format=3,
            chunks=None,
            drop_variables=without,
        )

    arrays: dict[str, Any] = dict(zarr.open_group(path, path=name, mode="r", **ZARR).arrays())
    growing = [key for key, a in arrays.items() if DRAW in (a.metadata.dimension_names or ())]
    if DRAW not in growing:
        return opened([])
    count = arrays[DRAW].shape[0] if kept is None else kept
    indices = arrays[DRAW]
    if not count or int(indices[0]) != 0 or int(indices[count - 1]) != count - 1:
        return opened([])  # evenly spaced ones of a longer run; they are few
    if kept is None:
        dataset = opened([DRAW])
    else:
        lengths = {key: arrays[key].shape[draw_axis(arrays[key])] for key in growing}
        if len(set(lengths.values())) > LENGTHS_MAX:
            raise ValueError(f"its arrays have more than {LENGTHS_MAX} lengths")
        dataset = opened(growing)
        for length in set(lengths.values()):  # those of one length are opened together
            part = opened([key for key in growing if key == DRAW or lengths[key] != length])
            dataset = dataset.merge(part.isel(draw=slice(0, kept), missing_dims="ignore"))
    return dataset.assign_coords(draw=pandas.RangeIndex(count, name=DRAW))
