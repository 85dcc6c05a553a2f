"""Figures of the system that made a run: who talks with whom, and how well that went."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from consortia import graphs, latency
from consortia.core.start import starting_parameters
from consortia.core.target import Target
from consortia.engines.events import Trace, simulate
from consortia.engines.mailbox import Arrivals, mailbox_of
from consortia.errors import InputError
from consortia.report.network import errors_of
from consortia.report.plots import MOST_NAMED, MOST_POINTS, Plot, made_of
from consortia.report.subject import Subject
from consortia.report.vector import INK, MUTED, RULE, SERIES, drawing

WINDOWS = 100
MOST_COVARIED = 300
"""Parameters up to which the agents' covariances are compared."""


def words(subject: Subject) -> str:
    """What the network is, in a sentence or two."""
    processes = subject.record.get("processes", ())
    ran = f" It ran in {len(processes)} processes." if processes else ""
    return _words(subject) + ran


def _words(subject: Subject) -> str:
    record = subject.record
    if "workers" in record:
        return (
            f"{record['workers']} workers send gradients to each of {record['servers']} "
            f"server{'s' if record['servers'] > 1 else ''}, one at a time; a gradient is stale by "
            "the updates that were made while it was computed."
        )
    if subject.algorithm is not None and subject.algorithm.network is not None:
        return (
            "There is no hub: each agent averages with its neighbours in every iteration. What is "
            "reported is the average of the agents; a single agent may be farther off."
        )
    if str(record.get("algorithm")) in ("dsgld", "fsgld"):
        return "A chain travels: it visits one site at a time and takes its state along."
    return "Sites talk to a hub in every round; data stay where they are."


def over_time(subject: Subject) -> Plot | None:
    """Disagreement of the agents of a gossip run, or staleness of an asynchronous one."""
    if "agents" in subject.tree.children:
        return _disagreement(subject)
    if "staleness_histogram" in subject.record and subject.algorithm is not None:
        return _staleness(subject)
    return None


def _disagreement(subject: Subject) -> Plot | None:
    import arviz_plots
    import xarray

    try:
        values = graphs.disagreement(subject.tree)
    except InputError:
        return None
    every = -(-subject.draws // MOST_POINTS)
    thinned = values.isel(draw=slice(None, None, every))
    with drawing():
        collection = arviz_plots.plot_trace(
            xarray.DataTree.from_dict({"/posterior": thinned.to_dataset()}),
            backend="matplotlib",
            visuals={"trace": {"width": 0.8, "alpha": 0.85}, "title": False, "xlabel": False},
            figure_kwargs={"figsize": (4.0, 2.6)},
        )
        figure = collection.viz["figure"].item()
        axes = figure.axes[0]
        axes.set_xlabel("kept draw")
        axes.set_ylabel("root mean square distance")
        axes.set_ylim(bottom=0)
        mean = float(values.mean())
        alt = f"Disagreement of the agents over time, {mean:.3g} on average."
        caption = (
            "How far the agents are from their average, in units of the parameters "
            f"({mean:.3g} on average): level is well, growing is not."
        )
        return made_of(figure, alt, caption)


def _staleness(subject: Subject) -> Plot | None:
    mailbox, record = _mailbox(subject), subject.record
    if mailbox is None:
        return None
    from matplotlib.figure import Figure

    done = int(record.get("iterations_run", record["warmup"] + record["rounds"]))
    staleness = _trace(subject, mailbox, done).accepted("staleness")[:, :done]
    edges = np.unique(np.linspace(0, staleness.shape[1], WINDOWS + 1).astype(int))
    middle = (edges[1:] + edges[:-1]) / 2
    with drawing():
        figure = Figure(figsize=(4.0, 2.6), layout="constrained")
        axes = figure.subplots()
        for server, row in enumerate(staleness):
            parts = [row[a:b] for a, b in itertools.pairwise(edges)]
            colour = SERIES[server % len(SERIES)]
            label = f"server {server}" if len(staleness) > 1 else None
            axes.plot(middle, [part.mean() for part in parts], color=colour, label=label)
            axes.plot(
                middle, [part.max() for part in parts], color=colour, linewidth=0.7, linestyle=":"
            )
        axes.axhline(record["workers"] - 1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("update of the server")
        axes.set_ylabel("staleness, in updates")
        if len(staleness) > 1:
            axes.legend(fontsize=8, ncols=3, loc="upper right")
        mean, most = float(staleness.mean()), int(staleness.max())
        alt = f"Staleness of the gradients over time: {mean:.2f} on average, {most} at most."
        caption = (
            f"Mean (line) and largest (dots) staleness of the gradients in {len(middle)} windows; "
            f"dashed: workers − 1. Over the run {mean:.2f} on average, {most} at most, "
            f"{np.sum(record['dropped_gradients']):,} gradients dropped."
        )
        return made_of(figure, alt, caption)


def _trace(subject: Subject, mailbox: Any, done: int) -> Trace:
    """What arrived when: as it was recorded of processes, else as it was simulated."""
    record = subject.record
    rounds, warmup = record["warmup"] + record["rounds"], record["warmup"]
    if "events" not in subject.tree.children:
        return Arrivals(mailbox, record["seed"], rounds, warmup, tuple(record["sites"])).trace
    events = subject.tree["events"]
    return simulate(
        latency.recorded(events["log"].values, times=events["time"].values),
        workers=mailbox.workers,
        servers=mailbox.servers,
        max_staleness=mailbox.max_staleness,
        updates=done,
        warmup=warmup,
    )


def _mailbox(subject: Subject) -> Any:
    model = subject.model
    return mailbox_of(
        subject.algorithm.build(Target(model, starting_parameters(model, None, 0, 1)[0]))
    )


def network(subject: Subject) -> Plot | None:
    """Who talks with whom: agents coloured by their error, or the sites around their hub."""
    from matplotlib.figure import Figure

    mixing = None if subject.algorithm is None else subject.algorithm.network
    record = subject.record
    with drawing():
        figure = Figure(figsize=(4.0, 3.6), layout="constrained")
        axes = figure.subplots()
        if mixing is not None:
            matrix, errors, label = _errors(mixing, subject)
            graphs.picture(matrix, errors, label=label, axes=axes)
            _outlined(axes, errors)
            alt = f"Network of {matrix.agents} agents with {matrix.links // 2} edges."
            caption = f"{matrix.agents} agents, {matrix.links // 2} edges."
            if errors is not None:
                worst = int(np.argmax(errors))
                alt += f" The agent farthest off is number {worst}, by {errors[worst]:.3g}."
                caption += " The colour is the distance of an agent's draws to the " + (
                    "reference." if subject.reference is not None else "average of all agents."
                )
            return made_of(figure, alt, caption)
        names, rows = record.get("sites"), record.get("site_rows")
        if not names or not rows:
            return None
        workers = record.get("workers", 0)
        if workers and len(names) == 1:
            _star(axes, [f"worker {i}" for i in range(workers)], None, "server")
            alt = f"{workers} workers around one server, which draw from the same {rows[0]:,} rows."
            return made_of(figure, alt, alt)
        _star(axes, list(names), list(rows), "server" if workers else "hub")
        span = f"{rows[0]:,}" if min(rows) == max(rows) else f"{min(rows):,} to {max(rows):,}"
        hub = "a server" if workers else "one hub"
        alt = f"{len(names)} sites around {hub}, with {span} rows each."
        caption = f"{alt} The area of a site is its number of rows."
        return made_of(figure, alt, caption)


def _outlined(axes: Any, errors: np.ndarray | None) -> None:
    """Dots that are seen on any ground, their colours from no error to the largest."""
    for points in axes.collections[1:]:
        points.set(edgecolor=INK, linewidth=0.8, sizes=[90])
        if errors is None:
            points.set_facecolor(SERIES[0])
        else:
            points.set_clim(0, max(float(np.max(errors)), 1e-12))


def _errors(mixing: Any, subject: Subject) -> tuple[Any, np.ndarray | None, str]:
    if "agents" in subject.tree.children and len(subject.report.table) <= MOST_COVARIED:
        return errors_of(mixing, subject.tree, subject.reference)
    matrix = graphs.resolve_any(mixing, len(subject.record["sites"]))
    if isinstance(matrix, graphs.MixingSchedule):
        matrix = matrix.average
    return matrix, None, ""


def _star(axes: Any, names: list[str], rows: list[int] | None, hub: str) -> None:
    import networkx

    graph = networkx.star_graph(len(names))
    places = networkx.circular_layout(range(1, len(names) + 1))
    places = {node: np.asarray(place) for node, place in places.items()}
    places[0] = np.zeros(2)
    if len(names) == 1:
        places[1] = np.array([0.9, 0.0])
    sizes = np.asarray([0.3] * len(names) if rows is None else rows, float)
    area = 60 + 500 * sizes / max(sizes.max(), 1) / max(1, len(names) / 8)
    networkx.draw_networkx_edges(graph, places, ax=axes, edge_color=RULE, width=1.2)
    points = np.array([places[node + 1] for node in range(len(names))])
    axes.scatter(*points.T, s=area, color=SERIES[0], zorder=3)
    axes.scatter(0, 0, s=160, color=SERIES[1], marker="s", zorder=3)
    axes.annotate(hub, (0, 0), (0, -11), textcoords="offset points", ha="center", va="top")
    if len(names) <= 12:
        for place, (point, name) in enumerate(zip(points, names, strict=True)):
            count = "" if rows is None else f"\n{rows[place]:,} rows"
            lift = 15 if point[1] > -0.1 else -15  # the side that its edge does not take
            axes.annotate(
                f"{name if len(name) <= MOST_NAMED else name[: MOST_NAMED - 1] + '…'}{count}",
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
