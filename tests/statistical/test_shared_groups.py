"""Groups crossed with sites, and within them, against the posterior of the pooled rows."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from statistical.compared import check_law, nuts

import consortia

pytestmark = pytest.mark.slow

SITES = ("oslo", "lima", "bern")
SURGEONS = [f"surgeon {letter}" for letter in "abcdefgh"]
ROWS = 160


def operations() -> dict[str, dict[str, Any]]:
    """Return operations by eight surgeons, each of them at all three sites, which are unlike."""
    rng = np.random.default_rng(3)
    skill = 0.8 * rng.normal(size=8)
    found = {}
    for place, site in enumerate(SITES):
        x = rng.normal(0.5 * place, size=ROWS)
        who = rng.choice(8, size=ROWS, p=rng.dirichlet(np.ones(8)))
        y = rng.normal(1 + 0.3 * place + 0.5 * x + skill[who])
        found[site] = {"y": y, "x": x, "surgeon": np.array(SURGEONS)[who]}
    return found


def test_surgeons_over_sites_have_the_posterior_of_nuts_on_the_pooled_rows() -> None:
    import numpyro
    import numpyro.distributions as dist

    tables = operations()
    prior = {"sd": "half_normal(1)", "coefficients": "normal(0, 2)", "intercept": "normal(0, 5)"}
    prior |= {"sigma": "half_normal(2)"}
    formula = "y ~ x + (1 | site) + (1 | shared(surgeon))"
    made = consortia.regression(formula, tables, integrate=True, prior=prior)
    method = consortia.federated_hmc(target_acceptance=0.95)
    more: dict[str, Any] = {"rounds": 6000, "warmup": 1000, "chains": 4, "seed": 1}
    tree = consortia.sample(made.model, made.sites, method, progress=False, **more)
    drawn = made.natural(tree)
    x, y = (
        jnp.asarray(np.concatenate([table[name] for table in tables.values()]), jnp.float32)
        for name in ("x", "y")
    )
    names = np.concatenate([table["surgeon"] for table in tables.values()]).tolist()
    who = jnp.asarray([SURGEONS.index(name) for name in names])
    site = jnp.repeat(jnp.arange(3), ROWS)

    def joint() -> None:
        middle = numpyro.sample("middle", dist.Normal(0, 5))
        slope = numpyro.sample("slope", dist.Normal(0, 2))
        sd = numpyro.sample("sd", dist.HalfNormal(jnp.ones(2)))
        of_site = numpyro.sample("of_site", dist.Normal(0, jnp.ones(3)))
        of_surgeon = numpyro.sample("of_surgeon", dist.Normal(0, jnp.ones(8)))
        own = numpyro.deterministic("own", sd[1] * of_surgeon)
        eta = middle + slope * (x - x.mean()) + sd[0] * of_site[site] + own[who]
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        numpyro.sample("y", dist.Normal(eta, sigma), obs=y)

    found = nuts(joint, 6000)
    check_law(np.asarray(drawn["coefficients"])[..., 0], found["slope"], "slope")
    check_law(np.asarray(drawn["sigma"]), found["sigma"], "sigma")
    check_law(np.log(np.asarray(drawn["sd"])), np.log(found["sd"]), "sds of sites and surgeons")
    check_law(np.asarray(drawn["effects"]), found["own"], "surgeons")


def wards() -> dict[str, dict[str, Any]]:
    """Return rows of unlike sites, each with wards of its own, four to six of them."""
    rng = np.random.default_rng(11)
    found = {}
    for place, site in enumerate(SITES):
        rows, many = 120 + 60 * place, 4 + place
        x, ward = rng.normal(0.5 * place, size=rows), rng.integers(many, size=rows)
        eta = 0.2 + 0.4 * rng.normal() + 0.6 * x + 0.7 * rng.normal(size=many)[ward]
        found[site] = {"y": rng.normal(eta), "x": x, "ward": np.char.add("w", ward.astype(str))}
    return found


def exact_draws(tables: dict[str, dict[str, Any]], count: int) -> dict[str, np.ndarray]:
    """Return independent draws, (4, count, ...): all but the three sds is normal, given these.

    The sds are drawn from a grid of Gauss and Legendre. NUTS has R-hat 1.4 for this posterior.
    """
    rng, x, y = (
        np.random.default_rng(1),
        *(np.concatenate([one[name] for one in tables.values()]) for name in ("x", "y")),
    )
    site = np.repeat(np.arange(3), [len(one["y"]) for one in tables.values()])
    names = [f"{name} {ward}" for name, one in tables.items() for ward in one["ward"]]
    ward = np.unique(names, return_inverse=True)[1]
    centred = x - x.mean()
    design = np.column_stack(
        [np.ones(len(x)), centred, np.eye(3)[site], np.eye(ward.max() + 1)[ward]]
    )
    gram, right = design.T @ design, design.T @ y
    cells, logs, laws = [], [], []
    grids = [gauss(40, 0, 4.5), gauss(24, 0.2, 2.5), gauss(12, 0.88, 1.22)]
    for cell in itertools.product(*(list(zip(*grid, strict=True)) for grid in grids)):
        (of_sites, of_wards, sigma), weights = zip(*cell, strict=True)
        prior = np.r_[5.0, 2.0, np.full(3, of_sites), np.full(ward.max() + 1, of_wards)]
        matrix = np.eye(len(prior)) + prior[:, None] * gram * prior / sigma**2
        root = np.linalg.cholesky(matrix)
        pull = np.linalg.solve(root, prior * right / sigma**2)
        fit = pull @ pull / 2 - y @ y / (2 * sigma**2) - np.log(np.diag(root)).sum()
        of_prior = -(of_sites**2) / 2 - of_wards**2 / 2 - sigma**2 / 8
        logs.append(fit - len(y) * np.log(sigma) + of_prior + np.log(weights).sum())
        cells.append((of_sites, of_wards, sigma))
        laws.append((prior, root, pull))
    shares = np.exp(np.array(logs) - max(logs))
    chosen = rng.choice(len(shares), 4 * count, p=shares / shares.sum())
    drawn = np.empty((4 * count, 5))
    for place, index in enumerate(chosen):
        prior, root, pull = laws[index]
        whole = prior * np.linalg.solve(root.T, pull + rng.standard_normal(len(pull)))
        drawn[place] = whole[:5]
    drawn[:, 0] -= x.mean() * drawn[:, 1]
    sds = np.array(cells)[chosen].reshape(4, count, 3)
    drawn = drawn.reshape(4, count, 5)
    return {
        "intercept": drawn[..., 0],
        "coefficients": drawn[..., 1:2],
        "effects": drawn[..., 2:],
        "sd": sds[..., :2],
        "sigma": sds[..., 2],
    }


def gauss(count: int, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of Gauss and Legendre between two ends."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return low + (high - low) * (nodes + 1) / 2, weights * (high - low) / 2


def test_wards_within_sites_have_the_posterior_of_the_pooled_rows() -> None:
    tables = wards()
    prior = {"sd": "half_normal(1)", "coefficients": "normal(0, 2)", "intercept": "normal(0, 5)"}
    prior |= {"sigma": "half_normal(2)"}
    made = consortia.regression("y ~ x + (1 | site/ward)", tables, integrate=True, prior=prior)
    assert made.specification.grouping == "ward"  # the levels of sites are parameters
    method = consortia.federated_hmc(target_acceptance=0.95)
    more: dict[str, Any] = {"rounds": 6000, "warmup": 1000, "chains": 4, "seed": 1}
    tree = consortia.sample(made.model, made.sites, method, progress=False, **more)
    drawn = made.natural(tree)
    for name, wanted in exact_draws(tables, 10_000).items():
        check_law(np.asarray(drawn[name]), wanted, name)
