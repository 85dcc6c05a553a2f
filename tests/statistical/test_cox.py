"""Cox's model stratified by site, against a library's maximum and NUTS on all rows together."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from statistical.compared import check_law, nuts

import consortia

pytestmark = pytest.mark.slow

SIZES = {"oslo": 90, "lima": 40, "bern": 25}
NUMBERS = ("age", "marker", "dose")
FORMULA = "Surv(time, died) ~ age + marker + dose + arm"
TRUE = np.array([0.5, -0.4, 0.02, 0.8])


def cohort() -> dict[str, dict[str, np.ndarray]]:
    """Return three sites with hazards and ages of their own; whole days, so that many are tied."""
    rng, found = np.random.default_rng(3), {}
    for index, (site, size) in enumerate(SIZES.items()):
        x = np.column_stack(
            [rng.normal(index - 1, 1, size), rng.normal(size=size), rng.gamma(4, 10, size)]
        )
        arm = rng.choice(["old", "new"], size)
        eta = np.column_stack([x, arm == "old"]) @ TRUE
        days = rng.weibull(0.7 + 0.4 * index, size) * 30 * np.exp(-eta)
        end = rng.exponential(40, size)
        found[site] = dict(zip(NUMBERS, x.T, strict=True)) | {
            "arm": arm,
            "time": np.ceil(np.minimum(days, end)),
            "died": (days < end).astype(int),
        }
    return found


def design(table: dict[str, np.ndarray]) -> np.ndarray:
    return np.column_stack([*(table[name] for name in NUMBERS), table["arm"] == "old"]).astype(
        float
    )


def made(**more: Any) -> Any:
    return consortia.regression(FORMULA, cohort(), family="cox", **more)


def test_its_maximum_is_that_of_a_library(x64: None) -> None:
    models = pytest.importorskip(
        "statsmodels.duration.hazard_regression", reason="statsmodels is not installed"
    )
    one, tables = made(), cohort()

    def likelihood(b: jax.Array) -> jax.Array:
        params = {"coefficients": b}
        return sum(
            one.model.site_log_likelihood(params, rows, np.ones(len(rows["y"]), bool))
            for rows in one.sites
        )

    at = jnp.zeros(len(TRUE))
    gradient, hessian = jax.jit(jax.grad(likelihood)), jax.jit(jax.hessian(likelihood))
    for _ in range(12):
        at = at - jnp.linalg.solve(hessian(at), gradient(at))
    x = np.concatenate([design(table) for table in tables.values()])
    scale = np.append(x[:, : len(NUMBERS)].std(axis=0), 1)
    time, died = (
        np.concatenate([table[key] for table in tables.values()]) for key in ("time", "died")
    )
    strata = np.repeat(np.arange(len(tables)), list(SIZES.values()))
    fitted = models.PHReg(time, x, status=died, strata=strata, ties="efron").fit()
    errors = np.sqrt(np.diag(np.linalg.inv(-np.asarray(hessian(at))))) / scale
    # Both end at a gradient of about 1e-6 of what moves a coefficient by its error.
    assert np.abs(np.asarray(at) / scale - fitted.params).max() < 1e-4 * errors.min()
    np.testing.assert_allclose(errors, fitted.bse, rtol=1e-4)


def test_its_posterior_is_that_of_nuts_on_efron_s_likelihood() -> None:
    numpyro = pytest.importorskip("numpyro", reason="the extra numpyro is not installed")
    prior = dict.fromkeys(("age", "marker", "dose", "arm"), "normal(0, 1)")
    one, tables = made(prior=prior), cohort()
    tree = consortia.sample(
        one.model,
        one.sites,
        consortia.few_rounds(effective_size=8000, proposals=4000),
        seed=1,
        progress=False,
    )
    few = consortia.sample(one.model, one.sites, consortia.few_rounds(), seed=1, progress=False)
    print(few.attrs["communication_rounds"], "messages")
    assert few.attrs["communication_rounds"] <= 7

    # Each death k of n at one time: log of Σ over the risk set less k/n of those who die then.
    blocks, deaths, begin = [], [], 0
    rows = sum(SIZES.values())
    for table in tables.values():
        time, died = table["time"], table["died"] > 0
        for at in np.unique(time[died]):
            tied = np.flatnonzero((time == at) & died)
            for place, row in enumerate(tied):
                weights = np.zeros(rows)
                weights[begin : begin + len(time)] = time >= at
                weights[begin + tied] -= place / len(tied)
                blocks.append(weights)
                deaths.append(begin + row)
        begin += len(time)
    at_risk, x = np.array(blocks), np.concatenate([design(table) for table in tables.values()])

    def model() -> None:
        b = numpyro.sample("b", numpyro.distributions.Normal(0, jnp.ones(len(TRUE))))
        eta = jnp.asarray(x - x.mean(axis=0)) @ b
        fit = jnp.sum(eta[np.array(deaths)]) - jnp.sum(jnp.log(at_risk @ jnp.exp(eta)))
        numpyro.factor("deaths", fit)

    wanted = nuts(model, 5000, "sequential")["b"]
    found = np.asarray(one.natural(tree)["coefficients"], float)
    # Four Monte Carlo errors of some 8,000 effective draws of each beyond; with Breslow's ties the
    # maximum moves by .56 of its error in a coefficient, with one baseline for all sites by .81.
    check_law(found, wanted)
