"""What a person sees on the terminal, by rich."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from consortia.algorithms.registry import ALGORITHMS
from consortia.core.contract import Plan
from consortia.report import Report, short_names

MOST_ROWS = 40
WIDTH = 100
"""Of output that does not go to a terminal."""


def console_of(*, quiet: bool = False, error: bool = False) -> Console:
    """A console; one hundred columns wide where the output is not a terminal."""
    console = Console(stderr=error, quiet=quiet, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=error, quiet=quiet, highlight=False, width=WIDTH)
    return console


def plan_panel(title: str, plan: Plan) -> Any:
    """What will run where."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for label, value in plan.lines:
        table.add_row(label, escape(value))
    for warning in plan.warnings:
        table.add_row("[yellow]note[/]", f"[yellow]{escape(warning)}[/]")
    return Panel(table, title=escape(title), title_align="left")


def report_tables(report: Report) -> Any:
    """Posterior, predictions and cost."""
    parts: list[Any] = [posterior_table(report), *report.verdict.lines(), ""]
    if report.predictions is not None:
        parts += [score_table(report), ""]
    cost = Table.grid(padding=(0, 2))
    cost.add_column(style="bold")
    for label, value in report.cost_rows():
        cost.add_row(label, escape(value))
    parts.append(cost)
    parts += [f"[yellow]not done:[/] {escape(line)}" for line in report.skipped]
    return Group(*parts)


def posterior_table(report: Report) -> Table:
    """Mean and sd of each parameter, beside the reference."""
    table, columns = report.table, report.table.columns
    beside = "ref_mean" in columns
    shown = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    shown.title = "Posterior" + (" beside NUTS on the pooled data" if beside else "")
    shown.add_column("", overflow="ellipsis", no_wrap=True)
    heads = ["mean", "sd"]
    heads += ["ref mean", "ref sd", "shift", "sd ratio"] if beside else ["5%", "95%"]
    for head in [*heads, "R-hat", "ESS"]:
        shown.add_column(head, justify="right", no_wrap=True)
    names = ["mean", "sd"]
    names += ["ref_mean", "ref_sd", "shift", "sd_ratio"] if beside else ["5%", "95%"]
    for place, label in enumerate(short_names(table)[:MOST_ROWS]):
        cells = [_number(columns[name][place]) for name in names]
        cells.append(_number(columns["r_hat"][place], 3))
        cells.append(_number(min(columns["ess_bulk"][place], columns["ess_tail"][place]), 0))
        shown.add_row(escape(label), *cells)
    notes = [note for note in table.notes if not note.startswith("shift")]
    if beside:
        notes.append("shift: difference of the means in reference sd")
    if len(table) > MOST_ROWS:
        notes.append(f"the first {MOST_ROWS} of {len(table)} parameters; all are in summary.txt")
    shown.caption = escape("; ".join(notes)) or None
    shown.caption_justify = "left"
    return shown


def score_table(report: Report) -> Table:
    """The predictive scores."""
    beside = report.reference_predictions is not None
    shown = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    shown.title = f"Predictions on {report.held_out_rows} held-out rows"
    shown.add_column("")
    shown.add_column("federated", justify="right")
    if beside:
        shown.add_column("reference", justify="right")
    for label, value, other in report.score_rows():
        cells = [f"{value:.4f}"] + ([] if other is None else [f"{other:.4f}"])
        shown.add_row(label, *cells)
    return shown


def algorithms_table() -> Table:
    """The registry."""
    shown = Table(title="Algorithms", title_justify="left", show_lines=True)
    for head in ("name", "samples", "bias", "one draw is", "step_size", "paper", "engines"):
        shown.add_column(head, overflow="fold", no_wrap=head == "name")
    for name, entry in ALGORITHMS.items():
        claims = entry.factory(**entry.example).claims
        cells = (claims.samples, claims.bias, claims.draw, claims.step_size, claims.source)
        shown.add_row(f"[bold]{name}[/]", *map(escape, cells), ", ".join(entry.engines))
    return shown


def _number(value: float, decimals: int = 2) -> str:
    return "n/a" if value != value else f"{value:,.{decimals}f}"
