"""Progress of a run while it runs, from its directory alone: over any engine."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from consortia.core.printable import printable
from consortia.core.words import duration, size
from consortia.diagnostics.summary import tabulate
from consortia.errors import StoreError
from consortia.report.run_report import short_names
from consortia.store.runs import open_run, read_record
from consortia.store.status import read_status

COORDINATES = 50
"""Parameters of which R-hat and ESS are computed while a run runs."""

SHOWN = 8
"""Most parameters that are shown, those with the smallest ESS."""

PARAMETER_HEADS = ("parameter", "R-hat", "bulk ESS", "tail ESS")
SITE_HEADS = ("site", "rows", "state")
Listed = tuple[tuple[str, ...], Sequence[tuple[str, ...]]]

SILENT = 30.0
"""Seconds without a word after which a run is taken for dead: it writes each second."""

SLOW, SLOW_SECONDS = 3.0, 5.0
"""A site is slow that takes so many times what the middle one takes, and so many seconds more."""

MISSING_SECONDS = 60.0
"""A site is missing that has been waited for so long."""


@dataclass(frozen=True)
class View:
    """A run at one moment."""

    title: str  # of the run
    state: str  # running, finished, interrupted, ...
    alive: bool  # whether something is still to come
    facts: list[tuple[str, str]]  # label and value of each fact
    share: float  # of the rounds that are done, in [0, 1]
    # name, R-hat, bulk and tail ESS of those with the smallest ESS, as text
    parameters: list[tuple[str, ...]]
    sites: list[tuple[str, str, str]]  # name, rows, state, as text
    late: list[str]  # names of the sites that are slow or missing

    @property
    def tables(self) -> list[Listed]:
        """Columns and rows of what is listed; nothing that is empty."""
        listed: list[Listed] = [(PARAMETER_HEADS, self.parameters), (SITE_HEADS, self.sites)]
        return [(heads, rows) for heads, rows in listed if rows]

    def plain(self) -> dict[str, Any]:
        """Return plain values, as in JSON."""
        return {**vars(self), "facts": dict(self.facts)}


@dataclass
class Watch:
    """Looks at a run again and again; R-hat and ESS only when there are new draws."""

    directory: Path  # of the run
    _kept: int = -1
    _parameters: list[tuple[str, ...]] = field(default_factory=list)
    _worst: str = "no draws yet"

    def look(self) -> View:
        """Return the run at this moment.

        Raises:
            StoreError: there is no run, or its record is damaged.
        """
        record, _ = read_record(self.directory)
        status = read_status(self.directory)
        self._diagnose()
        running = record.get("state") == "running"
        silent = 0.0 if status is None else max(time.time() - status["written"], 0.0)
        state = str(record.get("state", "unknown"))
        if running and status is None:
            state = "starting"
        elif running and (silent > SILENT or (status and status["state"] != "running")):
            state = f"no sign of life for {duration(silent)}: consortia resume continues it"
        alive = running and silent <= SILENT
        facts = [("algorithm", str(record.get("algorithm", "")))]
        share = 1.0 if state == "finished" else 0.0
        if status is not None:
            done, of = status["rounds"], status["of"]
            share = share or (done / of if of else 0.0)
            warm = f", {status['warmup']:,} of them warm-up" if status["warmup"] else ""
            most = " at most" if record.get("end") is None and alive else ""
            facts.append(("rounds", f"{done:,} of {of:,}{most}{warm}"))
            facts.append(("draws", f"{status['draws']:,} kept per chain"))
            facts.append(("running for", duration(status["seconds"])))
            if alive:
                left, rate = status["seconds_left"], status["rounds_per_second"]
                unknown = "until it has enough draws"
                if rate is None:
                    unknown = "unknown until two calls are timed"
                shown = unknown if left is None else duration(left)
                facts.append(("left", shown + ("" if rate is None else f", {rate:.3g} rounds/s")))
            counted = "bytes_up" in record and not running  # before, rounds may be shorter
            up, down = ((record if counted else status)[f"bytes_{way}"] for way in ("up", "down"))
            facts.append(
                ("sent", f"{'' if counted else 'at most '}{size(up)} up, {size(down)} down")
            )
        facts.append(("R-hat, ESS", self._worst))
        return View(
            str(record.get("title") or self.directory.name),
            state,
            alive,
            facts,
            min(share, 1.0),
            self._parameters,
            *_sites(record, status if alive else None),
        )

    def _diagnose(self) -> None:
        try:
            tree = open_run(self.directory)
        except StoreError:
            return  # between two writes; the next look sees it
        kept = tree["posterior"].sizes.get("draw", 0) if "posterior" in tree.children else 0
        if kept == self._kept or kept < 4:
            return
        table = tabulate(tree, max_coordinates=COORDINATES)
        self._kept = kept
        rows: list[tuple[float, tuple[str, ...]]] = []
        columns = (table[name] for name in ("r_hat", "ess_bulk", "ess_tail"))
        for name, r_hat, bulk, tail in zip(short_names(table), *columns, strict=True):
            if np.isfinite([r_hat, bulk, tail]).all():
                numbers = f"{r_hat:.3f}", f"{bulk:,.0f}", f"{tail:,.0f}"
                rows.append((float(min(bulk, tail)), (printable(name), *numbers)))
        if not rows:
            return
        rows.sort(key=lambda row: row[0])
        self._parameters = [cells for _, cells in rows[:SHOWN]]
        highest = max(float(cells[1]) for _, cells in rows)
        self._worst = f"at most {highest:.3f}, at least {rows[0][0]:,.0f} after {kept:,} draws"


def _sites(
    record: dict[str, Any], status: dict[str, Any] | None
) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Return name, rows and state of every site, and the names of those that are late."""
    answers = {answer["name"]: answer for answer in (status or {}).get("sites", ())}
    took = [answer["answered"] for answer in answers.values() if answer["answered"] is not None]
    middle = float(np.median(took)) if took else 0.0
    lines, late = [], []
    names, sizes = (json.loads(record.get(key, "[]")) for key in ("sites", "site_rows"))
    for name, rows in zip(names, sizes, strict=False):
        site_answer, state = answers.get(name), "" if answers else "in processes of the run"
        word = None
        if site_answer is not None:
            last = site_answer["answered"]
            state = "" if last is None else f"answers in {duration(last)}"
            if last is not None and last > max(SLOW * middle, middle + SLOW_SECONDS):
                word = "SLOW"
            waited = site_answer["waiting"]
            if waited is not None and waited > max(SLOW * middle, SLOW_SECONDS):
                word = "MISSING" if waited > MISSING_SECONDS else "SLOW"
                state = f"waited for since {duration(waited)}"
        if word is not None:
            state = f"{word}: {state}"
            late.append(printable(name))
        lines.append((printable(name), f"{rows:,}", state))
    return lines, late
