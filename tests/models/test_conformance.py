"""What every ready model must do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia.core.model import Model
from consortia.data import partition
from consortia.models import linear_regression, logistic_regression, softmax_regression

FEATURES = 5
MODELS: dict[str, Model] = {
    "linear": linear_regression(FEATURES),
    "linear, unknown noise": linear_regression(FEATURES, noise_scale=None, intercept=True),
    "logistic": logistic_regression(FEATURES),
    "logistic, intercept": logistic_regression(FEATURES, intercept=True, intercept_scale=3.0),
    "softmax": softmax_regression(FEATURES, 2),
    "softmax, intercept": softmax_regression(FEATURES, 2, intercept=True),
}


def rows(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        "x": generator.normal(size=(count, FEATURES)),
        "y": generator.integers(0, 2, count),
    }


def some_parameters(model: Model, seed: int = 1) -> Any:
    generator = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(generator.normal(size=leaf.shape)), model.init)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [1, 2, 17])
def test_the_density_has_one_value_per_row(name: str, count: int) -> None:
    model = MODELS[name]
    params = some_parameters(model)
    assert jax.eval_shape(model.log_likelihood, params, rows(count)).shape == (count,)
    assert model.log_prior is not None
    assert jax.eval_shape(model.log_prior, params).shape == ()
    assert model.predict is not None
    assert jax.eval_shape(model.predict, params, rows(count)).shape[:1] == (count,)


@pytest.mark.parametrize("name", MODELS)
def test_the_start_is_zero_in_a_floating_type(name: str) -> None:
    leaves = jax.tree.leaves(MODELS[name].init)
    assert leaves
    assert all(leaf.dtype == np.float32 and not leaf.any() for leaf in leaves)


@pytest.mark.parametrize("name", MODELS)
def test_the_sites_potentials_add_up_to_the_pooled_one(name: str, x64: None) -> None:
    model = MODELS[name]
    sites = partition.quantity(rows(200), 3, exponent=1.0, seed=3)
    assert len(set(sites.sizes.tolist())) == 3
    shares = sites.sizes / sites.rows

    def potential(params: Any, data: Any, share: float) -> jax.Array:
        return -jnp.sum(model.log_likelihood(params, data)) - share * model.log_prior(params)

    value_and_gradient = jax.jit(jax.value_and_grad(potential))
    params = some_parameters(model)
    value, gradient = value_and_gradient(params, sites.pooled(), 1.0)
    parts = [
        value_and_gradient(params, shard, share)
        for shard, share in zip(sites.shards, shares, strict=True)
    ]
    # 1e-10 of the largest term leaves room for the rounding of 200 additions and no more.
    np.testing.assert_allclose(sum(part[0] for part in parts), value, rtol=1e-10)
    total = jax.tree.map(lambda *leaves: sum(leaves), *[part[1] for part in parts])
    for name_of, leaf in gradient.items():
        scale = float(jnp.max(jnp.abs(leaf)))
        np.testing.assert_allclose(total[name_of], leaf, rtol=1e-10, atol=1e-10 * scale)


@pytest.mark.parametrize("name", MODELS)
def test_chains_at_once_equal_chains_alone_on_narrow_rows(name: str) -> None:
    model = MODELS[name]
    batch = {
        "x": np.random.default_rng(0).integers(0, 4, (9, FEATURES)).astype(np.uint8),
        "y": rows(9)["y"].astype(np.uint8),
    }
    chains = [some_parameters(model, seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *chains)
    index = jnp.asarray([[0, 1, 2, 3], [4, 4, 5, 8], [7, 7, 7, 7]], jnp.int32)

    def total(params: Any, chosen: jax.Array) -> jax.Array:
        data = jax.tree.map(lambda leaf: jnp.asarray(leaf)[chosen], batch)
        return jnp.sum(model.log_likelihood(params, data)) + model.log_prior(params)

    together = jax.jit(jax.vmap(jax.grad(total)))(stacked, index)
    alone_of = jax.jit(jax.grad(total))
    for i, params in enumerate(chains):
        alone = alone_of(params, index[i])
        for key, leaf in alone.items():
            assert leaf.dtype == jnp.float32
            assert bool(jnp.isfinite(leaf).all())
            # Two compilations round differently: a few float32 ulps of sums of order 10.
            np.testing.assert_allclose(together[key][i], leaf, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_any_width_give_the_density_in_the_type_of_the_parameters(
    name: str, x64: None
) -> None:
    model, batch = MODELS[name], rows(4)
    for dtype in (jnp.float32, jnp.float64):
        params = jax.tree.map(lambda leaf, d=dtype: leaf.astype(d), some_parameters(model))
        for x in (batch["x"], batch["x"].astype(np.float32), np.ones((4, FEATURES), np.int8)):
            value = jax.eval_shape(model.log_likelihood, params, {"x": x, "y": batch["y"]})
            assert value.dtype == dtype
            assert jax.eval_shape(model.log_prior, params).dtype == dtype


@pytest.mark.parametrize("name", MODELS)
def test_right_rows_pass_the_check(name: str) -> None:
    check = MODELS[name].check
    assert check is not None
    assert check(rows(6)) is None
    assert check({**rows(6), "weight": np.ones(6)}) is None


WRONG = [
    ([np.ones(3)], "the data are a list"),
    ({"x": np.ones((3, FEATURES))}, "the key 'y' is missing (there are: x)"),
    ({"X": np.ones((3, FEATURES)), "y": np.zeros(3)}, "the key 'x' is missing"),
    ({"x": np.ones((3, 4)), "y": np.zeros(3)}, "x has 4 columns, but the model was made with feat"),
    ({"x": np.ones((3, 2, 2)), "y": np.zeros(3)}, "x has shape (3, 2, 2)"),
    ({"x": np.ones((3, FEATURES)), "y": np.zeros((3, 1))}, "y has shape (3, 1), not (3,)"),
    ({"x": np.ones((3, FEATURES), complex), "y": np.zeros(3)}, "x has type complex128"),
]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("batch", "message"), WRONG)
def test_wrong_rows_are_described(name: str, batch: Any, message: str) -> None:
    check = MODELS[name].check
    assert check is not None
    problem = check(batch)
    assert problem is not None
    assert message in problem
