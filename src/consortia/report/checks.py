"""From the numbers of a run to words that a person can act on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from consortia.report.run_report import RunReport
from consortia.store.ending import RunEnd

R_HAT = (1.01, 1.05)
ESS = (400, 100)
SHIFT = (0.1, 0.3)
SPREAD = (0.05, 0.15)
"""Where good ends and where bad begins: R-hat and ESS by Vehtari et al. (2021), bias in posterior
standard deviations, spread as a share of them."""

SIGMAS = 3.0
"""Monte Carlo errors that a measured difference is allowed before it counts."""


class Severity(IntEnum):
    """How serious a finding is; the largest of all is the verdict."""

    GOOD = 0
    UNKNOWN = 1
    WARNING = 2
    BAD = 3

    @property
    def word(self) -> str:
        """The severity for people who do not see colours."""
        return ("good", "not known", "take care", "bad")[self]

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        return (
            "This posterior can be used",
            "The chains agree; their bias is not known",
            "Use this posterior with care",
            "Do not use this posterior yet",
        )[self]

    @property
    def explanation(self) -> str:
        """The verdict in two lines."""
        return (
            "Convergence, number of draws and bias were looked at, and nothing speaks against it.",
            "What can be seen from the draws is fine, but they cannot show bias: compare with a "
            "reference, or with a method that is exact.",
            "Something below is not as it should be; the cards say what, and what to do.",
            "Something below is wrong; the cards say what, and what to do.",
        )[self]


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
        severity: how serious it is.
        title: what was looked at.
        value: the number, as text.
        text: what it means and what to do.
    """

    severity: Severity
    title: str
    value: str
    text: str


def checks_of(report: RunReport) -> list[Check]:
    """Return the checks of a run: how it ended, convergence, number of draws, bias, divergences."""
    made = (_end, _r_hat, _ess, _predicted, _measured, _diverging)
    return [check for make in made if (check := make(report)) is not None]


def verdict(checks: list[Check]) -> Severity:
    """Return the largest severity."""
    return max(check.severity for check in checks)


def _severity(value: float, limits: tuple[float, float]) -> Severity:
    """Return the severity of a value whose limits are given, good first, rising or falling."""
    if math.isnan(value):
        return Severity.UNKNOWN
    good, bad = limits
    if good > bad:
        value, good, bad = -value, -good, -bad
    if value <= good:
        return Severity.GOOD
    return Severity.WARNING if value <= bad else Severity.BAD


def _end(report: RunReport) -> Check | None:
    title, record = "The run", report.record
    if "stopped" not in record:
        text = f"{report.draws:,} draws a chain are there so far; numbers below will change."
        return Check(Severity.WARNING, title, "not finished", text)
    end, text = RunEnd(record["end"]), str(record["stopped"])
    if end is RunEnd.NON_FINITE:
        return Check(Severity.BAD, title, "a chain ran away", text)
    if end is RunEnd.INTERRUPTED:
        return Check(Severity.WARNING, title, "interrupted", f"It was {text}.")
    return None if end.state == "finished" else Check(Severity.WARNING, title, end.value, text)


def _r_hat(report: RunReport) -> Check:
    texts = {
        Severity.GOOD: "The chains cannot be told apart.",
        Severity.WARNING: "The chains still differ a little: run longer.",
        Severity.BAD: "The chains are in different places: run longer, or look at the traces for "
        "a chain that is stuck.",
    }
    value = report.verdict.r_hat
    severity = _severity(value, R_HAT)
    return _convergence(
        report, severity, "Do the chains agree?", "R-hat", f"R-hat ≤ {value:.3f}", texts
    )


def _ess(report: RunReport) -> Check:
    texts = {
        Severity.GOOD: "Means and 90 % intervals are steady to a few hundredths of a posterior sd.",
        Severity.WARNING: "Means are steady, the ends of intervals less so: run longer.",
        Severity.BAD: "The draws are so alike that intervals are guesses: run longer or take "
        "larger steps.",
    }
    value = report.verdict.ess
    severity = _severity(value, ESS)
    return _convergence(
        report, severity, "Are there enough draws?", "ESS", f"ESS ≥ {value:,.0f}", texts
    )


def _convergence(
    report: RunReport,
    severity: Severity,
    title: str,
    name: str,
    value: str,
    texts: dict[Severity, str],
) -> Check:
    """Return the check of a statistic, or why it is not available."""
    if severity is not Severity.UNKNOWN:
        return Check(severity, title, value, texts[severity])
    text = "; ".join(report.table.missing[name]) or f"{name} is not available for every parameter."
    return Check(severity, title, f"{name} n/a", text)


def _predicted(report: RunReport) -> Check:
    title, prediction = "How far off will the method be?", report.prediction
    if prediction is None:
        text = "The study and its data are not at hand."
        return Check(Severity.UNKNOWN, title, "not predicted", text)
    if prediction.reason is not None:
        return Check(Severity.UNKNOWN, title, "not predicted", f"{prediction.reason}.")
    if prediction.shift is None:
        text = f"{prediction.basis[:1].upper()}{prediction.basis[1:]}."
        return Check(Severity.GOOD, title, "no bias", text)
    shift = float(np.abs(prediction.shift).max())
    value = f"means ≤ {shift:.2g} sd" if shift >= 1e-3 else "means < 0.001 sd"
    severity = _severity(shift, SHIFT)
    if prediction.sd_ratio is None:
        severity = max(severity, Severity.UNKNOWN)
    else:
        ratio = prediction.sd_ratio
        severity = max(severity, _severity(float(np.abs(ratio - 1).max()), SPREAD))
        value += f", spread {ratio.min():.2f}–{ratio.max():.2f}×"
    text = " ".join([*prediction.notes, f"It rests on {prediction.basis}."])
    return Check(severity, title, value, text)


def _measured(report: RunReport) -> Check:
    title, seen, prediction = "How far off is it?", report.verdict, report.prediction
    own, error = report.reference_table, report.shift_errors
    if own is None or error is None or seen.shift is None or seen.sd_ratio is None:
        text = "There is no reference to compare with"
        if prediction is not None and prediction.shift is not None:
            text += "; the prediction stands alone"
        known = prediction is not None and prediction.reason is None
        severity = Severity.GOOD if known else Severity.UNKNOWN
        return Check(severity, title, "not measured", f"{text}.")
    columns = report.table.columns
    clear = np.maximum(np.abs(columns["shift"]) - SIGMAS * error, 0)
    # The relative error of a standard deviation from n independent draws is 1/√(2n).
    few = np.minimum(np.minimum(columns["ess_bulk"], columns["ess_tail"]), own["ess_bulk"])
    spread = np.maximum(np.abs(columns["sd_ratio"] - 1) - SIGMAS / np.sqrt(few), 0)
    severity = max(_severity(float(clear.max()), SHIFT), _severity(float(spread.max()), SPREAD))
    low, high = seen.sd_ratio
    text = f"The mean farthest off is that of {seen.shift[1]}; Monte Carlo error {error.max():.2f}."
    if error.max() > SHIFT[1] and severity is Severity.GOOD:
        severity = Severity.UNKNOWN
        text += " That is too much to tell a bias from chance: run longer."
    if severity > Severity.UNKNOWN:
        text += " The differences are larger than chance: lower the step size or de-bias."
    value = f"means ≤ {seen.shift[0]:.2g} sd, spread {low:.2f}–{high:.2f}×"
    return Check(severity, title, value, text)


def _diverging(report: RunReport) -> Check | None:
    stats = report.tree.children.get("sample_stats")
    if stats is None or "diverging" not in stats.data_vars:
        return None
    share = float(np.mean(np.asarray(stats["diverging"]) > 0))
    if share == 0:
        return None
    severity = Severity.BAD if share > 0.01 else Severity.WARNING
    text = "Trajectories left the region where the step size is fine: lower it."
    return Check(severity, "Divergences", f"{100 * share:.2g} % of draws", text)
