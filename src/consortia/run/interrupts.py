"""Ctrl-C in a run: the first lets it finish what it is at, the second ends it at once.

So do SIGTERM, which schedulers send before they kill, and SIGHUP, the end of a terminal.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Abrupt(KeyboardInterrupt):
    """The second interrupt: nothing more is saved, the last checkpoint stands."""


SIGNALS = tuple(
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if (number := getattr(signal, name, None)) is not None  # Windows has no SIGHUP
)
USUAL = (signal.default_int_handler, signal.SIG_DFL)
"""What stands where a program has no handler of its own."""


class Interrupts:
    """A context that notes the first interrupt instead of raising it.

    In other threads than the main one, and where a program has a handler of its own, it changes
    nothing.

    Attributes:
        requested: an interrupt was noted.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) in USUAL:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *details: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise Abrupt
        self.requested = True
