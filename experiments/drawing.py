"""Figures of the papers from records: ours, the exact law, the paper's numbers, the verdicts.

A program draws its panels; the published numbers are marked here from the claims, as open diamonds
or dashed lines, and each panel says its verdict. Exact laws are thin black lines.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import records
from experiments.claims import (
    NO_NUMBER,
    NOT_REPRODUCED,
    NOT_RUN,
    OURS,
    SCALES,
    UNDECIDED,
    UNSIZED,
    UNTUNED,
    Claim,
    Paper,
    Study,
)
from experiments.records import Record

LAW: dict[str, Any] = {"color": "black", "lw": 0.7}
"""How the exact law is drawn."""

PUBLISHED: dict[str, Any] = {"color": "tab:red", "lw": 0.9, "ls": (0, (4, 2)), "zorder": 5}
PANEL = (3.1, 2.75)
LETTERS = 16
"""Of a figure's title, to an inch."""
STYLE = {
    "font.size": 7,
    "axes.titlesize": 7.5,
    "legend.fontsize": 6,
    "legend.framealpha": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "consortia",
    "axes.prop_cycle": "cycler('color', ['#1f77b4', '#ff7f0e', '#2ca02c', '#9467bd', '#8c564b', "
    "'#17becf', '#bcbd22', '#7f7f7f'])",
}


def save(paper: Paper, study: Study, record: Record, target: Path, remark: str = "") -> None:
    """Draw the panels of a study's record to a file, SVG or PNG."""
    rows = -(-len(study.panels) // study.columns)
    figure = _figure(study.columns * PANEL[0], rows * PANEL[1])
    _draw(figure, paper, study, record, remark, range(len(study.panels)), study.columns)
    _write(figure, target)


def save_sheet(paper: Paper, target: Path) -> None:
    """Draw the best records of all studies of a paper into one picture."""
    found = [(study, records.best(paper, study)) for study in paper.studies]
    present = [(study, record) for study, record in found if record is not None and study.sheet]
    rows = [-(-len(study.sheet) // 4) for study, _ in present]
    figure = _figure(4 * PANEL[0], sum(rows) * PANEL[1])
    parts = figure.subfigures(len(present), 1, height_ratios=rows, squeeze=False)[:, 0]
    for part, (study, record) in zip(parts, present, strict=True):
        _draw(part, paper, study, record, shown=study.sheet, columns=4)
    _write(figure, target)


def _figure(width: float, height: float) -> Any:
    import matplotlib as mpl  # an extra
    from matplotlib.figure import Figure

    mpl.rcParams.update(STYLE)
    return Figure(figsize=(width, height), layout="constrained")


VERDICT_LETTERS = 56
"""Letters of a line above a panel, in its smaller type."""


def _draw(
    figure: Any,
    paper: Paper,
    study: Study,
    record: Record,
    remark: str = "",
    shown: Sequence[int] = (),
    columns: int = 4,
) -> None:
    """Draw the shown panels of a study into a figure or a part of one."""
    rows = -(-len(shown) // columns)
    free = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in free[len(shown) :]:
        axis.set_axis_off()
    axes = _figure(1, 1).subplots(1, len(study.panels), squeeze=False)[0]  # for the others
    axes[list(shown)] = free[: len(shown)]
    smaller = _fill(axes, paper, study, record)
    found, share = records.findings(record), study.shares.get(record["scale"], "")
    elsewhere = {name for _, names in record.get("borrowed", {}).values() for name in names}
    for place, (axis, title) in enumerate(zip(axes, study.panels, strict=True)):
        claims = [claim for claim in study.claims if claim.panel == place]
        for claim in claims:
            _mark(axis, claim)
        verdicts = [claim.verdict(found.get(claim.id), share) for claim in claims]
        part = not smaller[place] and any(claim.id in elsewhere for claim in claims)
        undrawn = "in part of a smaller run, not drawn" if part else ""
        text = " · ".join(filter(None, (summary(verdicts), undrawn, remark)))
        text = textwrap.fill(text, VERDICT_LETTERS)
        lines = "\n" * (1 + text.count("\n"))
        axis.set_title(f"{title}{', smaller run' if smaller[place] else ''}{lines}", loc="left")
        against = NOT_REPRODUCED, "does not hold", "beyond"
        bad = any(word in v for v in verdicts for word in against)
        unsure = any(word in v for v in verdicts for word in (UNDECIDED, UNTUNED, NOT_RUN))
        colour = "#b00020" if bad else "#606060" if unsure else "#206020"
        label = axis.text(0, 1.02, text, transform=axis.transAxes, fontsize=6, color=colour)
        label.set_in_layout(False)
    told = f"{study.title}."
    if share:
        told += f" Smaller: {share}."
    elif any(claim.verdict(found.get(claim.id)) not in UNSIZED for claim in study.claims):
        told += " At the paper's size."
    inches = figure.bbox.width / figure.dpi
    told = textwrap.fill(told, int(LETTERS * inches))
    figure.suptitle(told, x=0.01, ha="left", fontsize=8)


def _fill(axes: Any, paper: Paper, study: Study, record: Record) -> Any:
    """Draw the panels of a record, and from smaller ones those that it leaves empty.

    Returns:
        Which panels were empty, a bool each.
    """
    draw = records.program(paper, study).draw
    draw(record["results"], axes)
    first = [not axis.has_data() for axis in axes]
    for scale, smaller in reversed(records.stored(paper, study).items()):
        empty = [not axis.has_data() for axis in axes]
        if SCALES.index(scale) < SCALES.index(record["scale"]) and any(empty):
            unused = _figure(1, 1).subplots(1, len(axes), squeeze=False)[0]
            draw(smaller["results"], np.where(empty, axes, unused))
    return np.array(first) & [axis.has_data() for axis in axes]


def _mark(axis: Any, claim: Claim) -> None:
    """Mark a published number, or the ends of a band."""
    if claim.band is not None:
        axis.axhspan(*claim.band, color="tab:red", alpha=0.06, lw=0)
    if claim.number is None or not claim.mark:
        return
    if claim.at is None:
        axis.axhline(claim.number, **PUBLISHED)
        axis.text(
            1.01,
            claim.number,
            f"paper\n{claim.number:g}",
            transform=axis.get_yaxis_transform(),
            va="center",
            fontsize=5.5,
            color="tab:red",
        )
        return
    axis.plot([claim.at], [claim.number], "D", mfc="none", mec="tab:red", ms=5, zorder=5)
    place = axis.transScale.transform([(claim.at, claim.number)])
    at_the_end = axis.transLimits.transform(place)[0, 0] > 0.97
    axis.annotate(
        f"paper {claim.number:g}",
        (claim.at, claim.number),
        xytext=(-6, 0) if at_the_end else (-3, -6),
        textcoords="offset points",
        ha="right" if at_the_end else "center",
        va="center" if at_the_end else "top",
        fontsize=5.5,
        color="tab:red",
    )


def summary(verdicts: Sequence[str]) -> str:
    """Return the verdicts of a panel in one line: "reproduced", or "2 reproduced; 1 not run".

    What a smaller run is smaller than stands once, above all panels; with other verdicts beside it
    that it is smaller stands there only.
    """
    heads = [text for text in verdicts if text not in (NO_NUMBER, OURS)]
    short = [
        f"smaller, {text.rpartition('; ')[2]}" if text.startswith("smaller: ") else text
        for text in heads
    ]
    counts = Counter(short or verdicts)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{n} {verdict.removeprefix('smaller, ')}" for verdict, n in counts.items())


def _write(figure: Any, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".png":
        figure.savefig(target, dpi=110)
        return
    figure.savefig(target, metadata={"Date": None, "Creator": None})

    # A tenth of a point is finer than any screen; names of groups and comments are for no reader.
    def shortened(attribute: re.Match[str]) -> str:
        return re.sub(r"(\d+\.\d)\d+", r"\1", attribute[0])

    text = re.sub(r"\"[^\"]*\"", shortened, target.read_text())
    text = re.sub(r"<!--.*?-->|(?<=<g) id=\"[^\"]*\"", "", text, flags=re.DOTALL)
    text = re.sub(r"stroke: #000000; stroke-width: 0\.\d", "stroke: #000", text)
    text = re.sub(r"; font-family: [^;\"]*", "", text)
    text = text.replace("<svg ", '<svg font-family="DejaVu Sans, sans-serif" ', 1)
    target.write_text(re.sub(r"\s*\n\s*", "\n", text))
