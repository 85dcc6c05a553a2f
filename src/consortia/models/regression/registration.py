"""Levels and units of a formula that a study file states: a registered study.

Levels, centres and scales are coordinates and units of the model. Where they are stated, every
process has the specification of the formula at once, and a site tells nothing of its columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consortia.core.arguments import unknown
from consortia.core.faults import Faults
from consortia.core.printable import printable
from consortia.data.columns import Table, TableFacts, as_levels
from consortia.data.mending import key, mend, text
from consortia.data.preparation import Moments
from consortia.errors import InputError, located, wrong
from consortia.models.regression.agreement import against_reference, breaks_of, mark_units, units_of
from consortia.models.regression.earlier import Earlier
from consortia.models.regression.formula import SITE
from consortia.models.regression.question import (
    EVENT,
    RESPONSE,
    TIME,
    WEIGHT,
    Question,
    shared_levels,
)
from consortia.models.regression.specification import GAP, Specification, Unit
from consortia.models.regression.unlike import FACTOR, FAR, FEWEST, Place

UNKNOWN_ROWS = 2**53
"""Rows behind a registered centre and scale, where they are not stated: n - 1 is n."""

NOTE = "levels, centres and scales are those that the study registers"


@dataclass(frozen=True)
class Registration:
    """Levels and units that a study file states."""

    # by factor, the reference first; of the response under "response()"
    levels: Mapping[str, tuple[str, ...]]
    # centre and scale by expression, inside ``center`` and ``scale`` too
    numbers: Mapping[str, Unit]
    fills: Mapping[str, float]  # what stands for a missing number, by column
    earlier: Earlier | None = None  # an earlier posterior in these units, which is the prior
    # least and largest value of a column that the study takes for one
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, agreed: Specification) -> Registration:
        """Return the levels and units on which sites have agreed."""
        inside = {
            name: agreed.units.get(f"inside {name}", unit)
            for name, unit in agreed.units.items()
            if not name.startswith(("inside ", f"{GAP}("))
        }
        sites = {name for name, f in agreed.question.parsed.factors.items() if f.column == SITE}
        levels = {name: words for name, words in agreed.levels.items() if name not in sites}
        return cls(levels, inside, agreed.fills)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Registration:
        """Return the same from the plain values of a study file, or of a run's record."""
        numbers = {
            name: Unit(unit["centre"], unit["scale"], unit.get("rows", UNKNOWN_ROWS))
            for name, unit in plain["numbers"].items()
        }
        levels = {name: tuple(words) for name, words in plain["levels"].items()}
        earlier = Earlier.read(plain["prior_from"]) if "prior_from" in plain else None
        ranges = {name: (low, high) for name, (low, high) in plain.get("ranges", {}).items()}
        return cls(levels, numbers, dict(plain["fills"]), earlier, ranges)

    def plain(self) -> dict[str, Any]:
        """Return the table of a study file as plain values."""
        numbers = {
            name: {"centre": centre, "scale": scale}
            | ({} if rows == UNKNOWN_ROWS else {"rows": int(rows)})
            for name, (centre, scale, rows) in self.numbers.items()
        }
        levels = {name: list(words) for name, words in self.levels.items()}
        ranges = {"ranges": {name: [*ends] for name, ends in self.ranges.items()}}
        table: dict[str, Any] = {"levels": levels, "numbers": numbers}
        table |= (ranges if self.ranges else {}) | {"fills": dict(self.fills)}
        return table if self.earlier is None else table | {"prior_from": self.earlier.plain()}

    def toml(self) -> str:
        """Return the same as the text of a study file."""

        def written(value: Any) -> str:
            if isinstance(value, dict):
                return f"{{ {', '.join(f'{name} = {part!r}' for name, part in value.items())} }}"
            # JSON's strings, numbers and lists are TOML's
            return printable(json.dumps(value, ensure_ascii=False))

        lines = ["[registered]"]
        for head, table in self.plain().items():
            lines += [f"[registered.{head}]"] if table else []
            lines += [f"{key(name)} = {written(value)}" for name, value in table.items()]
        return "\n".join(lines) + "\n"

    def specification(
        self, question: Question, names: Sequence[str], breaks: Sequence[float] | None = None
    ) -> Specification:
        """Return the formula as all sites use it, as `agreement.agree` does from their facts.

        ``breaks`` are where a piecewise constant hazard may change.

        Raises:
            InputError: something is stated that the formula does not have, or not stated.
        """
        _check_question(question, names)
        self._check_stated(question)
        levels = {name: self._levels(question, name) for name in self._categorical(question)}
        units: dict[str, Unit] = {}
        for name, factor in question.parsed.factors.items():
            if factor.column == SITE:
                levels[name] = tuple(names)
            if name in levels:
                levels[name] = against_reference(factor, levels[name])
            else:
                units |= units_of(factor, self.numbers[name])
        rows = max((unit.rows for unit in self.numbers.values()), default=0)
        units |= mark_units(self.fills, rows)
        outside = [name for name in question.outside_terms if name in self.numbers]
        units |= {name: self.numbers[name] for name in outside}
        response = question.family.response
        if response == "two" and RESPONSE in levels and len(levels[RESPONSE]) > 2:
            raise InputError(
                f"registered.levels.response: family {question.family.name!r} takes two, not "
                f"{', '.join(levels[RESPONSE])}."
            ).at("registered.levels.response")
        cuts = breaks_of(question, breaks, units[TIME].mean if TIME in units else 1.0)
        order = dict.fromkeys([*question.parsed.factors, *_places(question)])
        ordered = {name: levels[name] for name in order if name in levels}
        return Specification(
            question, tuple(names), (), units, ordered, dict(self.fills), (NOTE,), cuts
        )

    # --- what must be stated ----------------------------------------------------------------------

    def _levels(self, question: Question, name: str) -> tuple[str, ...]:
        column = _column_of(question, name)
        return self.levels[name] if name in self.levels else question.levels[str(column)]

    def _categorical(self, question: Question) -> list[str]:
        """Return the names of the factors, groups and response that have levels."""
        names = [*self.levels]
        for name in _places(question):
            column = _column_of(question, name)
            if name not in names and column in question.levels and name not in self.numbers:
                names.append(name)
        return names

    @located(argument="registered")
    def _check_stated(self, question: Question) -> None:
        """Refuse what the formula does not have, and name all that is missing."""
        faults, places = Faults(), _places(question)
        for table, given in (("levels", self.levels), ("numbers", self.numbers)):
            for name in given:
                if name not in places:
                    faults.add(f"registered.{table}: {name!r} is {unknown(name, places)}.")
        for name, (low, high) in self.ranges.items():
            if name not in question.columns or low >= high:
                where = f"registered.ranges.{key(name)}"
                faults.take(wrong(where, ": give a column of the formula, and low < high."))
        faults.check()
        for name in self.fills:
            if question.missing != "indicator" or name not in question.parsed.columns:
                faults.add(
                    f"registered.fills: {name!r}: with model.missing = 'indicator' it is a column "
                    "of the formula; else leave it out."
                )
        categorical = self._categorical(question)
        for name, levels in self.levels.items():
            asked = question.levels.get(str(_column_of(question, name)))
            if asked is not None and set(asked) != {*levels} - {GAP}:
                faults.add(
                    f"registered.levels.{key(name)} are {', '.join(levels)}, and model.levels "
                    f"{', '.join(asked)}: give the same."
                )
        for name, wanted in places.items():
            number = f"registered.numbers.{key(name)} = {{ centre = ..., scale = ... }}"
            words = f"registered.levels.{key(name)} = [reference, ...]"
            if name in self.levels and name in self.numbers:
                faults.add(f"registered: {name} has levels and a scale: leave one of them out.")
            if name in categorical and wanted == "number":
                faults.add(f"registered.levels: {name} is a number: give {number}.")
            elif name in self.numbers and wanted == "levels":
                faults.add(f"registered.numbers: {name} has levels: give {words}.")
            elif name not in categorical and name not in self.numbers and wanted != "any":
                ways = {"number": number, "levels": words}.get(wanted, f"{number}, or {words}")
                faults.add(f"registered: {name} is missing: give {ways}.")
        logarithmic = question.family.logarithmic or question.family.response == "time"
        for name in question.outside_terms if logarithmic else ():
            unit = self.numbers.get(name)
            if unit is not None and unit.mean <= 0 and unit.rows == UNKNOWN_ROWS:
                faults.add(
                    f"registered.numbers.{name}: its centre is {unit.mean!r}, and the prior of the "
                    "intercept is around its logarithm: give one > 0."
                )
        weight = self.numbers.get(WEIGHT) if question.samples else None
        if weight is not None and weight.mean <= 0:
            faults.add(
                f"registered.numbers.{key(WEIGHT)}: its centre is {weight.mean!r}, and weights are "
                "divided by it: give their mean, > 0."
            )
        faults.check()

    # --- what a site has --------------------------------------------------------------------------

    def check(
        self, question: Question, table: Table, site: str, located: Callable[[str, str], Place]
    ) -> None:
        """Refuse the table of a site that has a level, or a number, which is not registered.

        ``located`` returns where a level of a column is first.

        Raises:
            InputError: a level is not registered; the message has its file and its line.
        """
        kept, faults = question.kept(table, site), Faults()
        for name in self._categorical(question):
            column = str(_column_of(question, name))
            levels = self._levels(question, name)
            site_levels = np.unique(as_levels(kept[column])[~kept[column].missing]).tolist()
            for level in (site_level for site_level in site_levels if site_level not in levels):
                spot = located(column, level)
                line = mend(site, f"recode.{key(column)}", f"{text(spot.written)} = ...")
                missing = mend(site, "missing_values", f"{key(column)} = [{text(spot.written)}]")
                faults.add(
                    f"{spot.where}: {column} is {spot.written!r}, which is none of the levels that "
                    f"the study registers ({', '.join(levels)}). Where it is another word for one "
                    f"of these: {line}; where it stands for a missing value: {missing}; where it "
                    "is a separate level, the study has to be registered again with it.",
                    argument=column,
                    site=site,
                )
        for name, (low, high) in self.ranges.items():
            at_site = kept[name]
            values = at_site.values if at_site.kind == "number" else np.full(1, low)
            outside = np.flatnonzero(~at_site.missing & ((values < low) | (values > high)))
            if len(outside):
                first = located(name, str(as_levels(at_site)[outside[0]]))
                changes = question.harmonise.get(site)
                factor = 1.0 if changes is None else changes.scale.get(name, 1.0)
                code = f"{values[outside[0]] / factor:.12g}"  # as in the file, with a point
                missing = mend(site, "missing_values", f"{key(name)} = [{code}]")
                faults.add(
                    f"{first.where}: {name} is {first.written}; the study registers {low:g} to "
                    f"{high:g}; outside: {len(outside)} of {len(values)} values here. Where that "
                    f"stands for a missing value: {missing}; where it is in another unit: "
                    f"{mend(site, 'scale', f'{key(name)} = ...')}; where it is right, the study "
                    "has to be registered again with a wider range.",
                    argument=name,
                    site=site,
                )
        for name in kept:
            if kept[name].missing.any() and name not in self.fills and self._marked(question, name):
                faults.add(
                    f"site {site!r}: values of {name} are missing, and the study registers nothing "
                    f"for them: register it again with registered.fills.{key(name)}, or {GAP!r} "
                    "among the levels."
                )
        faults.check()

    def _marked(self, question: Question, column: str) -> bool:
        """Return True if nothing marks missing values of a column that keeps their rows."""
        if question.missing != "indicator" or column in question.always or column == SITE:
            return False
        named = [n for n, factor in question.parsed.factors.items() if column in factor.columns]
        return any(GAP not in self.levels.get(name, ()) for name in named)

    def doubts(self, facts: TableFacts, site: str) -> list[str]:
        """Report values far from a registered centre and scale in a site's table.

        The posterior is the same with any centre and scale, up to what they say of default priors.
        """
        doubts = []
        for name, (centre, scale, _) in self.numbers.items():
            if name not in facts.moments or name == EVENT:
                continue
            moments = Moments(*facts.moments[name])
            mean, sd = float(moments.centre), float(moments.sd)
            apart = abs(mean - centre) > FAR * max(scale, sd)
            if moments.rows >= FEWEST and sd > 0:
                apart |= not 1 / FACTOR < sd / scale < FACTOR
            if apart:
                doubts.append(
                    f"site {site!r}: {name} has the mean {mean:.4g} and the standard deviation "
                    f"{sd:.4g}; the study registers the centre {centre:.4g} and the scale "
                    f"{scale:.4g}. Is it in another unit here? Else register a usual mean and "
                    "standard deviation, columns mean and sd of a data dictionary: default priors "
                    "of coefficients are on that scale, and that of the intercept holds at the "
                    "centre."
                )
        return doubts


def _check_question(question: Question, names: Sequence[str]) -> None:
    """Refuse a study of which only the sites can say what they have to agree on."""
    if question.imputes:
        raise InputError(
            "registered: with model.missing = 'impute' the sites must say which values are "
            "missing: leave [registered] out, or give missing = 'complete'."
        ).at("registered")
    if question.described is not None:
        raise InputError(
            "registered: model.describe is answered before the first query, and a registered study "
            "has no such message: leave one of them out."
        ).at("registered")
    for group in question.parsed.groups:
        if not (group.by == SITE or group.is_shared or group.kind == "own") and len(names) > 1:
            raise InputError(
                f"registered: formula: {group.text}: the labels of the sites are not compared: "
                f"write (1 | {SITE}:{group.by}) where each site has its own groups, "
                f"(1 | shared({group.by})) where they are of all."
            ).at("registered")


def _column_of(question: Question, name: str) -> str | None:
    if name == RESPONSE:
        return question.parsed.response[0].column
    shared = {shared_levels(term.by): term.by for term in question.parsed.groups if term.is_shared}
    factor = question.parsed.factors.get(name)
    return shared.get(name, None if factor is None else factor.column)


def _places(question: Question) -> dict[str, str]:
    """Return all that is to be stated: "number", "levels", "either", or "any" of them or none."""
    kinds: dict[str, str] = {}
    for name, factor in question.parsed.factors.items():
        if factor.column != SITE:
            either = factor.kind == "plain" and factor.column is not None
            kinds[name] = "levels" if factor.kind == "levels" else "either" if either else "number"
    for group in question.parsed.groups:
        if group.is_shared:
            kinds[shared_levels(group.by)] = "levels"
    kinds |= dict.fromkeys(question.outside_terms, "number")
    if question.family.classes or question.family.response == "two":
        kinds[RESPONSE] = "levels" if question.family.classes else "any"
    return kinds
