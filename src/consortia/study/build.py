"""The study file: one TOML document that says what is sampled, from which data, and how.

Tables: ``[data]``, ``[partition]``, ``[model]``, ``[algorithm]``, ``[run]``, and where they are
wanted ``[compare]``, ``[stop]``, ``[reference]``, ``[output]``. Every key is checked before any
data are read: unknown ones are refused with the nearest known one, wherever they stand.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter
from pathlib import Path
from typing import Any, Literal, get_args

import pydantic
from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from consortia import models
from consortia.algorithms.expanding import expanding
from consortia.algorithms.preconditioning import preconditioned
from consortia.algorithms.registry import ALGORITHMS
from consortia.core.arguments import read_toml, unknown
from consortia.core.contract import Method
from consortia.core.model import Model
from consortia.core.parameters import structure_of, variables
from consortia.data.facts import SiteFacts, run_on_all
from consortia.data.sites import Sites
from consortia.diagnostics.site_sums import LEFT_OUT, SiteSums, compared, side_by_side
from consortia.diagnostics.site_sums import SEED as SUMS_SEED
from consortia.engines import LocalEngine
from consortia.engines.contract import Engine
from consortia.errors import InputError
from consortia.models.regression.model import Regression
from consortia.models.regression.question import Question
from consortia.run.imputations import seed_of
from consortia.run.specification import CHAINS
from consortia.run.stopping import StopWhen, stop_when
from consortia.run.verification import EXACT, SEED
from consortia.store.metadata import Labels, Metadata
from consortia.study.code import files_of
from consortia.study.files import Arrays
from consortia.study.formulas import (
    UNUSED,
    check_data,
    formula_rows,
    options_of,
    question_in,
    site_facts,
)
from consortia.study.options import arguments, called, check_options, given, shown
from consortia.study.tables import CLASSES_MAX, PARTITIONS, Data, Partition, Prepared, Table, deal

MODELS: dict[str, Callable[..., Model]] = {name: getattr(models, name) for name in models.__all__}
"""The ready models, by the name that ``model.kind`` takes."""

LINEAR = ("linear_regression", "logistic_regression", "softmax_regression")
"""Those with coefficients of the columns, which can be turned back to the columns' units."""

FIRST, SECOND = "1", "2"
"""Names of the models of ``[model]`` and ``[compare]`` where they are side by side."""

FROM_DATA = ("features", "classes")
"""Arguments of a model's factory that are filled in from the data when they are not given."""


# --- the tables ----------------------------------------------------------------------------------


class ModelTable(Table):
    """The model: a formula, a ready one, or a function of your own that returns a model.

    All other keys are arguments of `consortia.regression`, or of that function ("none" stands for
    None); features and classes follow from the data.
    """

    model_config = ConfigDict(extra="allow")
    kind: str | None = Field(None, description=f"a ready model: {', '.join(MODELS)}")
    factory: str | None = Field(
        None,
        pattern=r"^[\w.]+:\w+$",
        description="instead of kind: 'package.module:function'; modules beside the study file "
        "are found. A factory is code, it runs with your rights",
    )

    formula: str | None = Field(
        None,
        description="instead of kind: 'response ~ terms' of columns of the sites' tables; see "
        "docs/formulas.md",
    )

    @model_validator(mode="after")
    def _known(self) -> ModelTable:
        if sum(one is not None for one in (self.kind, self.factory, self.formula)) != 1:
            raise ValueError("give exactly one of formula, kind and factory")
        if self.formula is not None:
            check_options("model", options_of, self.options)
            question_in(self.formula, self.options)
        if self.kind is not None:
            if self.kind not in MODELS:
                raise ValueError(f"model.kind = {self.kind!r}: {unknown(self.kind, MODELS)}")
            check_options("model", MODELS[self.kind], self.options, FROM_DATA)
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that were given."""
        if self.formula is not None:  # its tables are no schedules
            extra = self.model_extra or {}
            return {key: None if value == "none" else value for key, value in extra.items()}
        return given(self.model_extra)

    @property
    def question(self) -> Question | None:
        """What a formula asks of every site; None without one."""
        return None if self.formula is None else question_in(self.formula, self.options)

    def make(self, data: Prepared, directory: Path) -> Model:
        """Return the model for these data."""
        factory = MODELS[self.kind] if self.kind else _imported(self.factory or "", directory)
        known: dict[str, Any] = {}
        if data.features is not None:
            known["features"] = data.features
        if data.class_names is not None:
            known["classes"] = len(data.class_names)
        wanted = inspect.signature(factory).parameters
        options = {name: value for name, value in known.items() if name in wanted} | self.options
        needed = "classes" in wanted and wanted["classes"].default is inspect.Parameter.empty
        if self.kind and needed and "classes" not in options:
            raise InputError(
                f"model.kind = {self.kind!r}: the response is no class. Give the labels 0, 1, ..., "
                f"fewer than {CLASSES_MAX:,}, as whole numbers, and do not standardise them."
            )
        check_options("model", factory, options)
        made = called("model", factory, options)
        if not isinstance(made, Model):
            raise InputError(f"model.factory returned a {type(made).__name__}, not a Model.")
        return made


class AlgorithmTable(Table):
    """The algorithm; all other keys are arguments of its function in `consortia`.

    A step size is a number, an array with one value a round, or a table that names a function of
    `consortia.schedules`: ``{ schedule = "polynomial", initial = 0.1, offset = 10, power = 0.4 }``;
    a latency one of `consortia.latency`: ``{ model = "exponential", server_cost = 0.1 }``.
    """

    model_config = ConfigDict(extra="allow")
    name: str = Field(description=f"one of {', '.join(ALGORITHMS)}")
    _method: Method = PrivateAttr()

    @model_validator(mode="after")
    def _make(self) -> AlgorithmTable:
        if self.name not in ALGORITHMS:
            raise ValueError(f"algorithm.name = {self.name!r}: {unknown(self.name, ALGORITHMS)}")
        factory = ALGORITHMS[self.name].factory
        options = given(self.model_extra)
        check_options("algorithm", factory, options)
        self._method = called("algorithm", factory, options)
        return self


class Run(Table):
    """How long."""

    rounds: int = Field(
        0,
        ge=1,
        description="iterations after the warm-up ones; may be left out where the algorithm ends "
        "by itself",
    )
    chains: int = Field(CHAINS, ge=1, description="independent chains")
    seed: int = Field(0, ge=0, description="equal seeds give equal draws")
    thin: int = Field(1, ge=1, description="keep every so manieth draw")
    warmup: int = Field(0, ge=0, description="iterations before the first recorded one")
    predict: bool | None = Field(
        None,
        description="let the sites tell gradient and Hessian of their log-likelihood at some 14 "
        "points before the run, so that its bias is predicted where no process has all rows: over "
        "Flower, where they are messages of the kind fit. Elsewhere it is predicted anyway",
    )
    precondition: bool | None = Field(
        None,
        description="let an approximate algorithm run in coordinates in which the posterior is "
        "about as wide in every direction, by the diagonal of the sites' summed curvature at the "
        "mode; see consortia.preconditioned. Not over Flower",
    )
    verify: bool | None = Field(
        None,
        description="sample the exact posterior after the run, with few_rounds, and compare, as "
        "`consortia run --verify` does; over Flower that is a study of its own, which each site's "
        "policy permits or not",
    )
    loo: bool | None = Field(
        None,
        description="after the run: how well the model predicts rows that are left out (PSIS-LOO, "
        "WAIC), and the posterior without each site, as `consortia run --loo` does; over Flower "
        "that is a study of its own, which each site's policy permits or not",
    )
    bias_target: list[float] | None = Field(
        None,
        min_length=2,
        max_length=2,
        description="with algorithm.step_size = 'none': the largest predicted bias of the means, "
        "in posterior standard deviations, and of the standard deviations, as a share, with which "
        "a step size is chosen; [0.05, 0.1] by default",
    )
    keep: Literal["draws", "moments"] = Field(
        "draws",
        description="all draws; or means, variances and up to 1000 evenly spaced draws a chain",
    )


class Stop(Table):
    """When to stop before all rounds are run; see `consortia.stop_when`."""

    rhat: float | None = Field(None, gt=1, description="largest R-hat at most this")
    ess: float | None = Field(None, ge=1, description="and smallest ESS at least this")
    budget: float | None = Field(None, gt=0, description="or so many seconds have passed")
    every: int = Field(100, ge=4, description="kept draws between two judgements")

    @model_validator(mode="after")
    def _some(self) -> Stop:
        if self.rhat is None and self.ess is None and self.budget is None:
            raise ValueError("give at least one of rhat, ess and budget")
        return self


class Reference(Table):
    """What the result is compared with: the same model on the pooled data, where there are some."""

    method: Literal["nuts"] = Field("nuts", description="NUTS by BlackJAX (extra: reference)")
    draws: int = Field(1000, ge=4, description="kept draws of each chain")
    warmup: int = Field(1000, ge=20, description="draws for the adaptation")
    chains: int = Field(4, ge=1, description="independent chains")
    seed: int = Field(0, ge=0, description="seed")


class Output(Table):
    """What is written besides the draws."""

    name: str | None = Field(
        default=None,
        pattern=r"^\w[\w.-]*$",
        description="the directory under runs/; the study file's name by default",
    )
    figure: bool = Field(default=True, description="draw posterior.png (extra: plots)")


class Study(Table):
    """A whole study file."""

    title: str | None = Field(None, description="one line for the figure and the terminal")
    data: Data
    partition: Partition | None = Field(None, description="how a data set is dealt out to sites")
    model: ModelTable
    compare: ModelTable | None = Field(
        None,
        description="Another model of the same rows, with the keys of `[model]`. It is sampled "
        "after the run, as the first was, and both are compared by how well they predict rows that "
        "are left out (PSIS-LOO, WAIC). Over Flower these are two studies of their own, which each "
        "site's policy permits or not.",
    )
    algorithm: AlgorithmTable
    run: Run
    stop: Stop | None = None
    reference: Reference | None = None
    output: Output = Output()
    _path: Path | None = PrivateAttr(None)
    _imputation: int | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        if self.data.dataset is not None and self.partition is None:
            raise ValueError("a data set needs a [partition]: say how its rows are dealt to sites")
        if self.data.files is not None and self.partition is not None:
            raise ValueError("with data.files every file is a site: remove [partition]")
        if self.model.question is not None:
            check_data(self.data, self.model.question)
            if self.model.question.imputes and self.run.keep != "draws":
                raise ValueError("run.keep: with model.missing = 'impute' all draws are kept")
        if self.compare is not None:
            self._check_compared(self.compare)
        own = self.method
        if not self.run.rounds and own.most_rounds is None:
            raise ValueError(f"run.rounds is missing: {own.name} does not end by itself")
        length = {
            "rounds": self.run.rounds or own.most_rounds,
            "warmup": max(self.run.warmup, own.most_warmup or 0),
        }
        object.__setattr__(self, "run", self.run.model_copy(update=length))
        if self.run.thin > self.run.rounds:
            raise ValueError(
                f"run.thin = {self.run.thin} is larger than run.rounds = {self.run.rounds}: no "
                "draw would be kept"
            )
        return self

    def _check_compared(self, other: ModelTable) -> None:
        if other.factory is not None:
            raise ValueError(
                "compare.factory: give formula or kind; code is looked at in [model] alone"
            )
        first, second = self.model.question, other.question
        if first is None and second is None:
            return
        if first is None or second is None:
            raise ValueError("compare: of [model] and [compare] both are a formula, or neither")
        if first.imputes or second.imputes:
            raise ValueError("compare: with missing = 'impute' there is a likelihood of each")
        if first.by_site != second.by_site:
            raise ValueError(
                "compare: one model has a likelihood of rows, the other of sites (levels that are "
                "integrated out, or cox): with integrate = false both are of rows"
            )
        check_data(self.data, second)

    @property
    def name(self) -> str:
        """The name of the study's runs."""
        return self.output.name or (self._path.stem if self._path else "study")

    @property
    def method(self) -> Method:
        """What samples it."""
        made = self.algorithm._method
        made = preconditioned(made) if self.run.precondition else made
        return expanding(made) if self.run.predict else made

    @property
    def path(self) -> Path | None:
        """The file that it was read from, or None."""
        return self._path

    @property
    def code(self) -> tuple[str | None, Path]:
        """The factory of the model, if it has one, and the folder of the study."""
        return self.model.factory, self._path.parent if self._path else Path()

    @property
    def run_options(self) -> dict[str, Any]:
        """The arguments of `consortia.sample` that ``[run]`` gives."""
        return self.run.model_dump(exclude={"predict", "precondition", "verify", "loo"})

    @property
    def verification(self) -> Study | None:
        """The study of the exact sampler on the same model and data, if ``run.verify`` asks for it.

        It is what `consortia.verify` samples.
        """
        if not self.run.verify:
            return None
        exact = AlgorithmTable(name=EXACT)
        length = {"rounds": exact._method.most_rounds, "warmup": exact._method.most_warmup or 0}
        return self._besides(exact, **length, chains=CHAINS, seed=SEED)

    @property
    def left_out(self) -> Study | None:
        """The study in which each site tells sums with rows left out, if it is asked for.

        It is what `consortia.diagnostics.site_sums.told_by_sites` runs.
        """
        if not self.run.loo and self.compare is None:
            return None
        sums = AlgorithmTable.model_construct(name=LEFT_OUT)
        sums._method = SiteSums()
        found = self._besides(sums, rounds=1, warmup=0, chains=1, seed=SUMS_SEED)
        return found.model_copy(update={"compare": self.compare})

    @property
    def compared(self) -> Study | None:
        """The study of the model in ``[compare]``, sampled as this one."""
        if self.compare is None:
            return None
        run = self.run.model_copy(update={"verify": None, "loo": None})
        more = {"model": self.compare, "compare": None, "run": run, "reference": None}
        return self.model_copy(update=more)

    @property
    def _of_two(self) -> bool:
        """Whether it is of the rows of both models at once."""
        return self.compare is not None and self.algorithm.name == LEFT_OUT

    @property
    def besides(self) -> tuple[Study, ...]:
        """The studies that are run after this one, on the same data."""
        if self._of_two:
            return ()
        found = (*self.imputed, self.verification, self.compared, self.left_out)
        return tuple(one for one in found if one is not None)

    @property
    def imputation(self) -> int | None:
        """The number of the only imputation that is sampled; None of a whole study."""
        return self._imputation

    @property
    def imputed(self) -> tuple[Study, ...]:
        """The study of each imputation by itself, where missing values are imputed."""
        question = self.model.question
        if question is None or not question.imputes or self._imputation is not None:
            return ()
        return tuple(self._of_imputation(number) for number in range(question.imputations))

    def _of_imputation(self, number: int) -> Study:
        found = self.with_run(seed=seed_of(self.run.seed, number))
        found._imputation = number
        return found

    def _besides(self, algorithm: AlgorithmTable, **length: Any) -> Study:
        run = Run.model_validate(length)
        return self.model_copy(
            update={
                "algorithm": algorithm,
                "run": run,
                "stop": None,
                "reference": None,
                "compare": None,
            }
        )

    def with_run(self, **changes: int | None) -> Study:
        """Return the study with other values in ``[run]``, where they are not None."""
        given = {key: value for key, value in changes.items() if value is not None}
        return self.model_copy(update={"run": self.run.model_copy(update=given)})

    def build(
        self,
        engine: Engine | None = None,
        *,
        data_folder: Path | None = None,
        own: Mapping[int, Path] | None = None,
        least: int = 1,
    ) -> Built:
        """Return the objects that `consortia.sample` takes, and the rest.

        Args:
            engine: what will run the study; `LocalEngine()` when None. All processes of a
                `consortia.MPIEngine` call this alike, and of ``data.files`` each reads those of
                the sites that it runs.
            data_folder: where names of data files start; the study file's folder when None.
            own: where the files of sites are that are not there, by the sites' numbers.
            least: levels of a factor with fewer rows at a site of this process are not told.

        Raises:
            InputError: the data, or the arguments of the model, cannot be used; the message names
                the study file. It is raised in all processes.
            RankError: the processes have been given other studies.
        """
        engine = LocalEngine() if engine is None else engine
        try:
            return self._build(
                self._path.parent if self._path else Path(), engine, data_folder, own, least
            )
        except InputError as error:
            if self._path is None:
                raise
            raise InputError(f"{self._path}: {error}") from error

    def contribution(self, path: Path, index: int, least: int = 1) -> SiteFacts:
        """Return what other processes learn of the site whose file is at ``path``.

        Args:
            path: of the file.
            index: of the site.
            least: levels of a factor with fewer rows are not told.

        Raises:
            InputError: the file cannot be used.
        """
        other = self.compared if self._of_two else None
        if other is not None:
            beside = other.contribution(path, index, least)
            own = self.model_copy(update={"compare": None})
            return replace(own.contribution(path, index, least), beside=beside)
        question = self.model.question
        if question is not None:
            return site_facts(self.data, question, path, index, least)[2]
        return self.data.contribution(path, index)[1]

    def _build(
        self,
        directory: Path,
        engine: Engine,
        data_folder: Path | None,
        own: Mapping[int, Path] | None,
        least: int,
    ) -> Built:
        if (other := self.compared) is not None and self._of_two:
            one = self.model_copy(update={"compare": None})
            first = one._build(directory, engine, data_folder, own, least)
            second = other._build(directory, engine.beside(), data_folder, own, least)
            models = compared({FIRST: first.model, SECOND: second.model})
            rows = side_by_side({FIRST: first.rows, SECOND: second.rows})
            return replace(first, model=models, sites=rows, held_out=None)
        method = self.method
        folder = directory if data_folder is None else data_folder
        stop = None if self.stop is None else stop_when(**self.stop.model_dump())

        def same() -> dict[str, Any]:
            return {"study": self.model_dump()}

        if self.model.formula is not None:
            asked = (self.model.formula, self.model.options, folder, engine, method)
            there = (own or {}, least, same, self._imputation)
            made = formula_rows(self.data, self.partition, *asked, *there)
            found = made.regression
            settings = self._settings() | {"regression": dict(found.metadata.settings)}
            title = self.title or self.name
            metadata = replace(found.metadata, title=title, settings=settings)
            parts = (found.model, found.sites, method, made.held_out, stop, metadata)
            return Built(*parts, made.skipped, found)
        prepared = self.data.read(folder, engine, method, own, same)
        sites = deal(self.partition, prepared) if prepared.sites is None else prepared.sites

        def make() -> Model:
            return self.model.make(prepared, directory)

        # Only a function of the user's own may fail in one process alone.
        model = make() if self.model.factory is None else run_on_all(engine, make)
        metadata = self._metadata(model, prepared)
        return Built(model, sites, method, prepared.test, stop, metadata, prepared.skipped)

    def _metadata(self, model: Model, prepared: Prepared) -> Metadata:
        """Return what a run keeps of the study: title, names, units, settings with defaults."""
        ranks = {part.name: len(part.shape) for part in variables(structure_of(model.init))}
        labels = {} if self.model.kind is None else prepared.labels()
        kept = {name: axes[-rank:] for name, axes in labels.items() if (rank := ranks.get(name))}
        settings = self._settings()
        if self.model.kind is not None:
            known = arguments(MODELS[self.model.kind])
            defaults = {name: one.default for name, one in known.items()}
            settings["model"] = (
                {name: value for name, value in defaults.items() if value is not Parameter.empty}
                | {"kind": self.model.kind}
                | self.model.options
            )
        linear = self.model.kind in LINEAR
        title = self.title or self.name
        return Metadata(title, kept, prepared.scaling if linear else None, settings)

    def _settings(self) -> dict[str, Any]:
        settings = self.model_dump(exclude={"title", "output"}, exclude_none=True)
        settings["algorithm"] = {"name": self.algorithm.name} | self.method.parameters()
        if self.model.formula is not None:
            used = {k: v for k, v in settings["data"].items() if k not in (*UNUSED, "target")}
            settings["data"] = used
        return settings


@dataclass(frozen=True)
class Built:
    """A study as objects.

    Attributes:
        model: the model.
        sites: the data at the sites; where values are imputed, each of the completed data.
        algorithm: the algorithm.
        held_out: rows for the predictive scores, a pytree as one site's data, or None.
        stop: the stopping rule, or None.
        metadata: title, settings, names along the axes of a ready model's variables, units.
        skipped: what cannot be had in this process, each with the reason.
        regression: of a formula, what gives results in the user's terms; else None.
    """

    model: Model
    sites: Sites | tuple[Sites, ...]
    algorithm: Method
    held_out: Arrays | None
    stop: StopWhen | None
    metadata: Metadata
    skipped: tuple[str, ...] = ()
    regression: Regression | None = None

    @property
    def imputations(self) -> int:
        """How many completed data sets there are; 0 where nothing is imputed."""
        return 0 if isinstance(self.sites, Sites) else len(self.sites)

    @property
    def rows(self) -> Sites:
        """The data at the sites; of several imputations the first."""
        return self.sites if isinstance(self.sites, Sites) else self.sites[0]

    @property
    def labels(self) -> Labels:
        """Names along the axes of a ready model's variables, counted from the last axis."""
        return self.metadata.labels


# --- reading -------------------------------------------------------------------------------------


def load_study(path: str | Path, origin: Path | None = None) -> Study:
    """Read and check a study file; no data are read and nothing is compiled.

    Args:
        path: the TOML file.
        origin: where a copy comes from: its data files and factories are looked for there.

    Raises:
        InputError: there is no such file, it is not TOML, or a key is unknown, missing or wrong.
            The message names the file, each key, what is wrong with it, and the nearest known key.
    """
    path = Path(path)
    _, content = read_toml(path, "study file")
    try:
        study = Study.model_validate(content)
    except pydantic.ValidationError as error:
        found = sorted(error.errors(), key=lambda item: item["type"] == "missing")
        lines = [_explained(item) for item in found]
        raise InputError("\n".join(f"{path}: {line}" for line in lines)) from None
    study._path = path if origin is None else origin
    return study


# --- errors --------------------------------------------------------------------------------------


def _explained(error: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors as a sentence with the dotted key."""
    location = [part for part in error["loc"] if isinstance(part, str)]
    table: Any = Study
    if location[:1] == ["partition"] and len(location) > 1:  # pydantic puts the kind in between
        table = PARTITIONS[location.pop(1)]
    elif len(location) > 1:
        table = _table(location[0])
    key, value = ".".join(location), error["input"]
    if error["type"] == "extra_forbidden":
        what = f"the table [{key}]" if isinstance(value, dict) else f"{key} = {value!r}"
        return f"{what}: {unknown(location[-1], table.model_fields)}."
    if error["type"] == "missing":
        field = table.model_fields[location[-1]]
        what = f" ({field.description})" if field.description else ""
        return f"{key} is missing{what}."
    if error["type"] == "union_tag_invalid":
        kind = str(error["ctx"]["tag"])
        return f"partition.kind = {kind!r}: {unknown(kind, PARTITIONS)}."
    if error["type"] == "union_tag_not_found":
        return "partition.kind is missing."
    if error["type"] == "value_error":
        text = str(error["ctx"]["error"]).rstrip(".")
        return f"{text}." if not location or text.startswith(f"{key}.") else f"[{key}] {text}."
    message = error["msg"].removeprefix("Input ").rstrip(".")
    return f"{key} = {value!r}: it {message}."


def _table(name: str) -> Any:
    annotation = Study.model_fields[name].annotation
    return next((choice for choice in get_args(annotation) if choice is not type(None)), annotation)


# --- building ------------------------------------------------------------------------------------


def _imported(factory: str, directory: Path) -> Callable[..., Any]:
    """Return the function ``module:name``, from the study file's folder or as installed."""
    module_name, _, name = factory.partition(":")
    sys.path.insert(0, str(directory.resolve()))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's own code raises
        raise InputError(
            f"model.factory = {factory!r} cannot be imported: {shown(error)}."
        ) from error
    finally:
        sys.path.pop(0)
    beside, found = files_of(directory.resolve(), module_name), getattr(module, "__file__", None)
    if beside and (found is None or Path(found).resolve() not in beside):
        raise InputError(
            f"model.factory = {factory!r}: another module of this name is in use already, from "
            f"{found}: give this one another name, or begin a new process."
        )
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"model.factory = {factory!r}: {module_name} has no function {name!r}.")
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        raise InputError(
            f"model.factory = {factory!r}: its arguments are not known: name a function of Python."
        ) from None
    return function
