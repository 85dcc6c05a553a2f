"""What a run is worth, gathered once: for the terminal, for the files and for the figure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.core.model import Model
from consortia.diagnostics import (
    Summary,
    calibration_curve,
    log_predictive_density,
    predict,
    rmse,
    scores,
    summary,
)

Labels = Mapping[str, tuple[tuple[str, ...] | None, ...]]

MOST_DRAWS = 4000
"""Predictions are averaged over at most so many draws, evenly spaced."""

SCORE_NAMES = {
    "accuracy": "accuracy",
    "brier": "Brier score (sum over classes)",
    "ece": "calibration error (ECE, 15 bins)",
    "nll_per_row": "negative log-likelihood per row",
    "rmse": "root mean squared error",
    "log_density_per_row": "log predictive density per row",
}


@dataclass(frozen=True)
class Predictions:
    """Predictions on held-out rows and their scores.

    Attributes:
        scores: by name.
        curve: confidence, accuracy and share of rows by bin, for a classifier; else None.
        means: predicted means (rows,), for a regression; else None.
    """

    scores: dict[str, float]
    curve: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    means: np.ndarray | None = None


@dataclass(frozen=True)
class Verdict:
    """The worst numbers of a table; NaN where they are not available.

    Attributes:
        r_hat: largest R-hat.
        ess: smallest bulk or tail effective sample size.
        shift: largest |mean − reference mean| / reference sd, and the coordinate it belongs to.
        shift_error: largest Monte Carlo standard error of such a shift, both sides' errors.
        sd_ratio: smallest and largest sd / reference sd.
    """

    r_hat: float
    ess: float
    shift: tuple[float, str] | None
    shift_error: float
    sd_ratio: tuple[float, float] | None

    def lines(self) -> list[str]:
        """The verdict in words."""
        r_hat = "not available" if math.isnan(self.r_hat) else f"at most {self.r_hat:.3f}"
        ess = "not available" if math.isnan(self.ess) else f"at least {self.ess:,.0f}"
        lines = [f"R-hat {r_hat}, effective sample size {ess}."]
        if self.shift is None or self.sd_ratio is None:
            return [*lines, "Without a reference, bias cannot be seen in these numbers."]
        return [
            *lines,
            f"Means within {self.shift[0]:.2f} reference sd (farthest: {self.shift[1]}; "
            f"Monte Carlo error {self.shift_error:.2f}).",
            f"Standard deviations {self.sd_ratio[0]:.2f} to {self.sd_ratio[1]:.2f} times the "
            "reference's.",
        ]


@dataclass(frozen=True)
class Report:
    """Everything that is said about a run.

    Attributes:
        title: one line.
        table: one row a parameter, beside the reference where there is one.
        reference_table: the reference's own, in the same order, or None.
        verdict: the worst of the table.
        predictions: on the held-out rows, or None.
        reference_predictions: the reference's, or None.
        held_out_rows: their number.
        record: the run's attributes.
        reference_record: the reference's attributes, or None.
        skipped: parts that are missing, each with the reason.
    """

    title: str
    table: Summary
    reference_table: Summary | None
    verdict: Verdict
    predictions: Predictions | None
    reference_predictions: Predictions | None
    held_out_rows: int
    record: dict[str, Any]
    reference_record: dict[str, Any] | None
    skipped: tuple[str, ...]

    def score_rows(self) -> list[tuple[str, float, float | None]]:
        """Label, value and the reference's value of every score."""
        if self.predictions is None:
            return []
        beside = self.reference_predictions.scores if self.reference_predictions else {}
        return [
            (SCORE_NAMES[name], value, beside.get(name))
            for name, value in self.predictions.scores.items()
            if name in SCORE_NAMES
        ]

    def cost_rows(self) -> list[tuple[str, str]]:
        """Label and value of what the run has cost."""
        record, reference = self.record, self.reference_record
        rows = [
            ("rounds", f"{record['iterations_run']:,} ({record['stopped']})"),
            ("communication rounds", f"{record['communication_rounds']:,}"),
            ("bytes sent", f"{record['bytes_sent']:,} in all chains, up and down"),
            ("gradients", f"{record['gradients']:,} of a site, {record['row_gradients']:,} rows"),
            ("seconds", f"{record['seconds']:.1f}, compilation included"),
        ]
        if "site_noise_inflation" in record:
            widest = max(json.loads(record["site_noise_inflation"]))
            rows.append(
                (
                    "unlike sites",
                    f"heard one at a time they widen the variance by a predicted {widest:.2%} in "
                    "the worst coordinate (less if they take turns)",
                )
            )
        if reference is not None:
            rows.append(
                (
                    "reference",
                    f"{reference['gradients']:,} gradients of the pooled data, "
                    f"{reference['seconds']:.1f} seconds, {reference['divergences']} divergences",
                )
            )
        return rows

    def text(self) -> str:
        """All of it as plain text, every parameter and every column."""
        parts = [self.title, "=" * len(self.title), "", *self.verdict.lines(), ""]
        parts += [self.table.text(max_rows=len(self.table)), ""]
        if self.predictions is not None:
            parts.append(f"Predictions on {self.held_out_rows} held-out rows")
            for label, value, beside in self.score_rows():
                other = "" if beside is None else f"   reference {beside:.4f}"
                parts.append(f"  {label:<34}{value:.4f}{other}")
            parts.append("")
        parts += [f"{label}: {value}" for label, value in self.cost_rows()]
        parts += [f"not done: {line}" for line in self.skipped]
        return "\n".join(parts) + "\n"

    def json(self) -> str:
        """All of it as JSON; what is not available is null."""
        parameters = [
            {"name": name} | {key: values[place] for key, values in self.table.columns.items()}
            for place, name in enumerate(self.table.coordinates)
        ]
        content = {
            "title": self.title,
            "verdict": vars(self.verdict),
            "parameters": parameters,
            "notes": self.table.notes,
            "held_out_rows": self.held_out_rows,
            "scores": None if self.predictions is None else self.predictions.scores,
            "reference_scores": None
            if self.reference_predictions is None
            else self.reference_predictions.scores,
            "run": self.record,
            "reference": self.reference_record,
            "not_done": self.skipped,
        }
        return json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"


def gather(
    title: str,
    tree: Any,
    model: Model | None,
    held_out: Any = None,
    *,
    reference: Any = None,
    labels: Labels | None = None,
    skipped: tuple[str, ...] = (),
) -> Report:
    """Everything that is said about a run.

    Args:
        title: one line.
        tree: the result of the run.
        model: the model that was sampled, or None where it is not at hand.
        held_out: rows for the predictive scores, a dict with the responses under ``y``, or None.
        reference: the result of `consortia.diagnostics.reference.nuts`, or None.
        labels: by variable, the names along its axes, counted from the last one.
        skipped: what was left out before, each with the reason.
    """
    tree = labelled(tree, labels or {})
    if reference is not None:
        reference = labelled(reference, labels or {})
    table = summary(tree, reference=reference)
    own = None if reference is None else _in_order(summary(reference), table.coordinates)
    notes = list(skipped)
    predictions = beside = None
    if model is None:
        pass  # the caller says why
    elif held_out is None:
        if not any(note.startswith("predictive scores:") for note in notes):
            notes.append("predictive scores: the study holds no rows out")
    elif model.predict is None:
        notes.append("predictive scores: the model has no predict function")
    else:
        predictions = predicted(tree, model, held_out)
        beside = None if reference is None else predicted(reference, model, held_out)
    return Report(
        title=title,
        table=table,
        reference_table=own,
        verdict=verdict_of(table, own),
        predictions=predictions,
        reference_predictions=beside,
        held_out_rows=0 if held_out is None else len(next(iter(held_out.values()))),
        record=dict(tree.attrs),
        reference_record=None if reference is None else dict(reference.attrs),
        skipped=tuple(notes),
    )


def labelled(tree: Any, labels: Labels) -> Any:
    """The result with names along the axes of its posterior's variables, where they fit."""
    posterior = tree["posterior"].to_dataset()
    names = {}
    for variable in posterior.data_vars:
        dims = [dim for dim in posterior[variable].dims if dim not in ("chain", "draw")]
        axes = labels.get(str(variable), ())
        for dim, axis in zip(reversed(dims), reversed(axes), strict=False):
            if axis is not None and len(axis) == posterior.sizes[dim]:
                names[dim] = list(axis)
    if not names:
        return tree
    # Only the posterior: groups of one tree that share a dimension must share its labels.
    import xarray

    groups: dict[str, Any] = {"/posterior": posterior.assign_coords(names)}
    if "sample_stats" in tree.children:
        groups["/sample_stats"] = tree["sample_stats"].to_dataset()
    made = xarray.DataTree.from_dict(groups)
    made.attrs.update(tree.attrs)
    return made


def predicted(tree: Any, model: Model, held_out: Any) -> Predictions:
    """Predictions of a result on held-out rows, with their scores."""
    means = np.asarray(predict(tree, model, held_out, max_draws=MOST_DRAWS))
    response = held_out.get("y")
    if means.ndim == 2 and response is not None:
        return Predictions(scores(means, response), calibration_curve(means, response))
    density = log_predictive_density(tree, model, held_out, max_draws=MOST_DRAWS)
    found = {"log_density_per_row": float(density.mean())}
    if means.ndim != 1 or response is None:
        return Predictions(found)
    return Predictions({"rmse": rmse(means, response)} | found, means=means)


def verdict_of(table: Summary, reference: Summary | None = None) -> Verdict:
    """The worst numbers of a table; ``reference`` is the table of what it stands beside."""
    r_hat = float(table["r_hat"].max())
    ess = float(np.minimum(table["ess_bulk"], table["ess_tail"]).min())
    if reference is None:
        return Verdict(r_hat, ess, None, math.nan, None)
    error = np.hypot(table["mcse_mean"], reference["mcse_mean"]) / reference["sd"]
    worst = int(np.abs(table["shift"]).argmax())
    ratio = table["sd_ratio"]
    return Verdict(
        r_hat,
        ess,
        (abs(float(table["shift"][worst])), short_names(table)[worst]),
        float(error.max()),
        (float(ratio.min()), float(ratio.max())),
    )


def _in_order(table: Summary, coordinates: tuple[str, ...]) -> Summary:
    """The table with its rows in this order: a store may give the variables in another one."""
    rows = [table.coordinates.index(name) for name in coordinates]
    columns = {name: values[rows] for name, values in table.columns.items()}
    return Summary(coordinates, columns, table.notes)


def short_names(table: Summary) -> list[str]:
    """The rows' names without ``variable[...]``, where the labels inside say enough."""
    names = list(table.coordinates)
    inner = [name.partition("[")[2].removesuffix("]") or name for name in names]
    telling = all(not part.replace(", ", "").isdigit() for part in inner)
    return inner if telling and len(set(inner)) == len(inner) else names


def _plain(value: Any) -> Any:
    """The value as JSON has it: NumPy numbers as numbers, what is not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
