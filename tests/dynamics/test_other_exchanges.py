"""The dynamics of the asynchronous samplers serve other exchanges as they are."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia import gradients
from consortia.core.contract import Algorithm, Draws, Mean, Phase
from consortia.dynamics.stochastic_steps import EulerHMC, Langevin, SplittingHMC, Thermostat

pytestmark = pytest.mark.usefixtures("x64")

STEP, LOCAL_STEPS = 0.05, 3
CENTRES, SIZES = (0.0, 3.0, -1.0), np.array([4, 8, 4])


def federated_averaging(dynamics: Any, target: Any) -> Algorithm:
    """T steps of any dynamics at every site with numbers in common, then the weighted average."""
    oracle, h = gradients.exact(target), jnp.asarray(STEP, target.dtype)

    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        force, state = oracle.bind(site), inbox
        for normal in shared:
            gradient = force(oracle.prepare((), site), dynamics.point(state, h))
            state = dynamics.step(state, gradient / site.weight, normal, h)
        return (), state, {}

    def shared(rng: Any) -> Any:
        return rng.normal("noise", (LOCAL_STEPS, target.dimension))

    return Algorithm(
        lambda position: ((), (), dynamics.start(position)),
        (Phase(local, Mean(), shared=shared),),
        Draws(hub=lambda hub, inbox: inbox.position),
    )


MODEL = consortia.Model(
    lambda theta: -0.5 * jnp.sum(theta**2) / 16,
    lambda theta, rows: -0.5 * (rows["y"] - theta[0]) ** 2 / 4,
    jnp.zeros(1),
)
SITES = [{"y": np.full(n, centre)} for n, centre in zip(SIZES, CENTRES, strict=True)]


@pytest.mark.parametrize(
    "dynamics",
    [
        Langevin(1.0),
        EulerHMC(2.0, 1.0, 0.0),
        SplittingHMC(2.0, 1.0, 0.0),
        Thermostat(2.0, False, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_dynamics_runs_under_federated_averaging(dynamics: Any, method_around: Any) -> None:
    sites = consortia.Sites.from_list(SITES)
    method = method_around(partial(federated_averaging, dynamics))
    tree = consortia.sample(MODEL, sites, method, rounds=20, seed=2, progress=False, chains=1)
    made = np.asarray(tree.posterior.theta)[0, :, 0]

    # With one site that holds all rows and T steps a round the sampler is the plain one; with
    # equal curvatures of f_c the average of the sites is that same chain.
    pooled = consortia.Sites.from_list([{"y": np.concatenate([shard["y"] for shard in SITES])}])
    plain = consortia.sample(MODEL, pooled, method, rounds=20, seed=2, progress=False, chains=1)
    linear = not isinstance(dynamics, Thermostat)  # its friction depends on each site's own momenta
    expected = np.asarray(plain.posterior.theta)[0, :, 0]
    if linear:
        np.testing.assert_allclose(made, expected, rtol=0, atol=1e-11)
    else:
        np.testing.assert_allclose(made[0], expected[0], rtol=0, atol=0.05)
    assert np.std(made) > 1e-2
    assert jax.tree.leaves(tree.posterior.theta.values)[0].dtype == np.float64
