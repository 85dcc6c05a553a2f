"""The figures of a report, by ArviZ and Matplotlib, each with words for those who cannot see it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.errors import MissingExtraError
from consortia.report import figure as static
from consortia.report import short_names
from consortia.report.selection import pooled, selected
from consortia.report.subject import Subject
from consortia.report.vector import INK, MUTED, RULE, SERIES, drawing, svg_of

MOST_FOREST = 40
MOST_TRACED = 6
MOST_POINTS = 500
RANKED = 100
"""Draws a chain in a rank plot: ranks are of draws that hardly depend on one another."""
SIMULATIONS = 300
BAND = 0.95
MOST_NAMED = 28
LEGEND = 45
"""Letters that a line of a legend has room for."""

_counter = itertools.count()


@dataclass(frozen=True)
class Plot:
    """A figure for a page.

    Attributes:
        svg: the element.
        caption: one or two sentences below it.
    """

    svg: str
    caption: str


def check_plots() -> None:
    """Refuse early, and say what to install, where the extra is missing."""
    try:
        import arviz_plots  # noqa: F401
        import jinja2  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"a report needs the module {error.name}: pip install 'consortia[plots]'"
        ) from error


def made_of(figure: Any, alt: str, caption: str) -> Plot:
    """A figure that was drawn within `consortia.report.vector.drawing`, for the page."""
    return Plot(svg_of(figure, alt, f"f{next(_counter)}"), caption)


# --- which parameters ----------------------------------------------------------------------------


def chosen(subject: Subject, others: Sequence[Subject] = ()) -> tuple[np.ndarray, str]:
    """Rows of the table for the forest, all of them in the others' too, and which they are."""
    table = subject.report.table
    shared = set(table.coordinates).intersection(*(o.report.table.coordinates for o in others))
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


def traced(subject: Subject) -> list[tuple[int, str]]:
    """A few rows worth a look, each with the reason."""
    columns = subject.report.table.columns
    wanted = []
    for name, order, reason in (
        ("r_hat", -columns["r_hat"], "largest R-hat"),
        ("ess_bulk", columns["ess_bulk"], "smallest ESS"),
        ("shift", -np.abs(columns.get("shift", np.nan * columns["mean"])), "farthest off"),
    ):
        if name in columns and not np.isnan(order).all():
            wanted.append((int(np.nanargmin(order)), reason))
    found: dict[int, str] = {}
    for place, why in wanted:
        found[place] = f"{found[place]}, {why}" if place in found else why
    for place in np.linspace(0, len(subject.report.table) - 1, MOST_TRACED).astype(int):
        if len(found) < MOST_TRACED:
            found.setdefault(int(place), "")
    return sorted(found.items())


def _unique(names: Sequence[str]) -> list[str]:
    return [name if len(name) <= MOST_NAMED else name[: MOST_NAMED - 1] + "…" for name in names]


def _short(names: Sequence[str]) -> list[str]:
    cut = _unique(names)
    return cut if len(set(cut)) == len(cut) else list(names)


# --- the figures ---------------------------------------------------------------------------------


def forest(subjects: Sequence[Subject]) -> Plot | None:
    """Intervals of the chosen parameters, of one run beside its reference or of several runs.

    None where several runs have no parameter in common.
    """
    import arviz_plots

    first = subjects[0]
    table = first.report.table
    rows, which = chosen(first, subjects[1:])
    if not len(rows):
        return None
    labels = _short([short_names(table)[row] for row in rows])
    series = {}
    for subject in subjects:
        own = subject.report.table.coordinates
        series[subject.name] = selected(
            subject.tree, [own.index(table.coordinates[row]) for row in rows], labels
        )
    if len(subjects) == 1 and first.reference is not None:
        other = first.report.reference_table
        assert other is not None
        from consortia.diagnostics import summary

        own = summary(first.reference, max_coordinates=0).coordinates
        series["reference"] = selected(
            first.reference, [own.index(table.coordinates[row]) for row in rows], labels
        )
    alone = len(series) == 1
    most = max(
        tree["posterior"].sizes["chain"] * tree["posterior"].sizes["draw"]
        for tree in series.values()
    )
    series = {name: pooled(tree, most) for name, tree in series.items()}
    height = 0.75 + len(rows) * (0.2 if alone else 0.12 + 0.07 * len(series))
    with drawing():
        collection = arviz_plots.plot_forest(
            next(iter(series.values())) if alone else series,
            combined=True,
            ci_kind="eti",
            ci_probs=(0.5, 0.9),
            point_estimate="mean",
            labels=["parameter"],
            backend="matplotlib",
            visuals={
                "labels": {"color": INK, "size": 9},
                "trunk": {"width": 3.2},
                "point_estimate": {"size": 14},
            },
            figure_kwargs={"figsize": (4.3, height), "width_ratios": [1, 2]},
        )
        figure = collection.viz["figure"].item()
        axes = figure.axes[-1]
        axes.axvline(0, color=RULE, linewidth=0.8, zorder=0)
        axes.margins(y=0.5 / len(rows))
        for beside in figure.axes[:-1]:  # the names need no axis
            beside.set_axis_off()
        _legend(axes, list(series))
        alt = (
            f"Intervals of {len(rows)} parameters for {', '.join(series)}; the numbers are in the "
            "table."
        )
        caption = f"Mean, 50 % (thick) and 90 % (thin) intervals of {which}" + (
            f"; {', '.join(series)} side by side." if not alone else "."
        )
        return made_of(figure, alt, caption)


def _legend(axes: Any, names: Sequence[str]) -> None:
    if len(names) < 2:
        return
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=3) for colour in SERIES[: len(names)]]
    labels = _short(names)
    columns = max(1, min(3, len(names), LEGEND // max(len(label) for label in labels)))
    axes.figure.legend(handles, labels, loc="outside lower right", ncols=columns, fontsize=9)


def traces(subject: Subject) -> list[Plot]:
    """One trace plot a parameter worth a look."""
    import arviz_plots

    picked = traced(subject)
    names = short_names(subject.report.table)
    labels = [names[row] for row, _ in picked]
    every = -(-subject.draws // MOST_POINTS)
    tree = selected(subject.tree, [row for row, _ in picked], labels)
    tree = tree.isel(draw=slice(None, None, every))
    columns = subject.report.table.columns
    made = []
    for (row, why), label in zip(picked, labels, strict=True):
        with drawing():
            collection = arviz_plots.plot_trace(
                tree,
                coords={"parameter": label},
                backend="matplotlib",
                visuals={
                    "trace": {"width": 0.7, "alpha": 0.8},
                    "title": False,
                    "xlabel": {"color": MUTED, "size": 9},
                },
                figure_kwargs={"figsize": (4.0, 1.8)},
            )
            figure = collection.viz["figure"].item()
            axes = figure.axes[0]
            if "ref_mean" in columns:
                axes.axhline(
                    columns["ref_mean"][row], color=INK, linewidth=1.2, linestyle=(0, (4, 3))
                )
            axes.set_title(_unique([label])[0] + (f": {why}" if why else ""))
            axes.set_xlabel("kept draw")
            axes.margins(x=0.01)
            alt = f"Trace of {label} in {subject.chains} chains." + _numbers(subject, row)
            made.append(made_of(figure, alt, ""))
    return made


def _numbers(subject: Subject, row: int) -> str:
    columns = subject.report.table.columns
    return (
        f" Mean {columns['mean'][row]:.3g}, sd {columns['sd'][row]:.3g}, R-hat "
        f"{columns['r_hat'][row]:.3f}, bulk ESS {columns['ess_bulk'][row]:,.0f}."
    )


def ranks(subject: Subject) -> list[Plot]:
    """One rank plot a parameter worth a look; none of a single chain."""
    if subject.chains < 2:
        return []
    import arviz_plots
    from arviz_stats.ecdf_utils import ecdf_pit

    picked = traced(subject)
    names = short_names(subject.report.table)
    labels = [names[row] for row, _ in picked]
    ess = subject.report.table["ess_bulk"]
    apart = np.nanmin(ess[[row for row, _ in picked]]) if not np.isnan(ess).all() else RANKED
    kept = int(np.clip(apart / subject.chains, 20, RANKED))
    every = max(1, subject.draws // kept)
    tree = selected(subject.tree, [row for row, _ in picked], labels)
    tree = tree.isel(draw=slice(every - 1, None, every))
    count = tree["posterior"].sizes["draw"]
    made = []
    at, _, low, high = ecdf_pit(
        np.linspace(0, 1, count), BAND, n_simulations=SIMULATIONS, n_chains=subject.chains
    )
    for (row, _), label in zip(picked, labels, strict=True):
        with drawing():
            collection = arviz_plots.plot_rank(
                tree,
                coords={"parameter": label},
                backend="matplotlib",
                # One band for all: it depends on the numbers of chains and draws only.
                stats={"ecdf_pit": {"n_simulations": 1}},
                visuals={
                    "credible_interval": False,
                    "title": False,
                    "xlabel": False,
                    "remove_axis": False,
                },
                figure_kwargs={"figsize": (4.0, 1.8)},
            )
            figure = collection.viz["figure"].item()
            axes = figure.axes[0]
            axes.fill_between(
                at, low - at, high - at, color=RULE, alpha=0.35, linewidth=0, zorder=0
            )
            axes.set_title(_unique([label])[0])
            axes.set_xlabel("rank among the draws of all chains, as a share")
            axes.set_ylabel("too low or high by")
            axes.margins(x=0.01)
            alt = (
                f"Ranks of {label}: one line a chain, within the band when the chains agree."
                + _numbers(subject, row)
            )
            made.append(made_of(figure, alt, ""))
    return made


def bias(subject: Subject) -> Plot | None:
    """Predicted against measured difference of the means; None without both."""
    columns, own = subject.report.table.columns, subject.report.reference_table
    shift = subject.predicted("shift")
    if shift is None or own is None:
        return None
    from matplotlib.figure import Figure

    error = np.hypot(columns["mcse_mean"], own["mcse_mean"]) / own["sd"]
    with drawing():
        figure = Figure(figsize=(4.0, 3.1), layout="constrained")
        axes = figure.subplots()
        ends = [min(shift.min(), 0) - 0.02, max(shift.max(), 0) + 0.02]
        axes.plot(ends, ends, color=RULE, linewidth=1, linestyle="--")
        axes.axhline(0, color=RULE, linewidth=0.8)
        axes.errorbar(
            shift,
            columns["shift"],
            2 * error,
            fmt="o",
            markersize=4,
            linewidth=0.8,
            color=SERIES[0],
        )
        axes.set_xlabel("predicted difference of the means, in posterior sd")
        axes.set_ylabel("measured, ± 2 Monte Carlo errors")
        misfit = np.abs(columns["shift"] - shift) / error
        within = float(np.mean(misfit < 2))
        alt = (
            f"Predicted against measured bias of {len(shift)} means; {100 * within:.0f} % of the "
            "measured ones are within two Monte Carlo errors of the prediction."
        )
        caption = (
            "Each point is a parameter; on the dashed line the oracle of the method is right. "
            f"{100 * within:.0f} % are within two Monte Carlo errors of it."
        )
        return made_of(figure, alt, caption)


def predictions(subject: Subject) -> Plot | None:
    """Calibration of a classifier, or predicted against observed of a regression."""
    found = subject.report.predictions
    if found is None:
        return None
    from matplotlib.figure import Figure

    with drawing():
        figure = Figure(figsize=(4.2, 3.2), layout="constrained")
        axes = figure.subplots()
        if found.curve is not None:
            static.calibration(axes, subject.report)
            axes.set_xlabel("probability of the predicted class")
            alt = (
                "Calibration curve: share of right predictions against their stated probability; "
                f"calibration error {found.scores['ece']:.3f}."
            )
            caption = (
                "On the dashed line stated probabilities are right. The size of a mark is the "
                "number of rows, the bar a 90 % interval."
            )
        elif found.means is not None and subject.observed is not None:
            static.predicted_means(axes, subject.report, np.asarray(subject.observed))
            alt = f"Observed against predicted; RMSE {found.scores['rmse']:.3g}."
            caption = "On the dashed line the predicted mean is what was observed."
        else:
            return None
        axes.set_title("")
        return made_of(figure, alt, caption)
