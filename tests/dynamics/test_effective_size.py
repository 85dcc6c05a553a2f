"""The effective sample size inside a program is that of the diagnostics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia.dynamics.effective_size import bulk_ess
from consortia.dynamics.rank_statistics import bulk_and_tail_ess_of, rhat_and_ess_of

SLOTS = 128


def chain(count, correlation, seed, rejections):
    """An autoregression of three coordinates that stands still now and then."""
    rng = np.random.default_rng(seed)
    draws = [rng.normal(size=3)]
    for _ in range(count - 1):
        if rng.uniform() < rejections:
            draws.append(draws[-1])
            continue
        step = np.sqrt(1 - correlation**2) * rng.normal(size=3)
        draws.append(correlation * draws[-1] + step)
    return np.array(draws, np.float32)


@pytest.mark.parametrize("count", [9, 16, 57, 128])
@pytest.mark.parametrize(
    ("correlation", "rejections"), [(0.0, 0.0), (0.7, 0.4), (0.98, 0.0), (-0.6, 0.1)]
)
def test_it_is_that_of_the_diagnostics_for_any_number_of_draws(count, correlation, rejections):
    draws = chain(count, correlation, count, rejections)
    expected = rhat_and_ess_of(draws.T[:, None].astype(np.float64))[1]
    filled = np.full((SLOTS, 3), 1e3, np.float32)  # what is behind the draws must not count
    filled[:count] = draws
    found = jax.jit(bulk_ess)(jnp.asarray(filled), jnp.int32(count))
    np.testing.assert_allclose(found, expected, rtol=2e-3)


@pytest.mark.parametrize("count", [9, 16, 57])
def test_bulk_and_tail_are_the_same_with_and_without_rhat(count):
    draws = np.stack([chain(count, 0.7, seed, 0.4) for seed in range(3)]).transpose(2, 0, 1)
    for found, expected in zip(
        bulk_and_tail_ess_of(draws), rhat_and_ess_of(draws)[1:], strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_a_chain_that_never_moved_has_none():
    found = jax.jit(bulk_ess)(jnp.ones((SLOTS, 3)), jnp.int32(40))
    np.testing.assert_array_equal(found, 0)
