"""The files of a study with one file for each site, each read where its site runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from consortia.core.arguments import unknown
from consortia.core.contract import Method
from consortia.data import preparation, reading
from consortia.errors import InputError

Arrays = dict[str, np.ndarray]


class Source(NamedTuple):
    """Rows as they were read, and what is known of all rows.

    Attributes:
        train: by the site's number, of the sites that are here; of a data set that is still to be
            dealt out, all rows under 0.
        held_out: by the site's number too, where there are any.
        test: held-out rows that belong to no site, or None.
        row_shape: of x, None without x.
        feature_names: one name per column of x, empty when they have none.
        target_names: one name per class, empty when they have none.
        sites: names of the sites, None when a partition is still to be made.
    """

    train: dict[int, Arrays]
    held_out: dict[int, Arrays]
    test: Arrays | None
    row_shape: tuple[int, ...] | None
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    sites: tuple[str, ...] | None

    def each(self, change: Callable[[Arrays], Arrays]) -> Source:
        """The same with other arrays, ``change`` applied to each part."""
        return self._replace(
            train={number: change(arrays) for number, arrays in self.train.items()},
            held_out={number: change(arrays) for number, arrays in self.held_out.items()},
            test=None if self.test is None else change(self.test),
        )


def read_files(
    files: list[str],
    directory: Path,
    engine: Any,
    algorithm: Method,
    *,
    target: str,
    test_share: float | None,
    test_file: str | None,
    seed: int,
    own: Mapping[int, Path] | None = None,
) -> Source:
    """The rows of the sites that this process runs; the root alone reads the test file.

    All processes of the engine call it alike, and compare what their files hold. ``own`` says where
    a site's file is when it is not in the directory.

    Raises:
        InputError: a file cannot be used, or has not what the others have; in all processes.
    """
    own = {} if own is None else own
    paths = [own.get(number, directory / name) for number, name in enumerate(files)]
    train: dict[int, Arrays] = {}
    held_out: dict[int, Arrays] = {}
    test: list[Arrays] = []

    def read() -> dict[int, Any]:
        told = {}
        for number in map(int, engine.local_sites(len(paths), algorithm)):
            arrays, names = _read_file(paths[number], target)
            engine.check_rows(len(next(iter(arrays.values()))))
            if test_share is not None:
                arrays, held_out[number] = preparation.train_test_split(
                    arrays, test_share=test_share, seed=seed + number
                )
            train[number] = arrays
            told[number] = _outline(arrays, names)
        return told

    outlines = reading.merged(engine.allgather(read), files)
    for number, path in enumerate(paths):
        _compare(outlines[number], path, outlines[0], paths[0])
    kinds = _common_kinds(outlines)
    names = tuple(outlines[0]["names"])

    def read_test() -> None:
        if test_file is None or not engine.root:
            return
        arrays, these = _read_file(directory / test_file, target)
        if these != names:
            raise InputError(f"{directory / test_file} has other columns than the sites.")
        test.append(arrays)

    reading.jointly(engine, read_test)
    shape = outlines[0]["arrays"].get("x")
    return Source(
        {number: _in_kinds(arrays, kinds) for number, arrays in train.items()},
        {number: _in_kinds(arrays, kinds) for number, arrays in held_out.items()},
        test[0] if test else None,
        None if shape is None else tuple(shape[0]),
        names,
        (),
        names_of(files),
    )


def names_of(files: list[str]) -> tuple[str, ...]:
    """The names of the sites with these files."""
    stems = tuple(Path(name).stem for name in files)
    return stems if len(set(stems)) == len(stems) else tuple(files)


# --- what the files have in common ---------------------------------------------------------------


def _outline(arrays: Arrays, names: tuple[str, ...]) -> dict[str, Any]:
    """Names, shapes and types of what a file holds."""
    shapes = {name: [list(array.shape[1:]), array.dtype.str] for name, array in arrays.items()}
    return {"names": list(names), "arrays": shapes}


def _compare(one: Mapping[str, Any], path: Path, other: Mapping[str, Any], first: Path) -> None:
    if one["names"] != other["names"] or one["arrays"].keys() != other["arrays"].keys():
        raise InputError(f"{path} has other columns than {first}: give all sites the same.")
    for name, (shape, _) in one["arrays"].items():
        wanted = other["arrays"][name][0]
        if shape != wanted:
            raise InputError(
                f"data.files: array {name!r} has rows of shape {tuple(shape)} in {path} and "
                f"{tuple(wanted)} in {first}: give all sites the same."
            )


def _common_kinds(outlines: Mapping[int, Mapping[str, Any]]) -> dict[str, np.dtype]:
    """Of each array, the type that holds every file's values."""
    kinds = {}
    for name in outlines[0]["arrays"]:
        found = {outline["arrays"][name][1] for outline in outlines.values()}
        try:
            kinds[name] = np.result_type(*sorted(found))
        except TypeError as error:
            raise InputError(f"data.files: array {name!r} has no common type: {error}.") from error
    return kinds


def _in_kinds(arrays: Arrays, kinds: Mapping[str, np.dtype]) -> Arrays:
    return {name: array.astype(kinds[name], copy=False) for name, array in arrays.items()}


# --- one file ------------------------------------------------------------------------------------


def _read_file(path: Path, target: str) -> tuple[Arrays, tuple[str, ...]]:
    """The arrays of one file, the response under the name y, and the names of the features."""
    if path.suffix not in (".csv", ".npz"):
        raise InputError(f"{path}: give a .csv or an .npz file.")
    if not path.is_file():
        raise InputError(f"{path}: there is no such file (names start at the study file's folder).")
    try:
        return _read_npz(path, target) if path.suffix == ".npz" else _read_csv(path, target)
    except (ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {error}") from error


def _read_npz(path: Path, target: str) -> tuple[Arrays, tuple[str, ...]]:
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: np.atleast_1d(stored[name]) for name in stored.files}
    if target != "y":
        if target not in arrays:
            raise InputError(f"{path}: data.target = {target!r}: {unknown(target, arrays)}.")
        arrays["y"] = arrays.pop(target)
    return arrays, ()


def _read_csv(path: Path, target: str) -> tuple[Arrays, tuple[str, ...]]:
    with path.open(encoding="utf-8-sig") as lines:
        header = [name.strip().strip('"') for name in lines.readline().split(",")]
        table = np.loadtxt(lines, delimiter=",", ndmin=2)
    if target not in header:
        raise InputError(f"{path}: data.target = {target!r}: {unknown(target, header)}.")
    if table.shape[0] == 0 or table.shape[1] != len(header):
        raise InputError(
            f"{path}: {table.shape[0]} rows of {table.shape[1]} numbers under {len(header)} names."
        )
    place = header.index(target)
    y = table[:, place]
    if bool((y == np.round(y)).all()):
        y = y.astype(np.int64)
    names = tuple(name for name in header if name != target)
    return {"x": np.delete(table, place, axis=1), "y": y}, names
