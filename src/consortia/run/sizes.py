"""`plan_size`: how narrow intervals would be, by data simulated from the prior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.core.contract import Method
from consortia.data.sites import Sites
from consortia.diagnostics.summary import Shown
from consortia.errors import InputError
from consortia.models.regression.estimates import flat_names, interval_ends
from consortia.models.regression.model import Regression
from consortia.run.calibration import sampled, simulated

COEFFICIENTS = "coefficients"


@dataclass(frozen=True, eq=False, repr=False)
class Sizes(Shown):
    """Widths of intervals at several sizes; `str` renders the table.

    Attributes:
        names: of the coefficients.
        rows: of all sites together, (sizes,).
        width: median width of the interval of each coefficient, (sizes, names).
        wide: width that 90 % of the simulations stay below, likewise.
        away: share of the simulations whose interval leaves 0 out, likewise.
        covered: share of those that hold the value they were simulated from, likewise.
        simulations: of each size.
        level: probability inside the intervals.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    width: np.ndarray
    wide: np.ndarray
    away: np.ndarray
    covered: np.ndarray
    simulations: int
    level: float

    @property
    def _tables(self) -> list[list[list[str]]]:
        header = ["", "rows", f"width of {100 * self.level:g} %", "9 of 10 below", "without 0"]
        rows = [[*header, "hold the truth"]]
        for column, name in enumerate(self.names):
            for size_index, count in enumerate(self.rows):
                parts = (self.width, self.wide, self.away, self.covered)
                width, wide, away, covered = (part[size_index, column] for part in parts)
                shown = [f"{width:.3g}", f"{wide:.3g}", f"{away:.0%}", f"{covered:.0%}"]
                rows.append([name, f"{count:,}", *shown])
        return [rows]

    @property
    def notes(self) -> tuple[str, ...]:
        """Quantities that the widths are of."""
        return (
            f"{self.simulations} simulations of each size, parameters drawn from the priors; "
            "widths are on the scale of the link",
        )

    def to_dataframe(self) -> Any:
        """Return one line a coefficient and size."""
        import pandas as pd  # heavy, and only wanted here

        columns = {"width": self.width, "wide": self.wide}
        columns |= {"away": self.away, "covered": self.covered}
        index = pd.MultiIndex.from_product([self.rows, self.names], names=["rows", "coefficient"])
        flat = {name: values.ravel() for name, values in columns.items()}
        return pd.DataFrame(flat, index=index)


@arguments.hinted
def plan_size(
    regression: Regression,
    algorithm: Method,
    *,
    times: Sequence[float] = (0.5, 1.0, 2.0),
    simulations: int = 20,
    rounds: int = 400,
    warmup: int = 200,
    level: float = 0.95,
    seed: int = 0,
    on_simulation: Callable[[int], None] | None = None,
) -> Sizes:
    """Predict the width of each coefficient's interval in studies of several sizes.

    In each simulation parameters are drawn from the prior, the predictors of each site's rows again
    with replacement, and responses given both; the posterior is sampled as the study would. So the
    priors are to say what is expected before the study, and the rows what participants will be
    like: those of a pilot, or made up.

    Args:
        regression: what `consortia.regression` returned; of its rows only the predictors are used.
        algorithm: the method.
        times: sizes as multiples of each site's rows.
        simulations: of each size.
        rounds: iterations of one simulation after the warm-up.
        warmup: iterations before them.
        level: probability inside the intervals.
        seed: equal seeds give equal results.
        on_simulation: called with the number of simulations done.

    Returns:
        Widths of the intervals, and how many leave 0 out and hold what they were simulated from.

    Raises:
        InputError: the family cannot be simulated, the formula has no coefficient, weights, later
            starts or imputed values, or the rows of a site are not in this process.

    Example:
        >>> import consortia
        >>> found = consortia.plan_size(made, consortia.few_rounds())  # doctest: +SKIP
        >>> print(found)  # doctest: +SKIP
    """
    count = arguments.whole("simulations", simulations, 2)
    arguments.positive("level", level, below=1.0)
    factors = [arguments.positive("times", float(factor)) for factor in times]
    _check(regression)
    density = regression.density
    results = []
    for size, factor in enumerate(factors):
        params = density.draw(np.random.default_rng((seed, 0, size)), count)
        truth = density.natural(params)[COEFFICIENTS].reshape(count, -1)
        ends = []
        for simulation in range(count):
            rng = np.random.default_rng((seed, 1, size, simulation))
            point = {name: values[simulation : simulation + 1] for name, values in params.items()}
            sites = simulated(regression, point, rng, factor)
            drawn = _drawn(regression, sites, algorithm, rounds, warmup, int(rng.integers(2**62)))
            ends.append(np.quantile(drawn, interval_ends(level), axis=0))
            if on_simulation is not None:
                on_simulation(size * count + simulation + 1)
        low, high = np.stack(ends, axis=1)
        rows = sum(round(factor * site_rows) for site_rows in regression.rows.sizes)
        away, covered = (low > 0) | (high < 0), (low <= truth) & (truth <= high)
        results.append((rows, high - low, away, covered))
    widths = [width for _, width, _, _ in results]
    return Sizes(
        tuple(flat_names(COEFFICIENTS, _shape(regression), regression.labels)),
        tuple(rows for rows, *_ in results),
        np.stack([np.median(width, axis=0) for width in widths]),
        np.stack([np.quantile(width, 0.9, axis=0) for width in widths]),
        np.stack([away.mean(axis=0) for _, _, away, _ in results]),
        np.stack([covered.mean(axis=0) for *_, covered in results]),
        count,
        level,
    )


def _shape(regression: Regression) -> tuple[int, ...]:
    """Return the shape of the coefficients."""
    return (*regression.density.lead, len(regression.names))


def _drawn(
    regression: Regression, sites: Sites, algorithm: Method, rounds: int, warmup: int, seed: int
) -> np.ndarray:
    """Return draws of the coefficients, (draws, names)."""
    tree = sampled(regression, sites, algorithm, rounds, warmup, seed)
    values = np.asarray(regression.natural(tree)[COEFFICIENTS], float)
    return values.reshape(values.shape[0] * values.shape[1], -1)


def _check(regression: Regression) -> None:
    asked = regression.specification.question
    if not regression.names:
        raise InputError("plan_size: the formula has no coefficient.").at("formula")
    if "weights" in asked.extra or asked.parsed.entry is not None:
        raise InputError(
            "plan_size: responses with weights, or with late entry, are not simulated."
        ).at("weights")
    if regression.specification.imputed:
        raise InputError("plan_size: values are imputed: give missing='complete'.")
