"""Multiple imputation: values that miss in a table, drawn given what is known at the same site.

Chained equations: each column with gaps is regressed on all others, its missing values are drawn,
and so around, ten times. A column of levels has a logistic regression. One of numbers has a linear
one, by whose predictions a missing value finds the ten known ones that are nearest, and takes one
of them (predictive mean matching): it is always a value that there is. Each regression gives its
rows the weights of a Bayesian bootstrap, so that the completed tables of several imputations differ
by all that is not known of it, too; scikit-learn's ``IterativeImputer`` leaves that out, and the
posterior that is pooled over its tables is too narrow.

It assumes that values are missing at random given the columns that are used, and that these act
additively. Coefficients of standardised columns have the prior normal(0, 2.5).

Source: Rubin, "Multiple Imputation for Nonresponse in Surveys" (1987); "The Bayesian bootstrap"
(1981); van Buuren, "Flexible Imputation of Missing Data" (2018), chapters 3 and 4.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from consortia.data.columns import Column, Table, as_levels, level, rows_of
from consortia.errors import InputError

CYCLES = 10
DONORS = 10
PRIOR_SD = 2.5
"""Prior standard deviation of the coefficients of standardised columns."""

ROWS_A_COLUMN = 3
"""Known rows that a regression needs for each of its columns; it takes those that say most."""

JITTER = 1e-6
"""Jitter of predictions, so that of many equal ones not always the same are the nearest."""


def imputed(
    table: Table,
    columns: Collection[str],
    levels: Collection[str],
    fixed: Mapping[str, np.ndarray],
    rng: np.random.Generator,
    where: str,
) -> Table:
    """Return the table with one imputation of these columns.

    The ``columns`` are regressed on one another, and on ``fixed`` ones (rows,) without gaps, the
    response; those in ``levels`` hold levels, not numbers.

    Raises:
        InputError: no value of a column is known.
    """
    gaps = {name: table[name].missing for name in columns if table[name].missing.any()}
    for name, missing in gaps.items():
        if missing.all():
            raise InputError(
                f"{where}: no value of {name!r} is known from which others could be imputed: "
                "leave the column or the site out."
            ).at(name)
    table = {**table, **{name: _of_codes(table[name]) for name in levels if name in table}}
    values = {name: table[name].values.copy() for name in columns}
    for name, missing in gaps.items():
        values[name][missing] = rng.choice(values[name][~missing], int(missing.sum()))
    rows = rows_of(table)
    outcome = [_standard(other[:, None]) for other in fixed.values()]
    for _ in range(CYCLES if len(gaps) > 1 else 1):
        for name in sorted(gaps, key=lambda other: int(gaps[other].sum())):
            others = [_coded(values[other], other in levels) for other in columns if other != name]
            x = np.concatenate([*outcome, *others, np.zeros((rows, 1))], axis=1)  # one at least
            known = ~gaps[name]
            draw = _levels if name in levels else _numbers
            values[name][~known] = draw(values[name][known], x, known, len(outcome), rng)
    filled = {name: Column(table[name].kind, values[name], np.zeros(rows, bool)) for name in gaps}
    return {**table, **filled}


def _of_codes(column: Column) -> Column:
    """Return a column of levels, as strings where numbers do not keep what was read."""
    texts = as_levels(column)
    if column.given is None or all(
        level(value) == text
        for value, text, gap in zip(column.values.tolist(), texts, column.missing, strict=True)
        if not gap
    ):
        return column
    return column._replace(kind="text", values=texts, given=None)


def cumulative_hazard(time: np.ndarray, event: np.ndarray) -> np.ndarray:
    """Return the Nelson-Aalen estimate at each time, (rows,).

    With the event it is what a time says in the regression of a covariate (White and Royston,
    "Imputing missing covariate values for the Cox model", 2009).
    """
    time_index = np.unique(time, return_inverse=True)[1]
    events = np.bincount(time_index, weights=event)
    at_risk = np.cumsum(np.bincount(time_index)[::-1])[::-1]
    return np.cumsum(events / at_risk)[time_index]


# --- one regression ------------------------------------------------------------------------------


def _numbers(
    y: np.ndarray, x: np.ndarray, known: np.ndarray, fixed: int, rng: np.random.Generator
) -> np.ndarray:
    """Return values of the unknown rows, each that of a known row with a similar prediction."""
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import NearestNeighbors

    target = _standard(y[:, None])
    x = x[:, _kept(x[known], target, fixed)]
    weights = rng.standard_exponential(len(y))
    ridge = Ridge(alpha=PRIOR_SD**-2).fit(x[known], target[:, 0], sample_weight=weights)
    at, to = ridge.predict(x[known])[:, None], ridge.predict(x[~known])[:, None]
    nearest = NearestNeighbors(n_neighbors=min(DONORS, len(y)))
    nearest.fit(at + JITTER * rng.standard_normal(at.shape))
    donors = nearest.kneighbors(to, return_distance=False)
    below = np.cumsum(weights[donors], axis=1)  # with their weights, or the posterior is narrow
    below = below[:, :-1] / below[:, -1:]
    return y[donors[np.arange(len(to)), _place(below, rng)]]


def _levels(
    y: np.ndarray, x: np.ndarray, known: np.ndarray, fixed: int, rng: np.random.Generator
) -> np.ndarray:
    """Return levels of the rows that are not known, drawn by their probabilities."""
    from sklearn.linear_model import LogisticRegression

    levels, codes = np.unique(y, return_inverse=True)
    if len(levels) == 1:
        return np.repeat(levels, int((~known).sum()))
    x = x[:, _kept(x[known], _standard(np.eye(len(levels))[codes]), fixed)]
    weights = rng.standard_exponential(len(y))
    classifier = LogisticRegression(C=PRIOR_SD**2, max_iter=1000)
    classifier.fit(x[known], codes, sample_weight=weights)
    below = np.cumsum(classifier.predict_proba(x[~known]), axis=1)[:, :-1]
    return levels[_place(below, rng)]


def _place(below: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a place drawn for each row, of cumulative probabilities (rows, places − 1)."""
    return (rng.random((len(below), 1)) > below).sum(axis=1)


def _kept(x: np.ndarray, target: np.ndarray, fixed: int) -> np.ndarray:
    """Select the columns to regress on: the fixed ones, and the most correlated ones."""
    strength = np.abs(x.T @ target).max(axis=1)
    strength[:fixed] = np.inf
    return np.argsort(-strength, kind="stable")[: max(len(x) // ROWS_A_COLUMN, 1)]


def _coded(values: np.ndarray, levels: bool) -> np.ndarray:
    """Return the standardised columns that stand for a column's values, (rows, k)."""
    if not levels:
        return _standard(values[:, None])
    distinct = np.unique(values)
    return _standard((values[:, None] == distinct[None, 1:]).astype(float))


def _standard(columns: np.ndarray) -> np.ndarray:
    sd = columns.std(axis=0)
    return (columns - columns.mean(axis=0)) / np.where(sd > 0, sd, 1.0)
