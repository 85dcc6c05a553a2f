"""One verdict on a run, before it and after: good, care, bad or unknown, with the reasons.

`judge` is the only place where numbers become a verdict: `consortia check`, `run`, `resume` and
`report`, `consortia.sample` and `consortia.summary` all ask it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from consortia.core.parameters import sampled_draws
from consortia.diagnostics.prediction import (
    ABSENT,
    DISAGREEMENT,
    MODES_SOUGHT,
    OPTIMISER,
    BiasPrediction,
)
from consortia.diagnostics.stein import Stein
from consortia.store.ending import RunEnd
from consortia.store.metadata import decoded, recorded

R_HAT = (1.01, 1.05)
ESS = (400, 100)
SHIFT = (0.1, 0.3)
SPREAD = (0.1, 0.15)
"""Values at which good ends and at which bad begins: R-hat and ESS by Vehtari et al. (2021), bias
in posterior standard deviations, spread as a share of them."""

TOLERANCE = f"{SHIFT[0]:g} sd for means and {100 * SPREAD[0]:g} % for standard deviations"
"""Bias that good draws of an approximate method may have."""

ASTRAY = 10.0
"""Predicted standard deviations from the mode, in the mean square, from which on a pilot of a
posterior that is far from its Gaussian law has run away."""

OFF = (0.5, 5.0)
RATIO = (1.25, 5.0)
"""The same for draws beside the law that is predicted for them: the difference of the means in
predicted standard deviations, and the ratio of standard deviations, either way."""

IN_TAILS = 0.3
"""Error of a log-density from which good ends: one that grows from 2 standard deviations on and is
so large at 3 moves the 99.5 % quantile of a normal posterior by 0.1 of them."""

K_HAT = 0.7
"""Above it importance ratios have no finite variance to speak of (Vehtari et al. 2024)."""

SIGMAS = 3.0
"""Monte Carlo errors that a measured difference is allowed before it counts."""

MOST_ESS = 1.1
"""Bulk ESS by the number of draws up to which an approximate chain does not overshoot."""

RARE = 0.01
"""Below this p-value the draws do not fit the gradients of the log-density."""

SINGLE, COARSE = 2.0**-24, 0.02
"""Relative rounding error of 32 bits, and how much of a standard deviation it may be."""

I_SQUARED = 0.5
"""Share of the differences between sites that is not chance, from which on it is substantial
(Higgins et al., "Measuring inconsistency in meta-analyses", 2003, call 50 % moderate)."""

OTHER_MODES = "Are there other modes?"

STUCK = 0.95
"""Share of draws equal to the one before from which on a chain counts as stuck."""

ROUNDED = 1e-3
"""Share of its way by which a coordinate must move to count: a smaller one is rounding."""

SAMPLE = "To sample, set temperature = 1."

SETTLED = 0.01
"""Largest share of an optimiser's way in its last tenth."""

REMEDY = "Halve step_size, or the steps between two messages, or use federated_hmc, which is exact."


class Severity(IntEnum):
    """Severity of a finding; the largest of all that count is the verdict."""

    GOOD = 0
    UNKNOWN = 1
    WARNING = 2
    BAD = 3

    @property
    def word(self) -> str:
        """The severity for people who do not see colours, and for programs."""
        return ("good", "unknown", "care", "bad")[self]

    @property
    def headline(self) -> str:
        """The verdict on draws in one line."""
        return (
            "This posterior can be used",
            "No problem was found in this posterior, but not everything was checked",
            "Use this posterior with care",
            "Do not use this posterior",
        )[self]

    @property
    def forecast(self) -> str:
        """The verdict on settings in one line."""
        return (
            "These settings are good",
            "The bias of the draws is unknown",
            "These settings need care",
            "Do not run these settings",
        )[self]


SHOWN = 6
"""Coordinates of a mode in a message, the first."""

TEXTS = ("title", "value", "reason", "action", "counts")
"""Fields of a check beside its severity, in the order in which JSON has them."""


@dataclass(frozen=True)
class Check:
    """One finding."""

    severity: Severity  # how serious it is
    title: str  # what was looked at
    value: str  # the number, as text
    reason: str  # what it means
    action: str = ""  # what to do next; "" where nothing is to be done
    counts: bool = True  # False for what is only shown and does not count for the verdict

    @property
    def text(self) -> str:
        """Its meaning, and what to do."""
        return f"{self.reason} {self.action}".strip()


@dataclass(frozen=True)
class Verdict:
    """All findings on one run."""

    checks: tuple[Check, ...]
    drawn: bool = True  # False before there are draws: the verdict is then on the settings
    optimised: bool = False  # True of the iterates of an optimiser
    # True of draws with the spread of a sandwich, which are of no posterior
    estimates: bool = False
    approximate: bool = False  # True of a method with a bias, which good draws have up to a limit

    @property
    def severity(self) -> Severity:
        """The largest severity of those that count."""
        return max(check.severity for check in self.checks if check.counts)

    @property
    def word(self) -> str:
        """The verdict in one word: good, unknown, care or bad."""
        return self.severity.word

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if self.optimised:
            arrived = self.severity <= Severity.UNKNOWN
            return (
                f"An optimiser has {'found' if arrived else 'not found'} a mode; nothing was "
                "sampled"
            )
        words = self.severity.headline if self.drawn else self.severity.forecast
        if self.estimates:
            words = words.replace("This posterior", "These estimates")
            words = words.replace("this posterior", "these estimates")
        if self.drawn and self.severity is Severity.GOOD:
            words += f" within {TOLERANCE}" * self.approximate
        return words

    @property
    def explanation(self) -> str:
        """The reasons of the verdict: the findings as serious as it is."""
        if self.severity is Severity.GOOD:
            unknown = [check for check in self.checks if check.severity is Severity.UNKNOWN]
            if not unknown:
                return "All checks passed."
            left = " ".join(check.title for check in unknown)
            return f"All checks that were made passed. Not checked: {left[:1].lower()}{left[1:]}"
        return " ".join(f"{check.title} {check.value}." for check in self.reasons)

    @property
    def reasons(self) -> tuple[Check, ...]:
        """The findings that count and are not good, the most serious first."""
        faults = [check for check in self.checks if check.counts and check.severity > Severity.GOOD]
        return tuple(sorted(faults, key=lambda check: -check.severity))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the verdict in words, a line for each reason."""
        first = f"{self.word.upper()}: {self.headline}."
        return [first, *(f"{check.title} {check.value}: {check.text}" for check in self.reasons)]

    def plain(self) -> dict[str, Any]:
        """Return plain values, as in JSON."""
        return {
            "verdict": self.word,
            "headline": self.headline,
            "checks": [
                {"verdict": check.severity.word} | {name: vars(check)[name] for name in TEXTS}
                for check in self.checks
            ],
        }


CONSTANT = 1e-9
"""Ratio of standard deviation to mean up to which draws are of a constant, by rounding."""


class Tabled(NamedTuple):
    """Summary of some quantities."""

    columns: Mapping[str, np.ndarray]  # of `consortia.summary`, (rows,) each
    names: Sequence[str]  # of the rows
    # columns of the reference's summary, its rows the same, or None
    reference: Mapping[str, np.ndarray] | None = None

    @property
    def shift_errors(self) -> np.ndarray | None:
        """Monte Carlo standard errors of the shifts, (rows,), in reference sds."""
        if self.reference is None:
            return None
        reference = self.reference
        return np.hypot(self.columns["mcse_mean"], reference["mcse_mean"]) / reference["sd"]

    @property
    def farthest(self) -> str | None:
        """Name of the row whose mean is farthest from the reference's; None without one."""
        if "shift" not in self.columns:
            return None
        shift, sd = np.abs(self.columns["shift"]), self.columns["ref_sd"]
        varies = sd > CONSTANT * np.abs(self.columns["ref_mean"])
        known = np.flatnonzero(np.isfinite(shift) & varies)
        return self.names[int(known[shift[known].argmax()])] if known.size else None

    def farthest_beside(self, coordinate: str) -> str:
        """Return words for the coordinate that is farthest off: its name, where that is shown."""
        if coordinate in self.names or self.farthest is None:
            return coordinate
        return f"{self.farthest} among what is shown"


@dataclass(frozen=True)
class Evidence:
    """Measurements of the draws of a run."""

    columns: Mapping[str, np.ndarray]  # of `consortia.summary`, as sampled, (rows,) each
    names: Sequence[str]  # of the rows
    # why R-hat or ESS is not available, by "R-hat" and "ESS"
    missing: Mapping[str, tuple[str, ...]]
    chains: int  # of the result
    draws: int  # kept draws of each
    record: Mapping[str, Any]  # attributes of the run
    finite: bool = True  # False if a draw is not
    stuck: tuple[int, ...] = ()  # indices of chains that do not move
    # share of draws whose trajectory diverged; None where that is not recorded
    diverging: float | None = None
    reference: Mapping[str, np.ndarray] | None = None  # columns of the reference's summary, or None
    # the draws beside the gradients of the sites, or None where nobody has looked
    stein: Stein | None = None
    moved: float = 0.0  # how far the last tenth of the draws moved, in parts of their whole way
    # natural quantities, by whose names a reader knows what is off or missing; None where there are
    # none but what was sampled
    shown: Tabled | None = None

    @classmethod
    def of(
        cls,
        tree: Any,
        table: Any,
        reference: Mapping[str, np.ndarray] | None = None,
        stein: Stein | None = None,
        shown: Tabled | None = None,
    ) -> Evidence:
        """Return the evidence of a result and its `consortia.summary` of what was sampled.

        The rows of the ``reference`` are those of the summary.
        """
        arrays = {name: np.asarray(array) for name, array in sampled_draws(tree).items()}
        chains, draws = next(iter(arrays.values())).shape[:2]
        moves = np.zeros((chains, max(draws - 1, 0)), bool)
        for array in arrays.values():
            flat = array.reshape(chains, draws, -1)
            moves |= (flat[:, 1:] != flat[:, :-1]).any(axis=2)
        still = 1 - moves.mean(axis=1) if draws > 1 else np.zeros(chains)
        stats = getattr(tree, "children", {}).get("sample_stats")
        diverging = None
        if stats is not None and "diverging" in stats.data_vars:
            diverging = float(np.mean(np.asarray(stats["diverging"]) > 0))
        return cls(
            table.columns,
            table.coordinates,
            table.missing,
            chains,
            draws,
            dict(getattr(tree, "attrs", {})),
            all(bool(np.isfinite(array).all()) for array in arrays.values()),
            tuple(np.flatnonzero(still > STUCK).tolist()),
            diverging,
            reference,
            stein,
            _moved(arrays),
            shown,
        )

    @property
    def sampled(self) -> Tabled:
        """Summary of the sampled quantities."""
        return Tabled(self.columns, self.names, self.reference)

    @property
    def named(self) -> Tabled:
        """Summary of what a reader is shown: natural quantities, where there are any."""
        return self.shown or self.sampled


def prediction_in(tree: Any) -> BiasPrediction | None:
    """Return the predicted bias that a result's record keeps, or None."""
    kept = recorded(tree, "prediction")
    return BiasPrediction.read(kept) if kept else None


def judge(
    prediction: BiasPrediction | None,
    run: Evidence | None = None,
    *,
    rounds: int | None = None,
    draws: int | None = None,
    doubts: Sequence[str] = (),
) -> Verdict:
    """Return the verdict on settings, or on the draws that were made with them.

    Args:
        prediction: the bias of the settings; None where nobody has looked at it.
        run: what the draws show; None before there are any.
        rounds: that are planned, of all chains together; looked at before there are draws.
        draws: that will be kept of them.
        doubts: what was taken for what when the tables were read and nobody has confirmed; of a run
            those in its record.
    """
    if run is None:
        planned = _planned(prediction, rounds, draws)
        before = (_read(doubts), _predicted(prediction, measured=False), planned)
        return Verdict(tuple(finding for finding in before if finding is not None), drawn=False)
    if run.record.get("optimises"):
        still = replace(run, stuck=())  # one that has arrived does not move
        end_checks = (_end(run), _finite(still), _optimised(run))
        return Verdict(tuple(check for check in end_checks if check is not None), optimised=True)
    measured = _measured(run)
    exact = prediction is not None and prediction.reason is None and prediction.shift is None
    checks = [
        _end(run),
        _read([*doubts, *readings_in(run.record, "doubts")]),
        _finite(run),
        _r_hat(run),
        _ess(run),
        _imputed(run),
        _overshoot(run, prediction),
        # a predicted bias is that of draws from a posterior
        _sandwich(run.record) or _predicted(prediction, measured=measured.counts),
        _absent(run.record, prediction),
        _quadrature(run.record),
        _as_predicted(run, prediction),
        measured if measured.counts or not exact else None,
        _fits(run),
        _diverging(run),
        _precise(run),
        _modes(run.record, prediction),
        _disagreement(run.record, prediction),
        *_faults(run),
    ]
    findings = tuple(check for check in checks if check is not None)
    biased = prediction is not None and prediction.reason is None and not exact
    return Verdict(findings, estimates=bool(run.record.get("sandwich")), approximate=biased)


def pilot_fault(prediction: BiasPrediction, run: Evidence, settled: bool) -> Check | None:
    """Return the evidence of a short run from the mode against the settings, or None.

    A run that has not ``settled``, as an independent draw takes longer, has hardly left the mode.
    """
    judged = settled and not _far_from_gaussian(prediction)
    for check in (_finite(run), (_as_predicted if judged else _astray)(run, prediction)):
        if check is not None and check.severity is Severity.BAD:
            return check
    return None


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


# --- what it is of ---


def readings_in(record: Mapping[str, Any], name: str = "readings") -> list[str]:
    """Return the record's notes on the reading of its tables: "readings" or "doubts"."""
    settings = decoded(record.get("settings"))
    if not isinstance(settings, Mapping):
        return []
    of_formula = settings.get("regression", settings)
    notes = of_formula.get(name, ()) if isinstance(of_formula, Mapping) else ()
    return [str(note) for note in notes]


def _read(doubts: Sequence[str]) -> Check | None:
    """List the guesses about the tables, where there is anything to be confirmed."""
    if not doubts:
        return None
    title, count = "Were the tables read correctly?", len(doubts)
    value = "1 guess to confirm" if count == 1 else f"{count} guesses to confirm"
    return Check(Severity.UNKNOWN, title, value, "; ".join(doubts) + ".")


# --- how it ended --------------------------------------------------------------------------------


def _end(run: Evidence) -> Check | None:
    title, record = "The run", run.record
    if "state" not in record and "stopped" not in record and "rounds" not in record:
        return None  # draws without a record
    if "stopped" not in record:
        reason = f"{run.draws:,} draws per chain so far; the numbers below will change."
        return Check(Severity.WARNING, title, "not finished", reason, "Wait, or resume it.")
    end, reason = RunEnd(record["end"]), str(record["stopped"])
    if end is RunEnd.NON_FINITE:
        return Check(Severity.BAD, title, "a chain diverged", f"{reason}.", "Lower step_size.")
    if end is RunEnd.INTERRUPTED:
        return Check(Severity.WARNING, title, "interrupted", f"It was {reason}.", "Resume it.")
    if end.state == "finished":
        return None
    return Check(Severity.WARNING, title, end.value, f"{reason}.")


def _faults(run: Evidence) -> list[Check]:
    """Return the evidence of the method's own numbers against its draws."""
    checks = []
    for fault in decoded(run.record.get("faults", [])):
        severity = Severity.BAD if fault["wrong"] else Severity.WARNING
        value = "wrong" if fault["wrong"] else "in doubt"
        if fault.get("unseen"):
            severity, value = Severity.UNKNOWN, "not checked"
        checks.append(
            Check(severity, "Does the method report problems?", value, f"{fault['text']}.")
        )
    return checks


def _modes(record: Mapping[str, Any], prediction: BiasPrediction | None) -> Check | None:
    """Say where nobody looked for modes that no chain has visited, and which were seen before."""
    seen = None if prediction is None else prediction.other_modes
    if seen:
        text = ", ".join(f"{value:.3g}" for value in seen[0][:SHOWN])
        reason = f"The posterior has a mode near ({text}), too, of which draws may miss a share."
        action = "Use few_rounds, or a prior that says which mode is meant."
        return Check(Severity.UNKNOWN, OTHER_MODES, f"{len(seen)} seen", reason, action)
    if seen is not None or decoded(record.get(MODES_SOUGHT, True)):
        return None
    reason = "Chains that agree may all be at one of several modes."
    action = (
        "Use few_rounds, or run with all rows in one process and keep draws; with more than 200 "
        "parameters start chains elsewhere (init)."
    )
    return Check(Severity.UNKNOWN, OTHER_MODES, "not looked for", reason, action)


def _disagreement(record: Mapping[str, Any], prediction: BiasPrediction | None) -> Check | None:
    """Say how much the sites' own estimates differ, where that is known."""
    known = decoded(record.get(DISAGREEMENT)) or (prediction and prediction.disagreement)
    if not known:
        return None
    q, freedom = known
    more = max(1 - freedom / q, 0.0)
    value = f"Q = {q / freedom:.2g} times its degrees of freedom"
    reason = (
        "By Cochran's Q, the estimates of single sites differ "
        f"{'more than' if more > I_SQUARED else 'hardly more than'} chance explains"
        f" (I² {100 * more:.0f} %)."
    )
    # without a level, which Cox's partial likelihood does not have
    action = "For an effect that differs by site: x + (0 + x | site)." if more > I_SQUARED else ""
    title = "How much do the sites disagree?"
    return Check(Severity.GOOD, title, value, reason, action, counts=False)


def _finite(run: Evidence) -> Check | None:
    title = "Do the chains move?"
    if not run.finite:
        return Check(
            Severity.BAD,
            title,
            "draws that are not finite",
            "A chain diverged.",
            "Lower step_size.",
        )
    if run.stuck:
        which = ", ".join(map(str, run.stuck))
        reason = (
            f"Chain {which} stays at one position: its proposals are rejected, or its step size "
            "is 0."
        )
        return Check(
            Severity.BAD, title, "stuck", reason, "Lower step_size, or start from another point."
        )
    return None


def _precise(run: Evidence) -> Check | None:
    """Find a parameter that 32 bits do not resolve, by |mean| 2^-24 relative to its sd."""
    if decoded(run.record.get("x64", True)):
        return None
    mean, sd = np.abs(run.columns["mean"]), run.columns["sd"]
    steps = np.where(sd > 0, mean * SINGLE / np.where(sd > 0, sd, 1.0), 0.0)
    worst = int(np.argmax(steps))
    if not steps[worst] > COARSE:
        return None
    return Check(
        Severity.WARNING,
        "Is 32-bit precision enough?",
        f"{run.names[worst]} {run.columns['mean'][worst]:.7g}",
        f"Rounding errors reach {mean[worst] * SINGLE:.2g}, and its sd is {sd[worst]:.2g}.",
        "Set JAX_ENABLE_X64=1 before the start, or subtract a constant from the response.",
    )


# --- convergence ---------------------------------------------------------------------------------


def _r_hat(run: Evidence) -> Check:
    value = float(np.max(run.columns["r_hat"]))
    severity = _severity(value, R_HAT)
    reason, action = {
        Severity.GOOD: ("The chains agree.", ""),
        Severity.WARNING: ("The chains still differ a little.", "Run longer."),
        Severity.BAD: (
            "The chains have not mixed.",
            "Run longer, or look at the traces for a chain that is stuck.",
        ),
        Severity.UNKNOWN: (_why(run, "R-hat"), "Run at least two chains, and more draws."),
    }[severity]
    shown = "R-hat n/a" if severity is Severity.UNKNOWN else f"R-hat ≤ {value:.3f}"
    return Check(severity, "Do the chains agree?", shown, reason, action)


def _ess(run: Evidence) -> Check:
    value = float(np.min(np.minimum(run.columns["ess_bulk"], run.columns["ess_tail"])))
    severity = _severity(value, ESS)
    reason, action = {
        Severity.GOOD: (
            "Means and 90 % intervals are accurate to a few hundredths of a posterior sd.",
            "",
        ),
        Severity.WARNING: ("Means are accurate, the ends of intervals less so.", "Run longer."),
        Severity.BAD: (
            "The draws are too correlated, or too few, for reliable intervals.",
            "Run longer, or use larger steps.",
        ),
        Severity.UNKNOWN: (_why(run, "ESS"), "Run longer."),
    }[severity]
    shown = "ESS n/a" if severity is Severity.UNKNOWN else f"ESS ≥ {value:,.0f}"
    return Check(severity, "Are there enough draws?", shown, reason, action)


def _imputed(run: Evidence) -> Check | None:
    """Assess the missing information, and whether the imputations are enough for that.

    Of m imputations the mean is off by √(FMI/m) posterior standard deviations for their number.
    """
    fractions = run.named.columns.get("fmi")
    if fractions is None:
        return None
    count, worst = int(run.record["imputations"]), int(np.nanargmax(fractions))
    fraction = float(fractions[worst])
    severity = _severity(math.sqrt(fraction / count), SHIFT)
    reason = f"Missing values cost this share of the information on {run.named.names[worst]}; "
    reason += f"{count} imputations are "
    least = math.ceil(fraction / SHIFT[0] ** 2)
    reason += "enough for that." if severity is Severity.GOOD else "too few for that."
    action = "" if severity is Severity.GOOD else f"Take {least} imputations."
    return Check(
        severity, "How much information is missing?", f"≤ {100 * fraction:.0f} %", reason, action
    )


def _why(run: Evidence, statistic: str) -> str:
    reasons = "; ".join(run.missing.get(statistic, ()))
    return f"{reasons or f'{statistic} is not available for every parameter'}."


def _overshoot(run: Evidence, prediction: BiasPrediction | None) -> Check | None:
    """Return a warning of a chain that jumps back and forth, as near the largest stable step."""
    if prediction is not None and prediction.exact:
        return None
    draws = run.chains * run.draws
    most = float(np.nanmax(run.columns["ess_bulk"], initial=0.0))
    if most <= MOST_ESS * draws:
        return None
    return Check(
        Severity.WARNING,
        "Does the chain overshoot?",
        f"ESS {most:,.0f} of {draws:,} draws",
        "Draws alternate about their mean, as they do when the step size is near the largest "
        "stable one; the spread is then far too wide, and R-hat does not detect it.",
        "Halve step_size and compare.",
    )


def _diverging(run: Evidence) -> Check | None:
    if not run.diverging:
        return None
    severity = Severity.BAD if run.diverging > 0.01 else Severity.WARNING
    reason = "Trajectories entered regions where the step size is too large."
    shown = f"{100 * run.diverging:.2g} % of draws"
    action = "Raise target_acceptance if the step size is learned; otherwise lower step_size."
    return Check(severity, "Divergences", shown, reason, action)


# --- optimisers ---


def _moved(arrays: Mapping[str, np.ndarray]) -> float:
    """Return the farthest that a coordinate moved in the last tenth, in parts of all its way."""
    moved = 0.0
    for array in arrays.values():
        flat = array.reshape(array.shape[0], array.shape[1], -1)
        way = np.ptp(flat, axis=1) + ROUNDED * np.abs(flat).max(axis=1)
        late = np.ptp(flat[:, -max(flat.shape[1] // 10, 2) :], axis=1)
        moved = max(moved, float(np.divide(late, way, out=np.zeros_like(way), where=way > 0).max()))
    return moved


def _optimised(run: Evidence) -> Check:
    """Judge the arrival of an optimiser, whose iterates have no spread."""
    title, value = (
        "Has the optimiser converged?",
        f"last tenth: {100 * run.moved:.2g} % of its path",
    )
    what = (
        "At temperature 0 no noise is added: the draws are iterates of an optimiser, the last "
        "one is its result, and their spread says nothing about the posterior."
    )
    if run.moved > SETTLED:
        more = "Run longer, or lower step_size if minibatches keep it moving."
        return Check(Severity.WARNING, title, value, what, more)
    return Check(Severity.UNKNOWN, title, value, what, SAMPLE)


# --- bias ----------------------------------------------------------------------------------------


def _predicted(prediction: BiasPrediction | None, *, measured: bool) -> Check:
    """Return the check of the predicted bias; what is not known does not count once measured."""
    title = "How large is the predicted bias?"
    compare = "Compare with federated_hmc, which is exact."
    if prediction is None:
        reason = "The bias of these settings was not predicted."
        return Check(Severity.UNKNOWN, title, "not predicted", reason, compare, not measured)
    if prediction.diverges:
        reason = f"{_sentence(prediction.reason or 'the chain diverges near the mode')}"
        return Check(Severity.BAD, title, "it diverges", reason, REMEDY)
    if prediction.reason == OPTIMISER:
        return Check(Severity.UNKNOWN, title, "an optimiser", _sentence(OPTIMISER), SAMPLE)
    if prediction.reason is not None:
        reason = _sentence(prediction.reason)
        return Check(Severity.UNKNOWN, title, "not predicted", reason, compare, not measured)
    if prediction.shift is None:
        return Check(Severity.GOOD, title, "no bias", _sentence(prediction.basis))
    shift = float(np.abs(prediction.shift).max())
    value = f"means ≤ {shift:.2g} sd" if shift >= 1e-3 else "means < 0.001 sd"
    severity = _severity(shift, SHIFT)
    reasons = list(prediction.notes)
    if prediction.sd_ratio is None:
        severity = max(severity, Severity.UNKNOWN)
        if not reasons:
            reasons.append("The spread is not predicted.")
    else:
        ratio = prediction.sd_ratio
        severity = max(severity, _severity(float(np.abs(ratio - 1).max()), SPREAD))
        value += f", spread {_factors(ratio.min(), ratio.max())}"
    if _far_from_gaussian(prediction):  # what is predicted there may be far too bad as well
        severity = min(max(severity, Severity.UNKNOWN), Severity.WARNING)
        reasons.append(
            "The posterior is far from the Gaussian approximation at its mode (k-hat "
            f"{prediction.k_hat:.2f}), on which the prediction rests."
        )
    if prediction.unsure is not None:
        severity = max(severity, Severity.UNKNOWN)
        reasons.append(f"The bias may be larger: {prediction.unsure}.")
    if severity > Severity.UNKNOWN:
        sure = "may" if _far_from_gaussian(prediction) else "will"
        reasons.insert(0, f"The draws {sure} not follow the posterior.")
    action = REMEDY if severity > Severity.UNKNOWN else compare if severity else ""
    counts = severity is not Severity.UNKNOWN or not measured
    return Check(severity, title, value, " ".join(reasons), action, counts)


def _absent(record: Mapping[str, Any], prediction: BiasPrediction | None) -> Check | None:
    """Name the sites' absence from averages, where there was any."""
    share = float(record.get("absent", 0.0))
    if share == 0:
        return None
    title, value = "Did all sites take part?", f"{100 * share:.0f} % of their answers are missing"
    if prediction is not None and ABSENT in prediction.basis:
        return Check(Severity.GOOD, title, value, "The predicted bias takes this into account.")
    reason = (
        "An average over only some sites follows these: the draws are wider than with all "
        "sites, and their mean is closer to sites that are present more often. The size of this "
        "effect is not predicted."
    )
    action = "Wait longer for the sites, or use fewer local steps."
    return Check(Severity.WARNING, title, value, reason, action)


def _quadrature(record: Mapping[str, Any]) -> Check | None:
    """Return the shift of the posterior by the model's rule of quadrature; None without one."""
    kept = decoded(record.get("quadrature"))
    if not kept:
        return None
    title, nodes = "Is the model's quadrature accurate enough?", kept["nodes"]
    if "shift" not in kept:
        reason = f"The quadrature with {nodes} nodes was not compared with a finer one."
        action = "Use few_rounds: it chooses the number of nodes and measures the error."
        return Check(Severity.UNKNOWN, title, "not measured", reason, action)
    shift, low, high = kept["shift"], kept["low"], kept["high"]
    severity = max(_severity(shift, SHIFT), _severity(max(abs(low - 1), abs(high - 1)), SPREAD))
    shown = f"≤ {shift:.2g} sd" if shift >= 1e-3 else "< 0.001 sd"
    value = f"means {shown}, spread {_factors(low, high, 3)}"
    reason = (
        f"{nodes} nodes against {kept['against']}: the log-density differs by up to "
        f"{kept['error']:.2g} within 3 sds of the middle."
    )
    if not kept["error"]:  # sums over rows need no rule
        return Check(severity, title, "exact", "Levels are integrated out in closed form.")
    if not kept["error"] <= IN_TAILS:  # nor is nan
        severity = max(severity, Severity.UNKNOWN)
        reason += " The effect on the outer quantiles was not measured."
    action = "Omit nodes, so that the run chooses them, or give more." if severity else ""
    return Check(severity, title, value, reason, action)


def _factors(low: float, high: float, places: int = 2) -> str:
    """Return a range of factors; one where both ends are equal to these places."""
    ends = dict.fromkeys(f"{end:.{places}f}" for end in (low, high))
    return f"{'–'.join(ends)}×"


def _sandwich(record: Mapping[str, Any]) -> Check | None:
    """Describe the spread of the draws, where it is that of a sandwich; else None."""
    kept = decoded(record.get("sandwich"))
    if not kept:
        return None
    low, high = kept["low"], kept["high"]
    return Check(
        Severity.UNKNOWN,
        "What do the interval widths mean?",
        f"sandwich, {low:.3g}–{high:.3g}× the likelihood's",
        "Rows have sampling weights, or are in clusters: centres are those of the (weighted) "
        "likelihood, widths those of estimates over repeated samples. The draws are not from a "
        "posterior. That rows, or clusters, are independent and numerous enough for a normal "
        "approximation is assumed, not checked.",
    )


def _far_from_gaussian(prediction: BiasPrediction) -> bool:
    """Return True if the law that a prediction rests on does not stand for the posterior."""
    return prediction.k_hat is not None and prediction.k_hat > K_HAT and not prediction.gaussian


def _planned(
    prediction: BiasPrediction | None, rounds: int | None, kept: int | None
) -> Check | None:
    """Judge the number of rounds by how fast the chain forgets near the mode."""
    title = "Are there enough rounds?"
    if kept is not None and kept < ESS[0]:
        reason = "So few draws do not determine the ends of intervals, even if all are independent."
        return Check(Severity.WARNING, title, f"{kept:,} draws", reason, "Take more rounds.")
    if prediction is None or rounds is None or prediction.rounds_per_draw is None:
        return None
    draws = rounds / prediction.rounds_per_draw
    value = f"worth about {draws:,.0f} draws"
    if draws >= ESS[0]:
        reason = "The chains mix fast enough for this number of rounds."
        return Check(Severity.GOOD, title, value, reason)
    return Check(
        Severity.WARNING,
        title,
        value,
        f"Near the mode, an independent draw takes about {prediction.rounds_per_draw:,.0f} "
        "rounds in the slowest direction.",
        f"Take {math.ceil(ESS[0] * prediction.rounds_per_draw):,} rounds of all chains together, "
        "or a larger step.",
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _as_predicted(run: Evidence, prediction: BiasPrediction | None) -> Check | None:
    """Judge the draws beside the law that is predicted for them."""
    if prediction is None or prediction.shift is None or _far_from_gaussian(prediction):
        return None
    if "fmi" in run.columns:  # the prediction is of the first imputation's posterior
        return None
    assert prediction.mean is not None
    assert prediction.sd is not None
    title = "Are the draws where they should be?"
    rows = prediction.places(dict.fromkeys(name.partition("[")[0] for name in run.names))
    if len(rows) != len(run.names):
        return None
    sd, mean = prediction.sd[rows], (prediction.mean + prediction.shift * prediction.sd)[rows]
    error = np.nan_to_num(run.columns["mcse_mean"], nan=0.0)
    off = (np.abs(run.columns["mean"] - mean) - SIGMAS * error) / sd
    if np.isnan(off).all():  # no mean is known of any tail
        return None
    largest_off = float(np.nanmax(off, initial=0.0))
    severity = _severity(largest_off, OFF)
    value = f"means ≤ {largest_off:.2g} sd off"
    if prediction.sd_ratio is not None:
        spread = run.columns["sd"] / (sd * prediction.sd_ratio[rows])
        ess = np.nan_to_num(np.minimum(run.columns["ess_bulk"], run.columns["ess_tail"]), nan=1.0)
        room = 1 + SIGMAS / np.sqrt(2 * np.maximum(ess, 1.0))
        ratio = float(np.nanmax(np.maximum(spread, 1 / np.maximum(spread, 1e-300)) / room))
        severity = max(severity, _severity(max(ratio, 1.0), RATIO))
        value += f", spread {_factors(np.nanmin(spread), np.nanmax(spread))}"
    if severity is Severity.GOOD:
        return Check(severity, title, value, "They have the predicted means and spreads.")
    reason = (
        "The draws do not follow the predicted distribution: the chains have not converged, or "
        "the posterior is far from its Gaussian approximation, so that the prediction does not "
        "hold."
    )
    return Check(severity, title, value, reason, f"Run longer; then: {REMEDY}")


def _astray(run: Evidence, prediction: BiasPrediction) -> Check | None:
    """Find draws that ran far away, where their spread is not judged by the predicted law."""
    if prediction.mean is None or prediction.sd is None:
        return None
    rows = prediction.places(dict.fromkeys(name.partition("[")[0] for name in run.names))
    if len(rows) != len(run.names):
        return None
    away = np.hypot(run.columns["mean"] - prediction.mean[rows], run.columns["sd"])
    reach = float(np.max(away / prediction.sd[rows], initial=0.0))
    if reach <= ASTRAY:
        return None
    title, value = "Do the draws stay near the mode?", f"{reach:.2g} predicted sd away"
    return Check(Severity.BAD, title, value, "The chains diverged.", "Shorten the step.")


def _fits(run: Evidence) -> Check | None:
    """Judge the fit of the draws to the sites' gradients, by the kernel Stein discrepancy."""
    if run.stein is None:
        return None
    stein, title = run.stein, "Do the draws fit the sites' gradients?"
    value = f"discrepancy {stein.value:.2g}, by chance up to {stein.level:.2g}"
    if stein.p_value > RARE:
        reason = f"{stein.points} draws from the posterior itself would fit no better."
        return Check(Severity.GOOD, title, value, reason)
    reason = (
        f"{stein.points} draws from the posterior would rarely fit so poorly (p "
        f"{stein.p_value:.2g})."
    )
    return Check(Severity.WARNING, title, value, reason, REMEDY)


def _measured(run: Evidence) -> Check:
    title, ref, error = "How large is the measured bias?", run.reference, run.sampled.shift_errors
    if ref is None or error is None:
        reason = "No reference is available for comparison."
        return Check(Severity.UNKNOWN, title, "not measured", reason, counts=False)
    columns = run.columns  # natural quantities may have long tails, and hide what is off
    beyond = np.maximum(np.abs(columns["shift"]) - SIGMAS * error, 0)
    # The relative error of a standard deviation from n independent draws is 1/√(2n).
    ess = np.minimum(np.minimum(columns["ess_bulk"], columns["ess_tail"]), ref["ess_bulk"])
    spread = np.maximum(np.abs(columns["sd_ratio"] - 1) - SIGMAS / np.sqrt(ess), 0)
    severity = max(_severity(float(beyond.max()), SHIFT), _severity(float(spread.max()), SPREAD))
    worst = int(np.abs(columns["shift"]).argmax())
    name = run.named.farthest_beside(run.names[worst])
    reason = f"The largest difference is in the mean of {name}; Monte Carlo error "
    reason += f"{error.max():.2f}."
    action = ""
    if error.max() > SHIFT[1] and severity is Severity.GOOD:
        severity = Severity.UNKNOWN
        reason += " That error is too large to distinguish bias from chance."
        action = "Run longer."
    if severity > Severity.UNKNOWN:
        reason += " The differences are larger than chance."
        action = REMEDY
    off, ratio = abs(float(columns["shift"][worst])), columns["sd_ratio"]
    value = f"means ≤ {off:.2g} sd, spread {_factors(ratio.min(), ratio.max())}"
    return Check(severity, title, value, reason, action)
