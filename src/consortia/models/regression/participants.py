"""Who was analysed: what a site tells of its rows, and Table 1 of all sites.

A site tells cells of its rows (`consortia.data.cells`): how many were read and miss a value, how
many analysed rows have each level, mean and spread of numbers, events and follow-up. The table
holds nothing but what the sites tell, and sums of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from consortia.data.cells import Cells, Range, merged, range_of, union_range
from consortia.data.columns import Table, as_levels, column_of, rows_of
from consortia.data.description import (
    ALL,
    ENDED,
    EVENT,
    SiteDescription,
    Wanted,
    column_cells,
    mean_and_sd,
)
from consortia.data.followup import SiteCounts, site_counts
from consortia.data.patterns import MOST_LEVELS
from consortia.data.tables import is_number
from consortia.diagnostics.summary import MISSING, aligned
from consortia.errors import InputError
from consortia.models.regression.balance import balance_cells, site_balance
from consortia.models.regression.formula import expression
from consortia.models.regression.persons import followed, persons_of
from consortia.models.regression.question import Question, in_order

OVERALL = "all sites"
TRIALS = "trials"
BALANCE = "standardised mean differences, before → with weights"
RECURRENT = "events of a person"
SURVIVAL, FOLLOW_UP = "Surv(", "follow-up"


def described(
    question: Question, wanted: Wanted, table: Table, kept: Table, site: str, least: int = 1
) -> SiteDescription:
    """Describe a site's participants.

    ``kept`` are the rows that are analysed, as `Question.kept` returns them. A cell has at least as
    many rows as both the request and the site's ``least`` say.

    Raises:
        InputError: a column cannot be used.
    """
    cells, where = max(wanted.cells, least), f"site {site!r}"
    selected, gaps = question.gaps(table, site)
    rows = selected & ~np.any([gaps[name] for name in question.needed], axis=0)
    everybody = persons_of(question, table, rows, where)
    missing = {name: everybody.number(selected & gap) for name, gap in gaps.items()}
    ranges = {name: range_of(count, cells) for name, count in missing.items()}
    number = everybody.number(rows)
    left_out = union_range(everybody.number(selected) - number, list(ranges.values()), cells)
    given = None if left_out is None else (number + left_out[0], number + left_out[1])
    not_kept = range_of(
        everybody.number(np.ones(len(rows), bool)) - everybody.number(selected), cells
    )
    timed = question.family.response == "time"
    starts = question.entries(kept, where) if timed else np.zeros(rows_of(kept))
    persons = everybody.weights(rows, starts)
    levels: dict[str, Cells] = {}
    numbers: dict[str, tuple[float, float]] = {}
    units: dict[str, str] = {}
    grouped = {group.by for group in question.parsed.groups}
    for name in question.parsed.columns:
        column = kept[name]
        if name in grouped or column.kind == "empty":
            continue
        level_cells = column_cells(column, question.levels.get(name, ()), cells, persons)
        if level_cells is not None:
            levels[name] = level_cells
        elif column.kind == "number":
            there = ~column.missing
            weights = None if persons is None else persons[there]
            known = mean_and_sd(column.values[there], cells, weights)
            numbers |= {} if known is None else {name: known}
    followup = None
    if timed:
        others = {name: column_of(table, name, where).take(rows) for name in wanted.columns}
        labels = None if everybody.labels is None else everybody.labels[rows]
        of_rows = persons if labels is None else None
        followup = _time(question, wanted, others, kept, where, cells, (levels, numbers), labels,
                         of_rows)  # fmt: skip
    else:
        _response(question, kept, where, cells, (levels, numbers, units), persons)
    total = None if everybody.are_rows else number
    parts = (cells, given, ranges, levels, numbers, units, followup, not_kept)
    balance = {}
    if wanted.treated is not None:
        factor = expression(wanted.treated)
        every = {name: column_of(table, name, where).take(rows) for name in factor.columns}
        balance = site_balance(question, factor, {**every, **kept}, where, cells, levels)
    return SiteDescription(*parts, total, balance)


def _response(
    question: Question,
    kept: Table,
    where: str,
    cells: int,
    into: tuple[dict[str, Any], ...],
    persons: np.ndarray | None,
) -> None:
    """Add what a site tells of a response."""
    levels, numbers, units = into
    first = question.parsed.response[0]
    if question.levels_of_response(kept):
        name = str(first.column)
        level_cells = column_cells(kept[name], question.levels.get(name, ()), cells, persons)
        levels |= {} if level_cells is None else {name: level_cells}
        return
    (y,) = question.response(kept, where)
    weights = np.ones(len(y)) if persons is None else persons
    if TRIALS in question.extra:
        trials = question.beside(TRIALS, kept, where)
        counts = {EVENT: round(weights @ y), f"no {EVENT}": round(weights @ (trials - y))}
        levels[first.text], units[first.text] = merged(counts, cells), TRIALS
        return
    if np.isin(y, (0.0, 1.0)).all():
        levels[first.text] = merged({str(k): round(weights @ (y == k)) for k in (0, 1)}, cells)
        return
    column = None if first.column is None else column_cells(kept[first.column], (), cells, persons)
    if column is not None:
        levels[first.text] = column
    elif (known := mean_and_sd(y, cells, persons)) is not None:
        numbers[first.text] = known


def _time(
    question: Question,
    wanted: Wanted,
    asked_columns: Table,
    kept: Table,
    where: str,
    cells: int,
    into: tuple[dict[str, Any], dict[str, Any]],
    labels: np.ndarray | None,
    frequencies: np.ndarray | None,
) -> SiteCounts | None:
    """Add events and follow-up of a site; return its counts between the agreed times."""
    levels, numbers = into
    for name, column in asked_columns.items():
        if column.missing.any():
            raise InputError(f"{where}: describe: values of {name!r} are missing.")
    stop, event = question.response(kept, where)
    followup = followed(
        labels, question.entries(kept, where), stop, _kinds(wanted, asked_columns, event, where)
    )
    names = (ENDED, *wanted.kinds)
    counts = np.round(np.bincount(followup.kind, frequencies, len(names))).astype(int).tolist()
    texts = ", ".join(factor.text for factor in question.parsed.response)
    levels[f"{SURVIVAL}{texts})"] = merged(dict(zip(names, counts, strict=True)), cells)
    if (followup.events > 1).any():
        numbers_of = {str(n): int(np.sum(followup.events == n)) for n in np.unique(followup.events)}
        levels[RECURRENT] = merged(numbers_of, cells)
    known_time = mean_and_sd(followup.duration, cells, frequencies)
    if known_time is not None and len(np.unique(followup.duration)) > 2:
        numbers[question.parsed.response[0].text] = known_time
    if not wanted.times:
        return None
    if not followup.gapless:
        raise InputError(
            f"{where}: describe.times: curves need persons who are followed from time 0 without "
            "a gap, and some here are not: leave describe.times out."
        )
    strata = {ALL: np.arange(len(followup.time))}
    if wanted.by is not None:
        texts_by = as_levels(asked_columns[wanted.by])[followup.first]
        strata = {text: np.flatnonzero(texts_by == text) for text in np.unique(texts_by).tolist()}
    return site_counts(
        followup.time, followup.kind, strata, wanted.times, len(wanted.kinds), cells, frequencies
    )


def _kinds(wanted: Wanted, asked_columns: Table, event: np.ndarray, where: str) -> np.ndarray:
    """Return the kind of the event of each row, 0 where there is none."""
    if wanted.event is None:
        return event.astype(int)
    codes = asked_columns[wanted.event]
    known = {code: index + 1 for index, (code, _) in enumerate(wanted.causes)}
    if not set(np.unique(codes.values).tolist()) <= {0.0, *map(float, known)}:
        raise InputError(
            f"{where}: describe.event {wanted.event}: its values must be 0 or among the codes "
            f"{', '.join(map(str, known))}."
        )
    return np.array([known.get(int(code), 0) for code in codes.values.tolist()], int)


# --- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One line of Table 1."""

    variable: str  # its name
    level: str  # of the variable; "" of a number, or of its missing values
    cells: tuple[str, ...]  # by site and of all sites, as text


@dataclass(frozen=True, eq=False)
class TableOne:
    """Characteristics of participants by site and overall; `str` renders it."""

    columns: tuple[str, ...]  # names of the sites, and `OVERALL`
    flow: tuple[Line, ...]  # rows that were read, left out and analysed
    missing: tuple[Line, ...]  # rows that were read in which each column misses
    lines: tuple[Line, ...]  # of each variable its levels, or mean and standard deviation
    notes: tuple[str, ...]  # what the signs mean
    unit: str = "rows"  # what is counted, or "persons"
    # of covariates the differences of treated and other rows before and with weights
    balance: tuple[Line, ...] = ()

    @property
    def parts(self) -> dict[str, tuple[Line, ...]]:
        """The lines of flow, missing values, characteristics and balance."""
        every = self.flow, self.missing, self.lines, self.balance
        return dict(zip(("rows", "missing", "analysed", "balance"), every, strict=True))

    def __str__(self) -> str:
        """Return flow, missing values and characteristics as plain text."""
        parts, unit = [], self.unit
        titles = (unit, f"missing values, in {unit} read", f"analysed {unit}", BALANCE)
        for title, lines in zip(titles, self.parts.values(), strict=True):
            body = [[self.named(line), *line.cells] for line in lines]
            parts += [*aligned([[title, *self.columns], *body]), ""] if body else []
        return "\n".join([*parts, *(f"* {note}" for note in self.notes)])

    __repr__ = __str__

    @staticmethod
    def named(line: Line) -> str:
        """Return variable and level of a line."""
        return f"{line.variable}: {line.level}" if line.level else line.variable

    def to_dataframe(self) -> Any:
        """Return one line a variable and level, a column a site."""
        import pandas as pd  # heavy, and only wanted here

        rows = [
            [part, line.variable, line.level, *line.cells]
            for part, lines in self.parts.items()
            for line in lines
        ]
        return pd.DataFrame(rows, columns=["part", "variable", "level", *self.columns])


def table_one(
    reported: Mapping[str, SiteDescription],
    rows: Sequence[int],
    keep: str = "",
    persons: str = "",
    factors: Collection[str] = (),
) -> TableOne:
    """Return Table 1 from the sites' descriptions and the numbers of rows that are analysed.

    ``keep`` is true of the rows that are analysed; "" where that is of all. ``persons`` names the
    person of each interval; "" where each row is one. ``factors`` are shown by level, whatever
    their values: a number of few values at each site is shown so where all sites have few.
    """
    every = list(reported.values())
    least = max(site.cells for site in every)
    of_rows, unit = tuple(_with_sum([(n, n) for n in rows])), "rows"
    if any(site.persons is not None for site in every):
        counted = zip(rows, every, strict=True)
        rows = [n if site.persons is None else site.persons for n, site in counted]
        unit = "persons"
    given = [site.given for site in every]
    left = [None if g is None else (g[0] - n, g[1] - n) for g, n in zip(given, rows, strict=True)]
    unkept = [site.not_kept for site in every]
    pairs = zip(given, unkept, strict=True)
    read = [None if g is None else (g[0] + low, g[1] + high) for g, (low, high) in pairs]
    flow = (
        Line("read", "", _with_sum(read)),
        *([Line(f"left out, not {keep}", "", _with_sum(unkept))] if keep else []),
        Line("left out, a value missing", "", _with_sum(left)),
        Line("analysed", "", _with_sum([(n, n) for n in rows])),
    )
    if unit == "persons":
        flow += (Line("rows of these persons", "", of_rows),)
    names = dict.fromkeys(name for site in every for name in site.missing)
    missing = tuple(
        Line(name, "", _with_sum([site.missing.get(name) for site in every])) for name in names
    )
    lines: list[Line] = []
    variables = dict.fromkeys(name for site in every for name in (*site.levels, *site.numbers))
    order = {name: index for index, name in enumerate(names)}  # the response's columns come first
    timed = [name.split(", ")[-2] for name in variables if name.startswith(SURVIVAL)]
    times = {name.removeprefix(SURVIVAL) for name in timed}
    for name in sorted(variables, key=lambda each: order.get(each, -each.startswith(SURVIVAL))):
        levels = dict.fromkeys(each for site in every if name in site.levels
                               for each in site.levels[name].counts)  # fmt: skip
        many = len(levels) > MOST_LEVELS and all(map(is_number, levels))
        if (many and not any(name in factor for factor in factors)) or any(
            name in site.numbers for site in every
        ):
            shown = f"{FOLLOW_UP} ({name})" if name in times else name
            lines.append(replace(_number_line(name, every, rows), variable=shown))
        else:
            lines += _level_lines(name, every, [*levels])
    notes = [f"Numbers are mean (standard deviation), levels are {unit} (percent)."]
    if persons:
        notes.append(
            f"{persons} identifies the person of each interval: covariates are those of the "
            "first interval, follow-up is the sum of all, and an event is in any of them."
        )
    if least > 1:
        notes.append(
            f"no number here is of 1 to {least - 1} {unit}, nor does one follow from those here: "
            f"these are merged as 'other levels', or {MISSING}; missing values are in ranges of "
            f"{least}"
        )
    balance = tuple(Line(name, "", cells) for name, cells in balance_cells(every).items())
    sites = (*reported, OVERALL)
    return TableOne(sites, flow, missing, tuple(lines), tuple(notes), unit, balance)


def _with_sum(parts: Sequence[Range | None]) -> tuple[str, ...]:
    """Return ranges as text, and that of their sum."""
    known = [part for part in parts if part is not None]
    total = (sum(low for low, _ in known), sum(high for _, high in known))
    return (*map(_range_text, parts), _range_text(total if len(known) == len(parts) else None))


def _range_text(value: Range | None) -> str:
    if value is None:
        return MISSING
    low, high = value
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _number_line(name: str, every: Sequence[SiteDescription], rows: Sequence[int]) -> Line:
    moments = [_moments(name, description) for description in every]
    known = [(n, *moment) for n, moment in zip(rows, moments, strict=True) if moment is not None]
    if not known:
        return Line(name, "", (MISSING,) * (len(every) + 1))
    total = sum(n for n, _, _ in known)
    mean = sum(n * m for n, m, _ in known) / total
    squares = sum((n - 1) * sd**2 + n * (m - mean) ** 2 for n, m, sd in known)
    overall = _spread_text(mean, float(np.sqrt(squares / max(total - 1, 1))))
    if len(known) < len(every):
        overall += f", at {len(known)} of {len(every)} sites"
    cells = [MISSING if moment is None else _spread_text(*moment) for moment in moments]
    return Line(name, "", (*cells, overall))


def _moments(name: str, site: SiteDescription) -> tuple[float, float] | None:
    """Return a site's mean and standard deviation, or those of the counts that it tells instead."""
    cells = site.levels.get(name)
    if cells is None or cells.rest or not all(map(is_number, cells.counts)):
        return site.numbers.get(name)
    return mean_and_sd(np.array([*map(float, cells.counts)]), 1, np.array([*cells.counts.values()]))


def _spread_text(mean: float, sd: float) -> str:
    """Return mean and standard deviation with the decimals that give the latter three digits."""
    places = max(0, 2 - int(np.floor(np.log10(sd)))) if sd > 0 else 2
    mark = "," * (abs(mean) >= 10_000)  # the thousands of a year are not set apart
    return f"{mean:{mark}.{places}f} ({sd:{mark}.{places}f})"


def _level_lines(name: str, every: Sequence[SiteDescription], levels: list[str]) -> list[Line]:
    """Return one line a level that a site tells, and one of what is merged."""
    reported = [site.levels.get(name) for site in every]
    units = next((site.units[name] for site in every if name in site.units), "")
    levels = list(in_order(levels)) if all(map(is_number, levels)) else levels
    totals = [0 if c is None else sum(c.counts.values()) + c.rest for c in reported]
    merged_rows = sum(c.rest for c in reported if c)
    lines, variable = [], "outcome" if name.startswith(SURVIVAL) else name
    for level in levels:
        counts = [None if c is None else _count(c, level) for c in reported]
        cells = [
            MISSING if n is None or not total else _share(n, total)
            for n, total in zip(counts, totals, strict=True)
        ]
        known = sum(filter(None, counts))
        overall = f"{known:,} or more" if None in counts else _share(known, sum(totals))
        lines.append(Line(variable, level + (f", {units}" if units else ""), (*cells, overall)))
    if merged_rows:
        cells = [MISSING if not c or not c.rest else f"{c.rest:,}" for c in reported]
        lines.append(Line(variable, "other levels", (*cells, f"{merged_rows:,}")))
    return lines


def _count(cells: Cells, level: str) -> int | None:
    """Return the rows of a level; None where they may be among the merged ones."""
    return cells.counts.get(level, None if cells.rest else 0)


def _share(count: int, total: int) -> str:
    return f"{count:,} ({100 * count / total:.1f} %)"
