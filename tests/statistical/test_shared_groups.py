"""Groups that are at several sites, crossed with the sites, against NUTS on the pooled rows."""

from __future__ import annotations

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
