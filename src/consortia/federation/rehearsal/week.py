"""A week of ordinary studies of one file, and what all of them together settle.

A patient shows in the difference of two honest studies before any server lies. The studies are run
one after the other by sites that keep what they have answered, each under the policy that is
proposed for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from consortia.errors import ConsortiaError
from consortia.federation.governance.proposal import RUNS, proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal.attacks import settled_rows
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import load_study

MORE_ROWS = 12
"""Rows of an updated export, more than `minimum_rows_changed`."""


class Day(NamedTuple):
    """One study of the week, and how it ended."""

    title: str
    answers: int  # that left the site
    settled: int  # rows that all answers on the same values settle, of all studies so far
    refused: str  # what the site said; "" where there is a posterior


class _Variant(NamedTuple):
    title: str
    study: str  # text of the study file
    rows: list[str]  # lines of the site's file


def days(study: Path, data: Path, name: str, sites: list[str], folder: Path) -> Iterator[Day]:
    """Run the studies of a week; yield how each ends.

    Args:
        study: the study file.
        data: the site's file, of which copies stand for the other sites.
        name: of the site.
        sites: names of all.
        folder: for studies, files, and what sites keep.
    """
    for number, one in enumerate(_variants(study.read_text(encoding="utf-8"), data)):
        own = folder / f"day{number}"
        own.mkdir()
        file, path = data, own / study.name
        if one.rows:
            file = own / data.name
            file.write_text("\n".join(one.rows) + "\n", encoding="utf-8")
        path.write_text(one.study, encoding="utf-8")
        text = proposed(terms_of(load_study(path)), two_sites=True, rows=1)
        text = text.replace(f"maximum_runs = {RUNS}", "maximum_runs = 100")
        stage = Stage(path, dict.fromkeys(sites, file), folder / "sites", text)
        before, refused = len(settled_rows(stage, name)) if number else 0, ""
        try:
            stage.run()
        except ConsortiaError as error:
            refused = str(error)
        settled = settled_rows(stage, name)
        worst = max((int(line.split()[0]) for line in settled), default=0)
        yield Day(one.title, len(settled) - before, worst, refused)


def _variants(text: str, data: Path) -> Iterator[_Variant]:
    """List the studies: those that the text and the file of the study allow."""
    yield _Variant("the study", text, [])
    yield _Variant("the same with another seed", _with_seed(text), [])
    formula = re.search(r'^(formula *= *"[^"~]*~[^"(|]*) \+ [\w.]+"', text, re.MULTILINE)
    if formula is not None:
        fewer = text.replace(formula[0], f'{formula[1]}"', 1)
        yield _Variant("a covariate less", fewer, [])
    if data.suffix != ".csv":
        return
    head, *rows = data.read_text(encoding="utf-8").split("\n")
    rows = [row for row in rows if row]
    repeated = rows[:: max(len(rows) // MORE_ROWS, 1)][:MORE_ROWS]
    yield _Variant(f"an updated export, {MORE_ROWS} rows more", text, [head, *rows, *repeated])
    yield _Variant("an export with one row more", text, [head, *rows, rows[0]])
    yield _Variant("the rows without the first half", text, [head, *rows[len(rows) // 2 :]])


def _with_seed(text: str) -> str:
    """Return a study file with another seed."""
    changed, count = re.subn(r"^seed *= *\d+", "seed = 987654", text, flags=re.MULTILINE)
    if count:
        return changed
    if re.search(r"^\[run\]", text, re.MULTILINE):
        return re.sub(r"^\[run\]", "[run]\nseed = 987654", text, count=1, flags=re.MULTILINE)
    return f"{text}\n[run]\nseed = 987654\n"
