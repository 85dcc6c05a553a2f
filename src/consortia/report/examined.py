"""Parts of a report beside the effects: participants, priors, fit; and those that it lacks."""

from __future__ import annotations

from dataclasses import dataclass

from consortia.diagnostics.influence import PriorSensitivity, prior_sensitivity
from consortia.errors import InputError
from consortia.models.regression.checking import PredictiveCheck
from consortia.models.regression.curves import Curves
from consortia.models.regression.participants import TableOne
from consortia.models.regression.proportional import ProportionalHazards
from consortia.report.effects import number
from consortia.report.participants import participants
from consortia.report.run_report import RunReport, shortened
from consortia.report.tables import Table, share_of

CHECK_DRAWS = 200
"""Draws for which responses are simulated."""


@dataclass(frozen=True)
class Examined:
    """Results of what was examined; None of what was not."""

    participants: TableOne | None = None  # Table 1
    curves: Curves | None = None  # of follow-up
    sensitivity: PriorSensitivity | None = None  # of the parameters to the prior
    check: PredictiveCheck | None = None  # posterior predictive checks
    proportional: ProportionalHazards | None = None  # how hazard ratios change with time
    not_made: tuple[str, ...] = ()  # what could not be made, each with the reason


def examined(report: RunReport) -> Examined:
    """Report on participants, priors and fit."""
    reported, drawn = participants(report) or (None, None)
    made = report.regression
    if made is None:
        return Examined(reported, drawn)
    not_made: list[str] = []
    sensitivity = check = proportional = None
    try:
        sensitivity = prior_sensitivity(report.tree, made.model, labels=made.labels)
    except InputError as error:
        not_made.append(f"Skipped: sensitivity to the priors: {error}")
    try:
        if made.family.of_site is not None:
            proportional = made.proportional_hazards(report.tree)
        else:
            check = made.predictive_check(report.tree, draws=CHECK_DRAWS)
    except InputError as error:
        not_made.append(f"Not made: {error}")
    return Examined(reported, drawn, sensitivity, check, proportional, tuple(not_made))


def sensitivity_table(examined: Examined) -> Table | None:
    """Show each parameter's dependence on the prior."""
    res = examined.sensitivity
    if res is None:
        return None
    rows = tuple(
        (name, f"{prior:.2f}", f"{shift:+.2f}", f"{ratio:.2f}", finding or "little")
        for name, prior, shift, ratio, finding in zip(
            shortened(res.names), res.measure, res.shift, res.sd_ratio, res.findings, strict=True
        )
    )
    heads = ("", "measure", "mean moves by (sd)", "sd times", "the prior matters")
    return Table("Each parameter if the prior counted twice", heads, rows)


def fit_table(examined: Examined) -> Table | None:
    """Return posterior predictive checks by site and of all sites."""
    check = examined.check
    if check is None:
        return None
    rows = tuple(
        (
            f"{line.site}: {line.statistic}",
            number(line.observed),
            number(line.median),
            f"{number(line.lower)} to {number(line.upper)}",
            share_of(line.p),
        )
        for line in check.lines
    )
    heads = ("", "observed", "simulated", f"{100 * check.level:g} %", "p")
    return Table("Posterior predictive checks", heads, rows)


def proportional_table(examined: Examined) -> Table | None:
    """Show the change of each log hazard ratio with the logarithm of time."""
    test = examined.proportional
    if test is None:
        return None
    rows = tuple(
        (name, f"{change:+.3g}", f"{error:.3g}", share_of(p))
        for name, change, error, p in zip(test.names, test.change, test.error, test.p, strict=True)
    )
    heads = ("", "change with log(time)", "standard error", "p")
    return Table("Are the hazards proportional?", heads, rows)
