"""One compiled program serves every seed, length, thinning, warm-up and data of equal shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core.queries import Conversation
from consortia.core.target import Target

EVENT = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """Grows by one entry for each program that XLA compiles during the test."""
    seen: list[str] = []

    def listener(event: str, seconds: float, **details: Any) -> None:
        if event == EVENT:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listener)


def test_the_counter_counts(compilations: list[str]) -> None:
    factor = 1.2345
    jax.jit(lambda x: x * factor)(jnp.ones(7)).block_until_ready()
    assert compilations


def test_a_second_run_compiles_nothing_whatever_its_seed_length_and_data(
    example: Any, draws_of: Any, model: Any, sites: Any, compilations: list[str]
) -> None:
    compiles_nothing_again(example, draws_of, model, sites, compilations)


@pytest.mark.slow
def test_a_second_run_with_everything_on_compiles_nothing(
    rich: Any, draws_of: Any, model: Any, sites: Any, compilations: list[str]
) -> None:
    compiles_nothing_again(rich, draws_of, model, sites, compilations)


def compiles_nothing_again(
    case: Any, draws_of: Any, model: Any, sites: Any, compilations: list[str]
) -> None:
    draws_of(case.method(), rounds=20)
    compilations.clear()
    for arguments in (
        {"seed": 1, "rounds": 37},
        {"seed": 2**62, "rounds": 1},
        {"thin": 4},
        {"warmup": 5},
        {"rounds": 150, "warmup": 50, "thin": 7, "seed": 9},
    ):
        draws_of(case.method(), **({"rounds": 20} | arguments))
        assert not compilations, arguments
    moved = sites.map(lambda shard: shard | {"x": shard["x"] + np.float32(0.5)})
    consortia.sample(model, moved, case.method(), rounds=20, chains=2, progress=False)
    assert not compilations


def test_another_parameter_compiles_anew(
    example: Any, draws_of: Any, compilations: list[str]
) -> None:
    # The positive control: without it a counter that sees nothing would pass the test above.
    draws_of(example.method())
    compilations.clear()
    draws_of(example.other(0.012345))
    assert compilations


def test_programs_are_shared_by_equal_values_and_by_the_same_model_only(
    case: Any, model: Any, sites: Any
) -> None:
    if isinstance(case.method(), Conversation):
        pytest.skip("its programs are those of its site functions")
    engine = consortia.LocalEngine()

    def program(of_model: Any, method: Any, chains: int = 2) -> Any:
        target = Target(of_model, jax.tree.map(jnp.asarray, of_model.init))
        return engine.prepare(target, sites, method, chains).program

    usual = program(model, case.method())
    assert program(model, case.method()) is usual
    other = program(model, case.other(0.0123))
    assert other is not usual
    begins = usual.start_values.__wrapped__
    assert other.start_values.__wrapped__ is begins  # one function is compiled once
    assert program(model, case.method(), chains=3) is not usual
    fresh = consortia.models.logistic_regression(2, intercept=True)
    assert program(fresh, case.method()) is not usual
    assert program(fresh, case.method()).start_values.__wrapped__ is not begins
