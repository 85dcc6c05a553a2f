"""What the sites agree on before a formula is a matrix at each of them.

A site says what its rows are like (`Question.facts`): the levels of its factors, means and squares
of its numbers, how many values miss. From the facts of all sites every process makes the same
`Specification`, and with it each site makes its own rows (`Specification.rows`), which are those
that one table of all rows would have given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from consortia.core.arguments import one_of
from consortia.core.fingerprints import of_value
from consortia.data.preparation import Moments, moments_of_all
from consortia.data.tables import (
    POLICIES,
    Column,
    Table,
    TableFacts,
    column_of,
    rows_of,
    without_missing,
)
from consortia.errors import InputError
from consortia.models.regression import smooth
from consortia.models.regression.families import Family
from consortia.models.regression.formula import SITE, Factor, Parsed, as_levels, level

GAP = "missing"
"""The level of a factor, and the name of the mark of a number, whose value misses."""

RESPONSE, TIME, EVENT, EXPOSURE = "response", "time", "event", "exposure"
"""Under these names the moments of a response travel."""

TIES = ("last", "tie_share")
"""Of rows in the order of falling times: the last one with a time; Efron's share of an event."""

INTERVALS = 5
"""Of a piecewise constant hazard, when no breaks are given."""

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Question:
    """What is asked of every site's table; the same in all processes.

    Attributes:
        parsed: the formula.
        family: of the response.
        missing: what is done with missing values.
        levels: of columns, the first being the reference; what is given need not be asked for.
        extra: expressions beside the formula, by what they are: weights, exposure, trials.
        integrated: whether a level of each site is integrated out at the site.
    """

    parsed: Parsed
    family: Family
    missing: str
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra: Mapping[str, Factor] = field(default_factory=dict)
    integrated: bool = False

    def __post_init__(self) -> None:
        one_of("missing", self.missing, POLICIES)

    @property
    def always(self) -> tuple[str, ...]:
        """The columns in which a row must have a value, whatever the policy."""
        extra = [name for factor in self.extra.values() for name in factor.columns]
        offset = self.parsed.offset.columns if self.parsed.offset else ()
        return tuple(dict.fromkeys([*self.parsed.response_columns, *extra, *offset]))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are used."""
        return tuple(dict.fromkeys([*self.always, *self.parsed.columns]))

    def kept(self, table: Table, site: str) -> Table:
        """Return the columns that are used, in the rows that the policy keeps, and the site's name.

        Raises:
            InputError: an unknown column, or as `consortia.data.tables.without_missing`.
        """
        where = f"site {site!r}"
        used = {name: column_of(table, name, where) for name in self.columns}
        if not used:
            raise InputError(f"formula {self.parsed.text!r} has no column.")
        used = without_missing(used, self.columns, self.always, self.missing, where)
        rows = rows_of(used)
        return used | {SITE: Column("text", np.full(rows, site), np.zeros(rows, bool))}

    def facts(self, table: Table, site: str, least: int = 1) -> TableFacts:
        """Return what all processes learn of a site's table.

        Args:
            table: its rows as they were read.
            site: its name.
            least: levels with fewer rows are not told.

        Raises:
            InputError: the table cannot be used.
        """
        where, kept = f"site {site!r}", self.kept(table, site)
        moments: dict[str, Any] = {}
        levels: dict[str, tuple[str, ...]] = {}

        def of_numbers(name: str, values: np.ndarray) -> None:
            known = values[~np.isnan(values)]
            if len(known):
                moments[name] = Moments.of(known).plain()

        for factor in self.parsed.factors.values():
            if any(kept[name].kind == "empty" for name in factor.columns):
                continue
            if is_levels(factor, kept):
                if doubt := kept[str(factor.column)].doubt:
                    raise InputError(f"{where}: the column {factor.column!r}: {doubt}.")
                if factor.column != SITE and factor.column not in self.levels:
                    levels[factor.text] = told(kept[str(factor.column)], least)
                continue
            of_numbers(factor.text, factor.values(kept, where))
        for name in self.parsed.columns:
            column = kept[name]
            if self.missing == "indicator" and column.kind not in ("text", "empty"):
                of_numbers(f"column {name}", np.where(column.missing, np.nan, column.values))
        if self.family.response == "time":
            time, event = self.response(kept, where)
            of_numbers(TIME, time)
            of_numbers(EVENT, event)
        elif self.levels_of_response(kept):
            name = str(self.parsed.response[0].column)
            if name not in self.levels:
                levels[RESPONSE] = told(kept[name], least)
        else:
            of_numbers(RESPONSE, self.response(kept, where)[0])
        if "exposure" in self.extra:
            of_numbers(EXPOSURE, self.extra["exposure"].values(kept, where))
        return TableFacts(
            rows_of(table),
            {name: column_of(table, name, where).kind for name in self.columns},
            {name: int(table[name].missing.sum()) for name in self.columns},
            moments,
            levels,
        )

    def levels_of_response(self, table: Table) -> bool:
        """Return True if the response is one of several levels by name."""
        kind = self.family.response
        if kind in ("ordered", "levels"):
            return True
        column = self.parsed.response[0].column
        if kind != "two" or column is None:
            return False
        return column in self.levels or table[column].kind in ("text", "truth")

    def response(self, table: Table, where: str) -> tuple[np.ndarray, ...]:
        """Return the response of numbers, (rows,); of a time also whether there was an event.

        Raises:
            InputError: it is outside what the family can have.
        """
        kind, first = self.family.response, self.parsed.response[0]
        values = first.values(table, where)
        rules: dict[str, tuple[Any, str]] = {
            "number": (np.isfinite(values), "finite"),
            "two": (np.isin(values, (0, 1)), "0 or 1, True or False, or two texts"),
            "count": ((values >= 0) & (values == np.round(values)), "whole numbers >= 0"),
            "share": ((values > 0) & (values < 1), "between 0 and 1, both excluded"),
            "positive": (values > 0, "> 0"),
            "time": (values > 0, "> 0"),
        }
        right, what = rules[kind]
        self._check(right, f"the response {first.text}", what, where)
        if kind != "time":
            return (values,)
        second = self.parsed.response[1]
        column = None if second.column is None else table[second.column]
        if column is not None and column.kind == "text":
            raise InputError(
                f"{where}: the event {second.text} holds texts: code it as 1 where the event was "
                "seen, else 0."
            )
        event = second.values(table, where)
        self._check(np.isin(event, (0, 1)), f"the event {second.text}", "0 or 1", where)
        return values, event

    def _check(self, right: np.ndarray, name: str, what: str, where: str) -> None:
        if not right.all():
            raise InputError(
                f"{where}: {name} is outside the family {self.family.name} in "
                f"{int((~right).sum())} of {len(right)} rows: its values must be {what}."
            )


def is_levels(factor: Factor, table: Mapping[str, Any]) -> bool:
    """Return True if a factor is a categorical one in a table of columns (or of their kinds)."""
    if factor.kind == "levels":
        return True
    if factor.kind != "plain" or factor.column is None:
        return False
    column = table[factor.column]
    return (column.kind if isinstance(column, Column) else column) in ("text", "truth")


def told(column: Column, least: int) -> tuple[str, ...]:
    """Return the levels of a column that have so many rows, in order."""
    values, counts = np.unique(as_levels(column)[~column.missing], return_counts=True)
    return in_order(values[counts >= least].tolist())


def in_order(levels: Sequence[str]) -> tuple[str, ...]:
    """Return levels sorted, as numbers where all are numbers."""
    try:
        return tuple(sorted(levels, key=float))
    except ValueError:
        return tuple(sorted(levels))


# --- the agreement -------------------------------------------------------------------------------


class Unit(NamedTuple):
    """Mean and standard deviation (Σ over n) of an expression over all rows; 1 for an sd of 0."""

    mean: float
    sd: float
    rows: int


class Block(NamedTuple):
    """Columns whose coefficients have a common standard deviation that is estimated.

    Attributes:
        name: of that standard deviation.
        columns: names of the coefficients.
        factor: text of the factor that is multiplied, "" for none.
        smooth: whether it is the curved part of a smooth; else a level or slope of each site.
        level: of a categorical factor, the level whose indicator is multiplied.
    """

    name: str
    columns: tuple[str, ...]
    factor: str
    smooth: bool
    level: str | None = None


@dataclass(frozen=True)
class Specification:
    """What a formula means for all sites; every process makes the same from the facts.

    Attributes:
        question: what was asked.
        sites: names.
        rows: of each site, those that are kept.
        units: of numbers, by expression.
        levels: of factors, by expression, the reference first; of the response under "response".
        fills: what stands for a missing number, by column.
        notes: what the user should know.
    """

    question: Question
    sites: tuple[str, ...]
    rows: tuple[int, ...]
    units: Mapping[str, Unit]
    levels: Mapping[str, tuple[str, ...]]
    fills: Mapping[str, float]
    notes: tuple[str, ...] = ()
    breaks: tuple[float, ...] = ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that decides what the columns are."""
        asked, parsed = self.question, self.question.parsed
        extra = {name: factor.text for name, factor in asked.extra.items()}
        return of_value(
            (
                *(parsed.text, asked.family.name, asked.missing, extra, self.sites, self.breaks),
                asked.integrated,
                *(dict(self.units), dict(self.levels), dict(self.fills)),
            )
        )

    # --- columns ---

    @cached_property
    def terms(self) -> tuple[tuple[str, ...], ...]:
        """The terms, with those that mark missing numbers; () is the intercept."""
        marks = tuple((f"{GAP}({name})",) for name in self.fills)
        return (*self.question.parsed.terms, *marks)

    @property
    def has_intercept(self) -> bool:
        """True unless the formula takes it out."""
        return () in self.terms

    @cached_property
    def _places(self) -> dict[str, str]:
        """A short name for every factor, under which formulaic knows it."""
        texts = dict.fromkeys(text for term in self.terms for text in term)
        return {text: f"f{number}" for number, text in enumerate(texts)}

    @cached_property
    def keys(self) -> tuple[tuple[frozenset[str], frozenset[tuple[str, str]]], ...]:
        """Of each column the numeric factors and the (factor, level) that are multiplied."""
        example = {
            text: np.zeros(1, np.int64) if text in self.levels else np.zeros(1)
            for text in self._places
        }
        texts = {place: text for text, place in self._places.items()}
        keys = []
        for name in self._matrix(example, 1).columns:
            numbers, levels = set(), set()
            for part in () if name == "Intercept" else name.split(":"):
                place, _, code = part.rstrip("]").partition("[")
                if code:
                    text = texts[place]
                    levels.add((text, self.levels[text][int(code.removeprefix("T."))]))
                else:
                    numbers.add(texts[place])
            keys.append((frozenset(numbers), frozenset(levels)))
        return tuple(keys)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, without that of the intercept."""
        order = {text: number for number, text in enumerate(self._places)}

        def name(numbers: frozenset[str], levels: frozenset[tuple[str, str]]) -> str:
            parts = {text: text for text in numbers} | {
                text: f"{text}[{one}]" for text, one in levels
            }
            return ":".join(parts[text] for text in sorted(parts, key=order.__getitem__))

        return tuple(name(*key) for key in self.keys if key[0] or key[1])

    @cached_property
    def term_of(self) -> tuple[str, ...]:
        """Of each column, without the intercept's, the text of its term."""
        order = {text: number for number, text in enumerate(self._places)}
        found = []
        for numbers, levels in self.keys:
            texts = sorted({*numbers, *(text for text, _ in levels)}, key=lambda text: order[text])
            if texts:
                found.append(":".join(texts))
        return tuple(found)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The columns with a common standard deviation, smooths first."""
        found = []
        for text, factor in self.question.parsed.factors.items():
            if factor.kind == "smooth":
                names = tuple(f"{text}[{number}]" for number in range(1, factor.knots - 1))
                found.append(Block(f"sd({text})", names, text, True))
        for text in self.question.parsed.groups:
            for one in self.levels[text][1:] if text in self.levels else (None,):
                what = text or "Intercept"
                what += "" if one is None else f"[{one}]"
                names = tuple(f"{what} | {site}" for site in self.sites)
                if self.question.integrated:
                    names = ()  # of (1 | site): the levels stay at the sites
                found.append(Block(f"sd({what} | {SITE})", names, text, False, one))
        return tuple(found)

    # --- the basis ---

    @cached_property
    def basis(self) -> np.ndarray:
        r"""R, (p, p), the intercept included: the columns that are sampled are X R, β = R b.

        A number stands in them centred and scaled by its mean and sd over all rows, in products
        too, where the columns that this needs are in the formula; else it is scaled only.
        """
        place = {key: number for number, key in enumerate(self.keys)}
        R = np.zeros((len(place), len(place)))
        for column, (numbers, levels) in enumerate(self.keys):
            scale = float(np.prod([self.units[text].sd for text in numbers]))
            parts = [(frozenset(some), weight) for some, weight in self._expanded(sorted(numbers))]
            if not all((some, levels) in place for some, _ in parts):
                parts = [(numbers, 1.0)]
            for some, weight in parts:
                R[place[some, levels], column] = weight / scale
        return R

    def _expanded(self, numbers: Sequence[str]) -> list[tuple[list[str], float]]:
        """Return Π (x − m) as a sum of products of some of the x, each with its weight."""
        parts: list[tuple[list[str], float]] = [([], 1.0)]
        for text in numbers:
            centre = self.units[text].mean
            parts = [
                one
                for some, weight in parts
                for one in (([*some, text], weight), (some, -weight * centre))
            ]
        return parts

    @cached_property
    def scales(self) -> np.ndarray:
        """Of each column, without the intercept's, the product of the sds of its numbers."""
        return np.array(
            [
                np.prod([self.units[text].sd for text in numbers])
                for numbers, levels in self.keys
                if numbers or levels
            ]
        ).reshape(-1)

    # --- rows ---

    def factors(self, table: Table, where: str) -> dict[str, np.ndarray]:
        """Return the values of every factor, numbers or the indices of levels.

        Raises:
            InputError: a level that no site told of.
        """
        filled = dict(table)
        for name, column in table.items():
            if name in self.fills:
                values = np.where(column.missing, self.fills[name], column.values)
                kind = "number" if column.kind == "empty" else column.kind
                filled[name] = Column(kind, values, np.zeros(len(values), bool))
        found: dict[str, np.ndarray] = {}
        for text, factor in self.question.parsed.factors.items():
            if text in self.levels:
                found[text] = self._codes(text, table[str(factor.column)], where)
                continue
            values = factor.values(filled, where)
            if factor.kind in ("centre", "scale"):
                centre, sd, rows = self.raw(text)
                values = values - centre
                if factor.kind == "scale":
                    values = values / (sd * np.sqrt(rows / max(rows - 1, 1)))
            found[text] = values
        marks = {f"{GAP}({name})": table[name].missing.astype(float) for name in self.fills}
        return found | marks

    def raw(self, text: str) -> Unit:
        """Return mean and sd of the expression inside ``center`` or ``scale``."""
        return self.units[f"inside {text}"]

    def design(self, table: Table, where: str) -> np.ndarray:
        """Return X, (rows, p), in the units of the columns; the intercept's included."""
        values = self.factors(table, where)
        return self._matrix(values, rows_of(table)).to_numpy(float)

    def made(self, table: Table, site: str) -> Arrays:
        """Return a site's rows for the model, from its table as it was read.

        ``x`` (rows, k) are the columns X R without the intercept's, then those of the blocks; ``y``
        the response; offset, weight, trials and what a time needs where the model has them.

        Raises:
            InputError: the rows cannot be used.
        """
        where, asked = f"site {site!r}", self.question
        kept = asked.kept(table, site)
        values = self.factors(kept, where)
        X = self._matrix(values, rows_of(kept)).to_numpy(float) @ self.basis
        varying = [bool(numbers or levels) for numbers, levels in self.keys]
        columns = [X[:, varying], *(self._of_block(one, values, site) for one in self.blocks)]
        made = {"x": np.concatenate(columns, axis=1)} | self._others(kept, where)
        if asked.family.of_site is None:
            return made
        order = np.argsort(-made["y"], kind="stable")
        return {name: one if name in TIES else one[order] for name, one in made.items()}

    def template(self) -> Arrays:
        """Return the arrays of `made` without a row."""
        asked, width = self.question, len(self.names) + sum(len(b.columns) for b in self.blocks)
        found = {"x": np.zeros((0, width)), "y": np.zeros(0)}
        if RESPONSE in self.levels:
            found["y"] = np.zeros(0, np.int64)
        if asked.family.response == "time":
            found["event"] = np.zeros(0)
            if self.breaks:
                found["intervals"] = np.zeros((0, len(self.breaks) + 1))
                found["interval"] = np.zeros(0, np.int64)
            elif asked.family.of_site is None:
                found["log_unit"] = np.zeros(0)
            else:
                found |= _ties(np.zeros(0), np.zeros(0))
        if asked.parsed.offset is not None or "exposure" in asked.extra:
            found["offset"] = np.zeros(0)
        for name, key in (("trials", "trials"), ("weights", "weight")):
            if name in asked.extra:
                found[key] = np.zeros(0)
        return found

    def _of_block(self, block: Block, values: Mapping[str, np.ndarray], site: str) -> np.ndarray:
        if block.smooth:
            unit = self.units[block.factor]
            u = (values[block.factor] - unit.mean) / unit.sd
            return smooth.curved(u, self.question.parsed.factors[block.factor].knots)
        if not block.columns:
            return np.zeros((self.rows[self.sites.index(site)], 0))
        rows = len(next(iter(values.values()))) if values else self.rows[self.sites.index(site)]
        if not block.factor:
            slope = np.ones(rows)
        elif block.level is not None:
            place = self.levels[block.factor].index(block.level)
            slope = (values[block.factor] == place).astype(float)
        else:
            unit = self.units[block.factor]
            slope = (values[block.factor] - unit.mean) / unit.sd
        return slope[:, None] * (np.array(self.sites) == site)[None, :]

    def _others(self, kept: Table, where: str) -> Arrays:
        asked, found = self.question, {}
        if asked.family.response == "time":
            time, event = asked.response(kept, where)
            found = {"y": time, "event": event}
            if self.breaks:
                edges = np.array([0.0, *self.breaks, np.inf])
                spent = np.clip(time[:, None] - edges[:-1], 0, np.diff(edges))
                place = np.searchsorted(edges, time, side="left") - 1
                found |= {"intervals": spent, "interval": place}
            elif asked.family.of_site is None:
                unit = np.log(self.units[TIME].mean)
                found |= {"log_unit": np.full(len(time), unit)}
            else:
                found |= _ties(time, event)
        elif RESPONSE in self.levels:
            column = kept[str(asked.parsed.response[0].column)]
            found = {"y": self._codes(RESPONSE, column, where)}
        else:
            found = {"y": asked.response(kept, where)[0]}
        offset = np.zeros(len(found["y"]))
        if asked.parsed.offset is not None:
            offset = offset + asked.parsed.offset.values(kept, where)
        for name, factor in asked.extra.items():
            values = factor.values(kept, where)
            if name in ("exposure", "trials") and (values <= 0).any():
                raise InputError(f"{where}: {name} {factor.text} must be > 0 in every row.")
            if name == "weights" and (values < 0).any():
                raise InputError(f"{where}: weights {factor.text} must be >= 0 in every row.")
            if name == "trials":
                if (values != np.round(values)).any() or (values < found["y"]).any():
                    raise InputError(
                        f"{where}: trials {factor.text} must be whole numbers, no less than the "
                        "response."
                    )
                found["trials"] = values
            elif name == "weights":
                found["weight"] = values
            else:
                offset = offset + np.log(values)
        if asked.parsed.offset is not None or "exposure" in asked.extra:
            found["offset"] = offset
        return found

    def _codes(self, text: str, column: Column, where: str) -> np.ndarray:
        levels = self.levels[text]
        texts = np.where(column.missing, GAP, as_levels(column))
        order = np.argsort(levels)
        place = np.searchsorted(np.array(levels)[order], texts)
        codes = order[np.minimum(place, len(levels) - 1)]
        wrong = np.array(levels)[codes] != texts
        if wrong.any():
            raise InputError(
                f"{where}: {text} has a level that is not among those agreed on "
                f"({', '.join(levels)}) in {int(wrong.sum())} rows: give levels= with all of them, "
                "or put rare ones together."
            )
        return codes

    def _matrix(self, values: Mapping[str, np.ndarray], rows: int) -> Any:
        """Return the columns of the terms as formulaic makes them, a DataFrame."""
        import pandas as pd
        from formulaic import Formula

        def column(text: str) -> Any:
            if text not in self.levels:
                return values[text]
            codes = np.arange(len(self.levels[text]))
            return pd.Categorical(values[text].astype(int), categories=codes)

        frame = pd.DataFrame(
            {place: column(text) for text, place in self._places.items()}, index=range(rows)
        )
        terms = [":".join(self._places[text] for text in term) for term in self.terms if term]
        written = " + ".join(["1" if self.has_intercept else "0", *terms])
        return Formula(written).get_model_matrix(frame)


def _ties(time: np.ndarray, event: np.ndarray) -> Arrays:
    """Return `TIES` of rows in the order of falling times."""
    order = np.argsort(-time, kind="stable")
    times, events = time[order], event[order] > 0
    last = np.searchsorted(-times, -times, side="right") - 1
    share = np.zeros(len(times))
    for end in np.unique(last[events]):
        tied = np.flatnonzero((last == end) & events)
        share[tied] = np.arange(len(tied)) / len(tied)
    return dict(zip(TIES, (last.astype(np.int64), share), strict=True))


def agree(
    question: Question,
    facts: Sequence[TableFacts],
    rows: Sequence[int],
    names: Sequence[str],
    breaks: Sequence[float] | None = None,
) -> Specification:
    """Return what the sites agree on, from the facts of all of them.

    Raises:
        InputError: they cannot agree; the message names the sites.
    """
    parsed, notes = question.parsed, []
    kinds = {name: _common_kind(name, facts, names) for name in question.columns} | {SITE: "text"}

    def together(name: str) -> Moments | None:
        parts = [one.moments[name] for one in facts if name in one.moments]
        return moments_of_all(parts) if parts else None

    def unit(name: str) -> Unit:
        found = together(name)
        if found is None:
            raise InputError(f"{name} has no value at any site.")
        sd = float(found.sd)
        return Unit(float(found.centre), sd if sd > 0 else 1.0, found.rows)

    units: dict[str, Unit] = {}
    levels: dict[str, tuple[str, ...]] = {}
    for text, factor in parsed.factors.items():
        if is_levels(factor, kinds):
            found, said = _levels_of(question, factor, facts, names, kinds)
            levels[text] = found
            notes += said
            continue
        plain = unit(text)
        moments = together(text)
        if moments is not None and bool(moments.constant) and factor.kind != "smooth":
            notes.append(
                f"{text} is the same in all rows: with an intercept, its coefficient is known from "
                "the prior only"
            )
        if factor.kind == "plain" or factor.kind == "smooth":
            units[text] = plain
            continue
        units[f"inside {text}"] = plain
        wide = np.sqrt(plain.rows / max(plain.rows - 1, 1))
        sd = plain.sd if factor.kind == "centre" else 1 / wide
        units[text] = Unit(0.0, float(sd), plain.rows)
    missing = {name: sum(one.missing[name] for one in facts) for name in question.columns}
    gaps = [name for name in parsed.columns if missing[name] and name not in question.always]
    fills = {}
    if question.missing == "indicator":
        numbers = {
            name
            for text, factor in parsed.factors.items()
            if text not in levels
            for name in factor.columns
        }
        for name in gaps:
            if name in numbers:
                fills[name] = unit(f"column {name}").mean
                units[f"{GAP}({name})"] = Unit(0.0, 1.0, sum(rows))
            for text, factor in parsed.factors.items():
                if text in levels and factor.column == name and GAP not in levels[text]:
                    levels[text] = (*levels[text], GAP)
    left_out = sum(one.given for one in facts) - sum(rows)
    if left_out:
        of = ", ".join(
            f"{name} {one.given - count} of {one.given}"
            for name, one, count in zip(names, facts, rows, strict=True)
            if one.given > count
        )
        notes.insert(0, f"{left_out} rows with missing values are left out ({of})")
    if question.family.response == "time":
        units[TIME], units[EVENT] = unit(TIME), unit(EVENT)
    elif any(RESPONSE in one.levels for one in facts) or _given_response(question):
        levels[RESPONSE] = _response_levels(question, facts, kinds, notes)
    else:
        units[RESPONSE] = unit(RESPONSE)
    if "exposure" in question.extra:
        units[EXPOSURE] = unit(EXPOSURE)
    cuts: tuple[float, ...] = ()
    if question.family.name == "piecewise_exponential":
        cuts = _breaks(breaks, units[TIME].mean)
    elif breaks is not None:
        raise InputError("breaks are for family='piecewise_exponential'.")
    made = Specification(
        question, tuple(names), tuple(rows), units, levels, fills, tuple(notes), cuts
    )
    if not made.has_intercept and question.family.response in ("ordered",):
        raise InputError("family 'ordinal' has thresholds in the place of an intercept: keep it.")
    return made


def _common_kind(name: str, facts: Sequence[TableFacts], names: Sequence[str]) -> str:
    kinds = {one.kinds.get(name, "empty"): where for one, where in zip(facts, names, strict=True)}
    known = {kind: where for kind, where in kinds.items() if kind != "empty"}
    if len(known) > 1:
        words = {"number": "numbers", "truth": "True and False", "date": "dates", "text": "texts"}
        found = " and ".join(f"{words[kind]} at site {where!r}" for kind, where in known.items())
        raise InputError(f"the column {name!r} holds {found}: make it of one kind.")
    return next(iter(known), "empty")


def _levels_of(
    question: Question,
    factor: Factor,
    facts: Sequence[TableFacts],
    names: Sequence[str],
    kinds: Mapping[str, str],
) -> tuple[tuple[str, ...], list[str]]:
    """Return the levels of a factor, the reference first, and what is to be said of them."""
    text, column = factor.text, str(factor.column)
    notes = []
    if column == SITE:
        levels = tuple(names)
    elif column in question.levels:
        levels = question.levels[column]
    else:
        parts = {name: one.levels.get(text, ()) for name, one in zip(names, facts, strict=True)}
        levels = in_order(sorted({level for found in parts.values() for level in found}))
        if kinds[column] == "truth":
            levels = ("False", "True")
        for one in levels:
            having = [name for name, found in parts.items() if one in found]
            lacking = [name for name in names if name not in having]
            if len(having) == 1 and len(names) > 2:
                notes.append(f"{column} = {one!r} is at site {having[0]!r} only")
            elif lacking and having:
                notes.append(f"{column} = {one!r} is not at {', '.join(map(repr, lacking))}")
    if factor.reference is not None:
        if factor.reference not in levels:
            raise InputError(
                f"formula: {text}: there is no level {factor.reference!r}; there are "
                f"{', '.join(levels)}."
            )
        levels = (factor.reference, *(one for one in levels if one != factor.reference))
    if len(levels) < 2:
        raise InputError(
            f"{text} has {f'the one level {levels[0]!r}' if levels else 'no level'} at all sites: "
            "leave it out of the formula."
        )
    return levels, notes


def _given_response(question: Question) -> bool:
    """Return True if the levels of the response are given."""
    column = question.parsed.response[0].column
    return question.family.response in ("two", "ordered", "levels") and column in question.levels


def _response_levels(
    question: Question, facts: Sequence[TableFacts], kinds: Mapping[str, str], notes: list[str]
) -> tuple[str, ...]:
    column = str(question.parsed.response[0].column)
    given = question.levels.get(column)
    if given is None and question.family.response == "ordered" and kinds[column] == "text":
        raise InputError(
            f"the response {column!r} holds texts, whose order is not known: give "
            f"levels={{{column!r}: [lowest, ..., highest]}}."
        )
    found = in_order(sorted({level for one in facts for level in one.levels.get(RESPONSE, ())}))
    if kinds[column] == "truth":
        found = ("False", "True")
    levels = found if given is None else given
    least = 3 if question.family.response == "ordered" else 2
    if len(levels) < least or (question.family.response == "two" and len(levels) > 2):
        count = {"two": "two", "ordered": "three or more"}.get(question.family.response, "several")
        raise InputError(
            f"the response {column!r} has the levels {', '.join(levels)}: family "
            f"{question.family.name} takes {count}."
        )
    if question.family.response == "two":
        notes.append(f"the event is {column} = {levels[1]!r}")
    elif question.family.response == "levels":
        notes.append(f"coefficients are against {column} = {levels[0]!r}")
    return levels


def _breaks(given: Sequence[float] | None, mean: float) -> tuple[float, ...]:
    """Return where the hazard may change: as given, or so that a constant one has equal shares."""
    if given is None:
        shares = np.arange(1, INTERVALS) / INTERVALS
        return tuple(float(value) for value in -np.log1p(-shares) * mean)
    cuts = tuple(float(value) for value in given)
    if not cuts or min(cuts) <= 0 or list(cuts) != sorted(set(cuts)):
        raise InputError(f"breaks are {list(given)}: give times > 0 that increase.")
    return cuts


def levels_given(levels: Any) -> dict[str, tuple[str, ...]]:
    """Return the levels of columns as a user gives them, as texts.

    Raises:
        InputError: they are no dict of lists of at least two distinct levels.
    """
    if levels is None:
        return {}
    if not isinstance(levels, Mapping):
        raise InputError(f"levels is {levels!r}: give a dict, such as {{'stage': ['I', 'II']}}.")
    found = {}
    for name, values in levels.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise InputError(f"levels[{name!r}] is {values!r}: give a list, the reference first.")
        texts = tuple(level(value) for value in values)
        if len(texts) < 2 or len(set(texts)) < len(texts):
            raise InputError(f"levels[{name!r}]: give at least two levels, each once.")
        found[str(name)] = texts
    return found
