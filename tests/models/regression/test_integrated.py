"""Levels of sites, integrated out at the sites, against dense quadrature."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.errors import InputError

RNG = np.random.default_rng(8)
SIZES = {"oslo": 30, "lima": 9, "bern": 1}
X = {name: RNG.normal(size=size) for name, size in SIZES.items()}
Z = np.linspace(-12, 12, 24001)


def tables(family: str) -> dict[str, dict[str, np.ndarray]]:
    found = {}
    for shift, (name, x) in zip((1.5, -2.0, 0.0), X.items(), strict=True):
        eta = shift + 0.5 * x
        y = {
            "bernoulli": lambda eta: RNG.binomial(1, 1 / (1 + np.exp(-eta))),
            "poisson": lambda eta: RNG.poisson(np.exp(eta)),
            "gaussian": lambda eta: RNG.normal(eta),
        }[family](eta)
        found[name] = {"x": x, "y": y}
    return found


def made(family: str, **more: Any) -> Any:
    return consortia.regression(
        "y ~ x + (1 | site)", tables(family), family=family, integrate=True, **more
    )


@pytest.mark.parametrize("family", ["bernoulli", "poisson", "gaussian"])
def test_the_likelihood_of_a_site_is_the_integral_over_its_level(family: str, x64: None) -> None:
    one = made(family)
    params = {
        "coefficients": jnp.asarray([0.4]),
        "intercept": jnp.asarray(0.2),
        "log_sd": jnp.asarray([0.3]),
    }
    if family == "gaussian":
        params["log_sigma"] = jnp.asarray(-0.2)
    assert params.keys() == one.model.init.keys()  # no level of a site is a parameter
    density = one.density

    @jax.jit
    def dense(p: Any, rows: Any) -> jax.Array:
        mask = jnp.ones(rows["y"].shape, bool)
        at = jax.vmap(density.given_level(p, rows, mask))(jnp.asarray(Z))
        at = at - 0.5 * jnp.asarray(Z) ** 2 - 0.5 * np.log(2 * np.pi)
        return jax.nn.logsumexp(at) + np.log(Z[1] - Z[0])

    rule = jax.jit(jax.value_and_grad(one.model.site_log_likelihood))
    for rows in one.sites:
        mask = np.ones(len(rows["y"]), bool)
        value, gradient = rule(params, rows, mask)
        wanted, slopes = jax.value_and_grad(dense)(params, rows)
        # What 15 nodes leave is largest where the integrand is least like a Gaussian, with a
        # single row: 1e-5. With 5 nodes it is 1e-3.
        np.testing.assert_allclose(value, wanted, atol=2e-5)
        for name, slope in slopes.items():
            np.testing.assert_allclose(gradient[name], slope, atol=2e-4)
        longer = {key: np.concatenate([a, a[:1], a[:1]]) for key, a in rows.items()}
        padded, _ = rule(params, longer, np.arange(len(mask) + 2) < len(mask))
        np.testing.assert_allclose(padded, value, rtol=1e-10)


def test_a_level_is_drawn_from_its_density_at_the_site(x64: None) -> None:
    one = made("poisson")
    raw = {
        "coefficients": np.full((4, 1000, 1), 0.4),
        "intercept": np.full((4, 1000), 0.2),
        "log_sd": np.full((4, 1000, 1), 0.3),
    }
    point = {key: jnp.asarray(value[0, 0]) for key, value in raw.items()}
    rows = one.sites.site("lima")
    log_density = one.density.given_level(point, rows, np.ones(9, bool))
    weight = np.exp(np.asarray(jax.jit(jax.vmap(log_density))(jnp.asarray(Z))) - 0.5 * Z**2)
    mean = np.exp(0.3) * np.average(Z, weights=weight)
    sd = np.sqrt(np.average((np.exp(0.3) * Z - mean) ** 2, weights=weight))
    drawn = np.asarray(one.levels_of(raw, "lima", seed=1))
    # 4000 independent draws: standard errors of .016 sd and 1.1 %
    assert abs(drawn.mean() - mean) < 0.06 * sd
    assert drawn.std() == pytest.approx(sd, rel=0.05)
    np.testing.assert_array_equal(drawn, np.asarray(one.levels_of(raw, "lima", seed=1)))


def test_what_cannot_be_integrated_is_refused() -> None:
    for formula, family in (("y ~ x", "poisson"), ("y ~ x + (x || site)", "poisson")):
        with pytest.raises(InputError, match=r"integrate: the formula needs \(1 \| site\)"):
            consortia.regression(formula, tables("poisson"), family=family, integrate=True)
    joint = consortia.regression("y ~ x + (1 | site)", tables("poisson"), family="poisson")
    with pytest.raises(InputError, match=r"levels_of: give regression\(..., integrate=True\)"):
        joint.levels_of({}, "lima", 0)
