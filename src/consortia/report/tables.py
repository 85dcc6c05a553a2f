"""The tables of a report, as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.report import short_names
from consortia.report.judgement import Judgement
from consortia.report.subject import Subject

MOST_ROWS = 200
MISSING = "n/a"


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column names the row."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: bool = False


def parameter_table(subject: Subject) -> Table:
    """Mean, sd, interval, R-hat and ESS of each parameter, beside reference and prediction."""
    table, columns = subject.report.table, subject.report.table.columns
    shift = subject.predicted("shift")
    heads = ["mean", "sd", "5 %", "95 %", "R-hat", "bulk ESS", "tail ESS"]
    if "shift" in columns:
        heads += ["reference mean", "reference sd", "off by (sd)"]
    if shift is not None:
        heads.append("predicted off by (sd)")
    rows = []
    for row, name in enumerate(short_names(table)[:MOST_ROWS]):
        cells = [
            _units(columns[key][row], columns["sd"][row]) for key in ("mean", "sd", "5%", "95%")
        ]
        cells.append(_number(columns["r_hat"][row], 3))
        cells += [_number(columns[key][row], 0) for key in ("ess_bulk", "ess_tail")]
        if "shift" in columns:
            cells += [
                _units(columns[key][row], columns["sd"][row]) for key in ("ref_mean", "ref_sd")
            ]
            cells.append(_signed(columns["shift"][row]))
        if shift is not None:
            cells.append(_signed(shift[row]))
        rows.append((name, *cells))
    caption = "The parameters in numbers"
    if len(table) > MOST_ROWS:
        caption = f"The first {MOST_ROWS} of {len(table):,} parameters in numbers"
    return Table(caption, ("parameter", *heads), tuple(rows), folded=True)


def score_table(subject: Subject) -> Table | None:
    """The predictive scores."""
    rows = subject.report.score_rows()
    if not rows:
        return None
    beside = subject.report.reference_predictions is not None
    heads = ("score", "this run", "reference") if beside else ("score", "this run")
    cells = tuple(
        (label, f"{value:.4f}", *([MISSING if other is None else f"{other:.4f}"] if beside else []))
        for label, value, other in rows
    )
    return Table("Predictive scores on held-out rows", heads, cells)


def costs(subject: Subject) -> dict[str, str]:
    """Label and value of what a run has cost, and of what that bought."""
    record = subject.record
    ess = subject.report.verdict.ess
    warmup, rounds = record.get("warmup", 0), record.get("rounds", 0)
    found = {"draws kept": f"{subject.draws * subject.chains:,}"}
    done = record.get("iterations_run")
    if done is None:
        found["rounds"] = f"unfinished, of {warmup + rounds:,}"
    else:
        found["rounds"] = f"{done:,}, {warmup:,} of warm-up"
    for label, key in (
        ("communication rounds", "communication_rounds"),
        ("bytes sent", "bytes_sent"),
        ("gradients of a site", "gradients"),
        ("rows read", "row_gradients"),
    ):
        found[label] = f"{record[key]:,}" if key in record else MISSING
    seconds = record.get("seconds")
    found["seconds, compilation included"] = MISSING if seconds is None else f"{seconds:,.1f}"
    if math.isnan(ess) or done is None or ess <= 0:
        return found
    found["bytes an effective draw"] = f"{record['bytes_sent'] / ess:,.0f}"
    found["gradients an effective draw"] = f"{record['gradients'] / ess:,.1f}"
    if seconds:
        found["effective draws a second"] = f"{ess / seconds:,.1f}"
    return found


def cost_table(subject: Subject) -> Table:
    """What a run has cost."""
    return Table("What the run has cost", ("", "this run"), tuple(costs(subject).items()))


def side_by_side(
    subjects: Sequence[Subject], headlines: Sequence[str], judgements: Sequence[list[Judgement]]
) -> tuple[list[str], list[list[str]]]:
    """The columns and rows of the comparison of several runs."""
    rows = [["verdict", *headlines]]
    rows.append(["algorithm", *(str(s.record.get("algorithm", MISSING)) for s in subjects)])
    titles = list(dict.fromkeys(one.title for found in judgements for one in found))
    for title in titles:
        cells = [
            next((one.value for one in found if one.title == title), "") for found in judgements
        ]
        rows.append([title, *cells])
    scores = [{label: value for label, value, _ in s.report.score_rows()} for s in subjects]
    for label in dict.fromkeys(key for own in scores for key in own):
        rows.append([label, *(_number(own.get(label, math.nan), 4) for own in scores)])
    spent = [costs(subject) for subject in subjects]
    for label in dict.fromkeys(key for own in spent for key in own):
        rows.append([label, *(own.get(label, MISSING) for own in spent)])
    return ["", *(subject.name for subject in subjects)], rows


def _number(value: Any, decimals: int) -> str:
    return MISSING if value is None or value != value else f"{value:,.{decimals}f}"


def _signed(value: float) -> str:
    return MISSING if value != value else f"{value:+.3f}"


def _units(value: float, sd: float) -> str:
    """Three digits of the standard deviation."""
    if not np.isfinite(value):
        return MISSING
    if not (np.isfinite(sd) and 1e-4 <= sd < 1e6):
        return f"{value:.4g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(sd)))}f}"
