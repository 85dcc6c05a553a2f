"""Regressions over four unlike sites against models written by hand, by NUTS on all rows."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from jax.scipy.special import ndtr

import consortia

numpyro = pytest.importorskip("numpyro", reason="the extra numpyro is not installed")
dist = numpyro.distributions

pytestmark = pytest.mark.slow

ROWS, CUTS = 156, (90, 130, 155)
OWN = ("sigma", "nu", "phi", "shape", "zero_odds")
CUT_POINTS, INTERVALS = np.array([-1.0, 0.4, 1.5]), [0.5, 1.5, 3.0]


def table() -> pd.DataFrame:
    """Return all rows: the second site lacks stage III, the last one has one row."""
    rng = np.random.default_rng(11)
    frame = pd.DataFrame(
        {
            "age": rng.normal(60, 10, ROWS),
            "arm": rng.choice(["new", "old"], ROWS),
            "stage": rng.choice(["I", "II", "III"], ROWS, p=[0.5, 0.3, 0.2]),
            "n": rng.integers(3, 12, ROWS),
        }
    )
    second = frame.index.isin(range(*CUTS[:2])) & (frame["stage"] == "III")
    frame.loc[second, "stage"] = "I"
    z = (frame["age"] - 60) / 10
    old, two, three = frame["arm"] == "old", frame["stage"] == "II", frame["stage"] == "III"
    eta = (0.2 + 0.5 * z - 0.6 * old + 0.4 * two + 0.8 * three + 0.3 * z * old).to_numpy()
    p, mean = 1 / (1 + np.exp(-eta)), np.exp(eta)
    frame["bernoulli"] = rng.binomial(1, p)
    frame["binomial"] = rng.binomial(frame["n"], p)
    frame["poisson"] = rng.poisson(mean * frame["n"])
    frame["negative_binomial"] = rng.poisson(rng.gamma(2.0, mean / 2.0))
    frame["gaussian"] = 3 * eta + rng.normal(0, 2, ROWS)
    frame["student"] = 3 * eta + 2 * rng.standard_t(4, ROWS)
    frame["gamma"] = rng.gamma(3.0, mean / 3.0)
    frame["beta"] = np.clip(rng.beta(6 * p, 6 * (1 - p)), 1e-4, 1 - 1e-4)
    latent = eta + rng.logistic(size=ROWS)
    frame["ordinal"] = np.sum(latent[:, None] > CUT_POINTS, axis=1)
    scores = np.column_stack([0 * eta, eta, 0.5 - eta]) + rng.gumbel(size=(ROWS, 3))
    frame["categorical"] = np.array(["a", "b", "c"])[np.argmax(scores, axis=1)]
    time = (rng.exponential(size=ROWS) / mean) ** (1 / 1.4) * 2
    censored = rng.exponential(4, ROWS)
    frame["time"], frame["event"] = np.minimum(time, censored), time < censored
    chance = {"probit": ndtr(eta / 2), "cloglog": -np.expm1(-np.exp(eta / 2 - 0.5))}
    for link, own in chance.items():
        frame[f"bernoulli({link})"] = rng.binomial(1, own)
        frame[f"binomial({link})"] = rng.binomial(frame["n"], own)
    absent = rng.random(ROWS) < 0.35
    frame["zero_inflated_poisson"] = np.where(absent, 0, rng.poisson(3 * mean))
    scattered = rng.poisson(rng.gamma(2.0, 3 * mean / 2.0))
    frame["zero_inflated_negative_binomial"] = np.where(absent, 0, scattered)
    frame["lognormal"] = np.exp(rng.normal(eta, 0.7))
    return frame


ALL = table()
SITES = {name: ALL[a:b] for name, a, b in zip("abcd", (0, *CUTS), (*CUTS, ROWS), strict=True)}
FAMILIES = {
    "gaussian": {},
    "student": {},
    "bernoulli": {},
    "binomial": {"trials": "n"},
    "poisson": {"exposure": "n"},
    "negative_binomial": {},
    "gamma": {},
    "beta": {},
    "ordinal": {},
    "categorical": {},
    "weibull": {},
    "piecewise_exponential": {"breaks": INTERVALS},
    "bernoulli(probit)": {},
    "bernoulli(cloglog)": {},
    "binomial(probit)": {"trials": "n"},
    "binomial(cloglog)": {"trials": "n"},
    "zero_inflated_poisson": {},
    "zero_inflated_negative_binomial": {},
    "lognormal": {},
}


def regression_of(family: str) -> Any:
    left = "Surv(time, event)" if family in ("weibull", "piecewise_exponential") else f"`{family}`"
    return consortia.regression(
        f"{left} ~ age * arm + stage", SITES, family=family, **FAMILIES[family]
    )


def by_hand(family: str) -> Any:
    """Return the model of all rows, as docs/formulas.md says what it is."""
    age = ALL["age"].to_numpy()
    old = (ALL["arm"] == "old").to_numpy(float)
    two, three = ((ALL["stage"] == level).to_numpy(float) for level in ("II", "III"))
    X = np.column_stack([age, old, two, three, age * old])
    units = np.array([age.std(), 1, 1, 1, age.std()])
    survival = family in ("weibull", "piecewise_exponential")
    y = ALL["time" if survival else family].to_numpy()
    if family == "categorical":
        y = np.searchsorted(["a", "b", "c"], y)
    number = family in ("gaussian", "student")
    wide = y.std() if number else 1.0
    time, event = ALL["time"].to_numpy(), ALL["event"].to_numpy(float)
    centre = {
        "gaussian": y.mean(),
        "student": y.mean(),
        "poisson": np.log(ALL["poisson"].mean() / ALL["n"].mean()),
        "negative_binomial": np.log(ALL["negative_binomial"].mean()),
        "gamma": np.log(ALL["gamma"].mean()),
        "weibull": np.log(event.mean()),
        "piecewise_exponential": np.log(event.mean() / time.mean()),
        "zero_inflated_poisson": np.log(ALL["zero_inflated_poisson"].mean()),
        "zero_inflated_negative_binomial": np.log(ALL["zero_inflated_negative_binomial"].mean()),
        "lognormal": np.log(ALL["lognormal"].mean()),
    }.get(family, 0.0)
    few = (2,) if family == "categorical" else ()

    def model() -> None:
        beta = numpyro.sample(
            "coefficients", dist.Normal(0, 2.5 * wide / units).expand([*few, 5]).to_event(1)
        )
        at_mean = beta[..., 0] * age.mean()
        eta = X @ beta.T
        if family == "ordinal":
            cuts = numpyro.sample(
                "cuts",
                dist.TransformedDistribution(
                    dist.Normal(0, 1).expand([3]).to_event(1), dist.transforms.OrderedTransform()
                ),
            )
            # the density of the ordered vector is put in the place of the normal's
            base = dist.TransformedDistribution(
                dist.Normal(0, 1).expand([3]).to_event(1), dist.transforms.OrderedTransform()
            )
            numpyro.factor(
                "prior", dist.StudentT(3, 0, 2.5).log_prob(cuts).sum() - base.log_prob(cuts)
            )
            numpyro.deterministic("thresholds", cuts + at_mean)
            numpyro.sample("y", dist.OrderedLogistic(eta, cuts + at_mean), obs=y)
            return
        if family == "piecewise_exponential":
            hazard = numpyro.sample("h", dist.Normal(centre, 2.5).expand([4]).to_event(1))
            log_hazard = numpyro.deterministic("log_hazard", hazard - at_mean)
            edges = np.array([0.0, *INTERVALS, np.inf])
            spent = np.clip(time[:, None] - edges[:-1], 0, np.diff(edges))
            place = np.searchsorted(edges, time) - 1
            numpyro.factor(
                "y",
                (event * (log_hazard[place] + eta)).sum()
                - (spent * jax.numpy.exp(log_hazard + eta[:, None])).sum(),
            )
            return
        a = numpyro.sample("a", dist.Normal(centre, 2.5 * wide).expand([*few]))
        alpha = numpyro.deterministic("intercept", a - at_mean)
        eta = eta + alpha
        exp = jax.numpy.exp
        if number:
            sigma = numpyro.sample("sigma", dist.Exponential(1 / wide))
            if family == "gaussian":
                numpyro.sample("y", dist.Normal(eta, sigma), obs=y)
                return
            nu = numpyro.sample("nu", dist.TruncatedDistribution(dist.Normal(10, 9), low=1.0))
            numpyro.factor(
                "nu_prior",
                dist.Gamma(2, 0.1).log_prob(nu)
                - dist.TruncatedDistribution(dist.Normal(10, 9), low=1.0).log_prob(nu),
            )
            numpyro.sample("y", dist.StudentT(nu, eta, sigma), obs=y)
        elif family == "bernoulli":
            numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)
        elif family == "binomial":
            numpyro.sample("y", dist.Binomial(ALL["n"].to_numpy(), logits=eta), obs=y)
        elif family == "poisson":
            numpyro.sample("y", dist.Poisson(exp(eta) * ALL["n"].to_numpy()), obs=y)
        elif family == "negative_binomial":
            phi = numpyro.sample("phi", dist.InverseGamma(0.4, 0.3))
            numpyro.sample("y", dist.NegativeBinomial2(exp(eta), phi), obs=y)
        elif family == "gamma":
            shape = numpyro.sample("shape", dist.Gamma(2, 0.1))
            numpyro.sample("y", dist.Gamma(shape, shape * exp(-eta)), obs=y)
        elif family == "beta":
            phi = numpyro.sample("phi", dist.Gamma(2, 0.1))
            p, q = jax.nn.sigmoid(eta), jax.nn.sigmoid(-eta)  # 1 − p would be 0 far out
            numpyro.sample("y", dist.Beta(p * phi, q * phi), obs=y)
        elif "(" in family:
            of_link = {"probit": ndtr, "cloglog": lambda at: -jax.numpy.expm1(-exp(at))}
            p = of_link[family.partition("(")[2][:-1]](eta)
            n = ALL["n"].to_numpy() if family.startswith("binomial") else 1
            numpyro.sample("y", dist.Binomial(n, probs=p), obs=y)
        elif family.startswith("zero_inflated"):
            if family == "zero_inflated_poisson":
                counts = dist.Poisson(exp(eta))
            else:
                phi = numpyro.sample("phi", dist.InverseGamma(0.4, 0.3))
                counts = dist.NegativeBinomial2(exp(eta), phi)
            odds = numpyro.sample("zero_odds", dist.HalfCauchy(1.0))
            law = dist.ZeroInflatedDistribution(counts, gate=odds / (1 + odds))
            numpyro.sample("y", law, obs=y)
        elif family == "lognormal":
            sigma = numpyro.sample("sigma", dist.Exponential(1.0))
            numpyro.sample("y", dist.LogNormal(eta, sigma), obs=y)
        elif family == "categorical":
            scores = jax.numpy.concatenate([jax.numpy.zeros((ROWS, 1)), eta], axis=1)
            numpyro.sample("y", dist.Categorical(logits=scores), obs=y)
        else:
            shape = numpyro.sample("shape", dist.HalfNormal(2))
            law = dist.Weibull(time.mean() * exp(-eta / shape), shape)
            survival = -((time / time.mean()) ** shape) * exp(eta)
            numpyro.factor("y", jax.numpy.where(event > 0, law.log_prob(time), survival).sum())

    return model


@pytest.fixture(autouse=True)
def promoted(x64: None) -> Any:
    """NumPyro's own code promotes ranks and types."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_the_log_density_is_that_of_the_model_written_by_hand(family: str) -> None:
    made = regression_of(family)
    density, model, rng = made.density, by_hand(family), np.random.default_rng(0)
    rows = made.sites.pooled()

    @jax.jit
    def apart(params: Any) -> jax.Array:
        own = density._own(params)
        values = {"coefficients": density.natural(params)["coefficients"]}
        values |= {name: own[name] for name in OWN if name in own}
        values |= {"a": params["intercept"]} if "intercept" in params else {}
        values |= {"cuts": own["thresholds"]} if "thresholds" in own else {}
        values |= {"h": own["log_hazard"]} if "log_hazard" in own else {}
        jacobian = sum(
            value for name, value in params.items() if name.startswith("log_") and value.ndim == 0
        )
        if "thresholds" in params:
            jacobian = params["thresholds"][1:].sum()
        ours = density.log_likelihood(params, rows).sum() + density.log_prior(params) - jacobian
        return ours - numpyro.infer.util.log_density(model, (), {}, values)[0]

    found = [
        float(
            apart(
                {
                    key: start + 0.3 * rng.normal(size=start.shape)
                    for key, start in made.model.init.items()
                }
            )
        )
        for _ in range(4)
    ]
    # They differ by constants of the basis and of orders. NumPyro's negative binomial is good to
    # 1e-6, all others to 1e-12.
    np.testing.assert_allclose(found, found[0], rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_over_unlike_sites_has_the_posterior_of_nuts_on_all_rows(family: str) -> None:
    made = regression_of(family)
    tree = consortia.sample(
        made.model,
        made.sites,
        consortia.federated_hmc(),
        rounds=3000,
        warmup=500,
        chains=4,
        seed=1,
        progress=False,
    )
    found = made.natural(tree)
    kernel = numpyro.infer.NUTS(by_hand(family), dense_mass=True)
    mcmc = numpyro.infer.MCMC(
        kernel,
        num_warmup=1000,
        num_samples=3000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0))
    reference = mcmc.get_samples()
    compared = 0
    for name in found.data_vars:
        draws = np.asarray(found[name]).reshape(12_000, -1)
        wanted = np.asarray(reference[str(name)]).reshape(12_000, -1)
        sd = wanted.std(axis=0)
        # Both have an effective size of some 8,000 or more: the difference of means has a standard
        # error of .016 sd, that of the logarithms of sds of .011.
        shift = (draws.mean(axis=0) - wanted.mean(axis=0)) / sd
        ratio = draws.std(axis=0) / sd
        print(
            f"{family} {name}: means within {np.abs(shift).max():.3f} sd, sds {ratio.min():.3f} to "
            f"{ratio.max():.3f}"
        )
        assert np.abs(shift).max() < 0.05, (name, shift)
        np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.05, err_msg=str(name))
        compared += draws.shape[1]
    assert compared >= 6


def test_the_comparison_sees_a_prior_that_is_half_as_wide() -> None:
    one, other = (
        consortia.regression("bernoulli ~ age * arm + stage", SITES, family="bernoulli", **more)
        for more in ({}, {"prior": {"coefficients": "normal(0, 0.5)"}})
    )
    means = []
    for made in (one, other):
        tree = consortia.sample(
            made.model,
            made.sites,
            consortia.federated_hmc(),
            rounds=1000,
            warmup=500,
            progress=False,
            chains=1,
        )
        means.append(np.asarray(made.natural(tree)["coefficients"]).reshape(1000, -1))
    apart = np.abs(means[0].mean(axis=0) - means[1].mean(axis=0)) / means[0].std(axis=0)
    assert apart.max() > 0.1
