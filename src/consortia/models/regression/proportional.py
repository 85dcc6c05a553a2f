r"""Proportional hazards of Cox's model, checked by a term with time.

.. math::
    \lambda_i(t) = \lambda_0(t) \exp\bigl(x_i^\top (\beta + \gamma\, g(t))\bigr), \qquad
    g(t) = \log t - \overline{\log t}

with the mean over all events. One step of Newton from the posterior mean of β and γ = 0 gives γ and
its standard error, from sums over each site's events (Grambsch and Therneau 1994, at the posterior
mean in the place of the mode).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.diagnostics.summary import Shown


@dataclass(frozen=True, eq=False, repr=False)
class ProportionalHazards(Shown):
    """Slopes of log hazard ratios in the logarithm of time; `str` renders the table."""

    names: tuple[str, ...]  # of the coefficients
    change: np.ndarray  # of each log hazard ratio, where time is e times as long
    error: np.ndarray  # its standard error

    @property
    def p(self) -> np.ndarray:
        """Two-sided probability of a change as large, were hazards proportional."""
        z = np.abs(self.change) / self.error
        return np.array([math.erfc(value / math.sqrt(2)) for value in z])

    @property
    def _tables(self) -> list[list[list[str]]]:
        """The one table: heading and rows as text."""
        header = ["", "change with log(time)", "se", "p"]
        body = [
            [name, f"{change:.3f}", f"{error:.3f}", f"{p:.3f}"]
            for name, change, error, p in zip(
                self.names, self.change, self.error, self.p, strict=True
            )
        ]
        return [[header, *body]]

    def to_dataframe(self) -> Any:
        """Return one line a coefficient."""
        import pandas as pd  # heavy, and only wanted here

        columns = {"change": self.change, "se": self.error, "p": self.p}
        return pd.DataFrame(columns, index=list(self.names))


def log_time_sums(rows: Mapping[str, np.ndarray], eta: np.ndarray) -> np.ndarray:
    """Return sums over a site's events, of which scores and information are made.

    ``eta`` (rows,) is the linear predictor at the posterior mean.

    Returns:
        Of the powers 0, 1 and 2 of log(time) the number of events, the scores x − x̄ and the
        covariance of x over the rows at risk, (3, 1 + p + p²).
    """
    x, stop, seen = np.asarray(rows["x"], float), rows["y"], np.asarray(rows["event"]) > 0
    first = rows.get("first", np.zeros(len(stop), int))
    starts = rows.get("start", np.full(len(stop), -np.inf))
    weights = np.asarray(rows.get("weight", np.ones(len(stop))), float)
    sums = np.zeros((3, 1 + x.shape[1] + x.shape[1] ** 2))
    for event in np.flatnonzero(seen):
        at = stop[event]
        risk = (first == first[event]) & (stop >= at) & (starts < at)
        weight = weights[risk] * np.exp(eta[risk] - eta[risk].max())
        weight = weight / weight.sum()
        mean = weight @ x[risk]
        apart = x[risk] - mean
        spread = (weight[:, None] * apart).T @ apart
        of_event = np.concatenate([[1.0], x[event] - mean, spread.ravel()])
        sums += weights[event] * np.log(at) ** np.arange(3)[:, None] * of_event
    return sums


def changes(names: Sequence[str], sums: np.ndarray, turn: np.ndarray) -> ProportionalHazards:
    """Return the changes with time from the `log_time_sums` of all sites, added up.

    ``turn`` (p, p) takes the model's coefficients to those of the user's columns.
    """
    p = len(names)
    mean = sums[1, 0] / sums[0, 0]
    score = sums[:, 1 : 1 + p]
    spread = sums[:, 1 + p :].reshape(3, p, p)
    centred = [spread[0], spread[1] - mean * spread[0]]
    centred.append(spread[2] - 2 * mean * spread[1] + mean**2 * spread[0])
    information = np.block([[centred[0], centred[1]], [centred[1].T, centred[2]]])
    both = np.concatenate([score[0], score[1] - mean * score[0]])
    step = np.linalg.pinv(information, hermitian=True)
    covariance = turn @ step[p:, p:] @ turn.T
    change = turn @ (step @ both)[p:]
    return ProportionalHazards(tuple(names), change, np.sqrt(np.diag(covariance)))
