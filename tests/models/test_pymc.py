"""PyMC models cut into rows: the same density, and a refusal where there is none of a row.

PyMC is too large for the environment of the tests: they run where it is installed.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import consortia
from consortia.errors import InputError
from consortia.models.pymc import from_pymc
from tests.refusals import refused

pm = pytest.importorskip("pymc", reason="the extra pymc is not installed")
pt = pytest.importorskip("pytensor.tensor")

KEY = jax.random.key(1)
RNG = np.random.default_rng(0)
N = 10
X, GROUP = RNG.normal(size=N), np.arange(N) % 3
COUNT, EXPOSURE = RNG.poisson(3.0, N), RNG.uniform(1, 3, N)
ROWS: dict[str, Any] = {
    "x": X,
    "outcome": 2 * X,
    "group": GROUP,
    "count": COUNT,
    "days": EXPOSURE,
    "beds": np.full(N, 0.7),  # of the site: the same in all its rows
    "treated": np.repeat([1.0, 0.0], [6, 4]),  # sorted: the first rows are alike
}


@pytest.fixture(autouse=True)
def wide(x64: None) -> None:
    """In 64 bits, as PyMC computes."""


def eight_schools() -> Any:
    with pm.Model() as model:
        effect, error = pm.Data("x", X), pm.Data("days", EXPOSURE)
        mean, spread = pm.Normal("mean", 0, 5), pm.HalfCauchy("spread", 5)
        z = pm.Normal("z", 0, 1, shape=3)
        theta = pm.Deterministic("theta", mean + spread * z)
        pm.Normal("y", theta[pm.Data("group", GROUP)], error, observed=effect)
    return model


def linear() -> Any:
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("outcome", 2 * X)
        ab = pm.Normal("ab", 0, 3, shape=2)
        sigma = pm.Exponential("sigma", 1.0)
        pm.Potential("more", -pt.abs(ab[1]))
        pm.Deterministic("fitted", ab[0] + ab[1] * x)
        pm.Normal("y", ab[0] + ab[1] * x, sigma, observed=y)
    return model


def poisson() -> Any:
    with pm.Model() as model:
        x, days = pm.Data("x", X), pm.Data("days", EXPOSURE)
        rate, slope = pm.LogNormal("rate", 0, 1), pm.Normal("slope", 0, 1)
        pm.Poisson("y", rate * days * pt.exp(slope * x), observed=pm.Data("count", COUNT))
    return model


def mixture() -> Any:
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(2))
        centres = pm.Normal(
            "centres",
            0,
            2,
            shape=2,
            transform=pm.distributions.transforms.ordered,
            initval=[-1.0, 1.0],
        )
        parts = pm.Normal.dist(centres, 1.0)
        pm.Mixture("y", weights, parts, observed=pm.Data("x", X))
    return model


def ordinal() -> Any:
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        cuts = pm.Normal(
            "cuts",
            0,
            1,
            shape=2,
            transform=pm.distributions.transforms.ordered,
            initval=[-1.0, 1.0],
        )
        pm.OrderedLogistic("y", b * pm.Data("x", X), cuts, observed=pm.Data("group", GROUP))
    return model


def bounded() -> Any:
    """A flat level, and a slope with a soft bound that is far from where chains start."""
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("outcome", 2 * X)
        level, slope = pm.Flat("level"), pm.Normal("slope", 0, 1)
        pm.Potential("bound", -10 * pt.maximum(slope - 2, 0))
        pm.Potential("sign", pt.switch(slope > -9, 0.0, -np.inf))
        pm.Potential("size", -x.shape[0] * slope**2)  # of each row as much
        pm.Normal("y", level + slope * x, 1, observed=y)
    return model


def several() -> Any:
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("outcome", 2 * X)
        b, sd = pm.Normal("b", 0, 1, shape=2), pm.HalfNormal("sd", 1, shape=2)
        pm.MvNormal("both", b, pt.diag(sd), observed=pt.stack([x, y], axis=-1))
        pm.Potential("fit", -0.5 * (y - b[0] * x) ** 2)
    return model


MODELS = {
    "eight schools": (eight_schools, ("x", "days", "group")),
    "linear, with a potential of the prior": (linear, ("x", "outcome")),
    "poisson with exposure": (poisson, ("x", "days", "count")),
    "mixture": (mixture, ("x",)),
    "ordinal": (ordinal, ("x", "group")),
    "two statements": (several, ("x", "outcome")),
    "flat, with a bound that is nowhere near": (bounded, ("x", "outcome")),
}


def columns(*names: str) -> dict[str, Any]:
    return {name: ROWS[name] for name in names}


@pytest.mark.parametrize("name", MODELS)
def test_the_pieces_add_up_to_the_density_of_pymc(name: str) -> None:
    make, names = MODELS[name]
    theirs, rows = make(), columns(*names)
    model = from_pymc(theirs, rows)
    # not where it was looked at
    params = {key: leaf + 2.5 for key, leaf in model.init(KEY).items()}
    likelihood = jax.jit(model.log_likelihood)(params, rows)
    assert likelihood.shape == (N,)
    point = {
        theirs.rvs_to_values[one].name: np.asarray(value)
        for one, value in zip(theirs.free_RVs, params.values(), strict=True)
    }
    wanted = theirs.compile_logp()(point)
    found = np.sum(likelihood) + jax.jit(model.log_prior)(params)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    order = np.array([3, 3, 7])
    some = jax.jit(model.log_likelihood)(params, {key: one[order] for key, one in rows.items()})
    np.testing.assert_allclose(some, np.asarray(likelihood)[order], rtol=1e-10)


def test_draws_come_back_on_the_model_s_scale() -> None:
    model = from_pymc(eight_schools(), columns("x", "days", "group"))
    raw = {key: RNG.normal(size=(2, 5, *one.shape)) for key, one in model.init(KEY).items()}
    found = consortia.natural(raw, model)
    assert set(found.data_vars) == {"mean", "spread", "z", "theta"}
    spread = np.exp(raw["unconstrained(spread)"])
    np.testing.assert_allclose(found["spread"], spread)
    wanted = raw["mean"][..., None] + spread[..., None] * raw["z"]
    np.testing.assert_allclose(found["theta"], wanted)
    of_rows = from_pymc(linear(), columns("x", "outcome"))
    assert of_rows.natural is not None
    assert set(of_rows.natural(of_rows.init(KEY))) == {"ab", "sigma"}


def test_constant_heavy_tails_are_sampled_by_scores() -> None:
    with pm.Model() as theirs:
        x, y = pm.Data("x", X), pm.Data("outcome", 2 * X)
        b = pm.Cauchy("b", 0.5, np.array([2.0, 3.0]))
        # of Python's numbers PyMC takes logarithms in 32 bits
        three, two = np.float64(3), np.float64(2)
        c = pm.StudentT("c", three, mu=b[0], sigma=np.float64(1))  # its centre is no constant
        t = pm.StudentT("t", three, sigma=two)
        pm.Normal("y", b[0] + b[1] * x + c + t, 1, observed=y)
    model = from_pymc(theirs, columns("x", "outcome"))
    assert list(model.tails) == ["unconstrained(b)", "unconstrained(t)"]
    assert sorted(model.init(KEY)) == ["c", "unconstrained(b)", "unconstrained(t)"]
    params = {"c": jnp.array(0.3), "unconstrained(b)": jnp.array([-1.5, 3.0])}
    params["unconstrained(t)"] = jnp.array(2.5)
    assert model.natural is not None
    assert model.log_prior is not None
    natural = model.natural(params)
    b, t = np.asarray(natural["b"]), float(natural["t"])
    slopes = jax.jacfwd(lambda u: model.natural(params | {"unconstrained(b)": u})["b"])
    wanted = np.linalg.slogdet(slopes(params["unconstrained(b)"]))[1]
    slope = jax.grad(lambda u: model.natural(params | {"unconstrained(t)": u})["t"])
    wanted += np.log(slope(params["unconstrained(t)"]))
    wanted += stats.cauchy(0.5, [2, 3]).logpdf(b).sum() + stats.t(3, b[0], 1).logpdf(0.3)
    wanted += stats.t(3, 0, 2).logpdf(t)
    assert float(model.log_prior(params)) == pytest.approx(wanted, rel=1e-10)
    rows = columns("x", "outcome")
    found = model.log_likelihood(params, rows)
    mean = b[0] + b[1] * X + 0.3 + t
    np.testing.assert_allclose(found, stats.norm(mean, 1).logpdf(2 * X), rtol=1e-10)


def test_what_follows_from_rows_does_not_come_back() -> None:
    with pm.Model() as theirs:
        x, beds = pm.Data("x", X), pm.Data("beds", ROWS["beds"])
        b = pm.Normal("b", 0, 1)
        pm.Deterministic("twice", 2 * b)
        pm.Deterministic("at_mean", b * x.mean())
        pm.Deterministic("of_all", b * x.shape[0])
        pm.Deterministic("of_the_site", b * beds[0])
        pm.Deterministic("beyond", pt.maximum(b - 2, 0) * x.mean())  # 0 where it is looked at
        pm.Normal("y", b * beds, 1, observed=x)
    model = from_pymc(theirs, columns("x", "beds"))
    assert model.natural is not None
    assert set(model.natural(model.init(KEY))) == {"b", "twice"}


def test_sites_of_other_sizes_are_sampled_in_32_bits_as_a_density_written_by_hand() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=90)
    count = rng.poisson(np.exp(0.4 + 0.5 * x))
    rows = {"x": x, "days": np.ones(90), "count": count}
    cuts = [20, 21]
    parts = [
        dict(zip(rows, p, strict=True))
        for p in zip(*(np.split(v, cuts) for v in rows.values()), strict=True)
    ]
    sites = consortia.Sites.from_list(parts)
    with jax.enable_x64(False):
        model = from_pymc(poisson(), sites)
        assert not jax.config.read("jax_enable_x64")

        def by_hand(p: Any, batch: Any) -> Any:
            eta = p["unconstrained(rate)"] + p["slope"] * batch["x"]
            return jnp.asarray(batch["count"]).astype(eta.dtype) * eta - jnp.exp(eta)

        hand = consortia.Model(
            lambda p: -0.5 * (p["unconstrained(rate)"] ** 2 + p["slope"] ** 2), by_hand, model.init
        )
        options: dict[str, Any] = {"rounds": 20, "warmup": 20, "seed": 2, "progress": False}
        exact = consortia.federated_hmc(leapfrog_steps=3, step_size=0.1, mass_matrix="identity")
        trees = [consortia.sample(one, sites, exact, chains=2, **options) for one in (model, hand)]
    for name in ("slope", "unconstrained(rate)"):
        first, second = (np.asarray(tree["posterior"][name]) for tree in trees)
        np.testing.assert_allclose(first, second, atol=1e-3)


def with_local_levels() -> Any:
    with pm.Model() as model:
        x = pm.Data("x", X)
        level = pm.Normal("level", 0, 1, shape=x.shape)
        pm.Normal("y", level, 1, observed=x)
    return model


def gaussian_process() -> Any:
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("outcome", 2 * X)
        scale = pm.HalfNormal("scale", 1)
        distance = (x[:, None] - x[None, :]) ** 2
        kernel = pt.exp(-distance / scale**2) + 0.1 * pt.eye(x.shape[0])
        pm.MvNormal("y", pt.zeros_like(x), kernel, observed=y)
    return model


def centred() -> Any:
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("outcome", 2 * X)
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b * (x - x.mean()), 1, observed=y)
    return model


def centred_treatment() -> Any:
    with pm.Model() as model:
        treated, y = pm.Data("treated", ROWS["treated"]), pm.Data("outcome", 2 * X)
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b * (treated - treated.mean()), 1, observed=y)
    return model


def autoregressive() -> Any:
    with pm.Model() as model:
        x, b = pm.Data("x", X), pm.Normal("b", 0, 1)
        pm.Potential("steps", -0.5 * (x[1:] - b * x[:-1]) ** 2)
    return model


def potential_of_the_mean() -> Any:
    with pm.Model() as model:
        x, b = pm.Data("x", X), pm.Normal("b", 0, 1)
        pm.Potential("anchor", -((b - x.mean()) ** 2))
        pm.Normal("y", b, 1, observed=x)
    return model


def potential_of_the_site() -> Any:
    with pm.Model() as model:
        x, b = pm.Data("x", X), pm.Normal("b", 0, 1)
        pm.Potential("anchor", -((b - pm.Data("beds", ROWS["beds"]).mean()) ** 2))
        pm.Normal("y", b, 1, observed=x)
    return model


def subsampled() -> Any:
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b, 1, observed=pm.Data("x", X), total_size=100)
    return model


def unbounded() -> Any:
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        c = pm.Uniform("c", 3 + b * 0, 5, default_transform=None)
        pm.Normal("y", c, 1, observed=pm.Data("x", X))
    return model


LAWS: dict[str, Any] = {
    "a mean of rows": lambda x, y, beds: pm.Normal("b", x.mean(), 1),
    "hardly": lambda x, y, beds: pm.Normal("b", 1e-3 * x.mean(), 10),
    "their number": lambda x, y, beds: pm.Normal("b", 0, 1 / pt.sqrt(x.shape[0])),
    "a scale of responses": lambda x, y, beds: pm.HalfNormal("b", y.std() + 0.1),
    "the first row": lambda x, y, beds: pm.Exponential("b", pt.abs(y[0])),
    "through another": lambda x, y, beds: pm.Normal("b", pm.Normal("a", 0, 1) * x.mean(), 1),
    # the density of the unconstrained value has no bounds in it
    "bounds": lambda x, y, beds: pm.Uniform("b", x.min(), x.max() + 1),
    "a number of the site": lambda x, y, beds: pm.Normal("b", beds.mean(), 1),
    "a bound of the site": lambda x, y, beds: pm.Uniform("b", 0, beds.max()),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_latent_variable_whose_law_depends_on_rows_is_refused(name: str) -> None:
    with pm.Model() as theirs:
        x, y, beds = (pm.Data(one, ROWS[one]) for one in ("x", "outcome", "beds"))
        b = LAWS[name](x, y, beds)
        pm.Normal("y", b * x, 1, observed=y)
    with refused(argument="b", match="the law of 'b' .*as a constant"):
        from_pymc(theirs, columns("x", "outcome", "beds"))


def discrete() -> Any:
    with pm.Model() as model:
        which = pm.Bernoulli("which", 0.5)
        pm.Normal("y", which, 1, observed=pm.Data("x", X))
    return model


def with_plain_observations() -> Any:
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b * pm.Data("x", X), 1, observed=2 * X)
    return model


@pytest.mark.parametrize(
    ("make", "names", "said"),
    [
        (gaussian_process, ("x", "outcome"), "statement 'y' does not factor over rows"),
        (centred, ("x", "outcome"), "statement 'y' does not factor over rows"),
        (with_local_levels, ("x",), "latent variable 'level' has shape"),
        (centred_treatment, ("treated", "outcome"), "statement 'y' does not factor over rows"),
        (autoregressive, ("x",), "statement 'steps' does not factor over rows"),
        (potential_of_the_mean, ("x",), "statement 'anchor' does not factor over rows"),
        (potential_of_the_site, ("x", "beds"), "statement 'anchor' is computed from the rows"),
        (subsampled, ("x",), "observed variable 'y' has a total_size: methods take minibatches"),
        (unbounded, ("x",), "the log-density of 'c' is -inf at parameters drawn at random"),
        (discrete, ("x",), "latent variable 'which' is discrete"),
        (with_plain_observations, ("x",), "cannot be computed with 4 of its rows"),
        (linear, ("x", "count"), "no pm.Data 'count', which is a column"),
    ],
)
def test_what_has_no_likelihood_of_rows_is_refused_by_name(
    make: Any, names: tuple[str, ...], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        from_pymc(make(), columns(*names))


def test_what_importing_pymc_does_to_the_process_is_undone() -> None:
    code = (
        "import os, jax\n"
        "from consortia.models import pymc\n"
        "flags = os.environ.get('XLA_FLAGS')\n"
        "with jax.enable_x64(True): pymc._translator()\n"
        "same = os.environ.get('XLA_FLAGS') == flags\n"
        "print(same, jax.numpy.zeros(1).dtype, len(jax.devices()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "float32", "1"], done.stderr


def test_something_else_than_a_model_is_refused() -> None:
    with refused(argument="model", match="pymc.Model"):
        from_pymc(linear, columns("x"))
