"""Columns of all sites' tables: which can be terms of a first formula, and why others cannot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from consortia.core.arguments import unknown
from consortia.core.printable import is_printable
from consortia.data.columns import Column, Table, as_levels
from consortia.data.mending import in_formula
from consortia.errors import InputError
from consortia.models.regression.formula import SITE
from consortia.models.regression.question import in_order

IDENTIFIER = re.compile(
    r"(^|[_\W])(id|ids|uuid|guid|mrn|nhs|record|patient|subject|case|pseudonym|barcode|"
    r"(patient|subject|case|record)?(nr|no|number|code))$",
    re.IGNORECASE,
)
"""Names of columns that number their rows, where nearly all values differ."""

DIFFERENT = 0.8
"""Share of a column's values that are distinct, from which on it may tell rows apart."""

LEVELS_MAX = 12
"""Levels above which a column of strings is left out unless the user names it."""

MISSING_MAX = 0.5
"""Share of a column's values that may miss."""

REPEATED = (2, 20)
"""Rows a value, on average, of a column that may name what several rows are of."""

CODES_MAX = 6
"""Distinct integers up to which they may stand for levels, whatever their column is called."""

NESTED = 3
"""So many words a site, none of which is at another site, may name wards."""


@dataclass(frozen=True)
class Used:
    """A column of the formula."""

    name: str  # of the column
    what: str  # what it holds, in words
    missing: tuple[int, ...]  # how many values miss at each site
    note: str = ""  # what the user should look at, or ""
    coded: bool = False  # whether its numbers are levels

    @property
    def term(self) -> str:
        """The column as the formula has it."""
        return f"C({in_formula(self.name)})" if self.coded else in_formula(self.name)

    def noted(self, more: str) -> Used:
        """Return the column with more to be looked at."""
        return replace(self, note="; ".join(one for one in (self.note, more) if one))


def columns_of(tables: Mapping[str, Table], name: str) -> dict[str, Column]:
    """Return a column of the sites that have it."""
    return {site: table[name] for site, table in tables.items() if name in table}


def levels_of(tables: Mapping[str, Table], name: str) -> dict[str, list[str]]:
    """Return the distinct values of a column at each site."""
    return {
        site: np.unique(as_levels(column)[~column.missing]).tolist()
        for site, column in columns_of(tables, name).items()
    }


def rows_by_level(tables: Mapping[str, Table], name: str) -> dict[str, int]:
    """Return the rows of each value of a column at all sites, in order."""
    found: Counter[str] = Counter()
    for column in columns_of(tables, name).values():
        found.update(as_levels(column)[~column.missing].tolist())
    return {one: found[one] for one in in_order(list(found))}


def referred(tables: Mapping[str, Table], name: str, reference: str) -> tuple[str, ...]:
    """Return the levels of a column of strings, the reference first."""
    if any(column.kind not in ("text", "truth") for column in columns_of(tables, name).values()):
        raise InputError(
            f"reference of {name!r}: the column holds no strings, so it has no levels."
        )
    levels = sorted({level for found in levels_of(tables, name).values() for level in found})
    if reference not in levels:
        raise InputError(f"reference of {name!r}: {reference!r} is {unknown(reference, levels)}.")
    return (reference, *(level for level in levels if level != reference))


def numbers_of(tables: Mapping[str, Table], name: str) -> np.ndarray:
    """Return all numbers of a column that do not miss."""
    return np.concatenate(
        [column.values[~column.missing] for column in columns_of(tables, name).values()]
    )


def listed(sites: Sequence[str]) -> str:
    """Return the first names of sites, and how many more there are."""
    return ", ".join(sites[:4]) + (f" and {len(sites) - 4} more" if len(sites) > 4 else "")


def reason_of(tables: Mapping[str, Table], name: str, *, wanted: bool = False) -> str:
    """Find a reason to leave a column out, unless it is ``wanted``; "" where there is none."""
    found = columns_of(tables, name)
    if name == SITE:
        return "the name is reserved for the sites' names"
    if "`" in name or not is_printable(name):
        return "its name cannot be written in a formula"
    if len(found) < len(tables):
        lacking = [site for site in tables if site not in found]
        if len(found) == 1 < len(tables):
            return f"only {next(iter(found))} has it"
        return f"{listed(lacking)} {'has' if len(lacking) == 1 else 'have'} none"
    empty = [site for site, column in found.items() if column.kind == "empty"]
    if empty:
        return f"no value at {listed(empty)}"
    for site, column in found.items():
        if column.doubt:
            return f"at {site} {column.doubt}"
    kinds = {column.kind: site for site, column in found.items()}
    if len(kinds) > 1:
        return "it is " + ", ".join(f"{kind} at {site}" for kind, site in kinds.items())
    rows = sum(len(column.values) for column in found.values())
    gaps = sum(int(column.missing.sum()) for column in found.values())
    if gaps > MISSING_MAX * rows:
        return f"{gaps} of {rows} values are missing"
    by_site = levels_of(tables, name)
    distinct = {level for levels in by_site.values() for level in levels}
    if len(distinct) == 1:
        return f"it is {next(iter(distinct))!r} in every row"
    kind = next(iter(kinds))
    if _tells_rows_apart(name, found, by_site, kind):
        return "it identifies rows"
    if wanted:
        return ""
    if kind == "date":
        return "a date; in a formula it is a number of days"
    if repeated := _repeated(name, found, by_site, kind):
        return repeated
    if kind == "text" and len(distinct) > LEVELS_MAX:
        return (
            f"text with {len(distinct)} levels; add it to the formula to estimate an effect of each"
        )
    return ""


def same_as(tables: Mapping[str, Table], name: str, others: Sequence[str]) -> str:
    """Return that another column says the same in every row; "" where none does."""
    own = columns_of(tables, name)
    for other in others:
        found = columns_of(tables, other)
        gaps = [(own[site].missing, found[site].missing) for site in own]
        if all(np.array_equal(a, b) for a, b in gaps) and _alike(own, found):
            return f"it duplicates {other}"
    return ""


def told_by(tables: Mapping[str, Table], name: str, others: Sequence[str]) -> str:
    """Return that another column of words tells the levels of one; "" where none does."""
    own = columns_of(tables, name)
    for other in others:
        found = columns_of(tables, other)
        if other == name or {column.kind for column in (*own.values(), *found.values())} != {
            "text"
        }:
            continue
        pairs = set()
        for site, column in own.items():
            known = ~column.missing & ~found[site].missing
            texts = (one.values[known].tolist() for one in (found[site], column))
            pairs |= set(zip(*texts, strict=True))
        if pairs and len(pairs) == len({one for one, _ in pairs}):
            return f"{other} determines it: each level of {other} has one of {name}"
    return ""


def one_each(tables: Mapping[str, Table], name: str) -> bool:
    """Return True if a column has one value at each site, which the sites' own levels tell."""
    return len(tables) > 1 and all(len(own) == 1 for own in levels_of(tables, name).values())


def _alike(own: Mapping[str, Column], other: Mapping[str, Column]) -> bool:
    """Return True if each of two columns follows from the other, of numbers linearly."""
    first, second = (
        np.concatenate([one[site].values[~one[site].missing] for site in own])
        for one in (own, other)
    )
    if "text" not in (next(iter(own.values())).kind, next(iter(other.values())).kind):
        first, second = first - first.mean(), second - second.mean()
        sizes = np.sqrt(np.sum(first**2) * np.sum(second**2))
        return bool(abs(np.sum(first * second)) > (1 - 1e-12) * sizes > 0)
    pairs = {*zip(first.tolist(), second.tolist(), strict=True)}
    return len(pairs) == len({one for one, _ in pairs}) == len({one for _, one in pairs})


def _tells_rows_apart(
    name: str, found: Mapping[str, Column], levels: Mapping[str, Sequence[str]], kind: str
) -> bool:
    """Return True if a column looks like an identifier: nearly all values of all rows differ."""
    known = sum(int((~column.missing).sum()) for column in found.values())
    by_site, named = sum(map(len, levels.values())), IDENTIFIER.search(name) is not None
    different = len({level for own in levels.values() for level in own})
    if known < 5:
        return False
    if kind != "text" and by_site == known:
        values = [column.values[~column.missing] for column in found.values()]
        if all(
            bool((one == np.round(one)).all()) and np.ptp(one) == len(one) - 1 for one in values
        ):
            return True  # numbered through
    apart = by_site if named else different
    return (kind == "text" or named) and apart >= DIFFERENT * known


def _repeated(
    name: str, found: Mapping[str, Column], levels: Mapping[str, Sequence[str]], kind: str
) -> str:
    """Return that a column may name what several rows are of, a patient or a ward; or "".

    Words that several sites have are counted once: two arms at eight sites are two values.
    """
    known = sum(int((~column.missing).sum()) for column in found.values())
    named, by_site = IDENTIFIER.search(name) is not None, sum(map(len, levels.values()))
    distinct = len({one for own in levels.values() for one in own})
    nested = len(found) > 1 and distinct == by_site >= NESTED * len(found)
    if kind == "text":
        grouped = nested or distinct > LEVELS_MAX
    else:
        numbers = [column.values[~column.missing] for column in found.values()]
        whole = all(bool((one == np.round(one)).all()) for one in numbers)
        grouped = whole and named and distinct > CODES_MAX
    values = by_site if named else distinct
    least = 1 if named else REPEATED[0]  # rows of a course may be one or two a patient
    if not grouped or not least <= known / values <= REPEATED[1]:
        return ""
    return (
        f"{values} values in {known} rows: do these identify a patient or a ward? --group {name} "
        f"writes (1 | {SITE}:{in_formula(name)})"
    )


def used_of(
    tables: Mapping[str, Table],
    name: str,
    *,
    response: bool = False,
    levels: Sequence[str] = (),
) -> Used:
    """Describe a column of the formula; ``levels`` are those that somebody chose."""
    found, by_site = columns_of(tables, name), levels_of(tables, name)
    missing = tuple(int(column.missing.sum()) for column in found.values())
    kind, counts = next(iter(found.values())).kind, rows_by_level(tables, name)
    of_words = kind in ("text", "truth")
    if of_words or levels:
        shown = levels or sorted(counts)
        what = f"{len(shown)} levels: {', '.join(shown)}"
        if response:
            return Used(name, what, missing)
        owners = {one: [site for site, own in by_site.items() if one in own] for one in shown}
        alone = [
            f"{one} at {sites[0]} only ({counts[one]} rows)"
            for one, sites in owners.items()
            if len(sites) == 1 < len(found)
        ]
        what += f"; the reference is {shown[0]}"
        return Used(name, what, missing, "; ".join(alone), coded=not of_words)
    values = numbers_of(tables, name)
    if kind == "date":
        return Used(name, "date, as a number of days", missing)
    note = ""
    if not response and 2 < len(counts) <= LEVELS_MAX and bool((values == np.round(values)).all()):
        note = f"{len(counts)} integers, used as a number; C({in_formula(name)}) makes it a factor"
    return Used(name, f"number, {values.min():g} to {values.max():g}", missing, note)
