"""What the server computes: the second half of each phase, and phases of the hub alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core.contract import Route
from consortia.engines import exchanges, rng
from consortia.engines.flower.stages import Stage
from consortia.engines.phases import Carry, kept_where
from consortia.engines.rng import Counter, PhaseKeys, PhaseRandomness

Array = jax.Array
PyTree = Any


class Hub:
    """The server's pieces of the phases of one stage, each compiled once.

    A carry here has no node states: they are at the sites.

    Args:
        stage: whose.
        base: the run's base key.
    """

    def __init__(self, stage: Stage, base: np.ndarray) -> None:
        self.stage, self._base = stage, base
        self._made: tuple[PhaseKeys, ...] = ()
        indices = range(len(stage.phases))
        self._alone = [jax.jit(partial(self._hub_only, index)) for index in indices]
        self._end = [jax.jit(partial(self._second_half, index)) for index in indices]
        self._runs = [
            None
            if phase.repeats is None
            else jax.jit(stage.own.over_chains(phase.repeats, 0, stage.chains))
            for phase in stage.phases
        ]
        self._visits = jax.jit(self._visited)

    def alone(self, index: int, carry: Carry, counter: Counter) -> tuple[Carry, dict[str, Array]]:
        """A phase of the hub alone, all its repetitions; and its infos."""
        return self._alone[index](carry, self._keys(index), _packed(counter))

    def end(
        self, index: int, carry: Carry, outbox: PyTree, weights: np.ndarray, counter: Counter
    ) -> tuple[Carry, dict[str, Array]]:
        """From the outboxes of all sites, node axis first, to the end of the phase."""
        return self._end[index](carry, outbox, weights, self._keys(index), _packed(counter))

    def counts(self, index: int, carry: Carry) -> np.ndarray:
        """How often each chain repeats the phase, (chains,)."""
        count = self._runs[index]
        if count is None:
            return np.full(self.stage.chains, self.stage.phases[index].repeat)
        return np.atleast_1d(np.asarray(count(carry.hub)))

    def visits(self, counter: Counter) -> np.ndarray:
        """The site that each chain visits in an iteration, (chains,)."""
        return np.atleast_1d(np.asarray(self._visits(self._keys(0), _packed(counter))))

    def _keys(self, index: int) -> PhaseKeys:
        """Of a phase: made once; private numbers are drawn at the sites, but shapes need a node."""
        if not self._made:
            self._made = jax.jit(partial(self.stage.keys, only=0))(self._base)
        return self._made[index]

    # --- compiled -----------------------------------------------------------------------------

    def _drawn(self, index: int, keys: PhaseKeys, counter: Array) -> PhaseRandomness:
        phase = self.stage.phases[index]
        here = Counter(counter[0], counter[1], counter[2] if phase.repeated else None)
        return self.stage.drawn(phase, keys, here)

    def _hub_only(self, index: int, carry: Carry, keys: PhaseKeys, counter: Array) -> Any:
        stage, phase = self.stage, self.stage.phases[index]
        drawn = rng.phase_randomness(
            phase,
            keys,
            Counter(counter[0], counter[1]),
            stage.layout,
            stage.weights,
        )
        rest = (phase, drawn, carry, _no_sites(), False, stage.chains)
        if phase.repeated:
            return stage.own.repeated(*rest), {}
        after, _, info, _ = stage.own.phase(*rest)
        return after, info

    def _second_half(
        self,
        index: int,
        carry: Carry,
        outbox: PyTree,
        weights: Array,
        keys: PhaseKeys,
        counter: Array,
    ) -> Any:
        stage, phase = self.stage, self.stage.phases[index]
        drawn = self._drawn(index, keys, counter)
        message = outbox
        if not isinstance(phase.exchange, Route):
            message = exchanges.message_of(phase.exchange, outbox, weights)
        after, info = stage.own.receive(phase, drawn, carry, outbox, message, stage.chains)
        if phase.repeats is not None:
            count = stage.own.over_chains(phase.repeats, 0, stage.chains)(carry.hub)
            after = kept_where(counter[2] < count, after, carry, False)
        return after, {} if phase.repeated else info

    def _visited(self, keys: PhaseKeys, counter: Array) -> Array:
        visited = self._drawn(0, keys, counter).visited
        if visited is None:
            raise TypeError("no phase has a Route")
        return visited


def _packed(counter: Counter) -> np.ndarray:
    return np.array([counter.iteration, counter.warmup, counter.repetition or 0], np.int32)


def _no_sites() -> Any:
    from consortia.engines.phases import SiteArrays

    one = jnp.ones(1, jnp.result_type(float))
    return SiteArrays((), jnp.ones(1, jnp.int32), one, one, ())
