"""Metric learning: the density against its equation, the features, bad input."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import consortia
from consortia.models.metric_learning import (
    leading_directions,
    metric_learning,
    squared_projections,
)
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("x64")


def pairs() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 12, 4))
    directions = np.linalg.qr(rng.normal(size=(4, 4)))[0][:2]
    return first, second, directions, rng.integers(0, 2, 12)


def test_the_likelihood_is_that_of_the_distance_with_labels_of_plus_and_minus_one():
    first, second, directions, y = pairs()
    params = {"scales": np.array([0.7, -0.2]), "threshold": np.array(0.4)}
    A = sum(g * np.outer(v, v) for g, v in zip(params["scales"], directions, strict=True))
    distance = np.einsum("ni,ij,nj->n", first - second, A, first - second)
    signed = 2 * y - 1
    wanted = -np.log1p(np.exp(signed * (distance - 0.4)))
    batch = {"x": squared_projections(first, second, directions), "y": y}
    found = metric_learning(2).log_likelihood(params, batch)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_it_is_a_logistic_regression_in_minus_the_squares_and_one():
    first, second, directions, y = pairs()
    x = squared_projections(first, second, directions)
    params = {"scales": np.array([0.7, -0.2]), "threshold": np.array(0.4)}
    other = consortia.models.logistic_regression(2, prior_scale=2.0, intercept=True)
    same = {"coefficients": params["scales"], "intercept": params["threshold"]}
    model = metric_learning(2, prior_scale=2.0)
    np.testing.assert_allclose(
        model.log_likelihood(params, {"x": x, "y": y}),
        other.log_likelihood(same, {"x": -x, "y": y}),
        rtol=1e-12,
    )
    np.testing.assert_allclose(model.log_prior(params), other.log_prior(same), rtol=1e-12)


def test_probabilities_are_those_of_the_likelihood():
    first, second, directions, y = pairs()
    batch = {"x": squared_projections(first, second, directions), "y": y}
    params = {"scales": np.array([0.7, 0.2]), "threshold": np.array(0.4)}
    model = metric_learning(2, threshold_scale=3.0)
    table = np.asarray(model.predict(params, batch))
    chosen = table[np.arange(12), y]
    np.testing.assert_allclose(np.log(chosen), model.log_likelihood(params, batch), rtol=1e-12)


def test_similar_pairs_are_the_likelier_the_nearer_they_are():
    model = metric_learning(1)
    params = {"scales": np.ones(1), "threshold": np.array(1.0)}
    similar = np.asarray(model.predict(params, {"x": np.array([[0.1], [5.0]])}))[:, 1]
    assert similar[0] > 0.5 > similar[1]


def test_directions_are_the_leading_singular_vectors():
    rows = np.random.default_rng(1).normal(size=(30, 5)) * np.array([1.0, 5.0, 2.0, 0.1, 0.5]) + 0.3
    wanted = np.linalg.svd(rows, full_matrices=False)[2][:3]
    found = leading_directions(rows, 3)
    np.testing.assert_allclose(np.abs(np.sum(found * wanted, axis=1)), 1, atol=1e-10)


def test_the_gradient_is_finite_at_the_start():
    first, second, directions, y = pairs()
    model = metric_learning(2)
    batch = {"x": squared_projections(first, second, directions), "y": y}
    gradient = jax.grad(lambda p: model.log_likelihood(p, batch).sum())(model.init)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"x": np.ones((3, 3)), "y": np.ones(3)}, "3 columns"),
        ({"x": -np.ones((3, 2)), "y": np.ones(3)}, "negative number"),
        ({"x": np.ones((3, 2)), "y": np.array([-1, 1, 1])}, "code −1 as 0"),
        ({"x": np.ones((3, 2))}, "'y' is missing"),
    ],
)
def test_a_batch_that_does_not_fit_is_described(batch, message):
    assert message in (metric_learning(2).check(batch) or "")


def test_bad_arguments_are_refused():
    with refused(argument="directions"):
        metric_learning(0)
    with refused(argument="prior_scale"):
        metric_learning(2, prior_scale=-1.0)
    with refused(argument="threshold_scale"):
        metric_learning(2, threshold_scale=0.0)
    with refused(argument="rows", match="at least 6"):
        leading_directions(np.ones((10, 5)), 6)
    with refused(argument="directions", match=r"\(4, 2\)"):
        squared_projections(np.ones((3, 2)), np.ones((4, 2)), np.ones((1, 2)))
