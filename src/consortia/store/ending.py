"""Ends of runs: a kind that programs read, and words for people."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


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
    def read(cls, stored: Sequence[str] | None) -> Ending | None:
        """Read a checkpoint's header."""
        return None if stored is None else cls(RunEnd(stored[0]), stored[1])


ALL_ROUNDS = Ending(RunEnd.ALL_ROUNDS, "all rounds were run")
