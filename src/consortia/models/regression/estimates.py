"""Results in the user's terms: each effect with its interval, and how sure its direction is."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from consortia.core import arguments
from consortia.core.parameters import coordinate_names
from consortia.diagnostics.summary import Shown
from consortia.errors import InputError


class Drawn(Shown):
    """A table of effects that can be drawn as a forest plot."""

    effect: str
    level: float

    @property
    @abstractmethod
    def blocks(self) -> Mapping[str, Sequence[Any]]:
        """The lines of a forest plot, as `Line`, by the heading of each panel."""

    def forest(self, path: str | Path, title: str = "") -> Path:
        """Draw the effects with their intervals; return the file.

        Args:
            path: of the picture, .png, .svg or .pdf.
            title: above it.

        Raises:
            MissingExtraError: the extra ``plots`` is not installed.
        """
        from consortia.diagnostics.figures.forest import draw_forest  # Matplotlib is optional

        return draw_forest(self.blocks, self.effect, self.level, Path(path), title)


@dataclass(frozen=True, repr=False)
class Estimates(Drawn):
    """One row for every coefficient; `str` renders it as plain text."""

    effect: str  # what a row is: "odds ratio", or "difference" where nothing is exponentiated
    names: tuple[str, ...]  # of the rows
    median: np.ndarray  # of the effect, (rows,)
    lower: np.ndarray  # end of the interval
    upper: np.ndarray  # the other end
    above: np.ndarray  # posterior probability that the coefficient is above 0, the ratio above 1
    level: float  # probability inside the interval
    notes: tuple[str, ...] = ()  # what the user should know

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.names)

    @property
    def _tables(self) -> list[list[list[str]]]:
        """The one table: heading and rows as text."""
        low, high = (f"{100 * q:.4g} %" for q in interval_ends(self.level))
        header = ["", self.effect, low, high, f"P(> {0 if self.effect == 'difference' else 1})"]
        rows = [
            [name, *shorts(values[:3], self.effect), f"{values[3]:.3f}"]
            for name, *values in zip(
                self.names, self.median, self.lower, self.upper, self.above, strict=True
            )
        ]
        return [[header, *rows]]

    def to_dataframe(self) -> Any:
        """Return the table as a `pandas.DataFrame`, the names as its index."""
        import pandas as pd  # heavy, and only wanted here

        low, high = (f"{100 * q:.4g} %" for q in interval_ends(self.level))
        columns = {self.effect: self.median, low: self.lower, high: self.upper}
        return pd.DataFrame({**columns, "P(above)": self.above}, index=list(self.names))

    @property
    def blocks(self) -> dict[str, list[Line]]:
        """The lines of a forest plot, in one panel."""
        columns = (self.names, self.median, self.lower, self.upper)
        return {"": [Line(*values) for values in zip(*columns, strict=True)]}


class Line(NamedTuple):
    """One line of a forest plot."""

    name: str
    median: float
    lower: float
    upper: float
    kind: str = "site"


EXPONENT_MAX = 600.0
"""Beyond, a ratio is shown as exp of this: floats, and margins of plots, end not far from it."""


def estimates_of(
    draws: Mapping[str, np.ndarray],
    labels: Mapping[str, Sequence[Sequence[str] | None]],
    effect: str | None,
    level: float,
    notes: tuple[str, ...] = (),
) -> Estimates:
    """Return the table of the coefficients, and of the other parameters as they are.

    ``draws`` (chain, draw, ...) are natural parameters by name; ``effect`` is what exp(coefficient)
    is, None where a coefficient is a difference.
    """
    arguments.positive("level", level, below=1.0)
    if "coefficients" not in draws:
        raise InputError("the formula has no coefficients: there are no effects to show.")
    values = draws["coefficients"]
    names = flat_names("coefficients", values.shape[2:], labels)
    columns = values.reshape(-1, len(names))
    effects = effects_of(columns, effect)
    low, high = np.quantile(effects, interval_ends(level), axis=0)
    return Estimates(
        effect or "difference",
        tuple(names),
        np.median(effects, axis=0),
        low,
        high,
        np.mean(columns > 0, axis=0),
        level,
        notes,
    )


def effects_of(coefficients: np.ndarray, effect: str | None) -> np.ndarray:
    """Return coefficients for display: exp(coefficient), or themselves where effect is None.

    Of a column in tiny units exp(coefficient) may be no number, and infinite ends have no quantile.
    """
    values = np.asarray(coefficients, float)
    return values if effect is None else np.exp(np.clip(values, -EXPONENT_MAX, EXPONENT_MAX))


def flat_names(
    name: str, shape: tuple[int, ...], labels: Mapping[str, Sequence[Sequence[str] | None]]
) -> list[str]:
    """Return a name for each number of a natural parameter of this shape."""
    axes = [axis or () for axis in labels.get(name, ())]
    if name == "coefficients":
        names = [""]
        for axis in reversed(axes):
            names = [f"{label} {rest}".strip() for label in axis for rest in names]
        if len(axes) == 2:  # classes after the column that they are of
            names = [f"{column}, {label}" for label in axes[0] for column in axes[1]]
        return names
    return coordinate_names(name, shape, axes)


def interval_ends(level: float) -> tuple[float, float]:
    """Return the two probabilities between which a central interval has ``level``."""
    return (1 - level) / 2, (1 + level) / 2


def shorts(values: Sequence[float], effect: str) -> list[str]:
    """Return numbers with three digits; of ratios near 1 as many as tell them from it."""
    places = None if effect == "difference" else places_near_one(values)
    return [short(number) if places is None else f"{number:.{places}f}" for number in values]


def places_near_one(ratios: Sequence[float]) -> int | None:
    """Return the decimals that ratios need which are all within a tenth of 1; None of others."""
    apart = max(abs(ratio - 1) for ratio in ratios)
    return 1 - math.floor(math.log10(apart)) if 1e-6 < apart < 0.1 else None


def short(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:.3g}" if abs(value) >= 0.01 or value == 0 else f"{value:.2g}"
