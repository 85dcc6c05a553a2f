"""The tables of a report: rows of text, for the terminal, the files and the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.core.printable import printable
from consortia.diagnostics.summary import MISSING, Summary, aligned
from consortia.diagnostics.verdict import Verdict
from consortia.models.regression.estimates import Estimates
from consortia.models.regression.heterogeneity import SiteEffects
from consortia.models.regression.margins import MarginalEffects
from consortia.models.regression.participants import RECURRENT
from consortia.report.effects import PriorBeside, Response, number, numbers, response_of
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
    """Cells as text; the first column names the row."""

    caption: str  # what it is
    columns: tuple[str, ...]  # headings
    rows: tuple[tuple[str, ...], ...]  # cells
    folded: bool = False  # a page shows it when it is opened
    worded: bool = False  # its cells are sentences, which begin at the left


def parameter_table(report: RunReport, columns: Sequence[str], most: int) -> Table:
    """Return these columns of the summary, of the first ``most`` parameters."""
    table = report.shown_table
    known = dict(table.columns)
    known["ess"] = np.minimum(known["ess_bulk"], known["ess_tail"])
    shift = report.predicted("shift")
    if shift is not None and not report.natural:  # it is of the sampled parameters
        known["predicted"] = shift
    shown = [name for name in columns if name in known]
    rows = Summary(tuple(short_names(table)), known).cells(shown, most)
    count = len(table)
    first = "The parameters" if count <= most else f"The first {most} of {count:,} parameters"
    heads = tuple(HEADS.get(name, name) for name in shown)
    return Table(f"{first} in numbers", ("parameter", *heads), tuple(map(tuple, rows)))


def effect_table(shown: Estimates, response: Response | None = None) -> Table:
    """Return effects with their intervals, and how sure their direction is.

    Levels of the ``response`` are named where others are compared with them.
    """
    low, high = (f"{50 * (1 + sign * shown.level):.4g} %" for sign in (-1, 1))
    ratio = shown.effect != "difference"
    rows = tuple(
        (_beside_reference(name, response), *numbers(values, shown), share_of(above))
        for name, above, *values in zip(
            shown.names, shown.above, shown.median, shown.lower, shown.upper, strict=True
        )
    )
    heads = ("", shown.effect, low, high, f"probability above {1 if ratio else 0}")
    return Table(f"{shown.effect.capitalize()}s, median and interval", heads, rows)


def _beside_reference(name: str, response: Response | None) -> str:
    reference = "" if response is None else response.against(name)
    return f"{name}, against {reference}" if reference else name


def site_table(site_effects: SiteEffects) -> Table:
    """Show the differences between sites: each site's effect, the common one, and the spread."""
    low, high = (f"{50 * (1 + sign * site_effects.level):.4g} %" for sign in (-1, 1))
    rows = tuple(
        (
            f"{row.term}: {row.name}",
            *numbers((row.median, row.lower, row.upper), site_effects),
            MISSING if math.isnan(row.above) else share_of(row.above),
            MISSING if math.isnan(row.shrinkage) else number(row.shrinkage),
        )
        for row in site_effects.rows
    )
    bound = "0" if site_effects.effect == "difference" else "1"
    heads = ("", site_effects.effect, low, high, f"probability above {bound}", "shrinkage")
    return Table("By site", heads, rows)


def margin_table(margins: MarginalEffects, scale: str, *, by_site: bool) -> Table | None:
    """Return effects on the mean response over all rows, or at each of several sites.

    ``scale`` is that of the effects in words.
    """
    low, high = (f"{50 * (1 + sign * margins.level):.4g} %" for sign in (-1, 1))
    lines = margins.over_all.lines
    if by_site:
        lines = tuple(effect for rows in margins.by_site.values() for effect in rows)
    if not lines:
        return None
    rows = tuple(
        (
            f"{effect.key}: {effect.site}" if by_site else str(effect.key),
            *map(number, (effect.mean, effect.median, effect.lower, effect.upper)),
            share_of(effect.above),
        )
        for effect in lines
    )
    heads = ("", "mean", "median", low, high, "probability above 0")
    over = "at each site" if by_site else "over the rows of all sites"
    return Table(f"Change of {scale}, {over}", heads, rows, folded=by_site)


def share_of(value: float) -> str:
    """Return a probability of so many draws: never certain."""
    return "> 0.999" if value > 0.999 else "< 0.001" if value < 0.001 else f"{value:.3f}"


def contribution_table(report: RunReport) -> Table | None:
    """Return the rows of each site, and its events where the rows are available."""
    names, rows = report.record.get("sites"), report.record.get("site_rows")
    if not names or not rows or len(names) != len(rows):
        return None
    described = report.fitted_settings.get("participants", {}).get("sites", {})
    persons = [described.get(name, {}).get("persons") for name in names]
    counted, unit = (rows, "row") if None in persons else (persons, "person")
    columns = {"site": [*map(str, names), "all"], "rows": _with_total(rows)}
    columns[f"{unit}s"] = _with_total(counted)
    shares = [count / sum(counted) for count in (*counted, sum(counted))]
    columns[f"share of the {unit}s"] = [f"{100 * share:.0f} %" for share in shares]
    if values := _of_rows(report, "trials"):
        trials, events = (_totals(report, v) for v in (values, _of_rows(report, "y")))
        columns |= {"trials": _with_total(trials), "events": _with_total(events)}
        columns["events per trial"] = _rates(events, trials)
    response = response_of(report)
    if response is not None and response.effect is not None:
        values = _of_rows(report, "event" if response.name.startswith("Surv(") else "y")
        if values and all(np.isin(of_site, (0, 1)).all() for of_site in values):
            events = _totals(report, values)
            columns |= {"events": _with_total(events)}
            again = any(RECURRENT in of_site.get("levels", {}) for of_site in described.values())
            columns[f"events per {unit}"] = _rates(events, counted, "{:.2f}" if again else PERCENT)
    cells = tuple(zip(*columns.values(), strict=True))
    return Table("What each site contributed", tuple(columns), cells)


def _with_total(counts: Sequence[int]) -> list[str]:
    return [f"{count:,}" for count in (*counts, sum(counts))]


PERCENT = "{:.1%}"


def _rates(events: Sequence[int], of: Sequence[int], text: str = PERCENT) -> list[str]:
    """Return the rate of events at each site and over all, as text."""
    pairs = zip((*events, sum(events)), (*of, sum(of)), strict=True)
    return [text.format(count / out_of).replace("%", " %") for count, out_of in pairs]


def _of_rows(report: RunReport, name: str) -> list[np.ndarray]:
    """Return a column of each site's rows; nothing where rows are elsewhere, or lack it."""
    if report.sites is None or report.sites.elsewhere:
        return []
    shards = report.sites.shards
    there = all(isinstance(shard, Mapping) and name in shard for shard in shards)
    return [np.asarray(shard[name], float) for shard in shards] if there else []


def _totals(report: RunReport, columns: Sequence[np.ndarray]) -> list[int]:
    """Return the sum of a column over the persons of each site."""
    of_sample = "weights_are" in report.fitted_settings
    weights = [] if of_sample else _of_rows(report, "weight")
    weights = weights or [np.ones(len(column)) for column in columns]
    return [round(float(w @ column)) for w, column in zip(weights, columns, strict=True)]


def prior_table(parameters: Sequence[PriorBeside], priors: Mapping[str, str]) -> Table | None:
    """Return each prior in words and its interval beside the posterior, and what it moves."""
    if not parameters and not priors:
        return None
    shown = {row.name for row in parameters}
    rows = tuple(
        (
            row.name,
            row.words,
            *(f"{number(at[0])} to {number(at[2])}" for at in (row.prior, row.posterior)),
            f"{row.without:+z.2f}" if math.isfinite(row.without) else MISSING,
        )
        for row in parameters
    )
    rows += tuple(
        (name, words, *[MISSING] * 3) for name, words in priors.items() if name not in shown
    )
    intervals = ("95 % of the prior", "95 % of the posterior")
    heads = ("parameter", "prior", *intervals, "moves without (sd)")
    return Table("Priors and posteriors, on the scale of the link", heads, rows)


def settings_table(report: RunReport) -> Table | None:
    """Return model, data and study as they were set, defaults included."""
    if not report.settings:
        return None
    rows: list[tuple[str, str]] = []

    def walk(key: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                walk(f"{key}.{name}" if key else str(name), inner)
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            words = {"": "none", "None": "none", "True": "yes", "False": "no"}
            rows.append((key, words.get(shown, shown)))

    apart = ("regression", "participants")
    walk("", {key: value for key, value in report.settings.items() if key not in apart})
    for name in ("engine", "seed", "x64", "versions"):
        if name in report.record:
            walk(name, report.record[name])
    return Table("Model, data and study", ("", "set to"), tuple(rows))


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
    costs = {"draws kept": f"{report.draws * report.chains:,}"}
    if done is None:
        costs["rounds"] = f"unfinished, of {rounds:,} after {warmup:,} of warm-up"
    else:
        own_rounds = max(done - warmup, 0)
        costs["rounds"] = f"{own_rounds:,} after {warmup:,} of warm-up ({record['stopped']})"
    for label, key in (
        ("messages each way", "communication_rounds"),
        ("bytes sent, up and down", "bytes_sent"),
        ("gradients of a site", "gradients"),
        ("rows read", "row_gradients"),
    ):
        costs[label] = f"{record[key]:,}" if key in record else MISSING
    if "messages_before" in record:
        costs["messages before them, to agree"] = f"{record['messages_before']:,}"
    seconds = record.get("seconds")
    costs["seconds, compilation included"] = MISSING if seconds is None else f"{seconds:,.1f}"
    if done is not None and ess > 0:
        costs["bytes per effective draw"] = f"{record['bytes_sent'] / ess:,.0f}"
        costs["gradients per effective draw"] = f"{record['gradients'] / ess:,.1f}"
        if seconds:
            costs["effective draws per second"] = f"{ess / seconds:,.1f}"
    if "site_noise_inflation" in record:
        costs["different sites, one at a time"] = (
            f"widen the variance by a predicted {max(record['site_noise_inflation']):.2%} in the "
            "worst coordinate (less if they take turns)"
        )
    if reference is not None and "gradients" in reference:
        costs["reference"] = (
            f"{reference['gradients']:,} gradients of the pooled data, "
            f"{reference['seconds']:.1f} seconds"
        )
        if "divergences" in reference:
            costs["reference"] += f", {reference['divergences']} divergences"
    return Table("Cost of the run", ("", "this run"), tuple(costs.items()))


def comparison_table(reports: Sequence[RunReport], verdicts: Sequence[Verdict]) -> Table:
    """Return verdict, checks, scores and cost of several runs side by side."""
    columns: list[dict[str, str]] = []
    for report, verdict in zip(reports, verdicts, strict=True):
        cells = {"verdict": verdict.headline}
        cells["algorithm"] = str(
            report.record.get("title", report.record.get("algorithm", MISSING))
        )
        cells |= {check.title: check.value for check in verdict.checks}
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
    parts += [f"skipped: {line}" for line in report.skipped]
    return printable("\n".join(parts).rstrip(), lines=True) + "\n"
