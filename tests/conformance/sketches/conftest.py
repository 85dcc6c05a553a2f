"""A way to run sketches: phases written against `consortia.base` alone, on the local engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.base import Algorithm, Cost
from consortia.engines import drawing
from consortia.engines.types import Window
from consortia.results import Records
from consortia.target import Target


@dataclass(frozen=True)
class Sketch:
    """A `consortia.base.Method` around phases; every site has the same weight."""

    make: Callable[[Target], Algorithm]
    name: str = "sketch"

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        return None

    def weights(self, sizes: np.ndarray) -> np.ndarray:
        return np.full(len(sizes), 1 / len(sizes))

    def prior_shares(self, sizes: np.ndarray) -> np.ndarray:
        return self.weights(sizes)

    def build(self, target: Target) -> Algorithm:
        return self.make(target)

    def cost(self, sizes: np.ndarray) -> Cost:
        return Cost(len(sizes), int(sizes.sum()))

    def step_weights(self, iterations: np.ndarray) -> None:
        return None

    def parameters(self) -> dict[str, Any]:
        return {}


class Runner:
    """One sketch on one set of sites, advanced round by round."""

    def __init__(
        self,
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
            self.target, sites, Sketch(make), self.chains
        )
        self.carry = self.run.start(seed, jnp.asarray(start, self.target.dtype), rounds)
        self.weights = jnp.full(len(sites), 1 / len(sites))
        self.done = 0

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
        counter = drawing.Counter(jnp.int32(at), jnp.int32(0))
        phases = self.run.program.algorithm.phases
        made = drawing.round_numbers(phases, self.run.keys, counter, self.run.layout, self.weights)
        return jax.tree.map(np.asarray, made)


@pytest.fixture
def runner() -> type[Runner]:
    return Runner
