"""``consortia report RUN [RUN ...]``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Code, Quiet
from consortia.errors import InputError


class Kind(StrEnum):
    """Format of a report."""

    html = "html"
    docx = "docx"
    pdf = "pdf"


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
            metavar="FILE",
            help="The file. By default report.html (or .docx, .pdf) in the (first) run directory; "
            "an earlier report is overwritten.",
        ),
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option(
            "--format",
            help="An HTML page, a Word document (extra: docx), or a PDF printed by a browser.",
        ),
    ] = None,
    code: Code = False,
    quiet: Quiet = False,
) -> None:
    """Write a run's effects, verdict, figures and cost, or those of several, as one file."""
    with reported(quiet):
        from consortia.diagnostics.figures.canvas import skip_docstrings
        from consortia.report.document import write_report

        skip_docstrings()
        suffix = f".{kind or Kind.html}"
        target = output or runs[0] / (("report" if len(runs) == 1 else "comparison") + suffix)
        if kind is not None and target.suffix != suffix:
            raise InputError(f"--output {target} has the wrong suffix for --format {kind}.")
        written = write_report(runs, target, code=code)
        if not quiet:
            typer.echo(f"written: {written}")
