"""A formula that all sites have agreed on: its model, and what draws say in the user's terms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.core.arguments import unknown
from consortia.core.model import Model
from consortia.core.parameters import (
    draw_imputations,
    draws_to_pytree,
    sampled_draws,
    spaced,
    structure_of,
)
from consortia.data.columns import Column, Guess, Table, as_levels, column_of, rows_of
from consortia.data.description import SiteDescription
from consortia.data.sites import Sites
from consortia.data.tables import read_table
from consortia.diagnostics.natural import natural
from consortia.errors import InputError, wrong
from consortia.models.regression.baseline import Baseline, SiteRows, new_baseline, site_baseline
from consortia.models.regression.checking import (
    VARIANCES,
    PredictiveCheck,
    checked,
    joined,
    of_persons,
    sums_of,
)
from consortia.models.regression.correlations import LKJ
from consortia.models.regression.curves import Curves, curves
from consortia.models.regression.density import CORRELATION, Density
from consortia.models.regression.design import new_rows, time_rows
from consortia.models.regression.estimates import Estimates, effects_of, estimates_of
from consortia.models.regression.families import Family
from consortia.models.regression.fit_of_counts import (
    Counts,
    checked_counts,
    counts_of_levels,
    counts_of_times,
)
from consortia.models.regression.formula import SITE
from consortia.models.regression.heterogeneity import SiteEffects, site_effects, varying_between
from consortia.models.regression.margins import (
    MarginalEffects,
    Rows,
    averages_of,
    chosen,
    in_order_of,
    jumps,
    left_out,
    of_many,
    scale_of,
    summarised,
)
from consortia.models.regression.participants import TableOne, table_one
from consortia.models.regression.persons import persons_of
from consortia.models.regression.prediction import (
    NewRows,
    blocks_of,
    censored,
    chains_of,
    levels_given_rows,
    levels_of_new,
    of_chains,
    predicted,
    shift_of_groups,
    survival,
)
from consortia.models.regression.priors import Prior, read_prior
from consortia.models.regression.proportional import ProportionalHazards, changes, log_time_sums
from consortia.models.regression.question import RESPONSE, in_order
from consortia.models.regression.registration import Registration
from consortia.models.regression.risk import curve_times, restricted_mean
from consortia.models.regression.scores import Scores
from consortia.models.regression.sensitivity import Sensitivity, lines_of, usual_priors
from consortia.models.regression.specification import Specification
from consortia.store.metadata import Metadata, recorded

MOST_DRAWS = 4000
"""Draws for which levels are drawn at sites and effects are averaged over rows, in tables: the ends
of 95 % intervals are then good to 0.04 sd. Chosen, not measured."""

SIMULATED_AT_ONCE = 8
"""Draws at least for which the responses of a site's rows are simulated together: an array of a
million rows has 64 MB."""

MANY_SITES, FEWER_DRAWS = 300, 1000
"""Sites beyond which levels are drawn for fewer draws, each of which takes 8 µs a site of 20 rows;
the ends of the sites' intervals are then good to 0.08 sd. Chosen."""


def _groups_of(column: Column) -> np.ndarray:
    """Return the index of each row's group, in the order of the groups' names."""
    texts = as_levels(column)
    places = {name: index for index, name in enumerate(in_order(np.unique(texts).tolist()))}
    return np.array([places[name] for name in texts.tolist()])


@dataclass(frozen=True, eq=False)
class Regression:
    """A formula, agreed on by all sites; what `consortia.regression` returns.

    Attributes:
        specification: what the sites agreed on.
        density: parameters, priors and likelihood.
        model: the model, for `consortia.sample`.
        sites: the rows, for `consortia.sample`; with ``missing="impute"``, where values miss, a
            tuple of the completed rows, one a time that they were drawn.
        notes: what the user should know.
        groups: of each site whose rows are here, the names of the groups inside it whose levels
            stay there.
        tables: of each site whose rows are here, the columns that are used.
        descriptions: description of each site's participants.

    Example:
        >>> import consortia, numpy as np
        >>> table = {"sick": np.array([0, 1, 1, 0]), "age": np.array([40.0, 60.0, 70.0, 50.0])}
        >>> made = consortia.regression("sick ~ age", {"a": table, "b": table}, family="bernoulli")
        >>> made.names, sorted(made.priors)
        (('age',), ['age', 'intercept'])
    """

    specification: Specification
    density: Density
    model: Model
    sites: Sites | tuple[Sites, ...]
    notes: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    descriptions: Mapping[str, SiteDescription] = field(default_factory=dict)

    @property
    def rows(self) -> Sites:
        """The rows of all sites; of several imputations those of the first."""
        return self.sites if isinstance(self.sites, Sites) else self.sites[0]

    def imputation(self, number: int) -> Regression:
        """Return the regression of one imputation, with its rows; the first has the number 0.

        Raises:
            InputError: there is none of this number.
        """
        if isinstance(self.sites, Sites):
            raise InputError("imputation: no value is imputed; give missing='impute'.")
        index = arguments.whole("number", number, 0, len(self.sites) - 1)
        question = self.specification.question
        tables = {name: question.imputed(table, name, index) for name, table in self.tables.items()}
        return replace(self, sites=self.sites[index], tables=tables)

    @property
    def readings(self) -> tuple[Guess, ...]:
        """Interpretations of the tables as they were read; some of them are to be confirmed."""
        return self.specification.readings

    @property
    def family(self) -> Family:
        """The family of the response."""
        return self.density.family

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients."""
        return self.specification.names

    @property
    def priors(self) -> Mapping[str, Prior | LKJ]:
        """The prior of every parameter in its natural units; print one to see it in words."""
        if self.density.earlier is not None:
            return dict(self._earlier_priors)
        priors: dict[str, Prior | LKJ] = dict(self.density.priors)
        correlation = self.density.correlation_prior
        return priors if correlation is None else priors | {CORRELATION: correlation}

    @cached_property
    def _earlier_priors(self) -> dict[str, Prior]:
        """The normal law nearest to an earlier posterior, of intercept and coefficients."""
        earlier = self.density.earlier
        if earlier is None or self.density.lead:
            return {}
        drawn = self.density.unravel(earlier.draw(np.random.default_rng(0), MOST_DRAWS))
        values = {"intercept": drawn["intercept"]} if self.density.intercept else {}
        if self.names:
            slopes = self.density.natural(drawn)["coefficients"]
            values |= dict(zip(self.names, slopes.T, strict=True))
        return {
            name: Prior(
                "normal",
                tuple(float(f"{v:.4g}") for v in (x.mean(), x.std() / earlier.weight**0.5)),
            )
            for name, x in values.items()
        }

    @property
    def labels(self) -> dict[str, list[list[str] | None]]:
        """Names along the axes of the natural parameters."""
        return self.density.labels

    @property
    def metadata(self) -> Metadata:
        """Record kept beside the draws of a run by `consortia.sample`: names, units, priors."""
        spec = self.specification
        axes = {name: axes for name, axes in self.labels.items() if name in self.model.init}
        sampled = {
            "effects_in_sd": ("effects", ""),
            "log_sd": ("sd", "log "),
            "correlation_score": (CORRELATION, "score of "),
            "coefficients_score": ("coefficients", "score of "),
            "intercept_score": ("intercept", "score of "),
        }
        for name, (parameter, scale) in sampled.items():
            if parameter in self.labels and name in self.model.init:
                *lead, last = self.labels[parameter]
                axes[name] = [*lead, last and [scale + label for label in last]]
        changes = spec.question.harmonise.items()
        changed = [line for site, made in changes for line in made.sentences(site)]
        settings: dict[str, Any] = {
            "formula": spec.question.parsed.text,
            "family": self.family.name,
            "columns": list(self.names),
            "priors": {name: str(prior) for name, prior in self.priors.items()},
            "notes": list(self.notes),
        }
        question = spec.question
        settings["missing"] = question.missing
        settings["agreed"] = Registration.of(spec).plain()
        settings["levels"] = {name: list(level_names) for name, level_names in spec.levels.items()}
        settings["beside"] = {name: factor.text for name, factor in question.extra.items()}
        optional: dict[str, Any] = {
            "keep": question.keep and question.keep.text,
            "persons": question.persons,
            "weights_are": question.weights_are if question.samples else None,
            "cluster": question.parsed.cluster,
            "ties": question.ties if question.ties != "efron" else None,
            "event": spec.event,
            "between": self.density.between_sites,
            "participants": self._participants() if self.descriptions else None,
            "readings": [*changed, *map(str, self.readings)],
            "doubts": [str(reading) for reading in self.readings if reading.confirm],
        }
        settings |= {name: value for name, value in optional.items() if value}
        return Metadata(spec.question.parsed.text, axes, settings)

    def _participants(self) -> dict[str, Any]:
        """Return the sites' descriptions of their participants, as plain values."""
        wanted = self.specification.question.described
        followed = {} if wanted is None else {"times": wanted.times, "kinds": wanted.kinds}
        sites = {name: asdict(description) for name, description in self.descriptions.items()}
        return {"rows": list(self.specification.rows), "sites": sites, **followed}

    def table_one(self) -> TableOne:
        """Return who was analysed, by site and overall: rows, missing values, characteristics.

        It holds what the sites send, none of it of fewer rows than ``describe`` says; without it,
        where all rows are in this process, everything.

        Raises:
            InputError: ``describe`` was not given, and rows are in other processes.
        """
        if not self.descriptions:
            raise InputError(
                "table_one: the rows are in other processes, which send nothing of participants "
                "unless the study requests it: give regression(..., describe={'cells': 5})."
            )
        spec = self.specification
        keep, persons = spec.question.keep, spec.question.persons or ""
        text = "" if keep is None else keep.text
        return table_one(self.descriptions, spec.rows, text, persons, [*spec.levels])

    def survival_curves(self) -> Curves:
        """Return Kaplan-Meier and cumulative incidence of all sites at the agreed times.

        Raises:
            InputError: no times were agreed on, or all sites have cells that are too small.
        """
        wanted = self.specification.question.described
        if wanted is None or not wanted.times:
            raise InputError(
                "survival_curves: give regression(..., describe={'times': [...]}), times on which "
                "all sites agree beforehand."
            )
        followups = {name: d.followup for name, d in self.descriptions.items() if d.followup}
        estimates = curves(followups, wanted.times, wanted.kinds)
        if estimates is None:
            raise InputError(
                "survival_curves: there is no time before and after which all sites have enough "
                "events and ends of follow-up to report their number: take other times, fewer of "
                "them, or no 'by'."
            )
        return estimates

    def __str__(self) -> str:
        """Return formula, family, priors and notes as text."""
        question = self.specification.question
        counted, sites = self.specification.rows, len(self.specification.sites)
        where = "1 site" if sites == 1 else f"{sites} sites"
        rows = f"{sum(counted)} rows at {where}" if counted else where
        lines = [
            f"{question.parsed.text}, family {self.family.name} ({self.family.link}), {rows}",
            "priors, of intercept and levels of groups where all numbers have their mean:",
        ]
        width = max(map(len, self.priors), default=0)
        lines += [f"  {name.ljust(width)}  {prior}" for name, prior in self.priors.items()]
        lines += [f"* {note}" for note in self.notes]
        lines += [f"{'?' if reading.confirm else '*'} {reading}" for reading in self.readings]
        return "\n".join(lines)

    __repr__ = __str__

    def natural(self, tree: Any) -> Any:
        """Return the draws of a result in the units of the columns, with names along the axes.

        Args:
            tree: result of a run of this model.

        Returns:
            `xarray.Dataset` of (chain, draw, ...): intercept, coefficients, the parameters of the
            family on their natural scale, standard deviations and correlations of levels and
            slopes of groups; all at zero of the columns, where lme4 has them.
        """
        self._check_origin(tree)
        return natural(tree, self.model, self.labels)

    def _check_origin(self, tree: Any) -> None:
        """Refuse draws whose record says that they are of another formula, family or coding.

        Their shapes may be equal: other columns' names would stand beside their numbers. Spaces
        make no other formula.
        """
        settings = recorded(tree, "settings") or {}
        kept = settings.get("regression", settings)
        if not {"formula", "family"} <= set(kept):
            return
        then = kept["formula"], kept["family"], tuple(kept.get("columns", self.names))
        now = self.specification.question.parsed.text, self.family.name, self.names
        for what, theirs, ours in zip(("formula", "family", "columns"), then, now, strict=True):
            if "".join(str(theirs).split()) != "".join(str(ours).split()):
                raise InputError(
                    f"tree: it is the result of a regression with the {what} {theirs!r}; of this "
                    f"one it is {ours!r}. Ask the regression that was sampled."
                ).at("tree")

    def estimates(self, tree: Any, level: float = 0.95) -> Estimates:
        """Return the table of effects: ratios where the link has them, else differences.

        Args:
            tree: result of a run of this model.
            level: probability inside the central interval.
        """
        natural = self.natural(tree)
        draws = {str(name): np.asarray(natural[name]) for name in natural.data_vars}
        return estimates_of(draws, self.labels, self.family.effect, level, self.notes)

    def contrasts(self, tree: Any, factor: str, level: float = 0.95) -> Estimates:
        """Return the effect of each level of a factor against each other one.

        Args:
            tree: result of a run of this model.
            factor: as it is written in the formula, such as "arm" or "C(stage)".
            level: probability inside the central interval.

        Raises:
            InputError: the factor has no levels, or is in a product, so that one level against
                another is not a single number; then use `marginal_effects`.
        """
        spec = self.specification
        if factor not in spec.levels or factor == RESPONSE:
            known = [name for name in spec.levels if name != RESPONSE]
            raise InputError(f"contrasts: {factor!r}: {unknown(factor, known)}.").at("factor")
        inside = [term for term in spec.question.parsed.terms if factor in term]
        if self.density.lead or inside != [(factor,)]:
            raise InputError(
                f"contrasts: {factor} is in a product, or the response has several levels without "
                "an order: call marginal_effects(tree, columns=[...])."
            ).at("factor")
        every = np.asarray(self.natural(tree)["coefficients"], float)
        none = np.zeros(every.shape[:2])
        names = {key: f"{factor}[{key}]" for key in spec.levels[factor]}
        of = {
            key: every[..., spec.names.index(name)] if name in spec.names else none
            for key, name in names.items()
        }
        pairs = [(key, other) for other, key in itertools.combinations(of, 2)]
        draws = {"coefficients": np.stack([of[key] - of[other] for key, other in pairs], axis=-1)}
        labels = {"coefficients": [[f"{factor}: {key} − {other}" for key, other in pairs]]}
        return estimates_of(draws, labels, self.family.effect, level)

    @property
    def differs_by_site(self) -> bool:
        """True if the formula has levels or slopes by site."""
        return any(block.by == SITE for block in self.specification.blocks)

    def by_site(self, tree: Any, level: float = 0.95, seed: int = 0) -> SiteEffects:
        """Return the differences between sites: each site's effect, the common one, the spread.

        Where levels are integrated out, those of the sites are drawn whose rows are in this
        process, for 4,000 of the draws at most (1,000 of more than 300 sites), evenly spaced; the
        other sites have no line.

        Args:
            tree: result of a run of this model.
            level: probability inside the central intervals.
            seed: of a new site's effects, and of levels that are drawn at sites.

        Returns:
            The table, which draws its forest plot (`SiteEffects.forest`). A level is relative to
            the common one where all numbers have their mean; a slope is the site's coefficient.

        Raises:
            InputError: the formula has no levels or slopes by site.
        """
        spec, params = self.specification, self._flat(tree)
        if not self.differs_by_site:
            raise wrong("formula", f" has no term of sites for by_site: write (1 | {SITE}).")
        if spec.grouping == SITE:
            kept = spaced(len(params["log_sd"]), self._draws_of_levels)
            params = {name: values[kept] for name, values in params.items()}
        natural = self.density.at_mean(params)
        here = [spec.sites[index] for index in self.rows.here]
        staying = {}
        if spec.grouping == SITE:
            staying = {name: self._levels(params, name, seed)[:, 0] for name in here}
        varying = varying_between(self.density, natural, staying)
        notes: tuple[str, ...] = ()
        if spec.grouping == SITE and len(here) < len(spec.sites):
            notes = ("the levels of other sites stay there",)
        return site_effects(varying, self.family.effect, level, seed, notes)

    def sensitivity(
        self, tree: Any, priors: Sequence[str] | None = None, level: float = 0.95
    ) -> Sensitivity:
        """Return spread and common effect under other priors of the spread between sites.

        With three to six sites this prior decides much. The draws are weighted, nothing is sampled.

        Args:
            tree: result of a run of this model.
            priors: in words; when None half_normal(0.5), half_normal(1), half_cauchy(0.5) and
                half_student_t(3, 2.5), in units of the predictor over the column's sd.
            level: probability inside the central intervals.

        Raises:
            InputError: the formula has no levels or slopes by group, or a prior cannot be read.
        """
        spec, density, effect = self.specification, self.density, self.family.effect
        blocks = [(i, block) for i, block in enumerate(spec.blocks) if not block.smooth]
        if not blocks:
            raise wrong("formula", f" has no group term for sensitivity: write (1 | {SITE}).")
        natural = density.at_mean(self._flat(tree))
        lines = []
        for index, block in blocks:
            unit = density.spread / density.slope_sd(block)
            others = usual_priors(unit)
            if priors is not None:
                others = [read_prior("sd", text, 0.0) for text in priors]
            common = None
            if block.term in spec.names and not density.lead:
                column = np.asarray(natural["coefficients"])[:, spec.names.index(block.term)]
                common = effects_of(column, effect)
            prior, spread = self.density.priors[block.name], np.asarray(natural["sd"])[:, index]
            term = f"{block.term} | {block.by}"
            kept = [other for other in others if str(other) != str(prior)]
            lines += lines_of(term, prior, kept, spread, common, level)
        return Sensitivity(effect or "difference", tuple(lines), level)

    def predict(
        self,
        tree: Any,
        table: Any,
        site: str | None = None,
        *,
        at: Sequence[float] | None = None,
        responses: bool = False,
        new_groups: bool = False,
        seed: int = 0,
    ) -> Any:
        """Return predictions for new rows, at one of the sites or at a new one.

        Args:
            tree: result of a run of this model.
            table: the rows, as one of ``sites``; the response need not be there.
            site: whose levels they have; None for a site that is not among them, whose levels and
                slopes are drawn from their law, as those of all groups inside it are. A group that
                the site has, by its label, keeps its levels and slopes.
            at: times, of families with ``Surv``. Of cox the baseline hazard is drawn given the
                rows of the site, or of all sites for a new one, which must be in this process.
            responses: draw a response for each row, in the place of its mean.
            new_groups: take groups that the site does not have for new ones, drawn from their law.
            seed: of what is drawn.

        Returns:
            `xarray.DataArray` of (chain, draw, row): means; of ordinal and categorical also
            (..., class) probabilities; with ``at`` (..., time) the probabilities of no event before
            each time; with ``responses`` numbers, or indices of levels.

        Raises:
            InputError: a column is not there, a value misses, the site or a group is unknown, or
                its levels or baseline stay there and its rows are not in this process, or a time
                is after the end of its follow-up.
        """
        given = self._prepared(tree, table, site, seed, new_groups=new_groups)
        rows, spec, coords, dims = given.rows, self.specification, dict[str, Any](), ["row"]
        if responses:
            if self.family.response == "time":
                rows = censored(spec, rows, 1.0)
            rng = np.random.default_rng(seed + 1)
            values = self.density.simulated(rng, given.params, rows, given.shift)
        elif at is not None:
            times = self._times(at)
            values = np.exp(-self._hazards(given, times))
            dims, coords = [*dims, "time"], {"time": times}
        else:
            values = predicted(self.density, given.params, rows, given.shift)
            if self.family.classes:
                dims, coords = [*dims, "class"], {"class": list(spec.levels[RESPONSE])}
        return of_chains(tree, values, dims, coords)

    def restricted_mean(
        self,
        tree: Any,
        table: Any,
        site: str | None = None,
        *,
        until: float,
        new_groups: bool = False,
        seed: int = 0,
    ) -> Any:
        """Return the mean time without the event, up to a time: the area under survival.

        Args:
            tree: result of a run of this model, of a family with ``Surv``.
            table: people, as `predict` takes them.
            site: whose baseline and levels they have; None for a new one.
            until: the time.
            new_groups: as `predict` takes it.
            seed: of what is drawn; equal seeds give differences within the same site.

        Returns:
            `xarray.DataArray` of (chain, draw, row), in units of time.

        Raises:
            InputError: as `predict`, or follow-up ends before the time.
        """
        (end,) = self._times([until])
        given = self._prepared(tree, table, site, seed, new_groups=new_groups)
        times, steps = self._curve_times(site, end)
        means = [
            restricted_mean(hazards, times, steps=steps)
            for hazards in self._hazard_curves(given, times)
        ]
        return of_chains(tree, np.stack(means, axis=1), ["row"])

    def _curve_times(self, site: str | None, end: float) -> tuple[np.ndarray, bool]:
        """Return times of a curve up to an end, and True if it is constant between them."""
        steps = self.family.of_site is not None and site is not None
        sites = [self._site_rows(str(site))] if steps else []
        return curve_times(self.specification, sites, end), steps

    def _prepared(
        self, tree: Any, table: Any, site: str | None, seed: int, *, new_groups: bool
    ) -> NewRows:
        """Return new rows as the model takes them, with the levels of groups."""
        spec = self.specification
        if site is not None and site not in spec.sites:
            raise InputError(
                f"site {site!r}: {unknown(site, spec.sites)}. None stands for a new one."
            ).at("site")
        where = "the rows to predict"
        read = read_table(table, where)
        rows, params = new_rows(spec, read, where, site), self._flat(tree)
        known = None
        if site is not None and spec.grouping == SITE:
            known = self._levels(params, site, seed)[:, 0]
        groups = {
            block.by: _groups_of(column_of(read, block.by, where))
            for block in spec.blocks
            if block.by not in ("", SITE)
        }
        fitted = self._levels_of_groups(read, params, site, seed, new_groups=new_groups)
        by_group = rows.pop("by_group")
        shift = shift_of_groups(
            self.density, params, by_group, groups, known, seed, fitted, new_site=site is None
        )
        return NewRows(params, rows, shift, read, site, seed)

    def _hazards(
        self, given: NewRows, times: Sequence[float], drawn: Baseline | None = None
    ) -> np.ndarray:
        """Return cumulative hazards at the times, (draws, rows, times).

        ``drawn`` is the baseline of cox at the times, where it was drawn already.
        """
        if self.family.of_site is None:
            batches = [censored(self.specification, given.rows, time) for time in times]
            free = survival(self.density, given.params, batches, given.shift)
            return -np.log(np.maximum(free, np.finfo(float).tiny))  # far beyond the last event
        drawn = drawn or self._baseline(given.params, given.site, times, given.seed)
        where = "a new site" if given.site is None else f"site {given.site!r}"
        strata = drawn.of_rows(self.specification, given.table, times, where)
        eta = self.density.predictor(given.params, given.rows) + given.shift
        return drawn.hazards[:, strata] * np.exp(eta)[..., None]

    def _hazard_curves(self, given: NewRows, times: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the cumulative hazards of each row, (draws, times), the first time being 0."""
        drawn, after = None, times[1:].tolist()
        if self.family.of_site is not None:
            drawn = self._baseline(given.params, given.site, after, given.seed)
        for row in given.split():
            hazards = self._hazards(row, after, drawn)[:, 0]
            yield np.concatenate([np.zeros_like(hazards[:, :1]), hazards], axis=1)

    def _site_rows(self, site: str) -> SiteRows:
        """Return the rows of a site for its baseline hazard.

        Raises:
            InputError: they are in another process, or some of their values are drawn.
        """
        if not isinstance(self.sites, Sites):
            raise InputError(
                "at: values are imputed: ask one, imputation(0).predict(...), with the draws "
                "given its rows."
            ).at("at")
        if site not in self.tables:
            raise InputError(
                f"at: the baseline hazard of site {site!r} stays there, and its rows are in "
                "another process: predict where they are. weibull and piecewise_exponential have "
                f"a baseline of few numbers that all sites share, and with (1 | {SITE}) that of a "
                "new one."
            ).at("at")
        rows = {key: np.asarray(values) for key, values in self.sites.site(site).items()}
        return SiteRows(rows, self.tables[site])

    def _baseline(
        self, params: Mapping[str, np.ndarray], site: str | None, times: Sequence[float], seed: int
    ) -> Baseline:
        """Draw the cumulative baseline hazard of a site, or of a new one, at the times."""
        sites = self.specification.sites
        if site is not None:
            rng = np.random.default_rng((seed, sites.index(site)))
            return site_baseline(self.density, params, self._site_rows(site), times, rng)
        if len(sites) < 2:
            raise InputError(
                "site: name the only site of this run. A run of several sites with weibull or "
                f"piecewise_exponential and (1 | {SITE}) has a new site's hazard."
            ).at("site")
        every = [self._site_rows(name) for name in sites]
        return new_baseline(self.density, params, every, times, np.random.default_rng(seed))

    def _levels_of_groups(
        self,
        table: Table,
        params: Mapping[str, np.ndarray],
        site: str | None,
        seed: int,
        *,
        new_groups: bool,
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return a site's groups of a table, and their levels and slopes; None of no site.

        The groups are in the order of `_groups_of`.
        """
        by = self.specification.grouping
        if site is None or by in (None, SITE):
            return None
        known = self.groups.get(site)
        if known is None and not new_groups:
            raise InputError(
                f"predict: the levels of {by} stay at site {site!r}, whose rows are not in this "
                "process: predict there, or give new_groups=True, which takes all for new ones."
            )
        places = {name: index for index, name in enumerate(known or ())}
        labels = as_levels(column_of(table, str(by), "the rows to predict"))
        names = in_order(np.unique(labels).tolist())
        if not new_groups and (others := [label for label in names if label not in places]):
            raise InputError(
                f"predict: site {site!r} has no {by} {others[0]!r}: {unknown(others[0], places)}. "
                "new_groups=True takes it for a new one, whose levels are drawn from their law."
            ).at(by, site=site)
        which = np.array([index for index, label in enumerate(names) if label in places], int)
        columns = [places[label] for label in names if label in places]
        return (which, self._levels(params, site, seed)[:, columns]) if columns else None

    def _times(self, at: Sequence[float]) -> list[float]:
        if self.family.response != "time":
            raise wrong("at", f": family {self.family.name!r} has no probabilities of times.")
        return [arguments.positive("at", float(time)) for time in at]

    @property
    def has_margins(self) -> bool:
        """True if `marginal_effects` can be computed of a mean, over the rows of all sites."""
        everywhere = len(self.tables) == len(self.specification.sites)
        return everywhere and self.family.predict is not None and bool(self.names)

    def marginal_effects(
        self,
        tree: Any,
        data: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        *,
        at: Sequence[float] | None = None,
        level: float = 0.95,
        draws: int = MOST_DRAWS,
        seed: int = 0,
    ) -> MarginalEffects:
        """Return each column's effect on the mean response, averaged over the rows.

        Of a number it is the average derivative of the mean, of levels the average difference
        between each level and the reference, where all else in a row is as it is: over the rows of
        all sites, and over those of each. The mean is a probability for bernoulli and binomial (of
        binomial averaged over the trials), and the count that a row's exposure makes for poisson
        and negative_binomial; of ordinal and categorical the probability of each level.
        Rows count as their weights say, and a person of several intervals once; a row in which a
        column misses has no part in its effect. A column that cannot be moved a little from its
        values, as that of ``sqrt(z)`` at 0, has none, and a note says so.

        Args:
            tree: result of a run of this model.
            data: other rows, by the names of sites whose levels they have, each a table as one of
                ``sites``; the response need not be there, and groups inside a site are new ones.
                When None the model's own rows, of the sites whose rows are in this process.
            columns: whose effects are wanted; when None all that are in a term.
            at: times, of families with ``Surv``, which need them: the effect on the probability of
                no event before each.
            level: probability inside the central intervals.
            draws: so many at most, evenly spaced over those of all chains.
            seed: of levels that are drawn at sites, see `levels_of`, and of new groups.

        Returns:
            The table, with the effect of each draw (`MarginalEffects.draws`).

        Raises:
            InputError: a column is in no term, none of them can be moved, the family has no mean,
                a site is unknown, or no rows are in this process.
        """
        spec, family = self.specification, self.family
        arguments.positive("level", level, below=1.0)
        names = chosen(spec, columns)
        if family.predict is None and at is None:
            raise InputError(
                f"marginal_effects: family {family.name!r} has no mean to change; give at=[...], "
                "times at which the probability of no event so far is wanted."
            ).at("at")
        times = None if at is None else self._times(at)
        notes, new = jumps(spec, names), data is not None
        if data is not None:
            for name in data:
                if name not in spec.sites:
                    raise wrong("data", f": site {name!r}: {unknown(name, spec.sites)}.")
            given = {name: read_table(table, f"site {name!r}") for name, table in data.items()}
        elif not self.tables:
            raise InputError(
                "marginal_effects: they are averages over rows, and those of no site are in this "
                "process: give data={site: table}, or run it where rows are."
            )
        elif len(self.tables) < len(spec.sites):
            away = ", ".join(site for site in spec.sites if site not in self.tables)
            notes += (f"without the rows of {away}, which are in other processes",)
        params = self._flat(tree)
        size = len(next(iter(params.values())))
        most = arguments.whole("draws", draws, 2)
        every = spaced(size, max(self._draws_of_levels, most))
        kept = every[spaced(len(every), most)]
        parts = [(self, kept)]
        if data is None and not isinstance(self.sites, Sites):
            parts = self._split_draws(tree, kept, size)
        averaged, left = [], dict[str, str]()
        for made, which in parts:
            # Levels of sites are drawn for the draws that `by_site` takes, once for both.
            drawn = every if made is self and spec.grouping == SITE else which
            parameters = {name: values[drawn] for name, values in params.items()}
            places = np.searchsorted(drawn, which)
            rows = {
                site: made._with_levels(parameters, table, site, seed, times, new=new).of(places)
                for site, table in (made.tables if data is None else given).items()
            }
            parameters = {name: values[places] for name, values in parameters.items()}
            averages, unmoved = averages_of(self.density, parameters, rows, names, times)
            averaged.append(averages)
            left |= unmoved
        notes += left_out(left, names) + of_many((self.tables if data is None else given).values())
        order = np.argsort(np.concatenate([which for _, which in parts]))
        return summarised(in_order_of(order, averaged, left), scale_of(spec, at), level, notes)

    def _split_draws(
        self, tree: Any, kept: np.ndarray, size: int
    ) -> list[tuple[Regression, np.ndarray]]:
        """Return the regression of each imputation, and which of the draws are given its rows."""
        numbers = draw_imputations(tree)
        if numbers is None:
            raise InputError(
                "marginal_effects: values are imputed, and the draws do not say from which "
                "imputation they are: call imputation(0), with the draws given its rows."
            ).at("draws")
        of_draws = np.tile(numbers, size // len(numbers))[kept]
        return [(self.imputation(index), kept[of_draws == index]) for index in np.unique(of_draws)]

    def _with_levels(
        self,
        params: Mapping[str, np.ndarray],
        table: Table,
        site: str,
        seed: int,
        times: Sequence[float] | None,
        *,
        new: bool,
    ) -> Rows:
        """Return rows of a site with what stays there: levels and slopes, or a baseline hazard."""
        spec, group = self.specification, np.zeros(rows_of(table), int)
        if not spec.staying:
            rows = Rows(table, np.zeros((len(next(iter(params.values()))), 1, 0)), group)
            if times is None or self.family.of_site is None:
                return rows
            drawn, where = self._baseline(params, site, times, seed), f"site {site!r}"
            strata = drawn.of_rows(spec, table, times, where)
            return rows._replace(baseline=drawn.hazards, stratum=strata)
        if spec.grouping != SITE:
            column = column_of(table, str(spec.grouping), f"site {site!r}")
            texts, group = np.unique(as_levels(column), return_inverse=True)
            if new:
                rng = np.random.default_rng((seed, spec.sites.index(site)))
                known = levels_of_new(self.density, params, spec.staying, len(texts), rng)
                return Rows(table, known, group)
        return Rows(table, self._levels(params, site, seed), group)

    def _flat(self, tree: Any) -> dict[str, np.ndarray]:
        """Return the draws of all chains as the density takes them, (draws, ...) each."""
        self._check_origin(tree)
        parameters = draws_to_pytree(structure_of(self.model.init), sampled_draws(tree))
        flat = {
            name: np.asarray(values, np.float64).reshape(-1, *values.shape[2:])
            for name, values in parameters.items()
        }
        return Scores(self.density).params(flat)

    @property
    def _draws_of_levels(self) -> int:
        return MOST_DRAWS if len(self.specification.sites) <= MANY_SITES else FEWER_DRAWS

    def _levels(self, params: Mapping[str, np.ndarray], site: str, seed: int) -> np.ndarray:
        last_seed, last, levels = self._last_levels.get(site, (None, {}, np.zeros(0)))
        if last_seed == seed and all(np.array_equal(last[name], params[name]) for name in last):
            return levels
        rows, site_index = self.rows.site(site), self.specification.sites.index(site)
        groups = len(self.groups.get(site, ("",)))
        levels = levels_given_rows(self.density, params, rows, groups, (seed, site_index))
        self._last_levels[site] = seed, dict(params), levels
        return levels

    @cached_property
    def _last_levels(self) -> dict[str, tuple[int, dict[str, np.ndarray], np.ndarray]]:
        """The levels of each site that were drawn last, by which seed and parameters.

        A report asks for the same ones twice.
        """
        return {}

    def levels_of(self, tree: Any, site: str, seed: int) -> Any:
        """Return draws of levels and slopes that stay at a site, where they are integrated out.

        They are drawn given the parameters and the site's rows, at the site: nobody else can.

        Args:
            tree: result of a run of this model.
            site: its name; its rows must be in this process.
            seed: of these draws; equal seeds give equal draws.

        Returns:
            `xarray.DataArray` of (chain, draw), what is added to the predictor at this site; with
            a dimension "group" where groups inside the site have levels, and one "coefficient"
            where there are slopes too.

        Raises:
            InputError: no levels are integrated out, or the rows of the site are not here.
        """
        spec = self.specification
        if not spec.staying:
            raise wrong("formula", " integrates no level out at the sites, as levels_of needs.")
        import xarray  # heavy, and only wanted here

        values = self._levels(self._flat(tree), site, seed)
        values = values.reshape(*chains_of(tree), *values.shape[1:])
        dims = {"group": list(self.groups.get(site, ())), "coefficient": []}
        dims["coefficient"] = [spec.blocks[block_index].term for block_index in spec.staying]
        levels = xarray.DataArray(
            values,
            dims=("chain", "draw", *dims),
            coords={name: names for name, names in dims.items() if names},
            name=site,
        )
        if spec.grouping == SITE:
            levels = levels.isel(group=0)
        return levels if len(spec.staying) > 1 else levels.isel(coefficient=0, drop=True)

    def proportional_hazards(self, tree: Any) -> ProportionalHazards:
        """Measure the change of each log hazard ratio of cox with the logarithm of time.

        It is the coefficient of a term with time beside each column, by one step from the
        posterior mean. Where it is far from 0 the hazard ratio of the table is an average over
        the times of the events: stratify by that column, or give it a row before and after a time.

        Args:
            tree: result of a run of this model.

        Raises:
            InputError: the family is another one, the formula has no coefficient or has levels and
                smooths beside them, there is no event, or rows are in other processes.
        """
        spec = self.specification
        if self.family.of_site is None or not spec.names or spec.blocks:
            raise InputError(
                "proportional_hazards: it is for family 'cox' with coefficients and neither group "
                "terms nor smooths."
            )
        if spec.question.robust:
            raise InputError(
                "proportional_hazards: its standard errors are those of independent rows, without "
                "weights of a sample or cluster(...): leave these out to look at it."
            )
        if not isinstance(self.sites, Sites) or self.sites.elsewhere:
            raise InputError("proportional_hazards: it needs the unchanged rows of all sites.")
        at = self._flat(tree)["coefficients"].mean(axis=0)
        sums = np.zeros(())
        for name in spec.sites:
            rows = {key: np.asarray(values) for key, values in self.sites.site(name).items()}
            sums = sums + log_time_sums(rows, rows["x"] @ at + rows.get("offset", 0.0))
        if not sums[0, 0]:
            raise InputError("proportional_hazards: no site has an event.")
        return changes(spec.names, sums, self.density.slopes_of_basis)

    def predictive_check(
        self, tree: Any, *, draws: int = 400, level: float = 0.95, seed: int = 0
    ) -> PredictiveCheck:
        """Return posterior predictive checks by site, and Bayesian R², from sums over their rows.

        Of the response mean, standard deviation and share of zeros are compared with those of
        responses simulated at the site, of levels their shares, of times the share of events and
        the mean follow-up, of persons where ``persons`` names whose an interval is; p near 0 or 1
        says that the model does not make such.

        Args:
            tree: result of a run of this model.
            draws: responses are simulated for so many, evenly spaced over those of all chains.
            level: probability inside the central intervals.
            seed: of what is simulated.

        Returns:
            The table: of the sites whose rows are in this process, and of them together.

        Raises:
            InputError: the family has no baseline (cox), or values are imputed: then use
                `imputation`.
        """
        if not isinstance(self.sites, Sites):
            raise InputError(
                "predictive_check: values are imputed: ask one, imputation(0).predictive_check("
                "tree), with the draws given its rows."
            ).at("tree")
        spec, family = self.specification, self.family.base
        if self.family.of_site is not None:
            raise InputError(
                f"predictive_check: the times of family {family!r} cannot be simulated: see "
                "proportional_hazards."
            ).at("family")
        count = arguments.whole("draws", draws, 2)
        arguments.positive("level", level, below=1.0)
        every = self._flat(tree)
        size = len(next(iter(every.values())))
        kept = spaced(size, count)
        params = {name: values[kept] for name, values in every.items()}
        parameters = self.density.natural(params)
        sums: dict[str, Any] = {}
        for site_index, name in enumerate(spec.sites):
            if site_index in self.rows.elsewhere:
                continue
            rows = {key: np.asarray(values) for key, values in self.rows.site(name).items()}
            if spec.question.persons is not None:
                kept_rows = spec.question.kept(self.tables[name], name)
                every_row = np.ones(len(rows["y"]), bool)
                persons = persons_of(spec.question, kept_rows, every_row, f"site {name!r}")
                rows["person"] = np.asarray(persons.labels)
            elif not spec.question.samples:
                rows = of_persons(rows)
            y, parts = rows["y"], list[Any]()
            groups, levels = rows.get("group", np.zeros(len(y), int)), np.zeros(0)
            if spec.staying:
                levels = self._levels(params, name, seed)
            rng = np.random.default_rng(seed + site_index)
            for part in blocks_of(len(kept), len(y), SIMULATED_AT_ONCE):
                some = {key: values[part] for key, values in params.items()}
                shift = np.zeros((len(kept[part]), len(y), *self.density.lead))
                if spec.staying:
                    shift = np.einsum("rk,nrk->nr", rows["slopes"], levels[part][:, groups])
                simulated = self.density.simulated(rng, some, rows, shift)
                if family not in VARIANCES:
                    parts.append(simulated)
                    continue
                mean = predicted(self.density, some, rows, shift)
                aux = {key: values[part] for key, values in parameters.items()}
                parts.append(
                    sums_of(family, y, simulated, np.asarray(mean), aux, rows.get("trials"))
                )
            if family in VARIANCES:
                sums[name] = joined(parts)
            else:
                sums[name] = self._counts(rows, np.concatenate(parts), seed + site_index)
        return checked(sums, level) if family in VARIANCES else checked_counts(sums, level)

    def _counts(self, rows: Mapping[str, np.ndarray], simulated: np.ndarray, seed: int) -> Counts:
        """Count a site's response of levels, or its times."""
        y = rows["y"]
        if self.family.response != "time":
            return counts_of_levels(y, simulated, self.specification.levels[RESPONSE])
        rng = np.random.default_rng((seed, 1))
        of_person = rows.get("start"), rows.get("person")
        return counts_of_times(y, rows["event"], simulated, rng, *of_person)

    def with_response(self, rows: Mapping[str, np.ndarray], y: np.ndarray) -> dict[str, np.ndarray]:
        """Return a site's rows with another response; of a time one whose event was seen."""
        changed = dict(rows)
        if self.family.response == "time":
            changed |= time_rows(self.specification, y, np.ones(len(y)), rows.get("start"))
        return changed | {"y": y.astype(rows["y"].dtype)}

    def prior_predictive(self, draws: int, seed: int, rows: Any = None) -> dict[str, np.ndarray]:
        """Return responses simulated from the prior alone, and the parameters they came from.

        Args:
            draws: how many.
            seed: equal seeds give equal draws.
            rows: a site's rows as in ``sites``; the first site's here when None.

        Returns:
            By name, (draws, ...); the responses are ``y``, (draws, rows): numbers, or indices of
            levels; of a time the time to the event, without censoring.
        """
        batch = self.rows.first if rows is None else rows
        rng = np.random.default_rng(seed)
        params = self.density.draw(rng, draws)
        return self.density.natural(params) | {"y": self.density.simulated(rng, params, batch)}
