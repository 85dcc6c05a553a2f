"""What FA-HMC samples, what a round costs and what it refuses, on three unequal sites."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core.target import Target
from consortia.oracles import fa_hmc_law
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("x64")

# Some dozens of multiplications of numbers of order one in double precision.
ROUNDING = 1e-12

SIZES = (4, 9, 6)
D = 3
PRIOR_SCALE = 1.5
START = np.array([0.3, -0.8, 1.1])
SEED = 17

MODEL = consortia.models.logistic_regression(D, prior_scale=PRIOR_SCALE)


def make_sites(sizes: tuple[int, ...] = SIZES) -> consortia.Sites:
    rng = np.random.default_rng(2)
    shards = []
    for rows, slope in zip(sizes, (2.0, -1.0, 0.5), strict=False):
        x = rng.normal(size=(rows, D))
        y = (rng.uniform(size=rows) < 1 / (1 + np.exp(-slope * x[:, 0]))).astype(np.int32)
        shards.append({"x": x, "y": y})
    return consortia.Sites.from_list(shards)


SITES = make_sites()


def sampled(method: Any, rounds: int, sites: consortia.Sites = SITES, **options: Any) -> np.ndarray:
    """Draws (rounds, d) of one chain from START."""
    tree = consortia.sample(
        MODEL,
        sites,
        method,
        rounds=rounds,
        chains=1,
        seed=SEED,
        init={"coefficients": jnp.asarray(START)},
        progress=False,
        **options,
    )
    return np.asarray(tree.posterior.coefficients)[0]


# --- weights, and what is sampled ----------------------------------------------------------------


def test_without_private_numbers_the_order_of_the_sites_changes_nothing() -> None:
    turned = consortia.Sites.from_list([SITES.shards[i] for i in (2, 0, 1)])
    method = consortia.fa_hmc(0.2, 3, 2, momentum_correlation=1.0)
    made = sampled(method, 20)
    np.testing.assert_allclose(made, sampled(method, 20, turned), rtol=0, atol=ROUNDING)
    private = consortia.fa_hmc(0.2, 3, 2, momentum_correlation=0.3)
    assert np.abs(sampled(private, 20) - sampled(private, 20, turned)).max() > 1e-3


def mode() -> np.ndarray:
    """Where Σ_c ∇U_c = 0, by Newton's method on all rows."""
    x = np.concatenate([shard["x"] for shard in SITES])
    y = np.concatenate([shard["y"] for shard in SITES])
    theta = np.zeros(D)
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ theta))
        gradient = x.T @ (p - y) + theta / PRIOR_SCALE**2
        hessian = (x.T * (p * (1 - p))) @ x + np.eye(D) / PRIOR_SCALE**2
        theta = theta - np.linalg.solve(hessian, gradient)
    return theta


@pytest.mark.parametrize("weights", [None, (0.6, 0.1, 0.3), (0.05, 0.9, 0.05)])
@pytest.mark.parametrize("debias", [False, True])
def test_without_noise_the_fixed_point_is_the_mode_whatever_the_weights(
    weights: Any, debias: bool
) -> None:
    # One gradient step a round has no heterogeneity bias; de-biasing removes it for T > 1.
    steps = 4 if debias else 1
    method = consortia.fa_ld(0.1, steps, weights=weights, temperature=0.0, debias=debias)
    last = sampled(method, 4000, thin=4000)[-1]
    np.testing.assert_allclose(last, mode(), rtol=0, atol=1e-9)


def test_without_debiasing_several_steps_a_round_miss_the_mode() -> None:
    # The negative control of the test above.
    method = consortia.fa_ld(0.1, 4, temperature=0.0)
    assert np.abs(sampled(method, 4000, thin=4000)[-1] - mode()).max() > 1e-3


def test_the_target_does_not_depend_on_the_weights_and_the_bias_does() -> None:
    means, precisions = np.array([0.0, 3.0, -1.0]), np.array([1.0, 0.4, 2.0])  # of U_c
    settings = {"step_size": 0.1, "leapfrog_steps": 3, "local_steps": 4}
    laws = [
        fa_hmc_law(means, precisions / np.array(w), w, **settings)
        for w in ((1 / 3, 1 / 3, 1 / 3), (0.6, 0.1, 0.3))
    ]
    centre = precisions @ means / precisions.sum()
    for law in laws:
        np.testing.assert_allclose(law.target.mean, centre, rtol=1e-13)
        np.testing.assert_allclose(law.target.variance, 1 / precisions.sum(), rtol=1e-13)
    assert abs(laws[0].stationary.bias - laws[1].stationary.bias) > 1e-3


# --- cost ----------------------------------------------------------------------------------------

COSTS = [
    # arguments, evaluations of a gradient at each site, rows read by all of them together
    ({"leapfrog_steps": 3, "local_steps": 2}, 6, 6 * 19),
    ({"leapfrog_steps": 1, "local_steps": 5}, 5, 5 * 19),
    ({"leapfrog_steps": 3, "local_steps": 2, "gradient_noise": 1.0}, 6, 6 * 19),
    ({"leapfrog_steps": 3, "local_steps": 2, "debias": True}, 7, 7 * 19),
    ({"leapfrog_steps": 3, "local_steps": 2, "batch_size": 2}, 10, 10 * 3 * 2),
    ({"leapfrog_steps": 3, "local_steps": 2, "batch_size": 2, "gradient_draws": 1}, 6, 6 * 3 * 2),
    (
        {"leapfrog_steps": 3, "local_steps": 2, "batch_size": 2, "debias": True},
        21,
        20 * 3 * 2 + 19,
    ),
]


@pytest.mark.parametrize(("arguments", "each", "rows"), COSTS)
def test_the_cost_counts_the_gradients_and_rows_of_one_round(
    arguments: dict[str, Any], each: int, rows: int
) -> None:
    cost = consortia.fa_hmc(0.1, **arguments).cost(np.array(SIZES), 3)
    assert (cost.gradients, cost.row_gradients) == (3 * each, rows)


@pytest.mark.parametrize(("arguments", "each", "rows"), COSTS)
def test_a_round_reads_the_rows_that_the_cost_says(
    arguments: dict[str, Any], each: int, rows: int
) -> None:
    # Counted while the program runs. An evaluation of two draws is one batch of twice the rows;
    # padding is read too, and counts as the rows of the largest site.
    seen: list[int] = []

    def log_likelihood(theta: Any, batch: Any) -> Any:
        labels = batch["y"].astype(theta.dtype)
        values = -0.5 * (labels - batch["x"].astype(theta.dtype) @ theta) ** 2
        jax.debug.callback(lambda length=values.shape[0]: seen.append(length))
        return values

    model = consortia.Model(lambda p: -0.5 * jnp.sum(p**2), log_likelihood, jnp.zeros(D))
    method = consortia.fa_hmc(0.01, **arguments)
    target = Target(model, model.init)
    run = consortia.LocalEngine(node_mode="map", block=1).prepare(target, SITES, method, 1)
    carry = run.start(0, jnp.zeros((1, D)))
    buffers = run.buffers(carry)
    seen.clear()
    window = consortia.engines.buffers.Window(0, 1, 0, 1, 0)
    jax.block_until_ready(run.advance(carry, buffers, window))
    jax.effects_barrier()
    batch = arguments.get("batch_size")
    full = 3 * max(SIZES) * (each if batch is None else int(arguments.get("debias", False)))
    minibatch = 0 if batch is None else rows - (sum(SIZES) if arguments.get("debias") else 0)
    assert sum(seen) == full + minibatch


def test_the_record_counts_bytes_and_gradients_of_the_whole_run() -> None:
    arguments = {"leapfrog_steps": 3, "local_steps": 2}
    for debias, gradients in ((False, 6), (True, 7)):
        tree = consortia.sample(
            MODEL,
            SITES,
            consortia.fa_hmc(0.1, **arguments, debias=debias),
            rounds=10,
            warmup=4,
            thin=2,
            chains=2,
            progress=False,
        )
        numbers = 3 * (2 if debias else 1)  # θ, and with de-biasing ∇f
        assert tree.attrs["communication_rounds"] == 14
        assert tree.attrs["bytes_up"] == tree.attrs["bytes_down"] == 14 * 2 * 3 * numbers * 8
        assert tree.attrs["bytes_sent"] == 2 * tree.attrs["bytes_up"]
        assert tree.attrs["gradients"] == 14 * 2 * 3 * gradients
        assert tree.attrs["row_gradients"] == 14 * 2 * gradients * sum(SIZES)


def test_draws_are_weighted_by_half_the_squared_step_size() -> None:
    table = np.array([0.2, 0.1, 0.3, 0.15, 0.05, 0.1, 0.2])
    tree = consortia.sample(
        MODEL,
        SITES,
        consortia.fa_ld(table, 2),
        rounds=6,
        warmup=1,
        thin=2,
        progress=False,
        chains=1,
    )
    np.testing.assert_allclose(tree.sample_stats.weight, table[[2, 4, 6]] ** 2 / 2, rtol=1e-12)
    constant = consortia.sample(
        MODEL, SITES, consortia.fa_ld(0.1, 2), rounds=6, progress=False, chains=1
    )
    assert "sample_stats" not in constant.children


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"leapfrog_steps": 0}, "leapfrog_steps"),
        ({"local_steps": 0}, "local_steps"),
        ({"local_steps": 2.5}, "local_steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"momentum_correlation": 1.1}, "momentum_correlation"),
        ({"gradient_noise": -1.0}, "gradient_noise"),
        ({"gradient_draws": 3}, "gradient_draws"),
        ({"temperature": float("nan")}, "temperature"),
        ({"weights": (0.5, 0.6)}, "weights"),
        ({"weights": (1.5, -0.5)}, "weights"),
        ({"mass_matrix": [[1.0, 2.0], [2.0, 1.0]]}, "mass_matrix"),
        ({"step_size": [0.1, -0.2]}, "step_size"),
    ],
)
def test_an_argument_out_of_its_range_is_refused(arguments: dict[str, Any], argument: str) -> None:
    usual: dict[str, Any] = {"step_size": 0.1, "leapfrog_steps": 2, "local_steps": 2}
    with refused(argument=argument):
        consortia.fa_hmc(**usual | arguments)


@pytest.mark.parametrize(
    ("arguments", "argument", "match"),
    [
        ({"weights": (0.5, 0.5)}, "weights", "3 sites"),
        ({"batch_size": 5, "replace": False}, "batch_size", "site 0"),
        ({"mass_matrix": [1.0, 2.0]}, "mass_matrix", "2 parameters"),
        ({"step_size": [0.1, 0.2]}, "step_size", "2 values"),
    ],
)
def test_what_does_not_fit_the_sites_is_refused(
    arguments: dict[str, Any], argument: str, match: str
) -> None:
    usual: dict[str, Any] = {"step_size": 0.1, "leapfrog_steps": 2, "local_steps": 2}
    with refused(argument=argument, match=match):
        sampled(consortia.fa_hmc(**usual | arguments), 3)
