"""Single precision, named where it is the reason why a run has failed."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln

import consortia
from consortia.core.start import starting_parameters
from consortia.errors import WarmupError
from consortia.models.regression.construction import regression
from consortia.run.checks import explain_precision

RNG = np.random.default_rng(0)
X = RNG.normal(size=200)


def explained(y: np.ndarray, family: str, *, x64: bool = False) -> str:
    with jax.enable_x64(x64):
        made = regression("y ~ x", {"a": {"y": y, "x": X}}, family=family)
        error = WarmupError("few_rounds: no family was reached. Give a proper prior.")
        start = starting_parameters(made.model, None, 0, 1)[0]
        explain_precision(error, made.model, made.rows, start)
    return str(error)


@pytest.mark.parametrize(
    ("y", "family", "said"),
    [
        (RNG.poisson(1e6 * np.exp(0.1 * X)), "poisson", "32 bits round the log-density by about"),
        (3e6 + RNG.normal(size=200), "gaussian", "32 bits round values of 'y'"),
    ],
)
def test_32_bits_are_named_where_they_are_the_reason(y, family, said):
    text = explained(y, family)
    assert text.startswith(f"few_rounds: no family was reached. The reason: {said}")
    assert "JAX_ENABLE_X64=1" in text
    assert "proper prior" not in text


@pytest.mark.parametrize(
    ("y", "family"),
    [(RNG.poisson(3 * np.exp(0.1 * X)), "poisson"), (60 + RNG.normal(size=200), "gaussian")],
)
def test_another_reason_stays_as_it_is(y, family):
    assert explained(y, family) == "few_rounds: no family was reached. Give a proper prior."


def differing(size: float, *, prior: bool = True) -> str:
    """Explain a failure where gammaln(y + k) - gammaln(k) is rounded, log k = size."""

    def log_likelihood(p, rows):
        k = jnp.exp(p["size"])
        return gammaln(rows["y"] + k) - gammaln(k) - rows["y"] * p["mean"]

    def log_prior(p):
        return -((p["mean"] / 2) ** 2) - (float(prior) * (p["size"] / 4) ** 2)

    start = {"mean": jnp.asarray(1.0), "size": jnp.asarray(size)}
    model = consortia.Model(log_prior, log_likelihood, start)
    sites = consortia.Sites.from_list([{"y": RNG.poisson(4.0, 60).astype(float)}])
    error = WarmupError("few_rounds: no family was reached. Give a proper prior.")
    explain_precision(error, model, sites, start)
    return str(error)


def test_parameters_without_a_prior_are_named_beside_rounding():
    """They were not: with 64 bits the posterior had no end as before."""
    assert "And give size a proper prior" in differing(17.0, prior=False)
    assert differing(17.0).endswith("(of gammaln as betaln).")
    assert differing(1.0).endswith("Give a proper prior.")


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_64_bits_are_the_remedy_of_rounded_counts(seed):
    """A ray of the exploration ended at a false peak, 17 standard deviations of the prior away."""
    code = (
        "import sys; from statistical.unseen import CASES, wrong; import consortia\n"
        "case = CASES['counts without overdispersion']()\n"
        "tree = case.run(int(sys.argv[1]))\n"
        "print(consortia.summary(tree).verdict.word, wrong(case, case.law(), tree))"
    )
    env = {**os.environ, "JAX_ENABLE_X64": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = [sys.executable, "-W", "ignore", "-c", code, seed]
    made = subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout
    assert made.strip() == "good []"


def test_with_64_bits_there_is_nothing_to_explain():
    y = 3e6 + RNG.normal(size=200)
    assert "proper prior" in explained(y, "gaussian", x64=True)
