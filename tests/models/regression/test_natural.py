"""Parameters where a reader who knows lme4 looks for them: at zero of the columns."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from scipy.stats import multivariate_normal

import consortia
from consortia.diagnostics.natural import Quantities

SITES = ("oslo", "lima", "bern")


def growth() -> dict[str, dict[str, Any]]:
    """Return heights of 60 children at three sites, five visits each, between ages 2 and 8."""
    rng = np.random.default_rng(7)
    L = np.linalg.cholesky([[16.0, -1.2], [-1.2, 0.64]])
    found = {}
    for site in SITES:
        child = np.repeat(np.arange(20), 5)
        age = rng.uniform(2, 8, size=len(child))
        own = (rng.normal(size=(20, 2)) @ L.T)[child]
        height = rng.normal(75 + own[:, 0] + (6.5 + own[:, 1]) * age, 1.0)
        names = np.array([f"{site} {one}" for one in child])
        found[site] = {"height": height, "age": age, "child": names}
    return found


def log_likelihood(made: Any, params: Any) -> Any:
    """Return our log-likelihood of all children, their levels and slopes integrated out."""
    of_site = made.model.site_log_likelihood
    rows = [{name: jnp.asarray(a) for name, a in one.items()} for one in made.sites]
    return sum(of_site(params, one, jnp.ones(len(one["y"]), bool)) for one in rows)


def test_natural_parameters_are_those_of_a_mixed_model_at_zero_of_the_columns(x64: None) -> None:
    """Children are normal with the covariance Z Σ Zᵀ + σ² I, Z = (1, age) as it was read."""
    tables = growth()
    made = consortia.regression("height ~ age + (1 + age | child)", tables)
    rng = np.random.default_rng(0)
    point = {
        name: jnp.asarray(np.asarray(a) + 0.3 * rng.normal(size=np.shape(a)))
        for name, a in made.model.init.items()
    }
    found = {name: np.asarray(a) for name, a in made.density.natural(point).items()}
    r = found["correlation"][0]
    covariance = np.outer(found["sd"], found["sd"]) * np.array([[1, r], [r, 1]])
    wanted = 0.0
    for table in tables.values():
        for child in np.unique(table["child"]):
            own = table["child"] == child
            Z = np.stack([np.ones(own.sum()), table["age"][own]], axis=1)
            V = Z @ covariance @ Z.T + found["sigma"] ** 2 * np.eye(own.sum())
            mean = Z @ [found["intercept"], found["coefficients"][0]]
            wanted += multivariate_normal(mean, V).logpdf(table["height"][own])
    assert float(jax.jit(lambda at: log_likelihood(made, at))(point)) == pytest.approx(wanted)


@pytest.mark.slow
def test_a_growth_study_has_the_numbers_of_a_mixed_model_of_statsmodels(x64: None) -> None:
    """The maximum of our likelihood, by its natural parameters, is that of the mixed model."""
    import pandas as pd
    from scipy.optimize import minimize

    smf = pytest.importorskip("statsmodels.formula.api")
    tables = growth()
    made = consortia.regression("height ~ age + (1 + age | child)", tables)
    frame = pd.concat(map(pd.DataFrame, tables.values()))
    mixed = smf.mixedlm("height ~ age", frame, groups="child", re_formula="~age")
    wanted = mixed.fit(reml=False, method="lbfgs")
    start, unravel = jax.flatten_util.ravel_pytree(
        {name: jnp.asarray(value, float) for name, value in made.model.init.items()}
    )
    loss = jax.jit(jax.value_and_grad(lambda at: -log_likelihood(made, unravel(at))))
    best = minimize(lambda at: [np.asarray(one) for one in loss(at)], start, jac=True)
    found = made.density.natural(unravel(jnp.asarray(best.x)))
    covariance = np.asarray(wanted.cov_re)
    sd = np.sqrt(np.diag(covariance))
    r = covariance[0, 1] / sd.prod()
    print("intercept", found["intercept"], wanted.fe_params["Intercept"])
    print("sds", found["sd"], sd, "correlation", found["correlation"], r)
    assert -best.fun == pytest.approx(wanted.llf, abs=1e-3)
    np.testing.assert_allclose(found["intercept"], wanted.fe_params["Intercept"], rtol=1e-4)
    np.testing.assert_allclose(found["coefficients"], wanted.fe_params[["age"]], rtol=1e-4)
    np.testing.assert_allclose(found["sd"], sd, rtol=5e-3)
    np.testing.assert_allclose(found["correlation"], r, atol=5e-3)
    np.testing.assert_allclose(found["sigma"], np.sqrt(wanted.scale), rtol=1e-3)


def test_levels_of_sites_are_at_zero_of_the_columns(x64: None) -> None:
    made = consortia.regression("height ~ age + (1 + age | site)", growth(), integrate=False)
    rng = np.random.default_rng(0)
    point = {name: jnp.asarray(rng.normal(size=np.shape(a))) for name, a in made.model.init.items()}
    found = {name: np.asarray(a) for name, a in made.density.natural(point).items()}
    levels, slopes = found["effects"].reshape(2, 3)
    for place, site in enumerate(SITES):
        table = {"age": np.array([0.0, 1.0])}
        draws = {name: np.asarray(a)[None, None] for name, a in point.items()}
        at_zero, at_one = np.asarray(made.predict(draws, table, site=site))[0, 0]
        assert at_zero == pytest.approx(found["intercept"] + levels[place])
        assert at_one - at_zero == pytest.approx(found["coefficients"][0] + slopes[place])
    # the law of a level at zero: the mean's level less the mean times the slope
    before = {name: np.asarray(a) for name, a in made.density.at_mean(point).items()}
    mean = made.specification.units["age"].mean
    (u, v), r = before["sd"], before["correlation"][0]
    assert found["sd"][0] == pytest.approx(np.sqrt(u**2 - 2 * mean * r * u * v + mean**2 * v**2))
    covariance = r * u * v - mean * v**2
    assert found["correlation"][0] == pytest.approx(covariance / (found["sd"][0] * v))


@pytest.mark.parametrize(
    ("formula", "family"),
    [
        ("score ~ age + arm + (1 + age | site)", "ordinal"),
        ("height ~ arm * age + (1 | shared(arm)) + (1 + age || site)", "student"),
        ("Surv(age, event) ~ height + (1 | site)", "piecewise_exponential"),
        ("score ~ age + (1 | site)", "categorical"),
    ],
)
def test_a_summary_has_the_natural_parameters_alone(formula: str, family: str, x64: None) -> None:
    """Neither logarithms of gaps nor of spreads stand under the names."""
    tables = growth()
    rng = np.random.default_rng(1)
    for table in tables.values():
        table["arm"] = np.where(np.arange(100) % 3, "new", "old")
        table["event"] = np.arange(100) % 2
        table["score"] = rng.integers(4, size=100)
    made = consortia.regression(formula, tables, family=family)
    draws = {
        name: rng.normal(size=(2, 30, *np.shape(a))) * 0.5 for name, a in made.model.init.items()
    }
    tree = xarray.DataTree.from_dict(Quantities(made.model).beside({"posterior": dataset(draws)}))
    tree.attrs.update({name: json.dumps(one) for name, one in made.metadata.record.items()})
    table = consortia.summary(tree)
    natural = jax.vmap(jax.vmap(made.density.natural))(draws)
    assert {name.partition("[")[0] for name in table.coordinates} == set(natural)
    for name in natural:
        own = [one.partition("[")[0] == name for one in table.coordinates]
        wanted = np.asarray(natural[name]).mean(axis=(0, 1)).ravel()
        np.testing.assert_allclose(table["mean"][own], wanted, rtol=1e-6, atol=1e-9, err_msg=name)
    if family == "ordinal":
        assert [one for one in table.coordinates if one.startswith("thresholds")] == [
            "thresholds[0|1]",
            "thresholds[1|2]",
            "thresholds[2|3]",
        ]


def dataset(draws: dict[str, np.ndarray]) -> xarray.Dataset:
    return xarray.Dataset(
        {
            name: (("chain", "draw", *(f"{name}_dim_{i}" for i in range(a.ndim - 2))), a)
            for name, a in draws.items()
        }
    )
