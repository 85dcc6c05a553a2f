"""The PyTorch loop that MA-HMC is timed against tracks the same gradients and curvatures."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core.contract import Site
from consortia.core.target import Target

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("classes", [0, 10])
def test_its_gradients_and_products_are_the_librarys(
    monkeypatch: pytest.MonkeyPatch, classes: int
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import decentralized

    problem = decentralized.Problem.logistic(40) if classes else decentralized.Problem.linear()
    features = problem.x.shape[-1]
    model = (
        consortia.models.softmax_regression(features, classes)
        if classes
        else consortia.models.linear_regression(features)
    )
    rng = np.random.default_rng(1)
    theta, momenta = rng.normal(size=(2, 4, problem.dimension)).astype(np.float32) / 10
    found = decentralized.torch_trackers(
        decentralized.torch_potentials(problem), torch.from_numpy(theta), torch.from_numpy(momenta)
    )
    target = Target(model, jax.tree.map(jnp.asarray, model.init))
    share, mask = jnp.float32(0.25), jnp.ones(problem.x.shape[1], bool)
    for i in range(4):
        data = {"x": jnp.asarray(problem.x[i]), "y": jnp.asarray(problem.y[i])}
        site = Site(data, jnp.int32(len(mask)), share, share)

        def potential(position, data=data, site=site):
            return target.potential(position, data, mask, site)

        gradient, product = jax.jvp(
            jax.grad(potential), (jnp.asarray(theta[i]),), (jnp.asarray(momenta[i]),)
        )
        scale = float(jnp.abs(gradient).max())
        np.testing.assert_allclose(found[0][i], gradient, rtol=1e-4, atol=1e-4 * scale)
        assert float(found[1][i]) == pytest.approx(float(product @ momenta[i]), rel=1e-3)
