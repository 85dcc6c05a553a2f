"""Rounds whose pieces between two exchanges are one compiled call each, recording included.

A compiled call costs tens of microseconds, as much as an exchange with a neighbour. What follows an
exchange, the record of the iteration and what comes before the next exchange are therefore one
call. Barriers stand between them, so that each is compiled as it is alone and a run that is cut
into other chunks rounds alike.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from consortia.base import Mix
from consortia.engines.mpi.pieces import Blocks, Carrier, Flow, Numbers, Recording, Stage
from consortia.engines.mpi.wire import Packed
from consortia.engines.types import Buffers, Carry, SiteArrays, Window

Array = Any
"""Of NumPy or of JAX."""


class Moment(NamedTuple):
    """An iteration as its pieces see it.

    Attributes:
        numbers: the random numbers of its block.
        marks: where it stands in the block, as a piece takes it (2), and what `Recording` wants to
            know of it (3).
    """

    numbers: Numbers
    marks: Array

    @property
    def at(self) -> Array:
        """Where it stands in its block."""
        return self.marks[:2]


class Straight:
    """The rounds of a stage in which every exchange happens once a round.

    Args:
        stage: its phases and pieces.
        recording: what is recorded of an iteration.
        blocks: the random numbers.
        here: which chains this rank records, (chains,).
    """

    def __init__(
        self, stage: Stage, recording: Recording, blocks: Blocks, here: np.ndarray
    ) -> None:
        self._stage, self._recording, self._blocks, self._here = stage, recording, blocks, here
        cuts = [n for n, phase in enumerate(stage.phases) if phase.exchange is not None]
        self._cuts, self._last = cuts, len(stage.phases)
        self._first = jax.jit(self._opening)
        self._between = [
            jax.jit(partial(self._gap, one, other)) for one, other in itertools.pairwise(cuts)
        ]
        self._turn = jax.jit(self._turning, donate_argnums=(0, 1))
        self._end = jax.jit(self._closing, donate_argnums=(0, 1))

    @staticmethod
    def serves(stage: Stage) -> bool:
        """Whether the rounds of a stage are of this kind."""
        crossing = [phase for phase in stage.phases if phase.exchange is not None]
        return bool(crossing) and not any(
            phase.repeats is not None
            or phase.repeated
            or (isinstance(phase.exchange, Mix) and phase.exchange.times > 1)
            for phase in crossing
        )

    # --- on the host ----------------------------------------------------------------------------

    def advance(
        self, carry: Carry, buffers: Buffers, window: Window, sites: SiteArrays, carrier: Carrier
    ) -> tuple[Carry, Buffers]:
        """The rounds of a window; consumes ``buffers``."""
        first, stop = int(window.first), int(window.stop)
        if first == stop:
            return carry, buffers
        warmup = int(window.warmup)
        marks = self._marks(first, stop, window)
        numbers, _ = self._blocks.at(first, warmup)
        flow, packed = self._first(carry, numbers, marks[0], sites)
        for row, iteration in enumerate(range(first, stop)):
            for number, gap in enumerate(self._between):
                message = carrier(self._cuts[number], 0, packed)
                flow, packed = gap(flow, message, numbers, marks[row], sites)
            message = carrier(self._cuts[-1], 0, packed)
            if iteration + 1 < stop:
                before, (numbers, _) = numbers, self._blocks.at(iteration + 1, warmup)
                both = marks[row : row + 2]
                buffers, flow, packed = self._turn(
                    buffers, flow, message, before, numbers, both, sites
                )
        buffers, carry = self._end(buffers, flow, message, numbers, marks[-1], sites)
        return carry, buffers

    def _marks(self, first: int, stop: int, window: Window) -> np.ndarray:
        """`Moment.marks` of every iteration, (rounds, 5), int32: one small array a call."""
        iterations = np.arange(first, stop)
        marks = np.zeros((len(iterations), 5), np.int32)
        marks[:, 0] = iterations % self._blocks.length
        marks[:, 2] = iterations - int(window.warmup)
        marks[:, 3:] = int(window.origin), int(window.thin)
        return marks

    # --- compiled -------------------------------------------------------------------------------

    def _opening(
        self, carry: Carry, numbers: Numbers, marks: Array, sites: SiteArrays
    ) -> tuple[Flow, Packed]:
        """From the beginning of an iteration to its first exchange."""
        flow = Flow(carry, (), (), {}, {})
        return self._begun(flow, 0, self._cuts[0], Moment(numbers, marks), sites)

    def _gap(
        self,
        one: int,
        other: int,
        flow: Flow,
        message: Packed,
        numbers: Numbers,
        marks: Array,
        sites: SiteArrays,
    ) -> tuple[Flow, Packed]:
        """From one exchange to the next of the same iteration."""
        now = Moment(numbers, marks)
        flow = self._ended(flow, one, message, now, sites)
        return self._begun(flow, one + 1, other, now, sites)

    def _turning(
        self,
        buffers: Buffers,
        flow: Flow,
        message: Packed,
        before: Numbers,
        numbers: Numbers,
        marks: Array,
        sites: SiteArrays,
    ) -> tuple[Buffers, Flow, Packed]:
        """From the last exchange of an iteration to the first of the next one."""
        buffers, carry = self._closing(buffers, flow, message, before, marks[0], sites)
        return buffers, *self._opening(_apart(carry), numbers, marks[1], sites)

    def _closing(
        self,
        buffers: Buffers,
        flow: Flow,
        message: Packed,
        numbers: Numbers,
        marks: Array,
        sites: SiteArrays,
    ) -> tuple[Buffers, Carry]:
        """From the last exchange of an iteration to its record."""
        now = Moment(numbers, marks)
        flow = self._ended(flow, self._cuts[-1], message, now, sites)
        flow = _apart(self._alone(flow, self._cuts[-1] + 1, self._last, now, sites))
        here = jnp.asarray(self._here)
        return self._recording.recorded(buffers, flow, marks[2:], here), flow.carry

    def _begun(
        self, flow: Flow, first: int, cut: int, now: Moment, sites: SiteArrays
    ) -> tuple[Flow, Packed]:
        flow = _apart(self._alone(flow, first, cut, now, sites))
        return self._stage.begin(cut, flow, now.numbers[cut], now.at, sites)

    def _ended(self, flow: Flow, cut: int, message: Packed, now: Moment, sites: SiteArrays) -> Flow:
        return _apart(self._stage.end(cut, flow, message, now.numbers[cut], now.at, sites))

    def _alone(self, flow: Flow, first: int, stop: int, now: Moment, sites: SiteArrays) -> Flow:
        """The phases in which nothing crosses the network."""
        for index in range(first, stop):
            flow = _apart(self._stage.whole(index, flow, now.numbers[index], now.at, sites))
        return flow


def _apart(value: Any) -> Any:
    """The value, computed before whatever uses it is."""
    return jax.lax.optimization_barrier(value) if jax.tree.leaves(value) else value
