"""Softmax regression against formulas written by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from consortia.models import logistic_regression, softmax_regression
from tests.refusals import refused

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(13, 4))
Y = GENERATOR.integers(0, 3, 13)
BATCH = {"x": X, "y": Y}
B = GENERATOR.normal(size=(3, 4))
A = np.array([0.4, -0.9, 0.1])


def parameters() -> dict[str, jax.Array]:
    return {"coefficients": jnp.asarray(B), "intercept": jnp.asarray(A)}


def test_the_density_is_the_categorical_one_and_the_prior_is_normalised(x64: None) -> None:
    model = softmax_regression(4, 3, prior_scale=2.0, intercept=True, intercept_scale=5.0)
    expected = scipy.special.log_softmax(A + X @ B.T, axis=1)[np.arange(13), Y]
    np.testing.assert_allclose(model.log_likelihood(parameters(), BATCH), expected, rtol=1e-12)
    prior = scipy.stats.norm(0, 2).logpdf(B).sum() + scipy.stats.norm(0, 5).logpdf(A).sum()
    np.testing.assert_allclose(model.log_prior(parameters()), prior, rtol=1e-12)


def test_gradients_equal_the_formulas(x64: None) -> None:
    model = softmax_regression(4, 3, prior_scale=2.0, intercept=True, intercept_scale=5.0)

    def total(p: Any) -> jax.Array:
        return jnp.sum(model.log_likelihood(p, BATCH)) + model.log_prior(p)

    gradient = jax.jit(jax.grad(total))(parameters())
    residual = np.eye(3)[Y] - scipy.special.softmax(A + X @ B.T, axis=1)
    np.testing.assert_allclose(gradient["coefficients"], residual.T @ X - B / 4, rtol=1e-10)
    np.testing.assert_allclose(gradient["intercept"], residual.sum(axis=0) - A / 25, rtol=1e-10)


def test_two_classes_are_logistic_regression_in_the_difference(x64: None) -> None:
    y = np.minimum(Y, 1)
    two = {"coefficients": jnp.asarray(B[:2])}
    difference = {"coefficients": jnp.asarray(B[1] - B[0])}
    np.testing.assert_allclose(
        softmax_regression(4, 2).log_likelihood(two, {"x": X, "y": y}),
        logistic_regression(4).log_likelihood(difference, {"x": X, "y": y}),
        rtol=1e-11,
    )


def test_predictions_are_the_probabilities_in_the_order_of_the_classes(x64: None) -> None:
    model = softmax_regression(4, 3, intercept=True)
    expected = scipy.special.softmax(A + X @ B.T, axis=1)
    np.testing.assert_allclose(model.predict(parameters(), BATCH), expected, rtol=1e-12)


def test_large_scores_overflow_neither_the_density_nor_its_gradient() -> None:
    model = softmax_regression(1, 3)
    batch = {"x": np.ones((3, 1), np.float32), "y": np.array([0, 1, 2])}

    def values(p: Any) -> jax.Array:
        return model.log_likelihood(p, batch)

    params = {"coefficients": jnp.asarray([[1000.0], [0.0], [-1000.0]], jnp.float32)}
    np.testing.assert_array_equal(values(params), [0.0, -1000.0, -2000.0])
    slopes = jax.jit(jax.jacobian(values))(params)["coefficients"][:, :, 0]
    np.testing.assert_array_equal(slopes, [[0, 0, 0], [-1, 1, 0], [-1, 0, 1]])


def test_labels_outside_the_classes_are_named() -> None:
    problem = softmax_regression(4, 2).check({"x": X, "y": Y})
    assert problem is not None
    assert f"labels outside 0..1: 2 ({(Y == 2).sum()} of 13 rows)" in problem
    many = softmax_regression(1, 2).check({"x": np.ones((20, 1)), "y": np.arange(20)})
    assert many is not None
    assert "2, 3, 4, 5, 6, ... (18 of 20 rows)" in many


@pytest.mark.parametrize("classes", [1, 0, 2.5, True])
def test_unusable_numbers_of_classes_are_refused(classes: Any) -> None:
    with refused(argument="classes", match=f"is {classes}"):
        softmax_regression(4, classes)
