"""The study file: one TOML document that says what is sampled, from which data, and how.

Tables: ``[data]``, ``[partition]``, ``[harmonise.SITE]``, ``[model]``, ``[algorithm]``, ``[run]``,
and where they are wanted ``[propensity]``, ``[registered]``, ``[compare]``, ``[stop]``,
``[reference]``, ``[output]``. Every key is checked before any data are read: unknown ones are
refused with the nearest known one, wherever they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from pydantic import Field, PrivateAttr, model_validator

from consortia.algorithms.expanding import expanding
from consortia.algorithms.preconditioning import preconditioned
from consortia.core.arguments import read_toml, unknown
from consortia.core.contract import Method
from consortia.core.model import Model
from consortia.core.parameters import structure_of, variables
from consortia.core.queries import Conversation
from consortia.data.columns import Table as Columns
from consortia.data.digest import RowDigests
from consortia.data.facts import SiteFacts, run_on_all
from consortia.data.harmonisation import NONE, Harmonisation, read_harmonisations
from consortia.data.sites import Sites
from consortia.diagnostics.site_sums import LEFT_OUT, SiteSums, compared, side_by_side
from consortia.diagnostics.site_sums import SEED as SUMS_SEED
from consortia.engines.contract import Engine
from consortia.engines.local import LocalEngine
from consortia.errors import InputError, wrong
from consortia.models.regression.construction import (
    AT_ONE_OWNER,
    Sent,
    assembled,
    gathered,
    kept_rows,
)
from consortia.models.regression.design import site_rows
from consortia.models.regression.model import Regression
from consortia.models.regression.propensity import check_share
from consortia.models.regression.question import Question
from consortia.models.regression.registration import Registration
from consortia.run.imputations import seed_of
from consortia.run.specification import CHAINS
from consortia.run.stopping import StopWhen, stop_when
from consortia.run.verification import EXACT, SEED
from consortia.store.metadata import Labels, Metadata
from consortia.study.explanation import explained
from consortia.study.files import Arrays
from consortia.study.formulas import UNUSED, check_data, dealt_tables, site_facts
from consortia.study.model import ModelTable
from consortia.study.propensity import Propensity
from consortia.study.registered import Registered
from consortia.study.sampling import AlgorithmTable, Output, Reference, Run, Stop
from consortia.study.tables import SCORES_SKIPPED, Data, Partition, Prepared, Table
from consortia.study.used_rows import RowChoices, row_choices, used_rows

FIRST, SECOND = "1", "2"
"""Names of the models of ``[model]`` and ``[compare]`` where they are side by side."""


class Study(Table):
    """A whole study file."""

    title: str | None = Field(
        None, description="title for the figure and the terminal, in one line"
    )
    question: str | None = Field(
        None,
        description="with model.formula: the column that the study is about, such as a treatment; "
        "reports begin with its effect, whether or not its direction is clear",
    )
    data: Data
    partition: Partition | None = Field(None, description="how a data set is divided among sites")
    harmonise: dict[str, Harmonisation] = Field(
        default_factory=dict,
        description="with model.formula: by site, changes made when its table is read, so that all "
        "sites' tables agree; the files are not changed",
    )
    model: ModelTable
    propensity: Propensity | None = None
    registered: Registered | None = None
    compare: ModelTable | None = Field(
        None,
        description="A second model of the same rows, with the keys of `[model]`. It is sampled "
        "after the run in the same way, and both are compared by how well they predict rows that "
        "are left out (PSIS-LOO, WAIC). Over Flower these are two further studies, which "
        "each site's policy permits or not.",
    )
    algorithm: AlgorithmTable
    run: Run = Field(default_factory=lambda: Run.model_validate({}))
    stop: Stop | None = None
    reference: Reference | None = None
    output: Output = Output()
    _path: Path | None = PrivateAttr(None)
    _imputation: int | None = PrivateAttr(None)
    _copies_of: str | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        if self.propensity is not None:
            self._weigh(self.propensity)
        if self.data.dataset is not None and self.partition is None:
            raise wrong("partition", ": a data set needs it, to divide its rows among sites")
        if self.question is not None:
            self._check_question(self.question)
        of_rows = {"harmonise": self.harmonise, "data.keep": self.data.keep is not None}
        for key, given in of_rows.items():
            if given and (self.model.formula is None or self.data.files is None):
                raise wrong(key, ": it needs data.files and model.formula")
        if self.data.files is not None:
            changes = read_harmonisations(self.harmonise, self.data.site_names)
            object.__setattr__(self, "harmonise", changes)
        if self.data.files is not None and self.partition is not None:
            raise wrong("partition", ": with data.files each file is a site: remove it")
        if self.data.require and self.model.formula is None:
            raise wrong("data.require", ": without model.formula rows have no missing values")
        if self.model.question is not None:
            check_data(self.data, self.model.question)
            if self.model.question.imputes and self.run.keep != "draws":
                raise wrong("run.keep", ": with model.missing = 'impute' the run keeps all draws")
        if self.registered is not None:
            self._check_registered(self.registered)
        if self.compare is not None:
            self._check_compared(self.compare)
        method = self.method
        if not self.run.rounds:
            if not isinstance(method, Conversation):
                raise wrong("run.rounds", f" is missing: {method.name} does not stop by itself")
            length = {"rounds": method.most_rounds}
            object.__setattr__(self, "run", self.run.model_copy(update=length))
        if self.run.thin > self.run.rounds:
            text = f" = {self.run.thin} is larger than run.rounds = {self.run.rounds}"
            raise wrong("run.thin", f"{text}: no draw would be kept")
        return self

    def _check_question(self, column: str) -> None:
        asked = self.model.question
        if asked is None or column not in asked.parsed.columns:
            known = () if asked is None else asked.parsed.columns
            reason = unknown(column, known) if known else "the study has no model.formula"
            raise wrong("question", f" = {column!r} is not a column of a term: {reason}")

    def _weigh(self, table: Propensity) -> None:
        """Give the outcome its weights; before these are known, put the treatment in its place."""
        if self.question is not None:
            self._check_question(self.question)
        if self.compare is not None:
            raise wrong("propensity", ": it gives the weights of one model: leave [compare] out")
        changes: dict[str, Any] = {"model": table.model(self.model)}
        if self.awaits_weights:
            run = self.run.model_copy(update={"verify": None, "loo": None})
            changes |= {"question": None, "run": run, "stop": None, "reference": None}
            changes |= {"title": f"{self.title}: who was treated"} if self.title else {}
        for name, value in changes.items():
            object.__setattr__(self, name, value)

    def _check_registered(self, table: Registered) -> None:
        question, method = self.model.question, self.method
        if question is None or self.data.files is None:
            raise wrong("registered", ": it needs model.formula and data.files")
        if self.compare is not None:
            raise wrong(
                "registered",
                ": it states the levels and scales of one formula, and [compare] has "
                "another formula: remove one of the two, or write two studies",
            )
        if self.run.loo:
            raise wrong(
                "run.loo",
                ": it needs each site's number of rows, which sites do not announce in a "
                "registered study; if all rows are in one process, `consortia run --loo` works",
            )
        if not isinstance(method, Conversation) or method.needs_rows:
            raise wrong(
                "registered",
                f": {method.name} needs the numbers of rows of all sites before its "
                "first message: use algorithm.name = 'few_rounds', or remove [registered]",
            )
        breaks = self.model.options.get("breaks")
        table.registration.specification(question, self.data.site_names, breaks)

    def _check_compared(self, other: ModelTable) -> None:
        if other.factory is not None:
            raise wrong(
                "compare.factory", ": give formula or kind; a factory is permitted only in [model]"
            )
        first, second = self.model.question, other.question
        if first is None and second is None:
            return
        if first is None or second is None:
            raise wrong("compare", ": both models must have a formula, or neither")
        if first.imputes or second.imputes:
            raise wrong(
                "compare", ": with missing = 'impute' each imputation has its own likelihood"
            )
        if first.by_site != second.by_site:
            raise wrong(
                "compare",
                ": one model has a likelihood per row, the other per site (integrated "
                "levels, or cox): with integrate = false both are per row",
            )
        check_data(self.data, second)

    @property
    def asked(self) -> Question | None:
        """The question of a formula, with what the study says of the rows of each site."""
        question, keep = self.model.question, kept_rows(self.data.keep)
        harmonise: Mapping[str, Harmonisation] = self.harmonise
        if self._copies_of is not None:
            changes = harmonise.get(self._copies_of, NONE)
            harmonise = dict.fromkeys(self.data.site_names, changes)
        return question and replace(question, harmonise=harmonise, keep=keep)

    def of_copies(self, site: str) -> Study:
        """Return the study for copies of one site's file, which all sites read as it does."""
        study = self.model_copy()
        study._copies_of = site
        return study

    @property
    def awaits_weights(self) -> bool:
        """True if it is the study of who was treated, from whose run the weights follow."""
        return self.propensity is not None and self.propensity.weights is None

    @property
    def name(self) -> str:
        """The name of the study's runs."""
        name = self.output.name or (self._path.stem if self._path else "study")
        return f"{name}-propensity" if self.awaits_weights else name

    @property
    def method(self) -> Method:
        """Method that samples it."""
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
    def registration(self) -> Registration | None:
        """Levels and units that the study states; None where the sites agree on them."""
        return None if self.registered is None else self.registered.registration

    @property
    def run_options(self) -> dict[str, Any]:
        """The arguments of `consortia.sample` that ``[run]`` gives."""
        return self.run.model_dump(
            exclude={"predict", "precondition", "verify", "loo", "secure_sums"}
        )

    @property
    def verification(self) -> Study | None:
        """The study of the exact sampler on the same model and data, if ``run.verify`` asks for it.

        It is what `consortia.verify` samples.
        """
        if not self.run.verify:
            return None
        exact = AlgorithmTable(name=EXACT)
        method = exact._method
        assert isinstance(method, Conversation)
        return self._besides(exact, rounds=method.most_rounds, warmup=0, chains=CHAINS, seed=SEED)

    @property
    def left_out(self) -> Study | None:
        """The study in which each site sends sums with rows left out, if it is requested.

        It is what `consortia.diagnostics.site_sums.told_by_sites` runs.
        """
        if not self.run.loo and self.compare is None:
            return None
        sums = AlgorithmTable.model_construct(name=LEFT_OUT)
        sums._method = SiteSums()
        study = self._besides(sums, rounds=1, warmup=0, chains=1, seed=SUMS_SEED)
        return study.model_copy(update={"compare": self.compare})

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
        """True if it is of the rows of both models at once."""
        return self.compare is not None and self.algorithm.name == LEFT_OUT

    @property
    def besides(self) -> tuple[Study, ...]:
        """The studies that are run after this one, on the same data."""
        if self._of_two:
            return ()
        studies = (*self.imputed, self.verification, self.compared, self.left_out)
        return tuple(study for study in studies if study is not None)

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
        study = self.with_run(seed=seed_of(self.run.seed, number))
        study._imputation = number
        return study

    def _besides(self, algorithm: AlgorithmTable, **length: Any) -> Study:
        none = dict.fromkeys(("stop", "reference", "compare"))
        run = Run.model_validate(length)
        return self.model_copy(update={"algorithm": algorithm, "run": run} | none)

    def with_run(self, **changes: int | None) -> Study:
        """Return the study with other values in ``[run]``, where they are not None."""
        given = {key: value for key, value in changes.items() if value is not None}
        return self.model_copy(update={"run": self.run.model_copy(update=given)})

    def build(
        self,
        engine: Engine | None = None,
        *,
        data_folder: Path | None = None,
        files: Mapping[int, Path] | None = None,
        least: int = 1,
        cells: int = 1,
    ) -> Built:
        """Return the objects that `consortia.sample` takes, and the rest.

        Args:
            engine: what will run the study; `LocalEngine()` when None. All processes of a
                `consortia.MPIEngine` make the same call, and of ``data.files`` each reads those of
                the sites that it runs.
            data_folder: where names of data files start; the study file's folder when None.
            files: those of sites that are elsewhere, by the sites' numbers.
            least: levels of a factor with fewer rows at a site of this process are not sent.
            cells: fewest rows of a number that such a site sends about its participants.

        Raises:
            InputError: the data, or the arguments of the model, cannot be used; the message names
                the study file. It is raised in all processes.
            RankError: the processes have been given other studies.
        """
        engine = LocalEngine() if engine is None else engine
        try:
            return self._build(engine, data_folder, files, (least, cells))
        except InputError as error:
            if self._path is None:
                raise
            fault, file = InputError(f"{self._path}: {error}"), error.file
            if error.site is None:
                file = file or str(self._path)
            fault.faults = error.faults
            raise fault.at(error.argument, site=error.site, file=file, line=error.line) from error

    def contribution(self, path: Path, index: int, least: int = 1, cells: int = 1) -> SiteFacts:
        """Return the facts of the site whose file is at ``path``, for other processes.

        Args:
            path: of the file.
            index: of the site.
            least: levels of a factor with fewer rows are not sent.
            cells: fewest rows of a number that is sent about participants.

        Raises:
            InputError: the file cannot be used.
        """
        other = self.compared if self._of_two else None
        if other is not None:
            other_facts = other.contribution(path, index, least, cells)
            first = self.model_copy(update={"compare": None})
            return replace(first.contribution(path, index, least, cells), beside=other_facts)
        if self.asked is not None:
            parts = self.data, self.asked, path, self.data.site_names[index], index, least, cells
            facts = site_facts(*parts, registered=self.registration)[2]
            return facts if self.registered is None else replace(facts, table=None)
        return self.data.contribution(path, index)[1]

    @property
    def summed(self) -> tuple[tuple[str, ...], ...]:
        """Names of the numbers of which moments may travel, of each model that is compared."""
        return tuple(() if asked is None else asked.summed for asked in self._every_asked)

    @property
    def shown(self) -> frozenset[str]:
        """Names of the moments of columns that sites compare, each column once."""
        every = [asked.shown for asked in reversed(self._every_asked) if asked is not None]
        return frozenset({c: text for of in every for c, text in of.items()}.values())

    @property
    def _every_asked(self) -> list[Question | None]:
        other = self.compared if self._of_two else None
        return [study.asked for study in (self, other) if study is not None]

    def used_rows(self, path: Path, index: int, key: bytes) -> list[RowDigests]:
        """Return digests of the rows that the study uses, and those that it is compared with uses.

        Args:
            path: of the site's file.
            index: of the site.
            key: secret of the site.

        Raises:
            InputError: the file cannot be used.
        """
        other = self.compared
        other_rows = [] if other is None else other.used_rows(path, index, key)
        return [used_rows(self.data, self.asked, path, index, key), *other_rows]

    def row_choices(self, path: Path, index: int) -> RowChoices | None:
        """Return the study's choice of rows and values in a site's file; None without a formula.

        Args:
            path: of the site's file.
            index: of the site.
        """
        asked = self.asked
        return None if asked is None else row_choices(self.data, asked, path, index)

    def _build(
        self,
        engine: Engine,
        data_folder: Path | None,
        files: Mapping[int, Path] | None,
        least: tuple[int, int],
    ) -> Built:
        if (other := self.compared) is not None and self._of_two:
            alone = self.model_copy(update={"compare": None})
            first = alone._build(engine, data_folder, files, least)
            second = other._build(engine.beside(), data_folder, files, least)
            models = compared({FIRST: first.model, SECOND: second.model})
            rows = side_by_side({FIRST: first.rows, SECOND: second.rows})
            return replace(first, model=models, sites=rows, held_out=None)
        method, directory = self.method, self.code[1]
        folder = directory if data_folder is None else data_folder
        stop = None if self.stop is None else stop_when(**self.stop.model_dump())

        def same() -> dict[str, Any]:
            return {"study": self.model_dump()}

        if self.model.formula is not None:
            built, held_out, skipped = _formula_rows(self, engine, folder, files or {}, least, same)
            table = self.propensity if self.awaits_weights else None
            if table is not None and table.estimand == "ATE" and table.stabilise:
                check_share(self.model.formula, built.specification.levels)
            settings = self._settings() | {"regression": dict(built.metadata.settings)}
            title = self.title or self.name
            metadata = replace(built.metadata, title=title, settings=settings)
            parts = (built.model, built.sites, method, held_out, stop, metadata)
            return Built(*parts, skipped, built)
        prepared = self.data.read(folder, engine, method, self.partition, files, same)

        def make() -> Model:
            return self.model.make(prepared, directory)

        # Only a function of the user's own may fail in one process alone.
        model = make() if self.model.factory is None else run_on_all(engine, make)
        metadata = self._metadata(model, prepared)
        parts = (model, prepared.sites, method, prepared.test, stop, metadata)
        return Built(*parts, prepared.skipped)

    def _metadata(self, model: Model, prepared: Prepared) -> Metadata:
        """Return a run's record of the study: title, names, units, settings with defaults."""
        ranks = {part.name: len(part.shape) for part in variables(structure_of(model.init))}
        labels = {} if self.model.kind is None else prepared.labels()
        kept = {name: axes[-rank:] for name, axes in labels.items() if (rank := ranks.get(name))}
        settings = self._settings()
        if self.model.kind is not None:
            settings["model"] = self.model.settings
        return Metadata(self.title or self.name, kept, settings)

    def _settings(self) -> dict[str, Any]:
        unsaid = {"title", "output"} | (set() if self.harmonise else {"harmonise"})
        settings = self.model_dump(exclude=unsaid, exclude_none=True)
        settings["algorithm"] = {"name": self.algorithm.name} | self.method.parameters()
        if self.model.formula is not None:
            used = {k: v for k, v in settings["data"].items() if k not in (*UNUSED, "target")}
            settings["data"] = used
        return settings


def _formula_rows(
    study: Study,
    engine: Engine,
    folder: Path,
    files: Mapping[int, Path],
    least: tuple[int, int],
    same: Callable[[], Mapping[str, Any]],
) -> tuple[Regression, Arrays | None, tuple[str, ...]]:
    """Return model and rows of a study, its held-out rows, and what cannot be had here, with why.

    ``least`` are the fewest rows of a level that is sent, and of a number about participants;
    ``files`` has those of sites that are not in ``folder``, by the sites' indices; ``same`` makes
    what all processes must have been given. Of imputations one is returned where the study is of
    one.

    Raises:
        InputError: a file cannot be used, or the sites disagree; in all processes.
    """
    data, options, registered = study.data, study.model.options, study.registration
    question = study.asked
    assert question is not None
    read: dict[int, Columns] = {}
    held_out: dict[int, Columns | None] = {}
    key = None if engine.name == "flower" else AT_ONE_OWNER  # institutions have none in common
    sources: Sequence[Any]
    if data.files is None:
        names, sources = dealt_tables(data, study.partition)
    else:
        names = data.site_names
        sources = [files.get(index, folder / name) for index, name in enumerate(data.files)]

    def contribute(index: int) -> SiteFacts:
        of_site = sources[index], names[index], index
        parts = site_facts(data, question, *of_site, *least, key, registered)
        read[index], held_out[index], facts = parts
        return facts if key is not None or registered is None else replace(facts, table=None)

    facts = gathered(question, names, contribute, read, engine, study.method, same)
    sent = Sent(question, facts, names, read)
    more = study.imputation, registered, options.get("summaries")
    made = assembled(sent, options.get("prior"), options.get("breaks"), *more)
    if data.test_share is None:
        return made, None, ()
    if len(read) < len(names):
        return made, None, (SCORES_SKIPPED,)
    parts = [
        site_rows(made.specification, part, names[index])
        for index, part in sorted(held_out.items())
        if part is not None
    ]
    return made, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, ()


@dataclass(frozen=True)
class Built:
    """A study as objects."""

    model: Model
    # the data at the sites; where values are imputed, each of the completed data
    sites: Sites | tuple[Sites, ...]
    algorithm: Method
    held_out: Arrays | None  # rows for the predictive scores, a pytree as one site's data, or None
    stop: StopWhen | None  # the stopping rule, or None
    metadata: Metadata  # title, settings, names along the axes of a ready model's variables, units
    skipped: tuple[str, ...] = ()  # what cannot be had in this process, each with the reason
    # of a formula, what gives results in the user's terms; else None
    regression: Regression | None = None

    @property
    def imputations(self) -> int:
        """Number of completed data sets; 0 where nothing is imputed."""
        return 0 if isinstance(self.sites, Sites) else len(self.sites)

    @property
    def rows(self) -> Sites:
        """The data at the sites; of several imputations the first."""
        return self.sites if isinstance(self.sites, Sites) else self.sites[0]

    @property
    def labels(self) -> Labels:
        """Names along the axes of a ready model's variables, counted from the last axis."""
        return self.metadata.labels


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
    study = study_of(content, path)
    study._path = path if origin is None else origin
    return study


def study_of(content: Mapping[str, Any], path: Path) -> Study:
    """Return the study that a TOML document says, which is or will be at a path.

    Raises:
        InputError: a key is unknown, missing or wrong, as in `load_study`.
    """
    try:
        study = Study.model_validate(content)
    except pydantic.ValidationError as error:
        faults = sorted(error.errors(), key=lambda item: item["type"] == "missing")
        lines = [f"{path}: {explained(item, Study)}" for item in faults]
        key = ".".join(part for part in faults[0]["loc"] if isinstance(part, str))
        named = getattr(faults[0].get("ctx", {}).get("error"), "argument", None) or key
        argument = named if named.startswith(key) else f"{key}.{named}"
        raise InputError("\n".join(lines)).at(argument, file=str(path)) from None
    study._path = path
    return study
