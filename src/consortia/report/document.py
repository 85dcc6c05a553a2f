"""A run's files: its figures, and the report of one run or of several, as a page or on paper."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from consortia.core.printable import printable
from consortia.core.version import __version__
from consortia.diagnostics.figures.canvas import COLOURS, check_extra, write_png
from consortia.diagnostics.summary import COMPARISON
from consortia.diagnostics.verdict import readings_in
from consortia.errors import StoreError, wrong
from consortia.models.regression.margins import MarginalEffects
from consortia.report import accuracy, effects, items, methods, network, paper, plots
from consortia.report.chapters import Chapter, Part
from consortia.report.examined import (
    Examined,
    examined,
    fit_table,
    proportional_table,
    sensitivity_table,
)
from consortia.report.participants import curves_plots, curves_table, participant_tables
from consortia.report.run_report import RunReport, load_run, short_names
from consortia.report.tables import (
    PAGE,
    comparison_table,
    contribution_table,
    cost_table,
    effect_table,
    margin_table,
    parameter_table,
    prior_table,
    score_table,
    settings_table,
    site_table,
)
from consortia.store.durable import replace_file
from consortia.store.results import MOMENTS

MOST_ROWS = 200
FORMATS = (".html", ".docx", ".pdf")
OUTCOME = "On the outcome itself"


def write_report(
    runs: str | os.PathLike[str] | RunReport | Sequence[str | os.PathLike[str] | RunReport],
    output: str | os.PathLike[str],
    *,
    code: bool = False,
) -> Path:
    """Write a report of one run, or of several side by side, as one file; return its path.

    The verdict comes first: convergence, number of draws, predicted and measured bias in plain
    words. Then effects, who contributed what, intervals, priors, traces, ranks, predictions, the
    network and how it behaved, the cost, the settings, and a methods paragraph. A page holds its
    figures and styles, loads nothing and runs nothing.

    Args:
        runs: run directories (finished or not), or what `consortia.report.run_report.report_of`
            makes of results in memory.
        output: the file, .html, .docx or .pdf; one that is there is written over.
        code: run the factories of the runs' studies, as `load_run` does.

    Raises:
        InputError: the file is of another kind.
        StoreError: a directory holds no run, or no draw yet; or the file cannot be written.
        MissingExtraError: Matplotlib, python-docx, or a browser that prints are not installed.
    """
    target = Path(output)
    if target.suffix not in FORMATS:
        raise wrong("output", f" is {str(target)!r}: a name must end in {', '.join(FORMATS)}.")
    given = [runs] if isinstance(runs, (str, os.PathLike, RunReport)) else list(runs)
    if not given:
        raise wrong("runs", " is empty: give at least one run directory.")
    check_extra()
    if target.suffix == ".docx":
        paper.check_extra()
    reports = _distinct([r if isinstance(r, RunReport) else load_run(r, code=code) for r in given])
    try:
        if target.suffix == ".docx":
            content = paper.docx(title_of(reports), [_chapter(report, "") for report in reports])
        elif target.suffix == ".pdf":
            content = paper.pdf(page(reports))
        else:
            content = page(reports).encode()
        replace_file(target, [content])
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error}.").at(file=str(target)) from error
    return target


def write_figures(report: RunReport, directory: Path) -> None:
    """Write posterior.png, and network.png of a gossip run that kept its agents.

    Raises:
        MissingExtraError: Matplotlib is not installed.
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
    chapters = [_chapter(report, f"run-{index}") for index, report in enumerate(reports)]
    comparison = None
    if len(reports) > 1:
        shown = plots.forest(reports)
        text = "The same numbers for every run; the runs share no parameter to compare."
        if shown:
            text = (
                "The same numbers for every run, then intervals of the parameters that all runs "
                "share. Runs of the same posterior should agree."
            )
        table = comparison_table(reports, [chapter.verdict for chapter in chapters])
        comparison = Part("comparison", "Side by side", text, shown, [table])
    counter = itertools.count()
    text = template.render(
        css=(folder / "report.css").read_text(encoding="utf-8"),
        colours=COLOURS,
        version=__version__,
        title=title_of(reports),
        runs=chapters,
        comparison=comparison,
        svg=lambda plot: plot.svg(f"figure-{next(counter)}"),
    )
    return printable(text, lines=True)


def title_of(reports: Sequence[RunReport]) -> str:
    """Return the heading of a report."""
    return reports[0].title if len(reports) == 1 else " · ".join(report.name for report in reports)


def _distinct(reports: Sequence[RunReport]) -> list[RunReport]:
    """Return the runs with a number behind names that occur twice."""
    names = [report.name for report in reports]
    return [
        replace(report, name=f"{report.name} ({names[: index + 1].count(report.name)})")
        if names.count(report.name) > 1
        else report
        for index, report in enumerate(reports)
    ]


def _chapter(report: RunReport, key: str) -> Chapter:
    sentence = effects.interpretation(report)  # by the levels of the margins, before others are
    parts = [
        replace(part, key=f"{key}-{part.key}")
        for part in _parts(report)
        if any(part.plots) or any(part.tables) or part.notes or part.source or part.quote
    ]
    return Chapter(key, report.name, _lead(report), sentence, report.verdict, parts)


def _lead(report: RunReport) -> str:
    record = report.record
    chains = f"{report.chains} chain{'s' if report.chains > 1 else ''}"
    sites, count = len(record.get("sites", ())), len(report.shown_table)
    where = f" over {sites} site{'s' if sites != 1 else ''}" if sites else ""
    return (
        f"{record.get('algorithm', 'a sampler')}{where}, {chains} of {report.draws:,} kept draws, "
        f"{count} parameter{'s' if count != 1 else ''}. It samples "
        f"{record.get('samples', 'a law that is not recorded')}."
    )


def _notes(report: RunReport) -> list[str]:
    notes = [note for note in report.shown_table.notes if note != COMPARISON]
    for group in {MOMENTS, f"unconstrained_{MOMENTS}"} & set(report.tree.children):
        count = report.tree[group].attrs["draws"]
        of = "" if group == MOMENTS else " of the coordinates that were sampled"
        notes.append(
            f"All numbers come from {report.draws:,} evenly spaced draws per chain; the group "
            f"`{group}` of the run has the means and variances of all {count:,}{of}."
        )
    return notes


def _predicted_lines(report: RunReport) -> list[str]:
    if report.prediction is None:
        return []
    if report.places is None:
        return list(report.prediction.lines())
    # the prediction is of what was sampled, which has other names, but for those of ready models
    if report.natural and "kind" not in report.settings.get("model", {}):
        return list(report.prediction.lines(()))
    names = dict(zip(report.places.tolist(), short_names(report.table), strict=True))
    return list(report.prediction.lines([names[index] for index in range(len(names))]))


def _participants(looked: Examined) -> list[Part]:
    """Return the parts on who was analysed; none of a run that has no description of it."""
    described, drawn = looked.participants, looked.curves
    if described is None:
        return []
    parts = [
        Part(
            "participants",
            "Who was analysed",
            "Rows that were read, left out and analysed, missing values, and characteristics of "
            "the analysed rows. All are counts that the sites made of their rows, and sums of "
            "these.",
            tables=participant_tables(described),
            notes=described.notes,
        )
    ]
    if drawn is not None:
        parts.append(
            Part(
                "follow-up",
                "Follow-up",
                "Estimated without a model, from all sites' counts of events and censored rows "
                "between agreed times.",
                curves_plots(drawn),
                [curves_table(drawn)],
            )
        )
    return parts


def _parts(report: RunReport) -> list[Part]:
    (margins, why), response = effects.margins(report), effects.response_of(report)
    shown = _show_effects(report, margins, why, response)  # by the levels of the margins
    looked = examined(report)  # which draws others
    return [
        *_participants(looked),
        *shown,
        *_show_sites(report),
        *_show_posterior(report, looked, response),
        *_show_fit(report, looked),
        *_show_draws(report),
        *_show_run(report),
        *_show_statements(report, looked, margins=margins is not None),
    ]


def _show_effects(
    report: RunReport, margins: MarginalEffects | None, why: str, response: effects.Response | None
) -> list[Part]:
    """Return the parts on effects: of the terms, on the outcome, and between the sites."""
    estimates, differing, parts = effects.estimates(report), effects.by_site(report), []
    if estimates is not None:
        text = (
            f"Each column's {estimates.effect} with the others held fixed: the median of the "
            f"posterior and the interval that holds it with probability {estimates.level:g}. "
            "These are associations: for a treatment that was not randomised they do not show "
            "cause and effect."
        )
        shown = [effects.effects_forest(estimates)], [effect_table(estimates, response)]
        parts.append(Part("effects", "The effects", text, *shown))
    if margins is not None:
        scale = effects.plainly(margins.scale, response)
        text = (
            f"How each column changes {scale}, averaged over the rows with all other columns "
            "unchanged: per unit of a number, and for a level against the reference; from "
            f"{margins.draws.shape[1]:,} draws."
        )
        tables = [margin_table(margins, scale, by_site=by_site) for by_site in (False, True)]
        parts.append(Part("outcome", OUTCOME, text, tables=tables, notes=margins.notes))
    elif why:
        parts.append(Part("outcome", OUTCOME, "", notes=[why]))
    if differing is not None:
        text = (
            "Whether the effect differs between sites. Shrinkage pulls a site's estimate towards "
            "the common one: at 0 it depends on the site's own rows only, at 1 on those of the "
            "other sites only. The standard deviation between sites is on the scale of the link."
        )
        shown = [effects.site_forest(differing)], [site_table(differing)]
        parts.append(Part("between", "Between the sites", text, *shown, differing.notes))
    return parts


def _show_sites(report: RunReport) -> list[Part]:
    """Return the parts on the rows of the sites, and on how their tables were read."""
    return [
        Part(
            "sites",
            "What each site contributed",
            "The number of rows at each site. The rows stayed there.",
            tables=[contribution_table(report)],
        ),
        Part(
            "reading",
            "How the tables were read",
            "How values and columns were changed or interpreted when the sites' tables were "
            "read. The files were not changed.",
            notes=readings_in(report.record),
        ),
    ]


def _show_posterior(
    report: RunReport, looked: Examined, response: effects.Response | None
) -> list[Part]:
    """Return the parts on the posterior and on the priors."""
    _, which = plots.chosen(report)
    comparison = effects.priors_beside(report)
    return [
        Part(
            "posterior",
            "The posterior",
            f"Estimates of the parameters and their uncertainty. Shown: {which}.",
            plots.forest([report]),
            [parameter_table(report, PAGE, MOST_ROWS)],
            _notes(report),
        ),
        Part(
            "priors",
            "Priors",
            "The assumptions before the data, and the knowledge after them. Where the two "
            f"agree, the data were not informative. {effects.moved_by_priors(comparison)}".rstrip(),
            [plots.priors(comparison)],
            [prior_table(comparison, {} if response is None else response.priors)],
        ),
        Part(
            "sensitivity",
            "Sensitivity to the priors",
            "How far each parameter would move, in its standard deviations, if the prior "
            "counted twice. Above 0.05 in the first column, a parameter depends on the prior.",
            tables=[sensitivity_table(looked)],
            notes=() if looked.sensitivity is None else looked.sensitivity.notes,
        ),
    ]


def _show_fit(report: RunReport, looked: Examined) -> list[Part]:
    """Return the parts on the fit of the model and the bias of the method."""
    return [
        Part(
            "fit",
            "Does the model reproduce the responses?",
            "Statistics of the observed responses and of responses simulated from the model; a "
            "p near 0 or 1 shows a misfit.",
            tables=[fit_table(looked)],
            notes=looked.not_made,
        ),
        Part(
            "proportional",
            "Are the hazards proportional?",
            "Whether the logarithm of a hazard ratio changes with that of time. Where p is near 0, "
            "the ratio is an average over the follow-up, and not that at each time.",
            tables=[proportional_table(looked)],
        ),
        Part(
            "bias",
            "Bias, predicted and measured",
            "The bias that the method's exact law predicts for this posterior, and the measured "
            "difference from the reference.",
            [plots.bias(report)],
            notes=_predicted_lines(report),
        ),
    ]


def _show_draws(report: RunReport) -> list[Part]:
    """Return the parts on the chains, and on what their draws predict."""
    dashed = "" if report.reference is None else " The dashed line is the reference's mean."
    return [
        Part(
            "traces",
            "Traces",
            "The draws of each chain in order, one colour per chain: they should look like one "
            f"band of noise. A chain that drifts or stays in one place has not converged.{dashed}",
            plots.traces(report),
        ),
        Part(
            "ranks",
            "Ranks",
            "The draws of all chains are ranked together. If the chains agree, each has its "
            "share of low and high ranks, and its line stays within the grey band in 19 of 20 "
            "cases. Draws are thinned first to remove autocorrelation.",
            plots.ranks(report),
        ),
        Part(
            "predictions",
            "Predictions",
            accuracy.shown_rows(report),
            [accuracy.predictions(report), accuracy.roc(report)],
            [score_table(report)],
        ),
    ]


def _show_run(report: RunReport) -> list[Part]:
    """Return the parts on the network, the cost and the settings."""
    return [
        Part(
            "network",
            "The network",
            network.words(report),
            [network.network(report), network.over_time(report)],
        ),
        Part(
            "cost",
            "Cost",
            "Totals over all chains; an effective draw carries as much information as an "
            "independent one.",
            tables=[cost_table(report)],
            notes=[f"Not done: {line}" for line in report.skipped],
        ),
        Part(
            "settings",
            "Settings",
            "All settings, including defaults.",
            tables=[settings_table(report)],
            source=report.study,
        ),
    ]


def _show_statements(report: RunReport, looked: Examined, *, margins: bool) -> list[Part]:
    """Return the items that journals ask for, and a methods paragraph."""
    return [
        Part(
            "checklist",
            "Reporting checklists",
            "STROBE items 1 to 22 for observational studies and the ROBUST items for Bayesian "
            "analyses: those that this report covers wholly or in part, those that do not "
            "apply, and those left to the authors.",
            tables=[items.checklist(items.items(report, looked, margins=margins))],
        ),
        Part(
            "methods",
            "A methods paragraph",
            "Copy this into a paper and edit it there: one click selects it.",
            quote=methods.paragraph(report),
            numbered=methods.references(report),
        ),
    ]
