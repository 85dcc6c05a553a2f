"""Rounds as one compiled program, which calls the exchanges in its midst.

A call of a compiled program costs tens of microseconds, as much as an exchange with a neighbour.
Here a whole window of rounds is one call, and the host moves data only where a phase exchanges. The
program is the same for any window, so that a run that is cut into other chunks rounds alike.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from consortia.engines.buffers import Buffers, Window
from consortia.engines.mpi.foreign import HostCallback, raised
from consortia.engines.mpi.pieces import Blocks, Carrier, Flow, RandomStreams, Recording, Stage
from consortia.engines.mpi.wire import Packed
from consortia.engines.phases import Carry, SiteArrays
from consortia.engines.rng import PhaseKeys

Array = jax.Array
State = tuple[Buffers, Carry, Array]
"""What passes from round to round; the last is the turn of the next exchange."""


class Straight:
    """The rounds of a stage, in the memory of this process.

    Args:
        stage: its phases and pieces.
        recording: what is recorded of an iteration.
        blocks: the random numbers.
        here: which chains this rank records, (chains,).
        carrier: what moves the packed arrays.
    """

    def __init__(
        self,
        stage: Stage,
        recording: Recording,
        blocks: Blocks,
        here: np.ndarray,
        carrier: Carrier,
    ) -> None:
        self._stage, self._recording, self._blocks, self._here = stage, recording, blocks, here
        self._exchanges = {
            index: HostCallback(partial(carrier, index))
            for index, phase in enumerate(stage.phases)
            if phase.exchange is not None
        }
        self._rounds = jax.jit(self._of_window, donate_argnums=0)

    def advance(
        self, carry: Carry, buffers: Buffers, window: Window, sites: SiteArrays
    ) -> tuple[Carry, Buffers]:
        """The rounds of a window; consumes ``buffers``.

        Raises:
            RankError: another rank failed, or did not answer in time.
        """
        with raised(*self._exchanges.values()):
            buffers, carry = self._rounds(
                buffers, carry, self._blocks.keys, np.array(window, np.int32), sites
            )
            jax.block_until_ready(buffers)
        return carry, buffers

    # --- compiled -------------------------------------------------------------------------------

    def _of_window(
        self,
        buffers: Buffers,
        carry: Carry,
        keys: tuple[PhaseKeys, ...],
        numbers_of_window: Array,
        sites: SiteArrays,
    ) -> tuple[Buffers, Carry]:
        """The rounds of a window, block by block as their random numbers are drawn."""
        window, length = Window(*numbers_of_window), self._blocks.length

        def block(number: Array, state: State) -> State:
            begin = number * length
            numbers = self._blocks.drawn(keys, begin, window.warmup)

            def one(row: Array, state: State) -> State:
                buffers, carry, turn = state
                flow, turn = self._iteration(carry, numbers, row, turn, sites)
                at = jnp.stack([begin + row - window.warmup, window.origin, window.thin])
                buffers = self._recording.recorded(buffers, flow, at, jnp.asarray(self._here))
                return buffers, flow.carry, turn

            first = jnp.maximum(window.first - begin, 0)
            stop = jnp.minimum(window.stop - begin, length)
            return jax.lax.fori_loop(first, stop, one, state)

        state = buffers, carry, jnp.int32(0)
        blocks = window.first // length, -(-window.stop // length)
        buffers, carry, _ = jax.lax.fori_loop(*blocks, block, state)
        return buffers, carry

    def _iteration(
        self, carry: Carry, numbers: RandomStreams, row: Array, turn: Array, sites: SiteArrays
    ) -> tuple[Flow, Array]:
        flow = Flow(carry, (), (), {}, {})
        for index, phase in enumerate(self._stage.phases):
            if phase.exchange is None:
                at = jnp.stack([row, jnp.int32(0)])
                flow = self._stage.whole(index, flow, numbers[index], at, sites)
                continue

            def once(
                repetition: Array, state: tuple[Flow, Array], index: int = index
            ) -> tuple[Flow, Array]:
                flow, turn = state
                at = jnp.stack([row, repetition])
                flow, packed = self._stage.begin(index, flow, numbers[index], at, sites)
                message, turn = self._exchanged(index, packed, turn)
                for _ in range(1, getattr(self._stage.phases[index].exchange, "times", 1)):
                    flow, packed = self._stage.mixed(index, flow, message)
                    message, turn = self._exchanged(index, packed, turn)
                return self._stage.end(index, flow, message, numbers[index], at, sites), turn

            if phase.repeated:
                count = self._stage.repetitions(index, flow.carry.hub)
                flow, turn = jax.lax.fori_loop(0, count, once, (flow, turn))
            else:
                flow, turn = once(jnp.int32(0), (flow, turn))
        return flow, turn

    def _exchanged(self, index: int, packed: Packed, turn: Array) -> tuple[Packed, Array]:
        """What an exchange brings for the packed own rows, and the next turn."""
        shapes = self._stage.arriving(index, packed)
        turn, message = self._exchanges[index](turn, packed, shapes)
        return message, turn
