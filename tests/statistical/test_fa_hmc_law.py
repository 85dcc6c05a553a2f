"""FA-HMC against its predicted law on Gaussian sites: biased where the law says so.

Each gate compares the mean and the variance of 4,000 chains after 60 rounds with the exact law of
the discrete algorithm, within 4.5 standard errors: over the 14 comparisons of this file a correct
sampler fails once in about 10⁴ runs. Beside them stand controls that must fail the same gate.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.oracles import fa_hmc_law

CHAINS, ROUNDS, GATE = 4000, 60, 4.5
MEANS = np.array([0.0, 3.0, -1.0])
CURVATURES = np.array([1.0, 2.0, 0.5])
WEIGHTS = np.array([0.2, 0.5, 0.3])

# The prior is so flat that it does not count; f_c = U_c / w_c has the curvatures above.
MODEL = consortia.Model(
    lambda theta: -1e-12 * jnp.sum(theta**2),
    lambda theta, rows: -0.5 * rows["curvature"] * (theta[0] - rows["mean"]) ** 2,
    jnp.zeros(1),
)


@pytest.fixture(scope="module")
def sites():
    return consortia.Sites.from_list(
        [
            {"curvature": np.array([w * c]), "mean": np.array([m])}
            for w, c, m in zip(WEIGHTS, CURVATURES, MEANS, strict=True)
        ]
    )


def deviations(sites, settings, *, law_settings=None, law_weights=WEIGHTS, **run):
    """Standard errors by which mean and variance of the chains miss the law."""
    algorithm = consortia.fa_hmc(**settings, **run, weights=WEIGHTS)
    tree = consortia.sample(
        MODEL, sites, algorithm, rounds=ROUNDS, thin=ROUNDS, chains=CHAINS, seed=3, progress=False
    )
    draws = np.asarray(tree["posterior"]["theta"], np.float64)[:, 0, 0]
    law = fa_hmc_law(MEANS, CURVATURES, law_weights, **(law_settings or settings))
    mean, variance = law.after(ROUNDS, 0.0).mean[0], law.after(ROUNDS, 0.0).variance[0]
    return (
        (draws.mean() - mean) / np.sqrt(variance / CHAINS),
        (draws.var() / variance - 1) / np.sqrt(2 / CHAINS),
        law,
    )


SETTINGS = {
    "K=5, T=10, rho=1": {"step_size": 0.1, "leapfrog_steps": 5, "local_steps": 10},
    "K=5, T=10, rho=.3": {
        "step_size": 0.1, "leapfrog_steps": 5, "local_steps": 10, "momentum_correlation": 0.3,
    },
    "K=1, T=5, rho=0": {
        "step_size": 0.3, "leapfrog_steps": 1, "local_steps": 5, "momentum_correlation": 0.0,
    },
    "two noisy draws": {
        "step_size": 0.2, "leapfrog_steps": 5, "local_steps": 4, "momentum_correlation": 0.5,
        "gradient_noise": 3.0,
    },
    "one noisy draw": {
        "step_size": 0.2, "leapfrog_steps": 5, "local_steps": 4, "gradient_noise": 3.0,
        "gradient_draws": 1,
    },
    "mass and temperature": {
        "step_size": 0.3, "leapfrog_steps": 3, "local_steps": 3, "mass_matrix": [2.0],
        "temperature": 1.7,
    },
}  # fmt: skip


LONG = ("K=5, T=10, rho=1", "K=1, T=5, rho=0", "two noisy draws")
"""Settings whose 4,000 chains take longest."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in SETTINGS]
)
def test_mean_and_variance_are_those_of_the_predicted_law(sites, name):
    z_mean, z_variance, _ = deviations(sites, SETTINGS[name])
    assert abs(z_mean) < GATE
    assert abs(z_variance) < GATE


def test_the_debiased_variant_has_no_bias_where_fa_hmc_has_twenty_standard_errors(sites):
    settings = SETTINGS["K=5, T=10, rho=.3"]
    plain = fa_hmc_law(MEANS, CURVATURES, WEIGHTS, **settings)
    error = np.sqrt(plain.stationary.variance[0] / CHAINS)
    assert abs(plain.stationary.bias[0]) > 20 * error
    z_mean, z_variance, law = deviations(sites, settings | {"debias": True})
    assert abs(law.stationary.bias[0]) < 1e-9
    assert abs(z_mean) < GATE
    assert abs(z_variance) < GATE


def test_noise_a_tenth_too_large_fails_the_gate(sites):
    settings = SETTINGS["K=5, T=10, rho=1"]
    _, z_variance, _ = deviations(sites, settings, temperature=1.21)
    assert abs(z_variance) > GATE


def test_the_law_of_other_weights_fails_the_gate(sites):
    settings = SETTINGS["K=5, T=10, rho=1"]
    z_mean, _, _ = deviations(sites, settings, law_weights=np.array([0.3, 0.4, 0.3]))
    assert abs(z_mean) > GATE


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("debias", [False, True])
def test_without_momentum_the_mean_follows_the_exact_map_to_1e_8(sites, debias):
    settings = SETTINGS["K=5, T=10, rho=1"] | {"debias": debias}
    algorithm = consortia.fa_hmc(**settings, temperature=0.0, weights=WEIGHTS)
    init = {"chains": 1, "rounds": 6, "init": jnp.full(1, -2.0), "progress": False}
    tree = consortia.sample(MODEL, sites, algorithm, **init)
    law = fa_hmc_law(MEANS, CURVATURES, WEIGHTS, **settings)
    expected = [law.after(rounds, -2.0).mean[0] for rounds in range(1, 7)]
    # 1e-9 is what the prior of curvature 2e-12 can move.
    np.testing.assert_allclose(tree["posterior"]["theta"][0, :, 0], expected, rtol=1e-8)
