"""Leaving a site out and scaling the prior, against the exact laws of a Gaussian model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.diagnostics import leave_one_site_out, prior_sensitivity
from consortia.engines.local import LocalEngine
from tests.refusals import refused

RNG = np.random.default_rng(5)
SIZES, DRAWS = (40, 25, 15), 4000
X = [RNG.normal(size=(n, 2)) for n in SIZES]
Y = [x @ [1.0, -0.5] + 0.3 * c + RNG.normal(size=len(x)) for c, x in enumerate(X)]
SITES = consortia.Sites.from_list(
    [{"x": x.astype("f"), "y": y.astype("f")} for x, y in zip(X, Y, strict=True)],
    names=["oslo", "lima", "bern"],
)
CENTRE, WIDTH = np.array([0.5, 0.0]), np.array([0.2, 3.0])


def log_prior(p: Any) -> Any:
    return jnp.sum(-0.5 * ((p - jnp.asarray(CENTRE, "f")) / jnp.asarray(WIDTH, "f")) ** 2)


def log_likelihood(p: Any, rows: Any) -> Any:
    return -0.5 * (rows["y"] - rows["x"] @ p) ** 2


MODEL = consortia.Model(log_prior, log_likelihood, jnp.zeros(2))


def law(
    which: tuple[int, ...] = (0, 1, 2), prior: float = 1.0, likelihood: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of the posterior of some sites, with powers of both factors."""
    precision = np.diag(prior / WIDTH**2) + likelihood * sum(X[c].T @ X[c] for c in which)
    pull = prior * CENTRE / WIDTH**2 + likelihood * sum(X[c].T @ Y[c] for c in which)
    covariance = np.linalg.inv(precision)
    return covariance @ pull, covariance


def draws() -> dict[str, np.ndarray]:
    """Return draws of the posterior with its own mean and covariance, so that these are exact."""
    mean, covariance = law()
    z = RNG.normal(size=(DRAWS, 2))
    z = (z - z.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(z.T))).T
    return {"theta": (mean + z @ np.linalg.cholesky(covariance).T)[None]}


TREE = draws()


@pytest.fixture(scope="module")
def without() -> Any:
    return leave_one_site_out(TREE, MODEL, SITES)


def test_without_a_site_the_posterior_is_that_of_the_others(without: Any) -> None:
    np.testing.assert_allclose(without.mean, law()[0], atol=1e-6)
    assert np.all(without.k_hat < 0.7)
    for left in range(3):
        wanted, spread = law(tuple(c for c in range(3) if c != left))
        sd = np.sqrt(np.diagonal(spread))
        # A third or more of 4,000 draws is effective: a standard error of .03 sd, and of 2 %
        # of a standard deviation; four of both.
        assert np.all(np.abs(without.means[left] - wanted) < 0.12 * sd)
        np.testing.assert_allclose(without.sds[left], sd, rtol=0.08)
    # The control: the posterior of all sites is further away than that gate.
    assert np.abs(without.shifts).max(axis=1).min() > 0.2


def test_a_site_that_the_posterior_hangs_on_is_said(without: Any) -> None:
    lines = str(without).splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("oslo")
    bad = replace(without, k_hat=np.array([0.2, 0.9, 0.1]))
    note = str(bad).splitlines()[-1]
    assert note.startswith("* k-hat is above 0.7: do not use the line of lima; run the study")
    frame = without.to_dataframe()
    assert list(frame["site"][:2]) == ["oslo", "oslo"]
    np.testing.assert_allclose(frame["mean"][:2], without.means[0])


def test_what_leaves_a_process_are_moments_of_the_sites_it_holds(without: Any) -> None:
    class Two(LocalEngine):
        """The other process has the third site."""

        def allgather(self, make: Any) -> list[Any]:
            found = make()
            if not isinstance(found, dict):
                return [found]
            assert set(found) == {"0", "1"}
            assert all(len(one["mean"]) == len(one["sd"]) == 2 for one in found.values())
            third = {"mean": without.means[2], "sd": without.sds[2], "k": without.k_hat[2]}
            return [found, {"2": third}]

    sites = replace(SITES, elsewhere=frozenset({2}))
    there = leave_one_site_out(TREE, MODEL, sites, engine=Two())
    np.testing.assert_allclose(there.means, without.means)


def test_twice_the_prior_moves_the_means_as_the_exact_law_does() -> None:
    found = prior_sensitivity(TREE, MODEL)
    sd, doublings = np.sqrt(np.diagonal(law()[1])), np.log2(1.25 / 0.8)
    (low, narrow), (high, wide) = law(prior=0.8), law(prior=1.25)
    shift = (high - low) / sd / doublings
    assert abs(shift[0]) > 0.2  # the first prior pulls, the second one is wide
    # Both ends are weights of the same draws, of which nearly all are effective.
    np.testing.assert_allclose(found.shift, shift, atol=0.02)
    ratio = np.sqrt(np.diagonal(wide) / np.diagonal(narrow)) ** (1 / doublings)
    np.testing.assert_allclose(found.sd_ratio, ratio, atol=0.02)
    assert found.k_hat < 0.5
    assert found.measure[0] > 0.05 > found.measure[1]
    assert np.isnan(found.likelihood).all()
    assert "the prior matters" in str(found)


def test_with_the_sites_the_power_of_the_likelihood_is_measured_too() -> None:
    found = prior_sensitivity(TREE, MODEL, SITES, labels={"theta": [["age", "dose"]]})
    assert found.names == ("theta[age]", "theta[dose]")
    assert np.all(found.likelihood > 0.05)
    assert found.findings == ("prior and data may disagree", "")
    # The measure grows with the shift, which for the first parameter is the same up to its sign.
    assert found.likelihood[0] == pytest.approx(found.measure[0], rel=0.5)


def test_a_part_of_the_prior_is_scaled_alone() -> None:
    def of_second(p: Any) -> Any:
        return -0.5 * (p[1] / 3) ** 2

    found = prior_sensitivity(TREE, MODEL, log_prior=of_second)
    assert np.all(np.abs(found.shift) < 0.02)
    assert np.all(found.measure < 0.05)


def test_few_draws_are_refused_by_the_name_of_the_function() -> None:
    few = {"theta": TREE["theta"][:, :50]}
    with refused(argument="draws", match="prior_sensitivity.*50"):
        prior_sensitivity(few, MODEL)
    with refused(argument="draws", match="leave_one_site_out.*50"):
        leave_one_site_out(few, MODEL, SITES)
