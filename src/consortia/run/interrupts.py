"""Ctrl-C in a run: the first lets it finish what it is at, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Abrupt(KeyboardInterrupt):
    """The second interrupt: nothing more is saved, the last checkpoint stands."""


class Interrupts:
    """A context that notes the first interrupt instead of raising it.

    In other threads than the main one, and where a program has a handler of its own, it changes
    nothing.

    Attributes:
        requested: an interrupt was noted.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *details: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise Abrupt
        self.requested = True
