"""Sensitivity of the spread between sites, and of what it decides, to the prior of the spread.

Draws under another prior p' of the standard deviation τ are those of the run with the weights
p'(τ)/p(τ), smoothed by ArviZ (PSIS): no message is sent to the sites.

Source: Vehtari, Simpson, Gelman, Yao, Gabry, "Pareto smoothed importance sampling" (2024); priors
of the spread for few studies: Röver et al., "On weakly informative prior distributions for the
heterogeneity parameter in Bayesian random-effects meta-analysis" (2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from consortia.diagnostics.influence import smoothed
from consortia.diagnostics.summary import aligned
from consortia.models.regression.estimates import interval_ends, short
from consortia.models.regression.priors import Prior

RELIABLE = 0.7
"""Largest k-hat with which weighted draws can be trusted."""


class Line(NamedTuple):
    """Estimates under one prior."""

    term: str  # the coefficient that differs between sites
    prior: str  # of its spread, in words
    spread: tuple[float, float, float]  # median and ends of the interval of the standard deviation
    # the same of the effect common to all sites; None of a level
    common: tuple[float, float, float] | None
    k_hat: float  # Pareto shape of the weights; NaN for the run's own prior


@dataclass(frozen=True)
class Sensitivity:
    """Estimates under several priors of the spread; `str` renders the table."""

    effect: str  # what the common effect is, "odds ratio" or "difference"
    lines: tuple[Line, ...]  # one for each coefficient and prior, that of the run first
    level: float  # probability inside the intervals

    def __str__(self) -> str:
        """Return the table as plain text."""
        ends = f"{100 * self.level:.4g} %"
        header = ["prior of the spread", "sd between sites", ends, self.effect, ends, "k-hat"]

        def cells(values: tuple[float, float, float] | None) -> list[str]:
            if values is None:
                return ["", ""]
            return [short(values[0]), f"{short(values[1])} to {short(values[2])}"]

        lines = []
        for term in dict.fromkeys(line.term for line in self.lines):
            body = [
                [
                    line.prior,
                    *cells(line.spread),
                    *cells(line.common),
                    "" if np.isnan(line.k_hat) else f"{line.k_hat:.2f}",
                ]
                for line in self.lines
                if line.term == term
            ]
            lines += [term, *aligned([header, *body]), ""]
        if any(line.k_hat > RELIABLE for line in self.lines):
            lines.append("* a k-hat above 0.7: run with that prior to know")
        return "\n".join(lines).rstrip("\n")

    __repr__ = __str__


def lines_of(
    term: str,
    prior_of_run: Prior,
    others: Sequence[Prior],
    spread: np.ndarray,
    common: np.ndarray | None,
    level: float,
) -> list[Line]:
    """Return a line for the run's prior of a spread, and one for each other.

    ``spread`` (draws,) are draws of the standard deviation, ``common`` of the common effect as it
    is shown; None of a level.
    """
    lines: list[Line] = []
    before = prior_of_run.log_density(spread, 0.0)
    for prior in (prior_of_run, *others):
        log_ratios = prior.log_density(spread, 0.0) - before
        share, k = np.full(len(spread), 1 / len(spread)), np.nan
        if prior != prior_of_run:
            share, k = smoothed(log_ratios)
        effect = None if common is None else _weighted(common, share, level)
        lines.append(Line(term, str(prior), _weighted(spread, share, level), effect, k))
    return lines


def usual_priors(unit: float) -> list[Prior]:
    """Return priors of a spread that people take, in units of the predictor."""
    return [
        Prior("half_normal", (0.5 * unit,)),
        Prior("half_normal", (unit,)),
        Prior("half_cauchy", (0.5 * unit,)),
        Prior("half_student_t", (3.0, 2.5 * unit)),
    ]


def _weighted(values: np.ndarray, share: np.ndarray, level: float) -> tuple[float, float, float]:
    order = np.argsort(values)
    below = np.cumsum(share[order]) - 0.5 * share[order]
    low, high = interval_ends(level)
    middle, lower, upper = np.interp([0.5, low, high], below, values[order])
    return float(middle), float(lower), float(upper)
