"""Distances of sets that are shifted, scaled, weighted or of unequal size."""

from __future__ import annotations

import numpy as np
import pytest
import xarray
from scipy import stats

from consortia.diagnostics import (
    gaussian_wasserstein2,
    marginal_error,
    marginal_wasserstein2,
    wasserstein2,
)
from tests.refusals import refused


def normal(count: int, dimension: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dimension))


def test_marginal_error_of_a_shift_is_the_mean_absolute_shift():
    draws = normal(300, 3)
    shift = np.array([1.0, -2.0, 0.0])
    assert marginal_error(draws, draws + shift) == pytest.approx(1.0, rel=1e-12)
    assert marginal_error(draws, draws[::-1]) == 0


@pytest.mark.parametrize("other", [300, 200, 299, 7, 1])
def test_marginal_error_equals_scipy_for_unequal_sizes(other):
    a, b = normal(300, 4), 0.3 + 1.5 * normal(other, 4, seed=1)
    expected = np.mean([stats.wasserstein_distance(a[:, i], b[:, i]) for i in range(4)])
    assert marginal_error(a, b) == pytest.approx(expected, rel=1e-10)
    assert marginal_error(b, a) == pytest.approx(expected, rel=1e-10)


def test_marginal_error_of_one_law_has_the_documented_size():
    # 400 coordinates: the standard error of the mean is about 2 %; 10 % is five of these.
    found = marginal_error(normal(1000, 400), normal(1000, 400, seed=1))
    assert found * np.sqrt(1000) == pytest.approx(1.8, rel=0.1)


def test_marginal_wasserstein2_of_a_scaling_is_exact():
    draws = normal(500, 2)
    expected = np.sqrt(np.mean(draws**2, axis=0)) * np.array([1.0, 2.0])
    found = marginal_wasserstein2(draws, draws * np.array([2.0, 3.0]))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_marginal_wasserstein2_of_unequal_sizes_by_hand():
    # Masses: [0, 1/3] 0→0, [1/3, 1/2] 1→0, [1/2, 2/3] 1→3, [2/3, 1] 2→3.
    found = marginal_wasserstein2(np.array([0.0, 1, 2]), np.array([0.0, 3]))
    assert found[0] ** 2 == pytest.approx(0 / 3 + 1 / 6 + 4 / 6 + 1 / 3)


def result(draws: np.ndarray, weights: np.ndarray | None = None) -> xarray.DataTree:
    """A tree of draws (chain, draw, 3): a scalar and a vector of two."""
    posterior = xarray.Dataset(
        {
            "vector": (("chain", "draw", "place"), draws[..., 1:]),
            "scalar": (("chain", "draw"), draws[..., 0]),
        }
    )
    groups = {"/posterior": posterior}
    if weights is not None:
        groups["/sample_stats"] = xarray.Dataset({"weight": ("draw", weights)})
    return xarray.DataTree.from_dict(groups)


def test_results_are_pooled_over_chains_and_matched_by_name():
    a, b = normal(40, 3), 2 + normal(40, 3, seed=1)
    tree_a, tree_b = result(a.reshape(4, 10, 3)), result(b.reshape(2, 20, 3))
    reordered = {name: np.asarray(tree_b["posterior"][name]) for name in ("scalar", "vector")}
    assert marginal_error(tree_a, tree_b) == pytest.approx(marginal_error(a, b))
    assert wasserstein2(tree_a, reordered) == pytest.approx(wasserstein2(a, b))


def test_of_natural_quantities_the_coordinates_beside_them_are_compared():
    a, b = normal(40, 3).reshape(4, 10, 3), 2 + normal(40, 3, seed=1).reshape(4, 10, 3)
    tree = result(np.exp(a))
    tree["unconstrained_posterior"] = result(a)["posterior"]
    tree["posterior"].attrs["scale"] = "natural"
    assert marginal_error(tree, result(b)) == marginal_error(result(a), result(b))
    with refused(argument="tree", match="'unconstrained_posterior'"):
        marginal_error(tree["posterior"].to_dataset(), result(b))


def test_step_weights_count_in_the_marginal_distances():
    a, b = normal(60, 3), normal(50, 3, seed=1)
    weights = np.linspace(1.0, 0.2, 30)
    tree = result(a.reshape(2, 30, 3), weights)
    order = [1, 2, 0]  # the vector comes first in the tree
    expected = [
        stats.wasserstein_distance(a[:, i], b[:, j], np.tile(weights, 2))
        for j, i in enumerate(order)
    ]
    assert marginal_error(tree, b) == pytest.approx(np.mean(expected), rel=1e-10)
    equal = result(a.reshape(2, 30, 3), np.full(30, 0.3))
    np.testing.assert_allclose(
        marginal_wasserstein2(equal, b), marginal_wasserstein2(a[:, order], b), rtol=1e-10
    )


def test_wasserstein2_of_a_shifted_and_shuffled_set_is_the_length_of_the_shift():
    draws = normal(200, 3)
    shift = np.array([3.0, 4.0, 0.0])
    shuffled = np.random.default_rng(1).permutation(draws + shift)
    assert wasserstein2(draws, shuffled) == pytest.approx(5.0, rel=1e-12)


def test_wasserstein2_in_one_dimension_equals_the_sorted_quantiles():
    a, b = normal(150, 1), 2 * normal(150, 1, seed=1)
    assert wasserstein2(a, b) == pytest.approx(marginal_wasserstein2(a, b)[0], rel=1e-12)


def test_wasserstein2_of_gaussian_draws_approaches_the_closed_form():
    mean, cov = np.array([2.0, -1.0]), np.array([[1.0, 0.6], [0.6, 2.0]])
    exact = gaussian_wasserstein2(np.zeros(2), np.eye(2), mean, cov)
    root = np.linalg.cholesky(cov)
    found = [
        wasserstein2(normal(count, 2, seed=3), mean + normal(count, 2, seed=4) @ root.T)
        for count in (100, 900)
    ]
    # The sampling error of the mean shift is about √(2·tr/n)/2 ≈ .05 at n = 900, of 2.3.
    assert abs(found[1] - exact) < 0.1
    assert abs(found[1] - exact) < abs(found[0] - exact)


def test_wasserstein2_refuses_unequal_or_many_draws_unless_thinned():
    with refused(argument="thin", match="30.*and 20.*thin=True"):
        wasserstein2(normal(30, 1), normal(20, 1))
    with refused(argument="thin", match="max_points=10"):
        wasserstein2(normal(20, 1), normal(20, 1), max_points=10)
    a, b = np.arange(30.0)[:, None], np.arange(10.0)[:, None]
    # Of 30, the middle draw of each three.
    assert wasserstein2(a, b, thin=True) == pytest.approx(wasserstein2(a[1::3], b))


def test_wasserstein2_refuses_weighted_draws():
    tree = result(normal(20, 3).reshape(2, 10, 3), np.linspace(1, 2, 10))
    with refused(argument="a", match="marginal_wasserstein2"):
        wasserstein2(tree, normal(20, 3))


def test_gaussian_wasserstein2_of_commuting_covariances_is_that_of_their_spectra():
    rotation, _ = np.linalg.qr(normal(4, 4))
    a, b = np.array([1.0, 2, 3, 4]), np.array([4.0, 0.0, 1, 9])
    mean = np.array([1.0, 0, -1, 2])
    expected = np.sqrt(np.sum(mean**2) + np.sum((np.sqrt(a) - np.sqrt(b)) ** 2))
    full = gaussian_wasserstein2(
        mean, rotation * a @ rotation.T, np.zeros(4), rotation * b @ rotation.T
    )
    assert full == pytest.approx(expected, rel=1e-7)
    assert gaussian_wasserstein2(mean, a, np.zeros(4), b) == pytest.approx(expected, rel=1e-12)
    assert gaussian_wasserstein2(mean, a, np.zeros(4), np.diag(b)) == pytest.approx(expected)


def test_gaussian_wasserstein2_agrees_with_the_coupling_for_covariances_that_do_not_commute():
    a, b = np.array([[2.0, 1.0], [1.0, 1.0]]), np.array([[1.0, -0.5], [-0.5, 3.0]])
    # The optimal map T = A^{-1/2} (A^{1/2} B A^{1/2})^{1/2} A^{-1/2} carries N(0, A) to N(0, B).
    values, vectors = np.linalg.eigh(a)
    root = vectors @ np.diag(np.sqrt(values)) @ vectors.T
    inner_values, inner_vectors = np.linalg.eigh(root @ b @ root)
    inner = inner_vectors @ np.diag(np.sqrt(inner_values)) @ inner_vectors.T
    optimal = np.linalg.inv(root) @ inner @ np.linalg.inv(root)
    np.testing.assert_allclose(optimal @ a @ optimal, b, atol=1e-12)
    cost = np.trace((optimal - np.eye(2)) @ a @ (optimal - np.eye(2)))
    zero = np.zeros(2)
    assert gaussian_wasserstein2(zero, a, zero, b) == pytest.approx(np.sqrt(cost), rel=1e-10)
    assert gaussian_wasserstein2(zero, b, zero, a) == pytest.approx(np.sqrt(cost), rel=1e-10)


def test_gaussian_wasserstein2_of_equal_laws_is_zero():
    cov = np.array([[2.0, 1.0], [1.0, 1.0]])
    # The square root of a rounding error of 1e-15.
    assert gaussian_wasserstein2([1, 2], cov, [1, 2], cov) < 1e-7


def test_bad_sets_and_covariances_are_refused():
    with refused(argument="a", match="has 2.*b 3"):
        marginal_error(normal(5, 2), normal(5, 3))
    with refused(argument="b", match="not finite"):
        marginal_error(normal(5, 1), np.full((5, 1), np.nan))
    with refused(argument="a", match=r"\(2, 3, 4\)"):
        marginal_error(np.zeros((2, 3, 4)), normal(5, 1))
    with refused(argument="b", match="theta"):
        marginal_error(result(normal(6, 3)[None]), {"theta": np.zeros((1, 5, 3))})
    with refused(argument="cov_b", match="eigenvalue -1"):
        gaussian_wasserstein2([0.0, 0.0], np.eye(2), [0.0, 0.0], np.diag([1.0, -1.0]))
    with refused(argument="cov_a", match="not symmetric"):
        gaussian_wasserstein2([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]], [0.0, 0.0], np.eye(2))
    with refused(argument="mean_a"):
        gaussian_wasserstein2([0.0, 0.0], np.eye(3), [0.0, 0.0], np.eye(2))
