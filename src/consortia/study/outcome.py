"""The response of a first formula: its family, its event, the order of its levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from consortia.core.arguments import unknown
from consortia.data.columns import Table, as_levels
from consortia.data.mending import in_formula, key, mend, rows_text, text
from consortia.data.writing import loosely, same_loosely, truth_of
from consortia.errors import InputError, wrong
from consortia.models.regression.families import FAMILIES, family_of
from consortia.models.regression.formula import Factor, parse
from consortia.models.regression.unlike import nearly_equal
from consortia.study.candidates import LEVELS_MAX, SiteColumns, listed

ASK = "say which is the event: --event"


class Outcome(NamedTuple):
    """The response of a formula, and its family."""

    left: str  # side of the formula
    columns: tuple[str, ...]  # of the response
    family: str  # chosen, or found from the values
    why: str  # it is this family, in a sentence
    levels: Mapping[str, tuple[str, ...]] = {}  # of the response, the reference or the lowest first
    notes: Mapping[str, str] = {}  # by column, what each code is taken for


def outcome_of(
    tables: Mapping[str, Table],
    names: Sequence[str],
    response: str,
    family: str | None,
    event: str | None,
    references: Mapping[str, str],
    levels: Mapping[str, tuple[str, ...]],
) -> Outcome:
    """Return the response, with its columns checked and its family chosen.

    The arguments are as of `consortia.study.proposal.propose`.
    """
    like = [name for name in names if loosely(name) == loosely(response)]
    if response not in names and len(like) == 1:
        (response,) = like
    arithmetic = "(" in response and response not in names
    parsed = parse((response if arithmetic else in_formula(response)) + " ~ 1")
    for name in parsed.response_columns:
        if name not in names:
            raise InputError(f"the response {name!r} is not a column: {unknown(name, names)}.")
        chosen = event is not None and name == parsed.response[-1].column
        _check_everywhere(SiteColumns.of(tables, name), one_kind=not chosen)
    if family is not None:
        family_of(family)
    if event is not None and not parsed.survival:
        raise InputError("--event VALUE needs --response 'Surv(time, event)'.")
    if parsed.survival:
        left, seen, notes = _event_of(tables, response, parsed.response[1], event)
        why = f"A time to an event{seen}: hazard ratios, with a baseline for each site."
        outcome = Outcome(left, parsed.response_columns, "cox", why, {}, notes)
    elif arithmetic:
        why = f"{response} is an expression: a number."
        outcome = Outcome(response, parsed.response_columns, "gaussian", why)
    else:
        (name,) = parsed.response_columns
        choice = references.get(name), levels.get(name, ())
        outcome = _of_column(SiteColumns.of(tables, name), family, *choice)
    if family is not None and family != outcome.family:
        _check_family(tables, family, outcome.columns, survival=parsed.survival)
        outcome = outcome._replace(family=family, why=f"Family {family}, as given.")
    return outcome


def _check_everywhere(column: SiteColumns, *, one_kind: bool) -> None:
    """Refuse a response that a site lacks or has no value of, or that is not of ``one_kind``."""
    name, kinds = column.name, column.sites_of_kinds
    if column.lacking:
        raise InputError(
            f"the response {name!r} is missing at {listed(column.lacking)}: list only sites that "
            f"have it; or, where it has another name, write {mend(column.lacking[0], 'rename', '')}"
            f"NAME = {text(name)} into a file, and give it by --changes."
        )
    empty = [site for site, at_site in column.by_site.items() if at_site.kind == "empty"]
    if empty:
        raise InputError(f"the response {name!r} has no value at {listed(empty)}: all are missing.")
    for site, at_site in column.by_site.items():
        if at_site.doubt:
            raise InputError(f"the response {name!r} at {site}: {at_site.doubt}.")
    if one_kind and len(kinds) > 1:
        of_sites = ", ".join(f"{kind} at {site}" for kind, site in kinds.items())
        table = mend([*kinds.values()][-1], f"recode.{key(name)}", "")
        raise InputError(
            f"the response {name!r} has different types: {of_sites}: code it in the same way "
            f'everywhere, or write {table}"VALUE" = "NEW VALUE" into a file for --changes.'
        )


def _check_family(
    tables: Mapping[str, Table], family: str, columns: Sequence[str], *, survival: bool
) -> None:
    """Refuse a family that the response cannot be of."""
    of_time = FAMILIES[family].response == "time"
    if of_time != survival:
        wanted = "a response Surv(time, event)" if of_time else "a response of one column"
        raise InputError(
            f"family {family!r} needs {wanted}: omit --family, or give such a response."
        ).at("family")
    if of_time or FAMILIES[family].response in ("two", "ordered", "levels"):
        return
    for name in columns:
        if SiteColumns.of(tables, name).kind == "text":
            raise InputError(
                f"the response {name!r} holds strings, but family {family!r} needs numbers: omit "
                "--family, or encode the column."
            )


# --- one column ----------------------------------------------------------------------------------


def _of_column(
    column: SiteColumns, family: str | None, reference: str | None, order: tuple[str, ...]
) -> Outcome:
    """Return a response that is one column, with the family that its values suggest."""
    name, kind, counts = column.name, column.kind, column.counts
    left, levels = in_formula(name), sorted(counts)
    if len(levels) == 1:
        raise InputError(f"the response {name!r} is {levels[0]!r} in every row: nothing to model.")
    if kind == "date":
        raise InputError(f"the response {name!r} holds dates: give a number of days instead.")
    declared = all(at_site.ordered for at_site in column.by_site.values())
    asked = None if family is None else FAMILIES[family].response
    if asked == "ordered" or (asked is None and len(levels) > 2 and (order or declared)):
        if kind == "text" and not order and not declared:
            raise InputError(
                f"the response {name!r} holds text ({', '.join(levels)}), whose order is "
                f"unknown: give --levels {name}=LOWEST,...,HIGHEST."
            ).at("levels")
        first = next(iter(column.by_site.values()))
        shown = order or (first.order if declared else tuple(counts))
        why = f"{name} is ordered, {' < '.join(shown)}: odds ratios of a higher level."
        return Outcome(left, (name,), "ordinal", why, {name: order} if order else {})
    if order:
        reference = order[0]
    if kind in ("text", "truth") and len(levels) == 2 and asked in (None, "two"):
        pair: tuple[str, ...] = ()
        if reference is not None:
            pair = column.against(reference)
        elif kind == "text" and [truth_of(level) for level in levels] == [True, False]:
            pair = (levels[1], levels[0])  # where the word for yes is first in the alphabet
        no, yes = pair or levels
        why = (
            f"{name} is {no!r} or {yes!r}, and {yes!r} is the event, in "
            f"{_share(counts, yes)}: odds ratios. To reverse this: --reference {name}={yes}."
        )
        return Outcome(left, (name,), "bernoulli", why, {name: pair} if pair else {})
    if asked == "levels" or kind == "text":
        if len(levels) > LEVELS_MAX and asked is None:
            raise InputError(
                f"the response {name!r} holds {len(levels)} different strings: a response must "
                f"be a number, yes or no, or one of at most {LEVELS_MAX} levels."
            )
        doubtful = same_loosely(counts) or nearly_equal(name, column.levels)
        made = _against_one(name, counts, reference, order)
        return made._replace(levels={}) if doubtful and not order and not reference else made
    values = np.unique(column.numbers)
    if values.tolist() == [0, 1]:
        why = f"{name} is 0 or 1, 1 in {_share(counts, '1')}: odds ratios."
        return Outcome(left, (name,), "bernoulli", why)
    if len(values) == 2 and family is None:
        low, high = values
        why = f"{name} is {low:g} or {high:g}; {high:g} is the event."
        return Outcome(f"I({left} > {low:g})", (name,), "bernoulli", why)
    if values[0] == 0 and bool((values == np.round(values)).all()):
        why = f"{name} is a count: rate ratios."
        return Outcome(left, (name,), "negative_binomial", why)
    why = f"{name} is a number: differences, in its unit."
    return Outcome(left, (name,), "gaussian", why)


def _share(counts: Mapping[str, int], level: str) -> str:
    return f"{counts.get(level, 0):,} of {sum(counts.values()):,} rows"


def _against_one(
    name: str, counts: Mapping[str, int], reference: str | None, order: tuple[str, ...]
) -> Outcome:
    """Return a response of several levels, against the most frequent or a chosen one."""
    most = max(sorted(counts), key=counts.__getitem__)
    base = most if reference is None else reference
    if base not in counts:
        raise wrong("reference", f" of {name!r}: {base!r} is {unknown(base, list(counts))}.")
    levels = order or (base, *(level for level in sorted(counts) if level != base))
    what = ", the most frequent" if base == most else ""
    why = (
        f"{name} has {len(counts)} levels, each against {base!r}{what} ({_share(counts, base)}). "
        f"To change it: --reference {name}=LEVEL; for ordered levels: --levels "
        f"{name}=LOWEST,...,HIGHEST."
    )
    return Outcome(in_formula(name), (name,), "categorical", why, {name: levels})


# --- a time to an event --------------------------------------------------------------------------


def _event_of(
    tables: Mapping[str, Table], response: str, event: Factor, value: str | None
) -> tuple[str, str, dict[str, str]]:
    """Return a response of a time with its event, what is said of it, and of each code."""
    name = event.column
    if name is None:
        if value is not None:
            raise InputError(f"--event {value}: the response already defines the event.")
        return response, "", _codes_said(tables, event)
    column = SiteColumns.of(tables, name)
    counts, kinds = column.counts, column.sites_of_kinds
    listed = ", ".join(f"{level} ({rows_text(rows)})" for level, rows in counts.items())
    if value is not None:
        made = _compared(column, value)
    elif "truth" in kinds:
        return response, "", _codes_said(tables, event)
    elif "text" in kinds:
        raise InputError(
            f"the event {name!r} holds strings ({', '.join(list(counts)[:4])}): {ASK} LEVEL. All "
            f"others are then censored: {listed}."
        )
    else:
        codes = np.unique(column.numbers).tolist()
        if codes in ([0.0, 1.0], [0.0], [1.0]):
            return response, "", _codes_said(tables, event)
        if len(codes) > 2:
            shown = ", ".join(f"{code:g}" for code in codes[:6])
            raise InputError(
                f"the event {name!r} has the codes {shown}: {ASK} CODE. All others are then "
                f"censored: {listed}."
            ).at("event")
        made = f"I({in_formula(name)} > {codes[0]:g})"
        value = f"{codes[1]:g}"
    left = f"{response.rpartition(',')[0]}, {made})"
    return (
        left,
        f", seen where {name} is {value}",
        _codes_said(tables, parse(f"{left} ~ 1").response[1]),
    )


def _compared(column: SiteColumns, value: str) -> str:
    """Return the expression that is true where a column has a value, in any writing of it."""
    name, by_site, every = column.name, column.levels, sorted(column.counts)
    writings = [level for level in every if _is_one_value(level, value)]
    if not writings:
        text = f"--event {value}: {name} has no such value: {unknown(value, every)}."
        raise InputError(text).at("event")
    having = {level for levels in by_site.values() if {*levels} & {*writings} for level in levels}
    for site, levels in by_site.items():
        other = [text for text in levels if not any(_is_one_value(text, two) for two in having)]
        if other:
            raise InputError(
                f"--event {value}: site {site!r} has no such value of {name}, but {other[0]!r}, "
                "which no site with the event has: recode it there, or omit --event."
            )
    if column.sites_of_kinds.keys() == {"number"}:
        return f"{in_formula(name)} == {float(value):g}"
    if column.sites_of_kinds.keys() == {"truth"}:
        return f"{in_formula(name)} == {truth_of(value)}"
    if len(writings) > 1:
        raise InputError(
            f"--event {value}: {name} has it as {', '.join(map(repr, writings))}: make these one "
            "value, by the proposed recoding or in the tables."
        )
    quote = "'" if "'" not in writings[0] else '"'
    return f"{in_formula(name)} == {quote}{writings[0]}{quote}"


def _is_one_value(first: str, other: str) -> bool:
    """Return True if two writings are of one number, one bool or one string."""
    if first == other or (truth_of(first) is not None and truth_of(first) == truth_of(other)):
        return True
    try:
        return float(first) == float(other)
    except ValueError:
        return False


def _codes_said(tables: Mapping[str, Table], event: Factor) -> dict[str, str]:
    """Return the meaning of each code of an event's only column, with its rows."""
    if len(event.columns) != 1:
        return {}
    (name,) = event.columns
    rows: Counter[tuple[str, float]] = Counter()
    for site, table in tables.items():
        values = event.values(table, f"site {site!r}")
        known = ~table[name].missing
        rows.update(
            zip(as_levels(table[name])[known].tolist(), values[known].tolist(), strict=True)
        )
    meant = {1.0: "the event", 0.0: "the end of follow-up"}
    return {
        name: "; ".join(
            f"code {code}: {value:g}, {meant.get(value, 'neither 0 nor 1')} ({rows_text(count)})"
            for (code, value), count in sorted(rows.items())
        )
    }
