"""Sites that send a likelihood profile: beside normal ones, dense quadrature and rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

import consortia
from tests.models.regression.test_summaries import BCG, exact, made
from tests.refusals import refused

GRID = np.linspace(-4, 4, 161)


def profile_of(trial: np.ndarray) -> dict[str, Any]:
    """Return a trial's log odds ratio's log-likelihood, at the best odds of its controls."""
    vaccinated, others, cases, controls = trial
    a = np.log(cases / controls) + np.linspace(-6, 6, 4001) * np.sqrt(1 / cases + 1 / controls)
    eta = a[:, None] + GRID
    of_controls = cases * a - (cases + controls) * np.log1p(np.exp(a))
    both = of_controls[:, None] + vaccinated * eta - (vaccinated + others) * np.log1p(np.exp(eta))
    return {"profile": {"bcg": {"point": GRID.tolist(), "value": both.max(axis=0).tolist()}}}


def tables() -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    return {
        name: {"x": rng.normal(7, 2, 30), "z": rng.normal(size=30), "y": rng.integers(0, 2, 30)}
        for name in "ab"
    }


def added(formula: str, sent: dict[str, Any]) -> tuple[np.ndarray, dict[str, np.ndarray], Any]:
    """Return what a summary adds to the log density at some points, and these in natural units."""
    more: dict[str, Any] = {"family": "bernoulli"}
    if "|" in formula:
        more["integrate"] = True
    rng = np.random.default_rng(2)
    with_it = consortia.regression(formula, tables(), summaries={"c": sent}, **more).density
    without = consortia.regression(formula, tables(), **more).density
    params = {
        name: 0.4 * rng.normal(size=(6, *np.shape(values)))
        for name, values in without.start.items()
    }
    return with_it.log_prior(params) - without.log_prior(params), without.natural(params), with_it


@pytest.mark.parametrize("formula", ["y ~ x + z", "y ~ x + z + (0 + x | site)"])
def test_a_normal_profile_is_an_estimate(formula: str) -> None:
    values = stats.norm.logpdf(GRID, 0.3, 0.5) - stats.norm.logpdf(0, 0, 0.5)
    grid = {"x": {"point": GRID.tolist(), "value": (values + 7).tolist()}}
    found, _, _ = added(formula, {"profile": grid})
    estimate, _, _ = added(formula, {"estimate": {"x": 0.3}, "covariance": [[0.25]]})
    np.testing.assert_allclose(found, estimate - stats.norm.logpdf(0, 0, 0.5), atol=2e-5)


@pytest.mark.parametrize("events", [0, 3])
def test_levels_are_integrated_out_of_any_profile(events: int) -> None:
    def log_likelihood(b: np.ndarray) -> np.ndarray:  # of events of a Poisson count
        best = events * np.log(events / 2) - events if events else 0.0
        return events * b - 2 * np.exp(b) - best

    grid = np.linspace(-7, 4, 200)
    sent = {"x": {"point": grid.tolist(), "value": log_likelihood(grid).tolist()}}
    found, natural, density = added("y ~ x + (0 + x | site)", {"profile": sent})
    beta, sd = natural["coefficients"][:, 0], natural["sd"][:, 0]
    least = -2 * np.exp(-7.0) * (events == 0)  # the largest value of the grid
    for place in range(len(found)):

        def height(z: float, at: int = place) -> float:
            b = beta[at] + sd[at] * z
            return float(np.exp(log_likelihood(b) - least) * stats.norm.pdf(z))

        wanted = np.log(quad(height, -12, 12, epsabs=1e-12)[0])
        assert found[place] == pytest.approx(wanted, abs=2e-4)
    (sentence,) = (str(one) for one in density.site_estimates)
    assert sentence == "site 'c' sent a likelihood profile of x, and no rows"


def test_beyond_the_grid_it_is_straight_and_never_rises() -> None:
    falling = {"x": {"point": GRID.tolist(), "value": (-2 * np.exp(GRID)).tolist()}}
    density = added("y ~ x", {"profile": falling})[2]
    (profile,) = density.site_estimates
    low, edge, high, far = profile._at(np.array([-50.0, -4.0, 4.0, 5.0]))
    assert low == edge
    assert far - high == pytest.approx(-2 * np.exp(4.0), rel=1e-3)


def test_compiled_programs_have_the_same_density(x64: None) -> None:
    values = (3 * GRID - 2 * np.exp(GRID)).tolist()
    sent = {"profile": {"x": {"point": GRID.tolist(), "value": values}}}
    _, _, density = added("y ~ x + (0 + x | site)", sent)
    params = {name: 0.1 * np.ones((2, *np.shape(one))) for name, one in density.start.items()}
    compiled = jax.jit(density.log_prior)({n: jnp.asarray(one[0]) for n, one in params.items()})
    np.testing.assert_allclose(compiled, density.log_prior(params)[0], rtol=1e-9)


@pytest.mark.slow
def test_half_with_rows_and_half_with_profiles_are_all_rows() -> None:
    sent = {f"t{place}": profile_of(BCG[place]) for place in range(7, 13)}
    mixed = made(7, summaries=sent)
    method, more = consortia.few_rounds(effective_size=2000), {"metadata": mixed.metadata}
    tree = consortia.sample(mixed.model, mixed.sites, method, seed=1, progress=False, **more)
    natural = mixed.natural(tree)
    slopes = natural["coefficients"].values[..., mixed.names.index("bcg")].ravel()
    drawn = np.stack([slopes, natural["sd"].values.ravel()])
    means, sds = exact()
    assert np.all(np.abs(drawn.mean(axis=1) - means) < 0.06 * sds)
    np.testing.assert_allclose(drawn.std(axis=1), sds, rtol=0.05)


@pytest.mark.parametrize(
    ("profile", "place", "match"),
    [
        ([1], "", "give one coefficient"),
        ({"q": {"point": [1], "value": [1]}}, "", "'q'"),
        ({"bcg": [1, 2]}, ".bcg", "point and value"),
        ({"bcg": {"point": "a", "value": [1]}}, ".bcg", "other things than numbers"),
        ({"bcg": {"point": [1, 2], "value": [1, 2]}}, ".bcg", "8 to 10000"),
        ({"bcg": {"point": [1] * 9, "value": [*range(9)]}}, ".bcg", "must increase"),
        ({"bcg": {"point": [*range(9)], "value": [1] * 9}}, ".bcg", "the same at all points"),
        ({"bcg": {"point": [*range(9)], "value": [float("-inf")] * 9}}, ".bcg", "be finite"),
    ],
)
def test_profiles_that_cannot_be_used_are_refused(profile: Any, place: str, match: str) -> None:
    with refused(argument=f"summaries.p.profile{place}", match=match):
        made(13, summaries={"p": {"profile": profile}})
