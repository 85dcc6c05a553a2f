"""The tables ``[data]`` and ``[partition]`` of a study file: which rows are at which site.

The rows are either a data set of `consortia.datasets`, which ``[partition]`` deals out, or come as
one file per site and stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from consortia.core.arguments import unknown
from consortia.core.arrays import Array, namespace
from consortia.core.contract import Method
from consortia.core.fingerprints import of_value
from consortia.data import datasets, partition, preparation
from consortia.data.facts import (
    Gathering,
    SiteFacts,
    moments_over,
    read_labels,
    read_table,
    rows_of,
    run_on_all,
)
from consortia.data.preparation import Moments
from consortia.data.sites import Sites, check_finite, of_common_types
from consortia.engines.contract import Engine
from consortia.errors import InputError, wrong
from consortia.study.files import Arrays, FileRows, common_kinds, names_of, read_rows

Labels = tuple[bool, int, int]

CLASSES_MAX = 10_000
"""Whole numbers from 0 up to it may be classes."""

WHOLE_MAX = 2**53
"""Whole numbers beyond it are no labels: not every one of them is a float."""


SCORES_SKIPPED = "predictive scores: the held-out rows are in other processes"
"""Reason in a process that lacks held-out rows."""


class Table(BaseModel):
    """A table of the study file: unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(Table):
    """Rows, and their preparation before they are split among sites."""

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
    target: str = Field("y", description="with files: the column or array of the response")
    keep: str | None = Field(
        None,
        description="with files and model.formula: analyse only rows for which this expression "
        "holds, e.g. 'service > 0'; the others are counted in the flow diagram",
    )
    test_file: str | None = Field(None, description="with files: a file of held-out rows")
    test_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of the rows (of each site's rows, with files) that is held out for "
        "the predictive scores, at most 0.3 at an institution; without it the test rows that the "
        "set is published with, if any",
    )
    require: list[str] = Field(
        [],
        description="with a formula: use only rows with a value in each of these columns, so that "
        "several studies of one file use the same rows",
    )
    seed: int = Field(0, ge=0, description="seed of the held-out rows")
    download: bool = Field(
        False, description="if the data set is absent, download it from its publisher"
    )
    scale: float | None = Field(
        None,
        gt=0,
        description="factor by which features are multiplied; 1/255 by default for images",
    )
    standardise: bool | list[str] = Field(
        False,
        description="centre and scale these features by the statistics of all training rows; true: "
        "all features except columns of integers with a range of at most 20 (indices, categories, "
        "yes or no)",
    )
    standardise_target: bool = Field(
        False, description="the same for the response; scores are then in units of its sd"
    )
    intercept: bool = Field(False, description="append a column of ones to the features")
    dtype: Literal["float32", "float64"] | None = Field(
        None, description="precision of the numbers; by default as read"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        if (self.dataset is None) == (self.files is None):
            raise ValueError("give exactly one of dataset and files")
        if self.dataset is not None:
            if self.dataset not in datasets.AVAILABLE:
                known = unknown(self.dataset, datasets.AVAILABLE)
                raise wrong("data.dataset", f" = {self.dataset!r}: {known}")
            if self.test_file is not None:
                raise ValueError("test_file needs files: give test_share instead")
            if self.require:
                raise ValueError("require needs files: a data set has no missing values")
        if self.test_file is not None and self.test_share is not None:
            raise ValueError("give at most one of test_file and test_share")
        return self

    @property
    def site_names(self) -> tuple[str, ...]:
        """Names of the sites, one a file; () of a data set, which is divided among sites."""
        return names_of(tuple(self.files or ()))

    def index_of(self, site: str) -> int:
        """Return the index of a site that has a file.

        Raises:
            InputError: the study has no such site.
        """
        names = self.site_names
        if not names:
            raise InputError(
                "the study divides one data set among sites: give data.files, one file for each "
                "site."
            ).at("data.files")
        if site not in names:
            raise InputError(
                f"the study has the sites {', '.join(names)}, not {site!r}: give --site, or a "
                "node's `site`."
            ).at("site")
        return names.index(site)

    def read(
        self,
        directory: Path,
        engine: Engine,
        algorithm: Method,
        table: Any,
        elsewhere: Mapping[int, Path] | None = None,
        same: Callable[[], Mapping[str, Any]] = dict,
    ) -> Prepared:
        """Return the rows at their sites; of files those of the sites of this process.

        All processes of the engine make the same call.

        Args:
            directory: where the names of files start.
            engine: decides which sites this process runs.
            algorithm: what is run.
            table: ``[partition]``, by which a data set is dealt out.
            elsewhere: the files of sites that are not there, by the sites' indices.
            same: what all processes must have been given, by name.

        Raises:
            InputError: a file cannot be used; in all processes, wherever it is.
            DatasetMissing: a data set is not there.
        """
        if self.files is None:
            return run_on_all(engine, partial(self._of_dataset, table), same)
        names, elsewhere = self.site_names, elsewhere or {}
        paths = [elsewhere.get(index, directory / name) for index, name in enumerate(self.files)]
        read: dict[int, FileRows] = {}
        test_rows: list[FileRows] = []

        def contribute(index: int) -> SiteFacts:
            read[index], facts = self.contribution(paths[index], index)
            return facts

        def contribute_test() -> Any:
            if self.test_file is None:
                return None
            test_rows.append(read_rows(directory / self.test_file, self.target, None, 0))
            arrays, _, columns = test_rows[0]
            labels = _labels([arrays])
            return {"columns": list(columns), "labels": None if labels is None else list(labels)}

        gathering = Gathering(names, algorithm, contribute, contribute_test, same)
        facts, of_test = engine.gather_facts(gathering)
        kinds = common_kinds(facts, paths)
        labels = [site.labels for site in facts]
        if of_test is not None:
            try:
                columns, of_rows = of_test["columns"], read_labels(of_test["labels"])
            except (TypeError, KeyError, ValueError) as error:
                raise wrong("data.test_file", f": its facts are damaged: {error}.") from None
            if columns != list(facts[0].columns):
                raise InputError(
                    f"{directory / str(self.test_file)} does not have the same columns as the "
                    "sites."
                )
            labels.append(of_rows)
        agreed = self._agreed(labels, moments_over(facts), (), facts[0].columns)

        def prepared(arrays: Arrays) -> Arrays:
            cast = {name: array.astype(kinds[name], copy=False) for name, array in arrays.items()}
            return self._made(self._changed(cast), agreed)

        shapes = {name: shape for name, (shape, _) in facts[0].arrays.items()}
        row = {name: np.zeros((1, *shape), kinds[name]) for name, shape in shapes.items()}
        without_rows = {name: array[:0] for name, array in prepared(row).items()}
        parts = [
            read_table(prepared(read[index].train), f"site {names[index]!r}")
            if index in read
            else rows_of(without_rows, site.rows)
            for index, site in enumerate(facts)
        ]
        made = self.model_dump(include={"scale", "intercept", "dtype"})
        digests = {n: of_value((site.digest, made, agreed)) for n, site in enumerate(facts)}
        kept = of_common_types(names, parts)
        sites = Sites.of_rows(names, kept, digests, set(digests) - set(read))
        held_out = [read[index].held_out for index in sorted(read)]
        test: Arrays | None = None
        skipped: tuple[str, ...] = ()
        if test_rows:
            test = self._made(self._changed(test_rows[0].train), agreed)
        elif self.test_share is not None and len(held_out) == len(names):
            shares = [prepared(part) for part in held_out if part is not None]
            test = {name: np.concatenate([part[name] for part in shares]) for name in shares[0]}
        elif self.test_share is not None or self.test_file is not None:
            skipped = (SCORES_SKIPPED,)
        return self._prepared(sites, test, facts[0].columns, agreed, skipped)

    def contribution(self, path: Path, index: int) -> tuple[FileRows, SiteFacts]:
        """Return the rows of a site's file, and what other processes learn of them.

        Raises:
            InputError: the file cannot be used.
        """
        name = self.site_names[index]
        rows = read_rows(path, self.target, self.test_share, self.seed + index)
        table = read_table(rows.train, f"site {name!r}")
        check_finite(name, table)  # a NaN would spread to all sites by their statistics
        labels, moments = self._contribution(self._changed(rows.train), rows.held_out)
        return rows, SiteFacts.of(table, columns=rows.columns, labels=labels, moments=moments)

    def _of_dataset(self, table: Any) -> Prepared:
        assert self.dataset is not None
        dataset = datasets.load(self.dataset, download=self.download)
        train, test = dataset.train, dataset.test
        if self.test_share is not None or train is None:
            if self.test_share is None:
                raise wrong("data.test_share", f" is needed: {self.dataset} has test rows only.")
            train, test = preparation.train_test_split(
                dataset.rows, test_share=self.test_share, seed=self.seed
            )
        raw, names = self._changed(train), dataset.feature_names
        labels, moments = self._contribution(raw, test)
        of_all = {name: Moments(*plain) for name, plain in moments.items()}
        agreed = self._agreed([labels], of_all, dataset.target_names, names)
        sites = deal(table, self._made(raw, agreed), named_columns(raw, names))
        test = None if test is None else self._made(self._changed(test), agreed)
        return self._prepared(sites, test, names, agreed)

    def _prepared(
        self,
        sites: Sites,
        test: Arrays | None,
        names: tuple[str, ...],
        agreed: _Agreed,
        skipped: tuple[str, ...] = (),
    ) -> Prepared:
        """Return the rows with the names of their columns."""
        x = sites.shards[0].get("x")
        features = x.shape[1] if x is not None and x.ndim == 2 else None
        names = (*names, "intercept") if names and self.intercept else names
        natural = self._natural(features, agreed)
        return Prepared(sites, test, features, names, agreed.classes, natural, skipped)

    def _natural(
        self, features: int | None, agreed: _Agreed
    ) -> Callable[[Mapping[str, Array]], dict[str, Array]] | None:
        """Return `in_column_units` of standardised columns or responses; None without any."""
        if features is None or (agreed.x is None and agreed.y is None):
            return None
        means, sds, response = np.zeros(features), np.ones(features), (0.0, 1.0)
        if agreed.x is not None:
            changed = np.flatnonzero(agreed.changed)
            means[changed] = agreed.x.centre[changed]
            sds[changed] = preparation.units(agreed.x)[changed]
        if agreed.y is not None:
            response = agreed.y.centre.item(), agreed.y.sd.item()
        return partial(
            in_column_units, columns=(means, sds), response=response, ones=self.intercept
        )

    def _changed(self, arrays: Arrays) -> Arrays:
        """Return the arrays with x changed row by row."""
        if "x" in arrays and arrays["x"].ndim > 2:
            factor = 1 / 255 if self.scale is None else self.scale
            return preparation.images_to_rows(arrays, scale=factor, intercept=False)
        if self.scale is None:
            return arrays
        if "x" not in arrays:
            raise InputError(
                "data.scale: it multiplies features, an array x, and there is none: remove it, or "
                "store the features under the name x."
            ).at("data.scale")
        return _scaled(arrays, "x", 0.0, 1 / self.scale)

    def _made(self, arrays: Arrays, agreed: _Agreed) -> Arrays:
        """Return the arrays in the units of all rows."""
        if agreed.x is not None:
            arrays = preparation.standardised(arrays, agreed.x, "the rows", agreed.changed)
        if agreed.y is not None:
            arrays = _scaled(arrays, "y", float(agreed.y.centre), float(agreed.y.sd))
        if self.intercept:
            arrays = preparation.with_intercept(arrays)
        return arrays if self.dtype is None else _as_type(arrays, dtype=self.dtype)

    def _contribution(
        self, arrays: Arrays, held_out: Arrays | None
    ) -> tuple[Labels | None, dict[str, Any]]:
        """Return labels and moments of some rows, from which those of all rows follow."""
        labels = _labels([arrays] if held_out is None else [arrays, held_out])
        moments: dict[str, Any] = {}
        if self.standardise:
            moments["x"] = Moments.of(preparation.features(arrays, "train")).plain()
        if self.standardise_target:
            if "y" not in arrays:
                raise wrong("data.standardise_target", ": the data have no response y.")
            moments["y"] = Moments.of(arrays["y"].reshape(-1)).plain()
        return labels, moments

    def _agreed(
        self,
        labels: Sequence[Labels | None],
        moments: Mapping[str, Moments],
        target_names: tuple[str, ...],
        columns: tuple[str, ...],
    ) -> _Agreed:
        """Return the facts that follow from the rows of all sites together."""
        classes = _classes(labels, target_names)
        x = moments["x"] if self.standardise else None
        changed = () if x is None else self._changed_columns(x, columns)
        if not self.standardise_target:
            return _Agreed(x, None, classes, changed)
        y = moments["y"]
        if len(target_names) > 1 or y.sd == 0:
            raise wrong("data.standardise_target", ": the response is not a measured number.")
        return _Agreed(x, y, None, changed)

    def _changed_columns(self, x: Moments, columns: tuple[str, ...]) -> tuple[bool, ...]:
        """List the standardised columns of x."""
        if isinstance(self.standardise, bool):
            return tuple(x.measured.tolist())
        if not columns:
            raise wrong("data.standardise", ": the columns have no names; give true.")
        for name in self.standardise:
            if name not in columns:
                raise wrong("data.standardise", f": {name!r} is {unknown(name, columns)}.")
        return tuple(name in self.standardise for name in columns)


class Prepared(NamedTuple):
    """Rows at their sites, prepared as ``[data]`` says."""

    sites: Sites
    test: Arrays | None  # held-out rows, or None
    features: int | None  # columns of x, None without x or columns
    feature_names: tuple[str, ...]  # one name per column of x, empty when they have none
    class_names: tuple[str, ...] | None  # one name per class, None when the response is not a class
    # a linear predictor's parameters in the units of columns and response; None where these are as
    # they were read
    natural: Callable[[Mapping[str, Array]], dict[str, Array]] | None
    skipped: tuple[str, ...]  # what cannot be had in this process, each with the reason

    def labels(self) -> dict[str, tuple[tuple[str, ...] | None, ...]]:
        """Return names along the axes of the ready models' parameters, (classes, features)."""
        features, classes = self.feature_names or None, self.class_names
        return {"coefficients": (classes, features), "intercept": (classes,)}


# --- how they are dealt out to sites -------------------------------------------------------------


class _Partition(Table):
    seed: int = Field(0, ge=0, description="seed of the partition")


class _Dealt(_Partition):
    sites: int = Field(ge=1, description="number of sites")


class IID(_Dealt):
    """Rows assigned to sites at random."""

    kind: Literal["iid"]


class Dirichlet(_Dealt):
    """Label skew: each label is divided among the sites in its own proportions."""

    kind: Literal["dirichlet"]
    concentration: float = Field(gt=0, description="small: few labels per site; large: nearly iid")
    minimum_rows: int = Field(1, ge=1, description="smallest number of rows at a site")


class LabelShards(_Dealt):
    """Label skew: rows sorted by label, cut into equal shards, which are given to the sites."""

    kind: Literal["label_shards"]
    shards_per_site: int = Field(2, ge=1, description="number of shards of each site")


class Quantity(_Dealt):
    """Quantity skew: random rows, unequal sizes. Give either concentration or exponent."""

    kind: Literal["quantity"]
    concentration: float | None = Field(
        None, gt=0, description="of a Dirichlet law of the sizes; small: unequal"
    )
    exponent: float | None = Field(None, ge=0, description="sizes c^-exponent, c = 1, 2, ...")
    minimum_rows: int = Field(1, ge=1, description="smallest number of rows at a site")


class ByColumn(_Partition):
    """A natural partition: rows with similar values of one column are at the same site."""

    kind: Literal["by_column"]
    column: str = Field(description="name of a feature, or y; before any scaling")
    sites: int | None = Field(
        None, ge=1, description="number of quantile groups; by default one site per value"
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


def deal(table: Any, arrays: Arrays, columns: Arrays) -> Sites:
    """Return rows at their sites, dealt out by a table ``[partition]``.

    ``columns`` are the features and the response as they were read, (rows,) each, by name.
    """
    options = table.model_dump(exclude={"kind"}, exclude_none=True)
    if isinstance(table, ByColumn):
        if table.column not in columns:
            raise InputError(
                f"partition.column = {table.column!r}: {unknown(table.column, columns)}."
            ).at("partition.column")
        options |= {"column": columns[table.column], "name": table.column}
    return getattr(partition, table.kind)(arrays, **options)


def named_columns(arrays: Arrays, names: Sequence[str]) -> Arrays:
    """Return the columns of x by these names, and the other arrays with a number a row."""
    columns = {name: arrays["x"][:, index] for index, name in enumerate(names)}
    return columns | {name: array for name, array in arrays.items() if array.ndim == 1}


# --- preparing -----------------------------------------------------------------------------------


class _Agreed(NamedTuple):
    """Facts of the rows of all sites together."""

    x: Moments | None  # moments of the features, where they are to be standardised
    y: Moments | None  # of the response, likewise
    classes: tuple[str, ...] | None  # names of the classes, when the response is one
    changed: tuple[bool, ...] = ()  # which columns of x are standardised, where some are


def _labels(parts: list[Arrays]) -> Labels | None:
    """Find the range of the responses and test them for integers; None without any."""
    responses = [part["y"] for part in parts if "y" in part]
    if not responses:
        return None
    if not all(_whole(y) and y.size and np.abs(y).max() <= WHOLE_MAX for y in responses):
        return (False, 0, 0)
    return (True, min(int(y.min()) for y in responses), max(int(y.max()) for y in responses))


def _whole(y: np.ndarray) -> bool:
    return y.dtype.kind in "biu" or (y.dtype.kind == "f" and bool((y == np.round(y)).all()))


def _classes(labels: Sequence[Labels | None], names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the names of the classes, when the response is one."""
    known = [site_labels for site_labels in labels if site_labels is not None]
    if not known:
        return None
    if len(names) > 1:
        return names
    if names or not all(whole for whole, _, _ in known) or min(low for _, low, _ in known) < 0:
        return None
    if max(high for _, _, high in known) >= CLASSES_MAX:
        return None
    return tuple(str(label) for label in range(max(high for _, _, high in known) + 1))


def in_column_units(
    params: Mapping[str, Array],
    *,
    columns: tuple[np.ndarray, np.ndarray],
    response: tuple[float, float],
    ones: bool,
) -> dict[str, Array]:
    r"""Return the parameters of a linear predictor in the units of what was standardised.

    .. math::
        \beta_j = s_y \tilde\beta_j / s_j, \qquad
        a = m_y + s_y \Bigl(\tilde a - \sum_j \tilde\beta_j m_j / s_j\Bigr), \qquad
        \log\sigma = \log\tilde\sigma + \log s_y

    A model without an intercept has one in these units: the predictor where all columns are 0.

    Args:
        params: as they are sampled, of one draw or of several.
        columns: m and s, 0 and 1 of a column that is as it was.
        response: m_y and s_y, likewise.
        ones: the last column is of ones, so that its coefficient is the intercept.
    """
    slopes, (means, sds), (centre, unit) = params["coefficients"], columns, response
    xp, dtype, natural = namespace(slopes), slopes.dtype, dict(params)
    shift = centre - unit * (slopes @ xp.asarray(means / sds, dtype))
    slopes = slopes * xp.asarray(np.broadcast_to(unit / sds, slopes.shape), dtype)
    if "intercept" in params:
        natural["intercept"] = params["intercept"] * unit + shift
    elif ones:
        last = slopes[..., -1:] + shift[..., None]
        slopes = xp.concatenate([slopes[..., :-1], last], axis=-1)
    else:
        natural["intercept"] = shift
    if "log_noise_scale" in params:
        natural["log_noise_scale"] = params["log_noise_scale"] + math.log(unit)
    return natural | {"coefficients": slopes}


def _scaled(arrays: Arrays, key: str, centre: float, unit: float) -> Arrays:
    return {**arrays, key: (arrays[key] - centre) / unit}


def _as_type(arrays: Arrays, dtype: str) -> Arrays:
    """Return features and fractions in this type, integers no wider than it."""
    whole = np.dtype(dtype.replace("float", "int"))

    def narrowed(name: str, array: np.ndarray) -> np.ndarray:
        if name == "x" or array.dtype.kind == "f":
            return array.astype(dtype)
        if array.dtype.kind not in "iu" or array.dtype.itemsize <= whole.itemsize:
            return array
        limits = np.iinfo(whole)
        if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
            raise InputError(
                f"data.dtype = {dtype!r}: {name!r} holds integers from {array.min()} to "
                f"{array.max()}, which {whole} cannot represent: write them as decimals (1.0), "
                "or use a smaller unit."
            ).at("data.dtype")
        return array.astype(whole)

    return {name: narrowed(name, array) for name, array in arrays.items()}
