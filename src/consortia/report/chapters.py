"""Chapters of a report, whether it becomes a page or paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consortia.diagnostics.figures.canvas import Plot
from consortia.diagnostics.verdict import Verdict
from consortia.report.tables import Table


@dataclass(frozen=True)
class Part:
    """A section of the page; one that would hold nothing is left out."""

    key: str  # its address on the page
    title: str  # its heading
    text: str  # what it is about
    plots: Sequence[Plot | None] = ()  # its figures
    tables: Sequence[Table | None] = ()
    notes: Sequence[str] = ()  # a list below them
    source: str | None = None  # a file's text, folded
    quote: str = ""  # a paragraph to be copied
    numbered: Sequence[str] = ()  # a list with numbers, below it

    @property
    def choices(self) -> list[str]:
        """The parameters of which the reader may choose one; none of a few."""
        names = list(dict.fromkeys(plot.of for plot in self.plots if plot is not None and plot.of))
        return names if len(names) > 1 else []


@dataclass(frozen=True)
class Chapter:
    """All sections of one run."""

    key: str
    name: str
    lead: str
    sentence: str
    verdict: Verdict
    parts: list[Part]
