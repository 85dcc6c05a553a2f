"""The specification that follows from the facts of all sites, or why they cannot agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from consortia.core.faults import Faults
from consortia.data.columns import Guess, TableFacts
from consortia.data.mending import key, mend
from consortia.data.mending import text as toml
from consortia.data.preparation import Moments, moments_of_all
from consortia.errors import InputError
from consortia.models.regression.formula import SITE, Factor
from consortia.models.regression.question import (
    EVENT,
    RESPONSE,
    TIME,
    WEIGHT,
    Question,
    in_order,
    is_levels,
    shared_levels,
)
from consortia.models.regression.specification import GAP, Specification, Unit
from consortia.models.regression.unlike import (
    Located,
    Place,
    check_writing,
    common_kind,
    merged_order,
    nearly_equal,
    scales_apart,
    supports_apart,
    without_common_levels,
)

INTERVALS = 5
"""Number of intervals of a piecewise constant hazard, when no breaks are given."""

LEVELS_NAMED = 8
"""So many levels at most are named for the sites that lack them."""

LEVELS_DOUBTED, LEVELS_REFUSED = 20, 1000
"""Above so many levels, if they are more than half as many as the rows, a column may be an
identifier; above so many it is refused: the square of its columns would be computed for nothing."""


def agree(
    question: Question,
    facts: Sequence[TableFacts],
    rows: Sequence[int],
    names: Sequence[str],
    breaks: Sequence[float] | None = None,
    located: Located | None = None,
) -> Specification:
    """Combine the facts of all sites and the numbers of rows that they keep.

    ``located`` says in which file and line a level is, where the rows are here.

    Raises:
        InputError: they cannot agree; the message names the sites.
    """
    kinds = common_kinds(question, facts, names, located)

    unit = partial(_unit, facts)
    units, levels, notes = _of_factors(question, facts, names, kinds, sum(rows))
    missing = {name: sum(one.missing[name] for one in facts) for name in question.columns}
    gaps = [
        name for name in question.parsed.columns if missing[name] and name not in question.always
    ]
    fills: dict[str, float] = {}
    if question.missing == "indicator":
        fills = _fill_gaps(question, facts, gaps, levels)
        units |= mark_units(fills, sum(rows))
        levels |= _mark_gaps(question, gaps, levels)
    imputed = {name: missing[name] for name in gaps} if question.imputes else {}
    notes += _of_imputation(question, imputed)
    levels |= _shared_groups(question, facts)
    if "weights" in question.extra:
        notes.append(_of_weights(question))
    if (cluster := question.parsed.cluster) is not None:
        notes.append(
            f"rows of one {cluster} are a cluster: the draws have the spread of a sandwich, as if "
            f"each {cluster}, not each row, were drawn independently; they are of no posterior"
        )
    if question.samples:
        units[WEIGHT] = unit(WEIGHT)
        if units[WEIGHT].mean <= 0:
            raise InputError("weights: they are 0 in all rows of all sites.")
    of_groups, doubted = _groups_of_sites(question, facts, names)
    notes += of_groups
    notes = [*_count_left_out(question.keep, facts, rows, names), *notes]
    if question.family.response == "time":
        units[TIME], units[EVENT] = unit(TIME), unit(EVENT)
        if not units[EVENT].mean:
            raise InputError(
                f"the event {question.parsed.response[1].text} is 0 in all rows of all sites: "
                "write which value is the event, as in Surv(time, status == 2)."
            )
    elif any(RESPONSE in one.levels for one in facts) or _given_response(question):
        levels[RESPONSE] = _response_levels(question, facts, names, kinds, notes)
    else:
        units[RESPONSE] = unit(RESPONSE)
    units |= {name: unit(name) for name in question.of_offset}
    cuts = breaks_of(question, breaks, units[TIME].mean if TIME in units else 1.0)
    readings = [*doubted, *(guess for one in facts for guess in one.guesses)]
    readings += _of_words(question, levels, kinds)
    readings += _apart(question, facts, names, kinds)
    made = Specification(
        question,
        tuple(names),
        tuple(rows),
        units,
        levels,
        fills,
        tuple(notes),
        cuts,
        imputed,
        tuple(readings),
    )
    if not made.has_intercept and question.family.response in ("ordered",):
        raise InputError("family 'ordinal' has thresholds in the place of an intercept: keep it.")
    return made


def _of_weights(question: Question) -> str:
    """Report on weights."""
    text = question.extra["weights"].text
    if question.samples:
        return (
            f"weights {text} are those of a sample, divided by their mean over all rows: "
            "coefficients maximise the weighted log-likelihood with the priors, and the draws have "
            "the spread of a sandwich, as if rows, or clusters of them, were drawn independently; "
            "they are of no posterior"
        )
    return (
        f"weights {text} are frequencies: they multiply the log-likelihood of rows, as if a row "
        "stood there so many times. Weights of a sample, or of a propensity score, would give "
        "intervals that are too narrow or too wide: give weights_are='sampling' for them"
    )


def _moments(facts: Sequence[TableFacts], name: str) -> Moments | None:
    """Return the moments of a column over all sites; None where no site has a value."""
    parts = [one.moments[name] for one in facts if name in one.moments]
    return moments_of_all(parts) if parts else None


def _unit(facts: Sequence[TableFacts], name: str) -> Unit:
    """Return the mean and the standard deviation of a column over all sites."""
    found = _moments(facts, name)
    if found is None:
        raise InputError(f"{name} has no value at any site.")
    sd = float(found.sd)
    return Unit(float(found.centre), sd if sd > 0 else 1.0, found.rows)


def _of_factors(
    question: Question,
    facts: Sequence[TableFacts],
    names: Sequence[str],
    kinds: Mapping[str, str],
    rows: int,
) -> tuple[dict[str, Unit], dict[str, tuple[str, ...]], list[str]]:
    """Return units and levels of the formula's factors, and notes on them."""
    units: dict[str, Unit] = {}
    levels: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    for text, factor in question.parsed.factors.items():
        if is_levels(factor, kinds):
            levels[text], remark = _levels_of(question, factor, facts, names, kinds, rows)
            notes += remark
            continue
        if factor.kind == "plain" and factor.column in question.levels:
            raise InputError(
                f"levels: the column {factor.column!r} holds numbers; write C({text}) in the "
                "formula for levels."
            )
        plain, moments = _unit(facts, text), _moments(facts, text)
        if moments is not None and bool(moments.constant) and factor.kind != "smooth":
            notes.append(
                f"{text} is the same in all rows: with an intercept, its coefficient is known from "
                "the prior only"
            )
        units |= units_of(factor, plain)
    return units, levels, notes


def units_of(factor: Factor, plain: Unit) -> dict[str, Unit]:
    """Return the units of a number, from that of the expression inside ``center`` or ``scale``.

    A factor that is centred or scaled has its own unit beside that of its column.
    """
    if factor.kind in ("plain", "smooth"):
        return {factor.text: plain}
    wide = np.sqrt(plain.rows / max(plain.rows - 1, 1))
    sd = plain.sd if factor.kind == "centre" else 1 / wide
    return {f"inside {factor.text}": plain, factor.text: Unit(0.0, float(sd), plain.rows)}


def mark_units(fills: Iterable[str], rows: int) -> dict[str, Unit]:
    """Return the units of the columns that mark missing numbers."""
    return {f"{GAP}({name})": Unit(0.0, 1.0, rows) for name in fills}


def _fill_gaps(
    question: Question,
    facts: Sequence[TableFacts],
    gaps: Sequence[str],
    levels: Mapping[str, tuple[str, ...]],
) -> dict[str, float]:
    """Return the mean over all rows of each number that misses somewhere."""
    factors = question.parsed.factors.items()
    numbers = {name for text, factor in factors if text not in levels for name in factor.columns}
    return {name: _unit(facts, f"column {name}").mean for name in gaps if name in numbers}


def _mark_gaps(
    question: Question, gaps: Sequence[str], levels: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return the levels of the factors that miss somewhere, with one for what misses."""
    return {
        text: (*levels[text], GAP)
        for text, factor in question.parsed.factors.items()
        if text in levels and factor.column in gaps and GAP not in levels[text]
    }


def _count_left_out(
    keep: Factor | None, facts: Sequence[TableFacts], rows: Sequence[int], names: Sequence[str]
) -> list[str]:
    """Return notes on the rows that are left out, if any are."""
    not_kept = {
        name: f"{name} {one.not_kept} of {one.not_kept + one.given}"
        for name, one in zip(names, facts, strict=True)
        if one.not_kept
    }
    notes = []
    if keep is not None and not_kept:
        total = sum(one.not_kept for one in facts)
        listed = ", ".join(not_kept.values())
        notes.append(f"{total} rows of which {keep.text} is not true are left out ({listed})")
    left_out = sum(one.given for one in facts) - sum(rows)
    if not left_out:
        return notes
    of = ", ".join(
        f"{name} {one.given - count} of {one.given}"
        for name, one, count in zip(names, facts, rows, strict=True)
        if one.given > count
    )
    return [*notes, f"{left_out} rows with missing values are left out ({of})"]


def _apart(
    question: Question, facts: Sequence[TableFacts], names: Sequence[str], kinds: Mapping[str, str]
) -> list[Guess]:
    """Return the guesses that only a comparison of the sites' numbers and levels shows."""
    measured = {text: one.column for text, one in question.parsed.factors.items() if one.column}
    first = question.parsed.response[0].column
    if first is not None:
        measured[TIME if question.family.response == "time" else RESPONSE] = first
    of_columns = {
        column: {
            name: Moments(*one.moments[text])
            for name, one in zip(names, facts, strict=True)
            if text in one.moments
        }
        for text, column in measured.items()
    }
    apart = scales_apart(of_columns, question.harmonise)
    readings = [one.guess for one in apart]
    others = {
        column: every
        for column, every in of_columns.items()
        if kinds[column] == "number" and column not in {one.column for one in apart}
    }
    readings += supports_apart(others, question.harmonise)
    for column, parts in levels_by_column(question, facts, names).items():
        if column not in question.levels:
            near = nearly_equal(column, parts)
            readings += near or without_common_levels(column, parts, names)
    return readings


def common_kinds(
    question: Question,
    facts: Sequence[TableFacts],
    names: Sequence[str],
    located: Located | None = None,
) -> dict[str, str]:
    """Return the kind of each column at all sites.

    Raises:
        InputError: sites write a column unlike; with all of them, and the lines that mend it.
    """
    where = located or (lambda place, column, level: Place(f"site {names[place]!r}", level))
    faults, kinds = Faults(), {SITE: "text"}
    levels = levels_by_column(question, facts, names)
    for name in question.columns:
        with faults.noted():
            kinds[name] = common_kind(name, facts, names, levels[name], where)
            if name not in question.levels:
                check_writing(name, levels[name], names, where)
    faults.check()
    return kinds


def levels_by_column(
    question: Question, facts: Sequence[TableFacts], names: Sequence[str]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the levels of each column that is used, by site."""
    levels: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in question.columns}
    for text, factor in [*question.parsed.factors.items(), (RESPONSE, question.parsed.response[0])]:
        if factor.column in levels:
            for name, one in zip(names, facts, strict=True):
                if text in one.levels:
                    levels[factor.column][name] = one.levels[text]
    return levels


def _shared_groups(question: Question, facts: Sequence[TableFacts]) -> dict[str, tuple[str, ...]]:
    """Return the labels of groups that are one set over all sites."""
    found = {}
    for group in question.parsed.groups:
        if not group.is_shared:
            continue
        name = shared_levels(group.by)
        every = {level for one in facts for level in one.levels.get(name, ())}
        labels = question.levels.get(group.by, in_order(sorted(every)))
        if not 2 <= len(labels) <= LEVELS_REFUSED:
            raise InputError(
                f"formula: {group.text}: {len(labels)} groups are known at the sites; from 2 to "
                f"{LEVELS_REFUSED} can be parameters of a run."
            )
        found[name] = labels
    return found


def _groups_of_sites(
    question: Question, facts: Sequence[TableFacts], names: Sequence[str]
) -> tuple[list[str], list[Guess]]:
    """Report on groups inside the sites, and on choices to be confirmed.

    Raises:
        InputError: a label is at two sites, and the formula does not say what that means.
    """
    notes, doubts = [], []
    groups = {one.by: one for one in question.parsed.groups if not one.is_shared}
    for by, group in groups.items():
        if by == SITE:
            if question.integrated and not question.stays(group):
                notes.append(
                    f"the levels of {SITE} are parameters of the run, which the server sees: "
                    "groups inside the sites are integrated out, and one kind can be"
                )
            continue
        sizes = [one.groups.get(by, (0, ())) for one in facts]
        counts = ", ".join(
            f"{name} {one[0] or '?'}" for name, one in zip(names, sizes, strict=True)
        )
        total = (
            "an unknown number of"
            if not all(one[0] for one in sizes)
            else sum(one[0] for one in sizes)
        )
        notes.append(f"{by}: {total} groups, each site's its own ({counts})")
        if group.kind == "own" or len(names) < 2:
            continue
        ways = (
            f"(1 | {SITE}:{by}) where the same label at two sites is of two groups, "
            f"(1 | shared({by})) where it is of one, whose label and effect the server then sees"
        )
        seen = Counter(label for _, digests in sizes for label in digests)
        both = sum(count > 1 for count in seen.values())
        if both:
            raise InputError(
                f"formula: {group.text}: {both} of the {len(seen)} labels of {by} are at more "
                f"than one site, and it is not said what that means. Write {ways}."
            )
        if not seen:
            remark = f"{by}: the labels of different sites were not compared, and are taken apart"
            doubts.append(Guess(by, remark, f"write {ways}"))
    return notes, doubts


def _of_words(
    question: Question, levels: Mapping[str, tuple[str, ...]], kinds: Mapping[str, str]
) -> list[Guess]:
    """Name the columns that became levels without ``C(...)`` because they hold words."""
    found = []
    for text, factor in question.parsed.factors.items():
        column = factor.column
        if text not in levels or factor.kind == "levels" or column in (None, SITE):
            continue
        count, first = len(levels[text]), levels[text][0]
        what = "words" if kinds[str(column)] == "text" else "True and False"
        found.append(
            Guess(str(column), f"{column} holds {what}: {count} levels, each against {first!r}")
        )
    return found


def _of_imputation(question: Question, imputed: Mapping[str, int]) -> list[str]:
    """Report on values that are imputed."""
    if not imputed:
        return []
    counts = ", ".join(f"{name} {count}" for name, count in imputed.items())
    notes = [
        f"values that miss ({counts}) are drawn {question.imputations} times, each at its site "
        f"given what is known there, with the seed {question.imputation_seed}"
    ]
    bent = [
        ":".join(term)
        for term in question.parsed.terms
        for columns in [{one for text in term for one in question.parsed.factors[text].columns}]
        if columns & imputed.keys()
        and (len(term) > 1 or any(question.parsed.factors[text].is_curved for text in term))
    ]
    if bent:
        notes.append(
            f"{', '.join(bent)}: the imputation knows neither products nor curves, which draws "
            "their coefficients towards 0"
        )
    return notes


def _levels_of(
    question: Question,
    factor: Factor,
    facts: Sequence[TableFacts],
    names: Sequence[str],
    kinds: Mapping[str, str],
    rows: int,
) -> tuple[tuple[str, ...], list[str]]:
    """Return the levels of a factor, the reference first, and what is to be said of them."""
    text, column = factor.text, str(factor.column)
    notes: list[str] = []
    if column == SITE:
        levels = tuple(names)
    elif column in question.levels:
        levels = question.levels[column]
    else:
        parts = {
            name: set(one.levels.get(text, ())) for name, one in zip(names, facts, strict=True)
        }
        levels = _ordered(column, text, facts)
        if kinds[column] == "truth":
            levels = ("False", "True")
        if len(levels) > max(LEVELS_DOUBTED, rows / 2):
            counts = f"{text} has {len(levels)} levels in {rows} rows"
            if len(levels) > LEVELS_REFUSED:
                raise InputError(f"{counts}: it identifies rows. Leave it out of the formula.")
            notes.append(
                f"{counts}: leave it out if it identifies rows, or its coefficients are known "
                "from the prior only"
            )
        somewhere = []
        for one in levels:
            having = [name for name, found in parts.items() if one in found]
            lacking = [name for name in names if name not in having]
            if len(having) == 1 and len(names) > 2:
                somewhere.append(f"{column} = {one!r} is at site {having[0]!r} only")
            elif lacking and having:
                somewhere.append(f"{column} = {one!r} is not at {', '.join(map(repr, lacking))}")
        if len(somewhere) > LEVELS_NAMED:
            rest = f"{len(somewhere)} of the {len(levels)} levels of {column} are not at all sites"
            somewhere = [f"{rest}: {somewhere[0]}, for one"]
        notes += ["; ".join(somewhere)] if somewhere else []
    levels = against_reference(factor, levels)
    if len(levels) < 2:
        raise InputError(
            f"{text} has {f'the one level {levels[0]!r}' if levels else 'no level'} at all sites: "
            "leave it out of the formula."
        )
    return levels, notes


def against_reference(factor: Factor, levels: tuple[str, ...]) -> tuple[str, ...]:
    """Return levels with the reference first that a factor names.

    Raises:
        InputError: it is none of them.
    """
    reference = factor.reference
    if reference is None:
        return levels
    if reference not in levels:
        raise InputError(
            f"formula: {factor.text}: there is no level {reference!r}; there are "
            f"{', '.join(levels)}."
        )
    return (reference, *(one for one in levels if one != reference))


def _ordered(column: str, text: str, facts: Sequence[TableFacts]) -> tuple[str, ...]:
    """Return the levels of all sites, in the order that is declared, or else in `in_order`."""
    every = in_order(sorted({level for one in facts for level in one.levels.get(text, ())}))
    declared = [one.levels[text] for one in facts if column in one.declared and text in one.levels]
    return merged_order(column, declared, every) if declared else every


def _given_response(question: Question) -> bool:
    """Return True if the levels of the response are given."""
    column = question.parsed.response[0].column
    return question.family.response in ("two", "ordered", "levels") and column in question.levels


def _response_levels(
    question: Question,
    facts: Sequence[TableFacts],
    names: Sequence[str],
    kinds: Mapping[str, str],
    notes: list[str],
) -> tuple[str, ...]:
    column = str(question.parsed.response[0].column)
    given = question.levels.get(column)
    declared = all(one.declared.get(column) for one in facts)
    ordered = question.family.response == "ordered"
    if given is None and ordered and kinds[column] == "text" and not declared:
        raise InputError(
            f"the response {column!r} holds strings, whose order is not known: give "
            f"levels={{{column!r}: [lowest, ..., highest]}}."
        )
    parts = [set(one.levels.get(RESPONSE, ())) for one in facts]
    found = _ordered(column, RESPONSE, facts)
    if kinds[column] == "truth":
        found = ("False", "True")
    levels = found if given is None else given
    least = 3 if question.family.response == "ordered" else 2
    if len(levels) < least or (question.family.response == "two" and len(levels) > 2):
        only = {
            name: sorted(own - set().union(*(one for one in parts if one is not own)))
            for name, own in zip(names, parts, strict=True)
            if len(names) > 1
        }
        alone = "".join(
            f"; {', '.join(map(repr, those))} at site {name!r} only"
            for name, those in only.items()
            if those
        )
        if alone:
            site, word = next((name, those[0]) for name, those in only.items() if those)
            other = next((one for one in levels if one not in only[site]), word)
            line = mend(site, f"recode.{key(column)}", f"{toml(word)} = {toml(other)}")
            alone += f"; make words for one thing one, as in {line}"
        count = {"two": "two", "ordered": "three or more"}.get(question.family.response, "several")
        raise InputError(
            f"the response {column!r} has the levels {', '.join(levels)}: family "
            f"{question.family.name} takes {count}{alone}."
        )
    if question.family.response == "two":
        notes.append(f"the event is {column} = {levels[1]!r}")
    elif question.family.response == "levels":
        notes.append(f"coefficients are against {column} = {levels[0]!r}")
    return levels


def breaks_of(question: Question, given: Sequence[float] | None, mean: float) -> tuple[float, ...]:
    """Return the times of the hazard's changes: as given, or equal shares of a constant one."""
    if question.family.name != "piecewise_exponential":
        if given is not None:
            raise InputError("breaks are for family='piecewise_exponential'.")
        return ()
    if given is None:
        shares = np.arange(1, INTERVALS) / INTERVALS
        return tuple(float(value) for value in -np.log1p(-shares) * mean)
    cuts = tuple(float(value) for value in given)
    if not cuts or min(cuts) <= 0 or list(cuts) != sorted(set(cuts)):
        raise InputError(f"breaks are {list(given)}: give times > 0 that increase.")
    return cuts
