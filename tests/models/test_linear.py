"""Linear regression against formulas written by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from consortia.models import linear_regression
from tests.refusals import refused

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(11, 3))
Y = GENERATOR.normal(size=11)
BATCH = {"x": X, "y": Y}
BETA = np.array([0.3, -1.2, 0.8])
A = 0.7


def test_the_known_noise_density_is_the_normal_density(x64: None) -> None:
    model = linear_regression(3, noise_scale=0.5, prior_scale=2.0)
    params = {"coefficients": jnp.asarray(BETA)}
    np.testing.assert_allclose(
        model.log_likelihood(params, BATCH), scipy.stats.norm(X @ BETA, 0.5).logpdf(Y), rtol=1e-12
    )
    expected = scipy.stats.norm(0, 2).logpdf(BETA).sum()
    np.testing.assert_allclose(model.log_prior(params), expected, rtol=1e-12)


def test_the_unknown_noise_density_has_its_prior_on_the_log_scale(x64: None) -> None:
    model = linear_regression(
        3, noise_scale=None, prior_scale=2.0, intercept=True, intercept_scale=5.0,
        log_noise_prior_scale=0.4,
    )  # fmt: skip
    params = {
        "coefficients": jnp.asarray(BETA),
        "intercept": jnp.asarray(A),
        "log_noise_scale": jnp.asarray(-0.3),
    }
    np.testing.assert_allclose(
        model.log_likelihood(params, BATCH),
        scipy.stats.norm(A + X @ BETA, np.exp(-0.3)).logpdf(Y),
        rtol=1e-12,
    )
    norm = scipy.stats.norm
    expected = norm(0, 2).logpdf(BETA).sum() + norm(0, 5).logpdf(A) + norm(0, 0.4).logpdf(-0.3)
    np.testing.assert_allclose(model.log_prior(params), expected, rtol=1e-12)
    np.testing.assert_allclose(model.predict(params, BATCH), A + X @ BETA, rtol=1e-12)


def test_gradients_equal_the_formulas(x64: None) -> None:
    model = linear_regression(3, noise_scale=None, intercept=True)
    params = {
        "coefficients": jnp.asarray(BETA),
        "intercept": jnp.asarray(A),
        "log_noise_scale": jnp.asarray(-0.3),
    }

    def total(p: Any) -> jax.Array:
        return jnp.sum(model.log_likelihood(p, BATCH))

    gradient = jax.jit(jax.grad(total))(params)
    residual, variance = Y - A - X @ BETA, np.exp(-0.6)
    np.testing.assert_allclose(gradient["coefficients"], X.T @ residual / variance, rtol=1e-11)
    np.testing.assert_allclose(gradient["intercept"], residual.sum() / variance, rtol=1e-11)
    np.testing.assert_allclose(
        gradient["log_noise_scale"], (residual**2).sum() / variance - len(Y), rtol=1e-11
    )


@pytest.mark.parametrize(
    ("arguments", "argument", "match"),
    [
        ({"features": 0}, "features", "features is 0"),
        ({"features": 2.0}, "features", "features is 2.0"),
        ({"features": 2, "prior_scale": 0}, "prior_scale", "prior_scale is 0"),
        ({"features": 2, "noise_scale": -1.0}, "noise_scale", "is -1.0"),
        ({"features": 2, "intercept_scale": np.inf}, "intercept_scale", "intercept_scale is inf"),
        (
            {"features": 2, "log_noise_prior_scale": "a"},
            "log_noise_prior_scale",
            "log_noise_prior_scale is 'a'",
        ),
    ],
)
def test_unusable_arguments_are_refused_by_name(arguments: dict, argument: str, match: str) -> None:
    with refused(argument=argument, match=match):
        linear_regression(**arguments)
