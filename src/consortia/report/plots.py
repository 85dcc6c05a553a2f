"""The figures of a posterior, each with words for who cannot see it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from consortia.core import parameters
from consortia.diagnostics.figures.canvas import (
    INK,
    MUTED,
    RULE,
    SERIES,
    TIP,
    Plot,
    axes_of,
    cut,
    drawing,
)
from consortia.report import accuracy
from consortia.report.effects import PriorBeside
from consortia.report.run_report import RunReport, by_weight

MOST_FOREST = 40
MOST_TRACED = 6
MOST_POINTS = 500
RANKED = 100
"""Draws a chain in a rank plot: ranks are of draws that hardly depend on one another."""
SIMULATIONS = 300
BAND = 0.95
LABELS, SHORT = 5, 6
"""Intervals between the labels of a narrow axis, at most; with more letters than those there is one
fewer."""

MOST_WIDTHS, MOST_AXES = 30, 4
"""Widths of its narrowest interval that an axis is long, at most; axes of a forest."""
LEGEND = 45
"""Letters that a line of a legend has room for."""
DASHES = (0, (4, 3))
SCORES = {"accuracy": "accuracy", "ece": "ECE", "brier": "Brier", "rmse": "RMSE"}
WIDTH, TRACE = 4.0, 1.8
"""Width of a figure and height of a trace, in inches."""


# --- which parameters ----------------------------------------------------------------------------


def chosen(report: RunReport, others: Sequence[RunReport] = ()) -> tuple[np.ndarray, str]:
    """Return the forest's rows of the table, all in the others' too, and which they are."""
    table = report.shown_table
    shared = set(table.coordinates).intersection(*(o.shown_table.coordinates for o in others))
    rows = np.array([i for i, name in enumerate(table.coordinates) if name in shared], int)
    if len(rows) <= MOST_FOREST:
        return rows, "all parameters" if len(rows) == len(table) else "the parameters in common"
    columns = {name: values[rows] for name, values in table.columns.items()}
    if "shift" in columns:
        order, which = -np.abs(columns["shift"]), "farthest from the reference"
    elif not np.isnan(columns["ess_bulk"]).all():
        order, which = np.nan_to_num(columns["ess_bulk"], nan=np.inf), "with the smallest ESS"
    else:
        order, which = np.arange(len(rows), dtype=float), "first"
    picked = rows[np.sort(np.argsort(order, kind="stable")[:MOST_FOREST])]
    return picked, f"{MOST_FOREST} of {len(rows):,} parameters, those {which}"


def traced(report: RunReport, count: int = MOST_TRACED) -> list[tuple[int, str]]:
    """Return a few rows worth a look, each with the reason."""
    columns = report.shown_table.columns
    reasons: dict[int, str] = {}
    for values, reason in (
        (-columns["r_hat"], "largest R-hat"),
        (columns["ess_bulk"], "smallest ESS"),
        (-np.abs(columns.get("shift", np.nan * columns["mean"])), "farthest off"),
    ):
        if not np.isnan(values).all():
            row = int(np.nanargmin(values))
            reasons[row] = f"{reasons[row]}, {reason}" if row in reasons else reason
    for row in np.linspace(0, len(report.shown_table) - 1, count).astype(int):
        if len(reasons) < count:
            reasons.setdefault(int(row), "")
    return sorted(reasons.items())


def selected(tree: Any, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return some coordinates of a posterior, (chain, draw, row)."""
    arrays = [
        array.reshape(*array.shape[:2], -1) for array in parameters.posterior_draws(tree).values()
    ]
    ends = np.cumsum([array.shape[2] for array in arrays])
    values = []
    for row in np.asarray(rows):
        owner = int(np.searchsorted(ends, row, side="right"))
        values.append(arrays[owner][:, :, row - ends[owner]])  # counted from its variable's end
    return by_weight(np.stack(values, axis=2), parameters.draw_weights(tree))


def _short(names: Sequence[str]) -> list[str]:
    short = [cut(name) for name in names]
    return short if len(set(short)) == len(short) else list(names)


# --- the posterior -------------------------------------------------------------------------------


def forest(reports: Sequence[RunReport]) -> list[Plot]:
    """Return intervals of the chosen parameters, beside the reference or of several runs.

    Parameters whose intervals would be points on the axis of others have a figure of their own.
    There is none where several runs have no parameter in common.
    """
    first = reports[0]
    rows, which = chosen(first, reports[1:])
    if not len(rows):
        return []
    wanted = [first.shown_table.coordinates[row] for row in rows]
    labels = _short([first.names[row] for row in rows])
    sides = [(report.name, report.shown, report.shown_table) for report in reports]
    if len(reports) == 1 and first.reference_table is not None:
        sides.append(("reference", first.shown_reference, first.reference_table))
    series = {}
    for name, tree, table in sides:
        indices = [table.coordinates.index(coordinate) for coordinate in wanted]
        values = selected(tree, indices)
        withheld = np.isnan(table["mean"][indices])
        mean = np.where(withheld, np.nan, values.mean(axis=(0, 1)))
        series[name] = Intervals(np.quantile(values, (0.05, 0.25, 0.75, 0.95), axis=(0, 1)), mean)
    together = ", ".join(series)
    caption = f"Mean, 50 % (thick) and 90 % (thin) intervals of {which}"
    caption += "." if len(series) == 1 else f"; {together} side by side."
    ends = [intervals.ends for intervals in series.values()]
    groups = together_on_an_axis(
        np.min([low for low, *_ in ends], axis=0), np.max([high for *_, high in ends], axis=0)
    )
    if len(groups) > 1:
        caption += " Each figure has its own axis."
    made = []
    for index, members in enumerate(groups):
        drawn = [labels[member] for member in members]
        alt = f"Intervals of {len(drawn)} parameters for {together}; the numbers are in the table."
        last = index == len(groups) - 1
        made.append(Plot(_forest(series, members, drawn), alt, caption if last else ""))
    return made


def together_on_an_axis(low: np.ndarray, high: np.ndarray) -> list[list[int]]:
    """Mark the intervals (rows,) that share an axis, so that each has a length to be seen there."""
    widths, groups = high - low, list[list[int]]()
    for row in np.argsort(-widths, kind="stable").tolist():
        for members in groups:
            both = [*members, row]
            if np.max(high[both]) - np.min(low[both]) <= MOST_WIDTHS * widths[row]:
                members.append(row)
                break
        else:
            if len(groups) < MOST_AXES:
                groups.append([row])
            else:
                groups[-1].append(row)
    return sorted(map(sorted, groups))


class Intervals(NamedTuple):
    """Intervals and mean of each parameter in a forest."""

    ends: np.ndarray  # those of 90 % and inside them of 50 %, (4, parameters)
    mean: np.ndarray


def _forest(series: dict[str, Intervals], members: Sequence[int], labels: Sequence[str]) -> Any:
    """Return the figure of some parameters of each series."""
    from matplotlib.figure import Figure

    count, alone = len(labels), len(series) == 1
    height = 0.75 + count * (0.2 if alone else 0.12 + 0.07 * len(series))
    places = np.arange(count - 1, -1, -1)
    apart = [0.0] if alone else np.linspace(0.2, -0.2, len(series))
    with drawing():
        figure = Figure(figsize=(4.3, height), layout="constrained")
        label_axes, axes = figure.subplots(1, 2, sharey=True, width_ratios=[1, 2])
        for row, label in zip(places, labels, strict=True):
            label_axes.text(0, row, label, color=INK, size=9, va="center")
        label_axes.set_axis_off()  # the names need no axis
        for (ends, mean), away, colour in zip(series.values(), apart, SERIES, strict=False):
            low, inner, outer, high = ends[:, members]
            axes.hlines(places + away, low, high, colour, linewidth=0.7)
            axes.hlines(places + away, inner, outer, colour, linewidth=3.2, capstyle="projecting")
            axes.scatter(mean[members], places + away, 14, "white", edgecolors=colour, zorder=3)
        left, right = axes.get_xlim()
        if left <= 0 <= right:
            axes.axvline(0, color=RULE, linewidth=0.8, zorder=0)
        axes.margins(y=0.5 / count)
        letters = max(len(f"{end:.3g}") for end in (left, right))
        axes.locator_params(axis="x", nbins=LABELS - (letters > SHORT))
        axes.yaxis.set_visible(False)
        axes.spines["left"].set_visible(False)
        _legend(axes, list(series))
    return figure


def _legend(axes: Any, names: Sequence[str]) -> None:
    if len(names) < 2:
        return
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, linewidth=3) for colour, _ in zip(SERIES, names, strict=False)
    ]
    labels = _short(names)
    columns = max(1, min(3, len(names), LEGEND // max(len(label) for label in labels)))
    axes.figure.legend(handles, labels, loc="outside lower right", ncols=columns, fontsize=9)


def chain_lines(axes: Any, at: np.ndarray, values: np.ndarray, **style: Any) -> None:
    """Draw a line for each chain, (chains, places)."""
    for chain, line in enumerate(values):
        axes.plot(at, line, color=SERIES[chain % len(SERIES)], **style)


def _panels(
    report: RunReport,
    labels: dict[int, str],
    thin: slice,
    draw: Callable[[int, Any, np.ndarray], None],
    alt: str,
) -> list[Plot]:
    """Return one figure a row that has a label, of some of its draws."""
    values = selected(report.shown, list(labels))[:, thin]
    columns, made = report.shown_table.columns, []
    for index, (row, label) in enumerate(labels.items()):
        with drawing():
            figure, axes = axes_of(WIDTH, TRACE)
            axes.set_title(cut(label))
            draw(row, axes, values[..., index])
            axes.margins(x=0.01)
        numbers = (
            f"Mean {columns['mean'][row]:.3g}, sd {columns['sd'][row]:.3g}, R-hat "
            f"{columns['r_hat'][row]:.3f}, bulk ESS {columns['ess_bulk'][row]:,.0f}."
        )
        made.append(Plot(figure, f"{alt.format(label)} {numbers}", of=label))
    return made


def traces(report: RunReport, count: int = MOST_TRACED) -> list[Plot]:
    """Return one trace plot a parameter worth a look."""
    reasons, names = dict(traced(report, count)), report.names
    columns, every = report.shown_table.columns, -(-report.draws // MOST_POINTS)

    def draw(row: int, axes: Any, values: np.ndarray) -> None:
        chain_lines(axes, every * np.arange(values.shape[1]), values, linewidth=0.7, alpha=0.8)
        if "ref_mean" in columns:
            axes.axhline(columns["ref_mean"][row], color=INK, linewidth=1.2, linestyle=DASHES)
        if reasons[row]:
            axes.set_title(f"{cut(names[row])}: {reasons[row]}")
        axes.set_xlabel("kept draw")

    return _panels(
        report,
        {row: names[row] for row in reasons},
        slice(None, None, every),
        draw,
        f"Trace of {{}} in {report.chains} chains.",
    )


def ranks(report: RunReport) -> list[Plot]:
    """Return one rank plot a parameter worth a look; none of a single chain."""
    if report.chains < 2:
        return []
    from arviz_stats.ecdf_utils import ecdf_pit

    names = report.names
    labels = {row: names[row] for row, _ in traced(report)}
    ess = report.shown_table["ess_bulk"]
    apart = np.nanmin(ess[list(labels)]) if not np.isnan(ess).all() else RANKED
    every = max(1, report.draws // int(np.clip(apart / report.chains, 20, RANKED)))
    # One band for all: it depends on the numbers of chains and draws only.
    at, _, low, high = ecdf_pit(
        np.linspace(0, 1, report.draws // every),
        BAND,
        n_simulations=SIMULATIONS,
        n_chains=report.chains,
    )

    def draw(row: int, axes: Any, values: np.ndarray) -> None:
        axes.fill_between(at, low - at, high - at, color=RULE, alpha=0.35, linewidth=0, zorder=0)
        limits = np.quantile(values, at, method="inverted_cdf")  # of all chains together
        below = [np.searchsorted(np.sort(chain), limits, side="right") for chain in values]
        chain_lines(axes, at, np.array(below) / values.shape[1] - at)
        axes.set_xlabel("rank among the draws of all chains (as a fraction)")
        axes.set_ylabel("excess over uniform")

    return _panels(
        report,
        labels,
        slice(every - 1, None, every),
        draw,
        "Ranks of {}: one line per chain, within the band if the chains agree.",
    )


# --- bias ----------------------------------------------------------------------------------------


def bias(report: RunReport) -> Plot | None:
    """Return predicted against measured difference of the means; None without both."""
    shift, error = report.predicted("shift"), report.sampled.shift_errors
    if shift is None or error is None:
        return None
    measured = report.table["shift"]
    with drawing():
        figure, axes = axes_of(WIDTH, 3.1)
        ends = [min(shift.min(), 0) - 0.02, max(shift.max(), 0) + 0.02]
        axes.plot(ends, ends, color=RULE, linewidth=1, linestyle="--")
        axes.axhline(0, color=RULE, linewidth=0.8)
        axes.errorbar(
            shift, measured, 2 * error, fmt="o", markersize=4, linewidth=0.8, color=SERIES[0]
        )
        axes.set_xlabel("predicted difference of the means, in posterior sd")
        axes.set_ylabel("measured, ± 2 Monte Carlo errors")
    within = f"{100 * float(np.mean(np.abs(measured - shift) / error < 2)):.0f} %"
    return Plot(
        figure,
        f"Predicted against measured bias of {len(shift)} means; {within} of the measured ones "
        "are within two Monte Carlo errors of the prediction.",
        "Each point is a parameter; on the dashed line prediction and measurement agree. "
        f"{within} are within two Monte Carlo errors of it.",
    )


def priors(parameters: Sequence[PriorBeside]) -> Plot | None:
    """Return the intervals of priors and posteriors, in standard widths of the prior; or None."""
    if not parameters:
        return None
    rows = list(parameters)[:MOST_FOREST]
    places = np.arange(len(rows), 0, -1)
    with drawing():
        figure, axes = axes_of(4.6, 0.75 + 0.24 * len(rows))
        for height, pair in zip(places, rows, strict=True):
            width = (pair.prior[2] - pair.prior[0]) / 2 or 1.0
            for points, colour, line in ((pair.prior, RULE, 7), (pair.posterior, SERIES[0], 2.4)):
                low, middle, high = (points - pair.prior[1]) / width
                tip = f"{TIP}{pair.name}: {points[0]:.3g} to {points[2]:.3g}"
                axes.plot([low, high], [height, height], color=colour, linewidth=line, gid=tip)
            axes.plot([middle], [height], "o", color=SERIES[0], markersize=4)
        axes.set_yticks(places, [cut(pair.name) for pair in rows])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(0.4, len(rows) + 0.6)
        axes.set_xlabel("distance from the prior's middle, in half-widths")
    return Plot(
        figure,
        f"Priors and posteriors of {len(rows)} coefficients; the numbers are in the table.",
        "Grey and broad: the prior's 95 % interval. Coloured and narrow: the posterior's. The "
        "narrower the posterior's, the more the data tell.",
    )


# --- the picture of a run ------------------------------------------------------------------------


def overview(report: RunReport) -> list[list[Any]]:
    """Return the figures of a run's picture by column: verdict, intervals; traces; predictions."""
    shown, calibration = forest([report]), accuracy.predictions(report)
    left = [_text("\n".join(_words(report)), report.title)]
    if shown:
        left += [*(panel.figure for panel in shown), _text(shown[-1].caption)]
    predictions = []
    if calibration is not None:
        rows = f"On {report.held_out_rows:,} held-out rows. "
        predictions = [calibration.figure, _text(rows + calibration.caption)]
    if report.reference is not None:
        predictions.insert(0, _text("The dashed line is the reference's mean."))
    # As many traces as make the columns about as high as one another.
    room = _height(left) - _height(predictions)
    right = [plot.figure for plot in traces(report, int(np.clip(room // TRACE, 3, MOST_TRACED)))]
    return [left, right + predictions]


def _height(figures: Sequence[Any]) -> float:
    return sum(figure.get_size_inches()[1] for figure in figures)


def _words(report: RunReport) -> list[str]:
    record, chains = report.record, f"{report.chains} chain{'s' if report.chains > 1 else ''}"
    lines = [
        f"{record['algorithm']}, {chains} of {record['iterations_run']:,} rounds, "
        f"{record['bytes_sent'] / 1e6:,.1f} MB sent, {record['seconds']:.0f} s.",
        report.verdict.lines()[0],
        *report.worst.lines(),
    ]
    if report.scores is not None:
        reference = report.reference_scores
        words = []
        for name, label in SCORES.items():
            if name in report.scores.values:
                words.append(f"{label} {report.scores.values[name]:.3f}")
                if reference is not None:
                    words[-1] += f" ({reference.values[name]:.3f})"
        brackets = "" if reference is None else " (reference)"
        lines.append(f"Held-out rows{brackets}: {', '.join(words)}.")
    return lines


def _text(text: str, title: str = "") -> Any:
    """Return a figure of words alone, filled line by line."""
    from matplotlib.figure import Figure

    head = textwrap.fill(title, 38)
    body = "\n".join(textwrap.fill(line, 66) for line in text.split("\n"))
    above = 0.25 * (head.count("\n") + 1) + 0.1 if title else 0
    height = above + 0.18 * (body.count("\n") + 1) + 0.05
    with drawing():
        figure = Figure(figsize=(4.2, height))
        figure.text(0.02, 1, head, fontsize=13, fontweight="bold", va="top")
        figure.text(
            0.02, 1 - above / height, body, fontsize=8.5, va="top", linespacing=1.5, color=MUTED
        )
    return figure
