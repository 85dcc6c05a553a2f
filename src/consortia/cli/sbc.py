"""``consortia sbc STUDY.toml``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from consortia.cli.exits import BAD, reported
from consortia.cli.options import Quiet, Seed, StudyFile


def sbc(
    study: StudyFile,
    simulations: Annotated[int, typer.Option(min=2, help="Number of simulated data sets.")] = 200,
    draws: Annotated[
        int, typer.Option(min=3, help="Number of draws among which a simulation ranks.")
    ] = 63,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Directory for sbc.txt, sbc.json and sbc.png; by default runs/NAME-sbc.",
        ),
    ] = None,
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Calibrate a study's model and method by data simulated from its prior."""
    with reported(quiet):
        from consortia.errors import InputError, MissingExtraError
        from consortia.report.terminal import console_of
        from consortia.run.calibration import sbc as calibration_of
        from consortia.store.durable import replace_file
        from consortia.study.build import load_study

        given = load_study(study)
        built = given.build()
        if built.regression is None:
            raise InputError("sbc: data can be simulated only if the study has model.formula.")
        console = console_of(quiet=quiet)
        with console.status(f"0 of {simulations} simulations") as status:
            calibration = calibration_of(
                built.regression,
                built.algorithm,
                simulations=simulations,
                rounds=given.run.rounds,
                warmup=given.run.warmup,
                draws=draws,
                seed=given.run.seed if seed is None else seed,
                on_simulation=lambda done: status.update(f"{done} of {simulations} simulations"),
            )
        folder = output or Path("runs") / f"{given.name}-sbc"
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "sbc.txt", [f"{calibration}\n".encode()])
        replace_file(folder / "sbc.json", [json.dumps(calibration.plain()).encode()])
        console.print(str(calibration), markup=False, highlight=False)
        try:
            calibration.figure(folder / "sbc.png")
        except MissingExtraError as error:
            console.print(f"skipped: figure: {error}", soft_wrap=True)
        console.print(f"written to {folder}")
    raise typer.Exit(0 if calibration.calibrated else BAD)
