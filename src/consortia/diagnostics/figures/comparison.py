"""Bias against messages: a curve for each method along its step size, or a line without a bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consortia.diagnostics.figures.canvas import (
    INK,
    MUTED,
    RULE,
    SERIES,
    axes_of,
    check_picture,
    drawing,
    write_figure,
)

SIZE = (6.5, 5.0)
"""Inches."""

SEEN, MOST = 0.002, 0.5
TICKS = (SEEN, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, MOST)
"""Biases that are drawn, in posterior standard deviations; others are drawn at the edges."""

GOOD = 0.1
"""Bias of good draws."""


def draw_comparison(
    curves: Sequence[Any],
    exact: Mapping[str, float],
    path: Path,
    study: tuple[float, float] | None = None,
) -> Path:
    """Draw messages of methods by the bias that they leave; return the file.

    Args:
        curves: with name, biases and messages, each.
        exact: messages of methods without a bias, by name.
        path: of the picture.
        study: bias and messages of a study's own settings, or None.

    Raises:
        InputError: the file is of no known kind.
        MissingExtraError: Matplotlib is not installed.
    """
    check_picture(path)
    with drawing():
        figure, axes = axes_of(*SIZE)
        axes.axvspan(SEEN, GOOD, color=RULE, alpha=0.18, linewidth=0)
        edges: dict[str, Any] = {"clip_on": False, "zorder": 3}  # marks at an edge are whole
        for curve, colour in zip(curves, SERIES, strict=False):
            biases = np.clip(curve.biases, SEEN, MOST).tolist()
            # Curves fall: at an edge the cheapest mark is left.
            last = dict(zip(biases, curve.messages, strict=True))
            axes.plot([*last], [*last.values()], ".-", color=colour, label=curve.name, **edges)
        for name, messages in exact.items():
            axes.axhline(messages, color=INK, linewidth=1, linestyle=(0, (4, 2)))
            axes.text(MOST, messages, f" {name}:\n exact, {messages:,.0f}", va="center", color=INK)
        if study is not None:
            at = np.clip(study[0], SEEN, MOST), study[1]
            axes.plot(*at, "*", color=INK, markersize=11, label="this study", **edges)
        axes.set(xscale="log", yscale="log", xlim=(SEEN, MOST))
        less, *between, more = (f"{tick:g}" for tick in TICKS)
        axes.set_xticks(TICKS, [f"≤ {less}", *between, f"≥ {more}"])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("bias of the worst mean or sd, in posterior sds (shaded: good)")
        axes.set_ylabel("messages to 400 effective draws")
        axes.set_title("Predicted on the posterior's Gaussian law, after the warm-up")
        axes.tick_params(colors=MUTED)
        axes.figure.legend(loc="outside lower center", ncols=4)
        return write_figure(figure, path)
