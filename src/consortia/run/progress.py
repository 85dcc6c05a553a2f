"""Progress of a run: a live bar on a terminal, JSON lines elsewhere; both on standard error."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from consortia.store.status import write_status

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_WRITES = 1.0
SECONDS_BETWEEN_MOVES = 0.2

NARROW = 80
"""Columns of a terminal below which a bar has no room."""


class Progress:
    """A receiver of reports, within a ``with`` statement; this one shows nothing."""

    _first: tuple[float, int] | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *details: Any) -> None:
        return None

    def update(self, rounds: int, kept: int) -> None:
        """Report rounds that are done (warm-up included) and draws that are kept."""

    def _rate(self, rounds: int) -> float | None:
        """Return the rounds a second since the first call, which compiled; None before."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, rounds)
        since, done = self._first
        return (rounds - done) / (now - since) if now > since and rounds > done else None


class Lines(Progress):
    """One JSON object a line, at most one in ten seconds, and one at the end.

    Its fields: ``algorithm``; ``rounds`` done, warm-up and what was done before a resumption
    included, ``of`` how many; ``draws`` kept of each chain; ``seconds`` since this process began;
    ``rounds_per_second`` and ``seconds_left``, null until two calls have been timed: until the
    rounds in which such a run ends as a rule are done, to those, and then to the last.
    """

    def __init__(self, name: str, total: int, usual: int | None) -> None:
        self._name, self._total, self._usual = name, total, usual or total
        self._started = self._last = time.monotonic()
        self._state: dict[str, Any] = {}

    def __exit__(self, *details: Any) -> None:
        if self._state:
            self._print()

    def update(self, rounds: int, kept: int) -> None:
        """Print when the last line is old enough."""
        now, rate = time.monotonic(), self._rate(rounds)
        end = self._usual if rounds < self._usual else self._total
        self._state = {
            "algorithm": self._name,
            "rounds": rounds,
            "of": self._total,
            "draws": kept,
            "seconds": round(now - self._started, 2),
            "rounds_per_second": None if rate is None else float(f"{rate:.4g}"),
            "seconds_left": None if rate is None else round((end - rounds) / rate, 1),
        }
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._print()
            self._last = now

    def _print(self) -> None:
        print(json.dumps(self._state), file=sys.stderr, flush=True)


class Bar(Progress):
    """A live bar with rounds a second and the time that remains."""

    def __init__(self, name: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        console = Console(stderr=True)
        done = TextColumn("{task.completed}/{task.total} rounds, {task.fields[rate]}")
        columns = [TextColumn("{task.description}"), BarColumn(), done]
        columns += [TimeElapsedColumn(), TextColumn("elapsed,")]
        columns += [TimeRemainingColumn(), TextColumn("left")]
        if console.width < NARROW:  # numbers before pictures
            columns = [done, TimeRemainingColumn(), TextColumn("left")]
        self._bar = RichProgress(*columns, console=console)
        self._task = self._bar.add_task(name, total=total, rate="compiling")

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *details: Any) -> None:
        self._bar.stop()

    def update(self, rounds: int, kept: int) -> None:
        """Move the bar."""
        rate = self._rate(rounds)
        shown = "compiled" if rate is None else f"{rate:,.0f}/s"
        self._bar.update(self._task, completed=rounds, rate=shown)


class Notebook(Progress):
    """A bar in the output of a notebook's cell."""

    def __init__(self, name: str, total: int) -> None:
        from IPython.display import HTML, display  # it runs this code

        self._name, self._total, self._html = name, total, HTML
        self._shown = display(HTML(self._text(0, "compiling")), display_id=True)
        self._last = 0.0

    def __exit__(self, *details: Any) -> None:
        if self._rounds is not None:
            self._show(*self._rounds)

    _rounds: tuple[int, float | None] | None = None

    def update(self, rounds: int, kept: int) -> None:
        """Move the bar, a few times a second."""
        self._rounds = rounds, self._rate(rounds)
        if time.monotonic() - self._last > SECONDS_BETWEEN_MOVES:
            self._show(*self._rounds)
            self._last = time.monotonic()

    def _show(self, rounds: int, rate: float | None) -> None:
        said = "compiled"
        if rate is not None:
            said = f"{rate:,.3g} rounds/s, {(self._total - rounds) / rate:,.0f} s left"
        self._shown.update(self._html(self._text(rounds, said)))

    def _text(self, rounds: int, said: str) -> str:
        return (
            f'<label>{escape(self._name)} <progress max="{self._total}" value="{rounds}">'
            f"</progress> {rounds:,}/{self._total:,} rounds, {escape(said)}</label>"
        )


class Written(Progress):
    """Keeps ``status.json`` of a run directory up to date, beside what shows the progress.

    A thread writes it, so that it goes on while a round waits for a site.

    Args:
        shown: is told everything, too.
        directory: of the run.
        algorithm: its name.
        length: rounds in all, and those of the warm-up.
        traffic: bytes up and down an iteration, of all chains.
        answering: how the sites answer, see `consortia.engines.contract.Run.answering`.
    """

    def __init__(
        self,
        shown: Progress,
        directory: Path,
        algorithm: str,
        length: tuple[int, int],
        traffic: tuple[int, int],
        answering: Callable[[], dict[str, tuple[float | None, float | None]]],
    ) -> None:
        self._shown, self._directory, self._answering = shown, directory, answering
        self._traffic, self._began = traffic, time.monotonic()
        self._state: dict[str, Any] = {"algorithm": algorithm, "rounds": 0, "draws": 0}
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

    def update(self, rounds: int, kept: int) -> None:
        """Take the numbers; the thread writes them."""
        rate = self._rate(rounds)
        left = None if rate is None else (self._state["of"] - rounds) / rate
        self._state |= {"rounds": rounds, "draws": kept}
        self._state |= {"rounds_per_second": rate, "seconds_left": left}
        self._shown.update(rounds, kept)

    def _keep_writing(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_WRITES):
            self._write()

    def _write(self) -> None:
        state = dict(self._state)
        up, down = (each * state["rounds"] for each in self._traffic)
        state |= {"written": time.time(), "seconds": time.monotonic() - self._began}
        state |= {"bytes_up": up, "bytes_down": down}
        state["sites"] = [
            {"name": name, "answered": answered, "waiting": waiting}
            for name, (answered, waiting) in self._answering().items()
        ]
        # A disk that is full, or a folder that is gone, is the store's to tell.
        with contextlib.suppress(OSError):
            write_status(self._directory, state)


@contextlib.contextmanager
def doing(what: str, *, show: bool) -> Iterator[None]:
    """Say what is being done before the first round, on standard error: it may take minutes.

    On a terminal while it lasts; elsewhere as a JSON line once it lasts.
    """
    if not show:
        yield
    elif sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(what):
            yield
    else:
        line = json.dumps({"doing": what})
        timer = threading.Timer(
            SECONDS_BETWEEN_LINES, lambda: print(line, file=sys.stderr, flush=True)
        )
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def progress_of(name: str, total: int, usual: int | None, *, show: bool) -> Progress:
    """Return a bar on a terminal, else JSON lines on standard error; nothing without ``show``."""
    if not show:
        return Progress()
    if _in_notebook():
        return Notebook(name, total)
    return Bar(name, total) if sys.stderr.isatty() else Lines(name, total, usual)


def _in_notebook() -> bool:
    """Return True if a notebook's kernel runs this code, and shows what it displays."""
    if "IPython" not in sys.modules:  # nobody has imported it: no kernel runs
        return False
    from rich.console import Console

    return Console().is_jupyter
