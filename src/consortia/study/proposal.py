"""A first study of tables that somebody has: which columns can be used, and a formula of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from consortia.core.arguments import one_of, unknown
from consortia.core.printable import printable
from consortia.data.columns import POLICIES, Column, Table, as_levels, rows_of
from consortia.data.mending import in_formula, key
from consortia.errors import InputError
from consortia.models.regression.construction import MOST_INTEGRATED
from consortia.models.regression.families import FAMILIES
from consortia.models.regression.formula import SITE, expression, parse
from consortia.models.regression.question import rows_where
from consortia.study.candidates import (
    CODES_MAX,
    IDENTIFIER,
    SiteColumns,
    Used,
    reason_of,
    same_as,
    told_by,
    used_of,
)
from consortia.study.outcome import Outcome, outcome_of

EXACT, HIERARCHICAL = "few_rounds", "federated_hmc"
"""The algorithms; a spread of effects by site has tails that few proposals of the first reach."""

SITES_MAX = 8
"""With more sites their levels are partially pooled."""

COUNTS = re.compile(
    r"^(n|freq|frequency|häufigkeit|counts?|persons?|number|anzahl|effectifs?|weights?|wt)$",
    re.IGNORECASE,
)
"""Names of columns of how many persons a row stands for."""

EXPOSURE = re.compile(
    r"^(exposure|py|pyears|pyrs)$|"
    r"(follow[_\W]?up|^fu|(person|patient|risk|exposure)s?)[_\W]?(time|days?|weeks?|months?|years?)$|"
    r"(time|days|weeks|months|years)[_\W]?(at[_\W]?risk|(of[_\W]?)?follow[_\W]?up)$",
    re.IGNORECASE,
)
"""Names of columns of the time in which a row's events were counted."""

CONTROL = re.compile(
    r"^(controls?|kontrolle|controllo|témoin|placebo|plazebo|sham|standard|usual|untreated|"
    r"conventional|none)\b",
    re.IGNORECASE,
)
"""Levels that others are compared with."""


@dataclass(frozen=True)
class Proposal:
    """A study of a formula, to be written and looked at."""

    formula: str  # response ~ terms
    family: str  # of the response
    why: str  # why this family
    missing: str  # the policy
    integrate: bool  # whether levels by site are integrated out
    algorithm: str  # its name
    sites: tuple[str, ...]  # names of the sites
    rows: tuple[int, ...]  # of each site
    complete: tuple[int, ...]  # rows of each site in which no value of the formula misses
    used: tuple[Used, ...]  # the columns of the formula, the response first
    left_out: tuple[tuple[str, str], ...]  # name and reason of every other column
    by_site: str | None = None  # the column whose effect is of each site, or None
    # of the columns whose reference was chosen, it first
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trials: str | None = None  # of a binomial response, the column of how many could have been
    weights: str | None = None  # the column of how many persons a row stands for
    exposure: str | None = None  # of counts, the column of the time in which they were counted
    keep: str | None = None  # expression that is true of the rows to be analysed
    question: str | None = None  # the column that the study is about
    persons: str | None = None  # the column of the person of each interval

    def toml(
        self,
        files: Sequence[str],
        title: str,
        harmonise: Sequence[str] = (),
        doubts: Sequence[str] = (),
    ) -> str:
        """Return the study file.

        Args:
            files: of the sites, relative to the study file.
            title: one line.
            harmonise: lines of the tables ``[harmonise.SITE]``.
            doubts: what somebody has to confirm.
        """
        lines = ["# Written by `consortia init`. Read it, then: consortia check, consortia run."]
        if self.left_out:
            lines += ["#", "# Not in the formula:"]
            lines += [f"#   {name}: {printable(reason)}" for name, reason in self.left_out]
        if noted := [(column.name, column.note) for column in self.used if column.note]:
            lines += [
                "#",
                "# Look at:",
                *(printable(f"#   {name}: {note}") for name, note in noted),
            ]
        if doubts:
            lines += ["#", "# To be confirmed:", *(f"#   {printable(doubt)}" for doubt in doubts)]
        kept = [] if self.keep is None else [f"keep = {_text(self.keep)}"]
        listed = ",\n".join(f"  {_text(file)}" for file in files)
        lines += ["", f"title = {_text(title)}"]
        if self.question is not None:
            lines.append(f"question = {_text(self.question)} # what the report begins with")
        lines += ["", "# Each site has one of these files."]
        lines += ["[data]", f"files = [\n{listed},\n]", *kept, *harmonise]
        lines += ["", f"# {printable(self.why)}", "[model]"]
        lines += [f"formula = {_text(self.formula)}", f"family = {_text(self.family)}"]
        if self.trials is not None:
            lines.append(f"trials = {_text(in_formula(self.trials))}")
        if self.weights is not None:
            lines.append(f"weights = {_text(in_formula(self.weights))}")
        if self.exposure is not None:
            lines.append(f"exposure = {_text(in_formula(self.exposure))} # the counts are rates")
        if self.persons is not None:
            lines.append(f"persons = {_text(self.persons)} # each counts once")
        if self.missing != POLICIES[0]:
            lines.append(f"missing = {_text(self.missing)}")
        if self.levels:
            given = [
                f"{key(name)} = [{', '.join(map(_text, levels))}]"
                for name, levels in self.levels.items()
            ]
            what = "lowest" if self.family == "ordinal" else "reference"
            lines.append(f"levels = {{ {', '.join(given)} }} # the first is the {what}")
        if self.integrate:
            lines.append("integrate = true # a site's own effects stay at the site")
        if self.by_site is not None and FAMILIES[self.family].effect is not None:
            lines.append(
                'prior = { sd = "half_normal(1)" } # for few sites: effects that differ by '
                "a factor of e"
            )
        lines += ["", "[algorithm]", f"name = {_text(self.algorithm)}"]
        if self.algorithm == HIERARCHICAL:
            lines += ["target_acceptance = 0.95 # small steps where the spread is near 0"]
        lines += ["", "[run]"]
        if self.algorithm == HIERARCHICAL:
            lines += ["warmup = 1_000", "rounds = 2_000"]
        return printable("\n".join([*lines, "chains = 4", "seed = 1", ""]), lines=True)


def propose(
    tables: Mapping[str, Table],
    response: str,
    *,
    family: str | None = None,
    missing: str | None = None,
    drop: Sequence[str] = (),
    by_site: str | None = None,
    references: Mapping[str, str] | None = None,
    levels: Mapping[str, tuple[str, ...]] | None = None,
    group: str | None = None,
    trials: str | None = None,
    weights: str | None = None,
    event: str | None = None,
    keep: str | None = None,
    question: str | None = None,
    persons: str | None = None,
) -> Proposal:
    """Return a study of all columns that can be used, and why the others cannot.

    Args:
        tables: of each site, by its name.
        response: a column, or ``Surv(time, event)``, or ``Surv(start, stop, event)``.
        family: of the response; by what it holds when None.
        missing: the policy; ``"complete"`` where values miss, when None.
        drop: columns that are to be left out.
        by_site: a column whose effect is wanted for each site, around a common one.
        references: level that the others of a column are against; when None the most frequent one
            of a response, and of a term the one called a control, else the first by alphabet.
        levels: of columns, the lowest of an ordinal response or the reference of a term first.
        group: a column whose values several rows share, for levels of it.
        trials: of family binomial, the column of how many could have been.
        weights: the column of how many persons a row stands for; when None one that looks so.
        event: of a time to an event, the value that is one; no other is.
        keep: expression that is true of the rows to be analysed.
        question: the column that the study is about; when None that of ``by_site``.
        persons: the column of the person of each interval; when None it is looked for.

    Raises:
        InputError: a column or a level is unknown (with the nearest), or the response is none.
    """
    tables = _kept(tables, keep)
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    chosen, order, question = references or {}, levels or {}, question or by_site
    named = [by_site, group, trials, weights, question, persons]
    _check_named(tables, names, [*drop, *named, *chosen, *order], order)
    outcome = outcome_of(tables, names, response, family, event, chosen, order)
    family, of_response = outcome.family, outcome.columns
    if family.startswith("binomial") != (trials is not None):
        raise InputError("--family binomial and --trials COLUMN need each other: give both.")
    usable = [name for name in names if name not in drop]
    if weights is None and family != "cox":
        weights = _counting(tables, usable, of_response)
    exposure = _exposure(tables, family, [*drop, *of_response, *named])
    persons = persons or _persons(tables, usable, outcome)
    extra = [name for name in (group, trials, weights, exposure) if name is not None]
    candidates = [name for name in names if name not in (*of_response, *extra, persons)]
    wanted = [name for name in (by_site, question, *chosen, *order) if name is not None]
    pooled = by_site is not None or _pooled(tables, family)
    names, left_out = _covariates(tables, candidates, of_response, drop, wanted, pooled=pooled)
    of_terms = _levels_of_terms(tables, names, of_response, chosen, order)
    column_of = partial(SiteColumns.of, tables)
    used = [used_of(column_of(name), levels=of_terms.get(name, ())) for name in names]
    responses = [used_of(column_of(name), response=True) for name in (*of_response, *extra)]
    every = [column.noted(outcome.notes.get(column.name, "")) for column in [*responses, *used]]
    policy = missing or ("complete" if any(sum(column.missing) for column in every) else "refuse")
    one_of("missing", policy, POLICIES)
    terms, integrate, grouped = _terms(tables, used, family, policy, by_site=by_site, group=group)
    return Proposal(
        formula=f"{outcome.left} ~ {' + '.join(terms) or '1'}",
        family=family,
        why=_why(tables, outcome, weights, persons, exposure),
        missing=policy,
        integrate=integrate,
        algorithm=HIERARCHICAL if grouped and not integrate else EXACT,
        sites=tuple(tables),
        rows=tuple(rows_of(table) for table in tables.values()),
        complete=_complete_rows(tables, every, policy),
        used=tuple(every),
        left_out=tuple(left_out),
        by_site=by_site,
        levels={**outcome.levels, **of_terms},
        trials=trials,
        weights=weights,
        exposure=exposure,
        keep=keep,
        question=question,
        persons=persons,
    )


def _kept(tables: Mapping[str, Table], keep: str | None) -> Mapping[str, Table]:
    """Return the rows of which an expression is true; all of them without one."""
    if keep is None:
        return tables
    return {site: rows_where(expression(keep), table, site) for site, table in tables.items()}


def _levels_of_terms(
    tables: Mapping[str, Table],
    terms: Sequence[str],
    of_response: Sequence[str],
    references: Mapping[str, str],
    order: Mapping[str, tuple[str, ...]],
) -> dict[str, tuple[str, ...]]:
    """Return the levels of the terms of which somebody chose them, the reference first."""
    if unused := [name for name in references if name not in (*terms, *of_response)]:
        raise InputError(f"reference of {unused[0]!r}: the formula has no such term.")
    controls = {name: _control(SiteColumns.of(tables, name)) for name in terms if name not in order}
    levels = {
        name: SiteColumns.of(tables, name).against(reference)
        for name, reference in {**controls, **references}.items()
        if name in terms and reference is not None
    }
    return levels | {name: order[name] for name in order if name in terms}


def _check_named(
    tables: Mapping[str, Table],
    names: Sequence[str],
    named: Sequence[str | None],
    order: Mapping[str, Sequence[str]],
) -> None:
    """Refuse columns that no table has, and levels that are not those of their column."""
    for name in named:
        if name is not None and name not in names:
            raise InputError(f"unknown column {name!r}: {unknown(name, names)}.")
    for name, given in order.items():
        by_site = SiteColumns.of(tables, name).levels.values()
        levels = list(dict.fromkeys(level for at_site in by_site for level in at_site))
        for level in given:
            if level not in levels:
                text = f"--levels {name}: {level!r} is {unknown(level, levels)}."
                raise InputError(text).at("levels")
        if lacking := [level for level in levels if level not in given]:
            text = f"--levels {name}: {', '.join(lacking)} is missing: name all levels."
            raise InputError(text).at("levels")


def _counting(
    tables: Mapping[str, Table], names: Sequence[str], of_response: Sequence[str]
) -> str | None:
    """Return the column of how many persons a row stands for, where rows are cells of words."""
    counts = [column for column in names if COUNTS.search(column) and column not in of_response]
    if len(counts) != 1 or any(counts[0] not in table for table in tables.values()):
        return None
    (name,) = counts
    column = SiteColumns.of(tables, name)
    if column.sites_of_kinds.keys() != {"number"}:
        return None
    values = column.numbers
    if (values < 0).any() or (values != np.round(values)).any() or values.max(initial=0) <= 1:
        return None
    for table in tables.values():
        others = [table[column] for column in names if column != name and column in table]
        if any(c.kind == "number" and len(np.unique(c.values)) > CODES_MAX for c in others):
            return None
        cells = [*zip(*(column.values.tolist() for column in others), strict=True)]
        if len({*cells}) < len(cells):
            return None
    return name


def _exposure(tables: Mapping[str, Table], family: str, but: Sequence[str | None]) -> str | None:
    """Return the column of the time in which events were counted, by its name and values."""
    names = {name for table in tables.values() for name in table} - {*but}
    called = [name for name in names if EXPOSURE.search(name)]
    counts = "exposure" in FAMILIES[family].takes
    if not counts or len(called) != 1 or any(called[0] not in table for table in tables.values()):
        return None
    column = SiteColumns.of(tables, called[0])
    if column.sites_of_kinds.keys() != {"number"} or any(
        at_site.missing.any() or at_site.doubt for at_site in column.by_site.values()
    ):
        return None
    return called[0] if (column.numbers > 0).all() and len(column.counts) > 1 else None


def _control(column: SiteColumns) -> str | None:
    """Return the level of words that is called as controls are, unless it comes first anyway."""
    if column.sites_of_kinds.keys() != {"text"}:
        return None
    controls = [level for level in column.counts if CONTROL.search(level)]
    return controls[0] if len(controls) == 1 and controls[0] != min(column.counts) else None


def _persons(tables: Mapping[str, Table], names: Sequence[str], outcome: Outcome) -> str | None:
    """Return the column of whose values no two intervals overlap; None without one or of several.

    A column of another name than a patient's numbers persons where their intervals follow each
    other; an exact age, which does so too, is never one.
    """
    parsed = parse(f"{outcome.left} ~ 1")
    if parsed.entry is None:
        return None
    columns, suitable = (parsed.entry, parsed.response[0]), []
    for name in names:
        if name in outcome.columns or any(name not in table for table in tables.values()):
            continue
        if not all(map(_numbers_persons, SiteColumns.of(tables, name).by_site.values())):
            continue
        later = follow = rows = distinct = overlaps = 0
        for site, table in tables.items():
            start, stop = (column.values(table, f"site {site!r}") for column in columns)
            known = ~table[name].missing & np.isfinite(start) & np.isfinite(stop)
            labels = np.unique(as_levels(table[name])[known], return_inverse=True)[1]
            order = np.lexsort((start[known], labels))
            labels, start, stop = labels[order], start[known][order], stop[known][order]
            same = np.diff(labels) == 0
            overlaps += int(np.sum(same & (start[1:] < stop[:-1])))
            follow += int(np.sum(same & (start[1:] == stop[:-1])))
            later += int(np.sum(start > 0))
            rows, distinct = rows + len(labels), distinct + len(np.unique(labels))
        if distinct < rows and not overlaps and (IDENTIFIER.search(name) or follow > 0.9 * later):
            suitable.append(name)
    called = [name for name in suitable if IDENTIFIER.search(name)]
    best = called or suitable
    return best[0] if len(best) == 1 else None


def _numbers_persons(column: Column) -> bool:
    """Return True if a column may hold names or numbers of persons: words, or integers."""
    known = column.values[~column.missing]
    return column.kind == "text" or (
        column.kind == "number" and bool((known == np.round(known)).all())
    )


def _why(
    tables: Mapping[str, Table],
    outcome: Outcome,
    weights: str | None,
    persons: str | None,
    exposure: str | None,
) -> str:
    """Describe the choices behind the study, in sentences."""
    why = outcome.why
    if exposure is not None:
        why += f" Counts are per unit of {exposure}; --drop {exposure} leaves it out."
    rows = sum(map(rows_of, tables.values()))
    if persons is not None:
        number = sum(map(len, SiteColumns.of(tables, persons).levels.values()))
        return (
            f"{why} {persons} identifies the person of each interval: {rows:,} intervals "
            f"are of {number:,} persons."
        )
    if parse(f"{outcome.left} ~ 1").entry is not None:
        return (
            f"{why} No column was found that identifies the person of each interval, so "
            f"{rows:,} intervals count as {rows:,} persons: --persons COLUMN names it."
        )
    if weights is None:
        return why
    number = SiteColumns.of(tables, weights).numbers.sum()
    return (
        f"{why} {weights} is the number of persons of a row: {rows:,} rows are "
        f"{number:,.0f} persons; --drop {weights} counts rows as persons."
    )


def _covariates(
    tables: Mapping[str, Table],
    candidates: Sequence[str],
    of_response: Sequence[str],
    drop: Sequence[str],
    wanted: Sequence[str],
    *,
    pooled: bool,
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the columns that can be used, and the others with the reason.

    A column that somebody named is wanted, even if it is a date or repeats another one. What other
    columns of words tell is left out, and what sites do unless theirs are ``pooled``: its
    coefficients would be known from the prior alone.
    """
    used: list[str] = []
    left_out: list[tuple[str, str]] = []
    for name in candidates:
        reason = "you dropped it" if name in drop else ""
        reason = reason or reason_of(SiteColumns.of(tables, name), wanted=name in wanted)
        if not reason and name not in wanted:
            reason = same_as(tables, name, [*of_response, *used])
        if not reason:
            used.append(name)
        elif name in wanted and name not in drop:
            raise InputError(f"{name!r} was named, but cannot be used: {reason}.").at("columns")
        else:
            left_out.append((printable(name), reason))
    for name in [column for column in used if column not in wanted]:
        reason = told_by(tables, name, used)
        levels = SiteColumns.of(tables, name).levels.values()
        constant = len(tables) > 1 and all(len(at_site) == 1 for at_site in levels)
        if not reason and not pooled and constant:
            reason = "it is constant at each site, so the site's level covers it"
        if reason:
            used.remove(name)
            left_out.append((printable(name), reason))
    return used, left_out


def _pooled(tables: Mapping[str, Table], family: str) -> bool:
    """Return True if there are so many sites that their levels are pooled."""
    return len(tables) > SITES_MAX and FAMILIES[family].response != "time"


def _terms(
    tables: Mapping[str, Table],
    used: Sequence[Used],
    family: str,
    policy: str,
    *,
    by_site: str | None,
    group: str | None,
) -> tuple[list[str], bool, bool]:
    """Return the terms, whether sites integrate theirs out, and whether these are hierarchical."""
    terms, integrate, grouped = [covariate.term for covariate in used], False, False
    if len(tables) > 1 and by_site is not None:
        column = SiteColumns.of(tables, by_site)
        # a baseline of each site holds its level
        level = "0 + " if FAMILIES[family].of_site else ""
        terms.append(f"({level}{in_formula(by_site)} || {SITE})")
        integrate, grouped = group is None and _can_stay(column, family, policy), True
    elif _pooled(tables, family):
        terms.append(f"(1 | {SITE})")
        integrable = FAMILIES[family].integrable
        integrate, grouped = policy != "impute" and group is None and integrable, True
    elif len(tables) > 1 and family != "cox":  # that has a baseline of each site
        terms.append(SITE)
    if group is not None:
        terms.append(f"(1 | {SITE}:{in_formula(group)})")
    return terms, integrate, grouped


def _complete_rows(
    tables: Mapping[str, Table], every: Sequence[Used], policy: str
) -> tuple[int, ...]:
    """Return the complete rows of each site; refuse a site without any if the policy needs one."""
    complete = {
        site: int((~np.any([table[column.name].missing for column in every], axis=0)).sum())
        for site, table in tables.items()
    }
    if policy == "complete" and not all(complete.values()):
        site = next(site for site, count in complete.items() if not count)
        worst = max(every, key=lambda column: int(tables[site][column.name].missing.sum()))
        raise InputError(
            f"{site} has no complete row; {worst.name!r} is missing most often: drop it (--drop "
            f"{worst.name}) or the site, or keep the rows with --missing indicator or impute."
        )
    return tuple(complete.values())


def _can_stay(column: SiteColumns, family: str, policy: str) -> bool:
    """Return True if a level and the slopes of a column can be integrated out at the sites."""
    words = column.sites_of_kinds.keys() & {"text", "truth"}
    few = not words or len(column.counts) <= MOST_INTEGRATED
    return few and policy != "impute" and FAMILIES[family].integrable


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
