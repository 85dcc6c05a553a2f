"""A first study of tables that somebody has: which columns can be used, and a formula of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from consortia.core.arguments import one_of, unknown
from consortia.core.printable import is_printable, printable
from consortia.data.columns import POLICIES, Column, Table, as_levels, rows_of
from consortia.data.mending import in_formula, key
from consortia.data.writing import loosely, truth_of
from consortia.errors import InputError
from consortia.models.regression.families import ALIASES, FAMILIES
from consortia.models.regression.formula import SITE, parse

EXACT, HIERARCHICAL = "few_rounds", "federated_hmc"
"""The algorithms; a spread of effects by site has tails that few proposals of the first reach."""

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
"""Distinct integers up to which they may stand for levels."""

NESTED = 3
"""So many words a site, none of which is at another site, may name wards."""

SITES_MAX = 8
"""With more sites their levels are partially pooled."""


@dataclass(frozen=True)
class Used:
    """A column of the formula."""

    name: str  # of the column
    what: str  # what it holds, in words
    missing: tuple[int, ...]  # how many values miss at each site
    note: str = ""  # what the user should look at, or ""


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
            lines += ["#", "# Left out of the formula:"]
            lines += [f"#   {name}: {printable(reason)}" for name, reason in self.left_out]
        if noted := [(one.name, one.note) for one in self.used if one.note]:
            lines += [
                "#",
                "# Look at:",
                *(printable(f"#   {name}: {note}") for name, note in noted),
            ]
        if doubts:
            lines += ["#", "# To be confirmed:", *(f"#   {printable(one)}" for one in doubts)]
        listed = ",\n".join(f"  {_text(file)}" for file in files)
        lines += ["", f"title = {_text(title)}", "", "# Each site has one of these files."]
        lines += ["[data]", f"files = [\n{listed},\n]", *harmonise]
        lines += ["", f"# {printable(self.why)}", "[model]"]
        lines += [f"formula = {_text(self.formula)}", f"family = {_text(self.family)}"]
        if self.trials is not None:
            lines.append(f"trials = {_text(in_formula(self.trials))}")
        if self.missing != POLICIES[0]:
            lines.append(f"missing = {_text(self.missing)}")
        if self.levels:
            given = [f"{key(name)} = {_list(found)}" for name, found in self.levels.items()]
            lines.append(f"levels = {{ {', '.join(given)} }} # the first is the reference")
        if self.integrate:
            lines.append("integrate = true # what a site adds of its own stays there")
        if self.by_site is not None and FAMILIES[self.family].effect is not None:
            lines.append(
                'prior = { sd = "half_normal(1)" } # of a few sites: effects a factor of e apart'
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
    group: str | None = None,
    trials: str | None = None,
) -> Proposal:
    """Return a study of all columns that can be used, and why the others cannot.

    Left out are columns that tell rows apart, dates, strings of many levels, columns of one value,
    those that say what another says, and those that a site lacks.

    Args:
        tables: of each site, by its name.
        response: a column, or ``Surv(time, event)``.
        family: of the response; by what it holds when None.
        missing: the policy; ``"complete"`` where values miss, when None.
        drop: columns that are to be left out.
        by_site: a column whose effect is wanted for each site, around a common one.
        references: level that the others of a column are against; the first in alphabetical order
            for columns that are not named.
        group: a column whose values several rows share, a patient or a ward, for levels of it.
        trials: of family binomial, the column of how many could have been.

    Raises:
        InputError: a column or a level is unknown (with the nearest), or the response is none.
    """
    names, chosen = _names(tables), references or {}
    named = [one for one in (by_site, group, trials) if one is not None]
    for name in [*drop, *named, *chosen]:
        if name not in names:
            raise InputError(f"unknown column {name!r}: {unknown(name, names)}.")
    outcome = _outcome(tables, names, response, family)
    family, of_response = outcome.family, outcome.columns
    if ((family or "").startswith("binomial")) != (trials is not None):
        raise InputError("--family binomial and --trials COLUMN go together: give both.")
    candidates = [name for name in names if name not in (*of_response, group, trials)]
    used, left_out = _covariates(
        tables, candidates, of_response, drop=drop, by_site=by_site, chosen=chosen
    )
    levels = {name: _referred(tables, name, level) for name, level in chosen.items()}
    of_words = family == "bernoulli" and not outcome.arithmetic
    if of_words and (pair := _no_and_yes(tables, of_response[0])):
        levels = {of_response[0]: pair, **levels}
    unused = [name for name in chosen if name not in [one.name for one in used]]
    if unused:
        raise InputError(f"reference of {unused[0]!r}: the formula has no such term.")
    beside = [one for one in (group, trials) if one is not None]
    responses = [_used(tables, name, response=True) for name in (*of_response, *beside)]
    every = [*responses, *used]
    gaps = any(sum(one.missing) for one in every)
    policy = missing or ("complete" if gaps else "refuse")
    one_of("missing", policy, POLICIES)
    terms, integrate, grouped = _terms(
        tables, used, family, policy, by_site=by_site, group=group, survival=len(of_response) > 1
    )
    return Proposal(
        formula=f"{outcome.left} ~ {' + '.join(terms) or '1'}",
        family=family,
        why=outcome.why,
        missing=policy,
        integrate=integrate,
        algorithm=HIERARCHICAL if grouped and not integrate else EXACT,
        sites=tuple(tables),
        rows=tuple(rows_of(table) for table in tables.values()),
        complete=_complete_rows(tables, every, policy),
        used=tuple(every),
        left_out=tuple(left_out),
        by_site=by_site,
        levels=levels,
        trials=trials,
    )


class Outcome(NamedTuple):
    """The response of a formula, and its family."""

    left: str  # side of the formula
    columns: tuple[str, ...]  # of the response
    arithmetic: bool  # it is computed from them
    family: str  # chosen, or found from the values
    why: str  # it is this family, in a sentence


def _outcome(
    tables: Mapping[str, Table], names: Sequence[str], response: str, family: str | None
) -> Outcome:
    """Return the response, with its columns checked and its family chosen."""
    like = [name for name in names if loosely(name) == loosely(response)]
    if response not in names and len(like) == 1:
        (response,) = like
    arithmetic = "(" in response and response not in names
    left = (response if arithmetic else in_formula(response)) + " ~ 1"
    columns = parse(left).response_columns
    for name in columns:
        if name not in names:
            raise InputError(f"the response {name!r} is not a column: {unknown(name, names)}.")
        _check_everywhere(tables, name)
    if family in ALIASES:
        raise InputError(f"family {family!r}: it is called {ALIASES[family]!r} here.")
    if family is not None and family not in FAMILIES:
        raise InputError(f"family is {family!r}: {unknown(family, FAMILIES)}.")
    outcome, guessed, why = _of_response(
        tables, response if arithmetic else "", columns, given=family is not None
    )
    if family is not None and family != guessed:
        _check_family(tables, family, columns)
        why = f"Family {family}, as you chose."
    return Outcome(outcome, columns, arithmetic, family or guessed, why)


def _covariates(
    tables: Mapping[str, Table],
    candidates: Sequence[str],
    of_response: Sequence[str],
    *,
    drop: Sequence[str],
    by_site: str | None,
    chosen: Mapping[str, str],
) -> tuple[list[Used], list[tuple[str, str]]]:
    """Return the columns that can be used, and the others with the reason."""
    used: list[Used] = []
    left_out: list[tuple[str, str]] = []
    for name in candidates:
        reason = "you left it out" if name in drop else _reason(tables, name)
        # A column that somebody named is wanted, even if it repeats another one.
        if not reason and name != by_site and name not in chosen:
            reason = _repeats(tables, name, [*of_response, *(one.name for one in used)])
        if reason:
            left_out.append((printable(name), reason))
        else:
            used.append(_used(tables, name, reference=chosen.get(name)))
    if by_site is not None and by_site not in [one.name for one in used]:
        reason = "you left it out" if by_site in drop else _reason(tables, by_site)
        raise InputError(f"by site: {by_site!r} cannot be used: {reason}.")
    return used, left_out


def _terms(
    tables: Mapping[str, Table],
    used: Sequence[Used],
    family: str,
    policy: str,
    *,
    by_site: str | None,
    group: str | None,
    survival: bool,
) -> tuple[list[str], bool, bool]:
    """Return the terms, whether sites integrate theirs out, and whether these are hierarchical."""
    terms, integrate, grouped = [in_formula(one.name) for one in used], False, False
    if len(tables) > 1 and by_site is not None:
        terms.append(f"({in_formula(by_site)} || {SITE})")
        integrate, grouped = group is None and _can_stay(tables, by_site, family, policy), True
    elif len(tables) > SITES_MAX and not survival:
        terms.append(f"(1 | {SITE})")
        integrate, grouped = policy != "impute" and group is None, True
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
        site: int((~np.any([table[one.name].missing for one in every], axis=0)).sum())
        for site, table in tables.items()
    }
    if policy == "complete" and not all(complete.values()):
        site = next(site for site, count in complete.items() if not count)
        worst = max(every, key=lambda one: int(tables[site][one.name].missing.sum()))
        raise InputError(
            f"{site} has no complete row; of most rows {worst.name!r} misses: leave it out (--drop "
            f"{worst.name}), or the site, or keep the rows with --missing indicator or impute."
        )
    return tuple(complete.values())


def _can_stay(tables: Mapping[str, Table], name: str, family: str, policy: str) -> bool:
    """Return True if a level and the slope of a column can be integrated out at the sites."""
    of = FAMILIES[family]
    kinds = {column.kind for column in _columns(tables, name).values()}
    levels = {level for own in _levels(tables, name).values() for level in own}
    one = not kinds & {"text", "truth"} or len(levels) == 2
    return one and policy != "impute" and of.of_site is None and of.response != "levels"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _names(tables: Mapping[str, Table]) -> list[str]:
    """Return all columns of all sites, in order."""
    return list(dict.fromkeys(name for table in tables.values() for name in table))


# --- one column at all sites ---------------------------------------------------------------------


def _columns(tables: Mapping[str, Table], name: str) -> dict[str, Column]:
    """Return a column of the sites that have it."""
    return {site: table[name] for site, table in tables.items() if name in table}


def _levels(tables: Mapping[str, Table], name: str) -> dict[str, list[str]]:
    """Return the distinct values of a column at each site."""
    return {
        site: np.unique(as_levels(column)[~column.missing]).tolist()
        for site, column in _columns(tables, name).items()
    }


def _referred(tables: Mapping[str, Table], name: str, reference: str) -> tuple[str, ...]:
    """Return the levels of a column of strings, the reference first."""
    if any(column.kind not in ("text", "truth") for column in _columns(tables, name).values()):
        raise InputError(f"reference of {name!r}: it holds no strings, so it has no levels.")
    levels = sorted({level for found in _levels(tables, name).values() for level in found})
    if reference not in levels:
        raise InputError(f"reference of {name!r}: {reference!r} is {unknown(reference, levels)}.")
    return (reference, *(level for level in levels if level != reference))


def _known(tables: Mapping[str, Table], name: str) -> np.ndarray:
    """Return all numbers of a column that do not miss."""
    return np.concatenate(
        [column.values[~column.missing] for column in _columns(tables, name).values()]
    )


def _listed(sites: Sequence[str]) -> str:
    return ", ".join(sites[:4]) + (f" and {len(sites) - 4} more" if len(sites) > 4 else "")


def _check_everywhere(tables: Mapping[str, Table], name: str) -> None:
    """Refuse a response that a site lacks, or has no value of, or that is of two kinds."""
    found = _columns(tables, name)
    lacking = [site for site in tables if site not in found]
    if lacking:
        raise InputError(
            f"the response {name!r} is missing at {_listed(lacking)}: give the sites that have "
            "it, or give it one name everywhere."
        )
    empty = [site for site, column in found.items() if column.kind == "empty"]
    if empty:
        raise InputError(f"the response {name!r} has no value at {_listed(empty)}: all miss.")
    for site, column in found.items():
        if column.doubt:
            raise InputError(f"the response {name!r} at {site}: {column.doubt}.")
    kinds = {column.kind: site for site, column in found.items()}
    if len(kinds) > 1:
        listed = ", ".join(f"{kind} at {site}" for kind, site in kinds.items())
        raise InputError(
            f"the response {name!r} is of different kinds: {listed}: code it in one way."
        )


def _check_family(tables: Mapping[str, Table], family: str, columns: Sequence[str]) -> None:
    """Refuse a family that the response cannot be of."""
    of_time, survival = FAMILIES[family].response == "time", len(columns) > 1
    if of_time != survival:
        wanted = "a response Surv(time, event)" if of_time else "a response of one column"
        raise InputError(f"family {family!r} needs {wanted}: leave --family out, or give it.")
    if of_time or FAMILIES[family].response in ("two", "ordered", "levels"):
        return
    for name in columns:
        if next(iter(_columns(tables, name).values())).kind == "text":
            raise InputError(
                f"the response {name!r} holds strings, and family {family!r} is of numbers: leave "
                "--family out, or encode the column."
            )


def _of_response(
    tables: Mapping[str, Table], response: str, columns: Sequence[str], *, given: bool
) -> tuple[str, str, str]:
    """Return the left side of the formula, the family, and why it is this one."""
    if len(columns) > 1:
        left, said = _event_of(tables, response, columns)
        return left, "cox", f"A time to an event{said}: hazard ratios, a baseline of each site."
    (name,) = columns
    if response:
        return response, "gaussian", f"{response} is arithmetic: a number."
    column, outcome = next(iter(_columns(tables, name).values())), in_formula(name)
    levels = sorted({one for found in _levels(tables, name).values() for one in found})
    if len(levels) == 1:
        raise InputError(f"the response {name!r} is {levels[0]!r} in every row: nothing to model.")
    if column.kind == "text":
        if len(levels) == 2:
            return outcome, "bernoulli", _event(name, *(_no_and_yes(tables, name) or levels))
        if len(levels) <= LEVELS_MAX or given:
            return (
                outcome,
                "categorical",
                f"{name} has {len(levels)} levels, each against {levels[0]!r}; of ordered ones: "
                f'family = "ordinal" and levels = {{ {key(name)} = [...] }}.',
            )
        raise InputError(
            f"the response {name!r} holds {len(levels)} different strings: a response is a "
            f"number, yes or no, or one of at most {LEVELS_MAX} levels."
        )
    if column.kind == "truth":
        return outcome, "bernoulli", _event(name, *levels)
    if column.kind == "date":
        raise InputError(f"the response {name!r} holds dates: give a number of days instead.")
    values = np.unique(_known(tables, name))
    if values.tolist() == [0, 1]:
        return outcome, "bernoulli", f"{name} is 0 or 1: odds ratios."
    if len(values) == 2 and not given:
        low, high = values
        event = f"I({outcome} > {low:g})"
        return event, "bernoulli", f"{name} is {low:g} or {high:g}; {high:g} is the event."
    if values[0] == 0 and bool((values == np.round(values)).all()):
        return outcome, "negative_binomial", f"{name} is an integer from 0 on: rate ratios."
    return outcome, "gaussian", f"{name} is a number: differences, in its units."


def _event_of(
    tables: Mapping[str, Table], response: str, columns: Sequence[str]
) -> tuple[str, str]:
    """Return a response of a time with an event of 0 and 1, and what is said of it."""
    event = columns[-1]
    found = _columns(tables, event)
    if "I(" in response or any(column.kind == "truth" for column in found.values()):
        return response, ""
    levels = sorted({one for own in _levels(tables, event).values() for one in own})
    if any(column.kind == "text" for column in found.values()):
        words = ", ".join(levels[:4])
        raise InputError(
            f"the event {event!r} holds strings ({words}): say which is the event: --event LEVEL."
        )
    codes = np.unique(_known(tables, event)).tolist()
    if codes in ([0.0, 1.0], [0.0], [1.0]):
        return response, ""
    if len(codes) == 2:
        low, high = codes
        time = response.rpartition(",")[0]
        return f"{time}, I({in_formula(event)} > {low:g}))", f", seen where {event} is {high:g}"
    listed = ", ".join(f"{code:g}" for code in codes[:6])
    raise InputError(
        f"the event {event!r} has the codes {listed}: say which is the event: --event CODE, or "
        f"Surv(..., I({in_formula(event)} > {codes[0]:g})) for all but {codes[0]:g}."
    )


def _no_and_yes(tables: Mapping[str, Table], name: str) -> tuple[str, ...]:
    """Return the words for no and yes of a column of them, where yes is first in the alphabet."""
    if any(column.kind != "text" for column in _columns(tables, name).values()):
        return ()
    words = sorted({one for found in _levels(tables, name).values() for one in found})
    if [truth_of(one) for one in words] != [True, False]:
        return ()
    return tuple(reversed(words))


def _event(name: str, other: str, event: str) -> str:
    return (
        f"{name} is {other!r} or {event!r}, and {event!r} is the event: odds ratios. The other way "
        f'about: levels = {{ {key(name)} = ["{event}", "{other}"] }}.'
    )


def _reason(tables: Mapping[str, Table], name: str) -> str:
    """Return why a column cannot be a term; "" where it can."""
    found = _columns(tables, name)
    if name == SITE:
        return f"the sites' names are a column {SITE} already"
    if "`" in name or not is_printable(name):
        return "a formula cannot write its name"
    if len(found) < len(tables):
        lacking = [site for site in tables if site not in found]
        if len(found) == 1 < len(tables):
            return f"only {next(iter(found))} has it"
        return f"{_listed(lacking)} {'has' if len(lacking) == 1 else 'have'} none"
    empty = [site for site, column in found.items() if column.kind == "empty"]
    if empty:
        return f"no value at {_listed(empty)}"
    for site, column in found.items():
        if column.doubt:
            return f"at {site} {column.doubt}"
    kinds = {column.kind: site for site, column in found.items()}
    if len(kinds) > 1:
        return "it is " + ", ".join(f"{kind} at {site}" for kind, site in kinds.items())
    rows = sum(len(column.values) for column in found.values())
    gaps = sum(int(column.missing.sum()) for column in found.values())
    if gaps > MISSING_MAX * rows:
        return f"{gaps} of {rows} values miss"
    by_site = _levels(tables, name)
    distinct = {level for levels in by_site.values() for level in levels}
    if len(distinct) == 1:
        return f"it is {next(iter(distinct))!r} in every row"
    kind = next(iter(kinds))
    if kind == "date":
        return "a date; written into the formula it is a number of days"
    if _tells_rows_apart(name, found, by_site, kind):
        return "it tells rows apart: an identifier"
    if repeated := _repeated(name, found, by_site, kind):
        return repeated
    if kind == "text" and len(distinct) > LEVELS_MAX:
        return f"a text of {len(distinct)} levels; write it in if each shall have an effect"
    return ""


def _repeats(tables: Mapping[str, Table], name: str, others: Sequence[str]) -> str:
    """Return that another column says the same in every row; "" where none does."""
    own = _columns(tables, name)
    for other in others:
        found = _columns(tables, other)
        gaps = [(own[site].missing, found[site].missing) for site in own]
        if all(np.array_equal(a, b) for a, b in gaps) and _alike(own, found):
            return f"{other} says the same in every row"
    return ""


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
    """Return that a column may name what several rows are of, a patient or a ward; or ""."""
    known = sum(int((~column.missing).sum()) for column in found.values())
    by_site = sum(map(len, levels.values()))
    distinct = {level for own in levels.values() for level in own}
    nested = kind == "text" and len(found) > 1 and len(distinct) == by_site >= NESTED * len(found)
    if (by_site <= LEVELS_MAX and not nested) or not REPEATED[0] <= known / by_site <= REPEATED[1]:
        return ""
    named = IDENTIFIER.search(name) is not None
    if kind != "text":
        values = [column.values[~column.missing] for column in found.values()]
        whole = all(bool((one == np.round(one)).all()) for one in values)
        if not whole or not (named or (len(distinct) == by_site and len(found) > 1)):
            return ""
    return (
        f"{by_site} values in {known} rows: are these rows of one patient or ward? --group "
        f"{name} writes (1 | {SITE}:{in_formula(name)})"
    )


def _used(
    tables: Mapping[str, Table],
    name: str,
    *,
    response: bool = False,
    reference: str | None = None,
) -> Used:
    """Return what is said of a column of the formula."""
    found, by_site = _columns(tables, name), _levels(tables, name)
    missing = tuple(int(column.missing.sum()) for column in found.values())
    kind = next(iter(found.values())).kind
    levels = sorted({level for own in by_site.values() for level in own})
    if kind in ("text", "truth"):
        what, note = f"{len(levels)} levels: {', '.join(levels)}", ""
        alone = [
            f"{level} at {owners[0]} only"
            for level in levels
            if len(owners := [site for site, own in by_site.items() if level in own])
            == 1
            < len(found)
        ]
        if response:
            return Used(name, what, missing)
        if alone:
            note = "; ".join(alone)
        return Used(name, f"{what}; the reference is {reference or levels[0]}", missing, note)
    values = _known(tables, name)
    what = f"number, {values.min():g} to {values.max():g}"
    note = ""
    whole = bool((values == np.round(values)).all())
    if not response and whole and 2 < len(levels) <= CODES_MAX:
        note = f"{len(levels)} integers, taken as a number; C({in_formula(name)}) makes levels"
    return Used(name, what, missing, note)
