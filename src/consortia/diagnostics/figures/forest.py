"""Forest plots: an interval a line, one panel for each coefficient."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consortia.diagnostics.figures.canvas import (
    INK,
    MUTED,
    RULE,
    SERIES,
    TIP,
    check_picture,
    drawing,
    write_figure,
)

LINE, MARGIN, WIDTH = 0.24, 0.75, 4.6
"""Heights and width in inches."""

LETTERS = 52
"""Characters of a title that fit above a panel."""

MOST_LINES = 100
"""Lines of a panel, 24 inches high; of more the sites are drawn by their medians, without names, in
the height of so many. Chosen: of thousands each text takes milliseconds, and a picture has more
pixels than Matplotlib writes."""


def draw_forest(
    blocks: Mapping[str, Sequence[Any]], effect: str, level: float, path: Path, title: str = ""
) -> Path:
    """Draw intervals of effects, a ratio on a logarithmic axis; return the file.

    Args:
        blocks: by the title of a panel its lines, each with name, median, lower and upper; those
            with another kind than "site" stand apart, below a rule.
        effect: what is drawn; "difference" is not a ratio.
        level: probability inside the intervals.
        path: of the picture.
        title: above it.

    Raises:
        InputError: the file is of no known kind.
        MissingExtraError: Matplotlib is not installed.
    """
    check_picture(path)
    with drawing():
        figure = forest_figure(blocks, effect, level, title)
        return write_figure(figure, path)


def forest_figure(
    blocks: Mapping[str, Sequence[Any]], effect: str, level: float, title: str = ""
) -> Any:
    """Return the figure of `draw_forest`, to be drawn within `canvas.drawing`."""
    from matplotlib.figure import Figure

    blocks = {textwrap.fill(head, LETTERS): rows for head, rows in blocks.items()}
    heights = [
        (min(len(rows), MOST_LINES) + head.count("\n")) * LINE + MARGIN
        for head, rows in blocks.items()
    ]
    figure = Figure(figsize=(WIDTH, sum(heights)))
    panels = figure.subplots(len(blocks), 1, height_ratios=heights, squeeze=False)
    for axes, (head, rows) in zip(panels[:, 0], blocks.items(), strict=True):
        _panel(axes, head, rows, ratio=effect != "difference")
    panels[-1, 0].set_xlabel(f"{effect}, median and {100 * level:.4g} % interval")
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    return figure


def _panel(axes: Any, head: str, rows: Sequence[Any], *, ratio: bool) -> None:
    lines, crowd = min(len(rows), MOST_LINES), []
    if lines < len(rows):
        crowd = sorted([row.median, row.lower, row.upper] for row in rows if row.kind == "site")
        rows = [row for row in rows if row.kind != "site"]
    places = list(range(len(rows), 0, -1))
    apart = [row.kind != "site" for row in rows]
    axes.axvline(1.0 if ratio else 0.0, color=RULE, linewidth=0.8, zorder=0)
    if any(apart) and (crowd or not all(apart)):
        axes.axhline(places[apart.index(True)] + 0.5, color=RULE, linewidth=0.8)
    if crowd:
        medians, lower, upper = np.array(crowd).T
        heights = np.linspace(lines, len(rows) + 1, len(crowd))
        axes.hlines(heights, lower, upper, color=SERIES[0], linewidth=0.4)
        axes.plot(medians, heights, "o", color=INK, markersize=1)
        axes.set_ylabel(f"{len(crowd):,} intervals, by their medians")
    for height, row, below in zip(places, rows, apart, strict=True):
        colour = SERIES[1] if below else SERIES[0]
        # a prediction of a new site is wider than what is known of the common effect
        style = (0, (2, 1.5)) if row.kind == "new site" else "solid"
        tip = f"{TIP}{row.name}: {row.median:.3g} ({row.lower:.3g} to {row.upper:.3g})"
        across = [height, height]
        axes.plot([row.lower, row.upper], across, color=colour, linestyle=style, gid=tip)
        marker = "D" if below else "o"
        axes.plot([row.median], [height], marker, color=colour, markersize=4.5, gid=tip)
    if ratio:
        axes.set_xscale("log")
        from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0.4, lines + 0.6)
    axes.set_yticks(places, [row.name for row in rows])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.set_title(head, color=MUTED)
