"""The items that journals ask a report for: STROBE 1 to 22, and ROBUST of Bayesian analyses.

Each is answered from the record of the run and the available data, wholly or in part, or named as
not applicable or as left for the authors, with the reason. What nobody looked at is never shown as
answered.

Source: von Elm, Altman, Egger, Pocock, Gøtzsche, Vandenbroucke, "The Strengthening the Reporting of
Observational Studies in Epidemiology (STROBE) statement" (2007); Sung, Hayden, Greenberg, Koval,
Feagan, Donner, "Seven items were identified for inclusion when reporting a Bayesian analysis of a
clinical study" (2005).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from consortia.core.printable import printable
from consortia.report.effects import LEVEL, SURE, Response, response_of
from consortia.report.examined import Examined
from consortia.report.run_report import RunReport
from consortia.report.tables import Table, fitted_settings

State = Literal["reported", "in part", "for the authors", "not applicable"]

AUTHORS: State = "for the authors"

POLICIES = {
    "refuse": "no row with a missing value was accepted",
    "complete": "rows with a missing value were left out",
    "indicator": "rows with a missing covariate were kept: a missing number is replaced by the "
    "mean of all rows, with an indicator column; a missing level is a separate level",
    "impute": "missing values were multiply imputed at each site, and the posteriors pooled",
}
"""Treatments of missing values, by the name of the policy."""

WHOSE = {
    "ATE": "all patients",
    "ATT": "the treated",
    "overlap": "patients who might have had either treatment",
}
"""Populations of an effect, by estimand."""


class Item(NamedTuple):
    """One item of a checklist."""

    key: str  # its number, such as "STROBE 12a"
    title: str  # the question of the item
    state: State  # whether the report answers it
    answer: str  # in words, or the reason why there is none


def items(report: RunReport, looked: Examined, *, margins: bool) -> tuple[Item, ...]:
    """Return all items in order; none of a run that is not a regression.

    Args:
        report: of the run.
        looked: what the report shows beside its effects.
        margins: effects on the mean response are shown.
    """
    response = response_of(report)
    if response is None:
        return ()
    found = fitted_settings(report)
    return (
        *_of_design(report, response, found),
        *_of_methods(report, response, found, looked),
        *_of_participants(response, found, looked),
        *_of_results(response, found, margins=margins),
        *_of_discussion(found),
        *_of_bayes(report, response, looked),
    )


def quadrature_in(report: RunReport) -> Mapping[str, Any] | None:
    """Read the report on the rule of quadrature inside the model; None without one."""
    kept = report.record.get("quadrature")
    return kept if isinstance(kept, Mapping) and "nodes" in kept else None


def checklist(found: tuple[Item, ...]) -> Table | None:
    """Return the items as a table; None without any."""
    if not found:
        return None
    rows = tuple((f"{one.key} {one.title}", one.state, printable(one.answer)) for one in found)
    heads = ("item", "", "in this report")
    return Table("STROBE 1 to 22 and ROBUST", heads, rows, worded=True)


# --- the items -----------------------------------------------------------------------------------


def _of_design(report: RunReport, response: Response, found: Mapping[str, Any]) -> list[Item]:
    """Return STROBE 1 to 11: what the authors write before the analysis."""
    sites, keep = report.record.get("sites") or (), found.get("keep")
    where = f"{len(sites)} sites ({', '.join(map(str, sites))})" if sites else "the sites"
    terms = str(found.get("formula", "")).partition("~")[2].strip()
    authors = [
        ("1", "title and abstract", "the study's design in the title, a summary of the findings"),
        ("2", "background", "the rationale"),
        ("3", "objectives", "the questions and hypotheses, stated before the data"),
        ("4", "study design", "a cohort, a case-control or a cross-sectional study"),
    ]
    return [
        *(Item(f"STROBE {key}", title, AUTHORS, answer) for key, title, answer in authors),
        Item(
            "STROBE 5", "setting", "in part", f"{where}; dates and places are left to the authors"
        ),
        Item(
            "STROBE 6",
            "participants",
            "in part" if keep else AUTHORS,
            f"rows with {keep}; selection into the files is left to the authors"
            if keep
            else "eligibility, and selection into the files",
        ),
        Item(
            "STROBE 7",
            "variables",
            "in part",
            f"the response {response.name}{f', the columns {terms}' if terms else ''}; "
            "definitions are left to the authors",
        ),
        Item("STROBE 8", "data sources and measurement", AUTHORS, "how each column was measured"),
        Item(
            "STROBE 9",
            "bias",
            AUTHORS,
            "bias of the study; this report covers only bias of the computation",
        ),
        Item(
            "STROBE 10",
            "study size",
            "in part",
            "rows of each site; the reason for this size is left to the authors",
        ),
        Item(
            "STROBE 11",
            "quantitative variables",
            "in part",
            "how they enter the formula; the reasons are left to the authors",
        ),
    ]


def weighting(report: RunReport) -> str:
    """Return the origin of weights by the probability of treatment; "" of other runs."""
    settings = report.record.get("settings")
    table = settings.get("propensity") if isinstance(settings, Mapping) else None
    if not isinstance(table, Mapping) or "weights" not in table:
        return ""
    of_all = table.get("estimand") == "ATE"
    text = f"weights for the effect in {WHOSE.get(str(table.get('estimand')), 'some patients')}"
    text += f", from the probability of treatment of the first run, {table.get('formula')}"
    text += ", stabilised" if of_all and table.get("stabilise") else ""
    trim = table.get("trim", 0)
    return text + (f", probabilities kept from {trim:g} to {1 - trim:g}" if trim else "")


def _of_methods(
    report: RunReport, response: Response, found: Mapping[str, Any], looked: Examined
) -> list[Item]:
    """Return STROBE 12: statistical methods."""
    formula = str(found.get("formula", response.name))
    terms = formula.partition("~")[2]
    crossed, differs = ":" in terms or "*" in terms, re.search(r"\|\|?\s*site\s*\)", terms)
    policy = found.get("missing")
    time = response.name.startswith("Surv(")
    analyses = [
        *(["prior sensitivity"] if looked.sensitivity is not None else []),
        *(["the run compared with a reference"] if report.reference is not None else []),
        *(["the draws compared with the sites' gradients"] if report.stein is not None else []),
    ]
    return [
        Item(
            "STROBE 12a",
            "statistical methods, control for confounding",
            "reported",
            f"{response.family or 'linear'} regression, {formula}; adjusted for all other terms"
            + (
                f"; {weighting(report) or 'weights of a sample'}, widths by a sandwich"
                if "weights_are" in found
                else ""
            )
            + (
                f"; cluster-robust standard errors, by {found['cluster']}"
                if "cluster" in found
                else ""
            ),
        ),
        Item(
            "STROBE 12b",
            "subgroups and interactions",
            "in part" if crossed else "reported" if differs else "not applicable",
            "the interactions in the formula; effects within subgroups are not shown"
            if crossed
            else "levels and effects by site, in 'Between the sites'"
            if differs
            else "the formula has no interactions",
        ),
        Item(
            "STROBE 12c",
            "missing data",
            "reported" if policy in POLICIES else AUTHORS,
            POLICIES.get(str(policy), "the record does not say how they were handled"),
        ),
        Item(
            "STROBE 12d",
            "loss to follow-up",
            "in part" if time else "not applicable",
            "follow-up that ends without an event is censored, assumed independent of the "
            "event; reasons for the end are left to the authors"
            if time
            else "the response is not a time to an event",
        ),
        Item(
            "STROBE 12e",
            "sensitivity analyses",
            "reported" if analyses else AUTHORS,
            ", ".join(analyses) if analyses else "this report has none",
        ),
    ]


def _of_participants(response: Response, found: Mapping[str, Any], looked: Examined) -> list[Item]:
    """Return STROBE 13 to 15: participants, descriptive and outcome data."""
    none = (
        "the sites were not queried for this: give [model.describe], or write the report where "
        "all rows are available"
    )
    there = looked.participants is not None
    time = response.name.startswith("Surv(")
    arguments = response.name.removeprefix("Surv(").split(",")
    intervals = time and len(arguments) > 2 and "persons" not in found
    means = [] if looked.participants is None else looked.participants.lines
    balanced = looked.participants is not None and bool(looked.participants.balance)
    times = {name.strip() for name in arguments[:-1]}
    timed = any(line.variable in times and not line.level for line in means)

    def item(key: str, title: str, state: State, answer: str) -> Item:
        return Item(key, title, state if there else AUTHORS, answer if there else none)

    ended = (
        "mean follow-up time in 'Who was analysed'"
        if timed
        else "the mean follow-up time is withheld or missing"
    )
    if intervals:
        ended = "no column names the person of each interval: give persons"
    if looked.curves is not None:
        ended += ", numbers censored by the agreed times in 'Follow-up'"
    return [
        item("STROBE 13a", "numbers at each stage", "in part", "'Who was analysed': read, left "
             "out, analysed; stages before the files were made are left to the authors"),
        item("STROBE 13b", "reasons for exclusion", "reported", "missing values, by column; and "
             "rows that the study does not keep"),
        item("STROBE 13c", "flow diagram", "in part", "as a table, by site and overall"),
        item("STROBE 14a", "characteristics of participants", "reported", "Table 1"
             + (", and 'Balance' of treated and other rows" if balanced else "")),
        item("STROBE 14b", "missing data by variable", "reported", "'Who was analysed'"),
        Item("STROBE 14c", "follow-up time", "not applicable", "the response is not a time to an "
             "event") if not time else
        item("STROBE 14c", "follow-up time", "in part" if intervals or not timed else "reported",
             ended),
        item("STROBE 15", "outcome events or summary", "reported", "in Table 1, by site"),
    ]  # fmt: skip


def _of_results(response: Response, found: Mapping[str, Any], *, margins: bool) -> list[Item]:
    """Return STROBE 16: main results."""
    terms = str(found.get("formula", "")).partition("~")[2]
    cut = re.findall(r"I\(\s*(.+?\s*[<>]=?\s*[\d.]+)\s*\)", terms)
    relative = response.effect is not None
    return [
        Item(
            "STROBE 16a",
            "unadjusted and adjusted estimates, with precision",
            "in part",
            f"adjusted effects with {100 * LEVEL:g} % intervals; unadjusted ones were not computed",
        ),
        Item(
            "STROBE 16b",
            "boundaries of categories",
            "reported" if cut else "not applicable",
            f"{', '.join(cut)}, in the formula" if cut else "the formula categorises no number",
        ),
        Item(
            "STROBE 16c",
            "absolute risk besides relative risk",
            "not applicable" if not relative else "reported" if margins else AUTHORS,
            "effects are differences already"
            if not relative
            else "'On the outcome itself'"
            if margins
            else "not averaged over rows: the rows are elsewhere, or the family has no mean",
        ),
    ]


def _of_discussion(found: Mapping[str, Any]) -> list[Item]:
    """Return STROBE 17 to 22: what the authors write after the analysis."""
    differs = re.search(r"\|\|?\s*site\s*\)", str(found.get("formula", "")))
    return [
        Item("STROBE 17", "other analyses", "in part", "see the headings of this report"),
        Item("STROBE 18", "key results", "in part", "the first sentences of this report"),
        Item(
            "STROBE 19",
            "limitations",
            AUTHORS,
            "limitations of the design and of the data",
        ),
        Item("STROBE 20", "interpretation", AUTHORS, "this report makes no causal claim"),
        Item(
            "STROBE 21",
            "generalisability",
            "in part" if differs else AUTHORS,
            "the prediction for a new site, in 'Between the sites'"
            if differs
            else "the population to which the results apply",
        ),
        Item("STROBE 22", "funding", AUTHORS, "sources of funding and the funders' role"),
    ]


def _of_bayes(report: RunReport, response: Response, looked: Examined) -> list[Item]:
    """Return the seven items of ROBUST, and what a reader needs to repeat the run."""
    priors = response.priors
    record = report.record
    checks = {"posterior predictive checks": looked.check, "hazards with time": looked.proportional}
    fit = ", ".join(text for text, result in checks.items() if result is not None)
    exact = [f"seed {record['seed']}"] if "seed" in record else []
    kept = quadrature_in(report)
    if kept is not None:
        exact.append(f"quadrature with {kept['nodes']} nodes")
    return [
        Item(
            "ROBUST 1",
            "priors specified",
            "reported" if priors else AUTHORS,
            f"of all {len(priors)} parameters, in the methods paragraph"
            if priors
            else "the record contains none",
        ),
        Item(
            "ROBUST 2",
            "priors justified",
            AUTHORS,
            "default priors are wide relative to the spread of the columns",
        ),
        Item(
            "ROBUST 3",
            "sensitivity to the priors",
            AUTHORS if looked.sensitivity is None else "reported",
            "not computed here" if looked.sensitivity is None else "'Sensitivity to the priors'",
        ),
        Item("ROBUST 4", "statistical model", "reported", "formula, family and link"),
        Item(
            "ROBUST 5",
            "computation",
            "reported",
            ", ".join(
                [
                    f"{record.get('algorithm', 'a sampler')} of consortia",
                    f"{report.chains} chains of {report.draws:,} draws",
                    *exact,
                ]
            ),
        ),
        Item("ROBUST 6", "central tendency", "reported", "posterior medians"),
        Item("ROBUST 7", "interval", "reported", f"central {100 * LEVEL:g} % intervals"),
        Item(
            "decision rule",
            "when a direction is stated",
            "reported",
            f"if its posterior probability is at least {SURE:g} and the verdict is not bad",
        ),
        Item(
            "fit",
            "does the model reproduce the responses",
            "reported" if fit else AUTHORS,
            fit or "no check of the fit was made here",
        ),
    ]
