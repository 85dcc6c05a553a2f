"""Probability that a run ends early, without a result, because answers would settle a row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from consortia.data.columns import rows_of
from consortia.data.tables import read_table
from consortia.engines.messages.settled import TRIED

if TYPE_CHECKING:
    from consortia.study.build import Study

FAR_OUT, EXPOSED, FEW_ROWS = 5.0, 6.0, 400
"""Standard deviations from the mean from which on a value is named, and those with which a row is
nearly all that a mean exp(η) says of a column, where there are no more rows."""


def early_end(ended: int, runs: int) -> tuple[float, float]:
    """Return the probability that a run ends early, by Jeffreys' prior, and its exact limit."""
    from scipy.stats import beta

    most = float(beta.ppf(0.95, ended + 1, runs - ended)) if ended < runs else 1.0
    return (ended + 0.5) / (runs + 1), most


def far_out(study: Study, file: Path, site: str) -> tuple[dict[str, float], int]:
    """Return the largest distances of the columns that a formula takes as they are, and the rows.

    Distances are from a column's mean, in its standard deviations.
    """
    question = study.asked
    if question is None:
        return {}, 0
    table = read_table(file, site, site=site, harmonise=question.harmonise.get(site))
    names = {factor.column for factor in question.parsed.factors.values()} & table.keys()
    away = {}
    for name in sorted(name for name in names if name and table[name].kind == "number"):
        values = table[name].values[~table[name].missing]
        if len(values) and np.ptp(values):
            away[name] = float(abs(values - values.mean()).max() / values.std())
    return away, rows_of(table)


def beforehand(study: Study, file: Path | None, site: str) -> str:
    """Say how probable an early end is at a site, by what made-up studies did."""
    question = study.asked
    if file is None or question is None:
        return (
            "Whether an answer would settle one of your rows, with which a run ends early, is "
            "unknown before your rows were tried: consortia site rehearse gives the probability."
        )
    away, rows = far_out(study, file, site)
    exposed = [name for name, most in away.items() if most > EXPOSED and rows < FEW_ROWS]
    exposed = exposed if question.family.logarithmic else []
    ended, runs = TRIED[bool(exposed)]
    chance, most = early_end(ended, runs)
    kind = "in which no row is nearly all that a mean exp(...) tells of a column"
    if exposed:
        kind = f"in which a mean exp(...) has a value as far out as yours of {', '.join(exposed)}"
    return (
        f"Of {runs} made-up studies {kind} {ended} ended early, without a result: with the noise "
        "that keeps answers from settling a row no draws were found. That is a probability of "
        f"{chance:.2f}, at most {most:.2f} (95 %), if yours is like them: 3 to 25 sites of 60 to "
        "3,000 rows. consortia site rehearse tries it with your rows."
        + " Ask for log() of the column."
        * bool(exposed)
    )
