"""What the five papers claim, and the verdict on each claim: computed, never written.

Every paper has a ``claims.toml`` in its folder: its studies, and for each the claims that it bears
on, with their source in the paper, the published number or order and the tolerance. A record of a
study has a *finding* for each of them. A claim without a source is refused; what a source permits
is checked here, and that it is printed in `experiments.sources`. This module imports nothing but
the standard library.
"""

from __future__ import annotations

import math
import re
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
SCALES = ("quick", "small", "full")
MEANINGS = {
    "quick": "seconds, to see that it runs",
    "small": "minutes",
    "full": "the paper's own size, as far as the data are at hand",
}
PAPERS = {
    "fa-hmc": "fa_hmc",
    "fsgld": "fsgld",
    "stale-gradients": "stale_gradients",
    "decentralized-ma-hmc": "decentralized",
    "de-sgld": "de_sgld",
}
"""Each paper's name and its folder."""

SOURCES = ("text", "table", "caption", "tick", "legend", "slide", "ours")
"""Where a published value stands; "ours" is printed nowhere."""
NUMBERED = ("text", "table", "caption")
"""Sources that give numbers; labels of an axis give a band, legends what was run."""

REPRODUCED, NOT_REPRODUCED, NOT_RUN = "reproduced", "not reproduced", "not run"
UNDER_THIS_READING, NO_NUMBER = "reproduced under this reading", "no published number"
NOT_UNDER_THIS_READING = "not reproduced under this reading"
WITHIN_AXIS, OUTSIDE_AXIS = "within the axis", "outside the axis"
CONSISTENT, BEYOND_BOUND = "consistent with", "beyond the bound as printed"
BEYOND_READING = "beyond the bound under this reading"
OURS, OURS_HOLDS, OURS_FAILS = "ours", "ours: holds", "ours: does not hold"
UNSIZED = OURS_HOLDS, OURS_FAILS, OURS, NO_NUMBER, NOT_RUN
"""Verdicts that compare with nothing in the paper: they are the same at every size."""
UNTUNED = "untuned"
UNDECIDED = "undecided"
MEANT: dict[float, tuple[str, ...]] = {
    0.0: ("plateaus", "perform similarly", "do not seem to show"),
    1.0: (
        "proportional",
        "as fast as",
        "linearly",
        "the same",
        "same mse",
        "almost identical",
        "recover",
        "converges to",
        "approaches",
        "exact algorithm",
        "posterior stationary distribution",
        "cancels",
    ),
    2.0: ("second",),
    4.0: ("four",),
}
"""Words that mean a number: an exponent, a ratio, a difference, a place or a count."""
FEWEST_STEPS = 4
"""Step sizes that a sweep tries at least, the best one inside, for a verdict."""
STANDARD_ERRORS = 2.0
"""How far an order must be from a tie; and a number may miss its tolerance by so many."""
FEWEST_PAIRS = 5
"""Runs of both methods, of the same seeds, that a claim of one being better is judged by."""


@dataclass(frozen=True)
class Finding:
    """What a run found for a claim.

    Attributes:
        value: ours; None where there is none, as of a chain that ran away.
        error: its standard error over independent runs, where there are several.
        law: what the exact law says; the value itself where it is computed and not drawn.
        shown: ours in words, in the place of the value.
        pairs: runs of both methods with the same seeds, where methods are compared.
        untuned: why a step size was not tuned, see `untuned`; empty where all were, or none is.
        share: of the paper's size, of a smaller run that the study's largest lacks it in.
        spread: standard deviation of single runs at this size, where several were made.
    """

    value: float | None
    error: float | None = None
    law: float | None = None
    shown: str | None = None
    pairs: int | None = None
    untuned: str = ""
    share: str | None = None
    spread: float | None = None

    @property
    def text(self) -> str:
        """Return the value with its error, and how many pairs of runs it is from."""
        if self.shown is not None or self.value is None:
            return self.shown or "none"
        error = "" if self.error is None else f" ± {self.error:.2g}"
        counted = "" if self.pairs is None else f", {self.pairs} pair{'s'[: self.pairs > 1]}"
        return f"{self.value:.4g}{error}{counted}"


def over_runs(values: Sequence[float]) -> Finding:
    """Return the mean over independent runs, with its standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Finding(statistics.fmean(values), error)


def over_pairs(values: Sequence[float]) -> Finding:
    """Return the mean of a difference or ratio of pairs of runs, with its standard error."""
    return replace(over_runs(values), pairs=len(values))


def over_spreads(values: Sequence[float], others: Sequence[float]) -> Finding:
    """Return the ratio of two standard deviations over the same repetitions, with its error.

    The logarithm's variance is (1 − ρ²)/(n − 1) of normal values with the correlation ρ, which
    repetitions that share their rows have. Two repetitions have no error, and values that are all
    the same no ratio.
    """
    spread, other = statistics.stdev(values), statistics.stdev(others)
    if not (spread > 0 and other > 0):
        return Finding(None, shown="no spread: all repetitions are the same", pairs=len(values))
    if len(values) < 3:
        return Finding(spread / other, pairs=len(values))
    together = statistics.correlation(values, others)
    error = spread / other * math.sqrt(max(1 - together**2, 0.0) / (len(values) - 1))
    return Finding(spread / other, error, pairs=len(values))


def untuned(label: str, tried: Sequence[float], best: float) -> str:
    """Explain why a step size counts as untuned, or return "" where it was tuned.

    Args:
        label: of what was swept.
        tried: all step sizes of the grid, those included with which the chain diverged.
        best: the one that was chosen.
    """
    if len(tried) < FEWEST_STEPS:
        number = "one step size" if len(tried) == 1 else f"{len(tried)} step sizes"
        return f"{label}: {number} tried"
    if best in (min(tried), max(tried)):
        edge = "smallest" if best == min(tried) else "largest"
        return f"{label}: the best step size is the {edge} of {len(tried)}"
    return ""


def computed(value: float, shown: str | None = None) -> Finding:
    """Return a finding that is computed: no Monte Carlo error is in it."""
    return Finding(value, law=value, shown=shown)


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes:
        id: unique in its paper.
        section: where the paper says it.
        quantity: what is compared.
        paper: what the paper says, in words or figures.
        source: one of `SOURCES`.
        quote: the printed sentence, or what the panel's labels are; only "ours" has none.
        number: the published number, which the quote has, with ``tolerance``; or
        near: the number that the quote's words mean (`MEANT`), or a number of ours, with
            ``tolerance``; or
        above: the order that the quote's words mean: ours must be larger than this, a tie (0 or 1)
            or a number of the quote, else the reading says whose it is; or
        below: smaller; or
        band: of labels of an axis: between which two values ours must be.
        tolerance: how far ours may be from the number; of a bound, how far beyond it.
        null: the quantity without the effect, or of a predictor that has learned nothing: further
            from the number than the tolerance.
        bound: the quote is a bound or a condition, with one side: a finding is consistent with it
            or beyond it.
        paired: it compares methods by runs, which `FEWEST_PAIRS` pairs decide at least.
        reading: what the paper leaves open and how it is read here.
        whole: the quantity is at the paper's size at every scale.
        why: why ours differs, or why nothing can be compared.
        panel: index of the panel that shows it.
        at: place of the published number on that panel's horizontal axis; a line without it.
        mark: the number belongs on the panel's axis.
        estimate: what a run would take, where there is none.
    """

    id: str
    section: str
    quantity: str
    paper: str
    source: str = ""
    quote: str = ""
    number: float | None = None
    near: float | None = None
    above: float | None = None
    below: float | None = None
    band: tuple[float, float] | None = None
    tolerance: float = 0.0
    null: float | None = None
    bound: bool = False
    paired: bool = False
    reading: str = ""
    whole: bool = False
    why: str = ""
    panel: int | None = None
    at: float | None = None
    mark: bool = True
    estimate: str = ""

    def __post_init__(self) -> None:
        if self.band is not None:
            object.__setattr__(self, "band", tuple(self.band))
        fault = self._fault()
        if fault:
            raise ValueError(f"claim {self.id}: {fault}")

    def _fault(self) -> str:
        """Describe the fault of the claim's source, or return ""."""
        if self.source not in SOURCES:
            return f"source is {self.source!r}: no verdict without one of {', '.join(SOURCES)}"
        if not self.quote and self.source != "ours":
            return f"source = {self.source!r} needs a quote: the sentence, or the panel's labels"
        fault = self._fault_of_number() or self._fault_of_order()
        if fault:
            return fault
        if self.source == "legend" and self.judged:
            return "a legend says what was run, and gives no verdict"
        return ""

    def _fault_of_number(self) -> str:
        """Describe the fault of ``number`` or ``near``, or return ""."""
        if self.number is not None:
            if self.source not in NUMBERED:
                return f"source = {self.source!r} gives no number; {', '.join(NUMBERED)} do"
            if not in_words(self.number, self.quote):
                return f"the number {self.number:g} is not in its quote"
        if self.near is not None and self.source != "ours" and not meant(self.near, self.quote):
            return (
                f"near = {self.near:g}: its quote has neither the number nor a word that means it"
            )
        centre = self.near if self.number is None else self.number
        if centre is None:
            return ""
        if self.null is None or abs(self.null - centre) <= self.tolerance:
            return f"null = {self.null} must be further from {centre:g} than the tolerance"
        return ""

    def _fault_of_order(self) -> str:
        """Describe the fault of ``above``, ``below``, ``band`` or ``bound``, or return ""."""
        limit = self.below if self.above is None else self.above
        if self.bound and limit is None and self.judged:
            return "a bound has one side: above or below"
        if self.source == "tick" and (self.near is not None or limit is not None):
            return "labels of an axis give a band, no order"
        if self.source != "tick" and self.band is not None:
            return "only labels of an axis (source = 'tick') give a band"
        if limit is None or self.bound or self.source == "ours":
            return ""
        if self.tolerance:
            return "an order has no tolerance: only a bound has"
        if limit not in (0, 1) and not in_words(limit, self.quote) and not self.reading:
            return f"{limit:g} is no tie and not in the quote: the reading must say whose it is"
        return ""

    @property
    def judged(self) -> bool:
        """True if there is something to compare a finding with."""
        given = self.number, self.near, self.above, self.below, self.band
        return any(one is not None for one in given)

    def holds(self, finding: Finding) -> bool | None:
        """Decide whether the finding agrees with the paper; None where nothing is published."""
        if not self.judged:
            return None
        if finding.value is None or not math.isfinite(finding.value):
            return False
        slack = STANDARD_ERRORS * (finding.error or 0.0)
        if self.band is not None:
            return self.band[0] - slack <= finding.value <= self.band[1] + slack
        centre = self.near if self.number is None else self.number
        if centre is not None:
            return abs(finding.value - centre) <= self.tolerance + slack
        if self.above is not None:
            return finding.value - slack > self.above - self.tolerance
        assert self.below is not None
        return finding.value + slack < self.below + self.tolerance

    def verdict(self, finding: Finding | None, share: str = "") -> str:
        """Return the verdict on what a run found, which is ``share`` of the paper's size.

        The finding's own share goes before.
        """
        if finding is None:
            return NOT_RUN
        holds = self.holds(finding)
        if holds is None:
            return OURS if self.source == "ours" else NO_NUMBER
        outcome = self._outcome(finding, holds)
        share = share if finding.share is None else finding.share
        if not share or self.whole:
            return outcome
        smaller = {
            REPRODUCED: "holds",
            UNDER_THIS_READING: "holds under this reading",
            NOT_REPRODUCED: "does not hold",
            NOT_UNDER_THIS_READING: "does not hold under this reading",
        }
        return f"smaller: {share}; {smaller.get(outcome, outcome)}"

    def _outcome(self, finding: Finding, holds: bool) -> str:
        """Return the verdict at the paper's size."""
        if finding.untuned:
            return UNTUNED
        if self.open_because(finding):
            return UNDECIDED
        if self.source == "ours":
            return OURS_HOLDS if holds else OURS_FAILS
        if self.source == "tick":
            outcome = WITHIN_AXIS if holds else OUTSIDE_AXIS
            return f"{outcome} under this reading" if self.reading else outcome
        if self.bound:
            beyond = BEYOND_READING if self.reading else BEYOND_BOUND
            return CONSISTENT if holds else beyond
        if self.reading:
            return UNDER_THIS_READING if holds else NOT_UNDER_THIS_READING
        return REPRODUCED if holds else NOT_REPRODUCED

    def open_because(self, finding: Finding) -> str:
        """Explain why what is known leaves both sides open, or return "" where it does not.

        A number from Monte Carlo has an error, or a law that is on the same side. Distances in
        standard errors, which are ours, have theirs in them.
        """
        pairs = finding.pairs or 0
        if self.paired and pairs < FEWEST_PAIRS:
            return f"{pairs} of the {FEWEST_PAIRS} pairs of runs that decide"
        if finding.value is None or not math.isfinite(finding.value):
            return ""
        holds = self.holds(finding)
        if finding.error is None:
            if finding.law is None:
                return "" if self.source == "ours" else "One run, which has no standard error"
            same = self.holds(replace(finding, value=finding.law)) == holds
            return "" if same else "The exact law is on the other side"
        slack = STANDARD_ERRORS * finding.error
        if self.band is not None:
            return "The error is as wide as the axis" * (slack >= self.band[1] - self.band[0])
        limit = self.below if self.above is None else self.above
        if limit is not None:
            side = -self.tolerance if self.above is not None else self.tolerance
            away = abs(finding.value - limit - side)
            if away > slack:
                return ""
            parts = away / finding.error if finding.error else 0.0
            reason = f"{parts:.1f} of the {STANDARD_ERRORS:g} standard errors that decide"
            if not (pairs and parts):
                return reason
            needed = math.ceil(pairs * (STANDARD_ERRORS / parts) ** 2)
            return f"{reason}: were it so in the long run, {needed:,} pairs would"
        centre = self.near if self.number is None else self.number
        if not holds or centre is None or self.null is None:
            return ""
        # An error as wide as the effect itself would find it anywhere.
        wide = slack >= min(abs(finding.value - self.null), abs(centre - self.null))
        return "The error is as wide as the effect" * wide


def meant(number: float, quote: str) -> bool:
    """Return True if a quote has a number, as digits or in words."""
    words = quote.casefold()
    return in_words(number, quote) or any(word in words for word in MEANT.get(float(number), ()))


def in_words(number: float, quote: str) -> bool:
    """Return True if a quote has a number, as digits."""
    plain = quote.replace("−", "-").replace(",", "")
    return any(float(one) == number for one in re.findall(r"-?\d*\.?\d+", plain))


@dataclass(frozen=True)
class Study:
    """A program that draws figures of a paper.

    Attributes:
        name: its module in the paper's folder.
        title: what it repeats.
        figures: their numbers in the paper.
        panels: names of its panels, in the paper's order.
        columns: panels in a row.
        sheet: indices of the panels that the sheet of the paper shows.
        data: data sets that it needs.
        shares: its size in parts of the paper's, by scale; absent where it is the paper's.
        estimates: of its time, by scale.
        notes: what is read how, for the card.
        claims: that it bears on.
        alone: it measures times, which nothing that runs at once may spoil.
    """

    name: str
    title: str
    figures: tuple[str, ...]
    panels: tuple[str, ...]
    columns: int
    sheet: tuple[int, ...]
    data: tuple[str, ...]
    shares: Mapping[str, str]
    estimates: Mapping[str, str]
    notes: str
    claims: tuple[Claim, ...]
    alone: bool = False


@dataclass(frozen=True)
class Paper:
    """A paper and what is known of its claims.

    Attributes:
        name: as it is called on the command line.
        folder: of its programs.
        title: authors, title, year.
        message: what of its message holds, in three sentences, at the head of its card.
        notes: below it.
        studies: in the order of its figures.
        others: claims that no program bears on.
        absent: checkable statements that have no row, and why.
        clauses: its figures, tables and statements, each with the reason why it has no row, or "".
        cited: names of such that its text takes from other works, or misprints.
    """

    name: str
    folder: str
    title: str
    message: str
    notes: str
    studies: tuple[Study, ...]
    others: tuple[Claim, ...] = field(default=())
    absent: tuple[str, ...] = ()
    clauses: Mapping[str, str] = field(default_factory=dict)
    cited: tuple[str, ...] = ()

    def chosen(self, figure: str | None) -> tuple[Study, ...]:
        """Return the studies of a figure, by its number or the study's name; all without one."""
        return tuple(
            study for study in self.studies if figure in (None, study.name, *study.figures)
        )


def read(name: str) -> Paper:
    """Return a paper from its ``claims.toml``.

    Raises:
        ValueError: an entry has an unknown key or no source, or an id stands twice.
    """
    folder = PAPERS[name]
    content = tomllib.loads((ROOT / folder / "claims.toml").read_text())
    studies = tuple(_study(entry) for entry in content.pop("studies"))
    others = tuple(_claim(entry) for entry in content.pop("claims", []))
    heads = (content.pop(key) for key in ("title", "message", "notes"))
    absent, cited = (tuple(content.pop(key, ())) for key in ("absent", "cited"))
    clauses = content.pop("clauses", {})
    paper = Paper(name, folder, *heads, studies, others, absent, clauses, cited)
    ids = [claim.id for study in studies for claim in study.claims] + [c.id for c in others]
    twice = {one for one in ids if ids.count(one) > 1}
    if content or twice:
        raise ValueError(f"{folder}/claims.toml: unknown {sorted(content)}, twice {sorted(twice)}")
    return paper


def _study(entry: dict[str, Any]) -> Study:
    lists = {name: tuple(entry.pop(name, ())) for name in ("figures", "panels", "data")}
    plain = {name: entry.pop(name, {}) for name in ("shares", "estimates")}
    claims = tuple(_claim(one) for one in entry.pop("claims"))
    columns = entry.pop("columns", min(len(lists["panels"]), 4))
    sheet = tuple(entry.pop("sheet", range(len(lists["panels"]))))
    notes = entry.pop("notes", "")
    rest = {**lists, **plain, "columns": columns, "sheet": sheet, "notes": notes}
    return Study(**entry, **rest, claims=claims)


def _claim(entry: dict[str, Any]) -> Claim:
    try:
        return Claim(**entry)
    except TypeError as error:
        raise ValueError(f"claim {entry.get('id')}: {error}") from None
