"""A way to run phases that belong to no published method: sketches, driven through an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core.contract import Algorithm
from consortia.core.target import Target
from consortia.engines.buffers import Window
from consortia.store.results import Records


@dataclass(frozen=True)
class Driven:
    """A run that has ended: what it recorded, and its carry."""

    records: Records
    carry: Any
    run: Any

    @property
    def draws(self) -> np.ndarray:
        """(chains, draws, d)."""
        return self.records.draws


MODEL = consortia.Model(None, lambda p, rows: -0.5 * (rows["y"] - jnp.sum(p)) ** 2, jnp.zeros(1))


@pytest.fixture
def numbered_sites() -> Callable[..., consortia.Sites]:
    """``(count) -> Sites``: site i holds i + 1 rows, all equal to i."""

    def make(count: int = 3) -> consortia.Sites:
        shards = [{"y": np.full(index + 1, float(index))} for index in range(count)]
        return consortia.Sites.from_list(shards)

    return make


@pytest.fixture
def drive(numbered_sites: Any, method_around: Any) -> Callable[..., Driven]:
    """``(algorithm or its maker, ...) -> Driven``: the rounds in one call."""

    def run(
        make: Any,
        *,
        rounds: int = 1,
        chains: int = 1,
        thin: int = 1,
        warmup: int = 0,
        seed: int = 0,
        sites: Any = None,
        model: Any = MODEL,
        start: Any = None,
        **engine: Any,
    ) -> Driven:
        maker = (lambda target: make) if isinstance(make, Algorithm) else make
        target = Target(model, jax.tree.map(jnp.asarray, model.init))
        if start is None:
            start = np.zeros((chains, target.dimension))
        made = consortia.LocalEngine(**engine).prepare(
            target, numbered_sites() if sites is None else sites, method_around(maker), chains
        )
        carry = made.start(seed, jnp.asarray(start, target.dtype))
        buffers = made.buffers(carry)
        per_iteration = made.draws_per_iteration
        if warmup:
            window = Window(0, warmup, 0, 2**31 - 1, warmup)
            carry, _, _ = made.advance(carry, buffers, window)
            buffers = made.buffers(carry)
        window = Window(warmup, warmup + rounds, 0, thin, warmup)
        carry, buffers, _ = made.advance(carry, buffers, window)
        kept = rounds * per_iteration // thin
        return Driven(Records.of_buffers(buffers, kept, chains), carry, made)

    return run
