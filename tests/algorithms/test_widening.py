"""Few groups with a spread between them: the coordinates of few_rounds, and the exact posterior."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.algorithms.few_rounds.coordinates import Widening, widened
from consortia.core.target import Target
from consortia.errors import WarmupError

LEVELS, ERROR = np.array([0.1, 0.5, 0.3]), 0.12
"""What three sites say of their levels, and its standard error."""

PRIOR_SD, SCALE = 2.5, 2.5


def log_prior(p: Any) -> Any:
    """log p(μ, log τ): normal, and a half t with three degrees of freedom."""
    tau = jnp.exp(p["log_sd"])
    of_tau = -2 * jnp.log1p((tau / SCALE) ** 2 / 3) + p["log_sd"]
    return -0.5 * (p["mu"] / PRIOR_SD) ** 2 + of_tau


def of_site(p: Any, rows: Any, mask: Any) -> Any:
    """Log-density of the site's estimate, its level integrated out."""
    variance = ERROR**2 + jnp.exp(2 * p["log_sd"])
    values = -0.5 * (rows["y"] - p["mu"]) ** 2 / variance - 0.5 * jnp.log(variance)
    return jnp.sum(jnp.where(mask, values, 0))


def group_sd(p: Any) -> Any:
    return {"mu": jnp.exp(p["log_sd"]) / np.sqrt(3), "log_sd": jnp.zeros_like(p["log_sd"])}


INIT = {"mu": np.zeros(()), "log_sd": -np.ones(())}
MODEL = consortia.Model(log_prior, None, INIT, site_log_likelihood=of_site, group_sd=group_sd)


def exact() -> dict[str, tuple[float, float]]:
    """Return mean and sd of μ and log τ, by a grid of log τ; μ given τ is normal."""
    grid = np.linspace(-14, 6, 4001)
    variance = ERROR**2 + np.exp(2 * grid)
    precision = 3 / variance + 1 / PRIOR_SD**2
    mean = LEVELS.sum() / variance / precision
    fit = (LEVELS**2).sum() / variance - precision * mean**2
    log_density = -0.5 * fit - 1.5 * np.log(variance) - 0.5 * np.log(precision)
    log_density += grid - 2 * np.log1p((np.exp(grid) / SCALE) ** 2 / 3)
    share = np.exp(log_density - log_density.max())
    share /= share.sum()
    mu = share @ mean
    sd = np.sqrt(share @ (1 / precision + (mean - mu) ** 2))
    log_tau = share @ grid
    return {"mu": (mu, sd), "log_sd": (log_tau, np.sqrt(share @ (grid - log_tau) ** 2))}


def sampled(model: consortia.Model, seed: int = 3) -> Any:
    rows = [{"y": np.array([level], np.float32)} for level in LEVELS]
    sites = consortia.Sites.from_list(rows)
    return consortia.sample(
        model, sites, consortia.few_rounds(effective_size=2000), chains=4, seed=seed, progress=False
    )


def test_the_volume_is_that_of_automatic_differentiation_and_the_order_is_kept(x64: None) -> None:
    target = Target(MODEL, INIT)
    widening = Widening(jnp.array([-1.5, 0.3]), jnp.array([1.2, 0.02]))  # log τ comes first

    @jax.jit
    def one(phi: Any) -> Any:
        return widened(target, widening, phi[None])[0][0]

    phi = jnp.array(np.random.default_rng(0).normal([-1.5, 0.3], [1.5, 0.4], (50, 2)))
    theta, volume = jax.jit(lambda phi: widened(target, widening, phi))(phi)
    found = jax.jit(lambda phi: jnp.linalg.slogdet(jax.vmap(jax.jacfwd(one))(phi)))(phi)
    np.testing.assert_allclose(volume, found[1], rtol=1e-9, atol=1e-12)
    assert (found[0] == 1).all()
    order = np.argsort(phi[:, 0])
    assert (np.diff(theta[order, 0]) > 0).all()
    # at the mode nothing changes, and above it log τ stays
    np.testing.assert_allclose(one(widening.mode), widening.mode)
    above = phi[:, 0] > -1.5
    np.testing.assert_array_equal(theta[above, 0], phi[above, 0])


def test_the_posterior_of_three_groups_is_exact_with_wide_tails_and_few_messages() -> None:
    tree = sampled(MODEL)
    rounds = json.loads(tree.attrs["rounds_used"])
    assert "handed_over" not in tree.attrs
    assert len(rounds) <= 10
    assert all(one["k_hat"] < 0.5 for one in rounds if one["for"] == "draws")
    size = 2000
    for name, (mean, sd) in exact().items():
        draws = np.asarray(tree["posterior"][name]).ravel()
        # 2,000 effective draws: a standard error of .022 sd, and of the sd some 2 to 4 % with tails
        # as wide as these; four of each are left
        assert abs(draws.mean() - mean) < 4 * sd / np.sqrt(size), name
        assert abs(draws.std() / sd - 1) < 0.15, name


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_without_these_coordinates_no_family_fits_three_groups(seed: int) -> None:
    without = consortia.Model(log_prior, None, INIT, site_log_likelihood=of_site)
    try:
        said = sampled(without, seed).attrs["handed_over"]
    except WarmupError as error:
        said = str(error)
    assert "no family" in said


@pytest.mark.parametrize("correlated", [False, True])
def test_a_formula_says_which_parameters_are_common_to_the_sites(correlated: bool) -> None:
    rng = np.random.default_rng(1)
    tables = {
        name: {"x": rng.normal(5, 2, 20), "y": rng.normal(size=20)} for name in ("a", "b", "c")
    }
    term = "(1 + x | site)" if correlated else "(1 + x || site)"
    made = consortia.regression(f"y ~ x + {term}", tables, integrate=True)
    assert made.model.group_sd is not None
    params = {name: jnp.asarray(values) for name, values in made.model.init.items()}
    params["log_sd"] = jnp.log(jnp.array([0.5, 0.25]))
    found = made.model.group_sd(params)
    unit = float(np.concatenate([table["x"] for table in tables.values()]).std())
    np.testing.assert_allclose(found["intercept"], 0.5 / np.sqrt(3), rtol=1e-6)
    # the coefficient is sampled in standard deviations of its column
    np.testing.assert_allclose(found["coefficients"], [0.25 * unit / np.sqrt(3)], rtol=1e-5)
    assert all(not np.any(found[name]) for name in set(found) - {"intercept", "coefficients"})
    apart = consortia.regression(f"y ~ x + {term}", tables)
    assert apart.model.group_sd is None
