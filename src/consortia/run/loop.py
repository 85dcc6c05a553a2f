"""The loop over chunks of rounds: bounded memory, progress, stopping, non-finite chains."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consortia.engines.buffers import Buffers, Window
from consortia.engines.contract import Run
from consortia.engines.phases import Carry
from consortia.errors import NonFiniteError, SiteMissingError, WarmupError
from consortia.run.interrupts import Abrupt, Interrupts
from consortia.run.progress import Progress
from consortia.run.recording import Recorder
from consortia.run.stopping import StopWhen
from consortia.store.ending import ALL_ROUNDS, Ending, RunEnd
from consortia.store.libraries import imported_aside

SECONDS_PER_CALL = 0.4
"""Rounds run in calls of about this length; where they are cut changes no bit of a draw."""

SECONDS_PER_CHUNK = 30.0
"""Draws leave the device, and the run is saved, at least about this often."""

LARGEST_GROWTH = 200
NO_DRAWS = 2**31 - 1
"""A thinning so long that no slot is filled."""


@dataclass(frozen=True)
class RunLength:
    """Iterations of a run before the first recorded one, after it, and per kept draw."""

    warmup: int
    rounds: int
    thin: int

    @property
    def total(self) -> int:
        """All iterations."""
        return self.warmup + self.rounds


@dataclass(frozen=True)
class ResumePoint:
    """The place at which a run is resumed."""

    done: int = 0  # iterations that are finished, warm-up included
    seconds: float = 0.0  # that they took
    ended: Ending | None = None  # why the run ended there, if it did
    # what was recorded of the block of thinned rounds in progress; empty at its end
    block: Mapping[str, np.ndarray] = field(default_factory=dict)


class RunLoop:
    """Runs an engine's program from one round to the last, or until something ends it.

    Draws leave the device chunk by chunk. With a store the run is saved at the ends of chunks:
    draws first, then a checkpoint. Where it is saved changes no bit of a draw.

    Args:
        run: the engine's side.
        carry: the state to start from.
        length: warm-up, rounds, thinning.
        recorder: takes the draws of each chunk.
        progress: is updated after each call.
        stop: the stopping rule, or None.
        check_learned: from the hub's state after the warm-up, a reason to end the run, or None;
            None for a method that learns nothing.
        reached: how far the run is.
        save: writes what the recorder holds, and a checkpoint; None without a store.

    Attributes:
        done: iterations that are finished, warm-up included.
        carry: the state after them.
        ended: why the run ended, if it has.
    """

    def __init__(
        self,
        run: Run,
        carry: Carry,
        length: RunLength,
        recorder: Recorder,
        progress: Progress,
        stop: StopWhen | None,
        check_learned: Callable[[Any], str | None] | None,
        *,
        reached: ResumePoint | None = None,
        save: Callable[[RunLoop], None] | None = None,
    ) -> None:
        reached = ResumePoint() if reached is None else reached
        self.done = reached.done
        self.ended = reached.ended
        self._run, self.carry, self._length = run, carry, length
        self._recorder, self._progress, self._stop = recorder, progress, stop
        self._check_learned, self._save = check_learned, save
        self._buffers: Buffers = run.buffers(carry)
        if reached.block:
            self._buffers = run.with_block(self._buffers, reached.block)
        self._calls = 0
        self._call_rounds = 1
        self._started = time.monotonic() - reached.seconds
        self._saved = time.monotonic()
        self._saved_at = -1
        self._interrupts = Interrupts()

    @property
    def hub(self) -> Any:
        """The hub's state after the rounds that are done."""
        return self._run.hub(self.carry)

    @property
    def seconds(self) -> float:
        """Seconds that the run has taken so far, those before it was resumed included."""
        return time.monotonic() - self._started

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the engine's state, and the block of thinned rounds in progress."""
        block: dict[str, np.ndarray] = {}
        begun = max(self._draws(self.done), 0) > self._recorder.kept * self._length.thin
        if begun and self._run.draws_per_iteration == 1:  # infos are averages so far
            block = self._run.block_in_progress(self._buffers, 0)
        return self._run.state(self.carry) | block

    def execute(self) -> Ending:
        """Run; return what ended the run.

        Raises:
            NonFiniteError: a chain turned non-finite; the draws before it are with the recorder.
            SiteMissingError: a site did not answer; the same holds for the finished rounds.
            WarmupError: what the warm-up learned is not worth going on with.
            KeyboardInterrupt: the same holds for the draws of the finished calls; with a store they
                are saved, with a checkpoint.
        """
        with self._interrupts:
            try:
                self._store_if(True)  # a request from before the run
                self.ended = self.ended or self._execute()
                self._store_if(True)
            except Abrupt:
                raise
            except (KeyboardInterrupt, SiteMissingError):
                self._flush(self.done)
                self._store_if(True)
                raise
        return self.ended

    def _execute(self) -> Ending:
        warmup = self._length.warmup
        if self.done <= warmup:
            while self.done < warmup:
                self._until(warmup, NO_DRAWS)
                self._store_if(self._late())
            if warmup > 0 and self._check_learned is not None:
                reason = self._check_learned(self.hub)
                if reason is not None:
                    raise WarmupError(reason)
            self._buffers = self._run.buffers(self.carry)
        while self.done < self._length.total:
            end, stop_due = self._end_of_chunk()
            self._until(end, self._length.thin)
            self._flush(self.done)
            if stop_due and self._stop is not None and self.done == end < self._length.total:
                reason = self._stop_reason(self._stop)
                if reason is not None:
                    return Ending(RunEnd.STOPPING_RULE, reason)
            self._store_if(self._late() or self._recorder.full)
        return ALL_ROUNDS

    def _stop_reason(self, stop: StopWhen) -> str | None:
        """Ask the stopping rule for a reason to end here; who keeps the draws decides for all."""
        reason = None
        if self._run.root:
            reason = stop.reason(self._recorder.draws_so_far, self._started)
        ended = self._run.agree(reason is not None)
        return (reason or "the stopping rule") if ended else None

    def _end_of_chunk(self) -> tuple[int, bool]:
        """Return the end of the chunk: full buffers, or a due stopping rule, then also True."""
        thin, each = self._length.thin, self._run.draws_per_iteration
        kept = self._recorder.kept
        room = min(self._run.layout.slots, self._recorder.room)
        last, stop_due = max((kept + room) * thin // each, 1), False
        if self._stop is not None:  # whole rounds, until the draws to check are there
            wanted = (kept // self._stop.every + 1) * self._stop.every
            at = -(-wanted * thin // each)
            last, stop_due = min(last, at), at <= last
        last = max(last, self.done - self._length.warmup + 1)
        return min(self._length.total, self._length.warmup + last), stop_due

    def _late(self) -> bool:
        return bool(self._run.agree(time.monotonic() - self._saved > SECONDS_PER_CHUNK))

    def _store_if(self, wanted: bool) -> None:
        """Save the run, unless it was saved in this very round."""
        if not wanted or (self.done == self._saved_at and self.ended is None):
            return
        if self._save is not None:
            self._save(self)
        self._saved, self._saved_at = time.monotonic(), self.done

    def _until(self, stop: int, thin: int) -> None:
        calls = 0
        while self.done < stop and not (calls and self._late()):
            self._call(self._end_of_call(stop, thin), thin)
            calls += 1
            kept = max(self._draws(self.done), 0) // self._length.thin
            self._progress.update(self.done, kept)
            if self._run.agree(self._interrupts.requested):
                raise KeyboardInterrupt

    def _end_of_call(self, stop: int, thin: int) -> int:
        """Return the end of this call: by time, at the end of a thinned block where it can."""
        end = min(stop, self.done + self._call_rounds)
        aligned = end - (end - self._length.warmup) % thin
        return aligned if self.done < aligned else end

    def _draws(self, done: int) -> int:
        """Return the draws that the iterations so far have yielded, before thinning."""
        return (done - self._length.warmup) * self._run.draws_per_iteration

    def _call(self, end: int, thin: int) -> None:
        before, rounds = self.carry, end - self.done
        window = Window(self.done, end, self._recorder.kept, thin, self._length.warmup)
        began = time.monotonic()
        try:
            with imported_aside(self._recorder.libraries):  # the first call compiles
                self.carry, self._buffers, finite = self._run.advance(before, self._buffers, window)
        except SiteMissingError as error:
            if error.reached is not None:
                self.done, (self.carry, self._buffers) = error.round, error.reached
            error.round, error.reached = self.done, None
            raise
        finite = np.asarray(finite)
        seconds = time.monotonic() - began
        if not finite.all():
            raise self._not_finite(before, end, thin)
        self.done = end
        self._calls += 1
        if self._calls > 1:  # the first one compiled
            fitting = int(SECONDS_PER_CALL / max(seconds / rounds, 1e-9))
            fitting = int(np.clip(fitting, 1, self._call_rounds * LARGEST_GROWTH))
            self._call_rounds = int(self._run.agree(fitting))

    def _flush(self, until: int) -> None:
        """Move the finished blocks before round ``until`` to the recorder; empty the buffers."""
        filled = self._draws(until) // self._length.thin - self._recorder.kept
        if filled <= 0:
            return
        block: dict[str, np.ndarray] = {}
        if self._draws(until) % self._length.thin and self._run.draws_per_iteration == 1:
            block = self._run.block_in_progress(self._buffers, filled)
        self._recorder.add(self._run.collected(self._buffers), filled)
        self._buffers = self._run.emptied(self._buffers)
        if block:
            self._buffers = self._run.with_block(self._buffers, block)

    def _not_finite(self, carry: Carry, stop: int, thin: int) -> NonFiniteError:
        """Find the round, the chain and the site, by bisection from the last good state."""
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
            position=self._run.positions(carry)[chain],
        )
