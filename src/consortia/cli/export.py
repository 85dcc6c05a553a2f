"""``consortia export RUN FILE``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Run
from consortia.errors import InputError


def export(
    run: Run,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write: NAME.nc, or NAME.csv.")
    ],
    rows: Annotated[
        Path | None,
        typer.Option(help="A table of new rows: write the prediction for each row to NAME.csv."),
    ] = None,
    site: Annotated[
        str | None, typer.Option(help="Site of the new rows; by default a new site.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Times at which to predict survival, such as 30,90.")
    ] = None,
) -> None:
    """Write a run to one netCDF file (extra: netcdf), its draws, or predictions, to a table."""
    with reported(quiet=False):
        if rows is not None:
            from consortia.report.predictions import write_predictions

            times = _times(at) if at is not None else None
            typer.echo(f"written: {write_predictions(run, rows, file, site, times)}")
            return
        if site is not None or at is not None:
            raise InputError("--site and --at are for predictions: also give --rows.")
        from consortia.store.export import to_csv, to_netcdf

        write = to_csv if file.suffix == ".csv" else to_netcdf
        typer.echo(f"written: {write(run, file)}")


def _times(text: str) -> list[float]:
    """Return the times of ``--at``."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"--at: give numbers such as 30,90, not {text!r}.") from None
