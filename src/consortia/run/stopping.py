"""Stopping rules, checked on the kept draws in mid-run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.errors import wrong


@dataclass(frozen=True)
class StopWhen(metaclass=arguments.Hinted):
    """A stopping rule for `sample(..., stop=...)`; ``rounds`` stays the most that are run.

    R-hat and ESS say whether chains agree and how many independent draws they are worth. They
    cannot see bias: a sampler of the wrong law passes. Compare with the exact law or a reference.

    Args:
        rhat: stop when the largest R-hat over the parameters is at most this (between chains, or
            between the halves of a single one).
        ess: and the smallest ESS, bulk or tail, is at least this.
        budget: stop when this many seconds have passed, whatever the other two say.
        every: kept draws between two checks, at which a chunk ends.

    Raises:
        InputError: no rule is given, or one is out of its range.

    Example:
        >>> stop_when(rhat=1.01, ess=400)
        StopWhen(rhat=1.01, ess=400.0, budget=None, every=100)
    """

    rhat: float | None = None
    ess: float | None = None
    budget: float | None = None
    _: KW_ONLY
    every: int = 100

    def __post_init__(self) -> None:
        if self.rhat is None and self.ess is None and self.budget is None:
            raise wrong("rhat", ", ess and budget: stop_when needs at least one of them.")
        arguments.keep(
            self,
            rhat=arguments.optional_number("rhat", self.rhat, 1.0),
            ess=arguments.optional_number("ess", self.ess, 1.0),
            budget=arguments.optional_number("budget", self.budget, 0.0),
            every=arguments.whole("every", self.every, 4),
        )

    def reason(self, so_far: Callable[[], np.ndarray], started: float) -> str | None:
        """Find a reason to stop now; None where there is none.

        Args:
            so_far: returns the kept draws so far, (chains, draws, d); a budget needs none.
            started: `time.monotonic` at the start of the run.
        """
        if self.budget is not None and time.monotonic() - started >= self.budget:
            return f"the budget of {self.budget:g} s is spent"
        if self.rhat is None and self.ess is None:
            return None
        from consortia.diagnostics.convergence import rhat_and_ess

        draws = so_far()
        between: Any = "chains" if draws.shape[0] > 1 else "halves"
        verdict = rhat_and_ess(draws, between=between)
        rhat, ess = verdict.max_r_hat, verdict.min_ess
        reached = []
        if self.rhat is not None:
            if not rhat <= self.rhat:  # NaN is not good enough
                return None
            reached.append(f"R-hat {rhat:.4g} <= {self.rhat:g}")
        if self.ess is not None:
            if not ess >= self.ess:
                return None
            reached.append(f"ESS {ess:.4g} >= {self.ess:g}")
        return " and ".join(reached)


stop_when = StopWhen


def check_rule(stop: Any) -> StopWhen | None:
    """Return ``stop`` where it is None or a rule."""
    if stop is None or isinstance(stop, StopWhen):
        return stop
    raise wrong("stop", f" is {stop!r}: give consortia.stop_when(...).")
