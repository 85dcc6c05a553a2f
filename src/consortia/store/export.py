"""A result as one file that other programs read: netCDF, or a table of draws."""

from __future__ import annotations

import contextlib
import csv
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from consortia.core.arguments import hinted
from consortia.errors import StoreError, require_extra
from consortia.store.durable import written_beside
from consortia.store.runs import open_run


@hinted
def to_netcdf(run: Any, file: str | os.PathLike[str]) -> Path:
    """Write a result to one netCDF-4 file, groups and attributes as they are.

    Such a file is opened by `xarray.open_datatree`, ArviZ, and netCDF in other languages. One
    variable at a time is in memory.

    Args:
        run: a run directory, or the `xarray.DataTree` that `sample`, `resume` or `open_run`
            returned.
        file: where to; it must not exist.

    Returns:
        The path of the file.

    Raises:
        MissingExtraError: the extra ``netcdf`` is not installed.
        StoreError: the file exists or cannot be written, or there is no run.

    Example:
        >>> import consortia
        >>> consortia.to_netcdf("runs/breast_cancer", "mine.nc")  # doctest: +SKIP
    """
    with require_extra("netcdf", "netCDF files need h5netcdf and h5py"):
        import h5netcdf  # noqa: F401 - xarray finds it by name
        import h5py  # noqa: F401
    path = Path(file)
    tree = _result_for(run, path)
    with _written(path) as temporary:
        tree.to_netcdf(temporary, engine="h5netcdf")
    return path


def to_csv(run: Any, file: str | os.PathLike[str]) -> Path:
    """Write the draws of the posterior to a table: chain, draw, and a column a scalar parameter.

    Args:
        run: as of `to_netcdf`.
        file: where to; it must not exist.

    Returns:
        The path of the file.

    Raises:
        StoreError: the file exists or cannot be written, or there are no draws.
    """
    path = Path(file)
    tree = _result_for(run, path)
    if "posterior" not in tree.children:
        raise StoreError("the run holds no draws: nothing was written.")
    posterior = tree["posterior"].to_dataset()
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    header, columns = ["chain", "draw"], []
    for name, variable in posterior.data_vars.items():
        inner = [dim for dim in variable.dims if dim not in ("chain", "draw")]
        flat = variable.transpose("chain", "draw", *inner).values.reshape(chains * draws, -1)
        labels = itertools.product(*(map(str, variable[dim].values) for dim in inner))
        header += [f"{name}[{','.join(label)}]" if label else str(name) for label in labels]
        columns.append(flat)
    places = itertools.product(range(1, chains + 1), range(1, draws + 1))
    rows = zip(places, *(map(tuple, column.tolist()) for column in columns), strict=True)
    return write_csv(path, header, ([*itertools.chain(*row)] for row in rows))


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Write a table to a new file, which is there as a whole or not at all; return its path.

    Raises:
        StoreError: it cannot be written.
    """
    with (
        _written(path) as temporary,
        open(temporary, "x", newline="", encoding="utf-8") as opened,
    ):
        writer = csv.writer(opened)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def _result_for(run: Any, path: Path) -> Any:
    """Return the result of a run, which is to be written where nothing is yet."""
    if path.exists():
        raise StoreError(f"{str(path)!r} already exists: nothing was written. Give another name.")
    return open_run(run) if isinstance(run, (str, os.PathLike)) else run


@contextlib.contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Give a name to write to, which becomes the file's; an error names the file."""
    try:
        with written_beside(path) as temporary:
            yield temporary
    except OSError as error:
        raise StoreError(f"{str(path)!r} cannot be written: {error}.") from error
