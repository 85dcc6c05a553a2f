"""Lines that mend a table: where they stand in a study file, and how they write names."""

from __future__ import annotations

import json
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from consortia.core.printable import printable


def mend(site: str, table: str, line: str) -> str:
    """Return the table and the line of TOML that change something at a site."""
    return f"[harmonise.{key(site) if site else 'SITE'}{'.' if table else ''}{table}] {line}"


def key(name: str) -> str:
    """Return a name as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else text(name)


def text(value: str) -> str:
    """Return a text as TOML writes it."""
    return printable(json.dumps(value, ensure_ascii=False))


def in_formula(name: str) -> str:
    """Return a column's name as a formula writes it."""
    bare = re.fullmatch(r"[^\W\d]\w*", name) and not keyword.iskeyword(name)
    return name if bare else f"`{name}`"


def rows_text(count: int) -> str:
    """Return a number of rows in words."""
    return "1 row" if count == 1 else f"{count:,} rows"


ROWS = re.compile(r",? in ([\d,]+) rows?\b")


def joined(sentences: Iterable[tuple[str, str, str]], sites: Sequence[str]) -> list[str]:
    """Return one sentence of those that differ in site, column and a number of rows only.

    Args:
        sentences: each with its site and its column, or "", which it begins with.
        sites: names of all of them.
    """
    groups: dict[str, dict[str, tuple[str, str, int]]] = {}
    for site, column, sentence in sentences:
        rest = sentence.removeprefix(f"{site}: {column}{': ' if column else ''}")
        numbers = ROWS.findall(rest)
        alone = rest == sentence or len(numbers) > 1
        rows = sum(int(number.replace(",", "")) for number in numbers)
        meaning = sentence if alone else ROWS.sub("", rest)
        groups.setdefault(meaning, {})[sentence] = site, column, rows
    lines: list[str] = []
    for meaning, group in groups.items():
        if len(group) == 1:
            lines += group
            continue
        columns, at = Counter[str](), Counter[str]()
        for site, column, rows in group.values():
            columns[column] += rows
            at[site] += rows
        if len(columns) == 1 and columns.total():
            (column,) = columns
            by_site = ", ".join(f"{site} {rows:,}" for site, rows in at.items())
            lines.append(f"{column}: {meaning}, in {rows_text(columns.total())} ({by_site})")
            continue
        where = "all sites: " if 1 < len(sites) == len(at) else f"{', '.join(at)}: "
        if len(group) < len(at) * len(columns):  # not each column at each of the sites
            where = ""
        counts = [
            f"{name} in {rows_text(rows)}" if rows else name for name, rows in columns.items()
        ]
        lines.append(f"{where}{meaning}{': ' * any(columns)}{', '.join(counts)}")
    return lines
