"""A way to run sketches: phases written against the contract alone, on the local engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core.target import Target
from consortia.engines import rng
from consortia.engines.buffers import Window
from consortia.store.results import Records


class Runner:
    """One sketch on one set of sites, advanced round by round."""

    def __init__(
        self,
        method_around: Any,
        make: Any,
        model: Any,
        sites: Any,
        start: Any,
        seed: int = 0,
        rounds: int = 1,
        **engine: Any,
    ) -> None:
        start = np.asarray(start)
        self.chains = len(start)
        self.target = Target(model, jax.tree.map(jnp.asarray, model.init))
        self.run = consortia.LocalEngine(**engine).prepare(
            self.target, sites, method_around(make, equal=True), self.chains
        )
        self.carry = self.run.start(seed, jnp.asarray(start, self.target.dtype), rounds)
        phases, weights = self.run.program.algorithm.phases, jnp.full(len(sites), 1 / len(sites))

        @jax.jit
        def drawn(keys: Any, at: Any) -> Any:
            counter = rng.Counter(at, jnp.int32(0))
            return rng.round_randomness(phases, keys, counter, rng.Source(self.run.layout, weights))

        self.drawn, self.done = drawn, 0

    def advance(self, rounds: int, thin: int = 1) -> Records:
        """Runs some rounds and returns what they recorded."""
        buffers = self.run.buffers(self.carry)
        origin = self.done // thin
        window = Window(self.done, self.done + rounds, origin, thin, 0)
        self.carry, buffers, _ = self.run.advance(self.carry, buffers, window)
        self.done += rounds
        return Records.of_buffers(buffers, rounds // thin, self.chains)

    def numbers(self, at: int) -> Any:
        """What the engine draws for the phases of a round."""
        return jax.tree.map(np.asarray, self.drawn(self.run.keys, jnp.int32(at)))


@pytest.fixture
def runner(method_around: Any) -> Callable[..., Runner]:
    """``(make, model, sites, start, ...) -> Runner``."""
    return partial(Runner, method_around)
