"""The tables ``[data]`` and ``[partition]`` of a study file: which rows are at which site.

The rows are either a data set of `consortia.datasets`, which ``[partition]`` deals out, or come as
one file per site and stay where they are.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from consortia import datasets, partition, preparation
from consortia.errors import InputError
from consortia.sites import Sites

Arrays = dict[str, np.ndarray]

MOST_NAMES = 16
"""Of the allowed names that a message lists."""


def unknown(name: str, allowed: Iterable[str]) -> str:
    """What to say of a name that is not allowed: the nearest one, and all that are."""
    names = list(allowed)
    close = difflib.get_close_matches(name, names, 1, 0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    more = ", ..." if len(names) > MOST_NAMES else ""
    return f"unknown; {hint}There are: {', '.join(names[:MOST_NAMES])}{more}"


class Table(BaseModel):
    """A table of the study file: unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(Table):
    """Which rows, and what is done to them before they are dealt out to sites."""

    dataset: str | None = Field(
        None, description="a data set of consortia.datasets, e.g. 'breast_cancer'"
    )
    files: list[str] | None = Field(
        None,
        min_length=1,
        description="instead of dataset: one .csv (with a header) or .npz file per site, relative "
        "to the study file; then there is no [partition]",
    )
    target: str = Field("y", description="with files: the column or array that is the response")
    test_file: str | None = Field(None, description="with files: a file of held-out rows")
    test_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of the rows (of each site's rows, with files) that is held out for "
        "the predictive scores; without it the test rows that the set is published with, if any",
    )
    seed: int = Field(0, ge=0, description="seed of the held-out rows")
    download: bool = Field(False, description="get an absent data set from its publisher")
    scale: float | None = Field(
        None, gt=0, description="factor of the features; 1/255 by default for images"
    )
    standardise: bool = Field(
        False, description="centre and scale the features by the statistics of all train rows"
    )
    standardise_target: bool = Field(
        False, description="the same for the response; scores are then in units of its sd"
    )
    intercept: bool = Field(False, description="put a column of ones behind the features")
    dtype: Literal["float32", "float64"] | None = Field(
        None, description="width of the numbers; as read by default"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        if (self.dataset is None) == (self.files is None):
            raise ValueError("give exactly one of dataset and files")
        if self.dataset is not None:
            if self.dataset not in datasets.AVAILABLE:
                raise ValueError(
                    f"data.dataset = {self.dataset!r}: {unknown(self.dataset, datasets.AVAILABLE)}"
                )
            if self.test_file is not None:
                raise ValueError("test_file goes with files: give test_share instead")
        if self.test_file is not None and self.test_share is not None:
            raise ValueError("give at most one of test_file and test_share")
        return self

    def read(self, directory: Path) -> Prepared:
        """The rows, ready to be dealt out.

        Args:
            directory: where the names of files start.

        Raises:
            InputError: a file cannot be used.
            DatasetMissing: a data set is not there.
        """
        source = self._of_dataset() if self.files is None else self._of_files(directory)
        train, test = source.train, source.test
        names = source.feature_names
        if "x" in train and train["x"].ndim > 2:
            factor = 1 / 255 if self.scale is None else self.scale
            flat = functools.partial(preparation.images_to_rows, scale=factor, intercept=False)
            train, test = _each(flat, train, test)
        elif self.scale is not None:
            train, test = _each(_scaled("x", 0.0, 1 / self.scale), train, test)
        columns = {name: train["x"][:, place] for place, name in enumerate(names)}
        columns |= {name: array for name, array in train.items() if array.ndim == 1}
        classes = _classes(train, test, source.target_names)
        if self.standardise and test is not None:
            train, test = preparation.standardise(train, test)
        elif self.standardise:
            train, _ = preparation.standardise(train)
        if self.standardise_target:
            mean, sd = float(train["y"].mean()), float(train["y"].std())
            if classes is not None or sd == 0:
                raise InputError("data.standardise_target: the response is not a measured number.")
            train, test = _each(_scaled("y", mean, sd), train, test)
        if self.intercept:
            train, test = _each(preparation.with_intercept, train, test)
            names = (*names, "intercept") if names else ()
        if self.dtype is not None:
            train, test = _each(functools.partial(_as_type, dtype=self.dtype), train, test)
        return Prepared(train, test, columns, source.sizes, source.sites, names, classes)

    def _of_dataset(self) -> _Source:
        assert self.dataset is not None
        found = datasets.load(self.dataset, download=self.download)
        train, test = found.train, found.test
        if self.test_share is not None or train is None:
            if self.test_share is None:
                raise InputError(f"data.test_share is needed: {self.dataset} has test rows only.")
            train, test = preparation.train_test_split(
                found.rows, test_share=self.test_share, seed=self.seed
            )
        return _Source(train, test, found.feature_names, found.target_names, None, None)

    def _of_files(self, directory: Path) -> _Source:
        assert self.files is not None
        paths = [directory / name for name in self.files]
        parts: list[Arrays] = []
        held_out: list[Arrays] = []
        names: tuple[str, ...] = ()
        for place, path in enumerate(paths):
            arrays, these = _read_file(path, self.target)
            if place and (these != names or arrays.keys() != parts[0].keys()):
                raise InputError(
                    f"{path} has other columns than {paths[0]}: give all sites the same."
                )
            names = these
            if self.test_share is not None:
                arrays, other = preparation.train_test_split(
                    arrays, test_share=self.test_share, seed=self.seed + place
                )
                held_out.append(other)
            parts.append(arrays)
        if self.test_file is not None:
            arrays, these = _read_file(directory / self.test_file, self.target)
            if these != names:
                raise InputError(f"{directory / self.test_file} has other columns than the sites.")
            held_out.append(arrays)
        sizes = tuple(len(next(iter(part.values()))) for part in parts)
        test = _stacked(held_out) if held_out else None
        stems = tuple(path.stem for path in paths)
        sites = stems if len(set(stems)) == len(stems) else tuple(self.files)
        return _Source(_stacked(parts), test, names, (), sizes, sites)


@dataclass(frozen=True)
class Prepared:
    """Rows that are ready to be dealt out.

    Attributes:
        train: arrays (rows, ...), the sites one after the other when ``sizes`` is given.
        test: held-out rows, or None.
        columns: the features and the response as they were read, (rows,) each, by name.
        sizes: rows of each site, None when a partition is still to be made.
        sites: names of the sites, None likewise.
        feature_names: one name per column of x, empty when they have none.
        class_names: one name per class, None when the response is no class.
    """

    train: Arrays
    test: Arrays | None
    columns: Arrays
    sizes: tuple[int, ...] | None
    sites: tuple[str, ...] | None
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...] | None

    def shards(self) -> list[Arrays]:
        """The rows of each site, for data that came as one file per site."""
        assert self.sizes is not None
        ends = np.cumsum(self.sizes)[:-1]
        cut = {name: np.split(array, ends) for name, array in self.train.items()}
        return [{name: cut[name][site] for name in cut} for site in range(len(self.sizes))]

    def labels(self) -> dict[str, tuple[tuple[str, ...] | None, ...]]:
        """Names along the axes of the ready models' parameters, (classes, features)."""
        features, classes = self.feature_names or None, self.class_names
        return {"coefficients": (classes, features), "intercept": (classes,)}


class _Source(NamedTuple):
    train: Arrays
    test: Arrays | None
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    sizes: tuple[int, ...] | None
    sites: tuple[str, ...] | None


# --- how they are dealt out to sites -------------------------------------------------------------


class _Partition(Table):
    seed: int = Field(0, ge=0, description="seed of the partition")


class _Dealt(_Partition):
    sites: int = Field(ge=1, description="number of sites")


class IID(_Dealt):
    """Rows dealt out at random."""

    kind: Literal["iid"]


class Dirichlet(_Dealt):
    """Label skew: every label is dealt out in proportions of its own."""

    kind: Literal["dirichlet"]
    concentration: float = Field(gt=0, description="small: few labels a site; large: nearly iid")
    minimum_rows: int = Field(1, ge=1, description="fewest rows of a site")


class LabelShards(_Dealt):
    """Label skew: rows sorted by label, cut into equal shards, dealt out."""

    kind: Literal["label_shards"]
    shards_per_site: int = Field(2, ge=1, description="shards that each site gets")


class Quantity(_Dealt):
    """Quantity skew: random rows, unequal sizes. Give one of concentration and exponent."""

    kind: Literal["quantity"]
    concentration: float | None = Field(None, gt=0, description="Dirichlet sizes; small: unequal")
    exponent: float | None = Field(None, ge=0, description="sizes c^-exponent, c = 1, 2, ...")
    minimum_rows: int = Field(1, ge=1, description="fewest rows of a site")


class ByColumn(_Partition):
    """A natural partition: rows that are alike in one column sit at one site."""

    kind: Literal["by_column"]
    column: str = Field(description="name of a feature, or y; its values as they were read")
    sites: int | None = Field(
        None, ge=1, description="number of quantile groups; one site a value without it"
    )


Partition = Annotated[
    IID | Dirichlet | LabelShards | Quantity | ByColumn, Field(discriminator="kind")
]
"""The table ``[partition]``."""

PARTITIONS: dict[str, type[_Partition]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "label_shards": LabelShards,
    "quantity": Quantity,
    "by_column": ByColumn,
}


def deal(table: Any, data: Prepared) -> Sites:
    """The rows at their sites, as a table ``[partition]`` says."""
    options = table.model_dump(exclude={"kind"}, exclude_none=True)
    if isinstance(table, ByColumn):
        if table.column not in data.columns:
            raise InputError(
                f"partition.column = {table.column!r}: {unknown(table.column, data.columns)}."
            )
        options |= {"column": data.columns[table.column], "name": table.column}
    return getattr(partition, table.kind)(data.train, **options)


# --- reading and preparing -----------------------------------------------------------------------


def _each(
    change: Callable[[Arrays], Arrays], train: Arrays, test: Arrays | None
) -> tuple[Arrays, Arrays | None]:
    return change(train), None if test is None else change(test)


def _scaled(key: str, centre: float, unit: float) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {**arrays, key: (arrays[key] - centre) / unit}


def _as_type(arrays: Arrays, dtype: str) -> Arrays:
    """Features and fractions in this type, integers no wider than it."""
    whole = np.dtype(dtype.replace("float", "int"))

    def narrowed(name: str, array: np.ndarray) -> np.ndarray:
        if name == "x" or array.dtype.kind == "f":
            return array.astype(dtype)
        wide = array.dtype.kind in "iu" and array.dtype.itemsize > whole.itemsize
        return array.astype(whole) if wide else array

    return {name: narrowed(name, array) for name, array in arrays.items()}


def _classes(train: Arrays, test: Arrays | None, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Names of the classes, when the response is one."""
    if "y" not in train:
        return None
    labels = np.concatenate([part["y"] for part in (train, test) if part is not None])
    whole = labels.dtype.kind in "biu" or bool((labels == np.round(labels)).all())
    if len(names) > 1:
        return names
    if names or not whole or labels.min() < 0:
        return None
    return tuple(str(label) for label in range(int(labels.max()) + 1))


def _stacked(parts: list[Arrays]) -> Arrays:
    for part in parts[1:]:
        for name, array in part.items():
            if array.shape[1:] != parts[0][name].shape[1:]:
                raise InputError(
                    f"data.files: array {name!r} has rows of shape {array.shape[1:]} in one file "
                    f"and {parts[0][name].shape[1:]} in another: give all sites the same."
                )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


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
