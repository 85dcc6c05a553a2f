"""The specification that follows from the facts of all sites, or why they cannot agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from consortia.core.faults import Faults
from consortia.data.columns import Guess, TableFacts
from consortia.data.facts import SiteFacts, moments_over
from consortia.data.mending import joined, key, mend, rows_text
from consortia.data.mending import text as toml
from consortia.data.preparation import Moments
from consortia.errors import InputError, wrong
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
    facts: Sequence[SiteFacts],
    names: Sequence[str],
    breaks: Sequence[float] | None = None,
    located: Located | None = None,
) -> Specification:
    """Combine the facts of all sites.

    ``located`` says in which file and line a level is, where the rows are here.

    Raises:
        InputError: they cannot agree; the message names the sites.
    """
    tables = {name: site.table for name, site in zip(names, facts, strict=True) if site.table}
    if len(tables) < len(facts):
        raise InputError("a site gave no facts of its table: give all the same formula.")
    rows = {name: site.rows for name, site in zip(names, facts, strict=True)}
    return Answers(question, tables, moments_over(facts)).specification(rows, breaks, located)


def _of_weights(question: Question) -> str:
    """Report on weights."""
    text = question.extra["weights"].text
    if question.samples:
        return (
            f"weights {text} are those of a sample, divided by their mean over all rows: "
            "coefficients maximise the weighted log-likelihood with the priors, and the draws "
            "have the spread of a sandwich, as if rows, or clusters of them, were drawn "
            "independently; they are not from a posterior"
        )
    return (
        f"weights {text} are frequencies: they multiply the log-likelihood of rows, as if a row "
        "stood there so many times. Weights of a sample, or of a propensity score, would give "
        "intervals that are too narrow or too wide: give weights_are='sampling' for them"
    )


@dataclass(frozen=True)
class Answers:
    """The facts of all sites' tables, and the question that they answer."""

    question: Question
    facts: Mapping[str, TableFacts]  # by site
    moments: Mapping[str, Moments] = field(default_factory=dict)  # over all sites

    @cached_property
    def levels(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """The levels of each column that is used, by site."""
        levels: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in self.question.columns}
        parsed = self.question.parsed
        factors = {**parsed.factors, RESPONSE: parsed.response[0]}
        for text, factor in factors.items():
            if factor.column in levels:
                levels[factor.column] |= {
                    site: f.levels[text] for site, f in self.facts.items() if text in f.levels
                }
        return levels

    def kinds(self, located: Located | None = None) -> dict[str, str]:
        """Return the kind of each column at all sites.

        Raises:
            InputError: sites write a column unlike; with all of them, and the lines that mend it.
        """
        where = located or (lambda site, column, level: Place(f"site {site!r}", level))
        faults, kinds = Faults(), {SITE: "text"}
        for name in self.question.columns:
            with faults.noted(argument=name):
                kinds[name] = common_kind(name, self.facts, self.levels[name], where)
                if name not in self.question.levels:
                    check_writing(name, self.levels[name], where)
        faults.check()
        return kinds

    def specification(
        self, rows: Mapping[str, int], breaks: Sequence[float] | None, located: Located | None
    ) -> Specification:
        """Return the formula as all sites use it; ``rows`` are those that each keeps."""
        question, kinds = self.question, self.kinds(located)
        units, levels, notes = self._of_factors(kinds, sum(rows.values()))
        missing = {
            name: sum(facts.missing[name] for facts in self.facts.values())
            for name in question.columns
        }
        gaps = [
            name
            for name in question.parsed.columns
            if missing[name] and name not in question.always
        ]
        fills: dict[str, float] = {}
        if question.missing == "indicator":
            numbers = {
                name
                for text, factor in question.parsed.factors.items()
                if text not in levels
                for name in factor.columns
            }
            fills = {name: self._unit(f"column {name}").mean for name in gaps if name in numbers}
            units |= mark_units(fills, sum(rows.values()))
            levels |= {
                text: (*levels[text], GAP)
                for text, factor in question.parsed.factors.items()
                if text in levels and factor.column in gaps and GAP not in levels[text]
            }
        imputed = {name: missing[name] for name in gaps} if question.imputes else {}
        notes += _of_imputation(question, imputed)
        levels |= self._shared_groups()
        if "weights" in question.extra:
            notes.append(_of_weights(question))
        if (cluster := question.parsed.cluster) is not None:
            notes.append(
                f"rows of one {cluster} are a cluster: the draws have the spread of a sandwich, as "
                f"if each {cluster}, not each row, were drawn independently; they are not from a "
                "posterior"
            )
        if question.samples:
            units[WEIGHT] = self._unit(WEIGHT)
            if units[WEIGHT].mean <= 0:
                raise wrong("weights", ": they are 0 in all rows of all sites.")
        of_groups, doubted = self._groups_of_sites()
        notes = [*self.left_out(rows), *notes, *of_groups]
        named = question.names_levels or any(RESPONSE in f.levels for f in self.facts.values())
        if named:
            levels[RESPONSE] = self._response_levels(kinds, notes)
        measured = () if named else question.measured
        units |= {name: self._unit(name) for name in (*measured, *question.of_offset)}
        if EVENT in units and not units[EVENT].mean:
            raise InputError(
                f"the event {question.parsed.response[1].text} is 0 in all rows of all sites: "
                "write which value is the event, as in Surv(time, status == 2)."
            ).at("formula")
        made = Specification(
            question,
            tuple(self.facts),
            tuple(rows.values()),
            units,
            levels,
            fills,
            tuple(notes),
            breaks_of(question, breaks, units[TIME].mean if TIME in units else 1.0),
            imputed,
            (*doubted, *self._readings(levels, kinds)),
        )
        if not made.has_intercept and question.family.response == "ordered":
            raise wrong("family", " 'ordinal' has thresholds instead of an intercept: keep it.")
        return made

    def _unit(self, name: str) -> Unit:
        """Return the mean and the standard deviation of a column over all sites."""
        moments = self.moments.get(name)
        if moments is None:
            raise wrong(name, " has no value at any site.")
        sd = float(moments.sd)
        return Unit(float(moments.centre), sd if sd > 0 else 1.0, moments.rows)

    def _of_factors(
        self, kinds: Mapping[str, str], rows: int
    ) -> tuple[dict[str, Unit], dict[str, tuple[str, ...]], list[str]]:
        """Return units and levels of the formula's factors, and notes on them."""
        units: dict[str, Unit] = {}
        levels: dict[str, tuple[str, ...]] = {}
        notes: list[str] = []
        for text, factor in self.question.parsed.factors.items():
            if is_levels(factor, kinds):
                levels[text], remarks = self._levels_of(factor, kinds, rows)
                notes += remarks
                continue
            if factor.kind == "plain" and factor.column in self.question.levels:
                raise InputError(
                    f"levels: the column {factor.column!r} holds numbers; write C({text}) in the "
                    "formula for levels."
                ).at("levels")
            plain, moments = self._unit(text), self.moments.get(text)
            if moments is not None and bool(moments.constant) and factor.kind != "smooth":
                notes.append(
                    f"{text} is the same in all rows: with an intercept, its coefficient is known "
                    "from the prior only"
                )
            units |= units_of(factor, plain)
        return units, levels, notes

    def left_out(self, rows: Mapping[str, int]) -> list[str]:
        """Return notes on the rows that are left out, if any are; ``rows`` are those kept."""
        keep, facts = self.question.keep, self.facts.items()
        lost = {"with missing values": {s: (each.given - rows[s], each.given) for s, each in facts}}
        if keep is not None:
            away = {s: (each.not_kept, each.not_kept + each.given) for s, each in facts}
            lost = {f"of which {keep.text} is not true": away} | lost
        notes = []
        for why, counts in lost.items():
            counts = {site: count for site, count in counts.items() if count[0] > 0}
            of = ", ".join(f"{site} {count} of {given}" for site, (count, given) in counts.items())
            if counts:
                total = rows_text(sum(count for count, _ in counts.values()))
                notes.append(f"left out: {total} {why} ({of})")
        return notes

    def _readings(
        self, levels: Mapping[str, tuple[str, ...]], kinds: Mapping[str, str]
    ) -> list[Guess]:
        """Return the sites' guesses, and those that only a comparison of sites shows."""
        question, parsed = self.question, self.question.parsed
        readings = readings_of(self.facts)
        for text, factor in parsed.factors.items():  # levels without C(...)
            column = factor.column
            if text in levels and factor.kind != "levels" and column not in (None, SITE):
                count, first = len(levels[text]), levels[text][0]
                what = "words" if kinds[str(column)] == "text" else "True and False"
                sentence = f"{column} holds {what}: {count} levels, each against {first!r}"
                readings.append(Guess(str(column), sentence))
        measured = {text: factor.column for text, factor in parsed.factors.items() if factor.column}
        first_column = parsed.response[0].column
        if first_column is not None:
            measured[question.measured[0]] = first_column
        of_columns = {
            column: {
                site: Moments(*facts.moments[text])
                for site, facts in self.facts.items()
                if text in facts.moments
            }
            for text, column in measured.items()
        }
        apart = scales_apart(of_columns, question.harmonise)
        readings += [reading.guess for reading in apart]
        others = {
            column: every
            for column, every in of_columns.items()
            if kinds[column] == "number" and column not in {reading.column for reading in apart}
        }
        readings += supports_apart(others, question.harmonise)
        for column, by_site in self.levels.items():
            if column not in question.levels:
                near = nearly_equal(column, by_site)
                readings += near or without_common_levels(column, by_site, list(self.facts))
        return readings

    def _shared_groups(self) -> dict[str, tuple[str, ...]]:
        """Return the labels of groups that are one set over all sites."""
        labels_of = {}
        for group in self.question.parsed.groups:
            if not group.is_shared:
                continue
            name = shared_levels(group.by)
            labels = self.question.levels.get(group.by, self._every_level(name))
            if not 2 <= len(labels) <= LEVELS_REFUSED:
                raise InputError(
                    f"formula: {group.text}: {len(labels)} groups are known at the sites; from 2 "
                    f"to {LEVELS_REFUSED} can be parameters of a run."
                ).at("formula")
            labels_of[name] = labels
        return labels_of

    def _groups_of_sites(self) -> tuple[list[str], list[Guess]]:
        """Report on groups inside the sites, and on choices to be confirmed.

        Raises:
            InputError: a label is at two sites, and the formula does not say what that means.
        """
        notes, doubts = [], []
        groups = {term.by: term for term in self.question.parsed.groups if not term.is_shared}
        for by, group in groups.items():
            if by == SITE:
                if self.question.integrated and not self.question.stays(group):
                    notes.append(
                        f"the levels of {SITE} are parameters of the run, which the server sees: "
                        "groups inside the sites are integrated out, and one kind can be"
                    )
                continue
            sizes = {site: facts.groups.get(by, (0, ())) for site, facts in self.facts.items()}
            counts = ", ".join(f"{site} {count or '?'}" for site, (count, _) in sizes.items())
            known = all(count for count, _ in sizes.values())
            total = sum(count for count, _ in sizes.values()) if known else "an unknown number of"
            notes.append(f"{by}: {total} groups, each site's its own ({counts})")
            if group.kind == "own" or len(self.facts) < 2:
                continue
            ways = (
                f"(1 | {SITE}:{by}) where the same label at two sites is of two groups, "
                f"(1 | shared({by})) where it is of one, whose label and effect the server then "
                "sees"
            )
            seen = Counter(label for _, digests in sizes.values() for label in digests)
            both = sum(count > 1 for count in seen.values())
            if both:
                raise InputError(
                    f"formula: {group.text}: {both} of the {len(seen)} labels of {by} are at more "
                    f"than one site, and the formula does not say what that means. Write {ways}."
                ).at("formula")
            if not seen:
                remark = (
                    f"{by}: the labels of different sites were not compared, and are taken apart"
                )
                doubts.append(Guess(by, remark, f"write {ways}"))
        return notes, doubts

    def _every_level(self, text: str) -> tuple[str, ...]:
        return in_order(
            sorted({level for facts in self.facts.values() for level in facts.levels.get(text, ())})
        )

    def _ordered(self, column: str, text: str, kinds: Mapping[str, str]) -> tuple[str, ...]:
        """Return the levels of all sites, in the order that is declared, or else in `in_order`."""
        declared = [
            facts.levels[text]
            for facts in self.facts.values()
            if column in facts.declared and text in facts.levels
        ]
        every = self._every_level(text)
        if declared:
            every = merged_order(column, declared, every)
        return ("False", "True") if kinds[column] == "truth" else every

    def _levels_of(
        self, factor: Factor, kinds: Mapping[str, str], rows: int
    ) -> tuple[tuple[str, ...], list[str]]:
        """Return the levels of a factor, the reference first, and what is to be said of them."""
        text, column = factor.text, str(factor.column)
        notes: list[str] = []
        if column == SITE:
            levels = tuple(self.facts)
        elif column in self.question.levels:
            levels = self.question.levels[column]
        else:
            levels = self._ordered(column, text, kinds)
            if len(levels) > max(LEVELS_DOUBTED, rows / 2):
                counts = f"{text} has {len(levels)} levels in {rows} rows"
                if len(levels) > LEVELS_REFUSED:
                    raise InputError(f"{counts}: it identifies rows, leave it out.").at(column)
                notes.append(
                    f"{counts}: leave it out if it identifies rows, or its coefficients are known "
                    "from the prior only"
                )
            somewhere = []
            for level in levels:
                having = [s for s, f in self.facts.items() if level in f.levels.get(text, ())]
                lacking = [site for site in self.facts if site not in having]
                if len(having) == 1 and len(self.facts) > 2:
                    somewhere.append(f"{column} = {level!r} is at site {having[0]!r} only")
                elif lacking and having:
                    absent = ", ".join(map(repr, lacking))
                    somewhere.append(f"{column} = {level!r} is not at {absent}")
            if len(somewhere) > LEVELS_NAMED:
                rest = (
                    f"{len(somewhere)} of the {len(levels)} levels of {column} are not at all sites"
                )
                somewhere = [f"{rest}: {somewhere[0]}, for one"]
            notes += ["; ".join(somewhere)] if somewhere else []
        levels = against_reference(factor, levels)
        if len(levels) < 2:
            only = f"the one level {levels[0]!r}" if levels else "no level"
            raise InputError(f"{text} has {only} at all sites: leave it out.").at(column)
        return levels, notes

    def _response_levels(self, kinds: Mapping[str, str], notes: list[str]) -> tuple[str, ...]:
        family = self.question.family
        column = str(self.question.parsed.response[0].column)
        given = self.question.levels.get(column)
        ordered = family.response == "ordered"
        declared = all(facts.declared.get(column) for facts in self.facts.values())
        if given is None and ordered and kinds[column] == "text" and not declared:
            raise InputError(
                f"the response {column!r} holds strings, whose order is not known: give "
                f"levels={{{column!r}: [lowest, ..., highest]}}."
            ).at(column)
        levels = given or self._ordered(column, RESPONSE, kinds)
        least = 3 if ordered else 2
        if len(levels) < least or (family.response == "two" and len(levels) > 2):
            count = {"two": "two", "ordered": "three or more"}.get(family.response, "several")
            raise InputError(
                f"the response {column!r} has the levels {', '.join(levels)}: family "
                f"{family.name} takes {count}{self._alone(column, levels)}."
            )
        if family.response == "two":
            notes.append(f"the event is {column} = {levels[1]!r}")
        elif family.response == "levels":
            notes.append(f"coefficients are against {column} = {levels[0]!r}")
        return levels

    def _alone(self, column: str, levels: Sequence[str]) -> str:
        """Name levels of the response that one site alone has, and a line that recodes one."""
        parts = {site: set(facts.levels.get(RESPONSE, ())) for site, facts in self.facts.items()}
        only = {
            site: sorted(having - set().union(*(parts[other] for other in parts if other != site)))
            for site, having in parts.items()
        }
        only = {site: words for site, words in only.items() if words and len(parts) > 1}
        if not only:
            return ""
        alone = "".join(
            f"; {', '.join(map(repr, words))} at site {site!r} only" for site, words in only.items()
        )
        site, (word, *_) = next(iter(only.items()))
        other = next((level for level in levels if level not in only[site]), word)
        line = mend(site, f"recode.{key(column)}", f"{toml(word)} = {toml(other)}")
        return f"{alone}; merge words for the same thing, as in {line}"


def readings_of(tables: Mapping[str, TableFacts]) -> list[Guess]:
    """Return the sites' guesses, those of one meaning that nobody has to confirm as one."""
    guesses = [(site, guess) for site, facts in tables.items() for guess in facts.guesses]
    plain = ((site, guess.column, guess.text) for site, guess in guesses if not guess.confirm)
    return [
        *(Guess("", sentence) for sentence in joined(plain, list(tables))),
        *(guess for _, guess in guesses if guess.confirm),
    ]


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


def _of_imputation(question: Question, imputed: Mapping[str, int]) -> list[str]:
    """Report on values that are imputed."""
    if not imputed:
        return []
    counts = ", ".join(f"{name} {count}" for name, count in imputed.items())
    notes = [
        f"missing values ({counts}) are drawn {question.imputations} times, each at its site given "
        f"what is known there, with the seed {question.imputation_seed}"
    ]
    bent = [
        ":".join(term)
        for term in question.parsed.terms
        for columns in [{c for text in term for c in question.parsed.factors[text].columns}]
        if columns & imputed.keys()
        and (len(term) > 1 or any(question.parsed.factors[text].is_curved for text in term))
    ]
    if bent:
        notes.append(
            f"{', '.join(bent)}: the imputation ignores products and curves, which biases their "
            "coefficients towards 0"
        )
    return notes


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
        ).at("formula")
    return (reference, *(level for level in levels if level != reference))


def breaks_of(question: Question, given: Sequence[float] | None, mean: float) -> tuple[float, ...]:
    """Return the times of the hazard's changes: as given, or equal shares of a constant one."""
    if question.family.name != "piecewise_exponential":
        if given is not None:
            raise wrong("breaks", " are for family='piecewise_exponential'.")
        return ()
    if given is None:
        return tuple((-np.log1p(-np.arange(1, INTERVALS) / INTERVALS) * mean).tolist())
    cuts = tuple(float(value) for value in given)
    if not cuts or min(cuts) <= 0 or list(cuts) != sorted(set(cuts)):
        raise wrong("breaks", f" are {list(given)}: give times > 0 that increase.")
    return cuts
