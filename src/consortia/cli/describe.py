"""``consortia describe STUDY.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consortia.cli.exits import reported
from consortia.cli.options import StudyFile
from consortia.errors import InputError

TABLES = (".csv", ".tsv")


def describe(
    study: StudyFile,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Also write Table 1 to a file: .csv or .tsv."
        ),
    ] = None,
) -> None:
    """Show who would be analysed: rows, missing values, Table 1, and follow-up; sample nothing."""
    with reported(quiet=False):
        from consortia.store.durable import replace_file
        from consortia.study.build import load_study

        if output is not None and output.suffix not in TABLES:
            raise InputError(f"--output {output}: the name must end in {' or '.join(TABLES)}.")
        built = load_study(study).build()
        if built.regression is None:
            raise InputError(
                "describe: participants can be described only if the study has model.formula."
            )
        table = built.regression.table_one()
        typer.echo(table)
        wanted = built.regression.specification.question.described
        if wanted is not None and wanted.times:
            typer.echo(f"\n{built.regression.survival_curves()}")
        if output is not None:
            separator = "," if output.suffix == ".csv" else "\t"
            text = table.to_dataframe().to_csv(sep=separator, index=False)
            replace_file(output, [text.encode()])
            typer.echo(f"written: {output}")
