"""NumPyro models cut into rows: the same density, and a refusal where there is none of a row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import consortia
from consortia.models.numpyro import from_numpyro
from tests.refusals import refused

numpyro = pytest.importorskip("numpyro", reason="the extra numpyro is not installed")
dist = numpyro.distributions

KEY = jax.random.key(1)
RNG = np.random.default_rng(0)
N = 10
X, GROUP = RNG.normal(size=N), np.arange(N) % 3
COUNT, EXPOSURE = RNG.poisson(3.0, N), RNG.uniform(1, 3, N)


@pytest.fixture(autouse=True)
def promoted(x64: None) -> Iterator[None]:
    """NumPyro's own code promotes ranks and types."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def eight_schools(effect: Any, error: Any, school: Any, schools: int) -> None:
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    spread = numpyro.sample("spread", dist.HalfCauchy(5))
    with numpyro.plate("schools", schools):
        z = numpyro.sample("z", dist.Normal(0, 1))
    theta = numpyro.deterministic("theta", mean + spread * z)
    with numpyro.plate("rows", effect.shape[0]):
        numpyro.sample("y", dist.Normal(theta[school], error), obs=effect)


def hierarchical(x: Any, y: Any, group: Any, groups: int) -> None:
    """A regression with a level and a slope of each group."""
    mean = numpyro.sample("mean", dist.Normal(0, 5).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1).expand([2]).to_event(1))
    with numpyro.plate("groups", groups):
        own = numpyro.sample("own", dist.Normal(mean, spread).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(own[group, 0] + own[group, 1] * x, sigma), obs=y)


def linear(x: Any, y: Any) -> None:
    a, b = numpyro.sample("ab", dist.Normal(0, 3).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    numpyro.factor("more", -jnp.abs(b))
    numpyro.deterministic("fitted", a + b * x)
    numpyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)  # without a plate


def poisson(count: Any, exposure: Any, x: Any) -> None:
    rate = numpyro.sample("rate", dist.LogNormal(0, 1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(rate * exposure * jnp.exp(slope * x)), obs=count)


def mixture(x: Any) -> None:
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    centres = numpyro.sample(
        "centres",
        dist.TransformedDistribution(
            dist.Normal(0, 2).expand([2]).to_event(1), dist.transforms.OrderedTransform()
        ),
    )
    parts = dist.Normal(centres, 1.0)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=x)


def ordinal(x: Any, group: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0, 1))
    cuts = numpyro.sample(
        "cuts",
        dist.TransformedDistribution(
            dist.Normal(0, 1).expand([2]).to_event(1), dist.transforms.OrderedTransform()
        ),
    )
    with numpyro.handlers.scale(scale=2.0), numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(b * x, cuts), obs=group)


def several(x: Any, y: Any) -> None:
    with numpyro.plate("columns", 2, dim=-1):
        b = numpyro.sample("b", dist.Normal(0, 1))
        sd = numpyro.sample("sd", dist.HalfNormal(1))
    numpyro.sample("x", dist.MultivariateNormal(b, jnp.diag(sd)), obs=jnp.stack([x, y], -1))
    numpyro.factor("fit", -0.5 * jnp.sum((y - b[0] * x) ** 2))


def bounded(x: Any, y: Any) -> None:
    """A slope with a soft bound that is far from where its prior is."""
    slope = numpyro.sample("slope", dist.Normal(0, 0.1))
    numpyro.factor("bound", -10 * jnp.maximum(slope - 2, 0))
    numpyro.factor("size", -x.shape[0] * slope**2)  # of each row as much
    numpyro.sample("y", dist.Normal(slope * x, 1), obs=y)


MODELS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "eight schools": (
        eight_schools,
        {"effect": X, "error": EXPOSURE, "school": GROUP},
        {"schools": 3},
    ),
    "hierarchical regression": (
        hierarchical,
        {"x": X, "y": 2 * X, "group": GROUP},
        {"groups": 3},
    ),
    "linear, without a plate": (linear, {"x": X, "y": 2 * X}, {}),
    "poisson with exposure": (poisson, {"count": COUNT, "exposure": EXPOSURE, "x": X}, {}),
    "mixture": (mixture, {"x": X}, {}),
    "ordinal, scaled": (ordinal, {"x": X, "group": GROUP}, {}),
    "sums in two statements": (several, {"x": X, "y": 2 * X}, {}),
    "a bound that is nowhere near": (bounded, {"x": X, "y": 2 * X}, {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_pieces_add_up_to_the_density_of_numpyro(name: str) -> None:
    function, rows, constants = MODELS[name]
    model = from_numpyro(function, rows, **constants)
    params = jax.tree.map(lambda leaf: leaf + 2.5, model.init(KEY))  # not where it was looked at
    columns = {key: jnp.asarray(one) for key, one in rows.items()}

    @jax.jit
    def evaluated(p: Any) -> Any:
        own = {key.removeprefix("unconstrained(").rstrip(")"): one for key, one in p.items()}
        whole = numpyro.infer.util.potential_energy(function, (), {**columns, **constants}, own)
        return model.log_likelihood(p, rows), model.log_prior(p), -whole

    likelihood, prior, wanted = evaluated(params)
    assert likelihood.shape == (N,)
    np.testing.assert_allclose(np.sum(likelihood) + prior, wanted, rtol=1e-10)
    order = np.array([3, 3, 7])
    some = jax.jit(model.log_likelihood)(params, {key: one[order] for key, one in rows.items()})
    np.testing.assert_allclose(some, np.asarray(likelihood)[order], rtol=1e-10)


def test_draws_come_back_on_the_model_s_scale() -> None:
    function, rows, constants = MODELS["eight schools"]
    model = from_numpyro(function, rows, **constants)
    raw = {key: RNG.normal(size=(2, 5, *one.shape)) for key, one in model.init(KEY).items()}
    found = consortia.natural(raw, model)
    assert set(found.data_vars) == {"mean", "spread", "z", "theta"}
    spread = np.exp(raw["unconstrained(spread)"])  # what is sampled has no name of another scale
    assert "spread" not in raw
    np.testing.assert_allclose(found["spread"], spread)
    theta = raw["mean"][..., None] + spread[..., None] * raw["z"]
    np.testing.assert_allclose(found["theta"], theta)


def test_constant_heavy_tails_are_sampled_by_scores() -> None:
    def heavy(x: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Cauchy(0.5, jnp.array([2.0, 3.0])).to_event(1))
        c = numpyro.sample("c", dist.StudentT(3, b[0], 1))  # its centre is no constant
        numpyro.sample("y", dist.Normal(b[0] + b[1] * x + c, 1), obs=y)

    model = from_numpyro(heavy, {"x": X, "y": 2 * X})
    assert sorted(model.init(KEY)) == ["c", "unconstrained(b)"]
    assert list(model.tails) == ["unconstrained(b)"]
    params = {"c": jnp.array(0.3), "unconstrained(b)": jnp.array([-1.5, 3.0])}
    assert model.natural is not None
    assert model.log_prior is not None
    slopes = jax.jacfwd(lambda u: model.natural(params | {"unconstrained(b)": u})["b"])
    b = np.asarray(model.natural(params)["b"])
    wanted = np.linalg.slogdet(slopes(params["unconstrained(b)"]))[1]
    wanted += stats.cauchy(0.5, [2, 3]).logpdf(b).sum() + stats.t(3, b[0], 1).logpdf(0.3)
    assert float(model.log_prior(params)) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.slow
def test_over_three_sites_it_has_the_posterior_of_numpyro_on_all_rows() -> None:
    function, rows, constants = MODELS["poisson with exposure"]
    sites = consortia.Sites.from_list(
        [{key: one[a:b] for key, one in rows.items()} for a, b in ((0, 6), (6, 9), (9, 10))]
    )
    model = from_numpyro(function, sites, **constants)
    tree = consortia.sample(
        model, sites, consortia.federated_hmc(), rounds=3000, warmup=300, chains=4, progress=False
    )
    found = consortia.natural(tree, model)
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(function),
        num_warmup=500,
        num_samples=3000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(KEY, **rows, **constants)
    for name, wanted in mcmc.get_samples().items():
        draws = np.asarray(found[name]).ravel()
        # both have an effective size of more than 6,000: a standard error of .018 sd
        assert abs(draws.mean() - wanted.mean()) < 0.06 * wanted.std()
        assert draws.std() == pytest.approx(float(wanted.std()), rel=0.05)


def test_what_depends_on_rows_is_no_parameter() -> None:
    model = from_numpyro(linear, MODELS["linear, without a plate"][1])
    assert set(model.natural(model.init(KEY))) == {"ab", "sigma"}


def test_what_follows_from_a_number_of_the_site_is_no_parameter() -> None:
    def of_the_site(x: Any, y: Any, beds: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0, 1))
        numpyro.deterministic("twice", 2 * b)
        numpyro.deterministic("there", b * beds[0])
        numpyro.sample("y", dist.Normal(b * x, 1), obs=y)

    model = from_numpyro(of_the_site, {"x": X, "y": 2 * X, "beds": np.full(N, 0.7)})
    assert set(model.natural(model.init(KEY))) == {"b", "twice"}


# --- what each site draws for itself -------------------------------------------------------------


def own_level(x: Any, y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0, 2))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("site", 1):
        level = numpyro.sample("level", dist.Normal(mean, spread))
    numpyro.deterministic("twice", 2 * level[0])
    numpyro.deterministic("odds", jnp.exp(b))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(level + b * x, 0.5), obs=y)


def picked_level(x: Any, y: Any, at: Any, sites: int) -> None:
    """The same, with all sites in the plate and a column that picks."""
    mean = numpyro.sample("mean", dist.Normal(0, 2))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("site", sites):
        level = numpyro.sample("level", dist.Normal(mean, spread))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(level[at] + b * x, 0.5), obs=y)


def own_line(x: Any, y: Any) -> None:
    """A level and a slope of the site, correlated, and counts."""
    spread = numpyro.sample("spread", dist.HalfNormal(1).expand([2]).to_event(1))
    root = jnp.diag(spread) @ jnp.array([[1.0, 0.0], [0.6, 0.8]])
    with numpyro.plate("site", 1):
        line = numpyro.sample("line", dist.MultivariateNormal(jnp.zeros(2), scale_tril=root))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(line[:, 0] + line[:, 1] * x)), obs=y)


OWN = {"x": X, "y": 2 * X + 0.7}
AT = {"mean": 0.3, "unconstrained(spread)": -0.4, "b": 1.7}
HERE = jnp.arange(N) < N - 3
"""Rows that count; the last are padding."""


def given_the_rows() -> tuple[float, float]:
    """Mean and standard deviation of the level given AT and the rows that count."""
    spread = np.exp(AT["unconstrained(spread)"])
    precision = 1 / spread**2 + (N - 3) / 0.25
    rest = (OWN["y"] - AT["b"] * X)[: N - 3]
    return float((AT["mean"] / spread**2 + rest.sum() / 0.25) / precision), precision**-0.5


def test_a_level_of_the_site_is_integrated_out_and_its_padding_does_not_count() -> None:
    model = from_numpyro(own_level, OWN)
    assert set(model.init(KEY)) == set(AT)
    params = {name: jnp.asarray(value) for name, value in AT.items()}
    found = jax.jit(model.site_log_likelihood)(params, OWN, HERE)
    spread = np.exp(AT["unconstrained(spread)"])
    covariance = 0.25 * np.eye(N - 3) + spread**2
    rest = (OWN["y"] - AT["b"] * X - AT["mean"])[: N - 3]
    _, size = np.linalg.slogdet(2 * np.pi * covariance)
    wanted = -0.5 * (size + rest @ np.linalg.solve(covariance, rest))
    np.testing.assert_allclose(found, wanted, rtol=1e-10)  # of a Gaussian the rule is exact
    assert set(model.natural(params)) == {"mean", "spread", "b", "odds"}
    prior = dist.Normal(0, 2).log_prob(0.3) + dist.Normal(0, 1).log_prob(1.7)
    prior += dist.HalfNormal(1).log_prob(spread) + AT["unconstrained(spread)"]
    np.testing.assert_allclose(model.log_prior(params), prior, rtol=1e-10)


def test_a_plate_of_all_sites_is_that_of_one_and_a_site_with_rows_of_two_is_told() -> None:
    columns = {**OWN, "at": np.full(N, 2)}
    model = from_numpyro(picked_level, columns, sites=4)
    params = {name: jnp.asarray(value) for name, value in AT.items()}
    one = from_numpyro(own_level, OWN).site_log_likelihood
    np.testing.assert_allclose(
        jax.jit(model.site_log_likelihood)(params, columns, HERE),
        jax.jit(one)(params, OWN, HERE),
        rtol=1e-10,
    )
    assert model.check(columns) is None
    mixed = model.check({**columns, "at": np.arange(N) % 2 + 1})
    assert mixed is not None
    assert "its rows take entries 1 and 2 of 'level'" in mixed
    kept = from_numpyro(picked_level, columns, sites=4, site_plate="hospital")
    assert kept.init(KEY)["level"].shape == (4,)
    assert kept.recover is None


def test_a_line_of_the_site_has_the_integral_of_a_grid() -> None:
    columns = {"x": X, "y": np.round(np.exp(0.3 * X))}
    model = from_numpyro(own_line, columns)
    params = {"unconstrained(spread)": jnp.array([-0.3, -0.8])}
    found = jax.jit(model.site_log_likelihood)(params, columns, jnp.ones(N, bool))
    line = np.linspace(-6, 6, 241)
    z = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    own = z @ (np.diag(np.exp([-0.3, -0.8])) @ np.array([[1.0, 0.0], [0.6, 0.8]])).T
    rate = np.exp(own[:, :1] + own[:, 1:] * X)
    counts = dist.Poisson(rate).log_prob(columns["y"]).sum(axis=1) - 0.5 * (z**2).sum(axis=1)
    wanted = np.log(np.exp(counts).sum() * (line[1] - line[0]) ** 2 / (2 * np.pi))
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_what_is_the_site_s_own_is_drawn_there_given_its_rows() -> None:
    some = {name: column[: N - 3] for name, column in OWN.items()}
    sites = consortia.Sites.from_list([{"x": X, "y": X}, some], names=["north", "south"])
    model = from_numpyro(own_level, sites)
    draws = {name: np.full((2, 4000), value) for name, value in AT.items()}
    found = consortia.recover(draws, model, sites, "south")
    assert found["level"].dims == ("chain", "draw")
    assert set(found) == {"level", "twice"}
    np.testing.assert_allclose(found["twice"], 2 * found["level"])
    mean, sd = given_the_rows()
    level = np.asarray(found["level"])
    assert abs(level.mean() - mean) < 4 * sd / np.sqrt(level.size)
    assert level.std() == pytest.approx(sd, rel=4 / np.sqrt(2 * level.size))
    again = consortia.recover(draws, model, sites, 1)
    np.testing.assert_array_equal(level, again["level"])
    with refused(argument="recover", match="levels_of"):
        consortia.recover(draws, from_numpyro(linear, OWN), sites, "south")


@pytest.mark.slow
def test_levels_of_sites_have_the_posterior_of_numpyro_on_all_rows() -> None:
    rng = np.random.default_rng(4)
    at = np.repeat(np.arange(4), (12, 9, 6, 1))
    x = rng.normal(size=len(at))
    columns = {"x": x, "y": rng.normal([0.8, -0.3, 0.1, 1.5])[at] + 0.4 * x, "at": at}
    sites = consortia.Sites.from_list(
        [{name: one[at == place] for name, one in columns.items()} for place in range(4)]
    )
    model = from_numpyro(picked_level, sites, sites=4)
    method = consortia.few_rounds(effective_size=4000)
    tree = consortia.sample(model, sites, method, progress=False)
    found = consortia.natural(tree, model)
    levels = [consortia.recover(tree, model, sites, place)["level"] for place in range(4)]
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(picked_level, target_accept_prob=0.95),
        num_warmup=1000,
        num_samples=5000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(KEY, **columns, sites=4)
    wanted = mcmc.get_samples()
    pairs = [(found[name], wanted[name]) for name in ("mean", "spread", "b")]
    pairs += [(own, wanted["level"][:, place]) for place, own in enumerate(levels)]
    for ours, theirs in pairs:
        # of 4,000 and more effective draws each: a standard error of .022 sd, and of 1.6 %
        assert abs(float(ours.mean()) - theirs.mean()) < 0.07 * theirs.std()
        assert float(ours.std()) == pytest.approx(float(theirs.std()), rel=0.05)


# --- what is refused -----------------------------------------------------------------------------


def gamma_frailty(x: Any, y: Any) -> None:
    shape = numpyro.sample("shape", dist.HalfNormal(1))
    with numpyro.plate("site", 1):
        frailty = numpyro.sample("frailty", dist.Gamma(shape, shape))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(frailty * x, 1), obs=y)


def many_own(x: Any, y: Any) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("site", 1):
        own = numpyro.sample("own", dist.Normal(0, scale).expand([1, 4]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(own.sum() * x, 1), obs=y)


def leaking(x: Any, y: Any) -> None:
    with numpyro.plate("site", 1):
        own = numpyro.sample("own", dist.Normal(0, 1))
    shared = numpyro.sample("shared", dist.Normal(own[0], 1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(own + shared * x, 1), obs=y)


def rows_in_the_site(x: Any, y: Any) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("site", x.shape[0]):
        own = numpyro.sample("own", dist.Normal(0, scale))
        numpyro.sample("y", dist.Normal(own, 1), obs=y)


def anchored(x: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(x.mean(), 1))
    numpyro.sample("y", dist.Normal(b * x, 1), obs=y)


def anchored_at_a_bound(x: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Uniform(0, 5 + jnp.abs(x).max()))
    numpyro.sample("y", dist.Normal(b * x, 1), obs=y)


def own_anchored(x: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("site", 1):
        own = numpyro.sample("own", dist.Normal(b * x.mean(), 1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(own, 1), obs=y)


def unlike(x: Any, y: Any) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("site", 2):
        own = numpyro.sample("own", dist.Normal(jnp.array([0.0, 1.0]), scale))
    numpyro.sample("y", dist.Normal(own[0] * x, 1), obs=y)


def gaussian_process(x: Any, y: Any) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    K = jnp.exp(-((x[:, None] - x[None]) ** 2) / scale) + 0.1 * jnp.eye(x.shape[0])
    numpyro.sample("process", dist.MultivariateNormal(0.0, K), obs=y)


def centred(x: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("outcome", dist.Normal(b * (x - x.mean()), 1), obs=y)


def local(x: Any, y: Any) -> None:
    with numpyro.plate("rows", x.shape[0]):
        z = numpyro.sample("own_level", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(z, 1), obs=y)


def subsampling(x: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("some", 10, subsample_size=2):
        numpyro.sample("y", dist.Normal(b, 1), obs=y[:1])


def labelled(x: Any, y: Any) -> None:
    which = numpyro.sample("which", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(which, 1), obs=y)


def fixed(x: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("rows", 10):
        numpyro.sample("y", dist.Normal(b * x, 1), obs=y)


def dependent(x: Any, y: Any) -> None:
    top = numpyro.sample("top", dist.HalfNormal(1))
    low = numpyro.sample("low", dist.Uniform(0, top))
    numpyro.sample("y", dist.Normal(low, 1), obs=y)


def optimised(x: Any, y: Any) -> None:
    b = numpyro.param("weight", 1.0)
    a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(a + b * x, 1), obs=y)


def unobserved(x: Any, y: Any) -> None:
    numpyro.sample("a", dist.Normal(0, 1))


def needy(x: Any, y: Any, degree: int) -> None:
    numpyro.sample("a", dist.Normal(0, 1))


REFUSED = [
    (gaussian_process, "process", "the statement 'process' does not factor over rows"),
    (centred, "outcome", "the statement 'outcome' does not factor over rows"),
    (
        local,
        "own_level",
        "the latent variable 'own_level' has shape (4,) with several rows and (1,) with one",
    ),
    (subsampling, "some", "the plate 'some' subsamples"),
    (labelled, "which", "the latent variable 'which' is discrete: sum it out"),
    (fixed, "model", "the model cannot be run with 4 of its rows"),
    (dependent, "low", "the support of 'low' depends on other latent variables"),
    (optimised, "weight", "'weight' is a numpyro.param: give it a prior"),
    (unobserved, "model", "no statement with obs= depends on the rows"),
    (
        gamma_frailty,
        "frailty",
        "'frailty' is drawn in the plate of the site from Gamma: a site integrates",
    ),
    (many_own, "model", "a site has 4 numbers of its own (own)"),
    (leaking, "shared", "'shared' depends on 'own', which each site draws for itself"),
    (rows_in_the_site, "own", "'own' has a value of each row in the plate of the site"),
    (anchored, "b", "the law of 'b' depends on the rows, which"),
    (anchored_at_a_bound, "b", "the law of 'b' depends on the rows, which"),
    (own_anchored, "own", "the law of 'own' depends on the rows, which"),
    (unlike, "own", "the law of 'own' differs over the plate of the site"),
    (
        needy,
        "degree",
        "the model's argument 'degree' is none of the columns (x, y): give it by name",
    ),
    (poisson, "count", "the model's argument 'count' is none of the columns"),
    (mixture, "y", "the model takes no argument 'y'"),
]


@pytest.mark.parametrize(("function", "argument", "message"), REFUSED)
def test_a_model_without_a_likelihood_a_row_is_refused_by_the_statement(
    function: Callable[..., Any], argument: str, message: str
) -> None:
    with refused(argument=argument, match=re.escape(message)):
        from_numpyro(function, {"x": X, "y": 2 * X})


def factor_of_the_site(x: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.factor("anchor", -((b - x.mean()) ** 2))
    numpyro.sample("y", dist.Normal(b, 1), obs=y)


@pytest.mark.parametrize(
    ("function", "x", "argument", "match"),
    [
        (anchored, np.full(N, 0.7), "b", "the law of"),
        (factor_of_the_site, np.full(N, 0.7), "anchor", "computed from the rows"),
        (centred, np.repeat([1.0, 0.0], [6, 4]), "outcome", "does not factor"),
    ],
)
def test_rows_that_look_alike_hide_nothing(
    function: Callable[..., Any], x: np.ndarray, argument: str, match: str
) -> None:
    with refused(argument=argument, match=match):
        from_numpyro(function, {"x": x, "y": 2 * X})
