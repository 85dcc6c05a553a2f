"""Lines that mend a table: where they stand in a study file, and how they write names."""

from __future__ import annotations

import json
import keyword
import re

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
