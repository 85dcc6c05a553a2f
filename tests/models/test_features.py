"""Features held with columns of zeros behind them: the same densities, and no other width."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.models._features import held_width
from tests.refusals import refused

FEATURES = 13
MODELS = {
    "linear": consortia.models.linear_regression(FEATURES, intercept=True),
    "logistic": consortia.models.logistic_regression(FEATURES),
    "softmax": consortia.models.softmax_regression(FEATURES, 3, intercept=True),
    "metric_learning": consortia.models.metric_learning(FEATURES),
}


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(20, FEATURES)) ** 2, "y": rng.integers(0, 2, 20)}


def with_site_axis(rows: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], rows)


@pytest.mark.parametrize(
    ("features", "width"), [(1, 1), (3, 3), (4, 8), (8, 8), (9, 16), (13, 16), (54, 56), (784, 784)]
)
def test_the_width_is_a_whole_number_of_vectors_or_left_alone(features: int, width: int) -> None:
    assert held_width(features) == width


@pytest.mark.parametrize("name", MODELS)
def test_density_and_gradient_are_those_of_the_rows_as_given(name: str, x64: None) -> None:
    model, rows = MODELS[name], batch()
    assert model.arrange is not None
    held = jax.tree.map(lambda leaf: leaf[0], model.arrange(with_site_axis(rows)))
    assert held["x"].shape == (20, 16)
    rng = np.random.default_rng(1)
    parameters = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), model.init)

    @jax.jit
    @jax.value_and_grad
    def value(parameters: Any, rows: Any) -> Any:
        return jnp.sum(jnp.sin(model.log_likelihood(parameters, rows)))  # each row counts

    # Sums of float64 in another order: the sines lose three or four of sixteen digits.
    plain, padded = (value(parameters, one) for one in (rows, held))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), plain, padded)


def test_another_width_is_refused() -> None:
    rows = batch()
    rows["x"] = np.concatenate([rows["x"], rows["x"][:, :1]], axis=1)
    model = MODELS["linear"]
    with refused(argument="x"):
        model.log_likelihood(model.init, rows)


def test_sites_are_held_in_the_arranged_form(x64: None) -> None:
    seen = []
    plain = MODELS["linear"]

    def log_likelihood(parameters: Any, rows: Any) -> Any:
        seen.append(rows["x"].shape[-1])
        return plain.log_likelihood(parameters, rows)

    model = consortia.Model(
        plain.log_prior, log_likelihood, plain.init, check=plain.check, arrange=plain.arrange
    )
    sites = consortia.Sites.from_list([batch(), batch()])
    method = consortia.fa_ld(step_size=1e-4, local_steps=2)
    consortia.sample(model, sites, method, rounds=2, seed=0, progress=False, chains=1)
    assert 16 in seen
