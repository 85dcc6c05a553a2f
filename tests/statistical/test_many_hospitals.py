"""Twenty-five hospitals, the tenth of nine patients, levels kept there: NUTS on all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import consortia

numpyro = pytest.importorskip("numpyro", reason="the extra numpyro is not installed")
dist = numpyro.distributions

pytestmark = pytest.mark.slow

SIZES = np.array([9 if index == 9 else 20 + 2 * index for index in range(25)])
HOSPITAL = np.repeat(np.arange(25), SIZES)
RNG = np.random.default_rng(25)
AGE = RNG.normal(60, 10, len(HOSPITAL))
TREATED = RNG.integers(0, 2, len(HOSPITAL))
ETA = -0.4 + 0.04 * (AGE - 60) - 0.7 * TREATED + 0.8 * RNG.normal(size=25)[HOSPITAL]
DIED = RNG.binomial(1, 1 / (1 + np.exp(-ETA)))
NAMES = [f"hospital {index + 1:02d}" for index in range(25)]


def by_hand() -> None:
    """The model of all rows, as docs/formulas.md says what it is."""
    x = np.column_stack([AGE - AGE.mean(), TREATED - TREATED.mean()])
    scale = 2.5 / np.array([AGE.std(), TREATED.std()])
    beta = numpyro.sample("coefficients", dist.Normal(0, scale).to_event(1))
    a = numpyro.sample("a", dist.Normal(0, 2.5))
    tau = numpyro.sample("sd", dist.TruncatedDistribution(dist.StudentT(3, 0, 2.5), low=0.0))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([25]).to_event(1))
    numpyro.deterministic("levels", tau * z)
    numpyro.deterministic("intercept", a - beta @ np.array([AGE.mean(), TREATED.mean()]))
    numpyro.sample("y", dist.Bernoulli(logits=a + x @ beta + tau * z[HOSPITAL]), obs=DIED)


def test_estimates_spread_and_the_forest_of_25_hospitals_are_those_of_nuts(
    x64: None, tmp_path: Path
) -> None:
    tables: dict[str, Any] = {
        name: {"age": AGE[own], "treated": TREATED[own], "died": DIED[own]}
        for name, own in zip(NAMES, (index == HOSPITAL for index in range(25)), strict=True)
    }
    made = consortia.regression(
        "died ~ age + treated + (1 | site)", tables, family="bernoulli", integrate=True
    )
    tree = consortia.sample(
        made.model,
        made.sites,
        consortia.few_rounds(effective_size=2000),
        chains=4,
        seed=2,
        metadata=made.metadata,
        progress=False,
    )
    assert consortia.summary(tree).verdict.word == "good"
    # nothing of a hospital's own is in what is sampled
    assert made.model.init.keys() == {"coefficients", "intercept", "log_sd"}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        mcmc = numpyro.infer.MCMC(
            numpyro.infer.NUTS(by_hand, target_accept_prob=0.9),
            num_warmup=600,
            num_samples=1500,
            num_chains=4,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(jax.random.key(1))
    reference = {name: np.asarray(one) for name, one in mcmc.get_samples().items()}
    natural = made.natural(tree)
    for name in ("coefficients", "intercept", "sd"):
        own = np.asarray(natural[name]).reshape(-1, max(reference[name][0].size, 1))
        wanted = reference[name].reshape(len(reference[name]), -1)
        sd = wanted.std(axis=0)
        # 2,000 effective draws or more: a standard error of .022 sd, and .016 of the sd.
        assert np.abs((own.mean(axis=0) - wanted.mean(axis=0)) / sd).max() < 0.08, name
        np.testing.assert_allclose(own.std(axis=0), sd, rtol=0.06, err_msg=name)
    # the levels of 25 sites are drawn on a grid for each draw: of some 2,000 that takes seconds
    posterior = tree["unconstrained_posterior"].dataset
    every = max(posterior.sizes["draw"] // 500, 1)
    effects = made.by_site({name: posterior[name].values[:, ::every] for name in posterior})
    sites = [row for row in effects.rows if row.kind == "site"]
    assert [row.name for row in sites] == NAMES
    for index, row in enumerate(sites):
        levels = reference["levels"][:, index]
        apart = np.log([row.lower, row.median, row.upper]) - np.quantile(
            levels, [0.025, 0.5, 0.975]
        )
        # ends of 95 % intervals of 2,000 independent draws have a standard error of .06 sd
        assert np.abs(apart / levels.std()).max() < 0.25, row.name
    widths = [row.upper / row.lower for row in sites]
    assert int(np.argmax(widths)) == 9  # of nine patients the least is known
    assert effects.forest(tmp_path / "forest.png").stat().st_size > 10_000
