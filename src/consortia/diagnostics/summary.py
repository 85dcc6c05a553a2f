"""A table of the posterior: location, spread, Monte Carlo error, convergence, and a reference."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal

import numpy as np

from consortia.core import arguments
from consortia.core.parameters import (
    as_sampled,
    coordinate_names,
    draw_imputations,
    draw_weights,
    has_natural,
    posterior_draws,
    posterior_group,
)
from consortia.core.pareto import RELIABLE, shape_of
from consortia.diagnostics.convergence import (
    Between,
    Convergence,
    MaxCoordinates,
    convergence,
    error_of_mean,
)
from consortia.diagnostics.imputations import missing_information, pooled_error
from consortia.diagnostics.stein import Stein
from consortia.diagnostics.verdict import Evidence, Tabled, Verdict, judge, prediction_in
from consortia.errors import InputError, wrong
from consortia.store.metadata import recorded

MISSING = "n/a"
MAX_ROWS = 40
COMPARISON = "shift = (mean - ref_mean) / ref_sd, sd_ratio = sd / ref_sd"
"""The note of a table beside a reference."""

IMPUTED = (
    "the draws come from {} imputations: r_hat is the largest within one imputation, ess is "
    "summed, mcse_mean includes the error of few imputations, fmi is the "
    "fraction of missing information"
)
"""The note of a table of draws given several imputations."""

NATURAL = (
    "Coefficients are in the units of the columns, the intercept is for a row of zeros; they were "
    "sampled in standardised units."
)
"""The note of a table of a regression's natural parameters."""

STANDARDISED = "coefficients are those of standardised columns"
"""The note of a table of a run of an earlier version, which kept how to turn them back."""

Units = Literal["columns", "sampled"]

# Columns in the units of the parameter; their decimals follow the standard deviation.
MOST_TAILS, FEWEST_OF_TAIL = 500, 400
"""Coordinates up to which the tails of draws are looked at, and draws from which on."""

_MOMENTS = ("mean", "sd", "mcse_mean", "shift", "sd_ratio")
_IN_UNITS = ("mean", "sd", "mcse_mean", "ref_mean", "ref_sd")
_WHOLE = ("ess", "ess_bulk", "ess_tail")


@dataclass(frozen=True, repr=False)
class Summary:
    """One row for every scalar coordinate of a posterior; `str` renders it as plain text.

    Attributes:
        coordinates: the names of the rows, "theta[3]".
        columns: by name, (rows,) each, NaN where a statistic is not available.
        notes: what is weighted, what is not available and why.
        missing: of these, the ones on "R-hat" and on "ESS".
        verdict: on the run, where the draws are a run's and not mere arrays.

    Example:
        >>> found = summary({"theta": np.random.default_rng(0).normal(size=(4, 50))})
        >>> sorted(found.columns)
        ['5%', '95%', 'ess_bulk', 'ess_tail', 'mcse_mean', 'mean', 'r_hat', 'sd']
    """

    coordinates: tuple[str, ...]
    columns: Mapping[str, np.ndarray]
    notes: tuple[str, ...] = ()
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    verdict: Verdict | None = None

    def __getitem__(self, column: str) -> np.ndarray:
        """Return a column by its name."""
        return self.columns[column]

    def __len__(self) -> int:
        """Return the number of coordinates."""
        return len(self.coordinates)

    def __str__(self) -> str:
        """Return the table as `text` renders it."""
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        rows = [("", *self.columns), *self.cells(tuple(self.columns), MAX_ROWS)]
        return html_of([rows], self._notes(MAX_ROWS))

    def to_dataframe(self) -> Any:
        """Return the table as a `pandas.DataFrame`, a row for each coordinate."""
        import pandas

        return pandas.DataFrame(dict(self.columns), index=list(self.coordinates))

    def row(self, coordinate: str) -> dict[str, float]:
        """Return the statistics of one coordinate, by column."""
        if coordinate not in self.coordinates:
            raise wrong("coordinate", f"={coordinate!r} is not a row of this summary.")
        index = self.coordinates.index(coordinate)
        return {name: float(values[index]) for name, values in self.columns.items()}

    def to_dataset(self) -> Any:
        """Return the table as an `xarray.Dataset` of dimension ("coordinate",)."""
        import xarray

        return xarray.Dataset(
            {name: ("coordinate", values) for name, values in self.columns.items()},
            coords={"coordinate": list(self.coordinates)},
            attrs={"notes": "; ".join(self.notes)},
        )

    def text(self, max_rows: int = MAX_ROWS) -> str:
        """Return aligned plain text with the notes below; at most ``max_rows`` coordinates."""
        rows = [["", *self.columns], *self.cells(tuple(self.columns), max_rows)]
        return "\n".join([*aligned(rows), *self._notes(max_rows)])

    def cells(self, columns: Sequence[str], max_rows: int) -> list[list[str]]:
        """Return name and numbers of the first coordinates as text, in these columns."""
        return [
            [name, *(_cell(key, self[key][row], self["sd"][row]) for key in columns)]
            for row, name in enumerate(self.coordinates[: max(1, max_rows)])
        ]

    def _notes(self, max_rows: int) -> list[str]:
        notes = [f"* {note}" for note in self.notes]
        shown = max(1, max_rows)
        if shown < len(self):
            notes.insert(0, f"* the first {shown} of {len(self)} coordinates")
        return notes if self.verdict is None else [*notes, *self.verdict.lines()]


class Shown(ABC):
    """Tables with notes below, as plain text and for a notebook."""

    @property
    @abstractmethod
    def _tables(self) -> list[list[list[str]]]:
        """The lines of cells of each table, its heading first."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that the user should read."""
        return ()

    def __str__(self) -> str:
        """Return the tables as plain text."""
        tables = "\n\n".join("\n".join(aligned(table)) for table in self._tables)
        return "\n".join([tables, *(f"* {note}" for note in self.notes)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the tables for a notebook."""
        return html_of(self._tables, [f"* {note}" for note in self.notes])


def html_of(tables: Sequence[Sequence[Sequence[str]]], notes: Sequence[str]) -> str:
    """Return tables for a notebook, the first row of each its heading, and the notes below."""
    text = ""
    for first, *rest in tables:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in first)
        body = "".join(
            f"<tr><th>{escape(name)}</th>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
            for name, *cells in rest
        )
        text += f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"{text}<p>{'<br>'.join(map(escape, notes))}</p>" if notes else text


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


@arguments.hinted
def summary(
    tree: Any,
    *,
    probabilities: Sequence[float] = (0.05, 0.95),
    reference: Any = None,
    between: Between = "chains",
    max_coordinates: MaxCoordinates = "all",
    units: Units = "columns",
    stein: Stein | None = None,
) -> Summary:
    r"""Return mean, sd, quantiles, Monte Carlo error, R-hat and ESS of every scalar coordinate.

    The standard deviation has the divisor S − 1 over all S draws of all chains. Where the step size
    varied (``sample_stats.weight``) every moment and quantile is step-weighted,

    .. math:: \bar x = \frac{\sum_i w_i x_i}{\sum_i w_i}, \qquad
              s^2 = \frac{\sum_i w_i (x_i - \bar x)^2}{\sum_i w_i - \sum_i w_i^2 / \sum_i w_i}

    with a note; R-hat and ESS are always those of the unweighted draws.

    Args:
        tree: result of a run; only its group ``posterior`` holds chains.
        probabilities: the quantiles, between 0 and 1.
        reference: another result with the same variables, e.g. of NUTS on the pooled data. Adds
            its mean and sd, ``shift`` = (mean − reference mean) / reference sd, and ``sd_ratio`` =
            sd / reference sd. One without coordinates is compared with the
            natural quantities of the same names, and the verdict leaves it out.
        between: as in `consortia.diagnostics.convergence`.
        max_coordinates: likewise, for R-hat and ESS; moments are computed for all coordinates.
        units: ``"columns"`` tabulates the natural quantities of the model (`Model.natural`): of a
            formula as `Regression.natural`; where the study standardised columns, the
            coefficients per unit of the columns as they were read; of a model of NumPyro or PyMC
            what its author named. ``"sampled"`` tabulates the coordinates that were sampled, the
            group ``unconstrained_posterior``. For all other models the two are the same.
        stein: what `consortia.verify` found, for the verdict.

    Returns:
        A table with a row for each scalar coordinate; the verdict where the draws are a run's.

    Raises:
        InputError: no draws, a probability outside [0, 1], or a reference of another model.

    Example:
        >>> draws = np.random.default_rng(0).normal(size=(2, 500, 2))
        >>> table = summary({"theta": draws})
        >>> table.coordinates
        ('theta[0]', 'theta[1]')
    """
    if any(not 0 <= p <= 1 for p in probabilities):
        raise wrong("probabilities", f"={tuple(probabilities)}: give numbers between 0 and 1.")
    arguments.one_of("units", units, ("columns", "sampled"))
    if units == "sampled":
        tree, reference = as_sampled(tree), as_sampled(reference)
    natural, how = has_natural(tree), (probabilities, between, max_coordinates)
    made = tabulate(tree, reference, _note_origin(tree), *how)
    if "algorithm" not in getattr(tree, "attrs", {}):
        return made
    without = _without_moments(made, tree)
    if natural and reference is not None and not has_natural(reference):
        reference = None  # it has no coordinates
    draws, theirs = as_sampled(tree), as_sampled(reference)
    if not natural:
        others = None if theirs is None else _alike(tabulate(theirs, None, (), *how), theirs, draws)
        evidence = Evidence.of(draws, made, others, stein)
    else:  # judged are the parameters as they were sampled
        sampled = tabulate(draws, theirs, (), probabilities, between)
        others = None if theirs is None else _alike(tabulate(theirs), theirs, draws)
        named = Tabled(made.columns, made.coordinates)
        evidence = Evidence.of(draws, sampled, others, stein, named)
    return replace(without, verdict=judge(prediction_in(draws), evidence))


def _without_moments(table: Summary, tree: Any) -> Summary:
    """Return a table without mean and sd where a tail is so long that draws do not tell them."""
    draws = [array.reshape(-1, *array.shape[2:]) for array in _some_draws("tree", tree).values()]
    if len(table) > MOST_TAILS or len(draws[0]) < FEWEST_OF_TAIL:
        return table
    flat = np.concatenate([array.reshape(len(array), -1) for array in draws], axis=1)
    effective = np.nan_to_num(table.columns["ess_tail"] / len(flat), nan=1.0)
    shares = np.clip(effective, 1 / len(flat), 1.0)
    shapes = np.array([_tail_shape(*each) for each in zip(flat.T, shares, strict=True)])
    bad = shapes > RELIABLE
    if not bad.any():
        return table
    columns = {
        name: np.where(bad, np.nan, values) if name in _MOMENTS else values
        for name, values in table.columns.items()
    }
    medians = [
        f"{table.coordinates[index]} (median {np.median(flat[:, index]):.4g})"
        for index in np.flatnonzero(bad)[:3]
    ]
    more = f" and {bad.sum() - 3} more" if bad.sum() > 3 else ""
    note = (
        f"no mean and sd of {', '.join(medians)}{more}: they do not exist (a power-law tail), or "
        f"the draws cannot estimate them (k-hat {shapes.max():.2f}, above {RELIABLE})"
    )
    return replace(table, columns=columns, notes=(*table.notes, note))


def _tail_shape(values: np.ndarray, share: float) -> float:
    """Return the larger k-hat of the two tails of draws; 0 of constant or infinite ones.

    ``share`` of the draws is effective.
    """
    if not np.isfinite(values).all():
        return 0.0
    away = values - np.median(values)
    sides = [side[side > 0] for side in (away, -away)]
    shapes = [shape_of(np.log(side), share) for side in sides if len(side) >= FEWEST_OF_TAIL // 4]
    return max(shapes, default=0.0)


def _alike(table: Summary, reference: Any, tree: Any) -> dict[str, np.ndarray]:
    """Return the columns of a reference's table, with the rows of a result in their order."""
    rows, begin = {}, 0
    for name, array in _some_draws("reference", reference).items():
        rows[name] = np.arange(begin, begin + math.prod(array.shape[2:]))
        begin += len(rows[name])
    chosen = np.concatenate([rows[name] for name in _some_draws("tree", tree)])
    return {name: values[chosen] for name, values in table.columns.items()}


def tabulate(
    tree: Any,
    reference: Any = None,
    origin: Sequence[str] = (),
    probabilities: Sequence[float] = (0.05, 0.95),
    between: Between = "chains",
    max_coordinates: MaxCoordinates = "all",
) -> Summary:
    """Return the table of a result's group ``posterior``, without a verdict.

    Other arguments are as of `summary`; ``origin`` are notes on the units of the table, and on who
    handed the draws over.
    """
    diagnostics = convergence(tree, between=between, max_coordinates=max_coordinates)
    columns, notes = _columns(tree, probabilities, diagnostics)
    notes += origin
    draws = _some_draws("tree", tree)
    if reference is not None:
        columns |= _beside(columns, draws, reference)
        notes.append(COMPARISON)
    sources = posterior_group(tree)
    names = itertools.chain.from_iterable(
        _labels(name, sources[name], array.shape[2:]) for name, array in draws.items()
    )
    missing = {"R-hat": diagnostics.missing("R-hat"), "ESS": diagnostics.missing("ESS")}
    return Summary(tuple(names), columns, tuple(notes), missing)


def _note_origin(tree: Any) -> list[str]:
    """Return notes on the units of a table, and on who handed the draws over."""
    notes, settings = [], recorded(tree, "settings") or {}
    regression = "family" in settings.get("regression", settings) or "kind" in settings.get(
        "model", {}
    )
    if has_natural(tree) and regression and "coefficients" in tree["posterior"]:
        notes.append(NATURAL)
    elif recorded(tree, "scaling"):
        notes.append(STANDARDISED)
    if kept := recorded(tree, "sandwich"):
        notes.append(
            "widths are those of a sandwich estimator, from sampling weights or clusters of "
            f"rows, {kept['low']:.3g} to {kept['high']:.3g} times those of the likelihood; the "
            "draws are not from a posterior"
        )
    handed_over = getattr(tree, "attrs", {}).get("handed_over")
    if handed_over is not None:
        notes.append(str(handed_over))
    return notes


def _columns(
    tree: Any, probabilities: Sequence[float], convergence: Convergence
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the columns of the table, and the notes on them."""
    draws, weights, numbers = _some_draws("tree", tree), draw_weights(tree), draw_imputations(tree)
    moments = zip(*(_moments(array, weights) for array in draws.values()), strict=True)
    columns = dict(zip(("mean", "sd"), map(_stacked, moments), strict=True))
    quantiles = [_quantiles(array, probabilities, weights) for array in draws.values()]
    for index, probability in enumerate(probabilities):
        columns[f"{100 * probability:g}%"] = _stacked(values[index] for values in quantiles)
    errors = [_errors(array, weights, numbers) for array in draws.values()]
    columns |= {
        "mcse_mean": _stacked(together for together, _ in errors),
        "r_hat": _stacked(convergence.r_hat.values()),
        "ess_bulk": _stacked(convergence.ess_bulk.values()),
        "ess_tail": _stacked(convergence.ess_tail.values()),
    }
    notes = convergence.notes()
    if numbers is not None:
        each = zip(draws.values(), errors, strict=True)
        fractions = (missing_information(array, numbers, within) for array, (_, within) in each)
        columns["fmi"] = _stacked(fractions)
        notes.append(IMPUTED.format(len(np.unique(numbers))))
    if weights is not None:
        notes.append(
            "mean, sd, quantiles and mcse_mean are weighted by the step sizes; R-hat and ESS are "
            "not"
        )
    return columns, notes


# --- the statistics ------------------------------------------------------------------------------


def _some_draws(label: str, tree: Any) -> dict[str, np.ndarray]:
    draws = posterior_draws(tree)
    if not all(array.shape[0] * array.shape[1] for array in draws.values()):
        raise InputError(
            f"{label}: the posterior holds no draws, so there is nothing to summarise."
        ).at(label)
    return draws


def _moments(array: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and sd (*shape) of draws (chain, draw, *shape); one draw has no sd."""
    chains, draws = array.shape[:2]
    share = np.ones(draws) if weights is None else weights / weights.max()
    share = np.broadcast_to(share, (chains, draws))
    total, squares = share.sum(), (share**2).sum()
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.einsum("cs,cs...->...", share, array.astype(np.float64)) / total
        scatter = np.einsum("cs,cs...->...", share, (array - mean) ** 2)
    freedom = total - squares / total
    if freedom <= 1e-12 * total:
        return mean, np.full(mean.shape, np.nan)
    return mean, np.sqrt(scatter / freedom)


def _errors(
    array: np.ndarray, weights: np.ndarray | None, numbers: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the error of the mean, and those given each imputation."""
    if numbers is None:
        return error_of_mean(array, weights), np.empty(0)

    def of_one(part: np.ndarray) -> np.ndarray:
        # all parts have one length
        return error_of_mean(part, None if weights is None else weights[..., : part.shape[1]])

    return pooled_error(array, numbers, of_one)


def _quantiles(
    array: np.ndarray, probabilities: Sequence[float], weights: np.ndarray | None
) -> np.ndarray:
    """Return (len(probabilities), *shape): interpolated, or the inverse of the weighted CDF."""
    with np.errstate(invalid="ignore"):
        if weights is None:
            return np.quantile(array.astype(np.float64), probabilities, axis=(0, 1))
        pooled = array.reshape(-1, *array.shape[2:]).astype(np.float64)
        return np.quantile(
            pooled,
            probabilities,
            axis=0,
            weights=np.broadcast_to(weights, array.shape[:2]).ravel(),
            method="inverted_cdf",
        )


def _beside(
    columns: Mapping[str, np.ndarray], draws: Mapping[str, np.ndarray], reference: Any
) -> dict[str, np.ndarray]:
    other, weights = _some_draws("reference", reference), draw_weights(reference)
    for name, array in draws.items():
        if name not in other or other[name].shape[2:] != array.shape[2:]:
            had = f"shape {other[name].shape[2:]}" if name in other else "no such variable"
            raise InputError(
                f"reference: variable {name!r} has shape {array.shape[2:]} in the result, the "
                f"reference has {had}. Give draws of the same model."
            ).at("reference")
    mean, sd = map(_stacked, zip(*(_moments(other[name], weights) for name in draws), strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "ref_mean": mean,
            "ref_sd": sd,
            "shift": (columns["mean"] - mean) / sd,
            "sd_ratio": columns["sd"] / sd,
        }


def _stacked(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(array) for array in arrays])


# --- names and cells -----------------------------------------------------------------------------


def _labels(name: str, source: Any, shape: tuple[int, ...]) -> list[str]:
    """Return the names of a variable's coordinates, with the labels of the result if any."""
    dims = [dim for dim in getattr(source, "dims", ()) if dim not in ("chain", "draw")]
    axes = [list(source.coords[dim].values) if dim in source.coords else None for dim in dims]
    return coordinate_names(name, shape, axes)


def _cell(column: str, value: float, sd: float) -> str:
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if column in _WHOLE:
        return f"{value:,.0f}"
    if column in _IN_UNITS or column.endswith("%"):
        scale = sd if math.isfinite(sd) and sd > 0 else abs(value)
        if not 1e-4 <= scale < 1e6:
            return f"{value:.3g}"
        # Three digits of the standard deviation, one more for the error of the mean.
        decimals = 2 - math.floor(math.log10(scale)) + (column == "mcse_mean")
        return f"{value:.{max(0, decimals)}f}"
    return f"{value:.3f}"
