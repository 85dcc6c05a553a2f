"""``consortia export RUN FILE.nc``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Run


def export(
    run: Run,
    file: Annotated[Path, typer.Argument(metavar="FILE.nc", help="The file to write.")],
) -> None:
    """Write a run to one netCDF file (extra: netcdf)."""
    with reported(quiet=False):
        from consortia.store.export import to_netcdf

        typer.echo(f"written: {to_netcdf(run, file)}")
