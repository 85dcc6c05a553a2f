"""The loop over chunks of rounds: bounded memory, progress, stopping, non-finite chains."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.engines.local import LocalRun
from consortia.engines.types import Buffers, Carry, Window
from consortia.errors import NonFiniteError, WarmupError
from consortia.progress import Progress
from consortia.recording import Recorder
from consortia.stopping import StopWhen

SECONDS_PER_CALL = 0.4
"""Rounds run in calls of about this length; where they are cut changes no bit of a draw."""

SECONDS_PER_CHUNK = 30.0
"""Draws leave the device at least about this often."""

LARGEST_GROWTH = 200
NO_DRAWS = 2**31 - 1
"""A thinning so long that no slot is filled."""


@dataclass(frozen=True)
class Length:
    """How long a run is: iterations before the first recorded one, after it, and per kept draw."""

    warmup: int
    rounds: int
    thin: int

    @property
    def total(self) -> int:
        """All iterations."""
        return self.warmup + self.rounds


class RunLoop:
    """Runs an engine's program from the first round to the last, or until something ends it.

    Args:
        run: the engine's side.
        carry: the state before the first round.
        length: warm-up, rounds, thinning.
        recorder: takes the draws of each chunk.
        progress: is told after each call.
        stop: the stopping rule, or None.
        judge: from the hub's state after the warm-up, why the run should not go on, or None.

    Attributes:
        done: iterations that are finished, warm-up included.
    """

    def __init__(
        self,
        run: LocalRun,
        carry: Carry,
        length: Length,
        recorder: Recorder,
        progress: Progress,
        stop: StopWhen | None,
        judge: Callable[[Any], str | None] | None = None,
    ) -> None:
        self.done = 0
        self._run, self._carry, self._length = run, carry, length
        self._recorder, self._progress, self._stop = recorder, progress, stop
        self._judge = judge
        self._buffers: Buffers = run.buffers(carry)
        self._calls = 0
        self._call_rounds = 1

    @property
    def carry(self) -> Carry:
        """The state after the rounds that are done."""
        return self._carry

    @property
    def hub(self) -> Any:
        """The hub's state after the rounds that are done."""
        return self._carry.hub

    def execute(self) -> str:
        """Runs; returns in words what ended the run.

        Raises:
            NonFiniteError: a chain turned non-finite; the draws before it are with the recorder.
            WarmupError: what the warm-up learned is not worth going on with.
            KeyboardInterrupt: the same holds for the draws of the finished calls.
        """
        started = time.monotonic()
        self._until(self._length.warmup, NO_DRAWS)
        if self._judge is not None and self._length.warmup > 0:
            reason = self._judge(self._carry.hub)
            if reason is not None:
                raise WarmupError(reason)
        self._buffers = self._run.buffers(self._carry)
        try:
            while self.done < self._length.total:
                self._chunk()
                if self._stop is not None and self.done < self._length.total:
                    reason = self._stop.reason(self._recorder.draws_so_far(), started)
                    if reason is not None:
                        return reason
        except KeyboardInterrupt:
            self._flush(self.done)
            raise
        return "all rounds were run"

    def _chunk(self) -> None:
        """Rounds until the buffers are full, time is up, or the stopping rule is to be judged."""
        thin = self._length.thin
        slots, each = self._run.layout.slots, self._run.draws_per_iteration
        kept = self._recorder.kept
        last = (kept + slots) * thin // each
        if self._stop is not None:  # whole rounds, until the draws to judge are there
            wanted = (kept // self._stop.every + 1) * self._stop.every
            last = min(last, -(-wanted * thin // each))
        self._until(min(self._length.total, self._length.warmup + last), thin)
        self._flush(self.done)

    def _until(self, stop: int, thin: int) -> None:
        began = time.monotonic()
        while self.done < stop:
            late = self._stop is None and time.monotonic() - began > SECONDS_PER_CHUNK
            if late and thin != NO_DRAWS and self._draws(self.done) % thin == 0:
                return
            self._call(self._end_of_call(stop, thin), thin)
            self._progress.update(self.done, max(self._draws(self.done), 0) // self._length.thin)

    def _end_of_call(self, stop: int, thin: int) -> int:
        """Where this call ends: by time, at the end of a block of thinned rounds where it can."""
        end = min(stop, self.done + self._call_rounds)
        aligned = end - (end - self._length.warmup) % thin
        return aligned if self.done < aligned else end

    def _draws(self, done: int) -> int:
        """Draws that the iterations so far have yielded, before thinning."""
        return (done - self._length.warmup) * self._run.draws_per_iteration

    def _call(self, end: int, thin: int) -> None:
        before, rounds = self._carry, end - self.done
        window = Window(self.done, end, self._recorder.kept, thin, self._length.warmup)
        began = time.monotonic()
        self._carry, self._buffers, finite = self._run.advance(before, self._buffers, window)
        finite = np.asarray(finite)
        seconds = time.monotonic() - began
        if not finite.all():
            raise self._not_finite(before, end, thin)
        self.done = end
        self._calls += 1
        if self._calls > 1:  # the first one compiled
            fitting = int(SECONDS_PER_CALL / max(seconds / rounds, 1e-9))
            self._call_rounds = int(np.clip(fitting, 1, self._call_rounds * LARGEST_GROWTH))

    def _flush(self, until: int) -> None:
        """Hands the finished blocks before round ``until`` to the recorder; empties the buffers."""
        filled = self._draws(until) // self._length.thin - self._recorder.kept
        if filled > 0:
            self._recorder.add(self._buffers, filled)
            self._buffers = self._run.emptied(self._buffers)

    def _not_finite(self, carry: Carry, stop: int, thin: int) -> NonFiniteError:
        """Finds the round, the chain and the site, by bisection from the last good state."""
        warmup, low, high = self._length.warmup, self.done, stop
        scratch = self._run.buffers(carry)
        chain = 0
        while high > low:
            middle = (low + high + 1) // 2 if high - low > 1 else high
            window = Window(low, middle, 0, NO_DRAWS, warmup)
            after, scratch, finite = self._run.advance(carry, scratch, window)
            bad = np.flatnonzero(~np.asarray(finite))
            if bad.size == 0:
                low, carry = middle, after
                continue
            chain = int(bad[0])
            if high - low == 1:
                break
            high = middle
        if thin != NO_DRAWS:
            self._flush(low)
        site = self._run.site_not_finite(carry, low, warmup, chain)
        where = f"at site {site!r}" if site else "at the hub"
        return NonFiniteError(
            f"chain {chain} turned non-finite in round {low} (counted from 0, {warmup} warm-up "
            f"rounds included), first {where}: lower step_size, or look at the model and the data "
            f"there. {self._recorder.kept} draws before it are kept.",
            round=low,
            chain=chain,
            site=site,
            position=self._run.position(carry, chain),
        )
