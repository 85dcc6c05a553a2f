"""A request for facts of every site's table, and the answer that all processes receive.

The facts are the levels of its factors, means and squares of its numbers, how many values miss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from consortia.core.arguments import nearest, one_of, unknown, whole
from consortia.core.faults import Faults
from consortia.data.codes import suspicious
from consortia.data.columns import (
    POLICIES,
    Column,
    Guess,
    LazyTable,
    Table,
    TableError,
    TableFacts,
    as_levels,
    column_of,
    level,
    rows_of,
    without_missing,
)
from consortia.data.description import Wanted
from consortia.data.digest import of_label as label_digest
from consortia.data.followup import tied_times
from consortia.data.imputation import cumulative_hazard, imputed
from consortia.data.mending import key, mend, rows_text, text
from consortia.data.preparation import Moments
from consortia.data.tables import word_kept
from consortia.data.writing import loosely, preferred, same_loosely
from consortia.errors import InputError, wrong
from consortia.models.regression.families import Family
from consortia.models.regression.formula import SITE, Factor, Group, Parsed
from consortia.models.regression.remedies import remedies

if TYPE_CHECKING:
    from consortia.data.harmonisation import Harmonisation

RESPONSE, TIME, EVENT, EXPOSURE = "response()", "time()", "event()", "exposure()"
OFFSET, WEIGHT = "offset()", "weights()"
"""Names of levels and moments of what stands beside the formula; no factor can have them."""

WEIGHTS = ("frequency", "sampling")
"""Kinds of weights: numbers of equal rows, or inverse probabilities of being in a sample."""

TIES = ("efron", "breslow")
"""Ways to take events at one time, of Cox's model."""

EVALUATIONS = ("auto", "compiled")
"""Ways to log-densities: sums or NumPy where these cost less than a compiler, or programs alone."""
LARGE_OFFSET, LARGEST_OFFSET = 20.0, 300.0
"""An offset above the first is seldom a logarithm; of a larger one than the second no mean is
made."""

IMPUTATIONS = 20
IMPUTATIONS_MAX = 1000


@dataclass(frozen=True)
class Question:
    """Request for facts of every site's table; the same in all processes."""

    parsed: Parsed  # the formula
    family: Family  # of the response
    missing: str  # what is done with missing values
    # of columns, the first being the reference; those given are not requested
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # expressions beside the formula, by what they are: weights, exposure, trials
    extra: Mapping[str, Factor] = field(default_factory=dict)
    integrated: bool = False  # whether a level of each site is integrated out at the site
    # how many times missing values are drawn, where they are imputed
    imputations: int = IMPUTATIONS
    imputation_seed: int = 0  # of these draws
    # what is changed in a site's table as it is read, by site
    harmonise: Mapping[str, Harmonisation] = field(default_factory=dict)
    # of the rule that integrates levels out, along each dimension; None: a run chooses
    nodes: int | None = None
    described: Wanted | None = None  # the description requested of the participants; None: nothing
    weights_are: str = "frequency"  # what the weights are, one of `WEIGHTS`
    evaluate: str = "auto"  # how log-densities are computed, one of `EVALUATIONS`
    ties: str = "efron"  # of cox, one of `TIES`
    keep: Factor | None = None  # of the rows that are analysed it is true; None: of all
    persons: str | None = None  # column of the person of each interval; None: each row is one
    by_default: bool = False  # whether levels are integrated out without anybody having said so

    def __post_init__(self) -> None:
        one_of("missing", self.missing, POLICIES)
        one_of("weights_are", self.weights_are, WEIGHTS)
        one_of("ties", self.ties, TIES)
        one_of("evaluate", self.evaluate, EVALUATIONS)
        whole("imputations", self.imputations, 2, IMPUTATIONS_MAX)
        whole("imputation_seed", self.imputation_seed, 0)

    @property
    def samples(self) -> bool:
        """True if weights are those of a sample."""
        return self.weights_are == "sampling"

    @property
    def robust(self) -> bool:
        """True if draws have the spread of a sandwich."""
        return self.samples or self.parsed.cluster is not None

    @property
    def imputes(self) -> bool:
        """True if missing values are imputed."""
        return self.missing == "impute"

    def stays(self, group: Group) -> bool:
        """Return True if the levels of a group term are integrated out at the sites.

        Groups inside the sites are; the sites themselves where that is requested and there are no
        groups inside them, whose integrals would be inside theirs. All others are parameters.
        """
        if group.is_shared:
            return False
        within = (term.by != SITE and not term.is_shared for term in self.parsed.groups)
        return group.by != SITE or (self.integrated and not any(within))

    @property
    def by_site(self) -> bool:
        """True if the model has one likelihood a site, and none a row."""
        return self.family.of_site is not None or any(map(self.stays, self.parsed.groups))

    @property
    def has_rows(self) -> bool:
        """True if a site's likelihood is a product over rows, given levels if there are any."""
        return self.family.of_site is None

    @property
    def tells_levels(self) -> bool:
        """True if a site's own effect is a parameter of the run, which the server sees."""
        fixed = any(SITE in factor.columns for factor in self.parsed.factors.values())
        return fixed or any(not self.stays(group) for group in self.parsed.groups)

    @property
    def names_sites(self) -> bool:
        """True if the name of the site is in a term."""
        every = (*self.parsed.factors.values(), *self.extra.values())
        fixed = any(SITE in factor.columns for factor in every)
        return fixed or any(group.by == SITE for group in self.parsed.groups)

    @property
    def always(self) -> tuple[str, ...]:
        """The columns in which a row must have a value, whatever the policy."""
        extra = [name for factor in self.extra.values() for name in factor.columns]
        if self.samples:  # a propensity may differ by site
            extra = [name for name in extra if name != SITE]
        offset = self.parsed.offset.columns if self.parsed.offset else ()
        cluster = [self.parsed.cluster] if self.parsed.cluster else []
        return tuple(dict.fromkeys([*self.parsed.response_columns, *extra, *offset, *cluster]))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are used."""
        return tuple(dict.fromkeys([*self.always, *self.parsed.columns]))

    def selected(self, table: Table, site: str) -> Table:
        """Return the rows of which `keep` is true; a row in which its value misses is none.

        Raises:
            InputError: it cannot be computed, or is true of no row.
        """
        return table if self.keep is None else rows_where(self.keep, table, site)

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns in which a row must have a value under the policy."""
        return self.columns if self.missing == "complete" else self.always

    def gaps(self, table: Table, site: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return masks of a table's rows: where `keep` is true, and there each column misses."""
        selected = np.ones(rows_of(table), bool)
        if self.keep is not None:
            selected = true_rows(self.keep, table, f"site {site!r}")
        used, _ = self._readable(self.selected(table, site), site)
        gaps = {name: np.zeros(len(selected), bool) for name in used}
        for name, column in used.items():
            gaps[name][selected] = column.missing
        return selected, gaps

    def kept(self, table: Table, site: str) -> Table:
        """Return the columns that are used, in the rows that the policy keeps, and the site's name.

        Raises:
            InputError: an unknown column, or as `consortia.data.columns.without_missing`.
        """
        table = self.selected(table, site)
        if not self.columns:
            raise wrong("formula", f" {self.parsed.text!r} has no column.")
        used, faults = self._readable(table, site)
        faults.check()
        return self._kept(used, table, site)

    def _kept(self, used: Table, table: Table, site: str) -> Table:
        """Return columns that were read in the rows that the policy keeps, and the site's name."""
        where = f"site {site!r}"
        if SITE in table and self.names_sites:
            texts = as_levels(table[SITE])[~table[SITE].missing]
            if np.any(texts != texts[:1]):
                raise InputError(
                    f"{where}: its table has a column {SITE!r} of several values, and {SITE} in a "
                    "formula is the name of the site: give the column another name."
                )
        always = [name for name in self.always if name in used]
        more = {} if self.persons is None else {self.persons: column_of(table, self.persons, where)}
        kept = without_missing({**more, **used}, list(used), always, self.missing, where)
        return self._beside_site(kept, site)

    @staticmethod
    def _beside_site(kept: Table, site: str) -> Table:
        """Return columns, and beside them the name of their site."""
        rows = rows_of(kept)
        return {**kept, SITE: Column("text", np.broadcast_to(site, rows), np.zeros(rows, bool))}

    def _readable(
        self, table: Table, site: str, *, words: bool = False
    ) -> tuple[dict[str, Column], Faults]:
        """Return the columns that are used and can be read, and what is wrong with the others.

        With ``words`` also words that seem to be numbers, and one word in several writings, are
        found.
        """
        used: dict[str, Column] = {}
        faults = Faults()
        for name in self.columns:
            with faults.noted():
                _check_name(table, name, site, self.columns)
            like = _like(table, name)
            stands = name if name in table else like[0] if len(like) == 1 else None
            if stands is None:  # no column has the name, or would once it is renamed
                continue
            with faults.noted(argument=name):
                column = table[stands].with_levels(self.levels.get(name, ()))
                declared = site in self.harmonise and name in self.harmonise[site].missing_values
                if name not in self.numbers and not declared:
                    column = column.as_words(partial(word_kept, name, site))
                if words:
                    self._check_doubt(name, column)
                used[name] = column
                if words:
                    self._check_writing(name, column, site)
        return used, faults

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns of which numbers are made, where they are not strings."""
        every = [*self.parsed.factors.values(), *self.parsed.response, *self.extra.values()]
        every += [factor for factor in (self.parsed.offset, self.parsed.entry) if factor]
        plain = [name for factor in every if factor.kind != "levels" for name in factor.columns]
        of_levels = {self.parsed.response[0].column} if self.names_levels else set()
        return tuple(dict.fromkeys(c for c in plain if c != SITE and c not in of_levels))

    @property
    def names_levels(self) -> bool:
        """True if the response is one of several levels, whatever the column holds."""
        family, column = self.family, self.parsed.response[0].column
        return family.classes or (family.response == "two" and column in self.levels)

    def _check_doubt(self, name: str, column: Column) -> None:
        """Refuse words that look like numbers."""
        if column.doubt and name in self.numbers and name not in self.levels:
            source = "" if column.source is None else f"{column.source.name}: "
            of_response = name in self.parsed.response_columns
            if not (of_response and self.family.response == "two" and column.kind == "text"):
                raise InputError(f"{source}the column {name!r}: {column.doubt}.")

    def _check_writing(self, name: str, column: Column, site: str) -> None:
        """Refuse one word in several writings."""
        if column.kind != "text" and name in self.numbers:
            return
        texts, counts = np.unique(as_levels(column)[~column.missing], return_counts=True)
        of = dict(zip(texts.tolist(), counts.tolist(), strict=True))
        faults = []
        for group in same_loosely(of):
            most = preferred(group, of)
            for other in (writing for writing in group if writing != most):
                row = int(np.flatnonzero(as_levels(column) == other)[0])
                where = f"site {site!r}" if column.source is None else column.source.row(row)
                line = mend(site, f"recode.{key(name)}", f"{text(other)} = {text(most)}")
                faults.append(
                    f"{where}: {name} is {other!r} in {rows_text(of[other])}, and {most!r} in "
                    f"{of[most]}, that differ only in spelling: {line}"
                )
        if faults:
            raise InputError("\n".join(faults)).at(name, site=site)

    def guesses(self, kept: Table, site: str, least: int) -> tuple[Guess, ...]:
        """List the guesses about the columns of `kept`, made in ``least`` rows or more."""
        guesses = [guess for name in self.columns for guess in kept[name].guesses]
        changes = self.harmonise.get(site)
        confirmed = set() if changes is None else {*changes.missing_values}
        for name in self.numbers:
            column = kept[name]
            if column.kind not in ("number", "date") or name in confirmed:
                continue
            for code in suspicious(column.values[~column.missing]):
                value = f"{code.value:.12g}"
                if column.kind == "date":
                    row = int(np.flatnonzero(column.values == code.value)[0])
                    value = text(str(as_levels(column)[row]))
                line = mend(site, "missing_values", f"{key(name)} = [{value}]")
                guesses.append(
                    Guess(
                        name,
                        f"{site}: {name}: {value} is taken as a {column.kind}, in "
                        f"{rows_text(code.rows)}; {code.why}",
                        f"{line} makes it missing, [] confirms it",
                        code.rows,
                    )
                )
        guesses += self._offset_doubt(kept, site)
        if changes is not None and not changes.approved:
            line = mend(site, "", "approved = true")
            sentence = f"{site}: what `consortia init` proposed is applied"
            guesses.append(Guess("", sentence, f"{line} confirms it"))
        return tuple(guess for guess in guesses if not guess.rows or guess.rows >= least)

    def imputed(self, kept: Table, site: str, number: int) -> Table:
        """Return an imputation of the rows of `kept`; equal numbers give equal ones.

        Raises:
            InputError: no value of a column is known at the site.
        """
        where, columns = f"site {site!r}", self.parsed.columns
        named = {f.column for f in self.parsed.factors.values() if is_levels(f, kept)}
        levels = [name for name in columns if name in named or kept[name].kind in ("text", "truth")]
        rng = np.random.default_rng((self.imputation_seed, number, *site.encode()))
        return imputed(kept, columns, levels, self._outcome(kept, where), rng, where)

    def _outcome(self, kept: Table, where: str) -> dict[str, np.ndarray]:
        """Return a covariate's regressors that stand for the response, (rows,) each."""
        if self.family.response == "time":
            time, event = self.response(kept, where)
            return {TIME: cumulative_hazard(time, event), EVENT: event}
        if self.levels_of_response(kept):
            texts = self.parsed.response[0].texts(kept, where)
            return {t: (texts == t).astype(float) for t in np.unique(texts)[1:].tolist()}
        (y,) = self.response(kept, where)
        extras = {name: factor.values(kept, where) for name, factor in self.extra.items()}
        if self.family.response == "count":
            against = (
                extras["trials"] - y + 0.5 if "trials" in extras else extras.get("exposure", 1.0)
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
            name for key, term in self.extra.items() if key != "weights" for name in term.columns
        ]
        needed = dict.fromkeys([*extra, *self.parsed.columns])
        used = {name: column_of(table, name, where) for name in needed}
        if site is None and any(SITE in term.columns for term in self.parsed.factors.values()):
            raise InputError(
                f"formula {self.parsed.text!r} has a coefficient of each site: it says nothing "
                f"about a new one. Name a site, or write (1 | {SITE})."
            ).at("formula")
        filled = set(self.parsed.columns) if self.missing == "indicator" else set()
        offset = self.parsed.offset.columns if self.parsed.offset else ()
        for name in {*needed} - (filled - {*extra, *offset}):
            if count := int(used[name].missing.sum()):
                raise InputError(
                    f"{where}: values are missing in {name!r} of {rows_text(count)}."
                ).at(name)
        rows = rows_of(table)
        return used | {SITE: Column("text", np.full(rows, site or ""), np.zeros(rows, bool))}

    def facts(
        self, table: Table, site: str, least: int = 1, key: bytes | None = None
    ) -> TableFacts:
        """Return a site's facts on its table for all processes.

        Left out are levels with fewer rows than ``least``, and numbers of fewer groups. Digests of
        groups are made with ``key``; without one they are not sent.

        Raises:
            TableError: the table cannot be used, with all that is wrong with it.
        """
        where, every = f"site {site!r}", rows_of(table)
        table = self.selected(table, site)
        used, faults = self._readable(table, site, words=True)
        kept = self._noted_rows(used, table, site, faults)
        moments: dict[str, Any] = {}
        levels: dict[str, tuple[str, ...]] = {}

        def of_numbers(name: str, values: np.ndarray) -> None:
            known = values[~np.isnan(values)]
            if len(known):
                moments[name] = Moments.of(known).plain()

        for factor in self.parsed.factors.values():
            if any(name not in kept or kept[name].kind == "empty" for name in factor.columns):
                continue
            if is_levels(factor, kept):
                if factor.column != SITE and factor.column not in self.levels:
                    levels[factor.text] = frequent_levels(kept[str(factor.column)], least)
                continue
            with faults.noted():
                of_numbers(factor.text, factor.values(kept, where))
        groups: dict[str, tuple[int, tuple[str, ...]]] = {}
        for group in self.parsed.groups:
            if group.by == SITE or group.by not in kept:
                continue
            if not group.is_shared:
                groups[group.by] = groups_told(kept[group.by], least, key)
            elif group.by not in self.levels:
                levels[shared_levels(group.by)] = frequent_levels(kept[group.by], least)
        for name in (part for part in self.parsed.columns if part in kept):
            column = kept[name]
            if self.missing == "indicator" and column.kind not in ("text", "empty"):
                of_numbers(f"column {name}", np.where(column.missing, np.nan, column.values))
        if {*self.parsed.response_columns} <= kept.keys():
            with faults.noted():
                if not self.levels_of_response(kept):
                    for name, values in zip(self.measured, self.response(kept, where), strict=True):
                        of_numbers(name, values)
                elif (name := str(self.parsed.response[0].column)) not in self.levels:
                    levels[RESPONSE] = frequent_levels(kept[name], least)
        if {*self.always} <= kept.keys():
            with faults.noted():
                for name, values in self._beside_response(kept, where).items():
                    of_numbers(name, values)
        shown = {name: column.kind for name, column in used.items()}
        for name in shown.keys() - {*self.numbers, *self.parsed.response_columns}:
            if shown[name] in ("number", "date"):  # of which levels are made
                shown[name] = "text"
        missing = {name: int(column.missing.sum()) for name, column in used.items()}
        if faults:
            of = {text: factor.column for text, factor in self.parsed.factors.items()}
            of |= {shared_levels(part.by): part.by for part in self.parsed.groups}
            of[RESPONSE] = first = self.parsed.response[0].column
            # perhaps at this site alone
            if first is not None and first in kept and kept[first].kind == "text":
                levels[RESPONSE] = frequent_levels(kept[first], least)
            one_of_each = {
                text: _without_writings(column_levels, kept[str(of[text])])
                for text, column_levels in levels.items()
            }
            known = TableFacts(rows_of(table), shown, missing, {}, one_of_each)
            raise faults.joined(TableError(str(faults), known))
        return TableFacts(
            rows_of(table),
            shown,
            missing,
            moments,
            levels,
            {name: column.ordered for name, column in used.items() if column.order},
            self.guesses(kept, site, least),
            groups,
            every - rows_of(table),
        )

    @property
    def of_offset(self) -> tuple[str, ...]:
        """Name of the number around which the intercept is expected; () where there is no offset.

        It is the mean of what a mean is multiplied with, or that of the offset.
        """
        has_offset = self.parsed.offset is not None or "exposure" in self.extra
        if not has_offset or self.family.of_site is not None or self.family.response == "ordered":
            return ()
        return (EXPOSURE,) if self.family.logarithmic else (OFFSET,)

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the numbers that a response is: a time and its event, or one."""
        return (TIME, EVENT) if self.family.response == "time" else (RESPONSE,)

    @property
    def outside_terms(self) -> tuple[str, ...]:
        """Names of the numbers of the response, and of what stands beside the formula."""
        return (*self.measured, *self.of_offset, *((WEIGHT,) if self.samples else ()))

    @property
    def summed(self) -> tuple[str, ...]:
        """Names of the numbers of which moments may travel, whatever a site's columns hold."""
        columns = (f"column {name}" for name in self.parsed.columns if self.missing == "indicator")
        return (*self.parsed.factors, *columns, *self.outside_terms)

    @property
    def shown(self) -> dict[str, str]:
        """Names of the moments that sites compare, by column: of each column as it is once."""
        named = {self.measured[0]: self.parsed.response[0].column}
        named |= {text: factor.column for text, factor in self.parsed.factors.items()}
        return {column: text for text, column in reversed(named.items()) if column}

    def _beside_response(self, kept: Table, where: str) -> dict[str, np.ndarray]:
        """Return the numbers beside the response of which moments travel, by name."""
        numbers = {WEIGHT: self.beside("weights", kept, where)} if self.samples else {}
        for name in self.of_offset:
            total = self.offsets(kept, where)
            multiplied = np.exp(np.minimum(total, LARGEST_OFFSET))
            numbers[name] = multiplied if self.family.logarithmic else total
        return numbers

    def offsets(self, table: Table, where: str) -> np.ndarray:
        """Return the addends of the linear predictor, (rows,): offset and log exposure."""
        addends = np.zeros(rows_of(table))
        if self.parsed.offset is not None:
            addends = addends + self.parsed.offset.values(table, where)
        if "exposure" in self.extra:
            addends = addends + np.log(self.beside("exposure", table, where))
        return addends

    def _offset_doubt(self, kept: Table, site: str) -> list[Guess]:
        """Return that an offset may be meant as an exposure: a count and not its logarithm."""
        offset, hazards = self.parsed.offset, self.family.effect == "hazard ratio"
        if offset is None or offset.column is None or not (self.family.logarithmic or hazards):
            return []
        name = offset.column
        values = kept[name].values[~kept[name].missing]
        counts = bool(((values > 0) & (values == np.round(values))).all())
        if not counts and not (values > LARGE_OFFSET).any():
            return []
        sentence = (
            f"{site}: offset({name}) adds {values.min():g} to {values.max():g} to the logarithm of "
            f"the {'hazard' if hazards else 'rate'}"
        )
        wanted = f"offset(log({name})) divides by it; offset(1 * {name}) confirms it"
        return [Guess(name, sentence, wanted, len(values))]

    def _noted_rows(self, used: Table, table: Table, site: str, faults: Faults) -> Table:
        """Return the rows of the columns that can be read; note where the policy refuses them.

        What else is wrong with them is then found in those that have a response.
        """
        if not used:
            return {}
        try:
            return self._kept(used, table, site)
        except InputError as error:
            faults.take(error)
        always = [used[name].missing for name in self.always if name in used]
        rows = ~np.any(always, axis=0) if always else np.ones(rows_of(used), bool)
        return self._beside_site({name: column.take(rows) for name, column in used.items()}, site)

    def levels_of_response(self, table: Table) -> bool:
        """Return True if the response is one of several levels by name."""
        column = self.parsed.response[0].column
        if self.names_levels or column is None or self.family.response != "two":
            return self.names_levels
        return table[column].kind in ("text", "truth")

    def response(self, table: Table, where: str) -> tuple[np.ndarray, ...]:
        """Return the response of numbers, (rows,); of a time also whether there was an event.

        Raises:
            InputError: it is outside what the family can have.
        """
        kind, first = self.family.response, self.parsed.response[0]
        column = None if first.column is None else table[first.column]
        if column is not None and column.kind == "text":
            doubt = column.doubt or "of two strings is family bernoulli, of several categorical"
            raise InputError(
                f"{where}: the response {first.text} holds strings, and family "
                f"{self.family.name} is of numbers: {doubt}."
            ).at(first.column)
        values = first.values(table, where)
        if kind == "count":  # a share of trials times their number is off by rounding
            near = np.isclose(values, np.round(values), rtol=1e-12, atol=1e-9)
            values = np.where(near, np.round(values), values)
        rules: dict[str, tuple[Any, str]] = {
            "number": (np.isfinite(values), "finite"),
            "two": (np.isin(values, (0, 1)), "0 or 1, True or False, or two strings"),
            "count": ((values >= 0) & (values == np.round(values)), "integers >= 0"),
            "share": ((values > 0) & (values < 1), "between 0 and 1, both excluded"),
            "positive": (values > 0, "> 0"),
            "time": (values > 0, "> 0"),
        }
        right, what = rules[kind]
        self._check(right, "the response", first, what, table, where, values)
        if kind != "time":
            return (values,)
        start, values = self._times(table, where)
        second = self.parsed.response[1]
        column = None if second.column is None else table[second.column]
        if column is not None and column.kind == "text":
            raise InputError(
                f"{where}: the event {second.text} holds strings: write which is the event, as in "
                f"{second.text} == 'dead'."
            )
        event = second.values(table, where)
        self._check(np.isin(event, (0, 1)), "the event", second, "0 or 1", table, where, event)
        if (entry := self.parsed.entry) is not None:
            right = (start >= 0) & (start < values)
            what = ">= 0 and before the stop"
            self._check(right, "the start", entry, what, table, where, start)
        return values, event

    def entries(self, table: Table, where: str) -> np.ndarray:
        """Return when each row's time begins, (rows,): 0 unless the formula says otherwise."""
        return self._times(table, where)[0]

    def _times(self, table: Table, where: str) -> tuple[np.ndarray, np.ndarray]:
        """Return start and stop of each row, (rows,); those that rounding sets apart are equal."""
        stop, entry = self.parsed.response[0].values(table, where), self.parsed.entry
        if entry is None:
            return np.zeros(len(stop)), tied_times(stop)
        start, stop = tied_times(np.stack([entry.values(table, where), stop]))
        return start, stop

    def beside(self, name: str, table: Table, where: str) -> np.ndarray:
        """Return an expression beside the formula: weights, exposure or trials, (rows,).

        Raises:
            InputError: an exposure or a number of trials is not positive, or a weight negative.
        """
        factor = self.extra[name]
        values = factor.values(table, where)
        sign, refused = (">=", values < 0) if name == "weights" else (">", values <= 0)
        if refused.any():
            raise InputError(
                f"{where}: {name} {factor.text} must be {sign} 0 in every row"
                f"{self._first(name, factor, table, refused, values)}."
            ).at(**factor.place(table, refused))
        return values

    def _check(
        self,
        right: np.ndarray,
        name: str,
        factor: Factor,
        what: str,
        table: Table,
        where: str,
        values: np.ndarray,
    ) -> None:
        if not right.all():
            raise InputError(
                f"{where}: {name} {factor.text} is outside the family {self.family.name} in "
                f"{int((~right).sum())} of {len(right)} rows: its values must be {what}"
                f"{self._first(name.removeprefix('the '), factor, table, ~right, values)}."
            ).at(**factor.place(table, ~right))

    def _first(
        self, part: str, factor: Factor, table: Table, wrong: np.ndarray, values: np.ndarray
    ) -> str:
        """Describe the first of some wrong values, and the remedy."""
        trials = self.extra["trials"].text if "trials" in self.extra else ""
        counterpart = self.parsed.response[0].text if part == "start" else trials
        kind = self.family.response
        remedy = remedies(part, kind, factor.text, values[wrong], counterpart)
        return factor.first(table, wrong, remedy)


def rows_where(keep: Factor, table: Table, site: str) -> Table:
    """Return the rows of a table of which an expression is true.

    Raises:
        InputError: it cannot be computed, or is true of no row.
    """
    where = f"site {site!r}"
    rows = np.flatnonzero(true_rows(keep, table, where))
    if not len(rows):
        raise InputError(f"{where}: keep {keep.text} is true of none of the {rows_of(table)} rows.")
    if isinstance(table, LazyTable):
        return table.take(rows)
    return {name: column.take(rows) for name, column in table.items()}


def true_rows(keep: Factor, table: Table, where: str) -> np.ndarray:
    """Return a mask of the rows of a table of which an expression is true."""
    for name in keep.columns:
        column_of(table, name, where)
    return keep.values(table, where) > 0


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
    frequent = values[counts >= least].tolist()
    return tuple(label for label in column.order if label in frequent) or in_order(frequent)


def shared_levels(column: str) -> str:
    """Return the name of the levels of groups that are one set over all sites."""
    return f"shared({column})"


def groups_told(column: Column, least: int, key: bytes | None) -> tuple[int, tuple[str, ...]]:
    """Return the number of a site's groups, 0 for fewer than allowed, and digests of their labels.

    Nobody without the key can tell which label a digest is of.
    """
    labels = np.unique(as_levels(column)[~column.missing]).tolist()
    count = len(labels) if len(labels) >= least else 0
    if key is None:
        return count, ()
    return count, tuple(sorted(label_digest(label, key) for label in labels))


def _without_writings(levels: Sequence[str], column: Column) -> tuple[str, ...]:
    """Return levels of a column without rarer writings of another one."""
    counts = Counter(as_levels(column).tolist())
    others = {
        word for group in same_loosely(levels) for word in group if word != preferred(group, counts)
    }
    return tuple(word for word in levels if word not in others)


def _like(table: Table, name: str) -> list[str]:
    """Return the columns whose names differ from one only in spelling."""
    return [column for column in table if loosely(column) == loosely(name) and column != name]


def _check_name(table: Table, name: str, site: str, used: Sequence[str]) -> None:
    """Refuse the name of no column, and one of two that differ in their writing."""
    like = _like(table, name)
    if not like and name in table:
        return
    where = table.head if isinstance(table, LazyTable) and table.head else f"site {site!r}"
    if not like:
        close = nearest(name, [column for column in table if column not in used])
        old = close if close is not None else "NAME THERE"
        line = mend(site, "rename", f"{text(old)} = {text(name)}")
        raise InputError(
            f"{where}: {name!r} is not a column: {unknown(name, table)}. Where it has another "
            f"name: {line}"
        ).at(name)
    line = mend(site, "rename", f"{text(like[0])} = {text(name)}")
    if name not in table:
        raise InputError(f"{where}: {name!r} is not a column, but {like[0]!r} is: {line}").at(name)
    other = mend(site, "rename", f"{text(like[0])} = {text(f'other {like[0]}')}")
    raise InputError(
        f"{where}: the names {name!r} and {like[0]!r} differ only in spelling: give the "
        f"one that is not meant another name: {other}"
    )


def in_order(levels: Sequence[str]) -> tuple[str, ...]:
    """Return levels sorted, as numbers where all are numbers."""
    try:
        return tuple(sorted(levels, key=float))
    except ValueError:
        return tuple(sorted(levels))


def levels_given(levels: Any) -> dict[str, tuple[str, ...]]:
    """Return the levels of columns as a user gives them, as strings.

    Raises:
        InputError: they are no dict of lists of at least two distinct levels.
    """
    if levels is None:
        return {}
    if not isinstance(levels, Mapping):
        raise wrong("levels", f" is {levels!r}: give a dict, such as {{'stage': ['I', 'II']}}.")
    given = {}
    for name, values in levels.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise wrong("levels", f"[{name!r}] is {values!r}: give a list, the reference first.")
        texts = tuple(level(value) for value in values)
        if len(texts) < 2 or len(set(texts)) < len(texts):
            raise wrong("levels", f"[{name!r}]: give at least two levels, each once.")
        given[str(name)] = texts
    return given
