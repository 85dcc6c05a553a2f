"""Distance of numbers from uniform: their distribution function less that of uniform ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from consortia.diagnostics.figures.canvas import RULE, SERIES, check_picture, drawing, write_figure

BAND, SIMULATIONS = 0.95, 1000
ACROSS, PANEL = 3, (2.3, 1.7)
"""Panels in a row, and the size of one in inches."""


def draw_uniformity(names: Sequence[str], shares: np.ndarray, path: Path) -> Path:
    """Draw a panel for each quantity, with the band of uniform ranks; return the file.

    Args:
        names: of the quantities.
        shares: in (0, 1), (simulations, quantities).
        path: of the picture.

    Raises:
        InputError: the file is of no known kind.
        MissingExtraError: Matplotlib is not installed.
    """
    check_picture(path)
    from arviz_stats.ecdf_utils import ecdf_pit
    from matplotlib.figure import Figure

    down = -(-len(names) // ACROSS)
    with drawing():
        figure = Figure(figsize=(ACROSS * PANEL[0], down * PANEL[1] + 0.3))
        panels = figure.subplots(down, ACROSS, squeeze=False)
        for axes in panels.flat[len(names) :]:
            axes.set_axis_off()
        # the band depends on the number of simulations only
        at, _, low, high = ecdf_pit(np.linspace(0, 1, len(shares)), BAND, SIMULATIONS)
        for axes, name, column in zip(panels.flat, names, shares.T, strict=False):
            below = np.searchsorted(np.sort(column), at, side="right") / len(column)
            axes.fill_between(at, low - at, high - at, color=RULE, alpha=0.35, linewidth=0)
            axes.axhline(0, color=RULE, linewidth=0.8)
            axes.plot(at, below - at, color=SERIES[0])
            axes.set_title(name)
            axes.set_xlim(0, 1)
        figure.supxlabel("rank among the draws, as a share", fontsize=9)
        figure.supylabel("too many below by", fontsize=9)
        return write_figure(figure, path)
