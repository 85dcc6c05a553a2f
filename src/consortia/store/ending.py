"""Ends of runs: a kind that programs read, and words for people."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from consortia.errors import NonFiniteError, RankError, SiteMissingError, WarmupError


class RunEnd(StrEnum):
    """The kinds of ends; the record of a run has the value under ``end``."""

    ALL_ROUNDS = "all rounds"
    STOPPING_RULE = "stopping rule"
    INTERRUPTED = "interrupted"
    SITE_MISSING = "site missing"
    RANK_LOST = "rank lost"
    NON_FINITE = "non-finite"
    WARMUP_REFUSED = "warm-up refused"

    @property
    def state(self) -> str:
        """State of the run: finished, interrupted (it can be resumed), or failed."""
        if self in (RunEnd.ALL_ROUNDS, RunEnd.STOPPING_RULE):
            return "finished"
        return "failed" if self in (RunEnd.NON_FINITE, RunEnd.WARMUP_REFUSED) else "interrupted"


class Ending(NamedTuple):
    """The end of one run."""

    kind: RunEnd  # see `RunEnd`
    text: str  # the same in words, with the round, the rule or the error; ``stopped`` in the record

    @classmethod
    def by(cls, error: Fatal) -> Ending:
        """Return the end that one of `ERRORS` is."""
        return cls(next(end for kind, end in ERRORS.items() if isinstance(error, kind)), str(error))

    @classmethod
    def read(cls, stored: Sequence[str] | None) -> Ending | None:
        """Read a checkpoint's header."""
        return None if stored is None else cls(RunEnd(stored[0]), stored[1])


Fatal = NonFiniteError | WarmupError | SiteMissingError | RankError

ERRORS: dict[type[Fatal], RunEnd] = {
    NonFiniteError: RunEnd.NON_FINITE,
    WarmupError: RunEnd.WARMUP_REFUSED,
    SiteMissingError: RunEnd.SITE_MISSING,
    RankError: RunEnd.RANK_LOST,
}
"""Errors that end a run and leave it a result, which is in their attribute ``tree``."""

ALL_ROUNDS = Ending(RunEnd.ALL_ROUNDS, "all rounds were run")
