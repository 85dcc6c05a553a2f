"""A chain that leaves the finite numbers: found by round, chain and site, and its draws kept."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.errors import NonFiniteError

NAMES = ["north", "east", "south"]
LIMIT = 1.0


def log_likelihood(theta: Any, rows: Any) -> Any:
    # 0 · √(limit − θ) is exactly 0 below the limit and NaN above it, and so is its derivative.
    return -0.05 * (theta[0] - 4) ** 2 + 0 * jnp.sqrt(rows["limit"] - theta[0])


MODEL = consortia.Model(lambda theta: -0.5e-3 * jnp.sum(theta**2), log_likelihood, jnp.zeros(1))


def make_sites(limits: tuple[float, ...]) -> consortia.Sites:
    shards = [
        {"limit": np.full(rows, limit, np.float32)}
        for rows, limit in zip((2, 3, 4), limits, strict=True)
    ]
    return consortia.Sites.from_list(shards, names=NAMES)


WALLED = make_sites((1e9, LIMIT, 1e9))  # θ climbs to 4 and meets the wall at one site only
FREE = make_sites((1e9, 1e9, 1e9))


def sampled(method: Any, sites: Any = WALLED, **options: Any) -> np.ndarray:
    """(chains, draws)."""
    usual: dict[str, Any] = {"rounds": 5000, "chains": 3, "seed": 1, "progress": False}
    tree = consortia.sample(MODEL, sites, method, **usual | options)
    return np.asarray(tree.posterior.theta)[..., 0]


def failure(method: Any, sites: Any = WALLED, **options: Any) -> NonFiniteError:
    with pytest.raises(NonFiniteError) as caught:
        sampled(method, sites, **options)
    return caught.value


# Steps with which θ takes some rounds to the wall. Samplers with a Metropolis test never cross it,
# and surrogates, which are fitted beyond it, are refused before the run.
STEPS = {
    "fa_hmc": 0.02,
    "fa_ld": 0.05,
    "dsgld": 0.002,
    "de_sgld": 0.01,
    "de_sghmc": 0.1,
}


def small_steps(name: str) -> Any:
    """The entry's example with such a step."""
    entry = ALGORITHMS[name]
    return entry.factory(**entry.example | {"step_size": STEPS[name]})


@pytest.mark.parametrize("name", STEPS)
def test_the_error_says_which_round_chain_and_site_and_keeps_the_draws_before(name: str) -> None:
    method = small_steps(name)
    error = failure(method)
    assert error.round > 5
    assert error.site == "east"
    text = str(error)
    assert f"chain {error.chain} " in text
    assert f"round {error.round} " in text
    assert "'east'" in text

    # Every draw before that round is kept, and no other; one round fewer runs to its end.
    kept = np.asarray(error.tree.posterior.theta)[..., 0]
    assert kept.shape == (3, error.round)
    assert np.all(np.isfinite(kept))
    np.testing.assert_array_equal(kept, sampled(method, rounds=error.round))
    again = failure(method, rounds=error.round + 1)
    assert (again.round, again.chain, again.site) == (error.round, error.chain, error.site)

    # Thinned, after a warm-up, and with a store: the same round, and the blocks finished before it.
    thinned = failure(method, thin=3, warmup=4, rounds=5000)
    assert thinned.round == error.round
    draws = np.asarray(thinned.tree.posterior.theta)[..., 0]
    np.testing.assert_array_equal(draws, kept[:, 4:][:, 2::3])

    # In the warm-up: no draw.
    early = failure(method, warmup=error.round + 10, rounds=10)
    assert early.round == error.round
    assert "posterior" not in early.tree.children


def test_the_round_and_chain_are_those_of_a_run_that_meets_no_wall() -> None:
    # One gradient a round, at the position of the draw before: the round after the first draw
    # beyond the limit. The wall adds exactly nothing below it, so the free run shows when.
    method = consortia.fa_ld(0.1, 1, momentum_correlation=0.3)
    free = sampled(method, FREE)
    beyond = free > LIMIT
    first = int(np.argmax(beyond.any(axis=0)))
    error = failure(method)
    assert error.round == first + 1
    assert beyond[error.chain, first]
    np.testing.assert_array_equal(
        np.asarray(error.tree.posterior.theta)[..., 0], free[:, : first + 1]
    )


def test_a_step_beyond_stability_is_reported_not_returned() -> None:
    error = failure(consortia.fa_ld(4.0, 2), sites=FREE, rounds=2000)
    assert error.site in NAMES
    assert "lower step_size" in str(error)
    before = np.asarray(error.tree.posterior.theta)
    assert before.shape[1] == error.round
    assert np.all(np.isfinite(before))


def test_a_store_keeps_the_draws_before_the_failure(tmp_path: Any) -> None:
    method = small_steps("fa_ld")
    in_memory = failure(method)
    stored = failure(method, store=tmp_path / "run")
    tree = consortia.open_run(tmp_path / "run")
    np.testing.assert_array_equal(tree.posterior.theta, in_memory.tree.posterior.theta)
    np.testing.assert_array_equal(stored.tree.posterior.theta, in_memory.tree.posterior.theta)
    assert "non-finite" in tree.attrs["stopped"]
