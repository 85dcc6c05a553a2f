"""Section 5.1 of the FA-HMC paper: FA-HMC against FA-LD, and the reference for both."""

from __future__ import annotations

import numpy as np
import pytest

from consortia.models import linear_regression
from experiments.fa_hmc import logistic
from experiments.fa_hmc.reference import reference_draws


def test_the_reference_has_the_mean_and_the_covariance_of_a_known_posterior() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(30, 3)).astype(np.float32) * np.array([1.0, 0.5, 0.25], np.float32)
    y = (x @ np.array([1.0, -2.0, 3.0], np.float32) + generator.normal(size=30)).astype(np.float32)
    model = linear_regression(3, noise_scale=1.0, prior_scale=1.0)
    precision = x.T @ x + np.eye(3)
    covariance = np.linalg.inv(precision)
    found = reference_draws(model, {"x": x, "y": y}, draws=2000, step_size=0.1, seed=1)
    draws = found.draws.reshape(-1, 3)
    assert found.ess > 1000
    assert found.r_hat < 1.01
    assert 0.8 < found.acceptance < 1
    scale = np.sqrt(np.diag(covariance))
    # 4.5 standard errors for the least effective size of any coordinate
    np.testing.assert_allclose(
        (draws.mean(axis=0) - covariance @ x.T @ y) / scale, 0, atol=4.5 / np.sqrt(found.ess)
    )
    ratio = np.cov(draws.T) / np.outer(scale, scale) - covariance / np.outer(scale, scale)
    np.testing.assert_allclose(ratio, 0, atol=4.5 * np.sqrt(2 / found.ess))


def test_the_rows_lie_on_the_unit_sphere_and_follow_the_model() -> None:
    rows = logistic.rows(5, 20_000, seed=3)
    np.testing.assert_allclose(np.linalg.norm(rows["x"], axis=1), 1, rtol=1e-6)
    assert set(np.unique(rows["y"])) == {0, 1}
    # the directions are uniform, so E x xᵀ = I/d; entries have standard error below .002
    np.testing.assert_allclose(rows["x"].T @ rows["x"] / 20_000, np.eye(5) / 5, atol=0.01)


def test_the_gain_is_positive_when_the_second_error_is_smaller() -> None:
    found = logistic.paired(np.array([1.0, 2.0]), np.array([0.9, 1.9]))
    # gains of 10 and 5 per cent: mean 7.5, standard deviation 3.54 over sqrt(2)
    assert found["per_cent"] == pytest.approx(7.5)
    assert found["standard_error"] == pytest.approx(2.5)


@pytest.mark.slow
def test_the_quick_run_shows_a_tie_and_the_bias_of_long_trajectories() -> None:
    part = logistic.study("quick", 0)["gradients"][-1]
    assert (part["noise"], part["draws"]) == (0, "pooled")
    # 0.2 ± 0.3 % was seen; both methods get the same momenta
    assert abs(part["gain_of_fa_hmc"]["per_cent"]) < 3
    # K = floor(π/(3η)) goes to the clients' own posteriors within T = 10 iterations
    assert part["rule_over_best"] > 1.3
