"""``consortia resume RUN``."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Annotated, Any

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

SUMMARY = "summary.json"
COMMAND_BYTES = 2**20


def resume(
    run: Run,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds in all after the warm-up; makes a finished run longer."),
    ] = None,
    stop: Annotated[
        bool, typer.Option("--stop/--no-stop", help="Keep to the study's stopping rule.")
    ] = True,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact/--inexact",
            help="Refuse other versions or another machine, on which rounding would differ.",
        ),
    ] = True,
    reference: Annotated[
        bool | None,
        typer.Option(
            "--reference/--no-reference",
            help="Sample the study's reference too. By default as in the run.",
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
        Engine | None, typer.Option(help="What runs the sites; in one process by default.")
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
    as_before = engine in (None, Engine.local) and devices is None
    quiet = quiet or not over.root
    with reported(quiet, over):
        ended = _resume(
            run,
            rounds,
            None if as_before else over,
            stop=stop,
            exact=exact,
            reference=reference,
            verify=verify,
            code=code,
            quiet=quiet,
        )
    raise typer.Exit(0 if ended else INTERRUPTED)


def _resume(
    directory: Path,
    rounds: int | None,
    engine: Any,
    *,
    stop: bool,
    exact: bool,
    reference: bool | None,
    verify: bool | None,
    code: bool,
    quiet: bool,
) -> bool:
    import consortia
    from consortia.engines.local import LocalEngine
    from consortia.engines.sharding import cores, offer_cpu_devices
    from consortia.store.runs import holds_run, read_record
    from consortia.study.build import load_study
    from consortia.study.code import WARNING, may_run

    request = _request(directory)
    begun = holds_run(directory)
    if begun and rounds is None and stop and (directory / SUMMARY).exists():
        record, _ = _record(directory, read_record)
        if record.get("state") == "finished":
            if not quiet:
                typer.echo(
                    f"{directory} is finished: {record['stopped']}. "
                    "--rounds N makes it N rounds long."
                )
            return True
    if engine is None:
        rounding = _record(directory, read_record)[1].get("rounding", {})
        nodes, chains = rounding.get("devices", (1, 1))
        if nodes * chains > cores():
            offer_cpu_devices(nodes * chains)
    source = Path(request["study"])
    study = load_study(directory / STUDY, origin=source)
    if not may_run(*study.code, code=code):
        raise InputError(
            f"{directory / STUDY}: the factory {study.model.factory} was not run here before, and "
            f"{WARNING}: read it, then give --code."
        )
    options = {name: request.get(name) for name in ("seed", "chains", "rounds")}
    if not begun and rounds is not None:
        options["rounds"] = rounds
    study = study.with_run(**options)
    built = study.build(engine)
    wanted = request.get("reference", True) if reference is None else reference
    begin = beginning(study, built, directory, engine)
    if begun:
        begin = functools.partial(
            consortia.resume,
            directory,
            rounds=rounds,
            stop="same" if stop else None,
            exact=exact,
            engine=engine,
        )
    compare = request.get("verify") if verify is None else verify
    loo = request.get("loo") or study.left_out is not None
    over = engine or LocalEngine()
    left_out = left_out_over(study, built, directory, over, quiet=quiet) if loo else None
    return sample_and_report(
        study,
        built,
        directory,
        begin,
        request=lambda: None,
        reference=wanted,
        verify=compared_over(built, over, quiet=quiet) if compare else None,
        leave_out=left_out,
        quiet=quiet,
    )


def _record(directory: Path, read: Any) -> tuple[dict[str, Any], Any]:
    """Return the record, or an empty one where it is damaged: the checkpoint then has it."""
    try:
        return read(directory)
    except StoreError:
        return {}, {}


def _request(directory: Path) -> dict[str, Any]:
    """Return the options of the run's ``consortia run``."""
    file = directory / COMMAND
    if not directory.is_dir():
        raise StoreError(f"{directory} is not a directory: give that of a run.")
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
