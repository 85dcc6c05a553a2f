"""Levels of sites, integrated out at the sites, against dense quadrature."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.stats import norm

import consortia
from consortia.data.tables import read_table
from consortia.models._integrated import (
    GroupDensity,
    _mode,
    differentiated,
    host_noise,
    noise_of_key,
    resampled,
)
from consortia.models.regression.construction import contribution
from tests.refusals import refused

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
    @jax.value_and_grad
    def dense(p: Any, rows: Any) -> jax.Array:
        mask = jnp.ones(rows["y"].shape, bool)
        given = density.given_levels(p, rows, mask).log_likelihoods
        at = jax.vmap(given)(jnp.asarray(Z)[:, None, None])[:, 0]
        at = at - 0.5 * jnp.asarray(Z) ** 2 - 0.5 * np.log(2 * np.pi)
        return jax.nn.logsumexp(at) + np.log(Z[1] - Z[0])

    rule, longest = jax.jit(jax.value_and_grad(one.model.site_log_likelihood)), max(SIZES.values())
    for rows in one.sites:
        mask = np.ones(len(rows["y"]), bool)
        value, gradient = rule(params, rows, mask)
        wanted, slopes = dense(params, rows)
        # What 15 nodes leave is largest where the integrand is least like a Gaussian, with a
        # single row: 1e-5. With 5 nodes it is 1e-3.
        np.testing.assert_allclose(value, wanted, atol=2e-5)
        for name, slope in slopes.items():
            np.testing.assert_allclose(gradient[name], slope, atol=2e-4)
        index = np.append(np.arange(len(mask)), np.zeros(longest + 2 - len(mask), int))
        longer = {key: a[index] for key, a in rows.items()}
        padded, _ = rule(params, longer, np.arange(longest + 2) < len(mask))
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
    log_density = one.density.given_levels(point, rows, np.ones(9, bool)).log_likelihoods
    at = jax.jit(jax.vmap(log_density))(jnp.asarray(Z)[:, None, None])
    weight = np.exp(np.asarray(at)[:, 0] - 0.5 * Z**2)
    mean = np.exp(0.3) * np.average(Z, weights=weight)
    sd = np.sqrt(np.average((np.exp(0.3) * Z - mean) ** 2, weights=weight))
    drawn = np.asarray(one.levels_of(raw, "lima", seed=1))
    # 4000 independent draws: standard errors of .016 sd and 1.1 %
    assert abs(drawn.mean() - mean) < 0.06 * sd
    assert drawn.std() == pytest.approx(sd, rel=0.05)
    np.testing.assert_array_equal(drawn, np.asarray(one.levels_of(raw, "lima", seed=1)))


def rates(events: np.ndarray, log_hazards: np.ndarray, sd: float) -> GroupDensity:
    """Groups with so many events each, of which a level of this spread multiplies the rate."""

    def log_likelihoods(z: Any) -> Any:
        return events * sd * z[..., 0] - np.exp(log_hazards + sd * z[..., 0])

    @np.errstate(all="ignore")
    def derivatives(z: Any) -> Any:
        rate = np.exp(log_hazards + sd * z[..., 0])
        return (sd * (events - rate))[..., None], -(sd**2 * rate)[..., None, None]

    return GroupDensity(log_likelihoods, 1, derivatives)


@pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-5), (np.float32, 0.03)])
@pytest.mark.parametrize("sd", [0.3, 2.0, 60.0, 1e4])
def test_the_mode_of_a_level_is_found_however_wide_levels_are(
    sd: float, dtype: Any, close: float
) -> None:
    rng = np.random.default_rng(1)
    events, log_hazards = rng.integers(0, 5, 3000), rng.normal(0, 6 if sd > 1 else 2, 3000)
    events[0], log_hazards[0] = 1, np.inf  # has no mode, and keeps no other from its own
    of = rates(events.astype(dtype), log_hazards.astype(dtype), sd)
    with np.errstate(all="ignore"):
        found, _ = _mode(of, (3000, 1), np.zeros(3000, dtype))
    low, high = np.full(3000, -40.0), np.full(3000, 40.0)
    for _ in range(60):
        middle = (low + high) / 2
        with np.errstate(over="ignore"):
            rises = sd * events - sd * np.exp(log_hazards + sd * middle) > middle
        low, high = np.where(rises, middle, low), np.where(rises, high, middle)
    spread = 1 / np.sqrt(1 + sd**2 * np.exp(log_hazards + sd * low))[1:]
    apart = np.abs(found[1:, 0] - low[1:]) / spread
    assert apart.max() < close  # standard deviations of a level given its rows


@pytest.mark.parametrize("rows", [0.01, 1.0, 200.0])
def test_resampled_levels_have_the_law_of_a_grid(rows: float) -> None:
    """Poisson rows without an event, of which the level is ever more lopsided."""

    def log_likelihoods(z: np.ndarray) -> np.ndarray:
        return -rows * np.exp(2 * z[..., 0])

    def derivatives(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope = -2 * rows * np.exp(2 * z)
        return slope, 2 * slope[..., None]

    density = GroupDensity(log_likelihoods, 1, derivatives)
    shape, like = (100_000, 1, 1), np.zeros(1)
    noise = host_noise(np.random.default_rng(0), shape)
    check_law_of_the_grid(resampled(density, shape, like, noise).ravel(), rows)


@pytest.mark.parametrize("rows", [0.01, 200.0])
def test_levels_that_jax_resamples_have_the_law_of_a_grid(rows: float) -> None:
    density = differentiated(lambda z: -rows * jnp.exp(2 * z[:, 0]))

    def draw(key: jax.Array) -> jax.Array:
        noise = noise_of_key(key, (1, 1), jnp.float32)
        return resampled(density, (1, 1), jnp.zeros(()), noise)[0, 0]

    draws = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 40_000))
    check_law_of_the_grid(np.asarray(draws, float), rows)


def check_law_of_the_grid(z: np.ndarray, rows: float) -> None:
    line = np.linspace(-14, 3, 40_001)
    log_density = -rows * np.exp(2 * line) - 0.5 * line**2
    below = np.cumsum(np.exp(log_density - log_density.max()))
    uniform = np.interp(z, line, below / below[-1])
    # Kolmogorov's distance of independent draws exceeds 1.95 with probability .001.
    assert stats.kstest(uniform, "uniform").statistic * np.sqrt(len(z)) < 1.95


def with_slopes(**more: Any) -> Any:
    return consortia.regression(
        "y ~ x + (1 + x | site)", tables("poisson"), family="poisson", integrate=True, **more
    )


RHO = 0.46
POINT = {
    "coefficients": np.array([0.4]),
    "intercept": np.array(0.2),
    "log_sd": np.array([0.3, -0.4]),
    "correlation_score": norm.ppf([(1 + RHO) / 2]),
}


def dense_plane(one: Any, point: Any, rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-likelihood with the normal density of z on a plane of points, and z."""
    line = np.linspace(-8, 8, 401)
    z = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    return log_density_of(one, point, rows, z), z


def log_density_of(one: Any, point: Any, rows: Any, z: np.ndarray) -> np.ndarray:
    """Return the log-likelihood with the normal density of z at points (n, 2)."""
    # written out: the site's mean of x is not the one of all rows
    centre = np.concatenate(list(X.values())).mean()
    L = np.array([[1.0, 0.0], [RHO, np.sqrt(1 - RHO**2)]])
    levels = z @ (np.exp(point["log_sd"])[:, None] * L).T
    x = np.asarray(rows["slopes"])[:, 1] + centre
    shift = levels[:, :1] + levels[:, 1:] * (x - centre)
    eta = np.asarray(one.density.predictor(point, rows)) + shift
    y = np.asarray(rows["y"])
    found = (y * eta - np.exp(eta) - np.array([math.lgamma(v + 1) for v in y])).sum(axis=1)
    return found - 0.5 * (z**2).sum(axis=1) - np.log(2 * np.pi)


def test_a_correlated_slope_is_integrated_out_with_the_level(x64: None) -> None:
    one = with_slopes()
    assert one.model.init.keys() == POINT.keys()
    point = {name: jnp.asarray(value) for name, value in POINT.items()}
    rule = jax.jit(one.model.site_log_likelihood)
    for rows in one.sites:
        found = rule(point, rows, np.ones(len(rows["y"]), bool))
        dense = dense_plane(one, point, rows)[0] + 2 * np.log(16 / 400)
        # 9 nodes along each axis; the one with a single row is least like a Gaussian
        np.testing.assert_allclose(found, np.logaddexp.reduce(dense), atol=2e-4)


def test_level_and_slope_are_drawn_together_at_the_site(x64: None) -> None:
    one = with_slopes()
    point = {name: jnp.asarray(value) for name, value in POINT.items()}
    raw = {name: np.broadcast_to(v, (2, 1500, *v.shape)).copy() for name, v in POINT.items()}
    drawn = one.levels_of(raw, "lima", seed=1)
    assert drawn.dims == ("chain", "draw", "coefficient")
    assert list(drawn["coefficient"].values) == ["Intercept", "x"]
    log_density, z = dense_plane(one, point, one.sites.site("lima"))
    L = np.array([[1.0, 0.0], [RHO, np.sqrt(1 - RHO**2)]])
    levels = z @ (np.exp(POINT["log_sd"])[:, None] * L).T
    weight = np.exp(log_density - log_density.max())
    mean = np.average(levels, axis=0, weights=weight)
    cov = np.cov(levels.T, aweights=weight, ddof=0)
    values, variances = np.asarray(drawn).reshape(-1, 2), np.diag(cov)
    # 4 standard errors of 3000 independent draws
    assert (np.abs(values.mean(axis=0) - mean) / np.sqrt(variances)).max() < 4 / np.sqrt(3000)
    errors = np.sqrt((np.outer(variances, variances) + cov**2) / 3000)
    assert (np.abs(np.cov(values.T) - cov) / errors).max() < 4


@pytest.mark.parametrize("site", ["oslo", "lima"])
def test_level_and_slope_that_jax_resamples_have_their_law(x64: None, site: str) -> None:
    one = with_slopes()
    point = {name: jnp.asarray(value) for name, value in POINT.items()}
    rows = {name: jnp.asarray(value) for name, value in one.sites.site(site).items()}
    given = one.density.given_levels(point, rows, jnp.ones(len(rows["y"]), bool), 1)

    def draw(key: jax.Array) -> jax.Array:
        noise = noise_of_key(key, (1, 2), jnp.float64)
        return resampled(given, (1, 2), jnp.zeros(()), noise)[0]

    draws = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(1), 20_000)))
    log_density, z = dense_plane(one, point, rows)
    weight = np.exp(log_density - log_density.max())
    cov = np.cov(z.T, aweights=weight, ddof=0)
    variances = np.diag(cov)
    # 4 standard errors of 20,000 independent draws
    apart = np.abs(draws.mean(axis=0) - np.average(z, axis=0, weights=weight))
    assert (apart / np.sqrt(variances)).max() < 4 / np.sqrt(len(draws))
    errors = np.sqrt((np.outer(variances, variances) + cov**2) / len(draws))
    assert (np.abs(np.cov(draws.T) - cov) / errors).max() < 4


def test_groups_inside_a_site_are_integrated_out_as_sites_of_their_own(x64: None) -> None:
    table = tables("poisson")["oslo"]
    ward = np.array(["north", "south", "west"])[np.arange(30) % 3]
    parts = {name: {k: v[ward == name] for k, v in table.items()} for name in np.unique(ward)}
    inside = consortia.regression(
        "y ~ x + (1 | ward)", {"oslo": {**table, "ward": ward}}, family="poisson"
    )
    apart = consortia.regression("y ~ x + (1 | site)", parts, family="poisson", integrate=True)
    point = {name: jnp.asarray(POINT[name]) for name in ("coefficients", "intercept")}
    point["log_sd"] = jnp.asarray(POINT["log_sd"][:1])
    rows = inside.sites.site("oslo")
    whole = jax.jit(inside.model.site_log_likelihood)(point, rows, np.ones(30, bool))
    of_site = jax.jit(apart.model.site_log_likelihood)
    sums = sum(of_site(point, part, np.ones(10, bool)) for part in apart.sites)
    np.testing.assert_allclose(whole, sums, rtol=1e-10)
    raw = {name: np.broadcast_to(v, (1, 800, *v.shape)).copy() for name, v in point.items()}
    drawn = inside.levels_of(raw, "oslo", seed=2)
    assert list(drawn["group"].values) == ["north", "south", "west"]
    for name in parts:
        own = apart.levels_of(raw, name, seed=3)
        # 800 draws each: a standard error of .05 sd of the difference, four of them
        gap = float(drawn.sel(group=name).mean() - own.mean()) / float(own.std())
        assert abs(gap) < 0.2


def test_no_name_of_a_group_inside_a_site_leaves_it() -> None:
    table = {**tables("poisson")["oslo"], "ward": np.array(["secret ward", "other"] * 15)}
    made = consortia.regression("y ~ x + (1 | ward)", {"oslo": table}, family="poisson")
    question = made.specification.question
    facts = contribution(question, read_table(table, "oslo"), "oslo")
    assert "secret" not in str(facts.plain())
    assert "secret" not in str(made.specification)
    assert made.groups == {"oslo": ("other", "secret ward")}


def test_what_cannot_be_integrated_is_refused() -> None:
    sites = {name: {**t, "g": t["y"] % 2, "h": t["y"] % 3} for name, t in tables("poisson").items()}
    with refused(argument="integrate", match=r"\(1 \| site\)"):
        consortia.regression("y ~ x", sites, family="poisson", integrate=True)
    for formula, family, why in (
        ("y ~ x + (1 + x + g + h || site)", "poisson", "3 levels and slopes"),
        (
            "y ~ x + (1 | site) + (1 | site:h) + (1 | site:g)",
            "poisson",
            "are both integrated out",
        ),
        ("y ~ x + (1 | site)", "categorical", "'categorical'"),
        ("Surv(x, g) ~ x + (1 | g)", "cox", "'cox'"),
    ):
        with refused(argument="formula", match=why):
            consortia.regression(formula, sites, family=family, integrate=family != "cox")
    joint = consortia.regression(
        "y ~ x + (1 | site)", tables("poisson"), family="poisson", integrate=False
    )
    with refused(argument="formula", match="levels_of"):
        joint.levels_of({}, "lima", 0)


def test_many_points_at_once_have_the_values_of_single_ones_in_single_precision() -> None:
    one = consortia.regression(
        "y ~ x + (1 + x | site)", tables("gaussian"), family="gaussian", integrate=True
    )
    point = jax.tree.map(jnp.asarray, {name: one.model.init[name] for name in one.model.init})
    rows = one.sites.site("oslo")
    inside = one.density.given_levels(point, rows, np.ones(len(rows["y"]), bool)).log_likelihoods
    z = jnp.asarray(np.random.default_rng(0).normal(size=(2000, 1, 2)), jnp.float32)
    together = jax.jit(jax.vmap(inside))(z)
    singly = jax.jit(lambda z: jax.lax.map(inside, z))(z)
    np.testing.assert_allclose(together, singly, rtol=1e-5)


@pytest.mark.parametrize(
    ("right", "options", "parameters"),
    [
        ("x + (1 | site)", {"family": "poisson"}, 0),
        ("x + (1 + x | site)", {}, 0),
        ("x + (1 + two || site)", {}, 0),
        ("x + (1 + three || site)", {}, 0),
        ("x + (1 + four || site)", {}, 12),  # a level and three slopes of three sites
        ("x + (1 | site)", {"family": "categorical"}, 9),  # three sites, three other levels
        ("x + (1 | site)", {"family": "poisson", "missing": "impute", "imputations": 2}, 3),
        ("x + (1 | site) + (1 | site:three)", {}, 3),
        ("x + (1 | site)", {"integrate": False}, 3),
    ],
)
def test_what_can_be_integrated_out_is_unless_somebody_says_otherwise(
    right: str, options: dict[str, Any], parameters: int
) -> None:
    rng = np.random.default_rng(1)
    sites = {
        name: {
            "x": np.where(np.arange(24) == 3, np.nan if "missing" in options else 0, 1.0 * x),
            "y": rng.permutation(np.arange(24) % 4),
            "two": np.array(["a", "b"])[rng.permutation(np.arange(24) % 2)],
            "three": np.array(["a", "b", "c"])[rng.permutation(np.arange(24) % 3)],
            "four": np.array(list("abcd"))[rng.permutation(np.arange(24) % 4)],
        }
        for name, x in zip(("oslo", "lima", "bern"), rng.normal(size=(3, 24)), strict=True)
    }
    made = consortia.regression(f"y ~ {right}", sites, **options)
    start = made.model.init
    assert int(np.size(start.get("effects_in_sd", ()))) == parameters
    # equal to the model of somebody who says so
    again = consortia.regression(f"y ~ {right}", sites, **options | {"integrate": False})
    assert (made.specification.digest == again.specification.digest) == (
        not made.specification.question.integrated
    )
