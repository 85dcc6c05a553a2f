"""A run's files: its figures, and the page of one run or of several side by side."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from consortia.core.printable import printable
from consortia.core.version import __version__
from consortia.diagnostics.summary import COMPARISON
from consortia.diagnostics.verdict import Verdict
from consortia.errors import InputError, StoreError
from consortia.report import network, plots
from consortia.report.canvas import COLOURS, Plot, check_extra, write_png
from consortia.report.run_report import RunReport, load_run
from consortia.report.tables import (
    PAGE,
    Table,
    comparison_table,
    cost_table,
    parameter_table,
    score_table,
)
from consortia.store.durable import replace_file

MOST_ROWS = 200


@dataclass(frozen=True)
class Part:
    """A section of the page; one without plots, tables, notes and source is left out."""

    key: str
    title: str
    text: str
    plots: Sequence[Plot | None] = ()
    tables: Sequence[Table | None] = ()
    notes: Sequence[str] = ()
    source: str | None = None


@dataclass(frozen=True)
class Chapter:
    """All sections of one run."""

    key: str
    name: str
    lead: str
    verdict: Verdict
    parts: list[Part]


def write_report(
    runs: str | os.PathLike[str] | RunReport | Sequence[str | os.PathLike[str] | RunReport],
    output: str | os.PathLike[str],
    *,
    code: bool = False,
) -> Path:
    """Write a report of one run, or of several side by side, as one HTML file; return its path.

    The verdict comes first: convergence, number of draws, predicted and measured bias in plain
    words. Then intervals, traces, ranks, predictions, the network and how it behaved, and the cost.
    The file holds its figures and styles and loads nothing.

    Args:
        runs: run directories (finished or not), or what `consortia.report.run_report.report_of`
            makes of results in memory.
        output: the HTML file; one that is there is written over.
        code: run the factories of the runs' studies, as `load_run` does.

    Raises:
        StoreError: a directory holds no run, or no draw yet; or the file cannot be written.
        MissingExtraError: ArviZ's plots are not installed.
    """
    given = [runs] if isinstance(runs, (str, os.PathLike, RunReport)) else list(runs)
    if not given:
        raise InputError("runs is empty: give at least one run directory.")
    check_extra()
    text = page(
        _distinct([r if isinstance(r, RunReport) else load_run(r, code=code) for r in given])
    )
    target = Path(output)
    try:
        replace_file(target, [text.encode()])
    except OSError as error:
        raise StoreError(f"{str(target)!r} cannot be written: {error}.") from error
    return target


def write_figures(report: RunReport, directory: Path) -> None:
    """Write posterior.png, and network.png of a gossip run that kept its agents.

    Raises:
        MissingExtraError: Matplotlib or ArviZ's plots are not installed.
    """
    check_extra()
    write_png(plots.overview(report), directory / "posterior.png")
    if "agents" in report.tree.children:
        shown = network.network(report)
        if shown is not None:
            write_png([[shown.figure]], directory / "network.png")


def page(reports: Sequence[RunReport]) -> str:
    """Return the HTML of a report."""
    import jinja2

    folder = resources.files("consortia.report") / "page"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((folder / "report.html.jinja").read_text(encoding="utf-8"))
    chapters = [_chapter(report, f"run-{place}") for place, report in enumerate(reports)]
    comparison = None
    if len(reports) > 1:
        shown = plots.forest(reports)
        text = (
            "The same numbers of every run; they have no parameter in common whose intervals could "
            "be compared."
            if shown is None
            else "The same numbers of every run, then the intervals of the parameters that all of "
            "them have. Runs of one posterior should agree."
        )
        table = comparison_table(reports, [chapter.verdict for chapter in chapters])
        comparison = Part("comparison", "Side by side", text, [shown], [table])
    counter = itertools.count()
    text = template.render(
        css=(folder / "report.css").read_text(encoding="utf-8"),
        colours=COLOURS,
        version=__version__,
        title=" · ".join(r.name for r in reports) if comparison else reports[0].title,
        runs=chapters,
        comparison=comparison,
        svg=lambda plot: plot.svg(f"figure-{next(counter)}"),
    )
    return printable(text, lines=True)


def _distinct(reports: Sequence[RunReport]) -> list[RunReport]:
    """Return the runs with a number behind names that occur twice."""
    names = [report.name for report in reports]
    return [
        replace(report, name=f"{report.name} ({names[: place + 1].count(report.name)})")
        if names.count(report.name) > 1
        else report
        for place, report in enumerate(reports)
    ]


def _chapter(report: RunReport, key: str) -> Chapter:
    parts = [
        replace(part, key=f"{key}-{part.key}")
        for part in _parts(report)
        if any(part.plots) or any(part.tables) or part.notes or part.source
    ]
    return Chapter(key, report.name, _lead(report), report.verdict, parts)


def _lead(report: RunReport) -> str:
    record = report.record
    chains = f"{report.chains} chain{'s' if report.chains > 1 else ''}"
    sites, count = len(record.get("sites", ())), len(report.table)
    where = f" over {sites} site{'s' if sites != 1 else ''}" if sites else ""
    return (
        f"{record.get('algorithm', 'a sampler')}{where}, {chains} of {report.draws:,} kept draws, "
        f"{count} parameter{'s' if count != 1 else ''}. It samples "
        f"{record.get('samples', 'a law that is not recorded')}."
    )


def _notes(report: RunReport) -> list[str]:
    notes = [note for note in report.shown_table.notes if note != COMPARISON]
    if "moments" in report.tree.children:
        count = report.tree["moments"].attrs["draws"]
        notes.append(
            f"All numbers are of {report.draws:,} evenly spaced draws a chain; means and "
            f"variances of all {count:,} are in the group `moments` of the run."
        )
    return notes


def _predicted_lines(report: RunReport) -> list[str]:
    if report.prediction is None:
        return []
    if report.places is None:
        return list(report.prediction.lines())
    names = dict(zip(report.places.tolist(), report.names, strict=True))
    return list(report.prediction.lines([names[place] for place in range(len(names))]))


def _parts(report: RunReport) -> list[Part]:
    _, which = plots.chosen(report)
    dashed = "" if report.reference is None else " The dashed line is the reference's mean."
    return [
        Part(
            "posterior",
            "The posterior",
            f"Where the parameters are, and how sure the data make us. Shown: {which}.",
            [plots.forest([report])],
            [parameter_table(report, PAGE, MOST_ROWS)],
            _notes(report),
        ),
        Part(
            "bias",
            "Bias, predicted and measured",
            "What the method's oracle predicts on this posterior, beside what it did "
            "against the reference.",
            [plots.bias(report)],
            notes=_predicted_lines(report),
        ),
        Part(
            "traces",
            "Traces",
            "Every chain in its order, a colour each: they should look like one band of noise. "
            f"A chain that drifts or sits still has not found the posterior.{dashed}",
            plots.traces(report),
        ),
        Part(
            "ranks",
            "Ranks",
            "The draws of all chains are ranked together; if the chains agree, each has its fair "
            "share of low and high ranks and its line stays within the grey band 19 times of 20. "
            "Draws are thinned first, as far as they depend on one another.",
            plots.ranks(report),
        ),
        Part(
            "predictions",
            "Predictions",
            f"On {report.held_out_rows:,} rows that no site has seen.",
            [plots.predictions(report)],
            [score_table(report)],
        ),
        Part(
            "network",
            "The network",
            network.words(report),
            [network.network(report), network.over_time(report)],
        ),
        Part(
            "cost",
            "What it cost",
            "In all chains together; an effective draw is worth as much as an independent one.",
            tables=[cost_table(report)],
            notes=[f"Not done: {line}" for line in report.skipped],
            source=report.study,
        ),
    ]
