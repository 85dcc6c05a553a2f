"""``consortia run STUDY.toml``."""

from __future__ import annotations

import contextlib
import itertools
import tomllib
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
from consortia.report.study_run import sample_and_report
from consortia.study.reference import begun_aside, left_away
from consortia.study.runs import beginning, compared_over, keep_request, left_out_over

if TYPE_CHECKING:
    from consortia.study.build import Study

RUNS = Path("runs")
FIRST = "-propensity"
"""End of the name of the directory of the run that gives weights."""


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
    engine: Annotated[Engine, typer.Option(help="Engine that runs the sites.")] = Engine.local,
    devices: Devices = None,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process: Process = None,
    seed: Seed = None,
    chains: Chains = None,
    rounds: Rounds = None,
    reference: Annotated[
        bool, typer.Option("--reference/--no-reference", help="Also sample the study's reference.")
    ] = True,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Run even settings that are predicted to diverge.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare with few_rounds, which is exact, usually takes three messages and "
            "becomes the reference, and with the gradients of all sites at some of the draws.",
        ),
    ] = False,
    loo: Annotated[
        bool,
        typer.Option(
            "--loo",
            help="Estimate how well the model predicts rows that are left out (PSIS-LOO, WAIC), "
            "and the posterior without each site.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Sample the posterior of a study; write draws, summary and figure to a directory.

    A study with a propensity table has two posteriors: of who was treated, and of the outcome with
    the weights that follow from the first.
    """
    over = engine_of(engine, devices, (coordinator, processes, process))
    quiet = quiet or not over.root
    with reported(quiet, over):
        from consortia.data.facts import run_on_all
        from consortia.store.runs import RunStore
        from consortia.study.build import load_study, study_of
        from consortia.study.code import remember
        from consortia.study.propensity import weights_of, with_weights

        given = run_on_all(over, lambda: load_study(study))
        if over.root:
            remember(*given.code)
        # One that holds something is refused before anything is read.
        path = None if output is None else RunStore(output).path
        changes = {"seed": seed, "chains": chains, "rounds": rounds}
        options = {**changes, "reference": reference, "verify": verify, "loo": loo}
        more = {"kept_in": path, "context": context.obj, "anyway": anyway, "quiet": quiet}
        text = None
        if given.awaits_weights:
            aside = None if path is None else RunStore(path.with_name(f"{path.name}{FIRST}")).path
            first = options | {"verify": False, "loo": False}
            ended, directory = _sampled(given, study, over, first, **{**more, "kept_in": aside})
            if not ended:
                raise typer.Exit(INTERRUPTED)
            made = over.allgather(
                lambda: (
                    weights_of(given.propensity, given.model.formula, directory)
                    if over.root
                    else ""
                )
            )
            text = with_weights(study.read_text(encoding="utf-8"), "".join(made))
            given = study_of(tomllib.loads(text), study)
        ended, _ = _sampled(given, study, over, options, text=text, **more)
    raise typer.Exit(0 if ended else INTERRUPTED)


def _sampled(
    study: Study,
    source: Path,
    over: Any,
    options: dict[str, Any],
    *,
    kept_in: Path | None,
    context: Any,
    anyway: bool,
    quiet: bool,
    text: str | None = None,
) -> tuple[bool, Path]:
    """Run a study over an engine; return whether it ended, and its directory.

    Args:
        study: the study.
        source: its file.
        over: the engine.
        options: of the command, which a resumed run takes again.
        kept_in: directory of the run; by default one of the study's name.
        context: of the command line, for a process aside.
        anyway: run settings that are predicted to diverge, too.
        quiet: print errors only.
        text: of the study, where the file has another.
    """
    given = study.with_run(**{name: options[name] for name in ("seed", "chains", "rounds")})
    verify = options["verify"] or bool(given.run.verify)
    loo = options["loo"] or given.left_out is not None
    built = given.build(over)
    directory = _directory(given.name, kept_in, over)

    def request() -> None:
        keep_request(directory, source, {**options, "verify": verify, "loo": loo}, text)

    begin = beginning(given, built, directory, over, anyway=anyway)
    reference = options["reference"]
    pooled = given.reference is not None and left_away(built, wanted=reference) is None
    without = left_out_over(given, built, directory, over, quiet=quiet) if loo else None
    with begun_aside(source, context, wanted=pooled and not verify) as aside:
        ended = sample_and_report(
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
    return ended, directory


def _directory(name: str, kept_in: Path | None, engine: Any) -> Path:
    """Return the directory of the run, the same in all processes; the root makes one of its own."""
    if kept_in is not None:
        return kept_in
    made = engine.allgather(lambda: str(_free_directory(name)) if engine.root else "")
    return Path(next(path for path in made if path))


def _free_directory(name: str) -> Path:
    """Make ``runs/name``, or the first of ``runs/name-2``, ... that is not there yet."""
    names = itertools.chain([name], (f"{name}-{index}" for index in itertools.count(2)))
    RUNS.mkdir(exist_ok=True)
    for each in names:
        with contextlib.suppress(FileExistsError):
            (RUNS / each).mkdir()  # at once, or two runs that begin together would take it
            return RUNS / each
    raise AssertionError
