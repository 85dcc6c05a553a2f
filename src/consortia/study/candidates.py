"""Columns of all sites' tables: which can be terms of a first formula, and why others cannot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from consortia.core.arguments import unknown
from consortia.core.printable import is_printable
from consortia.data.columns import Column, Table, as_levels
from consortia.data.mending import in_formula, key, mend, rows_text, text
from consortia.errors import InputError
from consortia.models.regression.formula import SITE
from consortia.models.regression.question import in_order

IDENTIFIER = re.compile(
    r"(^|[_\W])(ids?|(p|pt|pat|subj|usubj|case|rec|stud)id|uuid|guid|mrn|nhs|record|patient|subject|"
    r"case|pseudonym|barcode|(patient|subject|case|record)?(nr|no|number|code))$",
    re.IGNORECASE,
)
"""Names of columns that number their rows, where nearly all values differ."""

COUNTS = ("number", "nr", "no")
"""Names of an identifier where nearly all values differ, and else of a count."""

CLUSTER = re.compile(
    r"(^|[_\W])(class|school|ward|clinic|hospital|cent(re|er)|cluster|household|village|surgeon)$",
    re.IGNORECASE,
)
"""Names of columns that number what several rows are of."""

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
        return replace(self, note="; ".join(filter(None, (self.note, more))))


@dataclass(frozen=True)
class SiteColumns:
    """A column of all sites' tables."""

    name: str
    by_site: Mapping[str, Column]  # of the sites that have it
    lacking: tuple[str, ...]  # the sites that do not

    @classmethod
    def of(cls, tables: Mapping[str, Table], name: str) -> SiteColumns:
        """Return the column of a name."""
        by_site = {site: table[name] for site, table in tables.items() if name in table}
        return cls(name, by_site, tuple(site for site in tables if site not in by_site))

    @property
    def kind(self) -> str:
        """The kind that it has at the first site."""
        return next(iter(self.by_site.values())).kind

    @property
    def sites_of_kinds(self) -> dict[str, str]:
        """The kinds that it has, each with a site."""
        return {column.kind: site for site, column in self.by_site.items()}

    @cached_property
    def levels(self) -> dict[str, list[str]]:
        """The distinct values at each site."""
        return {
            site: np.unique(as_levels(column)[~column.missing]).tolist()
            for site, column in self.by_site.items()
        }

    @cached_property
    def counts(self) -> dict[str, int]:
        """The rows of each value at all sites, in order."""
        counts: Counter[str] = Counter()
        for column in self.by_site.values():
            counts.update(as_levels(column)[~column.missing].tolist())
        return {level: counts[level] for level in in_order(list(counts))}

    @property
    def known(self) -> list[np.ndarray]:
        """The values of each site that do not miss."""
        return [column.values[~column.missing] for column in self.by_site.values()]

    @property
    def numbers(self) -> np.ndarray:
        """All numbers that do not miss."""
        return np.concatenate(self.known)

    def against(self, reference: str) -> tuple[str, ...]:
        """Return the levels of a column of strings, the reference first."""
        if not self.sites_of_kinds.keys() <= {"text", "truth"}:
            raise InputError(
                f"reference of {self.name!r}: the column holds no strings, so it has no levels."
            )
        levels = sorted(self.counts)
        if reference not in levels:
            raise InputError(
                f"reference of {self.name!r}: {reference!r} is {unknown(reference, levels)}."
            )
        return (reference, *(level for level in levels if level != reference))


def listed(sites: Sequence[str]) -> str:
    """Return the first names of sites, and how many more there are."""
    return ", ".join(sites[:4]) + (f" and {len(sites) - 4} more" if len(sites) > 4 else "")


def reason_of(column: SiteColumns, *, wanted: bool = False) -> str:
    """Find a reason to leave a column out, unless it is ``wanted``; "" where there is none."""
    name, by_site, lacking = column.name, column.by_site, column.lacking
    if name == SITE:
        return "the name is reserved for the sites' names"
    if "`" in name or not is_printable(name):
        return "its name cannot be written in a formula"
    if lacking:
        if len(by_site) == 1:
            return f"only {next(iter(by_site))} has it"
        if len(lacking) > 1:
            return f"{listed(lacking)} have none"
        line = mend(lacking[0], "rename", f"NAME = {text(name)}")
        return f"{lacking[0]} has none; where it has another name, --changes FILE.toml with {line}"
    empty = [site for site, at_site in by_site.items() if at_site.kind == "empty"]
    if empty:
        return f"no value at {listed(empty)}"
    for site, at_site in by_site.items():
        if at_site.doubt:
            return f"at {site} {at_site.doubt}"
    if len(column.sites_of_kinds) > 1:
        return "it is " + ", ".join(
            f"{kind} at {site}" for kind, site in column.sites_of_kinds.items()
        )
    rows = sum(len(at_site.values) for at_site in by_site.values())
    gaps = rows - sum(map(len, column.known))
    if gaps > MISSING_MAX * rows:
        return f"{gaps} of {rows} values are missing"
    if len(column.counts) == 1:
        return f"it is {next(iter(column.counts))!r} in every row"
    if _tells_rows_apart(column):
        return "it identifies rows"
    if wanted:
        return ""
    if column.kind == "date":
        return "a date; in a formula it is a number of days"
    if column.kind == "number" and _are_dates(column.numbers):
        return "its numbers look like dates, as 20240131: write them as 2024-01-31"
    if repeated := _repeated(column):
        return repeated
    if column.kind == "text" and len(column.counts) > LEVELS_MAX:
        return (
            f"text with {len(column.counts)} levels; add it to the formula to estimate an effect "
            "of each"
        )
    return ""


def same_as(tables: Mapping[str, Table], name: str, others: Sequence[str]) -> str:
    """Return that another column says the same in every row; "" where none does."""
    column = SiteColumns.of(tables, name)
    for other in (SiteColumns.of(tables, another) for another in others):
        gaps = [(of.missing, other.by_site[site].missing) for site, of in column.by_site.items()]
        if all(np.array_equal(a, b) for a, b in gaps) and _follow(column, other):
            return f"it duplicates {other.name}"
    return ""


def told_by(tables: Mapping[str, Table], name: str, others: Sequence[str]) -> str:
    """Return that another column of words tells the levels of one; "" where none does."""
    column = SiteColumns.of(tables, name)
    for other in (SiteColumns.of(tables, another) for another in others if another != name):
        if {*column.sites_of_kinds, *other.sites_of_kinds} != {"text"}:
            continue
        pairs = set()
        for site, of in column.by_site.items():
            known = ~of.missing & ~other.by_site[site].missing
            texts = (each.values[known].tolist() for each in (other.by_site[site], of))
            pairs |= set(zip(*texts, strict=True))
        if pairs and len(pairs) == len({level for level, _ in pairs}):
            return f"{other.name} determines it: each level of {other.name} has one of {name}"
    return ""


def _follow(column: SiteColumns, other: SiteColumns) -> bool:
    """Return True if each of two columns follows from the other, of numbers linearly."""
    first, second = column.numbers, other.numbers
    if "text" not in (column.kind, other.kind):
        first, second = first - first.mean(), second - second.mean()
        sizes = np.sqrt(np.sum(first**2) * np.sum(second**2))
        return bool(abs(np.sum(first * second)) > (1 - 1e-12) * sizes > 0)
    pairs = {*zip(first.tolist(), second.tolist(), strict=True)}
    return len(pairs) == len({level for level, _ in pairs}) == len({level for _, level in pairs})


def _are_dates(numbers: np.ndarray) -> bool:
    """Return True if all numbers are year, month and day in eight digits."""
    if len(numbers) < 5 or (numbers != np.round(numbers)).any():
        return False
    year, month, day = numbers // 10_000, numbers // 100 % 100, numbers % 100
    ends = ((year, 1900, 2100), (month, 1, 12), (day, 1, 31))
    return all(bool(((low <= part) & (part <= high)).all()) for part, low, high in ends)


def _tells_rows_apart(column: SiteColumns) -> bool:
    """Return True if a column looks like an identifier: nearly all values of all rows differ."""
    known, by_site = sum(map(len, column.known)), sum(map(len, column.levels.values()))
    named = IDENTIFIER.search(column.name) is not None
    if known < 5:
        return False
    if column.kind != "text" and by_site == known:
        alone = len(column.counts) == known  # no site has another's numbers
        if all(map(_consecutive, column.known)) or (alone and _consecutive(column.numbers)):
            return True
    apart = by_site if named else len(column.counts)
    return (column.kind == "text" or named) and apart >= DIFFERENT * known


def _consecutive(values: np.ndarray) -> bool:
    """Return True if distinct values are integers without a gap."""
    return bool((values == np.round(values)).all()) and bool(np.ptp(values) == len(values) - 1)


def _repeated(column: SiteColumns) -> str:
    """Return that a column may name what several rows are of, a patient or a ward; or "".

    Words that several sites have are counted once: two arms at eight sites are two values.
    """
    name, distinct = column.name, len(column.counts)
    known, by_site = sum(map(len, column.known)), sum(map(len, column.levels.values()))
    named = IDENTIFIER.search(name) is not None and name.lower() not in COUNTS
    numbered = column.kind != "text" and CLUSTER.search(name) is not None
    if column.kind == "text":
        nested = len(column.by_site) > 1 and distinct == by_site >= NESTED * len(column.by_site)
        grouped = nested or distinct > LEVELS_MAX
    else:
        whole = bool((column.numbers == np.round(column.numbers)).all())
        grouped = whole and (named or numbered) and distinct > CODES_MAX
    values = by_site if named else distinct
    least = 1 if named else REPEATED[0]  # rows of a course may be one or two a patient
    most = known if numbered else REPEATED[1]  # a school has as many rows as it has pupils
    if not grouped or not least <= known / values <= most:
        return ""
    return (
        f"{values} values in {known} rows: do these identify a patient or a ward? --group {name} "
        f"writes (1 | {SITE}:{in_formula(name)}); without it all rows count as independent"
    )


def used_of(column: SiteColumns, *, response: bool = False, levels: Sequence[str] = ()) -> Used:
    """Describe a column of the formula; ``levels`` are those that somebody chose."""
    name, counts = column.name, column.counts
    missing = tuple(int(at_site.missing.sum()) for at_site in column.by_site.values())
    of_words = column.kind in ("text", "truth")
    if of_words or levels:
        shown = levels or sorted(counts)
        what = f"{len(shown)} levels: {', '.join(shown)}"
        if response:
            return Used(name, what, missing)
        owners = {
            level: [site for site, at_site in column.levels.items() if level in at_site]
            for level in shown
        }
        alone = [
            f"{level} at {sites[0]} only ({rows_text(counts[level])})"
            for level, sites in owners.items()
            if len(sites) == 1 < len(column.by_site)
        ]
        for site, at_site in column.levels.items():  # perhaps in another language
            several = len(column.levels) > 1 and len(at_site) > 0
            if several and all(owners.get(level) == [site] for level in at_site):
                line = mend(site, f"recode.{key(name)}", f"{text(min(at_site))} = ...")
                alone.append(
                    f"{site} shares no level with others; where these are other words for the "
                    f"same, --changes FILE.toml with {line}"
                )
        what += f"; the reference is {shown[0]}"
        return Used(name, what, missing, "; ".join(alone), coded=not of_words)
    values = column.numbers
    if column.kind == "date":
        return Used(name, "date, as a number of days", missing)
    note = ""
    if not response and 2 < len(counts) <= LEVELS_MAX and bool((values == np.round(values)).all()):
        note = f"{len(counts)} integers, used as a number; C({in_formula(name)}) makes it a factor"
    return Used(name, f"number, {values.min():g} to {values.max():g}", missing, note)
