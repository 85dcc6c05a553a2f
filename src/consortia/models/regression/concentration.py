r"""Moments of terms that would tell a single row, which a site refuses to send.

Mean and spread of a column of many rows tell none of them. Those of a term such as
``exp(-1e4*(age - 61)**2) * dose`` are of one patient, and the difference of those of two terms may
be. So they leave in two digits, which is what a unit needs; and before those of expressions do,
the site computes to first order how well all moments together tell each value, as it does of
answers (`consortia.engines.messages.settled`). Where a term rises or falls with a value all the way
around it, what counts is how far the moments move with a move of `NEAR`, up or down, whichever
moves them less: the tangent of a logarithm near 0 would promise a precision that no value so far
away has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from consortia.data.columns import Table
from consortia.data.mending import rows_text
from consortia.data.patterns import is_categorical, rows_apart
from consortia.data.preparation import Moments
from consortia.errors import PolicyError
from consortia.models.regression.formula import Factor
from consortia.models.regression.question import WEIGHT, Question, is_levels

NEAR = 0.1
"""Standard deviations of a column to within which a value is known that may not leave."""

COARSE = 20
"""Units of rounding of an expression's mean in its standard deviation, which has two digits."""

EXACT = 1e-9
"""Relative error of moments that are not rounded."""

STEP, STEPS = 1e-6, (0.7 * NEAR, NEAR)
"""Step of a central difference, and moves of a value, in standard deviations of its column."""

OUTSIDE = 1e12
"""Slope where a value leaves a function's domain, more than of any that stays: the other way
decides, if there is one."""


def check_moments(question: Question, table: Table, site: str, least: int) -> None:
    """Refuse a study of which the moments of some terms tell single rows.

    Args:
        question: of the study.
        table: the site's rows.
        site: its name.
        least: rows that share a value of a term with few values.

    Raises:
        PolicyError: with the terms.
    """
    kept = question.kept(table, site)
    factors = _numbers(question, kept)
    rare = [factor.text for factor in factors if _rarest(factor, kept, site) < least]
    if rare:
        _refuse("minimum_pattern_rows", f"a value of {', '.join(rare)} is that of few rows")
    columns = {name for factor in factors for name in factor.columns}
    cells = [name for name in sorted(columns) if _is_measured(kept, name)]
    if not cells or all(factor.column is not None for factor in factors):
        return  # mean and spread of columns, as in a table of descriptive statistics
    ways = np.concatenate([_told_by(factor, kept, cells, site) for factor in factors], axis=2)
    less = np.linalg.norm(ways, axis=2).argmin(axis=0)
    told_by = np.where(less[:, None] == 0, *ways).T
    _, sizes, span = np.linalg.svd(told_by, full_matrices=False)
    variance = 1 - sizes**2 / (1 + sizes**2) @ span**2
    known = np.unique(np.flatnonzero(variance < NEAR**2) % len(kept[cells[0]].values))
    if len(known):
        terms = ", ".join(factor.text for factor in factors if factor.column is None)
        text = f"mean and spread of the terms {terms} would tell a value in {rows_text(len(known))}"
        _refuse("maximum_settled_rows", text)


def rounded_moments(question: Question, moments: Mapping[str, Any]) -> dict[str, Any]:
    """Return moments in two digits, but for those by which a term or a weight is defined."""
    factors = question.parsed.factors.values()
    exact = {WEIGHT, *(factor.text for factor in factors if factor.kind in ("centre", "scale"))}
    expressions = {factor.text for factor in _every(question) if _is_rounded(factor)}
    return {
        name: plain if name in exact else _rounded(plain, finest=name not in expressions)
        for name, plain in moments.items()
    }


def _is_rounded(factor: Factor) -> bool:
    """Return True unless a factor is a column, or is defined by its moments."""
    return factor.column is None and factor.kind not in ("centre", "scale")


def _rounded(plain: list[Any], *, finest: bool) -> list[Any]:
    rows, mean, squares, *rest = plain
    if squares <= 0:
        return plain
    sd = float(f"{np.sqrt(squares / rows):.1e}")
    near = round(mean / sd * COARSE) / COARSE * sd
    if finest and abs(mean) < sd:  # of a rare event, whose logarithm is wanted
        near = float(f"{mean:.1e}")
    if (low := Moments(*plain).lower_of_two) is not None:  # which two codes it has stays to be seen
        share = min(max(near - low, 1 / rows), 1 - 1 / rows)
        return [rows, low + share, rows * share * (1 - share), *rest]
    return [rows, near, rows * sd**2, *rest]


def _every(question: Question) -> list[Factor]:
    parsed = question.parsed
    offset = [] if parsed.offset is None else [parsed.offset]
    return [*parsed.factors.values(), *parsed.response, *offset]


def _numbers(question: Question, kept: Table) -> list[Factor]:
    """Return the factors of which moments travel."""
    return [
        factor
        for factor in _every(question)
        if factor.columns
        and all(name in kept and kept[name].kind != "empty" for name in factor.columns)
        and not is_levels(factor, kept)
        and not any(kept[name].kind == "text" for name in factor.columns)
    ]


def _is_measured(kept: Table, name: str) -> bool:
    column = kept[name]
    return column.kind in ("number", "date") and np.ptp(column.values[~column.missing]) > 0


def _rarest(factor: Factor, kept: Table, site: str) -> float:
    """Count the rows of the rarest value of an expression that has few values."""
    if factor.column is not None:
        return np.inf
    values = factor.values(kept, f"site {site!r}")
    known = values[~np.isnan(values)]
    if not len(known):
        return np.inf
    apart = rows_apart(known)
    if not is_categorical(known):
        return apart
    counts = np.unique(known, return_counts=True)[1]
    return apart if len(counts) < 2 else float(counts.min())


def _told_by(factor: Factor, kept: Table, cells: list[str], site: str) -> np.ndarray:
    """Return slopes of a factor's moments by all cells in units of error, down and up."""

    def values(table: Table) -> np.ndarray:
        numbers = factor.numbers(table, f"site {site!r}")
        if factor.basis is None:
            return numbers
        outside = factor.basis.outside(numbers)
        return factor.basis.of(np.where(outside, factor.numbers(kept, site), numbers))

    missing = np.any([kept[name].missing for name in factor.columns], axis=0)
    here = np.where(missing, np.nan, values(kept))
    away = here - np.nanmean(here)
    sd = float(np.sqrt(np.nanmean(away**2))) or 1.0
    errors = np.array([EXACT, EXACT])
    if _is_rounded(factor):
        digit = 10.0 ** (np.floor(np.log10(sd)) - 1)
        errors = np.array([1 / COARSE, 2 * digit / sd]) / np.sqrt(12)
    scales = errors * np.array([len(here) * sd, len(here) * sd**2])
    parts = []
    for name in cells:
        column = kept[name]
        if name not in factor.columns:
            parts.append(np.zeros((2, len(here), 2)))
            continue
        unit = column.values[~column.missing].std()
        moves = np.array([-1.0, 1.0])[:, None] * (STEP, *STEPS)
        moved = [
            values({**kept, name: column._replace(values=column.values + move * unit)})
            for move in moves.ravel()
        ]
        by = np.reshape(moved, (*moves.shape, -1)) - here
        slopes = np.stack([by, by * (2 * away + by)], axis=3) / (moves[..., None, None] * scales)
        tangent, chords = slopes[:, 0].mean(axis=0), slopes[:, 1:]
        most = np.linalg.norm(chords, axis=3).argmax(axis=1)
        chord = np.take_along_axis(chords, most[:, None, :, None], axis=1)[:, 0]
        chord = np.where(np.isfinite(chord), chord, OUTSIDE)
        line = np.diff([*by[0, ::-1], 0 * here, *by[1]], axis=0)  # NaN outside of a domain
        turns = np.asarray((line > 0).any(axis=0) & (line < 0).any(axis=0))
        made = np.where(turns[:, None], np.nan_to_num(tangent), chord)
        parts.append(np.where(missing[:, None], 0.0, made))
    return np.concatenate(parts, axis=1)


def _refuse(rule: str, text: str) -> None:
    advice = "Ask for a study without these terms, or with a registered one, which sends no moments"
    raise PolicyError(
        f"the site's policy forbids this study: {rule}: {text}. {advice}.",
        rules=(rule,),
        of_rows=True,
    )
