"""The posterior of softmax regression itself: contrasts, the law at the mode, HMC beside it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import helmert

import consortia
from experiments.fa_hmc import posterior
from experiments.fa_hmc.reference import Normal, reference_draws

FEATURES = 3


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(60, FEATURES - 1)), np.ones(60)]).astype(np.float32)
    return {"x": x, "y": rng.integers(0, posterior.CLASSES, 60).astype(np.int32)}


def test_contrasts_have_softmax_regressions_posterior_but_for_what_all_classes_share(
    rows: dict[str, np.ndarray],
) -> None:
    ours = posterior.contrasts(FEATURES)
    softmax = consortia.models.softmax_regression(FEATURES, posterior.CLASSES)
    values = np.random.default_rng(1).normal(size=(2, 9, FEATURES)).astype(np.float32)
    both = [{"coefficients": helmert(10).T.astype(np.float32) @ one} for one in values]
    assert ours.log_prior is not None
    assert softmax.log_prior is not None
    changes = []
    for model, (one, other) in (
        (ours, [{"contrasts": value} for value in values]),
        (softmax, both),
    ):
        density = [
            float(jnp.sum(model.log_likelihood(at, rows)) + model.log_prior(at))
            for at in (one, other)
        ]
        changes.append(density[1] - density[0])
    assert changes[0] == pytest.approx(changes[1], rel=1e-4)


def test_the_law_around_the_mode_has_no_slope_there_and_the_mean_curvature_of_some_points(
    rows: dict[str, np.ndarray],
) -> None:
    model = posterior.contrasts(FEATURES)
    near = posterior.laplace(model, rows)

    def loss(position: jax.Array) -> jax.Array:
        params = {"contrasts": position.reshape(9, FEATURES)}
        assert model.log_prior is not None
        return -jnp.sum(model.log_likelihood(params, rows)) - model.log_prior(params)

    covariance = near.root @ near.root.T
    slope = np.asarray(jax.jit(jax.grad(loss))(near.mean))
    assert np.sqrt(slope @ covariance @ slope) < 0.01  # in sds of the posterior
    points = [near.mean, near.mean + 2 * near.root[:, 0]]
    root = posterior._root(model, rows, [point.reshape(9, FEATURES) for point in points])
    curvature = jax.jit(jax.hessian(loss))
    precision = np.mean([curvature(point) for point in points], axis=0)
    np.testing.assert_allclose(root @ root.T @ precision, np.eye(9 * FEATURES), atol=1e-3)


def test_chains_that_move_in_the_coordinates_of_another_law_keep_the_posterior() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(30, 2)).astype(np.float32) * np.array([1.0, 0.1], np.float32)
    y = (x @ np.array([1.0, -2.0], np.float32) + rng.normal(size=30)).astype(np.float32)
    model = consortia.models.linear_regression(2, noise_scale=1.0, prior_scale=1.0)
    covariance = np.linalg.inv(x.T @ x + np.eye(2))
    mean = covariance @ x.T @ y
    sd = np.sqrt(np.diag(covariance))
    # a sd too far along each coordinate, and a covariance half as wide again
    near = Normal((mean + sd).astype(np.float32), 1.2 * np.linalg.cholesky(covariance))
    near = near._replace(root=near.root.astype(np.float32))
    found = reference_draws(
        model, {"x": x, "y": y}, draws=2000, warmup=50, step_size=0.3, near=near, seed=3
    )
    draws = found.draws.reshape(-1, 2)
    assert found.draws.shape == (4, 2000, 2)
    assert found.ess > 1000
    # 4.5 standard errors for the least effective size of any coordinate
    np.testing.assert_allclose((draws.mean(axis=0) - mean) / sd, 0, atol=4.5 / np.sqrt(found.ess))
    np.testing.assert_allclose(draws.std(axis=0) / sd, 1, atol=4.5 / np.sqrt(2 * found.ess))


def test_the_law_around_draws_has_their_later_mean_and_the_curvature_of_four_of_them(
    rows: dict[str, np.ndarray],
) -> None:
    model = posterior.contrasts(FEATURES)
    draws = np.random.default_rng(4).normal(size=(2, 6, 9 * FEATURES)).astype(np.float32)
    found = posterior.around(model, rows, draws)
    np.testing.assert_allclose(found.mean, draws[:, 3:].mean(axis=(0, 1)), rtol=1e-5, atol=1e-6)
    points = [draws[chain, at].reshape(9, FEATURES) for chain in (0, 1) for at in (3, 5)]
    np.testing.assert_array_equal(found.root, posterior._root(model, rows, points))


def test_each_chains_predictions_make_the_one_of_all(rows: dict[str, np.ndarray]) -> None:
    model = posterior.contrasts(FEATURES)
    draws = np.random.default_rng(5).normal(size=(2, 3, 9 * FEATURES)).astype(np.float32)
    curve, single, by_chain = posterior._predictive(draws, model, rows)
    everything = {"contrasts": draws.reshape(2, 3, 9, FEATURES)}
    expected = posterior._scores(consortia.predict(everything, model, rows), rows)
    assert curve[-1] == pytest.approx({"draws": 6, **expected}, rel=1e-5)
    alone = {"contrasts": everything["contrasts"][1:]}
    expected = posterior._scores(consortia.predict(alone, model, rows), rows)
    assert by_chain[1] == pytest.approx(expected, rel=1e-5)
    assert single.shape == (2, 3, 4)
