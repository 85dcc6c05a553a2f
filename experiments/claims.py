"""What the five papers claim, and the verdict on each claim: computed, never written.

Every paper has a ``claims.toml`` in its folder, written before the runs: its studies, and for each
the claims that it bears on, with the published number or order and the tolerance. A study's record
has a *finding* for each of them. This module imports nothing but the standard library.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

REPRODUCED, NOT_REPRODUCED, NOT_RUN = "reproduced", "not reproduced", "not run"
UNDER_THIS_READING, NO_NUMBER = "reproduced under this reading", "no published number"
UNDECIDED = "undecided"
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
        law: what the exact law says.
        shown: ours in words, in the place of the value.
        pairs: runs of both methods with the same seeds, where methods are compared.
    """

    value: float | None
    error: float | None = None
    law: float | None = None
    shown: str | None = None
    pairs: int | None = None

    @property
    def text(self) -> str:
        """Return the value with its error, and how many pairs of runs it is from."""
        if self.shown is not None or self.value is None:
            return self.shown or "none"
        error = "" if self.error is None else f" ± {self.error:.2g}"
        counted = "" if self.pairs is None else f", {self.pairs} pair{'s'[: self.pairs > 1]}"
        return f"{self.value:.4g}{error}{counted}"


def over_pairs(values: Sequence[float]) -> Finding:
    """Return the mean of a difference or ratio of pairs of runs, with its standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Finding(statistics.fmean(values), error, pairs=len(values))


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes:
        id: unique in its paper.
        section: where the paper says it.
        quantity: what is compared.
        paper: what the paper says, in words or figures.
        number: the published number, with ``tolerance``; or
        above: the published order: ours must be larger than this; or
        below: smaller.
        tolerance: how far ours may be from the number.
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
    number: float | None = None
    above: float | None = None
    below: float | None = None
    tolerance: float = 0.0
    paired: bool = False
    reading: str = ""
    whole: bool = False
    why: str = ""
    panel: int | None = None
    at: float | None = None
    mark: bool = True
    estimate: str = ""

    def holds(self, finding: Finding) -> bool | None:
        """Return whether the finding agrees with the paper; None where nothing is published."""
        if (self.number, self.above, self.below) == (None, None, None):
            return None
        if finding.value is None or not math.isfinite(finding.value):
            return False
        slack = STANDARD_ERRORS * (finding.error or 0.0)
        if self.number is not None:
            return abs(finding.value - self.number) <= self.tolerance + slack
        if self.above is not None:
            return finding.value - slack > self.above
        assert self.below is not None
        return finding.value + slack < self.below

    def verdict(self, finding: Finding | None, share: str = "") -> str:
        """Return the verdict on what a run found, which is ``share`` of the paper's size."""
        if finding is None:
            return NOT_RUN
        holds = self.holds(finding)
        if holds is None:
            return NO_NUMBER
        few = self.paired and (finding.pairs or 0) < FEWEST_PAIRS
        if share and not self.whole:
            outcome = UNDECIDED if few else "holds" if holds else "does not hold"
            return f"smaller: {share}; {outcome}"
        if few:
            return UNDECIDED
        if not holds:
            return NOT_REPRODUCED
        return UNDER_THIS_READING if self.reading else REPRODUCED


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


@dataclass(frozen=True)
class Paper:
    """A paper and what is known of its claims.

    Attributes:
        name: as it is called on the command line.
        folder: of its programs.
        title: authors, title, year.
        notes: for the head of its card.
        studies: in the order of its figures.
        others: claims that no program bears on.
    """

    name: str
    folder: str
    title: str
    notes: str
    studies: tuple[Study, ...]
    others: tuple[Claim, ...] = field(default=())

    def chosen(self, figure: str | None) -> tuple[Study, ...]:
        """Return the studies of a figure, by its number or the study's name; all without one."""
        return tuple(
            study for study in self.studies if figure in (None, study.name, *study.figures)
        )


def read(name: str) -> Paper:
    """Return a paper from its ``claims.toml``.

    Raises:
        ValueError: an entry has an unknown key, or an id stands twice.
    """
    folder = PAPERS[name]
    content = tomllib.loads((ROOT / folder / "claims.toml").read_text())
    studies = tuple(_study(entry) for entry in content.pop("studies"))
    others = tuple(_claim(entry) for entry in content.pop("claims", []))
    paper = Paper(name, folder, content.pop("title"), content.pop("notes"), studies, others)
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
