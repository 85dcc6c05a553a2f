"""``consortia run STUDY.toml``."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortia.cli.exits import INTERRUPTED, reported
from consortia.cli.options import (
    Chains,
    Coordinator,
    Devices,
    Engine,
    Process,
    Processes,
    Quiet,
    Rounds,
    Seed,
    StudyFile,
    engine_of,
)
from consortia.cli.reference import Aside, begun_aside, left_away, reference_of, stored
from consortia.errors import InputError, MissingExtraError
from consortia.store.durable import replace_file, writing
from consortia.store.runs import REQUEST

if TYPE_CHECKING:
    from consortia.models.regression.estimates import Estimates
    from consortia.models.regression.heterogeneity import SiteEffects
    from consortia.report.run_report import RunReport
    from consortia.run.verification import Verification
    from consortia.study.build import Built, Study

RUNS = Path("runs")
STUDY, COMMAND = REQUEST
ESTIMATES, FOREST, LEFT_OUT = "estimates.txt", "forest.png", "left-out.txt"
REFERENCE, COMPARED = "reference", "compare"
TWO_MODELS = ("model", "compare")
"""Names of compared models: of their tables in the study file."""

GO_ON = "interrupted; go on with: consortia resume {}"


def run(
    context: typer.Context,
    study: StudyFile,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Directory of the run, new or empty. By default runs/NAME, or runs/NAME-2, ...",
        ),
    ] = None,
    engine: Annotated[Engine, typer.Option(help="What runs the sites.")] = Engine.local,
    devices: Devices = None,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process: Process = None,
    seed: Seed = None,
    chains: Chains = None,
    rounds: Rounds = None,
    reference: Annotated[
        bool, typer.Option("--reference/--no-reference", help="Sample the study's reference too.")
    ] = True,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Run settings that are predicted to diverge, too.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare with few_rounds, which is exact and takes three messages as a rule, and "
            "with the gradients of all sites at some of the draws. It is then the reference.",
        ),
    ] = False,
    loo: Annotated[
        bool,
        typer.Option(
            "--loo",
            help="Say how well the model predicts rows that are left out (PSIS-LOO, WAIC), and "
            "what the posterior is without each site.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Sample the posterior of a study; write draws, summary and figure to a directory."""
    over = engine_of(engine, devices, (coordinator, processes, process))
    quiet = quiet or not over.root
    with reported(quiet, over):
        from consortia.data.facts import run_on_all
        from consortia.store.runs import RunStore
        from consortia.study.build import load_study
        from consortia.study.code import remember

        given = run_on_all(over, lambda: load_study(study))
        if over.root:
            remember(*given.code)
        # One that holds something is refused before anything is read.
        own = None if output is None else RunStore(output).path
        changes = {"seed": seed, "chains": chains, "rounds": rounds}
        given = given.with_run(**changes)
        verify, loo = verify or bool(given.run.verify), loo or given.left_out is not None
        built = given.build(over)
        directory = _directory(given.name, own, over)

        def request() -> None:
            options = {**changes, "reference": reference, "verify": verify, "loo": loo}
            keep_request(directory, study, options)

        begin = beginning(given, built, directory, over, anyway=anyway)
        pooled = given.reference is not None and left_away(built, wanted=reference) is None
        without = None
        if loo:
            without = left_out_over(given, built, directory, over, quiet=quiet)
        with begun_aside(study, context.obj, wanted=pooled and not verify) as aside:
            code = sample_and_report(
                given,
                built,
                directory,
                begin,
                request=request,
                reference=reference,
                aside=aside,
                verify=compared_over(built, over, quiet=quiet) if verify else None,
                leave_out=without,
                quiet=quiet,
            )
    raise typer.Exit(code)


# --- one run -------------------------------------------------------------------------------------


def sample_and_report(
    study: Study,
    built: Built,
    directory: Path,
    begin: Callable[..., Any],
    *,
    request: Callable[[], None],
    reference: bool,
    quiet: bool,
    aside: Aside | None = None,
    verify: Callable[[Any], Verification | None] | None = None,
    leave_out: Callable[[Any], str | None] | None = None,
) -> int:
    """Sample, compare, write and show; return the exit code.

    Args:
        study: the study.
        built: its objects.
        directory: of the run.
        begin: `beginning`, or `consortia.resume` of the directory.
        request: called before the sampler is compiled: writes what a resumed run is made from.
        reference: sample the study's reference too.
        aside: a process that is at it already.
        verify: compares the finished run with an exact sampler, see `compared_over`; or None.
        leave_out: says what is known of rows and sites that are left out, see `left_out_over`.
        quiet: print errors only.
    """
    from consortia.report.terminal import console_of, plan_panel

    console = console_of(quiet=quiet)

    def on_plan(plan: Any) -> None:
        if built.regression is not None:
            console.print(str(built.regression), markup=False, highlight=False)
        console.print(plan_panel(study.title or study.name, plan))
        request()

    tree = begin(built.model, built.sites, built.algorithm, progress=not quiet, on_plan=on_plan)
    found = None
    if verify is not None:
        found = verify(tree)
    without: str | None = None
    skipped: list[str] = []
    if leave_out is not None:
        try:
            without = leave_out(tree)
        except InputError as error:  # of the draws: the run itself is as good as without it
            skipped = [f"rows and sites left out: {error}"]
    if tree is None:
        return 0
    if without is not None:
        with writing(directory):
            replace_file(directory / LEFT_OUT, [f"{without}\n".encode()])
    given = (study, built, directory, tree, console)
    return _report(
        *given, reference=reference, aside=aside, found=found, without=without, skipped=skipped
    )


def beginning(
    study: Study, built: Built, directory: Path, engine: Any, *, anyway: bool = False
) -> Callable[..., Any]:
    """Return `consortia.sample` with the study's options, without the objects."""
    from consortia.run.sampling import sample

    options = study.run_options
    more = {"stop": built.stop, "engine": engine, "store": directory, "metadata": built.metadata}
    more["on_divergence"] = "warn" if anyway else "raise"
    return functools.partial(sample, **options, **more)


def compared_over(
    built: Built, engine: Any, *, quiet: bool
) -> Callable[[Any], Verification | None]:
    """Return the comparison of a run with an exact sampler over an engine, if the run has ended.

    Raises:
        InputError: values are imputed, so that there is no one posterior to compare with.
    """
    if built.imputations:
        raise InputError(
            "verify: with model.missing = 'impute' there is a posterior of each imputation: take "
            "an exact algorithm, such as few_rounds, or compare with missing = 'complete'."
        )
    from consortia.run.verification import verify

    def compared(tree: Any) -> Verification | None:
        if not _has_ended(tree, engine):
            return None
        return verify(tree, built.model, built.rows, engine=engine, progress=not quiet)

    return compared


def _has_ended(tree: Any, engine: Any) -> bool:
    """Return True if a run is finished, which only the root knows; in all processes."""
    return all(engine.allgather(lambda: tree.attrs["state"] == "finished" if engine.root else True))


def left_out_over(
    study: Study, built: Built, directory: Path, engine: Any, *, quiet: bool
) -> Callable[[Any], str | None]:
    """Return what says of a run over an engine how it is without single rows, and sites.

    The engine's processes hold the rows; all of them call it. The model of ``[compare]`` is sampled
    beside the run.

    Raises:
        InputError: values are imputed, so that there is no one likelihood.
    """
    if built.imputations:
        raise InputError(
            "loo: with model.missing = 'impute' there is a likelihood of each imputation: leave it "
            "out, or compare with missing = 'complete'."
        )
    from consortia.diagnostics.influence import leave_one_site_out
    from consortia.diagnostics.left_out import loo

    other = study.compared

    def without(tree: Any) -> str | None:
        if not _has_ended(tree, engine):
            return None
        given = (tree, built.model, built.rows)
        labels = None if built.regression is None else built.regression.labels
        compared = {"the model": given}
        if other is not None:
            beside = other.build(engine)
            drawn = sample_beside(other, beside, directory / COMPARED, engine, quiet=quiet)
            second = (drawn, beside.model, beside.rows)
            compared = dict(zip(TWO_MODELS, (given, second), strict=True))
        rows = loo(compared, engine=engine)
        return f"{rows}\n\n{leave_one_site_out(*given, labels=labels, engine=engine)}"

    return without


def sample_beside(study: Study, built: Built, directory: Path, engine: Any, *, quiet: bool) -> Any:
    """Return the result of a study whose run is kept within another's directory.

    A run that is there already is resumed, and returned as it is where it has ended.

    Raises:
        KeyboardInterrupt: it was interrupted; `consortia resume` of the other continues it.
    """
    from consortia.run.sampling import resume
    from consortia.store.runs import holds_run

    begin = beginning(study, built, directory, engine)
    if any(engine.allgather(lambda: engine.root and holds_run(directory))):
        begin = functools.partial(resume, directory, engine=engine)
    tree = begin(built.model, built.sites, built.algorithm, progress=not quiet)
    if not _has_ended(tree, engine):
        raise KeyboardInterrupt
    return tree


def keep_request(directory: Path, source: Path, options: dict[str, Any]) -> None:
    """Write the study and the options of the command into the directory of a run."""
    with writing(directory):
        replace_file(directory / STUDY, [source.read_bytes()])
        content = {"study": str(source.resolve()), **options}
        replace_file(directory / COMMAND, [json.dumps(content, indent=1).encode()])


def _report(
    study: Study,
    built: Built,
    directory: Path,
    tree: Any,
    console: Any,
    *,
    reference: bool,
    aside: Aside | None,
    found: Verification | None,
    without: str | None,
    skipped: list[str],
) -> int:
    """Write the reference, the summary and the figure of a run; return the exit code."""
    from consortia.report.effects import MARGINAL_DRAWS
    from consortia.report.run_report import report_of
    from consortia.report.terminal import report_tables

    interrupted = tree.attrs["state"] == "interrupted"
    if "posterior" not in tree.children:
        console.print("no draw was kept")
        console.print(GO_ON.format(directory), soft_wrap=True)
        return INTERRUPTED

    beside, stein, skipped = None, None, [*built.skipped, *skipped]
    if found is not None:
        stein = found.stein
        skipped += found.skipped
        _keep_verification(directory, found)
    if found is not None and found.reference is not None:
        beside = stored(directory / REFERENCE, found.reference, built)
    elif study.reference is None:
        pass  # none is wanted
    elif why := left_away(built, wanted=reference):
        skipped.append(f"reference: {why}")
    elif interrupted:
        skipped.append("reference: the run was interrupted")
    else:
        with console.status("sampling the reference: NUTS on the pooled data ..."):
            try:
                beside = reference_of(study, built, directory / REFERENCE, aside)
            except MissingExtraError as error:
                skipped.append(f"reference: {error}")
            except KeyboardInterrupt:
                interrupted = True
                skipped.append("reference: interrupted")
    figure = _figure_wanted(study, skipped)
    report = report_of(
        tree,
        name=directory.name,
        title=study.title or study.name,
        model=built.model,
        algorithm=built.algorithm,
        held_out=built.held_out,
        labels=built.labels,
        reference=beside,
        skipped=tuple(skipped),
        stein=stein,
    )
    _write(report, directory)
    console.print(report_tables(report))
    if without is not None:
        console.print(f"\n{without}\n", markup=False, highlight=False)
    if built.regression is not None and built.regression.names:
        effects: list[Estimates | SiteEffects] = [built.regression.estimates(tree)]
        if built.regression.differs_by_site:
            effects.append(built.regression.by_site(tree))
        text = "\n\n".join(map(str, effects))
        written = text
        if built.regression.has_margins:
            margins = built.regression.marginal_effects(tree, draws=MARGINAL_DRAWS)
            text, written = f"{text}\n\n{margins.over_all}", f"{text}\n\n{margins}"
        (directory / ESTIMATES).write_text(f"{written}\n", encoding="utf-8")
        console.print(text, markup=False, highlight=False)
        if figure:
            path = effects[-1].forest(directory / FOREST, study.title or study.name)
            console.print(f"forest plot: {path}", soft_wrap=True)
    if figure:  # the table does not wait for it
        _draw(report, directory)
    console.print(
        f"written to {directory}: {', '.join(sorted(p.name for p in directory.iterdir()))}"
    )
    if interrupted:
        console.print(GO_ON.format(directory), soft_wrap=True)
        return INTERRUPTED
    console.print(f"look at it with: consortia report {directory}", soft_wrap=True)
    return 0


def _keep_verification(directory: Path, found: Verification) -> None:
    from consortia.report.run_report import VERIFICATION

    stein = None if found.stein is None else found.stein.plain()
    content = {"stein": stein, "skipped": list(found.skipped)}
    with writing(directory):
        replace_file(directory / VERIFICATION, [json.dumps(content, indent=1).encode()])


def _figure_wanted(study: Study, skipped: list[str]) -> bool:
    from consortia.diagnostics.figures.canvas import check_extra

    if not study.output.figure:
        skipped.append("figure: output.figure = false")
        return False
    try:
        check_extra()
    except MissingExtraError as error:
        skipped.append(f"figure: {error}")
        return False
    return True


def _write(report: RunReport, directory: Path) -> None:
    from consortia.report.tables import text_of

    with writing(directory):
        replace_file(directory / "summary.txt", [text_of(report).encode()])
        replace_file(directory / "summary.json", [report.json().encode()])


def _draw(report: RunReport, directory: Path) -> None:
    from consortia.report.document import write_figures

    with writing(directory):
        write_figures(report, directory)


def _directory(name: str, own: Path | None, engine: Any) -> Path:
    """Return the directory of the run, the same in all processes; the root makes one of its own."""
    if own is not None:
        return own
    made = engine.allgather(lambda: str(_free_directory(name)) if engine.root else "")
    return Path(next(one for one in made if one))


def _free_directory(name: str) -> Path:
    """Make ``runs/name``, or the first of ``runs/name-2``, ... that is not there yet."""
    names = itertools.chain([name], (f"{name}-{index}" for index in itertools.count(2)))
    RUNS.mkdir(exist_ok=True)
    for each in names:
        with contextlib.suppress(FileExistsError):
            (RUNS / each).mkdir()  # at once, or two runs that begin together would take it
            return RUNS / each
    raise AssertionError
