"""Logistic regression against formulas written by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from consortia.core.model import Model
from consortia.core.target import Target
from consortia.models import logistic_regression
from tests.refusals import refused

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(11, 3))
Y = np.array([0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0])
BATCH = {"x": X, "y": Y}
BETA = np.array([0.3, -1.2, 0.8])
A = 0.7


def parameters() -> dict[str, jax.Array]:
    return {"coefficients": jnp.asarray(BETA), "intercept": jnp.asarray(A)}


def test_the_density_is_the_bernoulli_density_and_the_prior_is_normalised(x64: None) -> None:
    model = logistic_regression(3, prior_scale=2.0, intercept=True, intercept_scale=5.0)
    probability = scipy.special.expit(A + X @ BETA)
    np.testing.assert_allclose(
        model.log_likelihood(parameters(), BATCH),
        scipy.stats.bernoulli(probability).logpmf(Y),
        rtol=1e-12,
    )
    expected = scipy.stats.norm(0, 2).logpdf(BETA).sum() + scipy.stats.norm(0, 5).logpdf(A)
    np.testing.assert_allclose(model.log_prior(parameters()), expected, rtol=1e-12)


def test_the_intercept_has_the_prior_scale_by_default(x64: None) -> None:
    one = logistic_regression(3, prior_scale=2.0, intercept=True)
    two = logistic_regression(3, prior_scale=2.0, intercept=True, intercept_scale=2.0)
    assert one.log_prior(parameters()) == two.log_prior(parameters())


def test_gradients_equal_the_formulas(x64: None) -> None:
    model = logistic_regression(3, prior_scale=2.0, intercept=True, intercept_scale=5.0)

    def total(p: Any) -> jax.Array:
        return jnp.sum(model.log_likelihood(p, BATCH)) + model.log_prior(p)

    gradient = jax.jit(jax.grad(total))(parameters())
    residual = Y - scipy.special.expit(A + X @ BETA)
    np.testing.assert_allclose(gradient["coefficients"], X.T @ residual - BETA / 4, rtol=1e-11)
    np.testing.assert_allclose(gradient["intercept"], residual.sum() - A / 25, rtol=1e-11)


def test_predictions_are_the_probabilities_of_class_0_and_1(x64: None) -> None:
    model = logistic_regression(3, intercept=True)
    p = scipy.special.expit(A + X @ BETA)
    expected = np.stack([1 - p, p], axis=1)
    np.testing.assert_allclose(model.predict(parameters(), BATCH), expected, rtol=1e-12)


def test_far_from_the_boundary_the_density_and_its_gradient_stay_exact(x64: None) -> None:
    model = logistic_regression(1)
    batch = {"x": np.array([[1.0], [1.0]]), "y": np.array([0, 1])}

    def values(p: Any) -> jax.Array:
        return model.log_likelihood(p, batch)

    params = {"coefficients": jnp.asarray([800.0])}
    np.testing.assert_array_equal(values(params), [-800.0, 0.0])
    np.testing.assert_array_equal(
        jax.jit(jax.jacobian(values))(params)["coefficients"][:, 0], [-1.0, 0.0]
    )


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int32, np.int64, np.float32, np.float64])
def test_labels_of_any_type_mean_the_same(dtype: type) -> None:
    model = logistic_regression(3, intercept=True)
    expected = model.log_likelihood(parameters(), BATCH)
    given = model.log_likelihood(parameters(), {"x": X, "y": Y.astype(dtype)})
    np.testing.assert_array_equal(given, expected)
    assert model.check({"x": X, "y": Y.astype(dtype)}) is None


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"x": X, "y": Y + 1}, "labels outside 0..1: 2 (6 of 11 rows)"),
        ({"x": X, "y": 2 * Y - 1}, "labels outside 0..1: -1 (5 of 11 rows); code −1 as 0"),
        ({"x": X, "y": Y + 0.5}, "labels outside 0..1: 0.5, 1.5 (11 of 11 rows)"),
    ],
)
def test_labels_outside_the_classes_are_named(batch: dict, message: str) -> None:
    problem = logistic_regression(3).check(batch)
    assert problem is not None
    assert message in problem


def test_unusable_arguments_are_refused_by_name() -> None:
    with refused(argument="features"):
        logistic_regression(-1)
    with refused(argument="prior_scale"):
        logistic_regression(2, prior_scale=float("nan"))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("rows", [3, 40, 3000])
def test_numpy_evaluates_a_site_as_the_compiled_model_does(
    intercept: bool, rows: int, x64: None
) -> None:
    rng = np.random.default_rng(rows)
    model = logistic_regression(5, prior_scale=0.7, intercept=intercept, intercept_scale=3.0)
    target = Target(model, model.init)
    batch = {"x": rng.normal(size=(rows, 5)), "y": rng.integers(0, 2, rows)}
    held = model.arrange(batch)
    points = 2 * rng.normal(size=(70, target.dimension))
    points[0] *= 500  # log-odds beyond what exp can take

    def potential(position: Any) -> Any:
        params = target.unravel(position)
        return -model.log_likelihood(params, held).sum() - 0.25 * model.log_prior(params)

    site = target.host_site(held, rows, 0.25)
    assert_allclose = np.testing.assert_allclose
    assert_allclose(site.potentials(points), jax.vmap(potential)(points), rtol=1e-12, atol=1e-13)
    slopes = jax.vmap(jax.grad(potential))(points)
    assert_allclose(site.gradients(points)[1:], slopes[1:], rtol=1e-7, atol=1e-7)
    curved = jax.hessian(potential)(points[1])
    assert_allclose(site.derivatives(points[1:2]).matrices[0], curved, rtol=1e-5, atol=1e-5)
    alone = jax.vmap(lambda at: model.log_likelihood(target.unravel(at), held)[1:3])(points)
    assert_allclose(host_rows(model, target, held, points)[:, 1:3], alone, rtol=1e-12, atol=1e-13)


def host_rows(model: Model, target: Target, held: Any, points: np.ndarray) -> np.ndarray:
    """Compute log p of each row, (K, n), in two parts."""
    likelihood, params = model.host.site(held), target.layout.params(points)
    parts = slice(0, 2), slice(2, None)
    return np.concatenate([likelihood.of_rows(params, part) for part in parts], axis=1)


@pytest.mark.parametrize("field", ["log_prior", "log_likelihood", "predict"])
def test_a_model_with_another_function_is_not_evaluated_by_the_old_ones(field: str) -> None:
    """Draws of ten times the rows had the spread of the rows."""
    model = logistic_regression(1)
    assert model.host is not None
    other = dataclasses.replace(model, **{field: lambda *given: 10 * getattr(model, field)(*given)})
    assert other.host is None
    assert dataclasses.replace(other, check=None).host is None
    assert dataclasses.replace(model, check=None).host is model.host
