"""DSGLD and FSGLD against their exact laws, and the figures of the published experiments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.errors import InputError
from consortia.oracles import location_shards, travelling_law
from consortia.surrogates import Recipe

# The studies are run from the root of the repository, not installed.
ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from experiments.fsgld import gaussian_mean, neural_network, susy  # noqa: E402

# --- unlike sites, a prior, probabilities: the law itself ----------------------------------------

SIZES, SHARES, STRENGTH = (60, 20, 40), (0.5, 0.2, 0.3), 0.5
STEP, LOCAL_STEPS, BATCH = 2e-3, 5, 4
PRIOR_MEAN, PRIOR_PRECISION = np.array([2.0, -1.0]), np.array([20.0, 5.0])
CHAINS, VISITS, BURN = 400, 150, 60
WIDTH = 4.5
"""Standard errors. With four moments for each of two settings a false alarm has p < 1e-4."""


def shards() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=(n, 2)) + 2 * rng.normal(size=2) for n in SIZES]


def located() -> consortia.Model:
    def log_prior(theta: Any) -> Any:
        precision = jnp.asarray(PRIOR_PRECISION, theta.dtype)
        return -0.5 * jnp.sum(precision * (theta - jnp.asarray(PRIOR_MEAN, theta.dtype)) ** 2)

    def log_likelihood(theta: Any, batch: Any) -> Any:
        return -0.5 * jnp.sum((batch["x"] - theta[None, :]) ** 2, axis=1)

    return consortia.Model(log_prior, log_likelihood, np.zeros(2, np.float32))


def law(**changed: Any) -> Any:
    described = location_shards(shards(), changed.pop("batch_size", BATCH))
    arguments: dict[str, Any] = {
        "probabilities": SHARES,
        "step_size": STEP,
        "local_steps": LOCAL_STEPS,
        "prior_mean": PRIOR_MEAN,
        "prior_precision": PRIOR_PRECISION,
        "strength": STRENGTH,
    }
    return travelling_law(**(described | arguments | changed))


def deviations(draws: np.ndarray, exact: Any) -> np.ndarray:
    """Of mean and variance of each coordinate, in standard errors that chains give each other."""
    mean, variance = exact.stationary.mean, exact.stationary.variance
    each = np.concatenate(
        [draws.mean(axis=1) - mean, ((draws - mean) ** 2).mean(axis=1) - variance], axis=1
    )
    return each.mean(axis=0) / (each.std(axis=0) / np.sqrt(len(each)))


FALLING = (6.0, 2.0, 1.0, 0.6, 0.2)
"""h_t of the five updates of a visit, over h."""


@pytest.mark.parametrize("kind", ["given", "dsgld", "falling"])
def test_the_draws_have_the_mean_and_the_variance_of_the_exact_law(kind: str):
    common: dict[str, Any] = {"probabilities": SHARES}
    more: dict[str, Any] = {"step_factors": FALLING} if kind == "falling" else {}
    if kind != "given":
        method = consortia.dsgld(STEP, LOCAL_STEPS, BATCH, **common, **more)
        exact = law(strength=0.0, **more)
    else:
        given = [(x.mean(axis=0), 1 / len(x)) for x in shards()]
        method = consortia.fsgld(
            STEP, LOCAL_STEPS, BATCH, surrogate=given, strength=STRENGTH, **common
        )
        exact = law()
    tree = consortia.sample(
        located(),
        consortia.Sites.from_list([{"x": x.astype(np.float32)} for x in shards()]),
        method,
        rounds=VISITS,
        warmup=BURN,
        chains=CHAINS,
        init=exact.stationary.mean.astype(np.float32),
        seed=11,
        progress=False,
    )
    draws = np.asarray(tree["posterior"]["theta"], np.float64)
    assert np.abs(deviations(draws, exact)).max() < WIDTH
    # Negative controls: laws that a planted mistake would have.
    strength = STRENGTH if kind == "given" else 0.0
    wrong = {
        "no 1/f_s": law(probabilities=(1 / 3,) * 3, strength=strength),
        "another strength": law(strength=strength + 0.1),
        "no prior": law(prior_precision=1e-3 * PRIOR_PRECISION, strength=strength),
        "noise 10 % wider": law(step_size=1.1 * STEP, strength=strength),
        "full batches": law(batch_size=None, strength=strength),
    }
    if more:
        wrong = {
            "a constant step": law(strength=0.0),
            "upwards": law(strength=0.0, step_factors=FALLING[::-1]),
        }
    for mistake, other in wrong.items():
        assert np.abs(deviations(draws, other)).max() > WIDTH, mistake


# --- section 5.1 ---------------------------------------------------------------------------------

SCALE = gaussian_mean.Scale(updates=200_000, chains=4)
ROWS = gaussian_mean.shards(0)
MODEL = gaussian_mean.model()


def published(name: str, local_steps: int, scale: Any = SCALE, **settings: Any) -> dict[str, Any]:
    draws = gaussian_mean.run(ROWS, name, local_steps, scale, 1, MODEL, **settings)
    exact = gaussian_mean.law(ROWS, name, local_steps, **settings)
    return gaussian_mean.summary(draws, exact, scale.updates)


@pytest.fixture(scope="module")
def corrected() -> dict[str, Any]:
    return published("fsgld", 100)


@pytest.mark.slow
@pytest.mark.parametrize("local_steps", [1, 100, 1000])
def test_fsgld_finds_the_mean_whatever_the_number_of_updates(local_steps: int):
    found = published("fsgld", local_steps)
    assert found["mean_square_error"] < 3e-5  # 5.5e-6 expected, of four chains
    # 8,000 nearly independent draws: a trace is known to 1.6 %
    assert found["trace"] == pytest.approx(0.0110, rel=0.1)
    assert found["trace"] == pytest.approx(found["exact_trace_of_ends"], rel=0.07)


@pytest.mark.slow
@pytest.mark.parametrize(("local_steps", "factor"), [(1000, 500), (100, 100)])
def test_dsgld_misses_the_mean_by_far_more(
    local_steps: int, factor: float, corrected: dict[str, Any]
):
    found = published("dsgld", local_steps)
    assert found["mean_square_error"] > factor * corrected["mean_square_error"]


@pytest.mark.slow
def test_dsgld_of_one_update_has_the_trace_of_the_formula():
    found = published("dsgld", 1, gaussian_mean.Scale(updates=100_000, chains=4))
    # 4,000 independent draws, 2.2 %
    assert found["trace"] == pytest.approx(1.385, rel=0.1)


@pytest.mark.slow
def test_full_batches_and_small_steps_give_the_posterior():
    found = published("fsgld", 100, step_size=1e-5, batch_size=None)
    # A chain forgets in 200 updates: 4 · 1,000 independent draws, 2.2 %
    assert found["trace"] == pytest.approx(found["posterior_trace"], rel=0.1)


@pytest.mark.slow
def test_half_the_strength_has_a_quarter_of_the_spread():
    found = published("fsgld", 100, gaussian_mean.Scale(200_000, 8), strength=0.5)
    # V (1 − α)² with V = 26.1, its N/(N + 1) and the closed form of the ends included. Ten sites
    # drawn at random: the variance of 16,000 draws is known to 1 %.
    assert found["trace"] == pytest.approx(found["exact_trace_of_ends"], rel=0.04)
    assert found["exact_trace_of_ends"] == pytest.approx(26.115 / 4, rel=0.002)


# --- section 5.3 and its control -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_on_logistic_regression_fsgld_predicts_better_and_varies_less(seed: int):
    found = neural_network.logistic_control(susy.problem(seed, neural_network.UNLIKE), 1500, seed)
    assert found["difference"] > 0.01
    assert found["variance_ratio"] < 0.65


@pytest.fixture(scope="module")
def unlike_shards() -> tuple[Any, Any]:
    """The data of seed 0 and where its networks start."""
    data = susy.problem(0, neural_network.UNLIKE)
    return data, neural_network.warm_start(data, 1500, 0)


def gain(data: Any, start: Any, seed: int) -> float:
    """What anchored surrogates add to the mean test log-likelihood of DSGLD's draws."""
    recipes = {"anchored": neural_network.RECIPES["anchored"]}
    found = neural_network.network(data, start, 1500, seed, **recipes)
    return found["anchored"]["test"] - found["dsgld"]["test"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_on_a_network_anchored_surrogates_beat_none_where_shards_are_unlike(
    seed: int, unlike_shards: tuple[Any, Any]
):
    if seed == 0:
        data, start = unlike_shards
    else:
        data = susy.problem(seed, neural_network.UNLIKE)
        start = neural_network.warm_start(data, 1500, seed)
    assert gain(data, start, seed) > 0.008


@pytest.mark.slow
def test_on_a_network_anchored_surrogates_change_little_where_shards_are_alike():
    data = susy.problem(0, neural_network.ALIKE)
    start = neural_network.warm_start(data, 1500, 0)
    assert abs(gain(data, start, 0)) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("step_size", [1e-7, 1e-6])
def test_the_published_surrogates_of_a_network_are_refused_with_the_reason(
    step_size: float, unlike_shards: tuple[Any, Any]
):
    data, start = unlike_shards
    method = consortia.fsgld(
        step_size,
        neural_network.LOCAL_STEPS,
        neural_network.BATCH,
        # The examination's curvature is the cheap one; the surrogates are as published.
        surrogate=Recipe("sgld_moments", curvature="empirical_fisher"),
        covariance="diagonal",
        probabilities=neural_network.even(data),
    )
    with pytest.raises(InputError, match="narrower than its likelihood .* the chain diverges"):
        neural_network.draws(neural_network.models()["network"], data.sites, method, 20, 0, start)
