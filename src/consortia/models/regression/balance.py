r"""Balance of treated and other patients, before and with weights: sums that sites send.

.. math:: d = \frac{\bar x_1 - \bar x_0}{\sqrt{(s_1^2 + s_0^2) / 2}}

of each column, or of each level's share, at each site and overall; the spreads are those before
weights, so that both differences have one unit. The effective size of an arm is
:math:`(\sum w)^2 / \sum w^2`.

Source: Austin and Stuart (2015).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from consortia.data.cells import Cells, merged
from consortia.data.columns import Table, as_levels
from consortia.data.description import DIGITS, Balance, SiteDescription, column_cells, counts_of
from consortia.diagnostics.summary import MISSING
from consortia.models.regression.formula import SITE, Factor
from consortia.models.regression.question import Question

ARMS = ""
"""Name of the entry that has rows, sums of weights and effective sizes of both arms."""

ROWS, EFFECTIVE = "treated, other rows", "their effective number"


def site_balance(
    question: Question,
    treated: Factor,
    kept: Table,
    where: str,
    cells: int,
    shown: Mapping[str, Cells],
) -> Balance:
    """Describe the balance of a site's arms; return nothing where an arm is too small.

    Args:
        question: of the study.
        treated: expression that is true of the treated rows.
        kept: rows that are analysed.
        where: name of the site, for messages.
        cells: fewest rows of a cell.
        shown: counts of levels that the site tells already.
    """
    arms = np.nan_to_num(treated.values(kept, where)) > 0
    weights = question.beside("weights", kept, where) if question.samples else np.ones(len(arms))
    sides = [arms, ~arms]
    sums = [float(weights[side].sum()) for side in sides]
    squares = [(weights[side] ** 2).sum() for side in sides]
    largest = [weights[side].max(initial=0) for side in sides]
    rows = [int(side.sum()) for side in sides]
    if min(rows) < 2 * cells or not min(sums):
        return {}
    sizes = [float(total**2 / square) for total, square in zip(sums, squares, strict=True)]
    totals = [*sums, *sizes]
    if cells > 1:  # an arm whose mean one row nearly is would tell that row
        shares = [top * cells / total for top, total in zip(largest, sums, strict=True)]
        if min(sizes) < 2 * cells or max(shares) > 1:
            return {}
        totals = [float(f"{value:.4g}") for value in totals]
    balance: Balance = {ARMS: (*rows, *totals)}
    for name in covariates(question, treated.columns):
        column = kept[name]
        known = [side & ~column.missing for side in sides]
        if any(side.sum() < 2 * cells or not weights[side].sum() for side in known):
            continue
        levels = shown.get(name) or column_cells(column, question.levels.get(name, ()), cells)
        if levels is None:
            balance[name] = _entry(column.values, known, weights, cells)
            continue
        texts = as_levels(column)
        named = [set(merged(counts_of(texts[side]), cells).counts) for side in known]
        every = sorted(named[0] & named[1] & {*levels.counts})
        for level in every[len(levels.counts) == 2 and len(every) == 2 :]:
            entry = _entry((texts == level).astype(float), known, weights, cells)
            balance |= {f"{name}[{level}]": entry}
    return balance


def covariates(question: Question, arms: Iterable[str]) -> list[str]:
    """Return the columns of weights and formula but those of the arms and of groups."""
    weights = question.extra["weights"] if question.samples else None
    of_weights = () if weights is None or weights.column is not None else weights.columns
    groups = {group.by for group in question.parsed.groups}
    every = dict.fromkeys([*of_weights, *question.parsed.columns])
    return [name for name in every if name not in {*arms, *groups, SITE, question.parsed.cluster}]


def _entry(
    values: np.ndarray, sides: Sequence[np.ndarray], weights: np.ndarray, cells: int
) -> tuple[float, ...]:
    """Return mean, spread and weighted mean of both arms, rounded where small cells are hidden."""
    parts = []
    for side in sides:
        x, w = values[side], weights[side]
        sd = float(x.std(ddof=1)) if set(np.unique(values)) - {0.0, 1.0} else float(x.std())
        parts += [float(x.mean()), sd, float(np.average(x, weights=w))]
    if cells == 1 or not (parts[1] > 0 and parts[4] > 0):
        return tuple(parts)
    digits = DIGITS - math.floor(math.log10(min(parts[1], parts[4])))
    return tuple(round(part, digits) for part in parts)


def balance_cells(every: Sequence[SiteDescription]) -> dict[str, tuple[str, ...]]:
    """Return the lines of all sites' balance: by variable what each site and all have, as text."""
    arms = [site.balance.get(ARMS) for site in every]
    known = [totals for totals in arms if totals is not None]
    if not known:
        return {}
    total = tuple(map(sum, zip(*known, strict=True)))
    squares = [sum(totals[2 + i] ** 2 / totals[4 + i] for totals in known) for i in (0, 1)]
    sizes = [total[2 + i] ** 2 / squares[i] for i in (0, 1)]
    columns = [*arms, (*total[:4], *sizes)]
    lines = {
        ROWS: tuple(_both(totals, 0, ",.0f") for totals in columns),
        EFFECTIVE: tuple(_both(totals, 4, ",.1f") for totals in columns),
    }
    names = dict.fromkeys(name for site in every for name in site.balance if name != ARMS)
    for name in names:
        entries = [site.balance.get(name) for site in every]
        pairs = [(a, b) for a, b in zip(arms, entries, strict=True) if a is not None and b]
        pooled = _pooled(pairs, shares="[" in name)
        lines[name] = tuple(_differences(entry) for entry in (*entries, pooled))
    return lines


def _both(totals: Sequence[float] | None, at: int, form: str) -> str:
    """Return a number of both arms as text."""
    return MISSING if totals is None else f"{totals[at]:{form}}, {totals[at + 1]:{form}}"


def _pooled(
    pairs: Sequence[tuple[tuple[float, ...], tuple[float, ...]]], *, shares: bool
) -> tuple[float, ...]:
    """Return the entry of all sites' rows."""
    entry: list[float] = []
    for arm in (0, 1):
        n, w = (np.array([sums[first + arm] for sums, _ in pairs]) for first in (0, 2))
        mean, sd, weighted = np.array([each[3 * arm : 3 * arm + 3] for _, each in pairs]).T
        middle = n @ mean / n.sum()
        squares = (n - 1) @ sd**2 + n @ (mean - middle) ** 2
        spread = middle * (1 - middle) if shares else squares / (n.sum() - 1)
        entry += [float(middle), float(np.sqrt(spread)), float(w @ weighted / w.sum())]
    return tuple(entry)


def _differences(entry: Sequence[float] | None) -> str:
    """Return both standardised mean differences as text."""
    if not entry:
        return MISSING
    mean, sd, weighted, other_mean, other_sd, other_weighted = entry
    unit = math.sqrt((sd**2 + other_sd**2) / 2)
    if not unit:
        return MISSING
    before, after = (mean - other_mean) / unit, (weighted - other_weighted) / unit
    return f"{before:.3f} → {after:.3f}"
