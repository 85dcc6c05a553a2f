"""Three hospitals, levels integrated out, the default prior of the spread: NUTS on all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import consortia

numpyro = pytest.importorskip("numpyro", reason="the extra numpyro is not installed")
dist = numpyro.distributions

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "three_hospitals"
FILES = [FOLDER / f"{name}.csv" for name in ("north", "south", "west")]
NAMES = ("age", "dose", "weight")


def by_hand() -> Any:
    """Return the model of all rows, with a level of each hospital, as docs/formulas.md has it."""
    tables = [pd.read_csv(file) for file in FILES]
    hospital = np.repeat(np.arange(3), [len(table) for table in tables])
    rows = pd.concat(tables)
    x, y = rows[list(NAMES)].to_numpy(), rows["ill"].to_numpy()
    means, sds = x.mean(axis=0), x.std(axis=0)

    def model() -> None:
        beta = numpyro.sample("coefficients", dist.Normal(0, 2.5 / sds).to_event(1))
        a = numpyro.sample("a", dist.Normal(0, 2.5))
        # a half t by its logarithm: so it is sampled in the same units
        x0 = numpyro.sample("log_sd", dist.ImproperUniform(dist.constraints.real, (), ()))
        tau = jnp.exp(x0)
        numpyro.factor("prior", dist.StudentT(3, 0, 2.5).log_prob(tau) + x0)
        z = numpyro.sample("z", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.deterministic("intercept", a - beta @ means)
        eta = a + (x - means) @ beta + tau * z[hospital]
        numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)

    return model


def test_three_hospitals_have_the_posterior_of_nuts_and_a_good_verdict(x64: None) -> None:
    made = consortia.regression(
        f"ill ~ {' + '.join(NAMES)} + (1 | site)", FILES, family="bernoulli", integrate=True
    )
    tree = consortia.sample(
        made.model,
        made.sites,
        consortia.few_rounds(effective_size=4000),
        chains=4,
        seed=1,
        metadata=made.metadata,
        progress=False,
    )
    assert consortia.summary(tree).verdict.word == "good"
    assert "handed_over" not in tree.attrs
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        kernel = numpyro.infer.NUTS(by_hand(), target_accept_prob=0.95)
        mcmc = numpyro.infer.MCMC(
            kernel,
            num_warmup=1000,
            num_samples=4000,
            num_chains=4,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(jax.random.key(0), init_params=None)
    reference = mcmc.get_samples()
    found = made.natural(tree)
    draws = {
        "coefficients": np.asarray(found["coefficients"]).reshape(-1, 3),
        "intercept": np.asarray(found["intercept"]).reshape(-1, 1),
        "log_sd": np.log(np.asarray(found["sd"])).reshape(-1, 1),
    }
    for name, own in draws.items():
        wanted = np.asarray(reference[name]).reshape(len(reference[name]), -1)
        sd = wanted.std(axis=0)
        # Some 4,000 effective draws of both: the difference of means has a standard error of .022
        # sd. The intercept has tails like a t with five degrees of freedom, which cost its sd most.
        shift = (own.mean(axis=0) - wanted.mean(axis=0)) / sd
        assert np.abs(shift).max() < 0.08, (name, shift)
        np.testing.assert_allclose(own.std(axis=0), sd, rtol=0.1, err_msg=name)
