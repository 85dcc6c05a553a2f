"""The network against a forward pass and a backward pass written by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from consortia import fa_hmc, sample
from consortia.data import partition
from consortia.models import mlp
from tests.refusals import refused

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(11, 4))
Y = GENERATOR.integers(0, 3, 11)
BATCH = {"x": X, "y": Y}
WIDTHS = (4, 6, 5, 3)
VALUES = {
    name: GENERATOR.normal(size=shape)
    for i in (1, 2, 3)
    for name, shape in (
        (f"weights_{i}", (WIDTHS[i], WIDTHS[i - 1])),
        (f"biases_{i}", (WIDTHS[i],)),
    )
}


def network() -> Any:
    return mlp(4, hidden=(6, 5), classes=3, prior_scale=2.0)


def parameters() -> dict[str, jax.Array]:
    return {name: jnp.asarray(value) for name, value in VALUES.items()}


def forward() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    first = np.maximum(X @ VALUES["weights_1"].T + VALUES["biases_1"], 0)
    second = np.maximum(first @ VALUES["weights_2"].T + VALUES["biases_2"], 0)
    return first, second, second @ VALUES["weights_3"].T + VALUES["biases_3"]


def test_the_density_is_the_categorical_one_of_the_forward_pass(x64: None) -> None:
    expected = scipy.special.log_softmax(forward()[2], axis=1)[np.arange(11), Y]
    np.testing.assert_allclose(
        network().log_likelihood(parameters(), BATCH), expected, rtol=1e-11, atol=1e-13
    )


def test_the_prior_is_normalised_and_covers_weights_and_biases(x64: None) -> None:
    normal = scipy.stats.norm(0, 2)
    expected = sum(normal.logpdf(value).sum() for value in VALUES.values())
    np.testing.assert_allclose(network().log_prior(parameters()), expected, rtol=1e-12)


def test_gradients_equal_back_propagation_by_hand(x64: None) -> None:
    model = network()

    def total(p: Any) -> jax.Array:
        return jnp.sum(model.log_likelihood(p, BATCH)) + model.log_prior(p)

    gradient = jax.jit(jax.grad(total))(parameters())
    first, second, scores = forward()
    back_3 = np.eye(3)[Y] - scipy.special.softmax(scores, axis=1)
    back_2 = (back_3 @ VALUES["weights_3"]) * (second > 0)
    back_1 = (back_2 @ VALUES["weights_2"]) * (first > 0)
    for layer, (back, below) in enumerate(((back_1, X), (back_2, first), (back_3, second)), 1):
        for name, expected in (
            (f"weights_{layer}", back.T @ below - VALUES[f"weights_{layer}"] / 4),
            (f"biases_{layer}", back.sum(axis=0) - VALUES[f"biases_{layer}"] / 4),
        ):
            # 1e-10 of the largest entry: sums of 11 terms of order 10 in double precision
            np.testing.assert_allclose(
                gradient[name], expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max()
            )


def test_predictions_are_the_probabilities_in_the_order_of_the_classes(x64: None) -> None:
    expected = scipy.special.softmax(forward()[2], axis=1)
    np.testing.assert_allclose(network().predict(parameters(), BATCH), expected, rtol=1e-10)


def test_every_key_starts_elsewhere_with_the_spread_of_the_layer_below() -> None:
    model = mlp(200, hidden=(300, 100), classes=10)
    one, other = (model.init(jax.random.key(seed)) for seed in (0, 1))
    for layer, below in ((1, 200), (2, 300), (3, 100)):
        weights = np.asarray(one[f"weights_{layer}"])
        assert not np.allclose(weights, np.asarray(other[f"weights_{layer}"]))
        assert not one[f"biases_{layer}"].any()
        # the standard error of a spread is 1/sqrt(2 n), here 2.2 % for the least n of 1,000
        np.testing.assert_allclose(weights.std(), np.sqrt(2 / below), rtol=0.1)


def test_rows_of_any_width_give_the_density_in_the_type_of_the_parameters(x64: None) -> None:
    for dtype in (jnp.float32, jnp.float64):
        params = {name: value.astype(dtype) for name, value in parameters().items()}
        for x in (X, X.astype(np.float32), np.ones((11, 4), np.uint8)):
            value = jax.eval_shape(network().log_likelihood, params, {"x": x, "y": Y})
            assert (value.shape, value.dtype) == ((11,), dtype)
            assert jax.eval_shape(network().log_prior, params).dtype == dtype


@pytest.mark.parametrize(
    ("arguments", "argument", "match"),
    [
        ({"hidden": ()}, "hidden", "hidden is"),
        ({"hidden": 512}, "hidden", "hidden is 512"),
        ({"hidden": (8, 0)}, "hidden[1]", r"hidden\[1.*is 0"),
        ({"classes": 1}, "classes", "classes is 1"),
        ({"prior_scale": 0.0}, "prior_scale", "prior_scale is 0"),
    ],
)
def test_arguments_that_make_no_network_are_refused(
    arguments: Any, argument: str, match: str
) -> None:
    with refused(argument=argument, match=match):
        mlp(4, **arguments)


def test_rows_and_labels_that_do_not_fit_are_named() -> None:
    check = network().check
    assert "x has 3 columns" in check({"x": X[:, :3], "y": Y})
    assert "outside 0..2: 3" in check({"x": X, "y": np.full(11, 3)})
    assert check(BATCH) is None


def test_a_federated_sampler_learns_what_no_linear_classifier_can() -> None:
    generator = np.random.default_rng(1)
    x = generator.uniform(-1, 1, size=(400, 2)).astype(np.float32)
    rows = {"x": x, "y": (x[:, 0] * x[:, 1] > 0).astype(np.int32)}
    model = mlp(2, hidden=(16, 16), classes=2)
    tree = sample(
        model,
        partition.iid(rows, 4, seed=0),
        fa_hmc(0.02, 5, 5, batch_size=20),
        rounds=30,
        warmup=10,
        progress=False,
        chains=1,
    )
    draws = {name: np.asarray(array)[0] for name, array in tree["posterior"].data_vars.items()}
    probabilities = jax.vmap(lambda p: model.predict(p, rows))(draws).mean(axis=0)
    accuracy = float((np.asarray(probabilities).argmax(axis=1) == rows["y"]).mean())
    # the four quadrants alternate, so a line gets at most 3/4 of them and chance 1/2
    assert accuracy > 0.9
