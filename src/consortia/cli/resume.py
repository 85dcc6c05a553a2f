"""``consortia resume RUN``."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortia.cli.exits import INTERRUPTED, reported
from consortia.cli.options import (
    Code,
    Coordinator,
    Devices,
    Engine,
    Process,
    Processes,
    Quiet,
    Run,
    engine_of,
)
from consortia.errors import InputError, StoreError
from consortia.report.study_run import sample_and_report
from consortia.store.durable import read_regular
from consortia.study.runs import COMMAND, STUDY, beginning, compared_over, left_out_over

if TYPE_CHECKING:
    from consortia.study.build import Study

SUMMARY = "summary.json"
COMMAND_BYTES = 2**20


def resume(
    run: Run,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Total rounds after the warm-up; makes a finished run longer."),
    ] = None,
    stop: Annotated[
        bool, typer.Option("--stop/--no-stop", help="Apply the study's stopping rule.")
    ] = True,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact/--inexact",
            help="Refuse other versions or another machine, which round differently.",
        ),
    ] = True,
    reference: Annotated[
        bool | None,
        typer.Option(
            "--reference/--no-reference",
            help="Also sample the study's reference. By default as in the run.",
        ),
    ] = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Compare with few_rounds and with the gradients of all sites. By default as in "
            "the run.",
        ),
    ] = None,
    engine: Annotated[
        Engine | None, typer.Option(help="Engine that runs the sites; by default one process.")
    ] = None,
    devices: Devices = None,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process: Process = None,
    code: Code = False,
    quiet: Quiet = False,
) -> None:
    """Resume a run from its last checkpoint, or make a finished one longer, bit by bit."""
    over = engine_of(engine or Engine.local, devices, (coordinator, processes, process))
    chosen = None if engine in (None, Engine.local) and devices is None else over
    quiet = quiet or not over.root
    with reported(quiet, over):
        import consortia
        from consortia.engines.local import LocalEngine
        from consortia.store.runs import holds_run

        request = _request(run)
        begun = holds_run(run)
        if begun and rounds is None and stop and (run / SUMMARY).exists():
            record, _ = _record(run)
            if record.get("state") == "finished":
                if not quiet:
                    typer.echo(
                        f"{run} is finished: {record['stopped']}. --rounds N makes it N rounds "
                        "long."
                    )
                return
        if chosen is None:
            _divide_processor(run)
        study = _study(run, Path(request["study"]), code=code)
        options = {name: request.get(name) for name in ("seed", "chains", "rounds")}
        if not begun and rounds is not None:
            options["rounds"] = rounds
        study = study.with_run(**options)
        built = study.build(chosen)
        begin = beginning(study, built, run, chosen)
        if begun:
            rule = "same" if stop else None
            more: dict[str, Any] = {"rounds": rounds, "stop": rule, "exact": exact}
            begin = functools.partial(consortia.resume, run, engine=chosen, **more)
        compare = request.get("verify") if verify is None else verify
        loo = request.get("loo") or study.left_out is not None
        over = chosen or LocalEngine()
        ended = sample_and_report(
            study,
            built,
            run,
            begin,
            request=lambda: None,
            reference=request.get("reference", True) if reference is None else reference,
            verify=compared_over(built, over, quiet=quiet) if compare else None,
            leave_out=left_out_over(study, built, run, over, quiet=quiet) if loo else None,
            quiet=quiet,
        )
    raise typer.Exit(0 if ended else INTERRUPTED)


def _study(run: Path, source: Path, *, code: bool) -> Study:
    """Return the study of a run, from its copy there; refuse a factory that was not run before."""
    from consortia.study.build import load_study
    from consortia.study.code import WARNING, may_run

    study = load_study(run / STUDY, origin=source)
    if not may_run(*study.code, code=code):
        raise InputError(
            f"{run / STUDY}: the factory {study.model.factory} was not run here before, and "
            f"{WARNING}: read it, then pass --code."
        )
    return study


def _divide_processor(run: Path) -> None:
    """Divide the processor of this machine into as many devices as the run has had."""
    from consortia.engines.sharding import cores, offer_cpu_devices

    nodes, chains = _record(run)[1].get("rounding", {}).get("devices", (1, 1))
    if nodes * chains > cores():
        offer_cpu_devices(nodes * chains)


def _record(directory: Path) -> tuple[dict[str, Any], Any]:
    """Return the record, or an empty one where it is damaged: the checkpoint then has it."""
    from consortia.store.runs import read_record

    try:
        return read_record(directory)
    except StoreError:
        return {}, {}


def _request(directory: Path) -> dict[str, Any]:
    """Return the options of the run's ``consortia run``."""
    file = directory / COMMAND
    if not directory.is_dir():
        raise StoreError(f"{directory} is not a directory: give a run directory.")
    if not file.exists():
        raise StoreError(
            f"{directory} was not made by `consortia run` (it has no {COMMAND}): continue "
            "it in Python, consortia.resume(path, model, sites, algorithm)."
        )
    try:
        content = json.loads(read_regular(file, COMMAND_BYTES))
        kinds = {"study": str, "seed": int, "chains": int, "rounds": int}
        kinds |= {"reference": bool, "verify": bool, "loo": bool}
        for name, kind in kinds.items():
            value = content.get(name)
            if not isinstance(value, kind) and not (value is None and name != "study"):
                raise ValueError(f"{name} is {value!r}")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise StoreError(f"{file} is damaged: {error}.") from error
    return content
