"""The exact law of travelling chains: the published example, identities, a plain simulation."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from consortia.oracles import (
    location_shards,
    minibatch_noise,
    travelling_law,
)
from consortia.surrogates import Gaussian
from consortia.theory import travelling
from consortia.theory.affine import AffineMap
from consortia.theory.travelling import TravellingRecursion
from experiments.fsgld.gaussian_mean import gradient_constants
from tests.refusals import refused


def published_shards() -> list[np.ndarray]:
    """Section 5.1: ten shards of 200 rows from N(μ_s, I), μ_s uniform on [−6, 6]²."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(-6, 6, (10, 2))
    return [centre + rng.normal(size=(200, 2)) for centre in centres]


def published(local_steps: int, strength: float, **more: Any) -> Any:
    """The law of the published example: h = 1e-4, m = 10 without replacement, prior N(0, I)."""
    arguments: dict[str, Any] = {"step_size": 1e-4, "batch_size": 10, "replace": False} | more
    shards = location_shards(
        published_shards(), arguments.pop("batch_size"), replace=arguments.pop("replace")
    )
    return travelling_law(
        **shards, local_steps=local_steps, strength=strength, prior_precision=1.0, **arguments
    )


def within(law: Any, update: int) -> Any:
    """The moments after some of the updates of a visit."""
    return law.moments(law.recursion.within(update))


def random_problem(seed: int = 0, sites: int = 3, d: int = 2) -> dict[str, Any]:
    """Sites of unlike, full curvatures, unequal probabilities, a prior away from zero."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(sites, d, d))
    noise = rng.normal(size=(sites, d, d))
    shares = rng.uniform(0.5, 1.5, sites)
    return {
        "means": rng.normal(size=(sites, d)) * 2,
        "precisions": 5 * factors @ np.swapaxes(factors, 1, 2) + np.eye(d),
        "probabilities": shares / shares.sum(),
        "prior_mean": rng.normal(size=d),
        "prior_precision": np.array([[2.0, 0.5], [0.5, 1.0]]),
        "gradient_noise": noise @ np.swapaxes(noise, 1, 2),
    }


# --- the published example -----------------------------------------------------------------------


@pytest.mark.parametrize("local_steps", [100, 1000])
def test_fsgld_has_the_known_trace_and_error_for_every_number_of_updates(local_steps):
    law = published(local_steps, 1.0)
    assert np.trace(law.stationary.covariance) == pytest.approx(0.0110, abs=5e-5)
    # 5.1e-6 and 5.6e-6 were measured with 100 chains, each to a tenth
    assert law.recursion.mean_square_error(200_000, 100) == pytest.approx(5.5e-6, abs=5e-8)
    np.testing.assert_allclose(law.stationary.mean, law.target.mean, atol=1e-12)


@pytest.mark.parametrize(
    ("local_steps", "trace", "error"), [(1, 1.39, 6.9e-4), (100, 26.1, 1.3e-2), (1000, 26.1, 0.13)]
)
def test_dsgld_has_the_known_traces_and_errors(local_steps, trace, error):
    law = published(local_steps, 0.0)
    # half a unit of the last digit of the known figures; 26.0 was measured at T = 1000
    assert np.trace(law.stationary.covariance) == pytest.approx(
        trace, abs=0.0055 if trace < 2 else 0.05
    )
    assert law.recursion.mean_square_error(200_000, 100) == pytest.approx(error, rel=0.01)


def test_ends_of_visits_are_wider_than_all_updates_together():
    law = published(100, 0.0)
    assert np.trace(law.stationary.covariance) == pytest.approx(26.1, abs=0.05)
    assert np.trace(published(100, 0.0, record="updates").stationary.covariance) == pytest.approx(
        23.6, abs=0.05
    )


@pytest.mark.parametrize(
    ("arguments", "inflation"),
    [
        ({}, 11.0),
        ({"step_size": 1e-5}, 1.96),
        ({"batch_size": None}, 1.05),
        ({"batch_size": None, "step_size": 1e-5}, 1.005),
    ],
)
def test_fsgld_inflates_the_variance_as_known(arguments, inflation):
    law = published(100, 1.0, **arguments)
    # mean over the two coordinates, half a unit of the last printed digit
    digits = 0.05 if inflation > 10 else 0.006
    assert law.stationary.variance_ratio.mean() == pytest.approx(inflation, abs=digits)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_the_law_is_that_of_the_closed_form_with_equal_curvatures(strength):
    shards = published_shards()
    law = published(100, strength, batch_size=10)
    A = 1 - 1e-4 / 2 * 2001
    rows = np.mean([np.cov(x.T, bias=True) for x in shards], axis=0) / 10 * (190 / 199)
    Q = 1e-4 * np.eye(2) + (1e-4 * 2000 / 2) ** 2 * rows
    # A site's own chain settles at x̄_s N/(N + 1), the prior's part of it included.
    means = np.stack([x.mean(axis=0) for x in shards])
    V = np.cov(means.T, bias=True) * (2000 / 2001) ** 2 * (1 - strength) ** 2
    W = V * (1 - A**100) ** 2 / (1 - A**200)
    for update in (0, 1, 30, 100):
        wanted = Q / (1 - A**2) + A ** (2 * update) * W + (1 - A**update) ** 2 * V
        np.testing.assert_allclose(within(law, update).covariance, wanted, rtol=1e-9)
    np.testing.assert_allclose(law.target.covariance, np.eye(2) / 2001, atol=1e-15)
    np.testing.assert_allclose(law.target.mean, means.mean(axis=0) * 2000 / 2001, rtol=1e-12)


# --- general sites -------------------------------------------------------------------------------


def simulate(problem: dict[str, Any], settings: dict[str, Any], visits: int, chains: int) -> Any:
    """A plain loop over visits; positions after each update of the last half."""
    rng = np.random.default_rng(5)
    h, steps = settings["step_size"], settings["local_steps"]
    alpha = settings.get("strength", 0.0)
    f, H = problem["probabilities"], problem["precisions"]
    m, C = problem["means"], problem["gradient_noise"]
    P, m0 = problem["prior_precision"], problem["prior_mean"]
    given = settings.get("surrogates")
    L = H if given is None else np.stack([q.precision for q in given])
    mu = m if given is None else np.stack([q.mean for q in given])
    roots = np.linalg.cholesky(C)
    theta = np.zeros((chains, m.shape[1]))
    kept = []
    for visit in range(visits):
        site = rng.choice(len(f), size=chains, p=f)
        path = []
        for _ in range(steps):
            noise = np.einsum("cij,cj->ci", roots[site], rng.normal(size=theta.shape))
            shard = -np.einsum("cij,cj->ci", H[site], theta - m[site]) + noise
            d = -(theta - m0) @ P + shard / f[site][:, None]
            pooled = -sum((theta - mu[s]) @ L[s] for s in range(len(f)))
            own = -np.einsum("cij,cj->ci", L[site], theta - mu[site])
            g = pooled - own / f[site][:, None]
            theta = theta + h / 2 * (d + alpha * g) + np.sqrt(h) * rng.normal(size=theta.shape)
            path.append(theta)
        if visit >= visits // 2:
            kept.append(path)
    return np.array(kept)  # (visits, T, chains, d)


@pytest.mark.parametrize("strength", [0.0, 0.7])
@pytest.mark.parametrize("own_surrogates", [False, True])
def test_the_law_is_that_of_a_plain_simulation(strength, own_surrogates):
    problem = random_problem()
    settings: dict[str, Any] = {"step_size": 0.01, "local_steps": 5, "strength": strength}
    if own_surrogates:
        rng = np.random.default_rng(3)
        settings["surrogates"] = [
            Gaussian.from_precision(m + 0.1 * rng.normal(size=2), 0.8 * H)
            for m, H in zip(problem["means"], problem["precisions"], strict=True)
        ]
    law = travelling_law(**problem, **settings)
    draws = simulate(problem, settings, 120, 4000)
    for update in (1, 5):
        ends = draws[:, update - 1].reshape(-1, 2)
        covariance = within(law, update).covariance
        # 4,000 independent chains alone give a deviation of the mean of 0.016 deviations, of a
        # variance of 2.2 %; the 60 visits, which are correlated, only help. Four times that.
        deviation = np.sqrt(np.diag(covariance))
        assert np.all(np.abs(ends.mean(axis=0) - within(law, update).mean) < 0.064 * deviation)
        np.testing.assert_allclose(np.var(ends, axis=0), np.diag(covariance), rtol=0.09)
    updates = travelling_law(**problem, **settings, record="updates").stationary
    mean, covariance = updates.mean, updates.covariance
    everything = draws.reshape(-1, 2)
    deviation = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(everything.mean(axis=0) - mean) < 0.064 * deviation)
    # The negative control: a law with another strength is told apart by the same test.
    other = travelling_law(**problem, **(settings | {"strength": strength + 0.3}))
    gap = np.abs(
        np.var(draws[:, -1].reshape(-1, 2), axis=0) / np.diag(other.stationary.covariance) - 1
    )
    assert gap.max() > 0.09


@pytest.mark.parametrize(("thin", "updates"), [(1, 200), (2, 200), (4, 200), (8, 208), (12, 216)])
def test_the_mean_square_error_is_that_of_a_plain_simulation(thin, updates):
    problem = random_problem(1)
    settings: dict[str, Any] = {"step_size": 0.01, "local_steps": 4, "strength": 0.3}
    law = travelling_law(**problem, **settings)
    draws = simulate(problem, settings, 2 * updates // 4, 2000)
    flat = draws.reshape(updates, 2000, 2)[thin - 1 :: thin]
    error = np.sum((flat.mean(axis=0) - law.target.mean) ** 2, axis=1)
    # 2,000 chains; a square of nearly normal numbers has a relative deviation of at most √2, so
    # their mean one of 3.2 %. Four times that.
    assert error.mean() == pytest.approx(law.recursion.mean_square_error(updates, thin), rel=0.13)


def test_step_factors_of_one_are_no_factors_and_others_are_the_updates_written_out():
    problem = random_problem()
    given = {"step_size": 0.01, "local_steps": 3, "strength": 0.4}
    plain, ones, falling = (
        travelling_law(**problem, **given, step_factors=factors)
        for factors in (None, (1.0,) * 3, (2.0, 1.0, 0.5))
    )
    for name in ("mean", "covariance"):
        values = [getattr(law.stationary, name) for law in (plain, ones)]
        np.testing.assert_allclose(*values, rtol=1e-9)
    singles = [
        travelling_law(
            **problem, **(given | {"local_steps": 1, "step_size": step})
        ).recursion.update
        for step in (0.02, 0.01, 0.005)
    ]
    np.testing.assert_allclose(
        falling.recursion.update.matrix,
        singles[2].matrix @ singles[1].matrix @ singles[0].matrix,
        rtol=1e-9,
    )
    assert not np.allclose(falling.stationary.covariance, plain.stationary.covariance, rtol=0.01)
    with refused(argument="step_factors", match="give 3"):
        travelling_law(**problem, **given, step_factors=(1.0, 2.0))


def test_one_site_is_langevin_dynamics():
    law = travelling_law([[3.0]], [10.0], step_size=0.02, local_steps=7, prior_precision=2.0)
    # SGLD with h' = h/2: variance 1/(λ(1 − hλ/4)), λ = 12
    assert law.stationary.covariance[0, 0] == pytest.approx(1 / (12 * (1 - 0.02 * 12 / 4)))
    assert law.stationary.mean[0] == pytest.approx(30 / 12)


def test_exact_surrogates_make_the_law_independent_of_the_number_of_updates():
    problem = random_problem() | {"gradient_noise": None}
    laws = [
        travelling_law(**problem, step_size=0.005, local_steps=T, strength=1.0) for T in (1, 10, 99)
    ]
    for law in laws[1:]:
        np.testing.assert_allclose(
            law.stationary.covariance, laws[0].stationary.covariance, rtol=1e-9
        )
        np.testing.assert_allclose(law.stationary.mean, law.target.mean, rtol=1e-9)


def test_unlike_curvatures_pull_the_mean_of_dsgld_aside_when_visits_are_long():
    problem = random_problem() | {"gradient_noise": None}
    short = travelling_law(**problem, step_size=0.005, local_steps=1)
    long = travelling_law(**problem, step_size=0.005, local_steps=200)
    np.testing.assert_allclose(short.stationary.mean, short.target.mean, rtol=1e-9)
    assert np.abs(long.stationary.mean - long.target.mean).max() > 0.1


def test_the_spread_of_long_visits_is_that_of_a_mixture_of_local_posteriors():
    law = travelling_law(
        [[-3.0], [3.0]], [100.0, 100.0], step_size=1e-4, local_steps=100_000, prior_precision=1.0
    )
    local = 200.0 * 3.0 / 201.0  # a site whose likelihood counts twice
    assert law.stationary.covariance[0, 0] == pytest.approx(local**2 + 1 / (201 * (1 - 201e-4 / 4)))


def test_a_common_shift_of_everything_shifts_the_mean_alone():
    problem = random_problem()
    shifted = problem | {
        "means": problem["means"] + 1e6,
        "prior_mean": problem["prior_mean"] + 1e6,
    }
    settings: dict[str, Any] = {"step_size": 0.01, "local_steps": 5}
    law, moved = travelling_law(**problem, **settings), travelling_law(**shifted, **settings)
    np.testing.assert_allclose(moved.stationary.mean - 1e6, law.stationary.mean, atol=1e-8)
    np.testing.assert_allclose(moved.stationary.covariance, law.stationary.covariance, rtol=1e-6)


def test_covariances_that_are_iterated_are_those_of_the_matrix(monkeypatch):
    """On both sides of the limit of stability, of symmetric maps and of others."""
    settings: dict[str, Any] = {"local_steps": 5, "strength": 0.5}
    laws = []
    for most in (travelling.MOST_DENSE, 1):
        monkeypatch.setattr(travelling, "MOST_DENSE", most)
        made = [travelling_law(**random_problem(), step_size=h, **settings) for h in (0.01, 0.5)]
        assert [law.stable for law in made] == [True, False]
        laws.append(made[0].stationary)
    np.testing.assert_allclose(laws[1].mean, laws[0].mean, rtol=1e-9)
    np.testing.assert_allclose(laws[1].covariance, laws[0].covariance, rtol=1e-7)
    rng = np.random.default_rng(2)
    matrices = rng.normal(size=(3, 4, 4)) / 4
    noise = np.broadcast_to(np.eye(4), (3, 4, 4))
    found = []
    for most in (20, 1):
        monkeypatch.setattr(travelling, "MOST_DENSE", most)
        maps = AffineMap(matrices, np.ones((3, 4)), noise)
        found.append(TravellingRecursion(np.full(3, 1 / 3), maps, 1).stationary().full)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-7)


@pytest.mark.parametrize("most", [travelling.MOST_DENSE, 1])
@pytest.mark.parametrize("d", [2, 9])
@pytest.mark.parametrize("step", [1e3, 1e80, 1e150])
def test_a_chain_beyond_all_numbers_is_unstable_and_no_error(monkeypatch, step, d, most):
    """Also where a visit is finite and its square is not, with nine parameters by ARPACK."""
    monkeypatch.setattr(travelling, "MOST_DENSE", most)
    rng = np.random.default_rng(0)
    means, precisions = rng.normal(size=(3, d)), rng.uniform(1, 2, (3, d))
    law = travelling_law(means, precisions, step_size=step, local_steps=2, prior_precision=1.0)
    assert not law.stable


def test_surrogates_that_turn_the_drift_around_have_no_stationary_law():
    problem = random_problem() | {"gradient_noise": None}
    narrow = [Gaussian(m, v) for m, v in zip(problem["means"], (1e-4, 1.0, 1.0), strict=True)]
    law = travelling_law(
        **problem, step_size=0.005, local_steps=20, strength=1.0, surrogates=narrow
    )
    assert not law.stable
    with refused(argument="step_size", match="no stationary law"):
        _ = law.stationary


def test_a_law_is_stable_where_the_radius_of_its_second_moments_is_below_one() -> None:
    """By the sign of a solution; at chains that no step size makes normal, on both sides of one."""
    rng = np.random.default_rng(0)
    below = 0
    for sites, d in itertools.product((1, 2, 3), (1, 2, 5)):
        matrices = rng.normal(size=(sites, d, d))
        shares = rng.dirichlet(np.ones(sites))
        one = np.zeros((sites, d)), np.zeros((sites, d, d))
        radius = TravellingRecursion(shares, AffineMap(matrices, *one), 1).mean_square_radius
        for wanted in (0.5, 1 - 1e-6, 1 + 1e-6, 2.0):
            scaled = AffineMap(np.sqrt(wanted / radius) * matrices, *one)
            recursion = TravellingRecursion(shares, scaled, 1)
            assert recursion.mean_square_radius == pytest.approx(wanted, rel=1e-9)
            assert (recursion.instability == "") == (wanted < 1), (sites, d, wanted)
            # The radius is asked for where the solution says no; it must not say yes wrongly.
            assert recursion._settles == (wanted < 1), (sites, d, wanted)
            below += wanted < 1
    assert below == 18


# --- helpers of the user -------------------------------------------------------------------------


@pytest.mark.parametrize("replace", [True, False])
def test_the_minibatch_covariance_is_that_of_drawn_batches(replace):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(12, 2)) @ np.array([[1.0, 0.4], [0.0, 0.5]])
    sums = np.array(
        [12 / 4 * rows[rng.choice(12, 4, replace=replace)].sum(axis=0) for _ in range(40_000)]
    )
    wanted = minibatch_noise(np.cov(rows.T, bias=True), 12, 4, replace=replace)
    # a variance from 40,000 draws is known to 0.7 %
    np.testing.assert_allclose(np.cov(sums.T), wanted, rtol=0.03, atol=0.03 * wanted.max())
    assert np.all(minibatch_noise(np.eye(2), 12, None) == 0)
    assert np.allclose(minibatch_noise(np.eye(2), 12, 12, replace=False), 0)


def test_the_constants_of_the_bounds_are_maxima_over_the_grid():
    rows = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    grid = np.array([[0.0, 0.0], [1.0, 1.0]])
    gradients = rows[None] - grid[:, None]
    exact = 3 * (rows.mean(axis=0) - grid)
    gamma, epsilon = gradient_constants(gradients, exact)
    assert gamma == pytest.approx(9.0)
    # With an exact Gaussian surrogate it is the rows' variance, at every point.
    assert epsilon == pytest.approx(np.var(rows, axis=0).sum())


def test_surrogates_reduce_the_constants_of_the_published_example():
    shards = published_shards()
    axis = np.linspace(-6, 6, 13)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    for rows in shards:
        gradients = rows[None] - grid[:, None]
        gamma, epsilon = gradient_constants(gradients, 200 * (rows.mean(axis=0) - grid))
        assert epsilon < 0.05 * gamma


@pytest.mark.parametrize(
    ("changed", "argument", "match"),
    [
        ({"probabilities": [0.5, 0.5]}, "probabilities", None),
        ({"probabilities": [0.5, 0.4, 0.2]}, "probabilities", None),
        ({"probabilities": [1.0, 0.0, 0.0]}, "probabilities", None),
        ({"means": [1.0, 2.0]}, "means", "means: shape"),
        ({"precisions": np.ones((2, 2))}, "precisions", "precisions: shape"),
        ({"precisions": -np.ones(3)}, "precisions", "negative eigenvalue"),
        ({"precisions": np.zeros(3), "prior_precision": 0.0}, "precisions", "not a density"),
        ({"gradient_noise": np.ones(3)}, "gradient_noise", "gradient_noise: shape"),
        ({"prior_precision": np.ones(3)}, "prior_precision", "prior_precision: shape"),
        ({"prior_mean": np.ones(3)}, "prior_mean", "prior_mean: shape"),
        ({"step_size": 0.0}, "step_size", None),
        ({"local_steps": 0}, "local_steps", None),
        ({"strength": -1.0}, "strength", None),
        ({"surrogates": [Gaussian([0.0, 0.0], 1.0)]}, "surrogates", None),
    ],
)
def test_a_bad_argument_is_refused_by_its_name(changed, argument, match):
    arguments: dict[str, Any] = random_problem() | {"step_size": 0.01, "local_steps": 3}
    with refused(argument=argument, match=match):
        travelling_law(**(arguments | changed))


def test_a_thinning_that_does_not_fit_the_visits_is_refused():
    law = travelling_law(**random_problem(), step_size=0.01, local_steps=4)
    with refused(argument="thin"):
        law.recursion.mean_square_error(100, 3)
    with refused(argument="updates"):
        law.recursion.mean_square_error(3, 4)
