"""What is asked of every site's table, and its answer: the facts that all processes learn.

The facts are the levels of its factors, means and squares of its numbers, how many values miss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consortia.core.arguments import one_of, whole
from consortia.data.imputation import cumulative_hazard, imputed
from consortia.data.preparation import Moments
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
from consortia.models.regression.families import Family
from consortia.models.regression.formula import SITE, Factor, Group, Parsed, as_levels, level

RESPONSE, TIME, EVENT, EXPOSURE = "response", "time", "event", "exposure"
"""Under these names the moments of a response travel."""

IMPUTATIONS = 20
IMPUTATIONS_MAX = 1000


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
        imputations: how many times missing values are drawn, where they are imputed.
        imputation_seed: of these draws.
    """

    parsed: Parsed
    family: Family
    missing: str
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra: Mapping[str, Factor] = field(default_factory=dict)
    integrated: bool = False
    imputations: int = IMPUTATIONS
    imputation_seed: int = 0

    def __post_init__(self) -> None:
        one_of("missing", self.missing, POLICIES)
        whole("imputations", self.imputations, 2, IMPUTATIONS_MAX)
        whole("imputation_seed", self.imputation_seed, 0)

    @property
    def imputes(self) -> bool:
        """Whether missing values are imputed."""
        return self.missing == "impute"

    def stays(self, group: Group) -> bool:
        """Return True if the levels of a group term are integrated out at the sites."""
        return self.integrated or group.by != SITE

    @property
    def by_site(self) -> bool:
        """Whether the model has one likelihood a site, and none a row."""
        return self.family.of_site is not None or any(map(self.stays, self.parsed.groups))

    @property
    def tells_levels(self) -> bool:
        """Whether what a site adds of its own is a parameter of the run, which the server sees."""
        fixed = any(SITE in one.columns for one in self.parsed.factors.values())
        return fixed or any(not self.stays(group) for group in self.parsed.groups)

    @property
    def names_sites(self) -> bool:
        """Whether the name of the site is in a term."""
        fixed = any(SITE in one.columns for one in self.parsed.factors.values())
        return fixed or any(group.by == SITE for group in self.parsed.groups)

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
        if SITE in table and self.names_sites:
            texts = as_levels(table[SITE])[~table[SITE].missing]
            if np.any(texts != texts[:1]):
                raise InputError(
                    f"{where}: its table has a column {SITE!r} of several values, and {SITE} in a "
                    "formula is the name of the site: give the column another name."
                )
        if not used:
            raise InputError(f"formula {self.parsed.text!r} has no column.")
        used = without_missing(used, self.columns, self.always, self.missing, where)
        rows = rows_of(used)
        return used | {SITE: Column("text", np.full(rows, site), np.zeros(rows, bool))}

    def imputed(self, kept: Table, site: str, number: int) -> Table:
        """Return one imputation of a site's rows; equal numbers give equal ones.

        Args:
            kept: what `kept` returned.
            site: its name.
            number: of the imputation.

        Raises:
            InputError: no value of a column is known at the site.
        """
        where, columns = f"site {site!r}", self.parsed.columns
        named = {one.column for one in self.parsed.factors.values() if is_levels(one, kept)}
        levels = [one for one in columns if one in named or kept[one].kind in ("text", "truth")]
        rng = np.random.default_rng((self.imputation_seed, number, *site.encode()))
        return imputed(kept, columns, levels, self._outcome(kept, where), rng, where)

    def _outcome(self, kept: Table, where: str) -> dict[str, np.ndarray]:
        """Return what a covariate is regressed on for the response's sake, (rows,) each."""
        if self.family.response == "time":
            time, event = self.response(kept, where)
            return {TIME: cumulative_hazard(time, event), EVENT: event}
        if self.levels_of_response(kept):
            texts = self.parsed.response[0].texts(kept, where)
            return {one: (texts == one).astype(float) for one in np.unique(texts)[1:].tolist()}
        (y,) = self.response(kept, where)
        beside = {name: one.values(kept, where) for name, one in self.extra.items()}
        if self.family.response == "count":
            against = (
                beside["trials"] - y + 0.5 if "trials" in beside else beside.get(EXPOSURE, 1.0)
            )
            y = np.log((y + 0.5) / against)
        elif self.family.response == "share":
            y = np.log(y / (1 - y))
        elif self.family.response == "positive":
            y = np.log(y)
        return {RESPONSE: y}

    def kept_for_prediction(self, table: Table, where: str, site: str | None) -> Table:
        """Return the columns that a prediction needs, of all rows, and the site's name.

        Raises:
            InputError: an unknown column, a missing value that has no column of its own, or a
                formula with the name of the site for a new one.
        """
        extra = [
            name for key, one in self.extra.items() if key != "weights" for name in one.columns
        ]
        needed = dict.fromkeys([*extra, *self.parsed.columns])
        used = {name: column_of(table, name, where) for name in needed}
        if site is None and any(SITE in one.columns for one in self.parsed.factors.values()):
            raise InputError(
                f"formula {self.parsed.text!r} has a coefficient of each site: it says nothing of "
                f"a new one. Name a site, or write (1 | {SITE})."
            )
        filled = set(self.parsed.columns) if self.missing == "indicator" else set()
        offset = self.parsed.offset.columns if self.parsed.offset else ()
        for name in {*needed} - (filled - {*extra, *offset}):
            if count := int(used[name].missing.sum()):
                raise InputError(f"{where}: values are missing in {name!r} of {count} rows.")
        rows = rows_of(table)
        return used | {SITE: Column("text", np.full(rows, site or ""), np.zeros(rows, bool))}

    def facts(self, table: Table, site: str, least: int = 1) -> TableFacts:
        """Return what all processes learn of a site's table.

        Args:
            table: its rows as they were read.
            site: its name.
            least: levels with fewer rows are left out.

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
                doubt = kept[str(factor.column)].doubt
                if doubt and factor.kind != "levels":
                    raise InputError(f"{where}: the column {factor.column!r}: {doubt}.")
                if factor.column != SITE and factor.column not in self.levels:
                    levels[factor.text] = frequent_levels(kept[str(factor.column)], least)
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
                levels[RESPONSE] = frequent_levels(kept[name], least)
        else:
            of_numbers(RESPONSE, self.response(kept, where)[0])
        if "exposure" in self.extra:
            of_numbers(EXPOSURE, self.beside("exposure", kept, where))
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
        column = None if first.column is None else table[first.column]
        if column is not None and column.kind == "text":
            doubt = column.doubt or "of two texts is family bernoulli, of several categorical"
            raise InputError(
                f"{where}: the response {first.text} holds texts, and family {self.family.name} is "
                f"of numbers: {doubt}."
            )
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

    def beside(self, name: str, table: Table, where: str) -> np.ndarray:
        """Return an expression beside the formula: weights, exposure or trials, (rows,).

        Raises:
            InputError: an exposure or a number of trials is not positive, or a weight negative.
        """
        factor = self.extra[name]
        values = factor.values(table, where)
        if name in ("exposure", "trials") and (values <= 0).any():
            raise InputError(f"{where}: {name} {factor.text} must be > 0 in every row.")
        if name == "weights" and (values < 0).any():
            raise InputError(f"{where}: weights {factor.text} must be >= 0 in every row.")
        return values

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


def frequent_levels(column: Column, least: int) -> tuple[str, ...]:
    """Return the levels of a column that have so many rows, in order."""
    values, counts = np.unique(as_levels(column)[~column.missing], return_counts=True)
    return in_order(values[counts >= least].tolist())


def in_order(levels: Sequence[str]) -> tuple[str, ...]:
    """Return levels sorted, as numbers where all are numbers."""
    try:
        return tuple(sorted(levels, key=float))
    except ValueError:
        return tuple(sorted(levels))


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
