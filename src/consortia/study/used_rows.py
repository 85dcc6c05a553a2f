"""Rows of a site's file that a study uses, in the canonical form by which they are known again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from consortia.data.columns import Column, LazyTable, Source, column_of, rows_of
from consortia.data.dialect import number_of
from consortia.data.digest import RowDigests, of_cells, of_names
from consortia.data.harmonisation import Harmonisation
from consortia.data.preparation import train_test_split
from consortia.data.tables import read_npz, read_table
from consortia.errors import InputError, PolicyError
from consortia.models.regression.question import Question
from consortia.study.tables import Data

MOST_HELD_OUT = 0.3
"""Largest share held out at an institution. Of n rows two choices of a share s leave at least
(1 - 2 s) n in common, more than half of the (1 - s) n that one of them uses where s < 1/3: they are
known as the same data, whatever the seeds are (`consortia.federation.governance.holdings`). If the
study then leaves out more, by values that miss or by ``data.keep``, that holds on average."""

Cells = dict[str, tuple[np.ndarray, np.ndarray]]
"""Values of each column, and where they miss."""


def used_rows(
    data: Data,
    question: Question | None,
    path: Path,
    index: int,
    key: bytes,
) -> RowDigests:
    """Return digests of all cells of the rows that a study uses, in the order of the file.

    Rows that are held out count as not used: two studies may differ by them. Columns that are not
    used count, too, and all count as they were before they are harmonised: the rows of two studies
    are known as the same ones where they come from one file. A column in other units counts in the
    study's, too, so that a copy of a file is known again.

    Args:
        data: of the study.
        question: of its formula, with the changes to the tables; None without a formula.
        path: of the file.
        index: of the site.
        key: secret of the site.

    Raises:
        InputError: the file cannot be read, or so few rows cannot be divided.
        PolicyError: the study holds out so many rows that another choice is not known again.
    """
    _check_share(data)
    if question is None:
        cells = _cells(path)
        if data.test_share is not None:
            rows = np.arange(len(next(iter(cells.values()))[0]))
            of_site = data.seed + index
            train, _ = train_test_split(rows, test_share=data.test_share, seed=of_site)
            cells = _taken(cells, train)
        return of_cells(cells, key)
    plain, kept, made, names, table = _read(data, question, path, index)
    cells = _cells_of(plain)
    for column in made.scale:
        of = table[column]
        cells[f"{column}, scaled" if column in cells else column] = of.values, of.missing
    cells = _taken(cells, kept)
    entries = list(_changed_values(plain.take(kept), names, made))
    pairs = ((column, f"{value}\0{to}") for column, value, to, _ in entries)
    return of_cells(cells, key)._replace(
        changes=of_names(chain(*pairs), key).reshape(-1, 2),
        touched=np.array([count for *_, count in entries], np.int64),
        used=of_names((names[of] for of in question.columns if of in names), key),
    )


class RowChoices(NamedTuple):
    """Choices of a study among the rows and values of one site."""

    given: int  # rows of the file
    used: int  # rows that the study uses
    # column, value, what it is taken for ("" for a missing value), and in how many rows
    changes: list[tuple[str, str, str, int]]


def _check_share(data: Data) -> None:
    if data.test_share is not None and data.test_share > MOST_HELD_OUT:
        raise PolicyError(
            f"data.test_share = {data.test_share}: an institution holds at most {MOST_HELD_OUT} of "
            "its rows out, so that all such studies of a file draw on one budget: give a smaller "
            "share, or leave it out.",
            rules=("test_share",),
        )


def row_choices(data: Data, question: Question, path: Path, index: int) -> RowChoices:
    """Return a study's choice of rows in a file, and its replacements of values.

    Raises:
        InputError: the file cannot be read.
        PolicyError: the study holds out too many rows.
    """
    _check_share(data)
    plain, kept, made, names, _ = _read(data, question, path, index)
    return RowChoices(rows_of(plain), len(kept), list(_changed_values(plain, names, made)))


def _read(
    data: Data, question: Question, path: Path, index: int
) -> tuple[LazyTable, np.ndarray, Harmonisation, dict[str, str], LazyTable]:
    """Return a file as written, rows used, changes, columns by new names, and the changed file."""
    name = data.site_names[index]
    changes = question.harmonise.get(name)
    plain = _as_written(path, name, changes)
    table = read_table(path, f"site {name!r}", site=name, harmonise=changes)
    train, _ = split_rows(required(_numbered(table), data, name), data, index)
    kept = _kept(train, question, name)
    made = changes or Harmonisation.model_validate({})
    return plain, kept, made, {made.rename.get(of, of): of for of in plain}, table


def _changed_values(
    table: LazyTable, names: Mapping[str, str], changes: Harmonisation
) -> Iterator[tuple[str, str, str, int]]:
    """Yield each value that is taken for another: its column, both values, and the rows."""
    for column, recoded in changes.recode.items():
        for value, to in recoded.items():
            yield names[column], value, to, _count(table[names[column]], value)
    for column, codes in changes.missing_values.items():
        for code in codes:
            yield names[column], str(code), "", _count(table[names[column]], code)


def _count(column: Column, value: str | float) -> int:
    """Return in how many rows a value stands, written in any way."""
    given = column.values if column.given is None else column.given
    same = np.array([str(text) == str(value) for text in given.tolist()], bool)
    number = number_of(str(value).replace(",", "."))
    if column.kind == "number" and number is not None:
        same |= ~column.missing & (column.values == number)
    return int(same.sum())


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
        raise InputError(f"{where}: no row has values in all of {', '.join(data.require)}.")
    return table.take(kept)


def split_rows(table: LazyTable, data: Data, index: int) -> tuple[LazyTable, LazyTable | None]:
    """Return a site's rows without a share of them, and that share.

    Raises:
        InputError: a part would be empty.
    """
    if data.test_share is None:
        return table, None
    rows, of_site = np.arange(rows_of(table)), data.seed + index
    kept, held_out = train_test_split(rows, test_share=data.test_share, seed=of_site)
    return table.take(kept), table.take(held_out)


def _as_written(path: Path, site: str, changes: Harmonisation | None) -> LazyTable:
    """Return the table of a file as it stands there; of the changes only how it is written."""
    writing = Harmonisation.model_validate({})
    if changes is not None:
        written = ("encoding", "decimal", "sheet")
        writing = writing.model_copy(update={name: getattr(changes, name) for name in written})
    return read_table(path, str(path), site=site, harmonise=writing)


def _cells_of(table: LazyTable) -> Cells:
    return {name: (table[name].values, table[name].missing) for name in table}


def _taken(cells: Cells, rows: np.ndarray) -> Cells:
    return {of: (values[rows], missing[rows]) for of, (values, missing) in cells.items()}


def _cells(path: Path) -> Cells:
    """Return the cells of a file without a formula."""
    if path.suffix.lower() != ".npz":
        return _cells_of(_as_written(path, "", None))
    return {
        f"{name} {index}": (column, np.zeros(len(column), bool))
        for name, array in read_npz(path).items()
        for index, column in enumerate(array.reshape(len(array), -1).T)
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
    used = question.kept(table, site)
    sources = [column.source for column in used.values() if column.source is not None]
    assert sources[0].lines is not None
    return sources[0].lines
