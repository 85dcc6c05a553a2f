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
from consortia.models.regression.participants import FOLLOW_UP
from consortia.report.effects import LEVEL, SURE, Response, response_of
from consortia.report.examined import Examined
from consortia.report.run_report import RunReport
from consortia.report.tables import Table

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


BY_SITE = re.compile(r"\|\|?\s*site\s*\)")
"""A group term of the sites."""

NO_TIME = "the response is not a time to an event"
DESCRIBED = [f"STROBE {key}" for key in ("13a", "13b", "13c", "14a", "14b", "14c", "15")]
"""Items that the sites' descriptions of their participants answer."""

TITLES = {
    "STROBE 1": "title and abstract",
    "STROBE 2": "background",
    "STROBE 3": "objectives",
    "STROBE 4": "study design",
    "STROBE 5": "setting",
    "STROBE 6": "participants",
    "STROBE 7": "variables",
    "STROBE 8": "data sources and measurement",
    "STROBE 9": "bias",
    "STROBE 10": "study size",
    "STROBE 11": "quantitative variables",
    "STROBE 12a": "statistical methods, control for confounding",
    "STROBE 12b": "subgroups and interactions",
    "STROBE 12c": "missing data",
    "STROBE 12d": "loss to follow-up",
    "STROBE 12e": "sensitivity analyses",
    "STROBE 13a": "numbers at each stage",
    "STROBE 13b": "reasons for exclusion",
    "STROBE 13c": "flow diagram",
    "STROBE 14a": "characteristics of participants",
    "STROBE 14b": "missing data by variable",
    "STROBE 14c": "follow-up time",
    "STROBE 15": "outcome events or summary",
    "STROBE 16a": "unadjusted and adjusted estimates, with precision",
    "STROBE 16b": "boundaries of categories",
    "STROBE 16c": "absolute risk besides relative risk",
    "STROBE 17": "other analyses",
    "STROBE 18": "key results",
    "STROBE 19": "limitations",
    "STROBE 20": "interpretation",
    "STROBE 21": "generalisability",
    "STROBE 22": "funding",
    "ROBUST 1": "priors specified",
    "ROBUST 2": "priors justified",
    "ROBUST 3": "sensitivity to the priors",
    "ROBUST 4": "statistical model",
    "ROBUST 5": "computation",
    "ROBUST 6": "central tendency",
    "ROBUST 7": "interval",
    "decision rule": "when a direction is stated",
    "fit": "does the model reproduce the responses",
}
"""The question of each item, in order."""

ALWAYS: dict[State, dict[str, str]] = {
    "for the authors": {
        "STROBE 1": "the study's design in the title, a summary of the findings",
        "STROBE 2": "the rationale",
        "STROBE 3": "the questions and hypotheses, stated before the data",
        "STROBE 4": "a cohort, a case-control or a cross-sectional study",
        "STROBE 8": "how each column was measured",
        "STROBE 9": "bias of the study; this report covers only bias of the computation",
        "STROBE 19": "limitations of the design and of the data",
        "STROBE 20": "this report makes no causal claim",
        "STROBE 22": "sources of funding and the funders' role",
        "ROBUST 2": "default priors are wide relative to the spread of the columns",
    },
    "in part": {
        "STROBE 10": "rows of each site; the reason for this size is left to the authors",
        "STROBE 11": "how they enter the formula; the reasons are left to the authors",
        "STROBE 16a": f"adjusted effects with {100 * LEVEL:g} % intervals; unadjusted ones were "
        "not computed",
        "STROBE 17": "see the headings of this report",
        "STROBE 18": "the first sentences of this report",
    },
    "reported": {
        "ROBUST 4": "formula, family and link",
        "ROBUST 6": "posterior medians",
        "ROBUST 7": f"central {100 * LEVEL:g} % intervals",
        "decision rule": f"if its posterior probability is at least {SURE:g} and the verdict is "
        "not bad",
    },
}
"""Answers that every report has, by their state."""

Answer = tuple[State, str]
"""The state of an item, and the answer or the reason why there is none."""


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
    settings = report.fitted_settings
    answers: dict[str, Answer] = {
        key: (state, text) for state, texts in ALWAYS.items() for key, text in texts.items()
    }
    answers |= _of_design(report, response, settings)
    answers |= _of_methods(report, response, settings, looked)
    answers |= _of_participants(response, settings, looked)
    answers |= _of_results(response, settings, margins=margins)
    answers |= _of_bayes(report, response, looked)
    return tuple(Item(key, title, *answers[key]) for key, title in TITLES.items())


def quadrature_in(report: RunReport) -> Mapping[str, Any] | None:
    """Read the report on the rule of quadrature inside the model; None where none was needed."""
    kept = report.record.get("quadrature")
    used = isinstance(kept, Mapping) and "nodes" in kept and kept.get("error") != 0
    return kept if used else None


def checklist(items: tuple[Item, ...]) -> Table | None:
    """Return the items as a table; None without any."""
    if not items:
        return None
    rows = tuple((f"{item.key} {item.title}", item.state, printable(item.answer)) for item in items)
    heads = ("item", "", "in this report")
    return Table("STROBE 1 to 22 and ROBUST", heads, rows, worded=True)


# --- the items -----------------------------------------------------------------------------------


def _of_design(
    report: RunReport, response: Response, settings: Mapping[str, Any]
) -> dict[str, Answer]:
    """Answer what STROBE 5 to 7 ask of setting, participants and variables."""
    sites, keep = report.record.get("sites") or (), settings.get("keep")
    where = f"{len(sites)} sites ({', '.join(map(str, sites))})" if sites else "the sites"
    terms = str(settings.get("formula", "")).partition("~")[2].strip()
    used = f"the response {response.name}{f', the columns {terms}' if terms else ''}"
    participants: Answer = AUTHORS, "eligibility, and selection into the files"
    if keep:
        text = f"rows with {keep}; selection into the files is left to the authors"
        participants = "in part", text
    return {
        "STROBE 5": ("in part", f"{where}; dates and places are left to the authors"),
        "STROBE 6": participants,
        "STROBE 7": ("in part", f"{used}; definitions are left to the authors"),
    }


def weighting(report: RunReport) -> str:
    """Return the origin of weights by the probability of treatment; "" of other runs."""
    table = report.settings.get("propensity")
    if not isinstance(table, Mapping) or "weights" not in table:
        return ""
    of_all = table.get("estimand") == "ATE"
    text = f"weights for the effect in {WHOSE.get(str(table.get('estimand')), 'some patients')}"
    text += f", from the probability of treatment of the first run, {table.get('formula')}"
    text += ", stabilised" if of_all and table.get("stabilise") else ""
    trim = table.get("trim", 0)
    return text + (f", probabilities kept from {trim:g} to {1 - trim:g}" if trim else "")


def _of_methods(
    report: RunReport, response: Response, settings: Mapping[str, Any], looked: Examined
) -> dict[str, Answer]:
    """Answer what STROBE 12 asks of statistical methods."""
    formula = str(settings.get("formula", response.name))
    terms, policy = formula.partition("~")[2], str(settings.get("missing"))
    methods = f"{response.regression}, {formula}; adjusted for all other terms"
    if "weights_are" in settings:
        methods += f"; {weighting(report) or 'weights of a sample'}, widths by a sandwich"
    if "cluster" in settings:
        methods += f"; cluster-robust standard errors, by {settings['cluster']}"
    subgroups: Answer = "not applicable", "the formula has no interactions"
    if ":" in terms or "*" in terms:
        text = "the interactions in the formula; effects within subgroups are not shown"
        subgroups = "in part", text
    elif BY_SITE.search(terms):
        subgroups = "reported", "levels and effects by site, in 'Between the sites'"
    missing: Answer = AUTHORS, "the record does not say how they were handled"
    if policy in POLICIES:
        missing = "reported", POLICIES[policy]
    lost: Answer = "not applicable", NO_TIME
    if _is_time(response):
        lost = (
            "in part",
            (
                "follow-up that ends without an event is censored, assumed independent of the "
                "event; reasons for the end are left to the authors"
            ),
        )
    analyses = [
        *(["prior sensitivity"] if looked.sensitivity is not None else []),
        *(["the run compared with a reference"] if report.reference is not None else []),
        *(["the draws compared with the sites' gradients"] if report.stein is not None else []),
    ]
    sensitivity: Answer = AUTHORS, "this report has none"
    if analyses:
        sensitivity = "reported", ", ".join(analyses)
    return {
        "STROBE 12a": ("reported", methods),
        "STROBE 12b": subgroups,
        "STROBE 12c": missing,
        "STROBE 12d": lost,
        "STROBE 12e": sensitivity,
    }


def _is_time(response: Response) -> bool:
    return response.name.startswith("Surv(")


def _of_participants(
    response: Response, settings: Mapping[str, Any], looked: Examined
) -> dict[str, Answer]:
    """Answer what STROBE 13 to 15 ask of participants, descriptive and outcome data."""
    time, described = _is_time(response), looked.participants
    if described is None:
        none = (
            "the sites were not queried for this: give [model.describe], or write the report where "
            "all rows are available"
        )
        answers: dict[str, Answer] = dict.fromkeys(DESCRIBED, (AUTHORS, none))
        return answers if time else answers | {"STROBE 14c": ("not applicable", NO_TIME)}
    followed: Answer = "not applicable", NO_TIME
    if time:
        timed = any(line.variable.startswith(f"{FOLLOW_UP} (") for line in described.lines)
        intervals = response.name.count(",") > 1 and "persons" not in settings
        text = "the mean follow-up time is withheld or missing"
        if intervals:
            text = "no column names the person of each interval: give persons"
        elif timed:
            text = "mean follow-up time in 'Who was analysed'"
        if looked.curves is not None:
            text += ", numbers censored by the agreed times in 'Follow-up'"
        followed = "in part" if intervals or not timed else "reported", text
    stages = (
        "'Who was analysed': read, left out, analysed; stages before the files were made are left "
        "to the authors"
    )
    reasons = "missing values, by column; and rows that the study does not keep"
    balance = ", and 'Balance' of treated and other rows" if described.balance else ""
    return {
        "STROBE 13a": ("in part", stages),
        "STROBE 13b": ("reported", reasons),
        "STROBE 13c": ("in part", "as a table, by site and overall"),
        "STROBE 14a": ("reported", f"Table 1{balance}"),
        "STROBE 14b": ("reported", "'Who was analysed'"),
        "STROBE 14c": followed,
        "STROBE 15": ("reported", "in Table 1, by site"),
    }


def _of_results(
    response: Response, settings: Mapping[str, Any], *, margins: bool
) -> dict[str, Answer]:
    """Answer what STROBE 16 and 21 ask of the results and of whom they are about."""
    terms = str(settings.get("formula", "")).partition("~")[2]
    categories: Answer = "not applicable", "the formula categorises no number"
    if cut := re.findall(r"I\(\s*(.+?\s*[<>]=?\s*[\d.]+)\s*\)", terms):
        categories = "reported", f"{', '.join(cut)}, in the formula"
    absolute: Answer = "reported", "'On the outcome itself'"
    if response.effect is None:
        absolute = "not applicable", "effects are differences already"
    elif not margins:
        text = "not averaged over rows: the rows are elsewhere, or the family has no mean"
        absolute = AUTHORS, text
    general: Answer = AUTHORS, "the population to which the results apply"
    if BY_SITE.search(terms):
        general = "in part", "the prediction for a new site, in 'Between the sites'"
    return {"STROBE 16b": categories, "STROBE 16c": absolute, "STROBE 21": general}


def _of_bayes(report: RunReport, response: Response, looked: Examined) -> dict[str, Answer]:
    """Answer what ROBUST asks, and what a reader needs to repeat the run."""
    record, kept = report.record, quadrature_in(report)
    priors: Answer = AUTHORS, "the record contains none"
    if response.priors:
        priors = (
            "reported",
            f"of all {len(response.priors)} parameters, in the methods paragraph",
        )
    sensitivity: Answer = AUTHORS, "not computed here"
    if looked.sensitivity is not None:
        sensitivity = "reported", "'Sensitivity to the priors'"
    checks = {"posterior predictive checks": looked.check, "hazards with time": looked.proportional}
    made = ", ".join(text for text, result in checks.items() if result is not None)
    computation = [
        f"{record.get('algorithm', 'a sampler')} of consortia",
        f"{report.chains} chains of {report.draws:,} draws",
        *([f"seed {record['seed']}"] if "seed" in record else []),
        *([] if kept is None else [f"quadrature with {kept['nodes']} nodes"]),
    ]
    return {
        "ROBUST 1": priors,
        "ROBUST 3": sensitivity,
        "ROBUST 5": ("reported", ", ".join(computation)),
        "fit": ("reported", made) if made else (AUTHORS, "no check of the fit was made here"),
    }
