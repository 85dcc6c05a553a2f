"""Figures of the system that made a run: who exchanges with whom, and how well that went."""

from __future__ import annotations

from typing import Any

import numpy as np

from consortia import graphs
from consortia.core.contract import Route
from consortia.core.queries import Conversation
from consortia.core.start import starting_parameters
from consortia.core.target import Target
from consortia.diagnostics.figures.canvas import (
    INK,
    MUTED,
    RULE,
    SERIES,
    Plot,
    axes_of,
    cut,
    drawing,
)
from consortia.errors import InputError
from consortia.report.plots import DASHES, MOST_POINTS, WIDTH, chain_lines
from consortia.report.run_report import RunReport
from consortia.theory.tuning import completed

MOST_COVARIED = 300
"""Parameters up to which the agents' covariances are compared."""
MOST_NAMES = 12
"""Sites around a hub that have their names beside them."""


def words(report: RunReport) -> str:
    """Describe the network in a sentence or two."""
    processes = report.record.get("processes", ())
    ran = f" It ran in {len(processes)} processes." if processes else ""
    return _words(report) + ran


def _words(report: RunReport) -> str:
    record = report.record
    if "workers" in record:
        return (
            f"{record['workers']} workers send gradients to each of {record['servers']} "
            f"server{'s' if record['servers'] > 1 else ''}, one at a time; a gradient is stale by "
            "the updates that were made while it was computed."
        )
    if report.algorithm is not None and report.algorithm.network is not None:
        return (
            "No server takes part: each agent averages with its neighbours in every iteration. The "
            "report is on the average of the agents; a single agent may be farther from the "
            "posterior."
        )
    if any(isinstance(exchange, Route) for exchange in _exchanges(report)):
        return "A chain travels: it visits one site at a time and carries its state along."
    return "Every site exchanges with a hub in every round; data stay where they are."


def _exchanges(report: RunReport) -> list[Any]:
    """Return the exchanges of an iteration; none where the study is not available."""
    if report.model is None or report.algorithm is None:
        return []
    if isinstance(report.algorithm, Conversation):
        return []
    start = starting_parameters(report.model, None, 0, 1)[0]
    target = Target(report.model, start)
    algorithm = completed(report.algorithm, target.dimension).build(target)
    return [phase.exchange for phase in algorithm.phases]


def mixing_of(report: RunReport) -> graphs.MixingMatrix | None:
    """Return W of a gossip run, of a schedule the average; None of another run."""
    if report.algorithm is None or report.algorithm.network is None:
        return None
    matrix = graphs.weights.resolve_any(report.algorithm.network, len(report.record["sites"]))
    return matrix.average if isinstance(matrix, graphs.MixingSchedule) else matrix


# --- over time -----------------------------------------------------------------------------------


def over_time(report: RunReport) -> Plot | None:
    """Return the disagreement of a gossip run's agents, or the staleness of an asynchronous run."""
    if "agents" in report.tree.children:
        return _disagreement(report)
    return _staleness(report) if "staleness_windows" in report.record else None


def _disagreement(report: RunReport) -> Plot | None:
    try:
        values = graphs.disagreement(report.tree)
    except InputError:  # the agents' moments alone were kept
        return None
    thinned = values.isel(draw=slice(None, None, -(-report.draws // MOST_POINTS)))
    with drawing():
        figure, axes = axes_of(WIDTH, 2.6)
        lines = thinned.transpose("chain", "draw").to_numpy()
        chain_lines(axes, thinned["draw"].to_numpy(), lines, linewidth=0.8, alpha=0.85)
        axes.set_xlabel("kept draw")
        axes.set_ylabel("root mean square distance")
        axes.set_ylim(bottom=0)
    mean = f"{float(values.mean()):.3g} on average"
    return Plot(
        figure,
        f"Disagreement of the agents over time, {mean}.",
        f"Distance of the agents from their average, in units of the parameters ({mean}): a "
        "level curve is good, a rising one is not.",
    )


def _staleness(report: RunReport) -> Plot | None:
    record = report.record
    edges = np.array(record["staleness_windows"]["edges"])
    means = np.array(record["staleness_windows"]["mean"])
    largest = np.array(record["staleness_windows"]["largest"])
    # A run that a rule stopped has used a part of the events that were simulated for it.
    done = record.get("iterations_run", edges[-1])
    used = max(1, int(np.sum(edges[1:] <= done)))
    edges, means, largest = edges[: used + 1], means[:, :used], largest[:, :used]
    middle = (edges[1:] + edges[:-1]) / 2
    with drawing():
        figure, axes = axes_of(WIDTH, 2.6)
        for server, (mean, most) in enumerate(zip(means, largest, strict=True)):
            colour = SERIES[server % len(SERIES)]
            label = f"server {server}" if len(means) > 1 else None
            axes.plot(middle, mean, color=colour, label=label)
            axes.plot(middle, most, color=colour, linewidth=0.7, linestyle=":")
        axes.axhline(record["workers"] - 1, color=INK, linewidth=1, linestyle=DASHES)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("update of the server")
        axes.set_ylabel("staleness, in updates")
        if len(means) > 1:
            axes.legend(fontsize=8, ncols=3, loc="upper right")
    mean = float(np.average(means, axis=1, weights=np.diff(edges)).mean())
    seen = f"{mean:.2f} on average, {int(largest.max())} at most"
    return Plot(
        figure,
        f"Staleness of the gradients over time: {seen}.",
        f"Mean (line) and largest (dots) staleness of the gradients in {used} windows; dashed: "
        f"workers − 1. Over the run {seen}, {np.sum(record['dropped_gradients']):,} gradients "
        "dropped.",
    )


# --- the picture ---------------------------------------------------------------------------------


def network(report: RunReport) -> Plot | None:
    """Return agents coloured by their error, or the sites around their hub; None without sites."""
    matrix = mixing_of(report)
    if matrix is not None:
        return _agents(report, matrix)
    record = report.record
    names, rows = record.get("sites"), record.get("site_rows")
    if not names or not rows:
        return None
    workers = record.get("workers", 0)
    with drawing():
        figure, axes = axes_of(WIDTH, 3.6)
        if workers and len(names) == 1:
            _star(axes, [f"worker {i}" for i in range(workers)], None, "server")
            alt = (
                f"{workers} workers around one server, all drawing from the same {rows[0]:,} rows."
            )
            return Plot(figure, alt, alt)
        _star(axes, list(names), list(rows), "server" if workers else "hub")
    span = f"{rows[0]:,}" if min(rows) == max(rows) else f"{min(rows):,} to {max(rows):,}"
    hub = "a server" if workers else "one hub"
    alt = f"{len(names)} sites around {hub}, with {span} rows each."
    return Plot(figure, alt, f"{alt} Areas are proportional to numbers of rows.")


def _agents(report: RunReport, matrix: graphs.MixingMatrix) -> Plot:
    """Return the network; a colour is the W₂ distance by two moments, to reference or average."""
    errors, label = None, ""
    caption = f"{matrix.agents} agents, {matrix.links // 2} edges."
    alt = f"Network of {matrix.agents} agents with {matrix.links // 2} edges."
    if "agents" in report.tree.children and len(report.table) <= MOST_COVARIED:
        law = _flat(report.tree if report.reference is None else report.reference, report.tree)
        covariance = np.atleast_2d(np.cov(law.T))
        errors = graphs.agent_errors(report.tree, law.mean(axis=0), covariance)
        other = "average of the agents" if report.reference is None else "reference"
        label = f"W₂ of an agent to the {other}"
        worst = int(np.argmax(errors))
        alt += f" The agent with index {worst} is farthest from it, by {errors[worst]:.3g}."
        caption += f" Colours show the distance of an agent's draws from the {other}."
    with drawing():
        figure, axes = axes_of(WIDTH, 3.6)
        graphs.picture(matrix, errors, label=label, axes=axes)
        links, *dots = axes.collections
        links.set_color(RULE)
        for points in dots:  # seen on any ground, their colours from no error to the largest
            points.set(edgecolor=INK, linewidth=0.8, sizes=[90])
            if errors is None:
                points.set_facecolor(SERIES[0])
            else:
                points.set_clim(0, max(float(np.max(errors)), 1e-12))
    return Plot(figure, alt, caption)


def _flat(tree: Any, like: Any) -> np.ndarray:
    """Return the draws of a result with all chains pooled, (draws, d), in another's order."""
    names = list(like["posterior"].data_vars)
    parts = [tree["posterior"][name].transpose("chain", "draw", ...).to_numpy() for name in names]
    count = parts[0].shape[0] * parts[0].shape[1]
    return np.concatenate([part.reshape(count, -1) for part in parts], axis=1).astype(np.float64)


def _star(axes: Any, names: list[str], rows: list[int] | None, hub: str) -> None:
    turns = 2 * np.pi * np.arange(len(names)) / len(names)
    points = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    sizes = np.asarray([0.3] * len(names) if rows is None else rows, float)
    area = 60 + 500 * sizes / max(sizes.max(), 1) / max(1, len(names) / 8)
    for x, y in points:
        axes.plot([0, x], [0, y], color=RULE, linewidth=1.2)
    axes.scatter(*points.T, s=area, color=SERIES[0], zorder=3)
    axes.scatter(0, 0, s=160, color=SERIES[1], marker="s", zorder=3)
    axes.annotate(hub, (0, 0), (0, -11), textcoords="offset points", ha="center", va="top")
    if len(names) <= MOST_NAMES:
        for site, (point, name) in enumerate(zip(points, names, strict=True)):
            count = "" if rows is None else f"\n{rows[site]:,} rows"
            lift = 15 if point[1] > -0.1 else -15  # the side that its edge does not take
            axes.annotate(
                cut(name) + count,
                point,
                (0, lift),
                textcoords="offset points",
                ha="center",
                va="bottom" if lift > 0 else "top",
                fontsize=8,
                color=MUTED,
            )
    axes.margins(0.28, 0.25)
    axes.set_axis_off()
