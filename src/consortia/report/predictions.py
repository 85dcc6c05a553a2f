"""Predictions of a run for the rows of a table, as another table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from consortia.errors import InputError, StoreError
from consortia.report.run_report import load_run
from consortia.store.export import write_csv

QUANTILES = {"2.5%": 0.025, "50%": 0.5, "97.5%": 0.975}


def write_predictions(
    run: str | os.PathLike[str],
    rows: str | os.PathLike[str],
    file: str | os.PathLike[str],
    site: str | None = None,
    at: Sequence[float] | None = None,
) -> Path:
    """Write what a run of a formula predicts for new rows: mean, sd and quantiles over its draws.

    A line of the file is a row of the table, by its number; of classes, and of times, it is one
    class or time of a row.

    Args:
        run: its directory, with the study in it and the study's tables where they were.
        rows: the new rows, in any file that tables come in.
        file: where to; it must not exist.
        site: whose levels they have; None for a site that is not among them.
        at: times, of families with ``Surv``.

    Returns:
        The path of the file.

    Raises:
        InputError: as `consortia.Regression.predict`, or the run is of no formula that can be built
            here.
        StoreError: the file exists or cannot be written, or the run is missing.
    """
    path = Path(file)
    if path.exists():
        raise StoreError(f"{str(file)!r} already exists: nothing was written. Choose another name.")
    report = load_run(run)
    if report.regression is None:
        raise InputError(
            f"{str(run)!r} cannot predict: that needs a run of a formula whose study and tables "
            f"are on this machine. `consortia check {Path(run) / 'study.toml'}` says why not."
        )
    values = report.regression.predict(report.tree, rows, site, at=at)
    kinds = values.dims[3:]
    labels = list(values.coords[kinds[0]].values) if kinds else []
    columns = [values.mean(("chain", "draw")), values.std(("chain", "draw"))]
    columns += [values.quantile(share, ("chain", "draw")) for share in QUANTILES.values()]
    numbers = np.stack([np.asarray(column).ravel() for column in columns], axis=-1)
    labelled: list[list[object]] = [
        [row + 1, *label]
        for row in range(values.sizes["row"])
        for label in ([[name] for name in labels] if kinds else [[]])
    ]
    lines = zip(labelled, numbers.tolist(), strict=True)
    header = ["row", *kinds, "mean", "sd", *QUANTILES]
    return write_csv(path, header, ([*label, *line] for label, line in lines))
