"""The exact law of federated averaging: known figures, identities, shapes, bad input."""

from __future__ import annotations

import tracemalloc
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from consortia.oracles import fa_hmc_law
from tests.refusals import refused

# The two clients of the dimension experiment: N(20, 1) and N(1, variance 4), each half the weight.
MEANS, CURVATURES, WEIGHTS = [20.0, 1.0], [1.0, 0.25], [0.5, 0.5]


def two_clients(steps: int, iterations: int, eta: float, rho: float = 1.0, **more: Any):
    return fa_hmc_law(
        MEANS,
        CURVATURES,
        WEIGHTS,
        step_size=eta,
        leapfrog_steps=steps,
        local_steps=iterations,
        momentum_correlation=rho,
        **more,
    )


def leading_order_mean_bias(
    means: Any,
    curvatures: Any,
    weights: Any,
    mass: Any = None,
    *,
    step_size: float,
    leapfrog_steps: int,
    local_steps: int,
) -> np.ndarray:
    """Return −κ L̄⁻¹ Σ_c w_c L_c M⁻¹ L_c (m_c − m_*), κ = (Kη)² [(T − 1)/4 + (1 − 1/K²)/12]."""
    kappa = (leapfrog_steps * step_size) ** 2
    kappa *= (local_steps - 1) / 4 + (1 - 1 / leapfrog_steps**2) / 12
    means = np.asarray(means, float).reshape(len(weights), -1)
    d = means.shape[1]
    pulls = np.asarray(curvatures, float).reshape(len(weights), d, d)
    inverse = np.eye(d) if mass is None else np.diag(1 / np.asarray(mass))
    precision = np.einsum("c,cij->ij", weights, pulls)
    mean = np.linalg.solve(precision, np.einsum("c,cij,cj->i", weights, pulls, means))
    pull = np.einsum("c,cij,jk,ckl,cl->i", weights, pulls, inverse, pulls, means - mean)
    return -kappa * np.linalg.solve(precision, pull)


def dense_problem(rng: np.random.Generator, clients: int = 3, d: int = 2):
    factors = rng.normal(size=(clients, d, d))
    curvatures = factors @ np.swapaxes(factors, 1, 2) / d + 0.3 * np.eye(d)
    weights = rng.uniform(0.5, 1.5, size=clients)
    return rng.normal(size=(clients, d)) * 3.0, curvatures, weights / weights.sum()


# --- the printed figures -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "eta", "bias", "ratio_common", "ratio_private"),
    [
        (1, 0.1, -0.051, 1.007, 1.007),
        (5, 0.02, -0.053, 1.005, 1.005),
        (5, 0.1, -1.345, 1.115, 1.168),
        (20, 0.1, -5.691, 1.173, 1.564),
    ],
)
def test_two_gaussian_clients_have_the_known_bias_and_variance(
    steps, eta, bias, ratio_common, ratio_private
):
    common, private = two_clients(steps, 10, eta, 1.0), two_clients(steps, 10, eta, 0.0)
    # Half a unit of the last printed digit.
    for law, ratio in ((common, ratio_common), (private, ratio_private)):
        assert abs(law.stationary.bias[0] - bias) < 5.1e-4
        assert abs(law.stationary.variance_ratio[0] - ratio) < 5.1e-4
    assert common.target.mean == pytest.approx([16.2])
    assert common.target.variance == pytest.approx([1.6])


@pytest.mark.parametrize(
    ("steps", "eta", "ratio_common", "ratio_private", "radius"),
    [
        (1, 0.1, 1.002, 1.002, 0.969),
        (5, 0.02, 1.000, 1.000, 0.969),
        (5, 0.1, 1.076, 1.128, 0.258),
        (20, 0.1, 1.711, 2.282, 0.749),
    ],
)
def test_debiased_two_gaussian_clients_have_no_bias_and_the_known_variance(
    steps, eta, ratio_common, ratio_private, radius
):
    for rho, ratio in ((1.0, ratio_common), (0.0, ratio_private)):
        law = two_clients(steps, 10, eta, rho, debias=True)
        assert law.stationary.bias[0] == 0.0
        assert abs(law.stationary.variance_ratio[0] - ratio) < 5.1e-4
        assert abs(law.spectral_radius - radius) < 5.1e-4


def test_debiasing_is_unstable_under_strong_heterogeneity():
    law = fa_hmc_law(
        [20.0, 1.0],
        [1.0, 0.1],
        WEIGHTS,
        step_size=0.1,
        leapfrog_steps=20,
        local_steps=10,
        debias=True,
    )
    assert not law.stable
    assert abs(law.spectral_radius - 1.33) < 5e-3
    with refused(argument="step_size", match=r"1\.327"):
        _ = law.stationary
    # The law after a number of rounds remains available, and grows.
    assert law.after(40, 0.0).variance[0] > 1e6 * law.target.variance[0]


def rounds_needed(d: int) -> int:
    law = fa_hmc_law(
        MEANS,
        np.outer(CURVATURES, np.ones(d)),
        WEIGHTS,
        step_size=0.02 / d**0.25,
        leapfrog_steps=5,
        local_steps=10,
    )
    rounds = law.rounds_to_w2_squared(0.1, 10.5)
    assert rounds is not None
    return rounds


def test_rounds_to_a_given_distance_grow_with_dimension_as_known():
    known = {2: 156, 50: 1139, 200: 2592, 500: 4425, 1000: 6609}
    found = {d: rounds_needed(d) for d in known}
    assert all(abs(found[d] - known[d]) <= 1 for d in known), found
    # End to end; a change of one round at either end moves it by 3e-4.
    slope = np.log(found[1000] / found[50]) / np.log(20.0)
    assert abs(slope - 0.587) < 5e-4


# --- identities that can be had by hand ----------------------------------------------------------


@pytest.mark.parametrize(("steps", "iterations"), [(1, 1), (1, 7), (5, 1), (5, 7), (23, 3)])
def test_one_client_has_the_leapfrog_variance_for_every_trajectory(steps, iterations):
    eta, curvature = 0.3, 2.0
    law = fa_hmc_law(
        [1.5], [curvature], [1.0], step_size=eta, leapfrog_steps=steps, local_steps=iterations
    )
    exact = 1.0 / (curvature * (1.0 - eta**2 * curvature / 4.0))
    # Float64 rounding through the squarings of the recursion.
    assert law.stationary.variance[0] == pytest.approx(exact, rel=1e-12)
    assert law.stationary.bias[0] == 0.0


def test_equal_curvature_has_no_mean_bias_and_one_variance_for_all_local_steps_and_correlations():
    curvature, eta = 0.7, 0.2
    for iterations in (1, 4, 30):
        for rho in (0.0, 0.4, 1.0):
            law = fa_hmc_law(
                [3.0, -2.0, 8.0],
                [curvature] * 3,
                [0.2, 0.5, 0.3],
                step_size=eta,
                leapfrog_steps=4,
                local_steps=iterations,
                momentum_correlation=rho,
            )
            assert abs(law.stationary.bias[0]) < 1e-13
            exact = 1.0 / (curvature * (1.0 - eta**2 * curvature / 4.0))
            assert law.stationary.variance[0] == pytest.approx(exact, rel=1e-12)


def test_many_local_steps_lead_to_the_weighted_mean_of_the_client_means():
    weights = [0.3, 0.7]
    law = fa_hmc_law(MEANS, CURVATURES, weights, step_size=0.1, leapfrog_steps=5, local_steps=2000)
    assert law.stationary.mean[0] == pytest.approx(0.3 * 20.0 + 0.7 * 1.0, rel=1e-12)
    assert abs(law.stationary.bias[0]) > 5.0


def test_one_leapfrog_step_and_one_local_step_have_no_mean_bias():
    assert abs(two_clients(1, 1, 0.4).stationary.bias[0]) < 1e-13
    assert abs(two_clients(1, 2, 0.4).stationary.bias[0]) > 0.01


def test_leading_order_bias_is_right_to_fourth_order_in_the_trajectory_length():
    rng = np.random.default_rng(3)
    means, curvatures, weights = dense_problem(rng, d=3)
    mass = np.array([0.5, 1.0, 2.0])
    etas = np.array([0.02, 0.01, 0.005])
    exact, error = [], []
    for eta in etas:
        settings = {"step_size": eta, "leapfrog_steps": 3, "local_steps": 4}
        law = fa_hmc_law(means, curvatures, weights, mass_matrix=mass, **settings)
        bias = law.stationary.bias
        leading = leading_order_mean_bias(means, curvatures, weights, mass, **settings)
        exact.append(np.linalg.norm(bias))
        error.append(np.linalg.norm(bias - leading))
    # The next order changes a slope by less than η² times a factor of order ten.
    assert np.polyfit(np.log(etas), np.log(exact), 1)[0] == pytest.approx(2.0, abs=0.02)
    assert np.polyfit(np.log(etas), np.log(error), 1)[0] == pytest.approx(4.0, abs=0.05)


def test_small_steps_lose_no_digits_of_the_bias():
    law = two_clients(4, 5, 1e-5)
    leading = leading_order_mean_bias(
        MEANS, CURVATURES, WEIGHTS, step_size=1e-5, leapfrog_steps=4, local_steps=5
    )
    # The next order is (Kη)² = 2e-9 of the bias; 1 - α computed as it stands would lose 1e-7.
    assert law.stationary.bias[0] == pytest.approx(leading[0], rel=2e-8)


def test_temperature_multiplies_every_variance_and_moves_no_mean():
    cold, warm = two_clients(5, 10, 0.1, 0.3), two_clients(5, 10, 0.1, 0.3, temperature=2.5)
    assert warm.stationary.variance == pytest.approx(2.5 * cold.stationary.variance)
    assert warm.target.variance == pytest.approx(2.5 * cold.target.variance)
    assert warm.stationary.bias == pytest.approx(cold.stationary.bias)


# --- shapes: numbers, diagonals, matrices --------------------------------------------------------

ATTRIBUTES = (
    "stationary.bias",
    "stationary.mean",
    "stationary.variance",
    "stationary.covariance",
    "stationary.variance_ratio",
    "target.mean",
    "target.variance",
    "target.covariance",
    "recursion.beta",
)


@pytest.mark.parametrize("debias", [False, True])
def test_dense_law_of_diagonal_matrices_is_the_diagonal_law(debias):
    rng = np.random.default_rng(2)
    means, curvatures = rng.normal(size=(3, 4)), rng.uniform(0.5, 1.5, size=(3, 4))
    mass = rng.uniform(0.5, 2.0, size=4)
    settings: dict[str, Any] = {
        "step_size": 0.15,
        "leapfrog_steps": 5,
        "local_steps": 4,
        "momentum_correlation": 0.4,
        "gradient_noise": 2.0,
        "debias": debias,
    }
    weights = [0.2, 0.3, 0.5]
    flat = fa_hmc_law(means, curvatures, weights, mass_matrix=mass, **settings)
    full = fa_hmc_law(
        means,
        np.stack([np.diag(row) for row in curvatures]),
        weights,
        mass_matrix=np.diag(mass),
        **settings,
    )
    assert flat.target.spread.ndim == 1
    assert full.target.spread.ndim == 2
    assert flat.spectral_radius == pytest.approx(full.spectral_radius, rel=1e-12)
    for attribute in ATTRIBUTES:
        np.testing.assert_allclose(
            *(attrgetter(attribute)(law) for law in (flat, full)), rtol=1e-11, atol=1e-12
        )
    assert flat.after(7, 1.0).w2 == pytest.approx(full.after(7, 1.0).w2, rel=1e-9)
    assert flat.rounds_to_w2_squared(0.3, 5.0) == full.rounds_to_w2_squared(0.3, 5.0)
    start = np.array([[1.0, 0.3], [0.3, 0.5]])
    start = np.kron(np.eye(2), start)
    np.testing.assert_allclose(
        flat.after(3, 0.0, start).covariance, full.after(3, 0.0, start).covariance, atol=1e-12
    )


@pytest.mark.parametrize("debias", [False, True])
def test_law_turns_with_the_coordinates(debias):
    rng = np.random.default_rng(8)
    means, curvatures, weights = dense_problem(rng, d=3)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    settings: dict[str, Any] = {
        "step_size": 0.2,
        "leapfrog_steps": 4,
        "local_steps": 2,
        "momentum_correlation": 0.5,
        "gradient_noise": 1.0,
        "debias": debias,
    }
    plain = fa_hmc_law(means, curvatures, weights, **settings)
    turned = fa_hmc_law(means @ turn.T, turn @ curvatures @ turn.T, weights, **settings)
    np.testing.assert_allclose(turned.stationary.bias, turn @ plain.stationary.bias, atol=1e-12)
    np.testing.assert_allclose(
        turned.stationary.covariance, turn @ plain.stationary.covariance @ turn.T, atol=1e-11
    )
    start = np.array([1.0, -1.0, 2.0])
    assert turned.after(3, turn @ start).w2 == pytest.approx(plain.after(3, start).w2, rel=1e-9)


def test_mass_matrix_is_a_change_of_coordinates():
    # y = R x with R'R = M turns mass M into the identity and curvature L into R^-T L R^-1.
    rng = np.random.default_rng(4)
    means, curvatures, weights = dense_problem(rng)
    mass = np.array([[2.0, 0.6], [0.6, 0.9]])
    root = np.linalg.cholesky(mass).T
    back = np.linalg.inv(root)
    settings = {"step_size": 0.3, "leapfrog_steps": 3, "local_steps": 4}
    direct = fa_hmc_law(means, curvatures, weights, mass_matrix=mass, **settings)
    changed = fa_hmc_law(means @ root.T, back.T @ curvatures @ back, weights, **settings)
    np.testing.assert_allclose(direct.stationary.bias, back @ changed.stationary.bias, atol=1e-12)
    np.testing.assert_allclose(
        direct.stationary.covariance, back @ changed.stationary.covariance @ back.T, atol=1e-12
    )


def test_finite_rounds_lead_to_the_stationary_law():
    for debias in (False, True):
        law = two_clients(5, 10, 0.1, 0.3, gradient_noise=9.0, debias=debias)
        assert law.after(500, -40.0).mean == pytest.approx(law.stationary.mean, rel=1e-12)
        assert law.after(500, 0.0, 30.0).covariance == pytest.approx(
            law.stationary.covariance, rel=1e-12
        )


def test_distance_of_the_start_is_that_of_a_point():
    law = two_clients(5, 10, 0.1)
    assert law.after(0, 10.0).w2 ** 2 == pytest.approx((10.0 - 16.2) ** 2 + 1.6)
    assert law.after(0, 0.0, 3.0).covariance == pytest.approx(np.array([[3.0]]))
    assert law.after(0, 10.0).mean == pytest.approx([10.0])


def test_rounds_to_a_distance_below_the_bias_are_none():
    assert two_clients(5, 10, 0.1).rounds_to_w2_squared(0.1, 10.5, maximum=200) is None


def test_a_client_may_be_flat_in_some_directions():
    curvatures = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 2.0]]])
    means = np.array([[1.0, 50.0], [-50.0, 2.0]])
    settings = {"step_size": 0.2, "leapfrog_steps": 3, "local_steps": 2}
    law = fa_hmc_law(means, curvatures, WEIGHTS, **settings)
    assert law.target.mean == pytest.approx([1.0, 2.0])
    # A flat client does not pull: each coordinate hears one client only and has no bias.
    assert law.stationary.mean == pytest.approx([1.0, 2.0])


def test_a_thousand_coordinates_never_make_a_matrix():
    d = 1000
    curvatures = np.linspace(0.5, 1.5, 2 * d).reshape(2, d)
    tracemalloc.start()
    try:
        for debias in (False, True):
            law = fa_hmc_law(
                MEANS,
                curvatures,
                WEIGHTS,
                step_size=0.05,
                leapfrog_steps=5,
                local_steps=10,
                debias=debias,
            )
            assert law.stationary.variance_ratio.shape == law.stationary.bias.shape == (d,)
            assert law.after(300, 10.0).w2 > 0.0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # One d x d matrix of float64 is 8 MB.
    assert peak < 4e6


def test_steps_beyond_any_number_are_unstable_and_not_an_error():
    law = two_clients(200, 20, 50.0)
    assert law.spectral_radius == np.inf
    assert not law.stable


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"weights": [0.5, 0.6]}, "weights"),
        ({"weights": [1.5, -0.5]}, "weights"),
        ({"means": [1.0, 2.0, 3.0]}, "means"),
        ({"means": [1.0, np.nan]}, "means"),
        ({"means": "words"}, "means"),
        ({"curvatures": [1.0, -0.1]}, "curvatures"),
        ({"curvatures": [0.0, 0.0]}, "curvatures"),
        ({"curvatures": np.ones((2, 3, 2))}, "curvatures"),
        ({"curvatures": np.array([[[1.0, 0.5], [0.0, 1.0]]] * 2)}, "curvatures"),
        ({"curvatures": np.array([[[1.0, 2.0], [2.0, 1.0]]] * 2)}, "curvatures"),
        ({"step_size": 0.0}, "step_size"),
        ({"step_size": [0.1, 0.2]}, "step_size"),
        ({"leapfrog_steps": 0}, "leapfrog_steps"),
        ({"local_steps": 2.5}, "local_steps"),
        ({"momentum_correlation": 1.1}, "momentum_correlation"),
        ({"gradient_noise": -1.0}, "gradient_noise"),
        ({"gradient_noise": [1.0, 1.0, 1.0]}, "gradient_noise"),
        ({"gradient_draws": 3}, "gradient_draws"),
        ({"mass_matrix": [0.0]}, "mass_matrix"),
        ({"mass_matrix": [1.0, 1.0]}, "mass_matrix"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_bad_input_is_refused_with_the_name_of_the_argument(change, argument):
    arguments: dict[str, Any] = {
        "means": MEANS,
        "curvatures": CURVATURES,
        "weights": WEIGHTS,
        "step_size": 0.1,
        "leapfrog_steps": 5,
        "local_steps": 10,
    } | change
    with refused(argument=argument):
        fa_hmc_law(**arguments)


def test_a_bad_question_to_the_law_is_refused():
    law = two_clients(5, 10, 0.1)
    with refused(argument="iterations"):
        law.after(-1, 0.0)
    with refused(argument="start"):
        law.after(1, [0.0, 1.0])
    with refused(argument="threshold"):
        law.rounds_to_w2_squared(0.0, 1.0)
