"""The files of a study with one file for each site, each read where its site runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from consortia.core.arguments import unknown
from consortia.core.printable import printable
from consortia.data import preparation
from consortia.data.facts import SiteFacts
from consortia.errors import InputError

Arrays = dict[str, np.ndarray]


class FileRows(NamedTuple):
    """The rows of one file.

    Attributes:
        train: arrays (rows, ...), the response under the name y.
        held_out: the rows that are held out, or None.
        columns: one name per column of x, empty when they have none.
    """

    train: Arrays
    held_out: Arrays | None
    columns: tuple[str, ...]


def read_rows(path: Path, target: str, test_share: float | None, seed: int) -> FileRows:
    """Return the rows of a file, a share of them held out.

    Raises:
        InputError: the file cannot be used.
    """
    arrays, columns = read_file(path, target)
    if test_share is None:
        return FileRows(arrays, None, columns)
    train, held_out = preparation.train_test_split(arrays, test_share=test_share, seed=seed)
    return FileRows(train, held_out, columns)


def names_of(files: list[str]) -> tuple[str, ...]:
    """Return the names of the sites with these files."""
    stems = tuple(Path(name).stem for name in files)
    return stems if len(set(stems)) == len(stems) else tuple(files)


# --- what the files have in common ---------------------------------------------------------------


def common_kinds(facts: Sequence[SiteFacts], paths: Sequence[Path]) -> dict[str, np.dtype]:
    """Return the type of each array that holds every file's values.

    Raises:
        InputError: a file has other columns than the first, or rows of another shape.
    """
    first = facts[0]
    for one, path in zip(facts, paths, strict=True):
        if one.columns != first.columns or one.arrays.keys() != first.arrays.keys():
            raise InputError(f"{path} has other columns than {paths[0]}: give all sites the same.")
        for name, (shape, _) in one.arrays.items():
            wanted = first.arrays[name][0]
            if shape != wanted:
                raise InputError(
                    f"data.files: array {name!r} has rows of shape {shape} in {path} and {wanted} "
                    f"in {paths[0]}: give all sites the same."
                )
    kinds = {}
    for name in first.arrays:
        found = {one.arrays[name][1] for one in facts}
        try:
            kinds[name] = np.result_type(*sorted(found))
        except TypeError as error:
            raise InputError(f"data.files: array {name!r} has no common type: {error}.") from error
    return kinds


def in_kinds(arrays: Arrays, kinds: Mapping[str, np.dtype]) -> Arrays:
    """Return the arrays in these types."""
    return {name: array.astype(kinds[name], copy=False) for name, array in arrays.items()}


# --- one file ------------------------------------------------------------------------------------


def read_file(path: Path, target: str) -> tuple[Arrays, tuple[str, ...]]:
    """Return the arrays of a file, the response under the name y, and the names of the features.

    Raises:
        InputError: there is no such file, or it cannot be read.
    """
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
        header = [printable(name.strip().strip('"')) for name in lines.readline().split(",")]
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
