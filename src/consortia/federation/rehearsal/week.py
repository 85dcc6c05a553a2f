"""A week of ordinary studies of one file, and what all of them together settle of its rows.

A patient shows in the difference of two honest studies before any server lies. The studies are run
one after the other by sites that keep what they have answered, each under the policy that is
proposed for it, or all under the site's. Studies with a formula have one account, over versions of
the rows; of others each version of the rows has its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from consortia.data.dialect import separator_of
from consortia.errors import ConsortiaError
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal.attacks import settled_rows
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import load_study

MORE_ROWS = 12
"""Rows of an updated export, more than `minimum_rows_changed`."""


TEXTS = (".csv", ".tsv", ".txt")
"""Kinds of files whose rows are lines."""

FORMULA = re.compile(r"""^(formula *= *(["'])[^"'~]*~[^"'(|]*) \+ [\w.]+\2""", re.MULTILINE)
"""A formula that ends with a covariate, which can be left out."""

MODEL = re.compile(r"^\[ *model *\][^\n]*\n(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
"""The table of the model."""


class Day(NamedTuple):
    """One study of the week, and how it ended."""

    title: str
    answers: int = 0  # that left the site
    settled: int = 0  # most rows that the answers of one account settle, of all days so far
    refused: str = ""  # what the site said; "" where there is a posterior
    untried: str = ""  # why it was not tried


class _Variant(NamedTuple):
    title: str
    study: str  # text of the study file
    rows: bytes = b""  # of the site's file; as it is where empty
    untried: str = ""  # why there is none


def days(
    study: Path, data: Path, name: str, sites: list[str], folder: Path, policy: str | None = None
) -> Iterator[Day]:
    """Run the studies of a week; yield how each ends.

    Args:
        study: the study file.
        data: the site's file, of which copies stand for the other sites.
        name: of the site.
        sites: names of all.
        folder: for studies, files, and what sites keep.
        policy: text of the policy of all days; that which is proposed for each study when None,
            with more runs.
    """
    for number, variant in enumerate(_variants(study.read_text(encoding="utf-8"), data)):
        if variant.untried:
            yield Day(variant.title, untried=variant.untried)
            continue
        day = folder / f"day{number}"
        day.mkdir()
        file, path = data, day / study.name
        if variant.rows:
            file = day / data.name
            file.write_bytes(variant.rows)
        path.write_text(variant.study, encoding="utf-8")
        try:
            text = _proposed(path, study) if policy is None else policy
            files = dict.fromkeys(sites, file)
            stage = Stage(path, files, folder / "sites", text, name, origin=study)
        except ConsortiaError as error:
            yield Day(variant.title, untried=str(error))
            continue
        before, refused = len(settled_rows(stage, name)), ""
        try:
            stage.run_all()
        except ConsortiaError as error:
            refused = str(error)
        settled = settled_rows(stage, name)
        most = max((int(line.split()[0]) for line in settled), default=0)
        yield Day(variant.title, len(settled) - before, most, refused)


def _proposed(path: Path, origin: Path) -> str:
    """Return the policy that is proposed for a study, with runs for a week."""
    text = proposed(terms_of(load_study(path, origin)), two_sites=True, rows=1)
    return re.sub(r"^maximum_runs = \d+", "maximum_runs = 100", text, flags=re.MULTILINE)


def _variants(text: str, data: Path) -> Iterator[_Variant]:
    """List the studies; of each that cannot be made of the study and its file, why."""
    yield _Variant("the study", text)
    yield _Variant("the same with another seed", _with_seed(text))
    formula = FORMULA.search(text)
    why = "the study has no formula of several covariates, or one with functions or levels."
    fewer = text.replace(formula[0], formula[1] + formula[2], 1) if formula else ""
    yield _Variant("a covariate less", fewer, untried="" if formula else why)
    both, model = "", MODEL.search(fewer)
    if model is None or "[compare]" in text:
        why = why if model is None else "the study compares two models already."
    else:
        both, why = f"{text}\n[compare]\n{model[1]}", ""
    yield _Variant("compared with a covariate less", both, untried=why)
    content, why = data.read_bytes(), ""
    head, *rows = [line for line in content.splitlines() if line] or [b""]
    if data.suffix.lower() not in TEXTS:
        why = f"{data.name} does not hold text: export it as .csv."
    elif b"\0" in content or any(line.count(b'"') % 2 for line in rows):
        why = f"a line of {data.name} is not a row: save it in UTF-8, each cell in a line."
    repeated = rows[:: max(len(rows) // MORE_ROWS, 1)][:MORE_ROWS]
    exports = {
        f"an updated export, {MORE_ROWS} rows more": [*rows, *repeated],
        "an export with one row more": [*rows, *rows[:1]],
        "an export with one value corrected": _corrected(head, rows, text),
        "the rows without the first half": rows[len(rows) // 2 :],
    }
    unchanged = "no covariate is a column of the file with two values."
    for title, lines in exports.items():
        same = why or (unchanged if lines == rows else "")
        yield _Variant(title, text, b"\n".join([head, *lines, b""]), same)


def _corrected(head: bytes, rows: list[bytes], text: str) -> list[bytes]:
    """Return the rows with the value of another row in one cell of a covariate, if there is one."""
    mark = separator_of(head.decode("utf-8", "replace")).encode()
    formula = re.search(r"^formula *= *[^~\n]*~(.*)", text, re.MULTILINE)
    words = re.findall(r"[\w.]+", formula[1]) if formula else []
    cells = [line.split(mark) for line in rows]
    for at, name in enumerate(head.split(mark)):
        column = name.strip(b' "').decode("utf-8", "replace")
        if column not in words if formula else f'target = "{column}"' in text:
            continue
        for row in cells:
            if len(row) == len(cells[0]) > at and row[at] != cells[0][at] and row[at].strip():
                changed = [*cells[0][:at], row[at], *cells[0][at + 1 :]]
                return [mark.join(changed), *rows[1:]]
    return rows


def _with_seed(text: str) -> str:
    """Return a study file with another seed."""
    changed, count = re.subn(r"^seed *= *\d+", "seed = 987654", text, flags=re.MULTILINE)
    if count:
        return changed
    if re.search(r"^\[run\]", text, re.MULTILINE):
        return re.sub(r"^\[run\]", "[run]\nseed = 987654", text, count=1, flags=re.MULTILINE)
    return f"{text}\n[run]\nseed = 987654\n"
