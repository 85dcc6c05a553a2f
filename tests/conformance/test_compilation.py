"""One compiled program serves every seed, length, thinning and warm-up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia

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


@pytest.mark.parametrize("chains", [1, 3])
def test_a_second_run_compiles_nothing_whatever_its_seed_and_length(
    case: Any, chains: int, draws_of: Any, compilations: list[str]
) -> None:
    draws_of(case.method(), rounds=20, chains=chains)
    compilations.clear()
    for arguments in (
        {"seed": 1},
        {"seed": 2**62},
        {"rounds": 37},
        {"thin": 4},
        {"warmup": 5},
        {"rounds": 1},
        {"rounds": 150, "warmup": 50, "thin": 7, "seed": 9},
    ):
        draws_of(case.method(), **({"rounds": 20, "chains": chains} | arguments))
        assert not compilations, arguments


def test_other_data_of_equal_shape_compile_nothing(
    case: Any, model: Any, sites: Any, compilations: list[str]
) -> None:
    moved = sites.map(lambda shard: shard | {"x": shard["x"] + np.float32(0.5)})
    options: dict[str, Any] = {"rounds": 20, "progress": False}
    consortia.sample(model, sites, case.method(), **options)
    compilations.clear()
    consortia.sample(model, moved, case.method(), **options)
    assert not compilations


def test_another_parameter_or_another_model_compiles_anew(
    case: Any, model: Any, sites: Any, draws_of: Any, compilations: list[str]
) -> None:
    # The positive control: without it a counter that sees nothing would pass the tests above.
    draws_of(case.method())
    compilations.clear()
    draws_of(case.method(step_size=0.012345))
    assert compilations
    compilations.clear()
    fresh = consortia.models.logistic_regression(2, intercept=True)
    consortia.sample(fresh, sites, case.method(), rounds=23, progress=False)
    assert compilations
