"""Studies whose model is a formula: tables as people have them, read where each site runs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from consortia.data import datasets
from consortia.data.columns import Table
from consortia.data.facts import SiteFacts
from consortia.data.tables import read_table
from consortia.errors import InputError, warn, wrong
from consortia.models.regression.concentration import check_moments, rounded_moments
from consortia.models.regression.construction import (
    contribution,
    kept_rows,
    place_of,
    question_of,
    regression,
)
from consortia.models.regression.question import Question
from consortia.models.regression.registration import Registration
from consortia.study.files import Arrays
from consortia.study.options import called
from consortia.study.tables import Data, deal, named_columns
from consortia.study.used_rows import required, split_rows

NOT_IN_FILE = ("formula", "sites", "algorithm", "engine", "harmonise", "keep", "prior_from")
"""Arguments of `consortia.regression` that a study says elsewhere."""

UNUSED = ("scale", "standardise", "standardise_target", "intercept", "dtype", "test_file")
"""Keys of ``[data]`` that change arrays; a formula says such things itself."""


def options_of(**options: Any) -> None:
    """Describe the options of `consortia.regression`, and check them."""


options_of.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        parameter
        for name, parameter in inspect.signature(regression).parameters.items()
        if name not in NOT_IN_FILE
    ]
)


def check_data(data: Data, question: Question) -> None:
    """Refuse keys of ``[data]`` that have no meaning beside a formula."""
    if question.imputes and data.test_share is not None:
        raise wrong("data.test_share", ": with model.missing = 'impute' no rows can be held out.")
    for key in UNUSED:
        if getattr(data, key) not in (None, False):
            raise InputError(
                f"data.{key}: not available with model.formula; write it as a term."
            ).at(f"data.{key}")
    kept_rows(data.keep)
    if data.target != "y":
        raise wrong("data.target", ": the response is the left side of model.formula.")


def question_in(formula: str, options: Mapping[str, Any]) -> Question:
    """Read the question of a formula and its options to every site.

    Raises:
        InputError: they cannot be used.
    """
    of_model = ("prior", "breaks", "summaries")
    asked = {name: value for name, value in options.items() if name not in of_model}
    family = asked.pop("family", "gaussian")
    return called("model", lambda **more: question_of(formula, family, **more), asked)


def site_facts(
    data: Data,
    question: Question,
    source: Any,
    name: str,
    index: int,
    least: int,
    cells: int = 1,
    key: bytes | None = None,
    registered: Registration | None = None,
) -> tuple[Table, Table | None, SiteFacts]:
    """Return the rows of a site, those held out, and what other processes learn of them.

    Args:
        data: of the study.
        question: of its formula.
        source: the site's file, or its columns.
        name: of the site.
        index: of the site.
        least: as of `contribution`; so are the next two.
        cells: likewise.
        key: likewise.
        registered: what the study states of all tables.

    Raises:
        InputError: the table cannot be used, or has what is not registered.
    """
    changes = question.harmonise.get(name)
    every = read_table(source, f"site {name!r}", site=name, harmonise=changes)
    table, held_out = split_rows(required(every, data, name), data, index)
    facts = contribution(question, table, name, least, cells, key)
    if registered is None and cells > 1 and facts.table is not None:  # between institutions
        check_moments(question, table, name, cells)
        moments = rounded_moments(question, facts.table.moments)
        facts = replace(facts, table=replace(facts.table, moments=moments))
    if registered is not None:
        registered.check(question, table, name, partial(place_of, table, name))
        for doubt in () if facts.table is None else registered.doubts(facts.table, name):
            warn(doubt)
    return table, held_out, facts


def dealt_tables(data: Data, table: Any) -> tuple[tuple[str, ...], list[Arrays]]:
    """Return the columns of a data set at its sites; its response is called y."""
    assert data.dataset is not None
    dataset = datasets.load(data.dataset, download=data.download)
    rows = dataset.rows
    if rows["x"].ndim != 2 or not dataset.feature_names:
        raise wrong("data.dataset", f" = {data.dataset!r} has no names of columns for a formula.")
    dealt = deal(table, rows, named_columns(rows, dataset.feature_names))
    return dealt.names, [named_columns(shard, dataset.feature_names) for shard in dealt.shards]
