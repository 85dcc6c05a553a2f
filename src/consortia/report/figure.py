"""One picture of a run: intervals beside the reference, traces, predictions, the verdict."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from consortia.core import parameters
from consortia.errors import MissingExtraError
from consortia.report import Report, short_names

MOST_PARAMETERS = 32
TRACES = 3
MOST_POINTS = 1000
FEDERATED = "#1f5fa8"
REFERENCE = "#d9822b"
CHAINS = ("#1f5fa8", "#5aa2d8", "#16826b", "#7d6bb5")
SCORES = {"accuracy": "accuracy", "ece": "ECE", "brier": "Brier", "rmse": "RMSE"}


def check_matplotlib() -> None:
    """Refuse early, and say what to install, where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "the figure needs matplotlib: pip install 'consortia[plots]'"
        ) from error


def draw(
    report: Report, tree: Any, path: str | os.PathLike[str], observed: np.ndarray | None = None
) -> Path:
    """Writes the figure of a run as a PNG file.

    Args:
        report: what `consortia.report.gather` returned.
        tree: the result of the run, for the traces.
        path: where to write.
        observed: the held-out responses (rows,), for the panel of a regression.

    Returns:
        The path.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    shown = _chosen(report)
    height = max(8.5, 2.2 + 0.27 * len(shown))
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    figure = Figure(figsize=(13, height), dpi=130, layout=layout)
    FigureCanvasAgg(figure)
    left, right = figure.subfigures(1, 2, squeeze=False)[0]
    _forest(left.subplots(), report, shown)

    predictions = report.predictions
    lower = predictions is not None and (
        predictions.curve is not None or (predictions.means is not None and observed is not None)
    )
    traces = _traced(report)
    words, *rest = right.subfigures(
        3 if lower else 2, 1, height_ratios=(0.75, 1.5, 1.5)[: 2 + lower]
    )
    _verdict(words, report)
    _traces(rest[0], report, tree, traces)
    if lower:
        if predictions is not None and predictions.curve is not None:
            calibration(rest[1].subplots(), report)
        else:
            predicted_means(rest[1].subplots(), report, np.asarray(observed))
    figure.savefig(path)
    return Path(path)


# --- the panels ----------------------------------------------------------------------------------


def _forest(axes: Any, report: Report, shown: np.ndarray) -> None:
    columns, names = report.table.columns, short_names(report.table)
    beside = report.reference_table is not None
    places = np.arange(len(shown))[::-1].astype(float)
    for row in places[::2]:
        axes.axhspan(row - 0.5, row + 0.5, color="#f3f5f7", zorder=0)
    axes.axvline(0, color="#b0b0b0", linewidth=0.8, zorder=1)
    lift = 0.17 if beside else 0.0
    axes.hlines(
        places + lift, columns["5%"][shown], columns["95%"][shown], color=FEDERATED, linewidth=2.4
    )
    axes.plot(
        columns["mean"][shown], places + lift, "o", color=FEDERATED, markersize=5, label="federated"
    )
    if report.reference_table is not None:
        own = report.reference_table
        axes.hlines(
            places - lift, own["5%"][shown], own["95%"][shown], color=REFERENCE, linewidth=2.4
        )
        axes.plot(
            own["mean"][shown],
            places - lift,
            "D",
            color=REFERENCE,
            markersize=4,
            label="pooled-data NUTS",
        )
    axes.set_yticks(places, [names[place] for place in shown], fontsize=8.5)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.tick_params(axis="y", length=0)
    title = "Posterior means and 90 % intervals"
    if len(shown) < len(names):
        which = "farthest from the reference" if beside else "first"
        title += f" ({len(shown)} of {len(names)} parameters, the {which})"
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    _plain(axes, left=False)
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, -0.035), ncols=2, fontsize=9, frameon=False)


def _verdict(part: Any, report: Report) -> None:
    record = report.record
    chains = f"{record['chains']} chain{'s' if record['chains'] > 1 else ''}"
    lines = [
        f"{record['algorithm']}, {chains} of {record['iterations_run']:,} rounds, "
        f"{record['bytes_sent'] / 1e6:,.1f} MB sent, {record['seconds']:.0f} s.",
        *report.verdict.lines(),
    ]
    if report.predictions is not None:
        lines.append(_score_words(report))
    part.text(0.01, 0.97, textwrap.fill(report.title, 60), fontsize=13, fontweight="bold", va="top")
    part.text(
        0.02,
        0.73,
        "\n".join(textwrap.fill(line, 88) for line in lines),
        fontsize=9.5,
        va="top",
        linespacing=1.5,
        bbox={"boxstyle": "round,pad=0.7", "facecolor": "#f3f5f7", "edgecolor": "none"},
    )


def _score_words(report: Report) -> str:
    assert report.predictions is not None
    beside = report.reference_predictions
    words = []
    for name, label in SCORES.items():
        if name in report.predictions.scores:
            words.append(f"{label} {report.predictions.scores[name]:.3f}")
            if beside is not None:
                words[-1] += f" ({beside.scores[name]:.3f})"
    brackets = "" if beside is None else " (reference)"
    return f"Held-out rows{brackets}: {', '.join(words)}."


def _traces(part: Any, report: Report, tree: Any, traces: list[tuple[int, str]]) -> None:
    draws = np.concatenate(
        [
            array.reshape(*array.shape[:2], -1)
            for array in parameters.posterior_draws(tree).values()
        ],
        axis=2,
    )
    names, columns = short_names(report.table), report.table.columns
    every = -(-draws.shape[1] // MOST_POINTS)
    kept = np.arange(draws.shape[1])[::every]
    grid = np.atleast_1d(part.subplots(len(traces), 1, sharex=True))
    for axes, (place, why) in zip(grid, traces, strict=True):
        for chain in range(draws.shape[0]):
            axes.plot(
                kept,
                draws[chain, kept, place],
                color=CHAINS[chain % len(CHAINS)],
                linewidth=0.5,
                alpha=0.75,
            )
        if "ref_mean" in columns:
            axes.axhline(columns["ref_mean"][place], color=REFERENCE, linewidth=1.4)
        axes.set_title(f"{names[place]}: {why}", loc="left", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.margins(x=0.01)
        _plain(axes)
    grid[-1].set_xlabel("kept draw of each chain")
    line = "; the line is the reference's mean" if "ref_mean" in columns else ""
    part.suptitle(f"Traces{line}", x=0.02, ha="left", fontsize=11, fontweight="bold")


def calibration(axes: Any, report: Report) -> None:
    """Share of right predictions against their probability, beside the reference's."""
    axes.plot([0, 1], [0, 1], color="#b0b0b0", linewidth=0.8, linestyle="--")
    least, lowest = 1.0, 1.0
    sides = (
        (report.reference_predictions, REFERENCE, "D", "pooled-data NUTS"),
        (report.predictions, FEDERATED, "o", "federated"),
    )
    for predictions, colour, marker, label in sides:
        if predictions is None or predictions.curve is None:
            continue
        confidence, correct, share = predictions.curve
        filled = share > 0
        least = min(least, float(confidence[filled].min()))
        lowest = min(lowest, float(correct[filled].min()))
        axes.plot(confidence[filled], correct[filled], color=colour, linewidth=1.2, zorder=2)
        axes.scatter(
            confidence[filled],
            correct[filled],
            s=18 + 260 * share[filled],
            color=colour,
            marker=marker,
            alpha=0.8,
            label=label,
            zorder=3,
        )
        if predictions is report.predictions:
            low, high = _wilson(correct[filled], share[filled] * report.held_out_rows)
            axes.vlines(confidence[filled], low, high, color=colour, linewidth=0.9, alpha=0.6)
            lowest = min(lowest, float(low.min()))
    axes.set_xlim(least - 0.03, 1.02)
    axes.set_ylim(lowest - 0.05, 1.05)
    axes.set_xlabel(
        "probability of the predicted class (mark: number of rows; line: 90 % interval)"
    )
    axes.set_ylabel("share that is right")
    axes.set_title(
        f"Calibration on {report.held_out_rows} held-out rows",
        loc="left",
        fontsize=11,
        fontweight="bold",
    )
    legend = axes.legend(loc="lower right", fontsize=9, frameon=False)
    for handle in legend.legend_handles:
        handle.set_sizes([40])
    _plain(axes)


def _wilson(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's 90 % interval of a binomial share."""
    z2 = 1.645**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = np.sqrt(z2 * (share * (1 - share) / count + z2 / (4 * count**2))) / (1 + z2 / count)
    return middle - half, middle + half


def predicted_means(axes: Any, report: Report, observed: np.ndarray) -> None:
    """Observed responses against predicted means, beside the reference's."""
    predictions = report.predictions
    assert predictions is not None
    assert predictions.means is not None
    ends = [
        min(observed.min(), predictions.means.min()),
        max(observed.max(), predictions.means.max()),
    ]
    axes.plot(ends, ends, color="#b0b0b0", linewidth=0.8, linestyle="--")
    beside = report.reference_predictions
    if beside is not None and beside.means is not None:
        axes.plot(
            beside.means, observed, "D", color=REFERENCE, markersize=4, label="pooled-data NUTS"
        )
    axes.plot(predictions.means, observed, "o", color=FEDERATED, markersize=3.5, label="federated")
    axes.set_xlabel("predicted mean")
    axes.set_ylabel("observed")
    axes.set_title(
        f"Predictions of {report.held_out_rows} held-out rows",
        loc="left",
        fontsize=11,
        fontweight="bold",
    )
    axes.legend(loc="upper left", fontsize=9, frameon=False)
    _plain(axes)


# --- what is shown -------------------------------------------------------------------------------


def _chosen(report: Report) -> np.ndarray:
    """The parameters of the forest: all, or those farthest from the reference, or the first."""
    columns = report.table.columns
    if len(report.table) <= MOST_PARAMETERS or "shift" not in columns:
        return np.arange(min(len(report.table), MOST_PARAMETERS))
    farthest = np.argsort(-np.abs(columns["shift"]), kind="stable")[:MOST_PARAMETERS]
    return np.sort(farthest)


def _traced(report: Report) -> list[tuple[int, str]]:
    """A few parameters worth a look, each with the reason."""
    columns = report.table.columns
    wanted: list[tuple[int, str]] = []
    if "shift" in columns:
        place = int(np.abs(columns["shift"]).argmax())
        wanted.append((place, f"farthest from the reference ({columns['shift'][place]:+.2f} sd)"))
    if not np.isnan(columns["ess_bulk"]).all():
        place = int(np.nanargmin(columns["ess_bulk"]))
        wanted.append((place, f"smallest ESS ({columns['ess_bulk'][place]:,.0f})"))
    ratio = np.abs(columns["mean"]) / columns["sd"]
    if not np.isnan(ratio).all():
        place = int(np.nanargmax(ratio))
        wanted.append((place, "farthest from zero"))
    wanted += [(place, "") for place in range(len(report.table))]
    found: dict[int, str] = {}
    for place, why in wanted:
        if place not in found and len(found) < TRACES:
            found[place] = why
        elif found.get(place) and why and why not in found[place]:
            found[place] += f", {why}"
    return [(place, why or "first") for place, why in found.items()]


def _plain(axes: Any, *, left: bool = True) -> None:
    for side in ("top", "right") if left else ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors="#333333")
