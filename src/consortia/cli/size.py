"""``consortia plan-size STUDY.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Quiet, Seed, StudyFile


def plan_size(
    study: StudyFile,
    times: Annotated[
        str, typer.Option(help="Sizes as multiples of each site's rows, separated by commas.")
    ] = "0.5,1,2",
    simulations: Annotated[int, typer.Option(min=2, help="Simulations of each size.")] = 20,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Also write a table: .csv."),
    ] = None,
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Estimate widths of intervals at several sizes, by data simulated from the prior."""
    with reported(quiet):
        from consortia.errors import InputError
        from consortia.report.terminal import console_of
        from consortia.run.sizes import plan_size as sizes_of
        from consortia.store.durable import replace_file
        from consortia.study.build import load_study

        try:
            factors = [float(factor) for factor in times.split(",")]
        except ValueError:
            raise InputError(
                f"--times {times}: give numbers separated by commas, such as 0.5,1,2."
            ) from None
        given = load_study(study)
        built = given.build()
        if built.regression is None:
            raise InputError(
                "plan-size: data can be simulated only if the study has model.formula."
            )
        console = console_of(quiet=quiet)
        every = simulations * len(factors)
        with console.status(f"0 of {every} simulations") as status:
            sizes = sizes_of(
                built.regression,
                built.algorithm,
                times=factors,
                simulations=simulations,
                rounds=given.run.rounds,
                warmup=given.run.warmup,
                seed=given.run.seed if seed is None else seed,
                on_simulation=lambda done: status.update(f"{done} of {every} simulations"),
            )
        typer.echo(sizes)
        if output is not None:
            replace_file(output, [sizes.to_dataframe().to_csv().encode()])
            typer.echo(f"written: {output}")
