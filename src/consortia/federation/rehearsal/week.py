"""A week of ordinary studies of one file, and what all of them together settle of its rows.

A patient shows in the difference of two honest studies before any server lies. The studies are run
one after the other by sites that keep what they have answered, each under the policy that is
proposed for it, or all under the site's. Studies with a formula have one account, over versions of
the rows; of others each version of the rows has its own.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from consortia.data.dialect import WORDS, number_of, separator_of
from consortia.errors import ConsortiaError
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal.attacks import settled_rows
from consortia.federation.rehearsal.stage import Stage
from consortia.models.regression.formula import parse
from consortia.study.build import load_study

MORE_ROWS = 12
"""Rows of an updated export, more than `minimum_rows_changed`."""

TEXTS = (".csv", ".tsv", ".txt")
"""Kinds of files whose rows are lines."""

LAST = re.compile(r"([^~]*~[^(|*]*?)(\s*\+\s*(?:`[^`]+`|[^\W\d][\w.]*))(\s*)")
"""A formula that ends with a covariate, which can be left out."""


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
            if number == 0:  # of what cannot be read nothing can be made
                return
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
    tables = tomllib.loads(text)
    model, run = tables["model"], tables.get("run", {})
    seed = 987654 + run.get("seed", 0)  # another one, whichever
    edits = {
        r"""(\bseed["']?\s*=\s*)[\w+]+""": rf"\g<1>{seed}",
        r"(?m)^\s*\[\s*run\s*\]": rf"\g<0>\nseed = {seed}",
        r"\A": rf"run.seed = {seed}\n",
    }
    yield _edited("the same with another seed", text, edits, {"run": run | {"seed": seed}})
    last = LAST.fullmatch(model.get("formula", ""))
    plain = "that ends with a column and is without functions, products and levels."
    why = f"the study has no formula of several covariates {plain}"
    why, (head, term, tail) = ("", last.groups()) if last else (why, ("", "", ""))
    fewer = model | {"formula": head + tail}
    yield _edited("a covariate less", text, {re.escape(term): ""}, {"model": fewer}, why)
    # but for the mark behind a key, JSON of strings, numbers and tables is TOML
    inline = json.dumps(fewer, ensure_ascii=False, separators=(", ", " = "), default=str)
    edits = {r"\A": f"compare = {inline}\n".replace("\\", r"\\")}
    why = why or "the study compares two models already." * ("compare" in tables)
    yield _edited("compared with a covariate less", text, edits, {"compare": fewer}, why)
    yield from _exports(text, data, tables)


def _edited(title: str, text: str, edits: dict[str, str], new: Any, why: str = "") -> _Variant:
    """Return a study changed where a pattern matches, so that only the new tables differ."""
    meant = tomllib.loads(text) | new
    for pattern, instead in edits.items():
        for old in re.finditer(pattern, text) if not why else ():
            changed = text[: old.start()] + old.expand(instead) + text[old.end() :]
            with suppress(tomllib.TOMLDecodeError):
                if tomllib.loads(changed) == meant:
                    return _Variant(title, changed)
    alone = "the study file cannot be changed in this alone: write each key in a separate line."
    return _Variant(title, "", untried=why or alone)


def _exports(text: str, data: Path, tables: dict[str, Any]) -> Iterator[_Variant]:
    """List the study with other rows."""
    content, why = re.sub(rb"(?<![\r\n])\Z", b"\n", data.read_bytes()), ""
    lines = [line for line in content.splitlines(keepends=True) if line.strip(b"\r\n")]
    top = 2 if re.match(rb"(\xef\xbb\xbf)?sep=.\s", content, re.IGNORECASE) else 1
    head, rows = lines[:top], lines[top:]
    if data.suffix.lower() not in TEXTS:
        why = f"{data.name} does not hold text: export it as .csv."
    elif b"\0" in content or any(line.count(b'"') % 2 for line in lines):
        why = f"a line of {data.name} is not a row: save it in UTF-8, each cell in a line."
    elif not rows:
        why = f"{data.name} has no row below its header." if lines else f"{data.name} is empty."
    repeated = (rows[:: max(len(rows) // MORE_ROWS, 1)] * MORE_ROWS)[:MORE_ROWS]
    exports = {
        f"an updated export, {MORE_ROWS} rows more": [*rows, *repeated],
        "an export with one row more": [*rows, *rows[:1]],
        "an export with one value corrected": [] if why else _corrected(head[-1], rows, tables),
        "the rows without the first half": rows[len(rows) // 2 :],
    }
    for title, changed in exports.items():
        same = f"{data.name} has one row." if changed == rows else ""
        same = same if changed else "no covariate is a column of the file with two values."
        yield _Variant(title, text, b"".join([*head, *changed]), why or same)


def _corrected(head: bytes, rows: list[bytes], tables: dict[str, Any]) -> list[bytes]:
    """Return the rows with another row's value in one cell of a covariate; none without such."""
    header = head.decode("utf-8", "replace").removeprefix("\ufeff")
    mark = separator_of(header)
    lines = [header, *(row.decode("latin-1") for row in rows)]  # which keeps bytes of any encoding
    names, *cells = (next(csv.reader([line], delimiter=mark)) for line in lines)
    formula, target = tables["model"].get("formula"), tables["data"].get("target", "y")
    columns = parse(formula).columns if formula else {*names} - {target}
    codes = [site.get("missing_values", {}) for site in tables.get("harmonise", {}).values()]
    declared = {str(code) for site in codes for column in site.values() for code in column}
    missing = {_value(word) for word in WORDS | declared}
    for at in (at for at, name in enumerate(names) if name.strip() in columns):
        values = [_value(row[at]) if len(row) == len(names) else "" for row in cells]
        known = [number for number, value in enumerate(values) if value not in missing]
        for row, other in pairwise(known):
            if values[row] != values[other]:
                cells[row][at], made, line = cells[other][at], io.StringIO(), lines[1 + row]
                end = line[len(line.rstrip("\r\n")) :]
                csv.writer(made, delimiter=mark, lineterminator=end).writerow(cells[row])
                return [*rows[:row], made.getvalue().encode("latin-1"), *rows[row + 1 :]]
    return []


def _value(cell: str) -> float | str:
    """Return the number of a cell, whichever its decimal mark, or its text."""
    number = number_of(cell.strip().replace(",", "."))
    return cell.strip() if number is None else number
