r"""Posterior predictive checks of a regression, and the share of variance that it explains.

.. math::
    p = P\bigl(T(y^{rep}) \ge T(y) \mid y\bigr), \qquad
    R^2_s = \frac{\mathrm{Var}_i\,\mu_i^s}
                 {\mathrm{Var}_i\,\mu_i^s + \frac1n\sum_i \mathrm{Var}(y_i \mid \theta_s)}

T are the mean, the standard deviation and the share of zeros at a site, and of all. Of single rows
nothing leaves a site: of the response and, draw by draw, of what is simulated in its place, sums
over the site's rows of values, squares and zeros; and the sums of the means, of their squares and
of the variances. Var_i is the sample variance, over n − 1.

Source: Gelman, Meng, Stern, "Posterior predictive assessment of model fitness via realized
discrepancies" (1996); Gelman, Goodrich, Gabry, Vehtari, "R-squared for Bayesian regression models"
(2019).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from consortia.diagnostics.summary import aligned
from consortia.models.regression.estimates import interval_ends, short

ALL = "all sites"

Own = Mapping[str, np.ndarray]
Sums = Mapping[str, np.ndarray]

MOST_PERSONS = 50_000
"""Persons of a site whose responses are simulated one by one."""

VARIANCES: dict[str, Callable[[np.ndarray, Own, np.ndarray], np.ndarray]] = {
    "gaussian": lambda mean, aux, trials: aux["sigma"] ** 2 + 0 * mean,
    "student": lambda mean, aux, trials: _student(aux["sigma"], aux["nu"]) + 0 * mean,
    "bernoulli": lambda mean, aux, trials: mean * (1 - mean),
    "binomial": lambda mean, aux, trials: mean * (1 - mean / trials),
    "poisson": lambda mean, aux, trials: mean,
    "negative_binomial": lambda mean, aux, trials: mean + mean**2 / aux["phi"],
    "gamma": lambda mean, aux, trials: mean**2 / aux["shape"],
    "lognormal": lambda mean, aux, trials: mean**2 * np.expm1(aux["sigma"] ** 2),
    "zero_inflated_poisson": lambda mean, aux, trials: mean * (1 + mean * aux["zero_odds"]),
    "zero_inflated_negative_binomial": lambda mean, aux, trials: (
        mean + mean**2 * ((1 + 1 / aux["phi"]) * (1 + aux["zero_odds"]) - 1)
    ),
    "beta": lambda mean, aux, trials: mean * (1 - mean) / (1 + aux["phi"]),
}
"""Var(y | θ) of the families whose response is a number, from its mean, (draws, rows)."""


def _student(sigma: np.ndarray, nu: np.ndarray) -> np.ndarray:
    return np.where(nu > 2, sigma**2 * nu / np.maximum(nu - 2, 1e-12), np.inf)


class Line(NamedTuple):
    """One statistic at one site."""

    site: str  # its name, or "all sites"
    # "mean", "sd" or "zeros", the share of them; the share of a level; of a time "events", their
    # share, and the mean "follow-up"
    statistic: str
    observed: float  # of the response
    median: float  # of the simulated ones
    lower: float  # end of their interval
    upper: float  # the other end
    p: float  # share of simulated ones above the observed one, and half of those equal to it


@dataclass(frozen=True)
class PredictiveCheck:
    """Predictions of the responses that the model was fitted to; `str` renders them."""

    lines: tuple[Line, ...]  # the sites and all of them, a line for each statistic
    # draws of Bayesian R² over the rows of all sites, (draws,); None of levels and times
    r2: np.ndarray | None
    level: float  # probability inside the intervals

    def __str__(self) -> str:
        """Return the table as plain text."""
        ends = f"{100 * self.level:.4g} %"
        header = ["", "", "observed", "simulated", ends, "p"]
        body = [
            [
                line.site,
                line.statistic,
                short(line.observed),
                short(line.median),
                f"{short(line.lower)} to {short(line.upper)}",
                f"{line.p:.3f}",
            ]
            for line in self.lines
        ]
        if self.r2 is None:
            return "\n".join(aligned([header, *body]))
        low, middle, high = np.quantile(self.r2, [*interval_ends(self.level), 0.5])[[0, 2, 1]]
        return "\n".join(
            [*aligned([header, *body]), f"Bayesian R² {middle:.3f} ({low:.3f} to {high:.3f})"]
        )

    __repr__ = __str__

    def to_dataframe(self) -> Any:
        """Return the lines as a `pandas.DataFrame`."""
        import pandas as pd  # heavy, and only wanted here

        return pd.DataFrame(self.lines, columns=list(Line._fields))


def of_persons(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a row of each person that rows with frequencies stand for; else the rows.

    Persons of one row have responses of their own: a response times its frequency varies too much.
    """
    weight = np.asarray(rows.get("weight", 1.0))
    if (weight != np.round(weight)).any() or not 0 < weight.sum() <= MOST_PERSONS:
        return rows
    if weight.ndim == 0:
        return rows
    which = np.repeat(np.arange(len(weight)), weight.astype(int))
    return {name: values[which] for name, values in rows.items()}


def sums_of(
    family: str, y: np.ndarray, simulated: np.ndarray, mean: np.ndarray, aux: Own, trials: Any
) -> Sums:
    """Return the sums over a site's rows that leave it.

    Args:
        family: of the response.
        y: the response, (rows,).
        simulated: in its place, (draws, rows).
        mean: of it given the parameters, (draws, rows).
        aux: the auxiliary parameters of the family, (draws,) each.
        trials: of each row, of binomial.
    """
    of_rows = {name: values[:, None] for name, values in aux.items() if values.ndim == 1}
    variance = VARIANCES[family](mean, of_rows, trials)

    def moments(values: np.ndarray) -> np.ndarray:
        return np.stack([np.sum(of, -1, float) for of in (values, values**2, values == 0)])

    of_mean = np.stack([part.sum(axis=1) for part in (mean, mean**2, variance)])
    made = {"simulated": moments(np.asarray(simulated, float)), "mean": of_mean}
    return {"rows": np.array([len(y)]), "observed": moments(np.asarray(y, float))} | made


def joined(parts: Sequence[Sums]) -> Sums:
    """Return the sums over a site's rows of all draws, from those of some draws each."""
    of_draws = ("simulated", "mean")
    every = {key: np.concatenate([part[key] for part in parts], axis=-1) for key in of_draws}
    return {**parts[0], **every}


def checked(sums: Mapping[str, Sums], level: float) -> PredictiveCheck:
    """Return the table from the sums of every site, by its name."""
    parts = [*sums.values()]
    total = {key: np.sum([part[key] for part in parts], axis=0) for key in parts[0]}
    lines = []
    for site, moments in {**sums, ALL: total}.items():
        rows = float(moments["rows"][0])
        seen, made = _statistics(moments["observed"], rows), _statistics(moments["simulated"], rows)
        for name, observed in seen.items():
            if name == "zeros" and not moments["observed"][2] and not moments["simulated"][2].any():
                continue
            if name == "sd" and rows < 2:
                continue
            lines.append(line_of(site, name, float(observed), made[name], level))
    count = float(total["rows"][0])
    first, second, variance = total["mean"] / count
    explained = np.maximum(second - first**2, 0) * count / max(count - 1, 1)
    return PredictiveCheck(tuple(lines), explained / (explained + variance), level)


def line_of(site: str, name: str, observed: float, values: np.ndarray, level: float) -> Line:
    """Return the line of one statistic, from its values in simulated responses, (draws,)."""
    low, high = np.quantile(values, interval_ends(level))
    p = float(np.mean(values > observed) + np.mean(values == observed) / 2)
    return Line(site, name, observed, float(np.median(values)), float(low), float(high), p)


def _statistics(sums: np.ndarray, rows: float) -> dict[str, np.ndarray]:
    mean = sums[0] / rows
    variance = np.maximum(sums[1] / rows - mean**2, 0) * rows / max(rows - 1, 1)
    return {"mean": mean, "sd": np.sqrt(variance), "zeros": sums[2] / rows}
