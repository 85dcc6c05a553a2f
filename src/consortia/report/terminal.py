"""Output to the terminal, by rich."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table as Grid
from rich.text import Text

from consortia.core.contract import Plan
from consortia.core.printable import printable
from consortia.diagnostics.verdict import Severity, Verdict

if TYPE_CHECKING:  # commands that only print need no report
    from consortia.report.run_report import RunReport
    from consortia.report.tables import Table
    from consortia.report.watching import View
    from consortia.theory.settings import Tried

MOST_ROWS = 40
COLOURS = {
    Severity.GOOD: "green",
    Severity.UNKNOWN: "blue",
    Severity.WARNING: "yellow",
    Severity.BAD: "red",
}
"""The colours of a verdict."""

NAME_LEAST = 12
"""Letters of a row's name that are kept before a column is left out."""

WIDTH = 100
"""Width of output that does not go to a terminal."""


class Printing(Console):
    """A console that shows the codes of control characters in the strings that it is given."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text with its markup read, as a table's cells and lines are."""
        return super().render_str(printable(text, lines=True), **options)


def console_of(*, quiet: bool = False, error: bool = False) -> Console:
    """Return a console; where the output is not a terminal, as wide as COLUMNS says, or WIDTH."""
    console = Printing(stderr=error, quiet=quiet, highlight=False)
    asked = os.environ.get("COLUMNS")
    if asked == "0" or (asked is None and not console.is_terminal):
        console = Printing(stderr=error, quiet=quiet, highlight=False, width=WIDTH)
    return console


def grid_of(rows: Iterable[tuple[str, str]], *, no_wrap: bool = False) -> Grid:
    """Return labels in bold, perhaps on one line each, beside their values."""
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=no_wrap)
    grid.add_column()
    for label, value in rows:
        grid.add_row(label, escape(value))
    return grid


def plan_panel(title: str, plan: Plan) -> Any:
    """Show the plan: processes, sites and methods."""
    grid = grid_of(plan.lines)
    for warning in plan.warnings:
        grid.add_row("[yellow]note[/]", f"[yellow]{escape(warning)}[/]")
    return Panel(grid, title=escape(printable(title)), title_align="left")


def settings_table(tried: Sequence[Tried]) -> Fitting:
    """Show settings between which a law has chosen, the cheapest first."""
    from consortia.report.tables import Table
    from consortia.theory.settings import written

    names = [name.replace("_", " ") for name, _ in tried[0].settings]
    caption = (
        "Settings within the target by the exact law, cheapest first: rounds per draw, messages "
        "and gradients of a site per round, and the bias of mean and sd"
    )
    heads = ("", "step", "rounds", "messages", "gradients", "mean", "sd", *names)
    rows = []
    for number, setting in enumerate(tried, 1):
        numbers = f"{setting.step:.3g}", f"{setting.law.rounds_per_draw:.1f}", f"{setting.messages}"
        off = f"{setting.mean:.3f} sd", f"{100 * setting.sd:.1f} %"
        values = map(written, setting.values.values())
        rows.append((str(number), *numbers, f"{setting.gradients:.0f}", *off, *values))
    return Fitting(Table(caption, heads, tuple(rows)), caption)


def report_tables(report: RunReport) -> Any:
    """Return posterior, verdict, predictions and cost."""
    from consortia.diagnostics.summary import COMPARISON
    from consortia.report import tables

    has_reference = report.reference_table is not None
    columns = tables.BESIDE if has_reference else tables.ALONE
    title = "Posterior" + (f" beside {report.beside}" if has_reference else "")
    notes = [note for note in report.shown_table.notes if note != COMPARISON]
    count = len(report.shown_table)
    if count > MOST_ROWS:
        notes.append(f"the first {MOST_ROWS} of {count} parameters; all are in summary.txt")
    shown = tables.parameter_table(report, columns, MOST_ROWS)
    posterior = Fitting(shown, title, escape("; ".join(notes)) or None)
    worst = map(escape, report.worst.lines())
    parts: list[Any] = [posterior, *worst, "", verdict_text(report.verdict), ""]
    scores = tables.score_table(report)
    parts += [] if scores is None else [Fitting(scores, scores.caption), ""]
    cost = grid_of((label, value) for label, value in tables.cost_table(report).rows)
    return Group(*parts, cost, *(f"[yellow]skipped:[/] {escape(line)}" for line in report.skipped))


def verdict_text(verdict: Verdict) -> Any:
    """Return a verdict in its colour, a line for each reason."""
    first, *rest = map(escape, verdict.lines())
    colour = COLOURS[verdict.severity]
    return "\n".join([f"[bold {colour}]{first}[/]", *(f"  {line}" for line in rest)])


class Fitting:
    """A table that leaves out its last columns where the terminal is too narrow, and no digit.

    Args:
        table: its cells.
        title: above it, or None.
        caption: below it, or None.
    """

    def __init__(self, table: Table, title: str | None = None, caption: str | None = None) -> None:
        self._table, self._title, self._caption = table, title, caption

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table, columns = self._table, len(self._table.columns)
        widths = [max(map(len, cells)) for cells in zip(table.columns, *table.rows, strict=True)]
        name = min(widths[0], NAME_LEAST)
        while columns > 2 and name + sum(widths[1:columns]) + 2 * (columns - 1) > options.max_width:
            columns -= 1
        grid = Grid(box=None, pad_edge=False, header_style="bold", title_justify="left")
        grid.title, grid.caption, grid.caption_justify = self._title, self._caption, "left"
        room = max(options.max_width - sum(widths[1:columns]) - 2 * (columns - 1), name)
        grid.add_column("", width=min(widths[0], room), no_wrap=True, overflow="ellipsis")
        for head, width in zip(table.columns[1:columns], widths[1:columns], strict=True):
            grid.add_column(head, justify="right", width=width, no_wrap=True)
        for row in table.rows:
            grid.add_row(*map(escape, row[:columns]))
        yield grid
        if columns < len(table.columns):
            left_out = ", ".join(table.columns[columns:])
            yield Text(f"{left_out} omitted: a wider terminal shows them", style="dim")


def view_panel(view: View) -> Any:
    """Return a run that is watched."""
    from rich.progress_bar import ProgressBar

    facts = grid_of(())
    facts.add_row("state", f"[{'green' if view.alive else 'bold'}]{escape(view.state)}[/]")
    for label, value in view.facts:
        facts.add_row(label, escape(value))
    bar = Grid.grid(expand=True)
    bar.add_row(ProgressBar(total=1.0, completed=view.share))
    parts: list[Any] = [bar, facts]
    for heads, rows in view.tables:
        grid = Grid(box=None, pad_edge=False, header_style="bold")
        for column, head in enumerate(heads):
            right = column > 0 and rows is view.parameters
            grid.add_column(head, justify="right" if right else "left")
        for cells in rows:
            colour = "yellow" if rows is view.sites and cells[0] in view.late else ""
            grid.add_row(*map(escape, cells), style=colour)
        parts += ["", grid]
    return Panel(Group(*parts), title=escape(printable(view.title)), title_align="left")
