"""Differences of an effect between sites: each site's, the common one, a new site's, the spread.

Of the draws of a site's deviation u and of the standard deviation τ between sites, the shrinkage is
Var(u/τ | data). In a normal model with known τ it is V/(V + τ²), V being the variance of the site's
own estimate: 1 where the site's rows say nothing, 0 where the other sites' say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from consortia.core import arguments
from consortia.models.regression.density import Density
from consortia.models.regression.estimates import Drawn, effects_of, interval_ends, short, shorts
from consortia.models.regression.formula import SITE

Kind = Literal["site", "common", "new site", "spread"]
ROW_NAMES = {"common": "all sites", "new site": "a new site", "spread": "sd between sites"}


class Varying(NamedTuple):
    """Draws of one coefficient that differs between sites, on the scale of the link."""

    term: str  # its name; "Intercept" for a level
    common: np.ndarray  # (draws,); 0 for a level, which is relative to the common one
    spread: np.ndarray  # standard deviation between sites, (draws,)
    # u by the names of the sites of which there are draws, (draws,)
    deviations: Mapping[str, np.ndarray]


class Row(NamedTuple):
    """One line of the table."""

    term: str  # the coefficient that differs between sites
    name: str  # of the site, or what the line is
    kind: Kind  # of what it is an estimate
    median: float  # of the effect; of the spread as it is, on the scale of the link
    lower: float  # end of the interval; for a new site the interval of its prediction
    upper: float  # the other end
    above: float  # posterior probability that the coefficient is above 0; NaN of a spread
    shrinkage: float  # of a site, Var(u/τ | data); NaN elsewhere


@dataclass(frozen=True, repr=False)
class SiteEffects(Drawn):
    """Effects that differ between sites; `str` renders them as plain text."""

    effect: str  # what a row is: "odds ratio", or "difference" where nothing is exponentiated
    # for each coefficient that differs: the sites, the common one, a new site, the spread
    rows: tuple[Row, ...]
    level: float  # probability inside the intervals
    notes: tuple[str, ...] = ()  # what the user should know

    @property
    def terms(self) -> tuple[str, ...]:
        """The coefficients that differ between sites."""
        return tuple(dict.fromkeys(row.term for row in self.rows))

    @property
    def blocks(self) -> dict[str, list[Row]]:
        """The lines of a forest plot, by the heading of each coefficient's panel."""
        blocks = {}
        for term in self.terms:
            spread = next(row for row in self.rows if row.term == term and row.kind == "spread")
            head = f"{term}; sd between sites {short(spread.median)}"
            head += f" ({short(spread.lower)} to {short(spread.upper)})"
            blocks[head] = [row for row in self.rows if row.term == term and row is not spread]
        return blocks

    @property
    def _tables(self) -> list[list[list[str]]]:
        """Heading and rows of each coefficient, as text."""
        low, high = (f"{100 * q:.4g} %" for q in interval_ends(self.level))
        bound = 0 if self.effect == "difference" else 1
        tables = []
        for term in self.terms:
            header = [term, self.effect, low, high, f"P(> {bound})", "shrinkage"]
            body = [
                [
                    row.name,
                    *shorts((row.median, row.lower, row.upper), self.effect),
                    "" if np.isnan(row.above) else f"{row.above:.3f}",
                    "" if np.isnan(row.shrinkage) else f"{row.shrinkage:.2f}",
                ]
                for row in self.rows
                if row.term == term
            ]
            tables.append([header, *body])
        return tables

    def to_dataframe(self) -> Any:
        """Return the table as a `pandas.DataFrame`, one line for each row."""
        import pandas as pd  # heavy, and only wanted here

        return pd.DataFrame(self.rows, columns=list(Row._fields))


def varying_between(
    density: Density, natural: Mapping[str, Any], staying: Mapping[str, np.ndarray]
) -> list[Varying]:
    """List the effects that differ between sites, term after term, of each class of the response.

    ``natural`` has draws (draws, ...); ``staying`` the u of terms that are integrated out, (draws,
    terms), by the names of the sites where they were drawn.
    """
    spec, labels = density.specification, density.labels
    draws = {name: np.asarray(values) for name, values in natural.items()}
    classes = labels.get("intercept") or labels.get("coefficients", [])[:-1] or [None]
    varying = []
    for number, name in enumerate(classes[0] or [""]):
        of_class = (slice(None), number) if name else (slice(None),)
        for block_index, block in enumerate(spec.blocks):
            if block.by != SITE:
                continue
            common = np.zeros(len(draws["sd"]))
            if block.term in spec.names:
                common = draws["coefficients"][of_class][:, spec.names.index(block.term)]
            if spec.grouping == SITE:
                at = spec.staying.index(block_index)
                deviations = {site: values[:, at] for site, values in staying.items()}
            else:
                columns = np.flatnonzero(density.block_of == block_index)
                effects = draws["effects"][of_class][:, columns]
                deviations = dict(zip(spec.sites, effects.T, strict=True))
            term = f"{block.term}, {name}" if name else block.term
            varying.append(Varying(term, common, draws["sd"][:, block_index], deviations))
    return varying


def site_effects(
    varying: Sequence[Varying],
    effect: str | None,
    level: float,
    seed: int,
    notes: tuple[str, ...] = (),
) -> SiteEffects:
    """Return the table of what differs between sites.

    ``effect`` is what exp(coefficient) is, None where a coefficient is a difference.
    """
    arguments.positive("level", level, below=1.0)
    rng, rows = np.random.default_rng(seed), []

    def row(term: str, name: str, kind: Kind, values: np.ndarray, shrinkage: float) -> Row:
        spread = kind == "spread"
        scaled = effects_of(values, None if spread else effect)
        low, high = np.quantile(scaled, interval_ends(level))
        above = np.nan if spread else float(np.mean(values > 0))
        middle = float(np.median(scaled))
        return Row(term, name, kind, middle, float(low), float(high), above, shrinkage)

    for varied in varying:
        for site, deviation in varied.deviations.items():
            shrinkage = float(np.var(deviation / varied.spread))
            rows.append(row(varied.term, site, "site", varied.common + deviation, shrinkage))
        new = varied.common + varied.spread * rng.normal(size=varied.spread.shape)
        if varied.common.any():
            rows.append(row(varied.term, ROW_NAMES["common"], "common", varied.common, np.nan))
        rows.append(row(varied.term, ROW_NAMES["new site"], "new site", new, np.nan))
        rows.append(row(varied.term, ROW_NAMES["spread"], "spread", varied.spread, np.nan))
    return SiteEffects(effect or "difference", tuple(rows), level, notes)
