"""How hard the compiler works: by what a run computes, never by chance."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia import (
    LocalEngine,
    Sites,
    dsgld,
    fa_hmc,
    federated_hmc,
    stale_sgld,
)
from consortia.core.contract import Method
from consortia.core.target import Target
from consortia.models import linear_regression
from consortia.runtime import compiler

FA_HMC = fa_hmc(1e-3, leapfrog_steps=2, local_steps=1)


@pytest.fixture(autouse=True)
def as_users_have_it() -> Iterator[None]:
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def options(method: Method, sizes: list[int], chains: int = 4) -> dict[str, Any]:
    """Return the options with which the rounds would be compiled."""
    rows = [{"x": np.ones((n, 2), np.float32), "y": np.ones(n, np.float32)} for n in sizes]
    model = linear_regression(2)
    run = LocalEngine().prepare(Target(model, model.init), Sites.from_list(rows), method, chains)
    return run.program.effort.often


def test_rounds_of_small_problems_are_optimised_less() -> None:
    assert options(FA_HMC, [10] * 16)[compiler.LEVEL] == 2
    assert options(FA_HMC, [10] * 17) == {}  # 68 states
    assert options(FA_HMC, [200_000, 200_000]) == {}


def test_trajectories_are_compiled_in_less_time_whatever_their_rows() -> None:
    for sizes in ([10] * 4, [200_000, 200_000]):
        found = options(federated_hmc(step_size=0.1, mass_matrix="identity"), sizes)
        assert found == compiler.lightly()
        assert found[compiler.LEVEL] == 1


@pytest.mark.parametrize("method_of", [partial(dsgld, 0.1, 2), partial(stale_sgld, 0.1, workers=4)])
def test_small_minibatches_of_one_site_at_a_time_are_compiled_in_less_time(method_of: Any) -> None:
    few, many = method_of(batch_size=64), method_of(batch_size=65)
    assert options(few, [100] * 4) == compiler.lightly()
    for method in (many, method_of(batch_size=None)):
        assert options(method, [100] * 4) == compiler.for_rounds()
    assert options(few, [100_000] * 4) == {}


def test_sites_of_one_padded_shape_have_the_same_options() -> None:
    # A program is kept by shapes: whichever sites come first, a resumed run has the same bits.
    longest = 200_000
    assert options(FA_HMC, [longest, 10]) == options(FA_HMC, [longest, longest]) == {}


@pytest.mark.parametrize(("length", "at_once"), [(1, 4), (4, 4), (9, 4), (10, 4), (3, 100), (7, 1)])
def test_blocks_give_what_one_value_after_another_gives(length: int, at_once: int) -> None:
    values = np.arange(2.0 * length, dtype=np.float32).reshape(length, 2), np.arange(length)

    def function(given: tuple[jax.Array, jax.Array]) -> dict[str, jax.Array]:
        place, number = given
        return {"outer": jnp.outer(place, place), "number": number + 1}

    found = compiler.map_in_blocks(function, values, at_once)
    wanted = jax.lax.map(function, values)
    assert found.keys() == wanted.keys()
    for name, leaf in wanted.items():
        np.testing.assert_array_equal(found[name], leaf)


def test_a_function_is_compiled_for_one_length_of_blocks() -> None:
    traced = []

    def function(value: jax.Array) -> jax.Array:
        traced.append(value)
        return value

    np.testing.assert_array_equal(compiler.map_in_blocks(function, np.arange(9), 4), np.arange(9))
    assert len(traced) == 1
    jax.lax.map(function, np.arange(9), batch_size=4)
    assert len(traced) == 3  # so that the line above can fail


def test_options_are_asked_for_at_the_first_call_and_once() -> None:
    asked = []

    def options() -> dict[str, Any]:
        asked.append(1)
        return compiler.lightly()

    double = compiler.jit(lambda value: 2 * value, options=options)
    assert not asked
    assert [float(double(1.0)), float(double(2.0))] == [2.0, 4.0]
    assert len(asked) == 1
