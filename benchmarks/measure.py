"""Interleaved timing in CPU seconds, and the rows of the table that come of it."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Times = dict[str, np.ndarray]
"""CPU seconds per unit of work by contender, one for each pair."""


@dataclass(frozen=True)
class Contender:
    """Something that is timed.

    Attributes:
        name: as the table shows it.
        run: ``seed -> anything``; must have finished its work when it returns.
        work: units of work (rounds, steps) that one call does.
    """

    name: str
    run: Callable[[int], Any]
    work: float = 1


@dataclass(frozen=True)
class Gate:
    """What a figure must reach: ``relation`` is ">=" or "<="."""

    relation: str
    value: float

    def met_by(self, figure: float) -> bool:
        """Whether the figure reaches it."""
        return figure >= self.value if self.relation == ">=" else figure <= self.value

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        benchmark: the benchmark it belongs to.
        what: what is compared with what.
        figure: the median over the pairs, None when skipped.
        least: the smallest of the pairs.
        greatest: the largest.
        pairs: how many there were.
        gate: what it must reach, None for a figure that is only told.
        detail: the absolute figures behind it.
        skipped: why there is no figure.
    """

    benchmark: str
    what: str
    figure: float | None = None
    least: float | None = None
    greatest: float | None = None
    pairs: int = 0
    gate: Gate | None = None
    detail: str = ""
    skipped: str = ""

    @property
    def verdict(self) -> str:
        """PASS or FAIL where there is a gate, else an empty text, or "skipped"."""
        if self.figure is None:
            return "skipped"
        if self.gate is None:
            return ""
        return "PASS" if self.gate.met_by(self.figure) else "FAIL"

    def plain(self) -> dict[str, Any]:
        """The row as values that JSON can hold."""
        return {**asdict(self), "verdict": self.verdict}

    @classmethod
    def of_plain(cls, values: dict[str, Any]) -> Row:
        """The row that `plain` made these values of."""
        fields = {name: value for name, value in values.items() if name != "verdict"}
        gate = fields.pop("gate")
        return cls(**fields, gate=None if gate is None else Gate(**gate))


def cpu_seconds(run: Callable[[int], Any], seed: int) -> float:
    """CPU seconds of one call, all threads of this process."""
    began = time.process_time()
    run(seed)
    return time.process_time() - began


def interleaved(contenders: Sequence[Contender], pairs: int) -> Times:
    """Times the contenders in turn, A B A B, after one call each that may compile."""
    for contender in contenders:
        contender.run(0)
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for pair in range(pairs):
        for contender in contenders:
            seconds[contender.name].append(cpu_seconds(contender.run, pair + 1) / contender.work)
    return {name: np.asarray(values) for name, values in seconds.items()}


def fastest(contenders: Sequence[Contender], trials: int = 2) -> Contender:
    """The contender that needs the least time: a peer is given its best form."""
    times = interleaved(contenders, trials)
    return min(contenders, key=lambda contender: times[contender.name].min())


def row_of(
    benchmark: str, what: str, figures: np.ndarray, gate: Gate | None = None, detail: str = ""
) -> Row:
    """The row of these figures, one for each pair."""
    return Row(
        benchmark,
        what,
        float(np.median(figures)),
        float(figures.min()),
        float(figures.max()),
        len(figures),
        gate,
        detail,
    )


def throughput(
    benchmark: str,
    times: Times,
    library: str,
    peer: str,
    *,
    gate: Gate | None = None,
    unit: str = "round",
) -> Row:
    """Work per second of the library over that of the peer."""
    return row_of(
        benchmark,
        f"throughput, {library} / {peer}",
        times[peer] / times[library],
        gate,
        f"{_duration(times[library])} / {_duration(times[peer])} a {unit}",
    )


def time_ratio(
    benchmark: str, times: Times, one: str, other: str, *, gate: Gate | None, unit: str = "round"
) -> Row:
    """Time of the first over that of the second."""
    return row_of(
        benchmark,
        f"time, {one} / {other}",
        times[one] / times[other],
        gate,
        f"{_duration(times[one])} / {_duration(times[other])} a {unit}",
    )


def growth_of(
    benchmark: str, what: str, contenders: Mapping[int, tuple[Contender, Contender]], pairs: int
) -> list[Row]:
    """The exponent of the time of a further round in a size, by log-log fit, whole and by parts.

    Args:
        benchmark: the benchmark it belongs to.
        what: what grows.
        contenders: of each size a longer and a shorter run, whose difference is timed.
        pairs: how often.
    """
    times = interleaved([one for both in contenders.values() for one in both], pairs)
    further = []
    for long, short in contenders.values():
        spent = long.work * times[long.name] - short.work * times[short.name]
        further.append(np.maximum(spent / (long.work - short.work), 1e-12))
    sizes = tuple(contenders)
    detail = " / ".join(f"{1e3 * float(np.median(one)):.3g} ms" for one in further)
    slopes = np.polyfit(np.log(np.asarray(sizes, float)), np.log(further), 1)[0]
    text = "exponent of an iteration's time"
    span = f"{sizes[0]:,} to {sizes[-1]:,} {what}"
    found = [row_of(benchmark, f"{text}, {span}", slopes, Gate("<=", 1.1), detail)]
    for i, (few, many) in enumerate(itertools.pairwise(sizes)):
        part = np.log(further[i + 1] / further[i]) / math.log(many / few)
        found.append(row_of(benchmark, f"{text}, {few:,} to {many:,}", part))
    return found


def _duration(seconds: np.ndarray) -> str:
    value = float(np.median(seconds))
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"
