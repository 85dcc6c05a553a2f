"""``consortia export RUN FILE``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Run


def export(
    run: Run,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write: NAME.nc, or NAME.csv.")
    ],
) -> None:
    """Write a run to one netCDF file (extra: netcdf), or its draws to a table."""
    with reported(quiet=False):
        from consortia.store.export import to_csv, to_netcdf

        write = to_csv if file.suffix == ".csv" else to_netcdf
        typer.echo(f"written: {write(run, file)}")
