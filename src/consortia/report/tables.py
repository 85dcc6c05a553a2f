"""The tables of a report: rows of text, for the terminal, the files and the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from consortia.core.printable import printable
from consortia.diagnostics.summary import MISSING, Summary, aligned
from consortia.diagnostics.verdict import Verdict
from consortia.report.run_report import RunReport, short_names

HEADS = {
    "5%": "5 %",
    "95%": "95 %",
    "r_hat": "R-hat",
    "ess": "ESS",
    "ess_bulk": "bulk ESS",
    "ess_tail": "tail ESS",
    "ref_mean": "ref mean",
    "ref_sd": "ref sd",
    "shift": "off by (sd)",
    "sd_ratio": "sd ratio",
    "predicted": "predicted off by (sd)",
}
"""Headings of a summary's columns, where they are not the names."""

COMPARED = ("ref_mean", "ref_sd", "shift", "sd_ratio")
PAGE = ("mean", "sd", "5%", "95%", "r_hat", "ess_bulk", "ess_tail", *COMPARED, "predicted")
ALONE = ("mean", "sd", "5%", "95%", "r_hat", "ess")
BESIDE = ("mean", "sd", *COMPARED, "r_hat", "ess")
"""The columns of a page, and those that a terminal has room for, alone or beside a reference."""

SCORE_NAMES = {
    "accuracy": "accuracy",
    "brier": "Brier score (sum over classes)",
    "ece": "calibration error (ECE, 15 bins)",
    "nll_per_row": "negative log-likelihood per row",
    "rmse": "root mean squared error",
    "log_density_per_row": "log predictive density per row",
}


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column names the row.

    Attributes:
        folded: a page shows it when it is opened.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: bool = False


def parameter_table(report: RunReport, columns: Sequence[str], most: int) -> Table:
    """Return these columns of the summary, of the first ``most`` parameters."""
    table = report.shown_table
    known = dict(table.columns)
    known["ess"] = np.minimum(known["ess_bulk"], known["ess_tail"])
    shift = report.predicted("shift")
    if shift is not None and report.column_table is None:  # it is of the sampled parameters
        known["predicted"] = shift
    shown = [name for name in columns if name in known]
    rows = Summary(tuple(short_names(table)), known).cells(shown, most)
    count = len(table)
    first = "The parameters" if count <= most else f"The first {most} of {count:,} parameters"
    heads = tuple(HEADS.get(name, name) for name in shown)
    return Table(f"{first} in numbers", ("parameter", *heads), tuple(map(tuple, rows)))


def score_table(report: RunReport) -> Table | None:
    """Return the predictive scores, or None without any."""
    if report.scores is None:
        return None
    sides = [report.scores.values]
    if report.reference_scores is not None:
        sides.append(report.reference_scores.values)
    rows = tuple(
        (label, *(_score(side.get(name)) for side in sides))
        for name, label in SCORE_NAMES.items()
        if name in report.scores.values
    )
    caption = f"Predictive scores on {report.held_out_rows:,} held-out rows"
    return Table(caption, ("score", "this run", "reference")[: 1 + len(sides)], rows)


def _score(value: float | None) -> str:
    return MISSING if value is None or math.isnan(value) else f"{value:.4f}"


def cost_table(report: RunReport) -> Table:
    """Return the cost of a run, of its reference, and of an effective draw."""
    record, reference, ess = report.record, report.reference_record, report.worst.ess
    warmup, rounds = record.get("warmup", 0), record.get("rounds", 0)
    done = record.get("iterations_run")
    found = {"draws kept": f"{report.draws * report.chains:,}"}
    if done is None:
        found["rounds"] = f"unfinished, of {warmup + rounds:,}"
    else:
        found["rounds"] = f"{done:,}, {warmup:,} of warm-up ({record['stopped']})"
    for label, key in (
        ("communication rounds", "communication_rounds"),
        ("bytes sent, up and down", "bytes_sent"),
        ("gradients of a site", "gradients"),
        ("rows read", "row_gradients"),
    ):
        found[label] = f"{record[key]:,}" if key in record else MISSING
    seconds = record.get("seconds")
    found["seconds, compilation included"] = MISSING if seconds is None else f"{seconds:,.1f}"
    if done is not None and ess > 0:
        found["bytes an effective draw"] = f"{record['bytes_sent'] / ess:,.0f}"
        found["gradients an effective draw"] = f"{record['gradients'] / ess:,.1f}"
        if seconds:
            found["effective draws a second"] = f"{ess / seconds:,.1f}"
    if "site_noise_inflation" in record:
        found["unlike sites, one at a time"] = (
            f"widen the variance by a predicted {max(record['site_noise_inflation']):.2%} in the "
            "worst coordinate (less if they take turns)"
        )
    if reference is not None and "gradients" in reference:
        found["reference"] = (
            f"{reference['gradients']:,} gradients of the pooled data, "
            f"{reference['seconds']:.1f} seconds"
        )
        if "divergences" in reference:
            found["reference"] += f", {reference['divergences']} divergences"
    return Table("What the run has cost", ("", "this run"), tuple(found.items()))


def comparison_table(reports: Sequence[RunReport], verdicts: Sequence[Verdict]) -> Table:
    """Return verdict, checks, scores and cost of several runs side by side."""
    columns: list[dict[str, str]] = []
    for report, own in zip(reports, verdicts, strict=True):
        cells = {"verdict": own.headline}
        cells["algorithm"] = str(report.record.get("algorithm", MISSING))
        cells |= {check.title: check.value for check in own.checks}
        scores = score_table(report)
        cells |= {} if scores is None else {row[0]: row[1] for row in scores.rows}
        columns.append(cells | {row[0]: row[1] for row in cost_table(report).rows})
    labels = dict.fromkeys(label for cells in columns for label in cells)
    rows = tuple((label, *(cells.get(label, MISSING) for cells in columns)) for label in labels)
    return Table("The runs side by side", ("", *(report.name for report in reports)), rows)


def text_of(report: RunReport) -> str:
    """Return the whole report as plain text, every parameter and every column."""
    parts = [
        report.title,
        "=" * len(report.title),
        "",
        *report.worst.lines(),
        "",
        *report.verdict.lines(),
        "",
    ]
    parts += [report.shown_table.text(max_rows=len(report.shown_table)), ""]
    for table in (score_table(report), cost_table(report)):
        if table is not None:
            parts += [table.caption, *aligned([table.columns, *table.rows]), ""]
    parts += [f"not done: {line}" for line in report.skipped]
    return printable("\n".join(parts).rstrip(), lines=True) + "\n"
