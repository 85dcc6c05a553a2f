"""Every family against scipy: likelihood, gradient, prior with its Jacobian, simulations."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import insides
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st
from scipy.special import expit

from consortia.models.regression.construction import regression
from consortia.models.regression.density import SAMPLED_CUTS
from consortia.models.regression.families import FAMILIES

RNG = np.random.default_rng(0)
ROWS = 12
X = RNG.normal(size=ROWS)
COUNT = RNG.poisson(3.0, ROWS)
TIME, EVENT = RNG.exponential(2.0, ROWS), (np.arange(ROWS) % 3 > 0).astype(float)
LEVEL = np.arange(ROWS) % 4
CUTS, HAZARDS, BREAKS = np.array([-1.2, 0.1, 1.5]), np.array([-0.5, 0.2, 0.4]), [0.7, 1.9]


def ordinal(eta: np.ndarray, own: Any) -> np.ndarray:
    below = np.column_stack(
        [np.zeros(ROWS), expit(own["thresholds"][None] - eta[:, None]), np.ones(ROWS)]
    )
    return np.log(np.diff(below, axis=1)[np.arange(ROWS), LEVEL])


def categorical(eta: np.ndarray, own: Any) -> np.ndarray:
    scores = np.column_stack([np.zeros(ROWS), eta])
    return np.log((np.exp(scores) / np.exp(scores).sum(axis=1)[:, None])[np.arange(ROWS), LEVEL])


def weibull(eta: np.ndarray, own: Any) -> np.ndarray:
    law = st.weibull_min(own["shape"], scale=TIME.mean() * np.exp(-eta / own["shape"]))
    return np.where(EVENT > 0, law.logpdf(TIME), law.logsf(TIME))


def piecewise(eta: np.ndarray, own: Any) -> np.ndarray:
    edges, found = [0.0, *BREAKS, np.inf], []
    for row, (time, event) in enumerate(zip(TIME, EVENT, strict=True)):
        survived = 0.0
        for j, hazard in enumerate(np.exp(own["log_hazard"] + eta[row])):
            if time > edges[j + 1]:
                survived += st.expon(scale=1 / hazard).logsf(edges[j + 1] - edges[j])
            else:
                last = st.expon(scale=1 / hazard)
                spent = time - edges[j]
                found.append(survived + (last.logpdf(spent) if event else last.logsf(spent)))
                break
    return np.array(found)


def with_zeros(law: Any, own: Any) -> np.ndarray:
    y, share = COUNT * (np.arange(ROWS) % 3 > 0), own["zero_odds"] / (1 + own["zero_odds"])
    return np.log(share * (y == 0) + (1 - share) * law.pmf(y))


CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any], Any]] = {
    # response, arguments, own parameters, log-likelihood of η
    "gaussian": (
        3 * X + 1,
        {},
        {"sigma": 1.3},
        lambda eta, own: st.norm(eta, own["sigma"]).logpdf(3 * X + 1),
    ),
    "student": (
        3 * X + 1,
        {},
        {"sigma": 1.3, "nu": 4.5},
        lambda eta, own: st.t(own["nu"], eta, own["sigma"]).logpdf(3 * X + 1),
    ),
    "bernoulli": (
        COUNT % 2,
        {},
        {},
        lambda eta, own: st.bernoulli(expit(eta)).logpmf(COUNT % 2),
    ),
    "binomial": (
        COUNT,
        {"trials": "n"},
        {},
        lambda eta, own: st.binom(COUNT + 5, expit(eta)).logpmf(COUNT),
    ),
    "bernoulli(probit)": (
        COUNT % 2,
        {},
        {},
        lambda eta, own: st.bernoulli(st.norm.cdf(eta)).logpmf(COUNT % 2),
    ),
    "bernoulli(cloglog)": (
        COUNT % 2,
        {},
        {},
        lambda eta, own: st.bernoulli(-np.expm1(-np.exp(eta))).logpmf(COUNT % 2),
    ),
    "binomial(probit)": (
        COUNT,
        {"trials": "n"},
        {},
        lambda eta, own: st.binom(COUNT + 5, st.norm.cdf(eta)).logpmf(COUNT),
    ),
    "binomial(cloglog)": (
        COUNT,
        {"trials": "n"},
        {},
        lambda eta, own: st.binom(COUNT + 5, -np.expm1(-np.exp(eta))).logpmf(COUNT),
    ),
    "poisson": (COUNT, {}, {}, lambda eta, own: st.poisson(np.exp(eta)).logpmf(COUNT)),
    "negative_binomial": (
        COUNT,
        {"exposure": "n"},
        {"phi": 2.2},
        lambda eta, own: st.nbinom(
            own["phi"], own["phi"] / (own["phi"] + np.exp(eta) * (COUNT + 5))
        ).logpmf(COUNT),
    ),
    "zero_inflated_poisson": (
        COUNT * (np.arange(ROWS) % 3 > 0),
        {},
        {"zero_odds": 0.7},
        lambda eta, own: with_zeros(st.poisson(np.exp(eta)), own),
    ),
    "zero_inflated_negative_binomial": (
        COUNT * (np.arange(ROWS) % 3 > 0),
        {},
        {"phi": 2.2, "zero_odds": 0.7},
        lambda eta, own: with_zeros(
            st.nbinom(own["phi"], own["phi"] / (own["phi"] + np.exp(eta))), own
        ),
    ),
    "lognormal": (
        TIME,
        {},
        {"sigma": 0.6},
        lambda eta, own: st.lognorm(own["sigma"], scale=np.exp(eta)).logpdf(TIME),
    ),
    "gamma": (
        TIME,
        {},
        {"shape": 1.7},
        lambda eta, own: st.gamma(own["shape"], scale=np.exp(eta) / own["shape"]).logpdf(TIME),
    ),
    "beta": (
        expit(X),
        {},
        {"phi": 3.1},
        lambda eta, own: st.beta(own["phi"] * expit(eta), own["phi"] * expit(-eta)).logpdf(
            expit(X)
        ),
    ),
    "ordinal": (LEVEL, {}, {"thresholds": CUTS}, ordinal),
    "categorical": (LEVEL, {}, {}, categorical),
    "weibull": (TIME, {}, {"shape": 1.4}, weibull),
    "piecewise_exponential": (TIME, {"breaks": BREAKS}, {"log_hazard": HAZARDS}, piecewise),
}


def made(name: str, **more: Any) -> Any:
    y, arguments, _, _ = CASES[name]
    table = {"y": y, "x": X, "n": COUNT + 5, "event": EVENT, "w": np.arange(ROWS) / 4.0}
    left = "Surv(y, event)" if FAMILIES[name].response == "time" else "y"
    return regression(f"{left} ~ x", {"oslo": table}, family=name, **arguments, **more)


def parameters(name: str, density: Any) -> dict[str, jax.Array]:
    """Return some parameters with the family's own at the values of the case."""
    own, found = CASES[name][2], {}
    for key, start in density.start.items():
        found[key] = np.asarray(RNG.normal(size=start.shape) * 0.5)
    for key, value in own.items():
        if key in ("thresholds", "log_hazard"):
            found[SAMPLED_CUTS[key]] = density.sampled_cuts(key, np.asarray(value))
        else:
            found[f"log_{key}"] = np.log(value - (1.0 if key == "nu" else 0.0))
    return {key: jnp.asarray(value, jnp.float64) for key, value in found.items()}


def test_every_family_has_a_case() -> None:
    assert {*CASES, "cox"} == FAMILIES.keys()


@pytest.mark.parametrize("name", CASES)
def test_likelihood_and_gradient_are_those_of_scipy(name: str, x64: None) -> None:
    one = made(name)
    params = parameters(name, one.density)
    batch = one.sites.pooled()
    own, expected = CASES[name][2], CASES[name][3]

    def by_hand(flat: np.ndarray) -> np.ndarray:
        a, b, rest = np.split(flat, [lead if has_a else 0, lead * (2 if has_a else 1)])
        eta = X_of @ b.reshape(lead, 1).T + (a if has_a else 0)
        eta = eta if name == "categorical" else eta[:, 0]
        place, mine = 0, {}
        for key, value in own.items():
            size = np.size(value)
            mine[key] = rest[place : place + size].reshape(np.shape(value))
            place += size
        return expected(eta, mine)

    has_a = "intercept" in params
    lead = 3 if name == "categorical" else 1
    X_of = np.asarray(batch["x"])
    starts = [np.ravel(params[key]) for key in ("intercept", "coefficients") if key in params]
    flat = np.concatenate([*starts, *(np.ravel(value) for value in own.values())])

    def in_all(params: Any) -> Any:
        values = one.model.log_likelihood(params, batch)
        return jnp.sum(values), (values, insides.family_parameters(one.density, params))

    @jax.jit
    def evaluated(params: Any) -> Any:
        gradient, (values, _) = jax.grad(in_all, has_aux=True)(params)
        return values, gradient, jax.jacfwd(partial(insides.family_parameters, one.density))(params)

    values, gradient, jacobian = evaluated(params)
    np.testing.assert_allclose(values, by_hand(flat), rtol=1e-10, atol=1e-10)
    # Central differences of scipy's density: their error is of order step² times a third
    # derivative, 1e-10, and rounding over step, 1e-10.
    step = 1e-5
    numeric = [
        (by_hand(flat + step * unit).sum() - by_hand(flat - step * unit).sum()) / (2 * step)
        for unit in np.eye(flat.size)
    ]
    # of the family's own parameters on their natural scale
    names = [key for key in ("intercept", "coefficients") if key in params]
    found = [np.ravel(gradient[key]) for key in names]
    for key in own:
        raw = SAMPLED_CUTS.get(key, f"log_{key}")
        inside = np.atleast_2d(np.asarray(jacobian[key][raw]).reshape(np.size(own[key]), -1))
        found.append(np.linalg.solve(inside.T, np.ravel(gradient[raw])))
    np.testing.assert_allclose(np.concatenate(found), numeric, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_prior_is_that_of_the_natural_parameters_with_its_jacobian(
    name: str, x64: None
) -> None:
    one = made(name, prior={"x": "student_t(4, 0.2, 0.7)"})
    params = parameters(name, one.density)
    leaves, structure = jax.tree.flatten(params)
    sizes = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def natural(flat: jax.Array) -> jax.Array:
        """Return the natural parameters with the intercept where x has its mean."""
        parts = jnp.split(flat, sizes)
        tree = jax.tree.unflatten(
            structure, [p.reshape(leaf.shape) for p, leaf in zip(parts, leaves, strict=True)]
        )
        found = one.density.natural(tree) | insides.family_parameters(one.density, tree)
        if "intercept" in tree:
            found["intercept"] = tree["intercept"]
        return jnp.concatenate([jnp.ravel(found[key]) for key in sorted(found)])

    flat = jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])

    @jax.jit
    def evaluated(flat: jax.Array, params: Any) -> Any:
        values = one.density.natural(params) | insides.family_parameters(one.density, params)
        return jax.jacfwd(natural)(flat), values, one.density.log_prior(params)

    jacobian, values, log_prior = evaluated(flat, params)
    if "intercept" in params:
        values["intercept"] = params["intercept"]
    total = np.linalg.slogdet(jacobian)[1]
    for key, prior in one.priors.items():
        value = np.asarray(values["coefficients" if key == "x" else key])
        if key == "nu":
            total -= np.log(insides.law_of_prior(prior).sf(1.0))
        if key == "thresholds":
            total += np.log(6.0)  # orders of three that were drawn
        total += insides.law_of_prior(prior).logpdf(value).sum()
    np.testing.assert_allclose(log_prior, total, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_responses_simulated_from_a_point_have_the_likelihood_s_moments(name: str) -> None:
    one = made(name)
    density, rows = one.density, 4000
    rng = np.random.default_rng(3)
    raw = {key: value[0] for key, value in density.draw(rng, 1).items()}
    raw["coefficients"] = np.linalg.solve(
        insides.slopes_of_basis(density), np.full_like(raw["coefficients"], 0.4).T
    ).T
    if "intercept" in raw:
        raw["intercept"] = np.zeros_like(raw["intercept"])
    for key, value in CASES[name][2].items():
        if key in ("thresholds", "log_hazard"):
            raw[SAMPLED_CUTS[key]] = density.sampled_cuts(key, np.asarray(value))
        else:
            raw[f"log_{key}"] = np.log(value - (1.0 if key == "nu" else 0.0))
    raw = {key: np.asarray(value, np.float32) for key, value in raw.items()}
    batch = {key: np.repeat(value[2:3], rows, axis=0) for key, value in one.sites.first.items()}
    (y,) = density.simulated(rng, {key: value[None] for key, value in raw.items()}, batch)
    assert y.shape == (rows,)
    # The density of the same point, summed over a grid of cells, is the share of draws in each.
    counts = name in ("poisson", "negative_binomial", "ordinal") or "(" in name
    counts |= name in ("bernoulli", "binomial")
    counts |= name == "categorical" or name.startswith("zero_inflated")
    edges = np.arange(-0.5, y.max() + 1) if counts else np.quantile(y, np.linspace(0, 1, 9))
    observed = np.histogram(y, edges)[0] / rows
    if counts:
        grid = np.arange(0, int(y.max()) + 1).astype(float)
    else:
        grid = np.concatenate([np.linspace(a, b, 400) for a, b in itertools.pairwise(edges)])
    many = {key: np.repeat(value[:1], len(grid), axis=0) for key, value in batch.items()}
    many["y"] = grid.astype(many["y"].dtype)
    if "event" in many:
        many["event"] = np.ones(len(grid))
    if "interval" in many:
        many["interval"] = np.searchsorted(BREAKS, grid, side="left")
    density_at = np.exp(np.asarray(jax.jit(one.model.log_likelihood)(raw, many), float))
    if counts:
        expected = density_at
    else:
        cells = density_at.reshape(-1, 400), grid.reshape(-1, 400)
        expected = np.trapezoid(*cells, axis=1)
    # A share of 4000 draws has a standard error of at most .008; five of them, and a little for
    # what lies outside of the outermost draws.
    np.testing.assert_allclose(observed, expected, atol=0.045)


def test_weights_multiply_the_likelihood_of_rows(x64: None) -> None:
    plain, weighted = made("poisson"), made("poisson", weights="w")
    params = parameters("poisson", plain.density)
    values, twice = (
        jax.jit(one.model.log_likelihood)(params, one.sites.pooled()) for one in (plain, weighted)
    )
    np.testing.assert_allclose(twice, np.asarray(values) * np.arange(12) / 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_single_precision_stays_finite_far_from_the_data(name: str) -> None:
    one = made(name)
    batch = one.sites.pooled()
    evaluated = jax.jit(
        jax.value_and_grad(
            lambda p: jnp.sum(one.model.log_likelihood(p, batch)) + one.model.log_prior(p)
        )
    )
    for scale in (-8.0, 8.0):
        params = {
            key: jnp.asarray(value + (scale if key in ("intercept", "coefficients") else 0.0))
            for key, value in one.density.start.items()
        }
        value, gradient = evaluated(params)
        assert np.isfinite(value)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("shape", [0.5, 20.0, 63.0, 65.0, 1e3, 1e5])
def test_a_gamma_density_is_right_in_32_bits_whatever_its_shape(shape: float) -> None:
    z = np.array([-2.5, -0.3, 0.0, 1.2, 3.0])
    y = np.float32(7 * np.exp(z / np.sqrt(shape)))
    eta = np.full(5, np.log(7), np.float32)
    values = FAMILIES["gamma"].log_likelihood(
        jnp.asarray(eta), {"y": jnp.asarray(y)}, {"shape": jnp.float32(shape)}
    )
    expected = st.gamma(shape, scale=np.exp(eta.astype(float)) / shape).logpdf(y.astype(float))
    # A last bit of log y moves the density by as much as sqrt(shape) times it.
    np.testing.assert_allclose(values, expected, atol=2e-5 + 1e-6 * np.sqrt(shape), rtol=1e-5)


@pytest.mark.parametrize(("size", "error"), [(3.0, 1e-5), (1e3, 1e-3), (1e4, 5e-3)])
def test_the_error_of_a_beta_density_in_32_bits(size: float, error: float) -> None:
    mean, z = np.repeat([0.05, 0.4, 0.7, 0.9], 3), np.tile([-1.5, 0.3, 2.0], 4)
    y = np.float32(np.clip(mean + z * np.sqrt(mean * (1 - mean) / (1 + size)), 1e-3, 0.999))
    eta = np.float32(np.log(mean / (1 - mean)))
    values = FAMILIES["beta"].log_likelihood(
        jnp.asarray(eta), {"y": jnp.asarray(y)}, {"phi": jnp.float32(size)}
    )
    exact = expit(eta.astype(float))
    expected = st.beta(size * exact, size * (1 - exact)).logpdf(y.astype(float))
    # Terms of size φ cancel: a last bit of them is what is lost.
    np.testing.assert_allclose(values, expected, atol=error)


@pytest.mark.parametrize("size", [1e8, 1e13, 1e16, 1e19, 1e26])
@pytest.mark.parametrize("family", ["negative_binomial", "zero_inflated_negative_binomial"])
def test_counts_without_overdispersion_are_poisson_by_numpy(family: str, size: float) -> None:
    y, eta = np.array([0.0, 1, 5, 50, 500]), np.log([2.0, 1, 7, 40, 520])
    own = {"phi": np.full((1, 1), size), "zero_odds": np.full((1, 1), 0.3)}
    counts = FAMILIES[family].log_likelihood(eta[None], {"y": y}, own)
    limit = FAMILIES[family.replace("negative_binomial", "poisson")].log_likelihood(
        eta[None], {"y": y}, own
    )
    # The terms of (y - m)^2 / φ are below 4e-6 from φ = 10^8 on.
    np.testing.assert_allclose(counts, limit, atol=5e-6)


@pytest.mark.parametrize("size", [1e4, 1e6, 1e8, 1e12])
def test_a_large_size_is_the_limit_of_the_family_in_32_bits(size: float) -> None:
    y, eta = np.array([0, 1, 5, 50, 500], np.float32), np.log(np.float32([2, 1, 7, 40, 520]))
    counts = FAMILIES["negative_binomial"].log_likelihood(
        jnp.asarray(eta), {"y": jnp.asarray(y)}, {"phi": jnp.float32(size)}
    )
    mean = np.exp(eta.astype(float))
    # log p is that of Poisson plus ((y - m)² - y) / (2 φ), and smaller terms.
    limit = st.poisson(mean).logpmf(y) + ((y - mean) ** 2 - y) / (2 * size)
    np.testing.assert_allclose(counts, limit, atol=2e-3)
    own = {"nu": jnp.float32(size), "sigma": jnp.float32(1.5)}
    values = FAMILIES["student"].log_likelihood(jnp.asarray(eta), {"y": jnp.asarray(y[:1])}, own)
    z = eta.astype(float) / 1.5
    limit = st.norm.logpdf(z) - np.log(1.5) + (z**4 - 2 * z**2 - 1) / (4 * size)
    np.testing.assert_allclose(values, limit, atol=1e-3)
