"""NumPyro models cut into rows: the same density, and a refusal where there is none of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.errors import InputError
from consortia.models.from_numpyro import from_numpyro

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
}


@pytest.mark.parametrize("name", MODELS)
def test_the_pieces_add_up_to_the_density_of_numpyro(name: str) -> None:
    function, rows, constants = MODELS[name]
    model = from_numpyro(function, rows, **constants)
    params = model.init(KEY)
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


# --- what is refused -----------------------------------------------------------------------------


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
    (gaussian_process, "the statement 'process' does not factor over rows"),
    (centred, "the statement 'outcome' does not factor over rows"),
    (local, "the latent variable 'own_level' has shape (4,) with several rows and (1,) with one"),
    (subsampling, "the plate 'some' subsamples"),
    (labelled, "the latent variable 'which' is discrete: sum it out"),
    (fixed, "the model cannot be run with 4 of its rows"),
    (dependent, "the support of 'low' depends on other latent variables"),
    (optimised, "'weight' is a numpyro.param: give it a prior"),
    (unobserved, "no statement with obs= depends on the rows"),
    (needy, "the model's argument 'degree' is none of the columns (x, y): give it by name"),
    (poisson, "the model's argument 'count' is none of the columns"),
    (mixture, "the model takes no argument 'y'"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_a_model_without_a_likelihood_a_row_is_refused_by_the_statement(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        from_numpyro(function, {"x": X, "y": 2 * X})
    assert message in str(caught.value)
