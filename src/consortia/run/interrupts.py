"""Ctrl-C in a run: the first lets it finish what it is at, the second ends it at once.

So do SIGTERM, which schedulers send before they kill, and SIGHUP, the end of a terminal. After the
run is saved the signal goes to the program: a loop over seeds ends, too. At a prompt and in a
notebook Ctrl-C ends the run alone.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, ParamSpec, TypeVar

from consortia.errors import warn
from consortia.store.ending import Ending, RunEnd

P = ParamSpec("P")
Result = TypeVar("Result")


class Abrupt(KeyboardInterrupt):
    """The second interrupt: nothing more is saved, the last checkpoint stands."""


SIGNALS = tuple(
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if (number := getattr(signal, name, None)) is not None  # Windows has no SIGHUP
)
USUAL = (signal.default_int_handler, signal.SIG_DFL)
"""Handlers where a program has none of its own."""


def interrupted(error: KeyboardInterrupt, where: str, directory: Path | None) -> Ending:
    """Return the end of a run that was interrupted; warn of it.

    Args:
        error: the interrupt; a second one of a stored run is raised again.
        where: the round or message after which it came.
        directory: of the run; None: it is not stored.
    """
    if directory is not None and isinstance(error, Abrupt):
        raise error
    how = "" if directory is None else f"; continue with `consortia resume {directory}`"
    warn(f"interrupted after {where}; the draws so far are returned{how}")
    return Ending(RunEnd.INTERRUPTED, f"interrupted after {where}")


class Interrupts:
    """A context that notes the first interrupt instead of raising it.

    In other threads than the main one, and where a program has a handler of its own, it changes
    nothing.

    Attributes:
        requested: an interrupt was noted.
    """

    def __init__(self) -> None:
        self.requested = False
        self._number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) in USUAL:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *details: Any) -> None:
        if self._number is not None:
            _passing.number = self._number
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise Abrupt
        self.requested, self._number = True, number


_passing = SimpleNamespace(number=None, holders=0)
"""The signal that ended a run and has not yet gone on to the program, and how many contexts keep it
here."""


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Keep signals that ended a run from the program, which looks at the run's state itself."""
    _passing.holders += 1
    try:
        yield
    finally:
        _passing.holders -= 1


def passed_on(function: Callable[P, Result]) -> Callable[P, Result]:
    """Return a function that runs a sampler; a signal that ended the run goes to the program.

    The result is in the attribute ``tree`` of the `KeyboardInterrupt` that Ctrl-C becomes.
    """

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> Result:
        _passing.number = None if not _passing.holders else _passing.number
        with held():
            tree = function(*args, **options)
        number, _passing.number = _passing.number, None
        if number is None or _passing.holders:
            return tree
        if number != signal.SIGINT:
            signal.raise_signal(number)
        elif not _typed() or "posterior" not in getattr(tree, "children", ("posterior",)):
            error = KeyboardInterrupt("the run was interrupted; its result is in .tree")
            error.tree = tree  # type: ignore[attr-defined]
            raise error
        return tree

    return call


def _typed() -> bool:
    """Return True where somebody types Python: at a prompt, or in a notebook."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules
