r"""Marginal effects: what a column does to the mean response, averaged over the rows of all sites.

.. math::
    \frac{1}{\sum_s n_s} \sum_s \sum_{i\in s} \frac{\partial \mu_i}{\partial x_i}
    \qquad\text{or}\qquad
    \frac{1}{\sum_s n_s} \sum_s \sum_{i\in s} \bigl(\mu_i(x = b) - \mu_i(x = a)\bigr)

μ_i is the mean of row i's response, or the probability of each of its levels: the left one is of a
number, the right one of a level b against the reference a, all else in the row as it is. A site's
sum needs no other site's rows. The column is moved in the table, before the design: splines,
products and centred columns follow.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from consortia.core.arguments import unknown
from consortia.data.columns import Table, as_levels, rows_of
from consortia.errors import InputError
from consortia.models.regression.density import Density
from consortia.models.regression.design import new_rows, time_rows
from consortia.models.regression.estimates import Drawn, Line, interval_ends, short
from consortia.models.regression.families import CUMULATIVE
from consortia.models.regression.formula import SITE
from consortia.models.regression.heterogeneity import ROW_NAMES
from consortia.models.regression.persons import once_each
from consortia.models.regression.prediction import MEAN, SURVIVAL, blocks_of, outcome
from consortia.models.regression.question import RESPONSE
from consortia.models.regression.specification import GAP, Specification

PyTree = Any

ALL = ROW_NAMES["common"]
SLOPE = "per unit"

STEP, NEAR_ZERO = 1e-5, 1e-3
"""Step of a central difference, relative to a value; near 0, to the largest value."""


MANY = 4096
"""Rows of a site that say how an effect differs between draws. With 500 of 4,000 rows effects were
off by up to .11 posterior sd, root mean square; with 8 times as many it should be a third of that,
about the Monte Carlo error of 1,000 draws."""


class Key(NamedTuple):
    """Key of an effect: the column, how it is moved, and a level of the response or a time."""

    column: str
    contrast: str
    outcome: str

    def __str__(self) -> str:
        """Return the name of its line."""
        name = f"{self.column}, {self.contrast}"
        return f"{name}: {self.outcome}" if self.outcome else name


class Rows(NamedTuple):
    """Rows of a site, and what stays there."""

    table: Table  # the rows
    levels: np.ndarray  # levels and slopes of the groups that stay at the site, (draws, groups, K)
    group: np.ndarray  # the index of each row's group, (rows,)
    baseline: np.ndarray | None = None  # cumulative hazards of cox, (draws, strata, times)
    stratum: np.ndarray | None = None  # the index of each row's stratum, (rows,)

    def of(self, draws: np.ndarray) -> Rows:
        """Return the same with these of the draws."""
        baseline = None if self.baseline is None else self.baseline[draws]
        return self._replace(levels=self.levels[draws], baseline=baseline)


class Average(NamedTuple):
    """An effect at one site."""

    rows: float  # that it is averaged over, of binomial their trials
    draws: np.ndarray  # (draws,)


class Effect(NamedTuple):
    """One effect, over the rows of one site or of all."""

    column: str  # that is moved
    contrast: str  # "per unit" of a number, "b − a" of levels
    outcome: str  # the level of the response, or the time; "" where the effect is one on the mean
    site: str  # or "all sites"
    mean: float  # of the posterior
    median: float  # of the posterior
    lower: float  # end of the interval
    upper: float  # the other end
    above: float  # posterior probability that the effect is above 0

    @property
    def key(self) -> Key:
        """Key of the effect."""
        return Key(*self[:3])


@dataclass(frozen=True, eq=False, repr=False)
class MarginalEffects(Drawn):
    """Effects on the mean response over the rows of all sites, and of each; `str` renders them."""

    scale: str  # what is changed: "the probability of died = 'yes'"
    lines: tuple[Effect, ...]  # of each effect that of all sites, then those of the sites
    draws: np.ndarray  # of each line, (lines, draws)
    level: float  # probability inside the intervals
    notes: tuple[str, ...] = ()  # what the user should know
    effect = "difference"

    @property
    def over_all(self) -> MarginalEffects:
        """The effects over the rows of all sites, without those at each."""
        places = [index for index, line in enumerate(self.lines) if line.site == ALL]
        lines = tuple(self.lines[index] for index in places)
        return replace(self, lines=lines, draws=self.draws[places])

    @property
    def by_site(self) -> dict[Key, list[Effect]]:
        """The effects at the sites; none where there is one site."""
        effects: dict[Key, list[Effect]] = {}
        for line in self.lines:
            if line.site != ALL:
                effects.setdefault(line.key, []).append(line)
        return {key: rows for key, rows in effects.items() if len(rows) > 1}

    @property
    def _tables(self) -> list[list[list[str]]]:
        """The table of all sites, then one of each effect by site, as text."""
        low, high = (f"{100 * q:.4g} %" for q in interval_ends(self.level))
        heads = ["mean", "median", low, high, "P(> 0)"]

        def cells(effect: Effect) -> list[str]:
            values = (effect.mean, effect.median, effect.lower, effect.upper)
            return [*map(short, values), f"{effect.above:.3f}"]

        first = [[f"on {self.scale}", *heads]]
        first += [[str(effect.key), *cells(effect)] for effect in self.over_all.lines]
        return [
            first,
            *(
                [[str(key), *heads], *([effect.site, *cells(effect)] for effect in rows)]
                for key, rows in self.by_site.items()
            ),
        ]

    def to_dataframe(self) -> Any:
        """Return all lines as a `pandas.DataFrame`."""
        import pandas as pd  # heavy, and only wanted here

        return pd.DataFrame(self.lines, columns=list(Effect._fields))

    @property
    def blocks(self) -> dict[str, list[Line]]:
        """The lines of a forest plot: each effect at the sites and over all of them."""
        panels: dict[str, list[Line]] = {}
        for effect in sorted(self.lines, key=lambda effect: effect.site == ALL):
            kind = "common" if effect.site == ALL else "site"
            line = Line(effect.site, effect.median, effect.lower, effect.upper, kind)
            panels.setdefault(str(effect.key), []).append(line)
        return panels


def chosen(agreed: Specification, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns whose effects are wanted; all when None.

    Raises:
        InputError: one of them is in no term, or none is.
    """
    factors = agreed.question.parsed.factors.values()
    known = tuple(
        dict.fromkeys(name for factor in factors for name in factor.columns if name != SITE)
    )
    wanted = known if columns is None else tuple(columns)
    for name in wanted:
        if name not in known:
            raise InputError(
                f"marginal_effects: {name!r} is not a column of a term of the formula: "
                f"{unknown(name, known)}."
            ).at(name)
    if not wanted:
        raise InputError("marginal_effects: the formula has no column in a term.").at("formula")
    return wanted


def scale_of(agreed: Specification, at: Sequence[float] | None) -> str:
    """Return in words what effects are on."""
    name = agreed.question.parsed.response[0].text
    if at is not None:
        return "the probability of no event before a time"
    if agreed.question.family.base == "bernoulli":
        return f"the probability of {agreed.event or f'{name} = 1'}"
    if agreed.question.family.base == "binomial":
        return f"the probability of one of {name}"
    what = "probability of a level" if agreed.question.family.classes else "mean"
    return f"the {what} of {name}"


def jumps(agreed: Specification, columns: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence on the columns that a term compares with a number."""
    texts = [
        factor.text
        for factor in agreed.question.parsed.factors.values()
        if any(isinstance(node, ast.Compare) for node in ast.walk(factor.tree))
        and set(factor.columns) & set(columns)
    ]
    if not texts:
        return ()
    return (f"{', '.join(texts)}: a derivative ignores a jump; make it a column",)


class UnmovableError(InputError):
    """A column that a term cannot follow a little up and down from its values."""


def averages_of(
    density: Density,
    params: Mapping[str, np.ndarray],
    rows: Mapping[str, Rows],
    columns: Sequence[str],
    times: Sequence[float] | None,
) -> tuple[dict[str, dict[Key, Average]], dict[str, str]]:
    """Return the effects over the rows of each site, and why columns have none.

    ``params`` are draws as they are sampled, (draws, ...) each; ``times`` those of survival, None
    for the mean.

    Raises:
        InputError: the rows cannot be used.
    """
    effects: dict[str, dict[Key, Average]] = {site: {} for site in rows}
    left: dict[str, str] = {}
    draws = {name: np.asarray(values, float) for name, values in params.items()}
    for site, table in rows.items():
        held = cache(partial(_design, density.specification, table.table, site))  # for all columns
        for column in (column for column in columns if column not in left):
            try:
                more = _site_averages(density, draws, table, site, column, times, held)
            except UnmovableError as error:
                left[column] = str(error)
            else:
                effects[site] |= more
    return effects, left


def of_many(tables: Iterable[Table]) -> tuple[str, ...]:
    """Return a sentence on sites that have more than `MANY` rows, if there are any."""
    if all(rows_of(table) <= MANY for table in tables):
        return ()
    return (
        f"where a site has more than {MANY:,} rows, all of them count at the posterior mean, and "
        f"{MANY:,} in how the effect differs from there between draws",
    )


def left_out(left: Mapping[str, str], columns: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence on each column without an effect.

    Raises:
        InputError: none has one.
    """
    if set(columns) <= set(left):
        raise InputError(next(iter(left.values())))
    return tuple(f"no effect of {column}: {reason}" for column, reason in left.items())


def _site_averages(
    density: Density,
    draws: Mapping[str, np.ndarray],
    given: Rows,
    site: str,
    column: str,
    times: Sequence[float] | None,
    held: Callable[[], PyTree],
) -> dict[Key, Average]:
    """Return the effects of a column over the rows of one site; ``held`` makes their design."""
    agreed = density.specification
    what, outcomes = MEAN, [""]
    if times is not None:
        what, outcomes = SURVIVAL, [f"time {moment:g}" for moment in times]
    elif density.family.classes:
        outcomes = list(agreed.levels[RESPONSE])
    size = rows_of(given.table)
    fixed: list[PyTree] = [{}]
    if times is not None and given.baseline is not None:
        fixed = [{"time": index} for index in range(len(times))]
    elif times is not None:
        ends = np.zeros(size)
        fixed = [time_rows(agreed, ends + time, ends) for time in times]
    averages = {}
    known = (~given.table[column].missing).astype(float)
    if "weights" in agreed.question.extra:  # a row stands for so many persons
        known *= agreed.question.beside("weights", given.table, f"site {site!r}")
    elif agreed.question.persons is not None:
        known *= once_each(agreed.question, given.table, f"site {site!r}")
    for contrast, derivative, first, second in _changes(agreed, given.table, column, site, held):
        weights = first["trials"] * known if density.family.base == "binomial" else known
        count = float(weights.sum()) or 1.0
        # the mean of a binomial row is of all its trials
        share = known / count
        parts = [
            _averages(density, what, draws, _Moved(derivative, given, share, others, first, second))
            for others in fixed
        ]
        effects = np.stack(parts, axis=1) if times is not None else parts[0]
        for number, name in enumerate(outcomes):
            values = effects.reshape(len(effects), -1)[:, number]
            averages[Key(column, contrast, name)] = Average(count, values)
    return averages


def in_order_of(
    order: np.ndarray,
    parts: Sequence[Mapping[str, Mapping[Key, Average]]],
    left: Collection[str] = (),
) -> dict[str, dict[Key, Average]]:
    """Return effects at the sites in the order of all draws, which were taken in parts.

    Columns that are ``left`` out have none.
    """
    return {
        site: {
            key: average._replace(
                draws=np.concatenate([part[site][key].draws for part in parts])[order]
            )
            for key, average in effects.items()
            if key.column not in left
        }
        for site, effects in parts[0].items()
    }


def summarised(
    sites: Mapping[str, Mapping[Key, Average]], scale: str, level: float, notes: Sequence[str]
) -> MarginalEffects:
    """Return the table of effects over all rows and at the sites; ``scale`` says what changes."""
    ends, lines, kept = interval_ends(level), [], []
    for key in dict.fromkeys(key for effects in sites.values() for key in effects):
        parts = {name: effects[key] for name, effects in sites.items() if key in effects}
        total = sum(part.rows for part in parts.values())
        over_all = sum(part.draws.astype(float) * (part.rows / total) for part in parts.values())
        rows = {ALL: np.asarray(over_all)} | {name: part.draws for name, part in parts.items()}
        for name, values in rows.items():
            low, middle, high = np.quantile(values, [ends[0], 0.5, ends[1]])
            numbers = (np.mean(values, dtype=float), middle, low, high, np.mean(values > 0))
            lines.append(Effect(*key, name, *map(float, numbers)))
            kept.append(np.asarray(values, float))
    return MarginalEffects(scale, tuple(lines), np.stack(kept), level, tuple(notes))


# --- one site's columns, moved -------------------------------------------------------------------


def _design(agreed: Specification, table: Table, site: str) -> dict[str, np.ndarray]:
    """Make the arrays of which η of the rows of a site is a sum."""
    made = new_rows(agreed, table, f"site {site!r}", site)
    design = {"x": made["x"], "slopes": made["by_group"][:, list(agreed.staying)]}
    design["offset"] = made.get("offset", np.zeros(len(made["x"])))
    return design | ({"trials": made["trials"]} if "trials" in made else {})


def _changes(
    agreed: Specification, table: Table, column: str, site: str, held_design: Callable[[], PyTree]
) -> Iterator[tuple[str, bool, PyTree, PyTree]]:
    """Describe the change of a column: in words, whether to differentiate, and two sets of rows.

    These are the rows and their derivative by the column, or the rows at the reference and at
    another level; none where every value of the column misses.
    """
    held = table[column]

    def rows(values: np.ndarray, given: np.ndarray | None = None) -> PyTree:
        return _design(agreed, {**table, column: held._replace(values=values, given=given)}, site)

    if held.missing.all():
        return
    factors = agreed.question.parsed.factors
    of_column = [
        text for text in agreed.levels if text in factors and factors[text].column == column
    ]
    if of_column or held.kind == "truth":
        levels = agreed.levels[of_column[0]] if of_column else ("False", "True")
        reference, *others = (level for level in levels if level != GAP)

        def at(level: str) -> PyTree:
            if held.kind == "text":
                return rows(np.full(len(held.values), level))
            there = np.flatnonzero(as_levels(held) == level)
            number = held.values[there[0]] if len(there) else number_of(level, held.kind)
            return rows(np.full(len(held.values), number), np.full(len(held.values), level))

        first = at(reference)
        for other in others:
            yield f"{other} − {reference}", False, first, at(other)
        return
    x = held.values.astype(float)
    size = np.abs(np.where(held.missing, 0.0, x))
    most, spread = float(size.max()) or 1.0, float(np.std(x[~held.missing])) or np.inf
    step = STEP * np.minimum(np.maximum(size, NEAR_ZERO * most), spread)
    up, down = x + step, x - step
    for factor in factors.values():
        whole = isinstance(factor.tree, ast.Name) and factor.columns == (column,)
        if whole and factor.basis is not None and factor.basis.word == "bs":
            low, high = factor.basis.boundary  # a row beyond it stays there, and is refused
            up, down = np.minimum(up, np.maximum(x, high)), np.maximum(down, np.minimum(x, low))
    held_rows = held_design()
    try:
        above, below = rows(up), rows(down)
    except InputError as error:
        raise UnmovableError(f"beside its values {error}") from None
    apart = np.where(held.missing, 1.0, up - down)  # what the difference of these two numbers is
    tangent = {
        name: (values - below[name]) / apart.reshape(-1, *[1] * (values.ndim - 1))
        for name, values in above.items()
    }
    yield SLOPE, True, held_rows, tangent


def number_of(level: str, kind: str) -> float:
    """Return the number that a level stands for where no row has it; NaN of a word."""
    try:
        return float(level == "True") if kind == "truth" else float(level)
    except ValueError:
        return np.nan


class _Moved(NamedTuple):
    """Rows of a site before and after a change, or with their derivative, and what each counts."""

    derivative: bool
    given: Rows
    share: np.ndarray  # (rows,)
    fixed: PyTree
    first: PyTree
    second: PyTree

    def of(self, rows: np.ndarray, share: np.ndarray) -> _Moved:
        """Return some of the rows, which count as they are to."""
        stratum = None if self.given.stratum is None else self.given.stratum[rows]
        given = self.given._replace(group=self.given.group[rows], stratum=stratum)
        moved = (
            {name: values[rows] if np.ndim(values) else values for name, values in part.items()}
            for part in (self.fixed, self.first, self.second)
        )
        return _Moved(self.derivative, given, share, *moved)


def _averages(
    density: Density, what: str, params: Mapping[str, np.ndarray], moved: _Moved
) -> np.ndarray:
    """Return for each draw Σ_i share_i (the change of row i), (draws, ...).

    Of many rows some are taken, evenly along their changes at the mean of the draws and the more
    often the larger these are. What they are off by there is added: it hardly differs between
    draws, which lie the nearer to each other the more rows there are.
    """
    if np.count_nonzero(moved.share) <= MANY:
        return _over_rows(density, what, params, moved)
    middle = {name: values.mean(axis=0)[None] for name, values in params.items()}
    given = moved.given
    baseline = None if given.baseline is None else given.baseline.mean(axis=0)[None]
    there = given._replace(levels=given.levels.mean(axis=0)[None], baseline=baseline)
    change = _by_row(density, what, middle, moved._replace(given=there), slice(None))[0]
    along = np.where(moved.share > 0, change.reshape(len(change), -1).T, 0)
    size = moved.share * np.abs(along).sum(axis=0)
    if not np.isfinite(size.sum()):
        return _over_rows(density, what, params, moved)
    chance = moved.share / moved.share.sum() + size / (size.sum() or 1)
    chance /= chance.sum()
    order = np.argsort(along[-1])
    ends = np.cumsum(chance[order])
    taken = order[np.searchsorted(ends, ends[-1] * (np.arange(MANY) + 0.5) / MANY)]
    some = moved.of(taken, moved.share[taken] / chance[taken] / MANY)
    off = (along @ moved.share - along[:, taken] @ some.share).reshape(change.shape[1:])
    return _over_rows(density, what, params, some) + off


def _over_rows(
    density: Density, what: str, params: Mapping[str, np.ndarray], moved: _Moved
) -> np.ndarray:
    """Return the same by every row."""
    share = moved.share
    return np.concatenate(
        [
            np.einsum("r,nr...->n...", share, _by_row(density, what, params, moved, part))
            for part in blocks_of(len(moved.given.levels), len(share))
        ]
    )


def _by_row(
    density: Density, what: str, params: Mapping[str, np.ndarray], moved: _Moved, part: slice
) -> np.ndarray:
    """Return the change of each row at some of the draws, (draws, rows, ...)."""
    derivative, given, _, fixed, first, second = moved
    some = {name: values[part] for name, values in params.items()}
    levels = given.levels[part][:, given.group]
    if given.baseline is not None:
        some[CUMULATIVE] = given.baseline[part, :, fixed["time"]][:, given.stratum]

    def predictor(rows: PyTree) -> np.ndarray:
        eta = density.predictor(some, rows)
        if not levels.shape[-1]:
            return eta
        shift = np.einsum("rk,nrk->nr", rows["slopes"], levels)
        return eta + shift.reshape(*shift.shape, *[1] * len(density.lead))

    def mean(eta: np.ndarray, rows: PyTree) -> np.ndarray:
        return outcome(density, what, some, {**rows, **fixed}, eta)

    if not derivative:
        return mean(predictor(second), second) - mean(predictor(first), first)
    # second has the derivatives of the columns, of which η is a linear function
    eta, along = predictor(first), predictor(second)
    if density.intercept:
        along = along - some["intercept"][:, None]
    step = STEP / max(float(np.abs(along).max()), 1e-300)
    change = mean(eta + step * along, first) - mean(eta - step * along, first)
    return change / (2 * step)
