"""``consortia report RUN [RUN ...]``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Code, Quiet


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run directories; several are compared."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.html",
            help="The file. By default report.html in the (first) run directory; an earlier report "
            "is written over.",
        ),
    ] = None,
    code: Code = False,
    quiet: Quiet = False,
) -> None:
    """Write a run's verdict, figures and cost, or those of several, as one HTML file."""
    with reported(quiet):
        from consortia.report.document import write_report

        target = output or runs[0] / ("report.html" if len(runs) == 1 else "comparison.html")
        written = write_report(runs, target, code=code)
        if not quiet:
            typer.echo(f"written: {written}")
