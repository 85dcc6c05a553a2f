"""Rows of a site's file that a study uses, in the canonical form by which they are known again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from consortia.data.columns import Column, LazyTable, Source, column_of, rows_of
from consortia.data.digest import RowDigests, of_cells
from consortia.data.harmonisation import Harmonisation
from consortia.data.tables import read_table
from consortia.errors import InputError
from consortia.models.regression.question import Question
from consortia.study.files import names_of
from consortia.study.tables import Data

Cells = dict[str, tuple[np.ndarray, np.ndarray]]
"""Values of each column, and where they miss."""


def used_rows(
    data: Data,
    question: Question | None,
    path: Path,
    index: int,
    key: bytes,
) -> RowDigests:
    """Return digests of all cells of the rows of a file that a study uses.

    Columns that it does not use count, too, and all count as they were before they are harmonised:
    the rows of two studies are known as the same ones where they come from one file.

    Args:
        data: of the study.
        question: of its formula, with the changes to the tables; None: all rows are used.
        path: of the file.
        index: of the site.
        key: secret of the site.

    Raises:
        InputError: the file cannot be read.
    """
    if question is None:
        cells = _cells(path)
    else:
        assert data.files is not None
        name = names_of(data.files)[index]
        changes = question.harmonise.get(name)
        cells = _cells(path, name, changes)
        table = read_table(path, f"site {name!r}", site=name, harmonise=changes)
        kept = _kept(required(_numbered(table), data, name), question, name)
        cells = {of: (values[kept], missing[kept]) for of, (values, missing) in cells.items()}
    return of_cells(cells, key)


def required(table: LazyTable, data: Data, site: str) -> LazyTable:
    """Return the rows of a table that have a value in each column of ``data.require``.

    Raises:
        InputError: there is no such column, or no such row.
    """
    if not data.require:
        return table
    where = f"site {site!r}: data.require"
    missing = [column_of(table, name, where).missing for name in data.require]
    kept = np.flatnonzero(~np.any(missing, axis=0))
    if not len(kept):
        raise InputError(f"{where}: no row has a value in each of {', '.join(data.require)}.")
    return table.take(kept)


def _cells(path: Path, site: str = "", changes: Harmonisation | None = None) -> Cells:
    """Return the cells of a file as they stand there; of the changes only how it is written."""
    if path.suffix.lower() != ".npz":
        writing = Harmonisation.model_validate({})
        if changes is not None:
            written = ("encoding", "decimal", "sheet")
            writing = writing.model_copy(update={at: getattr(changes, at) for at in written})
        table = read_table(path, str(path), site=site, harmonise=writing)
        return {name: (table[name].values, table[name].missing) for name in table}
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name].reshape(len(stored[name]), -1) for name in stored.files}
    return {
        f"{name} {index}": (column, np.zeros(len(column), bool))
        for name, array in arrays.items()
        for index, column in enumerate(array.T)
    }


def _numbered(table: LazyTable) -> LazyTable:
    """Return a table each of whose cells knows the index of its row."""
    lines = Source("", lines=np.arange(rows_of(table)))

    def numbered(name: str) -> Column:
        return table[name]._replace(source=lines)

    makers = {name: lambda name=name: numbered(name) for name in table}
    return LazyTable(makers, table.rows, table.head)


def _kept(table: LazyTable, question: Question, site: str) -> np.ndarray:
    """Return the indices of the rows that the formula uses."""
    kept = question.kept(table, site)
    sources = [column.source for column in kept.values() if column.source is not None]
    assert sources[0].lines is not None
    return sources[0].lines
