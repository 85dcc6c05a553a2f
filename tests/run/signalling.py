"""A signal that a process sends itself in a run: at an event, and at no time, whatever the load."""

from __future__ import annotations

import os
from typing import Any

from consortia.run.progress import Progress


def send_in_run(number: int, draws: int = 1) -> None:
    """Send this process a signal, when its next run has kept so many draws."""
    plain = Progress.update

    def update(self: Progress, rounds: int, kept: int, *sent: Any) -> None:
        plain(self, rounds, kept, *sent)
        if rounds and kept >= draws:
            Progress.update = plain  # type: ignore[method-assign]
            os.kill(os.getpid(), number)

    Progress.update = update  # type: ignore[method-assign]
