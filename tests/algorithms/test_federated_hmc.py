"""Federated HMC is pooled HMC: the same numbers give the same draws; what is learned is frozen."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.algorithms.federated_hmc import MOST_STEPS
from consortia.core import random as numbers
from consortia.engines import rng
from consortia.errors import WarmupError
from tests.refusals import refused

FEATURES = 3


@pytest.fixture(scope="module")
def ten_unlike_sites():
    rng = np.random.default_rng(5)
    shards = []
    for site in range(10):
        x = rng.normal(rng.normal(size=FEATURES), 1.0, size=(5 + 7 * site, FEATURES))
        slope = rng.normal(size=FEATURES) * 1.5
        y = (rng.uniform(size=len(x)) < 1 / (1 + np.exp(-x @ slope))).astype(np.int32)
        shards.append({"x": x, "y": y})
    return consortia.Sites.from_list(shards)


@pytest.fixture(scope="module")
def model():
    return consortia.models.logistic_regression(FEATURES, intercept=False)


def draws(tree):
    return np.asarray(tree["posterior"]["coefficients"])


def numbers_of(seed, chain, position, stream, iteration):
    """The numbers that phase ``position`` of an iteration shares with all sites."""
    phase = rng.ROUND * 65536 + position
    key = numbers.shared_key(numbers.phase_key(numbers.base_key(seed), chain, phase))
    return numbers.declared(stream, key, iteration, 0, None)


def pooled_hmc(log_density, start, seed, chain, rounds, step_size, leapfrog_steps, mass):
    """HMC by hand on all data in one place, in terms of momenta."""
    potential = jax.jit(lambda theta: -log_density(theta))
    gradient = jax.jit(jax.grad(lambda theta: -log_density(theta)))
    every = jnp.arange(rounds, dtype=jnp.int32)
    take = partial(numbers_of, seed, chain)

    @jax.jit
    @jax.vmap
    def drawn(i):
        momentum = take(0, lambda rng: rng.normal("momentum", start.shape), i)
        return momentum, take(2, lambda rng: rng.uniform("accept"), i)

    momenta, levels = drawn(every)

    def trajectory(theta, numbers):
        normal, level = numbers
        momentum = jnp.sqrt(mass) * normal
        energy = potential(theta) + jnp.sum(momentum**2 / mass) / 2
        new, p = theta, momentum
        for _ in range(leapfrog_steps):
            p = p - step_size / 2 * gradient(new)
            new = new + step_size * p / mass
            p = p - step_size / 2 * gradient(new)
        change = potential(new) + jnp.sum(p**2 / mass) / 2 - energy
        theta = jnp.where(jnp.log(level) < -change, new, theta)
        return theta, theta

    return np.asarray(jax.lax.scan(trajectory, start, (momenta, levels))[1])


# --- the identity --------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("sites", "chains"), [(10, 1), (10, 2), (1, 1)])
def test_the_first_thousand_draws_are_those_of_pooled_hmc(ten_unlike_sites, model, sites, chains):
    # On one site with all rows it is the centralized baseline.
    whole = consortia.Sites.from_list([ten_unlike_sites.pooled()])
    mass = np.array([0.5, 1.0, 2.0])
    method = consortia.federated_hmc(step_size=0.08, leapfrog_steps=4, mass_matrix=mass, jitter=0.0)
    tree = consortia.sample(
        model, whole if sites == 1 else ten_unlike_sites, method, rounds=1000, chains=chains,
        seed=7, progress=False,
    )  # fmt: skip
    rows = jax.tree.map(jnp.asarray, ten_unlike_sites.pooled())

    def log_density(theta):
        params = {"coefficients": theta}
        return jnp.sum(model.log_likelihood(params, rows)) + model.log_prior(params)

    start = jnp.zeros(FEATURES)
    for chain in range(chains):
        pooled = pooled_hmc(log_density, start, 7, chain, 1000, 0.08, 4, jnp.asarray(mass))
        np.testing.assert_allclose(draws(tree)[chain], pooled, rtol=0, atol=1e-5)
    # Neither is a chain that never moves, or moves always.
    moved = np.any(np.diff(pooled, axis=0) != 0, axis=1).mean()
    assert 0.5 < moved < 1


@pytest.mark.usefixtures("x64")
def test_how_the_rows_are_dealt_out_changes_rounding_only(ten_unlike_sites, model):
    method = consortia.federated_hmc(step_size=0.08, leapfrog_steps=4, mass_matrix="identity")
    whole = consortia.Sites.from_list([ten_unlike_sites.pooled()])
    options = {"rounds": 200, "chains": 1, "seed": 3, "progress": False}
    one = draws(consortia.sample(model, whole, method, **options))
    ten = draws(consortia.sample(model, ten_unlike_sites, method, **options))
    np.testing.assert_allclose(ten, one, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_a_dense_mass_matrix_is_a_change_of_coordinates(ten_unlike_sites, model):
    root = np.array([[1.0, 0.0, 0.0], [0.4, 0.8, 0.0], [-0.2, 0.1, 1.3]])  # θ = root η
    turned = consortia.Model(
        lambda eta: model.log_prior({"coefficients": jnp.asarray(root) @ eta}),
        lambda eta, rows: model.log_likelihood({"coefficients": jnp.asarray(root) @ eta}, rows),
        jnp.zeros(FEATURES),
    )
    mass = np.linalg.inv(root @ root.T)
    given = consortia.federated_hmc(step_size=0.1, leapfrog_steps=3, mass_matrix=mass)
    plain = consortia.federated_hmc(step_size=0.1, leapfrog_steps=3, mass_matrix="identity")
    options = {"rounds": 4000, "chains": 2, "progress": False}
    one = draws(consortia.sample(model, ten_unlike_sites, given, **options))
    other = consortia.sample(turned, ten_unlike_sites, plain, **options)
    two = np.asarray(other["posterior"]["theta"]) @ root.T
    # v = L⁻ᵀξ is one root of M⁻¹ and ``root`` another, so the laws agree and not the draws.
    # 8,000 draws, little correlated: standard errors of about .02 sd; five of them.
    spread = two.reshape(-1, FEATURES).std(axis=0)
    assert np.all(np.abs(one.mean((0, 1)) - two.mean((0, 1))) < 0.1 * spread)
    np.testing.assert_allclose(one.reshape(-1, FEATURES).std(axis=0), spread, rtol=0.06)


def test_trajectories_are_jittered_alike_in_all_chains_between_their_bounds(
    ten_unlike_sites, model
):
    method = consortia.federated_hmc(
        step_size=0.05, leapfrog_steps=10, mass_matrix="identity", jitter=0.6
    )
    tree = consortia.sample(model, ten_unlike_sites, method, rounds=50, chains=3, progress=False)
    steps = np.asarray(tree["sample_stats"]["n_steps"])
    assert set(np.unique(steps)) == {5.0, 6.0, 7.0, 8.0, 9.0, 10.0}
    np.testing.assert_array_equal(steps[0], steps[1])
    np.testing.assert_array_equal(steps[0], steps[2])


def test_a_trajectory_costs_one_round_a_step_however_many_chains(ten_unlike_sites, model):
    plans = []
    method = consortia.federated_hmc(step_size=0.05, leapfrog_steps=6, mass_matrix="identity")
    for chains in (1, 4):
        consortia.sample(
            model, ten_unlike_sites, method, rounds=2, chains=chains, progress=False,
            on_plan=plans.append,
        )  # fmt: skip
    assert [plan.communication_rounds for plan in plans] == [6, 6]
    # ∇U_c and the two parts of U_c up, in single precision.
    assert plans[0].bytes_up == 6 * 10 * 4 * (FEATURES + 2)


# --- what is learned -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned(ten_unlike_sites, model):
    return consortia.sample(
        model,
        ten_unlike_sites,
        consortia.federated_hmc(),
        rounds=400,
        warmup=300,
        chains=2,
        progress=False,
    )


def test_after_the_warm_up_the_step_size_stands_still(learned):
    steps = np.asarray(learned["sample_stats"]["step_size"])
    assert np.all(steps == steps[:, :1])
    assert steps[0, 0] != steps[1, 0]  # each chain learns for itself


def test_the_acceptance_rate_is_near_the_one_wanted(learned, ten_unlike_sites, model):
    usual = float(learned["sample_stats"]["acceptance_rate"].mean())
    tree = consortia.sample(
        model, ten_unlike_sites, consortia.federated_hmc(target_acceptance=0.95),
        rounds=400, warmup=300, chains=2, progress=False,
    )  # fmt: skip
    careful = float(tree["sample_stats"]["acceptance_rate"].mean())
    # Thirty trajectories in the last window leave the rate uncertain by some hundredths.
    assert 0.7 < usual < 0.92
    assert 0.9 < careful < 0.995


def test_learned_trajectories_are_far_from_their_bound(learned):
    assert float(learned["sample_stats"]["n_steps"].max()) < MOST_STEPS / 10


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1e3])
def test_what_is_learned_does_not_depend_on_units(unit, ten_unlike_sites, model):
    units = np.array([1.0, unit, 1.0], np.float32)
    scaled = consortia.Model(
        lambda theta: model.log_prior({"coefficients": theta * units}),
        lambda theta, rows: model.log_likelihood({"coefficients": theta * units}, rows),
        jnp.zeros(FEATURES),
    )
    tree = consortia.sample(
        scaled,
        ten_unlike_sites,
        consortia.federated_hmc(),
        rounds=500,
        warmup=500,
        chains=2,
        progress=False,
    )
    stats = tree["sample_stats"]
    # 3 parameters: a few steps of order one, had it learned the scales; hundreds, had it not.
    assert float(stats["n_steps"].mean()) < 10
    assert 0.3 < float(stats["step_size"].mean()) < 3


def test_other_warm_ups_and_seeds_compile_nothing(learned, ten_unlike_sites, model):
    seen = []

    def listener(event, seconds, **details):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        method = consortia.federated_hmc()
        for warmup, seed in ((300, 5), (60, 0)):
            consortia.sample(
                model, ten_unlike_sites, method, rounds=20, warmup=warmup, chains=2,
                seed=seed, progress=False,
            )  # fmt: skip
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert not seen


def test_the_record_counts_the_rounds_that_were_made(learned):
    # Of the chain that made the most; warm-up included, so more than the kept trajectories tell.
    kept = np.asarray(learned["sample_stats"]["n_steps"]).sum(axis=1).max()
    counted = learned.attrs["communication_rounds"]
    assert kept < counted < kept + 300 * 40
    # d + 2 numbers of four bytes from ten sites, two chains.
    assert learned.attrs["bytes_up"] == counted * 10 * 2 * 4 * (FEATURES + 2)


# --- bad input and faults ------------------------------------------------------------------------


def test_without_a_warm_up_what_is_missing_is_named():
    with refused(argument="warmup", match="warmup is 0.*step_size.*leapfrog_steps"):
        consortia.federated_hmc().check_warmup(0)
    with refused(argument="warmup", match="warmup is 0.*step_size"):
        consortia.federated_hmc(leapfrog_steps=3, mass_matrix="identity").check_warmup(0)
    consortia.federated_hmc(step_size=0.1, leapfrog_steps=3, mass_matrix="identity").check_warmup(0)
    consortia.federated_hmc().check_warmup(20)


def test_sample_refuses_to_learn_without_a_warm_up(ten_unlike_sites, model):
    with refused(argument="warmup", match="warmup is 0.*step_size.*leapfrog_steps"):
        consortia.sample(
            model, ten_unlike_sites, consortia.federated_hmc(), rounds=5, progress=False, chains=1
        )


def test_a_run_that_accepts_next_to_nothing_stops_after_the_warm_up_with_advice(
    ten_unlike_sites, model
):
    method = consortia.federated_hmc(step_size=5.0, mass_matrix="identity")
    with pytest.raises(WarmupError, match=r"0 % of the trajectories.*smaller step_size") as caught:
        consortia.sample(
            model, ten_unlike_sites, method, rounds=5, warmup=40, chains=2, progress=False
        )
    assert "0 % of the trajectories" in caught.value.tree.attrs["stopped"]
    assert caught.value.tree.attrs["iterations_run"] == 40


@pytest.mark.parametrize(
    ("arguments", "argument", "match"),
    [
        ({"step_size": -1.0}, "step_size", None),
        ({"leapfrog_steps": 0}, "leapfrog_steps", None),
        ({"leapfrog_steps": 2.5}, "leapfrog_steps", None),
        ({"mass_matrix": "dense"}, "mass_matrix", None),
        ({"mass_matrix": [1.0, -1.0]}, "mass_matrix", None),
        ({"jitter": 1.0}, "jitter", None),
        ({"trajectory_angle": 0.0}, "trajectory_angle", None),
        ({"trajectory_angle": 1.0, "leapfrog_steps": 3}, "trajectory_angle", None),
        ({"target_acceptance": 1.0}, "target_acceptance", None),
        ({"force": "rough"}, "force", "'rough'"),
        ({"target_acceptance": 0.0}, "target_acceptance", None),
    ],
)
def test_a_bad_argument_is_named(arguments, argument, match):
    with refused(argument=argument, match=match):
        consortia.federated_hmc(**arguments)


def test_a_mass_matrix_for_another_model_is_refused(ten_unlike_sites, model):
    method = consortia.federated_hmc(step_size=0.1, leapfrog_steps=2, mass_matrix=[1.0, 2.0])
    with refused(argument="mass_matrix", match="for 2.*has 3"):
        consortia.sample(model, ten_unlike_sites, method, rounds=2, progress=False, chains=1)


def test_a_step_far_too_large_is_counted_as_divergence_and_never_accepted(ten_unlike_sites, model):
    method = consortia.federated_hmc(step_size=50.0, leapfrog_steps=8, mass_matrix="identity")
    tree = consortia.sample(model, ten_unlike_sites, method, rounds=20, progress=False, chains=1)
    stats = tree["sample_stats"]
    assert np.all(np.asarray(stats["diverging"]) == 1)
    assert np.all(np.asarray(stats["acceptance_rate"]) == 0)
    assert np.all(draws(tree) == 0)


def test_a_density_that_is_zero_beyond_an_edge_is_never_left():
    # N(θ, 1) rows with a prior that ends at 0: proposals beyond are NaN and are rejected.
    model = consortia.Model(
        lambda theta: jnp.sum(jnp.log(theta)),
        lambda theta, rows: -0.5 * (rows["x"] - theta[0]) ** 2,
        jnp.ones(1),
    )
    sites = consortia.Sites.from_list([{"x": np.float32([0.1, 0.3])}, {"x": np.float32([-0.2])}])
    method = consortia.federated_hmc(step_size=0.7, leapfrog_steps=2, mass_matrix="identity")
    tree = consortia.sample(model, sites, method, rounds=500, chains=2, progress=False)
    theta = np.asarray(tree["posterior"]["theta"])
    assert np.all(theta > 0)
    assert 0 < float(tree["sample_stats"]["acceptance_rate"].mean()) < 1
