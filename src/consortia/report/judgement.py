"""From the numbers of a run to words that a person can act on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from consortia.report.subject import Subject

R_HAT = (1.01, 1.05)
ESS = (400, 100)
SHIFT = (0.1, 0.3)
SPREAD = (0.05, 0.15)
"""Where good ends and where bad begins: R-hat and ESS by Vehtari et al. (2021), bias in posterior
standard deviations, spread as a share of them."""

SIGMAS = 3.0
"""Monte Carlo errors that a measured difference is allowed before it counts."""


class Level(IntEnum):
    """How good it is; the largest of all is the verdict."""

    GOOD = 0
    UNKNOWN = 1
    CARE = 2
    BAD = 3

    @property
    def word(self) -> str:
        """For people who do not see colours."""
        return ("good", "not known", "take care", "bad")[self]


HEADLINES = {
    Level.GOOD: "This posterior can be used",
    Level.UNKNOWN: "The chains agree; their bias is not known",
    Level.CARE: "Use this posterior with care",
    Level.BAD: "Do not use this posterior yet",
}


@dataclass(frozen=True)
class Judgement:
    """One thing that was looked at.

    Attributes:
        level: how good it is.
        title: what was looked at.
        value: the number, as text.
        text: what it means and what to do.
    """

    level: Level
    title: str
    value: str
    text: str


def judge(subject: Subject) -> list[Judgement]:
    """All that can be said of a run, convergence first."""
    found = [_end(subject), _r_hat(subject), _ess(subject), _predicted(subject), _measured(subject)]
    return [one for one in [*found, _diverging(subject)] if one is not None]


def verdict(judgements: list[Judgement]) -> Level:
    """The worst of all."""
    return max(one.level for one in judgements)


def _level(value: float, limits: tuple[float, float], *, small: bool = True) -> Level:
    if math.isnan(value):
        return Level.UNKNOWN
    good, bad = limits
    if not small:
        value, good, bad = -value, -good, -bad
    if value <= good:
        return Level.GOOD
    return Level.CARE if value <= bad else Level.BAD


def _end(subject: Subject) -> Judgement | None:
    record = subject.record
    if not subject.finished:
        return Judgement(
            Level.CARE,
            "The run",
            "not finished",
            f"{subject.draws:,} draws a chain are there so far; numbers below will change.",
        )
    stopped = str(record["stopped"])
    if "non-finite" in stopped:
        return Judgement(Level.BAD, "The run", "a chain ran away", stopped)
    if stopped.startswith("interrupted"):
        return Judgement(Level.CARE, "The run", "interrupted", f"It was {stopped}.")
    return None


def _r_hat(subject: Subject) -> Judgement:
    value = subject.report.verdict.r_hat
    level = _level(value, R_HAT)
    if level is Level.UNKNOWN:
        return Judgement(level, "Do the chains agree?", "R-hat n/a", _why_not(subject, "R-hat"))
    text = {
        Level.GOOD: "The chains cannot be told apart.",
        Level.CARE: "The chains still differ a little: run longer.",
        Level.BAD: "The chains are in different places: run longer, or look at the traces for a "
        "chain that is stuck.",
    }[level]
    return Judgement(level, "Do the chains agree?", f"R-hat ≤ {value:.3f}", text)


def _ess(subject: Subject) -> Judgement:
    value = subject.report.verdict.ess
    level = _level(value, ESS, small=False)
    if level is Level.UNKNOWN:
        return Judgement(level, "Are there enough draws?", "ESS n/a", _why_not(subject, "ESS"))
    text = {
        Level.GOOD: "Means and 90 % intervals are steady to a few hundredths of a posterior sd.",
        Level.CARE: "Means are steady, the ends of intervals less so: run longer.",
        Level.BAD: "The draws are so alike that intervals are guesses: run longer or take larger "
        "steps.",
    }[level]
    return Judgement(level, "Are there enough draws?", f"ESS ≥ {value:,.0f}", text)


def _why_not(subject: Subject, name: str) -> str:
    notes = [n for n in subject.report.table.notes if "not available" in n and name in n]
    return "; ".join(notes) or f"{name} is not available for every parameter."


def _predicted(subject: Subject) -> Judgement:
    title, prediction = "How far off will the method be?", subject.prediction
    if prediction is None:
        return Judgement(
            Level.UNKNOWN, title, "not predicted", "The study and its data are not at hand."
        )
    if prediction.reason is not None:
        return Judgement(Level.UNKNOWN, title, "not predicted", f"{prediction.reason}.")
    if prediction.shift is None:
        return Judgement(
            Level.GOOD, title, "no bias", f"{prediction.basis[:1].upper()}{prediction.basis[1:]}."
        )
    shift = float(np.abs(prediction.shift).max())
    level = _level(shift, SHIFT)
    value = f"means ≤ {shift:.2g} sd" if shift >= 1e-3 else "means < 0.001 sd"
    if prediction.sd_ratio is None:
        level = max(level, Level.UNKNOWN)
    else:
        ratio = prediction.sd_ratio
        level = max(level, _level(float(np.abs(ratio - 1).max()), SPREAD))
        value += f", spread {ratio.min():.2f}–{ratio.max():.2f}×"
    text = " ".join([*prediction.notes, f"It rests on {prediction.basis}."])
    return Judgement(level, title, value, text)


def _measured(subject: Subject) -> Judgement:
    title, seen = "How far off is it?", subject.report.verdict
    if seen.shift is None or seen.sd_ratio is None:
        text = "There is no reference to compare with"
        if subject.prediction is not None and subject.prediction.shift is not None:
            text += "; the prediction stands alone"
        level = Level.GOOD if _bias_known(subject) else Level.UNKNOWN
        return Judgement(level, title, "not measured", f"{text}.")
    columns, own = subject.report.table.columns, subject.report.reference_table
    assert own is not None
    error = np.hypot(columns["mcse_mean"], own["mcse_mean"]) / own["sd"]
    clear = np.maximum(np.abs(columns["shift"]) - SIGMAS * error, 0)
    # The relative error of a standard deviation from n independent draws is 1/√(2n).
    few = np.minimum(np.minimum(columns["ess_bulk"], columns["ess_tail"]), own["ess_bulk"])
    spread = np.maximum(np.abs(columns["sd_ratio"] - 1) - SIGMAS / np.sqrt(few), 0)
    level = max(_level(float(clear.max()), SHIFT), _level(float(spread.max()), SPREAD))
    low, high = seen.sd_ratio
    text = f"The mean farthest off is that of {seen.shift[1]}; Monte Carlo error {error.max():.2f}."
    if error.max() > SHIFT[1] and level is Level.GOOD:
        level = Level.UNKNOWN
        text += " That is too much to tell a bias from chance: run longer."
    if level > Level.UNKNOWN:
        text += " The differences are larger than chance: lower the step size or de-bias."
    return Judgement(
        level, title, f"means ≤ {seen.shift[0]:.2g} sd, spread {low:.2f}–{high:.2f}×", text
    )


def _bias_known(subject: Subject) -> bool:
    prediction = subject.prediction
    return prediction is not None and prediction.reason is None


def _diverging(subject: Subject) -> Judgement | None:
    stats = subject.tree.children.get("sample_stats")
    if stats is None or "diverging" not in stats.data_vars:
        return None
    share = float(np.mean(np.asarray(stats["diverging"]) > 0))
    if share == 0:
        return None
    level = Level.BAD if share > 0.01 else Level.CARE
    text = "Trajectories left the region where the step size is fine: lower it."
    return Judgement(level, "Divergences", f"{100 * share:.2g} % of draws", text)
