"""The tables ``[data]`` and ``[partition]`` of a study file: which rows are at which site.

The rows are either a data set of `consortia.datasets`, which ``[partition]`` deals out, or come as
one file per site and stay where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from consortia.core.arguments import unknown
from consortia.core.contract import Method
from consortia.data import datasets, partition, preparation, reading
from consortia.data.preparation import Moments
from consortia.data.sites import Sites, check_finite, read_rows
from consortia.engines import LocalEngine
from consortia.errors import InputError
from consortia.study.files import Arrays, Source, read_files


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
        "to the study file; then there is no [partition]. With the engine mpi a process reads the "
        "files of its own sites only",
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

    def read(
        self, directory: Path, engine: Any, algorithm: Method, own: Mapping[int, Path] | None = None
    ) -> Prepared:
        """The rows, ready to be dealt out; of files those of the sites that this process runs.

        All processes of the engine call it alike.

        Args:
            directory: where the names of files start.
            engine: says which sites this process runs.
            algorithm: what is run.
            own: where the files of sites are that are not there, by the sites' numbers.

        Raises:
            InputError: a file cannot be used; in all processes, wherever it is.
            DatasetMissing: a data set is not there.
        """
        if self.files is None:
            source = reading.jointly(engine, self._of_dataset)
            engine = LocalEngine()  # a data set is read by every process
        else:
            source = read_files(
                self.files,
                directory,
                engine,
                algorithm,
                **self.model_dump(include={"target", "test_share", "test_file", "seed"}),
                own=own,
            )
        change = self._of_features(source.row_shape)
        raw = reading.jointly(engine, lambda: source.each(change))
        statistics = _statistics(raw, engine, self)
        made = reading.jointly(engine, lambda: raw.each(lambda one: self._made(one, statistics)))
        names, features = source.feature_names, _width(source.row_shape)
        if self.intercept and features is not None:
            names, features = (*names, "intercept") if names else (), features + 1
        test = made.test
        skipped: tuple[str, ...] = ()
        if made.sites is not None and len(made.held_out) == len(made.sites):
            test = _stacked([made.held_out[number] for number in range(len(made.sites))])
        if test is None and (self.test_share is not None or self.test_file is not None):
            skipped = ("predictive scores: the held-out rows are in other processes",)
        return Prepared(
            train=made.train,
            test=test,
            columns=_columns(raw) if made.sites is None else {},
            sites=made.sites,
            features=features,
            feature_names=names,
            class_names=statistics.classes,
            skipped=skipped,
        )

    def _of_features(self, row_shape: tuple[int, ...] | None) -> Callable[[Arrays], Arrays]:
        """What is done to x row by row."""
        if row_shape is not None and len(row_shape) > 1:
            factor = 1 / 255 if self.scale is None else self.scale
            return functools.partial(preparation.images_to_rows, scale=factor, intercept=False)
        if self.scale is None:
            return lambda arrays: arrays
        if row_shape is None:
            raise InputError("data.scale: there is no x to be scaled.")
        return _scaled("x", 0.0, 1 / self.scale)

    def _made(self, arrays: Arrays, statistics: _Statistics) -> Arrays:
        """Rows in the units of all rows."""
        if statistics.x is not None:
            arrays = preparation.standardised(arrays, statistics.x, "the rows")
        if statistics.y is not None:
            arrays = _scaled("y", float(statistics.y.centre), float(statistics.y.sd))(arrays)
        if self.intercept:
            arrays = preparation.with_intercept(arrays)
        return arrays if self.dtype is None else _as_type(arrays, dtype=self.dtype)

    def _of_dataset(self) -> Source:
        assert self.dataset is not None
        found = datasets.load(self.dataset, download=self.download)
        train, test = found.train, found.test
        if self.test_share is not None or train is None:
            if self.test_share is None:
                raise InputError(f"data.test_share is needed: {self.dataset} has test rows only.")
            train, test = preparation.train_test_split(
                found.rows, test_share=self.test_share, seed=self.seed
            )
        shape = train["x"].shape[1:] if "x" in train else None
        return Source({0: train}, {}, test, shape, found.feature_names, found.target_names, None)


@dataclass(frozen=True)
class Prepared:
    """Rows that are ready to be dealt out.

    Attributes:
        train: arrays (rows, ...), by the site's number, of the sites that are here; all rows under
            0 when a partition is still to be made.
        test: held-out rows, or None.
        columns: the features and the response as they were read, (rows,) each, by name; empty
            without a partition.
        sites: names of the sites, None when a partition is still to be made.
        features: columns of x, None without x or columns.
        feature_names: one name per column of x, empty when they have none.
        class_names: one name per class, None when the response is no class.
        skipped: what cannot be had in this process, each with the reason.
    """

    train: dict[int, Arrays]
    test: Arrays | None
    columns: Arrays
    sites: tuple[str, ...] | None
    features: int | None
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...] | None
    skipped: tuple[str, ...] = ()

    def labels(self) -> dict[str, tuple[tuple[str, ...] | None, ...]]:
        """Names along the axes of the ready models' parameters, (classes, features)."""
        features, classes = self.feature_names or None, self.class_names
        return {"coefficients": (classes, features), "intercept": (classes,)}


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
    return getattr(partition, table.kind)(data.train[0], **options)


# --- preparing -----------------------------------------------------------------------------------


class _Statistics(NamedTuple):
    """What follows from the rows of all sites together.

    Attributes:
        x: of the features, where they are to be standardised.
        y: of the response, likewise.
        classes: names of the classes, when the response is one.
    """

    x: Moments | None
    y: Moments | None
    classes: tuple[str, ...] | None


def _statistics(source: Source, engine: Any, data: Data) -> _Statistics:
    """From what each process tells of its sites, site by site."""

    def tell() -> dict[str, Any]:
        told: dict[str, Any] = {"sites": {}, "test": None}
        if source.test is not None:
            told["test"] = _labels([source.test])
        for number, arrays in source.train.items():
            facts: dict[str, Any] = {}
            if source.sites is not None:  # a NaN would spread to all sites by their statistics
                name = source.sites[number]
                check_finite(name, read_rows(arrays, f"site {name!r}"))
            held_out = [source.held_out[number]] if number in source.held_out else []
            facts["labels"] = _labels([arrays, *held_out])
            if data.standardise:
                facts["x"] = Moments.of(preparation.features(arrays, "train")).plain()
            if data.standardise_target:
                facts["y"] = Moments.of(_measured(arrays)).plain()
            told["sites"][number] = facts
        return told

    told = engine.allgather(tell)
    names = source.sites or ("all rows",)
    facts = list(reading.merged([one["sites"] for one in told], names).values())
    labels = [one["labels"] for one in facts] + [one["test"] for one in told if one["test"]]
    classes = _classes(labels, source.target_names)
    x = preparation.moments_of_all(one["x"] for one in facts) if data.standardise else None
    if not data.standardise_target:
        return _Statistics(x, None, classes)
    y = preparation.moments_of_all(one["y"] for one in facts)
    if classes is not None or y.sd == 0:
        raise InputError("data.standardise_target: the response is not a measured number.")
    return _Statistics(x, y, classes)


def _measured(arrays: Arrays) -> np.ndarray:
    if "y" not in arrays:
        raise InputError("data.standardise_target: there is no response y.")
    return arrays["y"].reshape(-1)


def _labels(parts: list[Arrays]) -> list[Any] | None:
    """Whether the responses are whole numbers, the least and the largest; None without any."""
    responses = [part["y"] for part in parts if "y" in part]
    if not responses:
        return None
    if not all(_whole(y) for y in responses):
        return [False, 0, 0]
    return [True, min(int(y.min()) for y in responses), max(int(y.max()) for y in responses)]


def _whole(y: np.ndarray) -> bool:
    return y.dtype.kind in "biu" or (y.dtype.kind == "f" and bool((y == np.round(y)).all()))


def _classes(labels: list[list[Any] | None], names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Names of the classes, when the response is one."""
    known = [one for one in labels if one is not None]
    if not known:
        return None
    if len(names) > 1:
        return names
    if names or not all(whole for whole, _, _ in known) or min(low for _, low, _ in known) < 0:
        return None
    return tuple(str(label) for label in range(max(high for _, _, high in known) + 1))


def _columns(source: Source) -> Arrays:
    """Features and response of a data set, by name."""
    train = source.train[0]
    columns = {name: train["x"][:, place] for place, name in enumerate(source.feature_names)}
    return columns | {name: array for name, array in train.items() if array.ndim == 1}


def _width(row_shape: tuple[int, ...] | None) -> int | None:
    """Columns of x once it is flat; None without x or columns."""
    return int(np.prod(row_shape)) if row_shape else None


def _stacked(parts: list[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


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
