"""The spread between sites, from sums of local fits, against its law by quadrature."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia.core.model import Model
from consortia.core.target import Target
from consortia.surrogates.heterogeneity import moments, widened, with_spreads
from consortia.surrogates.local_fits import Guesses
from consortia.surrogates.proposals.groups import groups_of

LOG_TAU, START = 1, np.array([0.0, np.log(0.3)])


def target(sites: int) -> Target:
    """Return a level, and log τ with a half-normal τ."""
    model = Model(
        log_likelihood=None,
        log_prior=lambda p: p["z"] - 0.5 * jnp.exp(2 * p["z"]) - 0.5 * p["a"] ** 2,
        site_log_likelihood=lambda p, rows, mask: 0.0 * p["a"],
        init={"a": jnp.zeros(()), "z": jnp.asarray(START[LOG_TAU], jnp.float32)},
        group_sd=lambda p: {"a": jnp.exp(p["z"]) / np.sqrt(sites), "z": jnp.zeros(())},
    )
    return Target(model, jax.tree.map(jnp.asarray, model.init))


def sums(b: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the sums over sites with these estimates, which know nothing of log τ."""
    between = jnp.array([np.exp(2 * START[LOG_TAU]), 0.0])
    each = [
        moments(jnp.array([x, 5.0]), jnp.diag(jnp.array([1 / one, 0.05])), between)
        for x, one in zip(b.tolist(), v.tolist(), strict=True)
    ]
    return np.asarray(sum(each), float)


def law_by_quadrature(b: np.ndarray, v: np.ndarray) -> tuple[float, float]:
    """Return mean and sd of log τ given the estimates, the common level integrated out."""
    z = np.linspace(-9, 4, 4001)
    total = v + np.exp(2 * z)[:, None]
    w = 1 / total
    mean = (w @ b / w.sum(1))[:, None]
    height = -0.5 * (np.log(total) + (b - mean) ** 2 * w).sum(1) - 0.5 * np.log(w.sum(1))
    height += z - 0.5 * np.exp(2 * z)
    share = np.exp(height - height.max())
    share /= share.sum()
    return float(share @ z), float(np.sqrt(share @ z**2 - (share @ z) ** 2))


def guessed(b: np.ndarray, v: np.ndarray, added: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    posterior = target(len(b))
    groups = groups_of(posterior, START)
    assert groups is not None
    before = Guesses([np.array([0.2, -3.0])], [np.array([[0.04, 0.01], [0.01, 0.5]])], True)
    found, variance = with_spreads(before, added, posterior, START, len(b), groups)
    if np.ptp(b):  # of the weighted mean of the estimates, given τ = 0
        w = 1 / (v + np.exp(2 * START[LOG_TAU]))
        assert variance[0] == pytest.approx(w**2 @ v / w.sum() ** 2, rel=1e-4)
    assert found.agree
    assert found.centres[0][0] == 0.2
    assert not found.covariances[0][0, 1]
    return found.centres[0], np.diagonal(found.covariances[0])


@pytest.mark.parametrize("sites", [3, 25, 200])
@pytest.mark.parametrize("tau", [0.05, 0.7])
def test_the_law_of_the_spread_is_that_of_the_estimates(sites: int, tau: float) -> None:
    rng = np.random.default_rng(sites)
    for _ in range(3):
        v = rng.uniform(0.02, 0.3, sites)
        b = 0.4 + rng.normal(size=sites) * np.sqrt(v + tau**2)
        mean, sd = law_by_quadrature(b, v)
        centre, variance = guessed(b, v, sums(b, v))
        # By moments, and not by the likelihood: within half a sd, and half as wide again.
        assert abs(centre[LOG_TAU] - mean) < 0.5 * sd, (centre, mean, sd)
        assert 0.65 < np.sqrt(variance[LOG_TAU]) / sd < 1.5


def test_of_equal_variances_it_is_exact() -> None:
    rng = np.random.default_rng(0)
    v = np.full(12, 0.1)
    b = rng.normal(size=12) * 0.6
    mean, sd = law_by_quadrature(b, v)
    centre, variance = guessed(b, v, sums(b, v))
    # Q is then a multiple of χ², and the level's own prior is too wide to matter.
    assert centre[LOG_TAU] == pytest.approx(mean, abs=0.02 * sd)
    assert np.sqrt(variance[LOG_TAU]) == pytest.approx(sd, rel=0.02)
    # τ₀² = .09 was in the variance of the level; what it lacks of E τ²/S is added.
    assert variance[0] == pytest.approx(
        0.04 + np.exp(2 * mean + 2 * sd**2) / 12 - 0.09 / 12, rel=0.2
    )


def test_sites_that_know_nothing_leave_the_prior() -> None:
    least = float(np.finfo(np.float32).tiny)  # what rounding leaves of a curvature of zero
    unknown = np.array([[least, 0.0], [0.0, 0.05]])
    between = jnp.array([0.09, 0.0])
    nothing = np.asarray(3 * moments(jnp.array([jnp.nan, 0.0]), unknown, between), float)
    assert np.isfinite(nothing).all()
    centre, variance = guessed(np.zeros(3), np.ones(3), nothing)
    z = np.linspace(-9, 4, 4001)
    share = np.exp(z - 0.5 * np.exp(2 * z))
    share /= share.sum()
    mean = share @ z
    assert centre[LOG_TAU] == pytest.approx(mean, abs=0.02)
    assert variance[LOG_TAU] == pytest.approx(share @ (z - mean) ** 2, rel=0.05)


def test_the_spread_of_no_points_is_empty() -> None:
    groups = groups_of(target(3), START)
    assert groups is not None
    assert groups[1](np.zeros((0, 2))).shape == (0, 2)


def test_one_site_has_no_spread_to_show() -> None:
    centre, variance = guessed(np.zeros(1), np.ones(1), sums(np.array([7.0]), np.array([0.1])))
    assert np.isfinite(centre).all()
    assert np.isfinite(variance).all()


def test_a_precision_is_widened_by_the_variance_between_sites() -> None:
    rng = np.random.default_rng(1)
    root = rng.normal(size=(4, 4))
    precision, between = root @ root.T + np.eye(4), np.array([0.5, 0.0, 2.0, 0.0])
    found: Any = widened(jnp.asarray(precision, jnp.float32), jnp.asarray(between, jnp.float32))
    np.testing.assert_allclose(
        found, np.linalg.inv(np.linalg.inv(precision) + np.diag(between)), rtol=1e-4, atol=1e-5
    )
