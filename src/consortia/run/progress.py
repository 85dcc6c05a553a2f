"""Progress of a run: a live bar on a terminal, JSON lines elsewhere; both on standard error."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from consortia.core.words import duration
from consortia.store.status import write_status

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_WRITES = 1.0
SECONDS_BETWEEN_MOVES = 0.2

NARROW = 80
"""Columns of a terminal below which a bar has no room."""


Sent = tuple[int, int, int]
"""Communication rounds, bytes up and bytes down so far."""


class Moment(NamedTuple):
    """The progress of a run at one moment."""

    rounds: int  # that are done, warm-up included; of a conversation its messages
    end: int  # the round at which it ends: as a rule, and once that is over at the latest
    draws: int  # kept of each chain
    rate: float | None  # rounds a second since the first call, which compiled; None before
    left: float | None  # seconds to the end; None before, and of a run that ends by itself


class Progress:
    """A receiver of reports, within a ``with`` statement; this one shows nothing.

    Args:
        total: rounds at the most.
        usual: rounds in which a run that ends by itself usually does; None of any other.
        counted: what rounds are called.
    """

    def __init__(self, total: int = 0, usual: int | None = None, counted: str = "rounds") -> None:
        self._total, self._usual, self._counted = total, usual or total, counted
        self._fixed = usual is None  # the end is known
        self._first: tuple[float, int] | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *details: Any) -> None:
        return None

    def update(self, rounds: int, kept: int, sent: Sent | None = None) -> None:
        """Report rounds that are done (warm-up included), draws that are kept, and what was sent.

        ``sent`` is None where every iteration sends as much.
        """
        self._show(self._moment(rounds, kept))

    def _show(self, moment: Moment) -> None:
        """Show how far the run is."""

    def _how(self, moment: Moment) -> str:
        """Return rounds a second and the time that remains, in words."""
        if moment.rate is None:
            return "compiled"
        left = "" if moment.left is None else f", {duration(moment.left)} left"
        return f"{moment.rate:,.3g} {self._counted}/s{left}"

    def _moment(self, rounds: int, kept: int) -> Moment:
        now, rate = time.monotonic(), None
        if self._first is None:
            self._first = (now, rounds)
        since, done = self._first
        if now > since and rounds > done:
            rate = (rounds - done) / (now - since)
        end = self._usual if rounds < self._usual else self._total
        left = (end - rounds) / rate if rate is not None and self._fixed else None
        return Moment(rounds, end, kept, rate, left)


class Lines(Progress):
    """One JSON object a line, at most one in ten seconds, and one at the end.

    Its fields: ``algorithm``; ``rounds`` done, warm-up and what was done before a resumption
    included (of a conversation its messages), ``of`` how many; ``draws`` kept of each chain;
    ``seconds`` since this process began; ``rounds_per_second`` and ``seconds_left``, null until two
    calls have been timed; a run that ends by itself has no ``seconds_left``.
    """

    def __init__(self, name: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._name = name
        self._started = self._last = time.monotonic()
        self._state: dict[str, Any] = {}

    def __exit__(self, *details: Any) -> None:
        if self._state:
            self._print()

    def _show(self, moment: Moment) -> None:
        """Print when the last line is old enough."""
        now, rate, left = time.monotonic(), moment.rate, moment.left
        self._state = {
            "algorithm": self._name,
            "rounds": moment.rounds,
            "of": self._total,
            "draws": moment.draws,
            "seconds": round(now - self._started, 2),
            "rounds_per_second": None if rate is None else float(f"{rate:.4g}"),
        } | ({"seconds_left": None if left is None else round(left, 1)} if self._fixed else {})
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._print()
            self._last = now

    def _print(self) -> None:
        if not write_line(json.dumps(self._state)):
            self._last = math.inf  # nobody reads it


class Bar(Progress):
    """A live bar with rounds a second and the time that remains."""

    def __init__(self, name: str, *arguments: Any) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        super().__init__(*arguments)
        console = Console(stderr=True)
        done = TextColumn(
            f"{{task.completed}}/{{task.total}} {self._counted}, {{task.fields[how]}}"
        )
        columns = [TextColumn("{task.description}"), BarColumn(), done]
        columns += [TimeElapsedColumn(), TextColumn("elapsed")]
        if console.width < NARROW:  # numbers before pictures
            columns = [done]
        self._bar = RichProgress(*columns, console=console)
        self._task = self._bar.add_task(name, total=self._usual, how="compiling")

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *details: Any) -> None:
        self._bar.stop()

    def _show(self, moment: Moment) -> None:
        """Move the bar."""
        self._bar.update(
            self._task, completed=moment.rounds, total=moment.end, how=self._how(moment)
        )


class Notebook(Progress):
    """A bar in the output of a notebook's cell."""

    def __init__(self, name: str, *arguments: Any) -> None:
        from IPython.display import HTML, display  # it runs this code

        super().__init__(*arguments)
        self._name, self._html = name, HTML
        self._moved, self._newest = 0.0, Moment(0, self._usual, 0, None, None)
        self._shown = display(HTML(self._text("compiling")), display_id=True)

    def __exit__(self, *details: Any) -> None:
        if self._newest.rounds:
            self._move()

    def _show(self, moment: Moment) -> None:
        """Move the bar, a few times a second."""
        self._newest = moment
        if time.monotonic() - self._moved > SECONDS_BETWEEN_MOVES:
            self._move()

    def _move(self) -> None:
        self._shown.update(self._html(self._text(self._how(self._newest))))
        self._moved = time.monotonic()

    def _text(self, how: str) -> str:
        done, end = self._newest.rounds, self._newest.end
        return (
            f'<label>{escape(self._name)} <progress max="{end}" value="{done}">'
            f"</progress> {done:,}/{end:,} {self._counted}, {escape(how)}</label>"
        )


class Written(Progress):
    """Keeps ``status.json`` of a run directory up to date, beside what shows the progress.

    A thread writes it, so that it continues while a round waits for a site.

    Args:
        shown: is updated, too.
        directory: of the run.
        algorithm: its name.
        length: rounds in all, those of the warm-up, and in how many such a run ends as a rule.
        traffic: communication rounds and bytes up and down an iteration, of all chains.
        answering: how the sites answer, see `consortia.engines.contract.Run.answering`.
    """

    def __init__(
        self,
        shown: Progress,
        directory: Path,
        algorithm: str,
        length: tuple[int, int, int | None],
        traffic: Sent,
        answering: Callable[[], dict[str, tuple[float | None, float | None]]],
    ) -> None:
        super().__init__(length[0], length[2])
        self._shown, self._directory, self._answering = shown, directory, answering
        self._traffic, self._began = traffic, time.monotonic()
        self._state: dict[str, Any] = {"algorithm": algorithm, "rounds": 0, "draws": 0}
        self._state |= {"bytes_up": 0, "bytes_down": 0}
        self._state |= {"of": length[0], "warmup": length[1], "state": "running"}
        self._state |= {"rounds_per_second": None, "seconds_left": None}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_writing, daemon=True)

    def __enter__(self) -> Written:
        self._shown.__enter__()
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind: Any = None, *details: Any) -> None:
        self._ended.set()
        self._thread.join()
        self._state["state"] = "ended" if kind is None else "ended by an error"
        self._write()
        self._shown.__exit__(kind, *details)

    def update(self, rounds: int, kept: int, sent: Sent | None = None) -> None:
        """Take the numbers; the thread writes them."""
        moment = self._moment(rounds, kept)
        _, up, down = sent or (each * rounds for each in self._traffic)
        self._state |= {"rounds": rounds, "draws": kept, "bytes_up": up, "bytes_down": down}
        self._state |= {"rounds_per_second": moment.rate, "seconds_left": moment.left}
        self._shown.update(rounds, kept, sent)

    def _keep_writing(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_WRITES):
            self._write()

    def _write(self) -> None:
        state = dict(self._state)
        state |= {"written": time.time(), "seconds": time.monotonic() - self._began}
        state["sites"] = [
            {"name": name, "answered": answered, "waiting": waiting}
            for name, (answered, waiting) in self._answering().items()
        ]
        # A disk that is full, or a folder that is gone, is the store's to tell.
        with contextlib.suppress(OSError):
            write_status(self._directory, state)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def write_line(line: str) -> bool:
    """Write a line to standard error; return False where that cannot be written."""
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):  # full, closed, or without a letter
        return False
    return sys.stderr is not None


@contextlib.contextmanager
def doing(what: str, *, show: bool) -> Iterator[None]:
    """Show what is being done before the first round, on standard error: it may take minutes.

    On a terminal while it lasts; elsewhere as a JSON line once it lasts.
    """
    if not show:
        yield
    elif _is_terminal():
        from rich.console import Console

        with Console(stderr=True).status(what):
            yield
    else:
        line = json.dumps({"doing": what})
        timer = threading.Timer(SECONDS_BETWEEN_LINES, write_line, (line,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def progress_of(
    name: str, total: int, usual: int | None, counted: str = "rounds", *, show: bool
) -> Progress:
    """Return a bar on a terminal, else JSON lines on standard error; nothing without ``show``."""
    if not show:
        return Progress()
    if _in_notebook():
        return Notebook(name, total, usual, counted)
    return (Bar if _is_terminal() else Lines)(name, total, usual, counted)


def _in_notebook() -> bool:
    """Return True if a notebook's kernel runs this code, and shows what it displays."""
    if "IPython" not in sys.modules:  # nobody has imported it: no kernel runs
        return False
    from rich.console import Console

    return Console().is_jupyter
