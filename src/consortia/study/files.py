"""The files of a study with one file for each site, each read where its site runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from consortia.core.arguments import INT32_MAX, unknown
from consortia.core.printable import printable
from consortia.data import preparation
from consortia.data.columns import Column, as_levels
from consortia.data.dialect import WORDS, number_of
from consortia.data.facts import SiteFacts
from consortia.data.harmonisation import NONE
from consortia.data.sites import NUMERIC_KINDS
from consortia.data.tables import read_npz, read_text
from consortia.errors import InputError, located, wrong

Arrays = dict[str, np.ndarray]

NAME_SHOWN = 40
"""Longer names of columns are not shown: what is read may be no table at all."""


class FileRows(NamedTuple):
    """The rows of one file."""

    train: Arrays  # arrays (rows, ...), the response under the name y
    held_out: Arrays | None  # the rows that are held out, or None
    columns: tuple[str, ...]  # one name per column of x, empty when they have none


def read_rows(path: Path, target: str, test_share: float | None, seed: int) -> FileRows:
    """Return the rows of a file, a share of them held out.

    Raises:
        InputError: the file cannot be used.
    """
    with located(file=str(path)):
        arrays, columns = read_file(path, target)
    if test_share is None:
        return FileRows(arrays, None, columns)
    train, held_out = preparation.train_test_split(arrays, test_share=test_share, seed=seed)
    return FileRows(train, held_out, columns)


@lru_cache(maxsize=8)  # every site of a study asks, and of ten thousand sites that took minutes
def names_of(files: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the sites with these files."""
    stems = tuple(Path(name).stem for name in files)
    return stems if len(set(stems)) == len(stems) else files


# --- what the files have in common ---------------------------------------------------------------


def common_kinds(facts: Sequence[SiteFacts], paths: Sequence[Path]) -> dict[str, np.dtype]:
    """Return the type of each array that holds every file's values.

    Raises:
        InputError: a file does not have the same columns as the first, or rows of another shape.
    """
    first = facts[0]
    for site_facts, path in zip(facts, paths, strict=True):
        if site_facts.columns != first.columns or site_facts.arrays.keys() != first.arrays.keys():
            there, here = ({*each.columns, *each.arrays} for each in (first, site_facts))
            others = {"it lacks": there - here, "only the former has": here - there}
            differ = [
                f"{what} {', '.join(sorted(names))}"
                for what, names in others.items()
                if names and max(map(len, names)) <= NAME_SHOWN
            ]
            how = "; ".join(differ) or "or a different order"
            raise InputError(
                f"{path} does not have the same columns as {paths[0]} ({how}): give all sites "
                "the same."
            ).at(file=str(path))
        for name, (shape, _) in site_facts.arrays.items():
            wanted = first.arrays[name][0]
            if shape != wanted:
                raise InputError(
                    f"data.files: array {name!r} has rows of shape {shape} in {path} and {wanted} "
                    f"in {paths[0]}: give all sites the same."
                ).at("data.files")
    kinds = {}
    for name in first.arrays:
        types = {site_facts.arrays[name][1] for site_facts in facts}
        try:
            kinds[name] = np.result_type(*sorted(types))
        except TypeError as error:
            raise wrong("data.files", f": array {name!r} has no common type: {error}.") from error
    return kinds


# --- one file ------------------------------------------------------------------------------------


def read_file(path: Path, target: str) -> tuple[Arrays, tuple[str, ...]]:
    """Return the arrays of a file, the response under the name y, and the names of the features.

    Raises:
        InputError: there is no such file, or it cannot be read.
    """
    kind = path.suffix.lower()
    if kind not in (".csv", ".npz"):
        raise InputError(f"{path}: give a .csv or an .npz file.")
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file (paths are relative to the study file's folder).")
    packed, table = kind == ".npz", dict[str, Any]()
    try:
        columns = read_npz(path) if packed else read_text(path, "", NONE)
        table |= {printable(name): column for name, column in columns.items()}
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not encoded in UTF-8: save it in that encoding.") from error
    except (ValueError, OSError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: it is damaged or too large.") from error
    if target not in table and (target != "y" or not packed):
        known = [name for name in table if len(name) <= NAME_SHOWN]
        raise InputError(f"{path}: data.target = {target!r}: {unknown(target, known)}.")
    if packed:
        for name, array in table.items():
            if array.dtype.kind not in NUMERIC_KINDS:
                raise InputError(f"{path}: array {name!r} holds {array.dtype}, not numbers.")
        if target in table:
            table["y"] = table.pop(target)
        return table, ()
    values = {name: _numbers(name, column) for name, column in table.items()}
    y = values.pop(target)
    if bool((y == np.round(y)).all() and (np.abs(y) <= INT32_MAX).all()):
        y = y.astype(np.int64)  # of larger ones JAX keeps the first digits, as of fractions
    x = np.stack([*values.values()], axis=1) if values else np.zeros((len(y), 0))
    return {"x": x, "y": y}, tuple(values)


def _numbers(name: str, column: Column) -> np.ndarray:
    """Return a column of numbers; refuse any other, and show nothing of what is in it."""
    if column.kind == "number" and not column.missing.any():
        return column.values
    texts = as_levels(column).tolist()
    numbers = [number_of(text.replace(",", ".")) is not None for text in texts]
    row = numbers.index(False) if False in numbers else 0
    fault = "it is text, not a number; a model.formula accepts text"
    if texts[row] in WORDS:
        fault = (
            "the value is missing; remove or impute such rows at the site, or use model.formula "
            "with model.missing"
        )
    elif numbers[row]:
        fault = "its decimal mark is ambiguous: write numbers as 1234.5"
    assert column.source is not None
    where = column.source.row(row)
    raise InputError(f"{where}, column {name!r}: {fault}.").at(
        argument=name, **column.source.place(row)
    )
