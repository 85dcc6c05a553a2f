"""Gradient oracles: exact, minibatch, noisy and with a control variate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia import gradients
from consortia.core import random
from consortia.core.contract import Site
from consortia.core.target import Target

pytestmark = pytest.mark.usefixtures("x64")

ROWS, FEATURES, PRIOR_SCALE = 6, 3, 2.0
WEIGHT, SHARE = 0.3, 0.2
THETA = np.array([0.4, -1.1, 0.8])
ANCHOR = np.array([-0.2, 0.5, 1.5])


def logistic() -> tuple[Target, Site, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(ROWS, FEATURES)), rng.integers(0, 2, ROWS)
    model = consortia.models.logistic_regression(FEATURES, prior_scale=PRIOR_SCALE)
    target = Target(model, jax.tree.map(jnp.asarray, model.init))
    data = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
    site = Site(data, jnp.int32(ROWS), jnp.asarray(WEIGHT), jnp.asarray(SHARE))
    return target, site, x, y


def by_hand(x: np.ndarray, y: np.ndarray, theta: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """∇U_c of logistic regression: Σ_i x_i (σ(x_i'θ) − y_i), scaled, + λ_c θ / s²."""
    residual = 1 / (1 + np.exp(-x @ theta)) - y
    return scale * x.T @ residual + SHARE * theta / PRIOR_SCALE**2


def test_the_exact_gradient_is_the_textbooks() -> None:
    target, site, x, y = logistic()
    made = jax.jit(gradients.exact(target).bind(site))((), jnp.asarray(THETA))
    np.testing.assert_allclose(made, by_hand(x, y, THETA), rtol=1e-12)


def test_the_exact_oracle_asks_for_no_numbers() -> None:
    target, site, _, _ = logistic()
    oracle = gradients.exact(target)
    rng = random.RandomStreams(0, 0)
    assert oracle.prepare(oracle.numbers(rng, "first", (4, 1)), site) == ()
    assert rng.used == 0
    assert oracle.deterministic


@pytest.mark.parametrize("rows", [[[2]], [[0, 5]], [[1, 1], [4, 0]]])
def test_a_minibatch_gradient_is_the_rescaled_sum_over_its_rows(rows: list[list[int]]) -> None:
    target, site, x, y = logistic()
    index = np.array(rows)
    evaluate = jax.jit(gradients.minibatch(target, index.shape[1]).bind(site))
    made = evaluate(jnp.asarray(index, jnp.int32), jnp.asarray(THETA))
    flat = index.reshape(-1)
    expected = by_hand(x[flat], y[flat], THETA, scale=ROWS / flat.size)
    np.testing.assert_allclose(made, expected, rtol=1e-12)


@pytest.mark.parametrize("replace", [True, False])
def test_row_numbers_are_made_from_the_declared_words(replace: bool) -> None:
    target, site, _, _ = logistic()
    oracle = gradients.minibatch(target, 4, replace=replace)
    words = jax.random.bits(jax.random.key(0), (40,), jnp.uint32)
    rng = random.RandomStreams(0, 0, words)
    declared = oracle.numbers(rng, "inner", (5, 2))
    assert declared.shape == (5, 2, 4)
    rows = np.asarray(oracle.prepare(declared, site))
    if replace:
        expected = [[int(word) * ROWS // 2**32 for word in row] for row in words.reshape(-1, 4)]
        np.testing.assert_array_equal(rows.reshape(-1, 4), expected)
    else:
        assert all(len(set(row)) == 4 for row in rows.reshape(-1, 4).tolist())
        assert set(rows.reshape(-1).tolist()) == set(range(ROWS))


def test_two_streams_of_one_oracle_are_different_numbers() -> None:
    target, _, _, _ = logistic()
    oracle = gradients.noisy(gradients.minibatch(target, 4), 2.0, FEATURES)

    def declare(rng: random.RandomStreams) -> Any:
        return oracle.numbers(rng, "first", (1, 1)), oracle.numbers(rng, "inner", (1, 1))

    key = random.phase_key(random.base_key(0), 0, 0)
    first, inner = jax.jit(lambda key: random.declared(declare, key, 0, 0, None))(key)
    for one, two in zip(first, inner, strict=True):
        assert not np.any(np.asarray(one) == np.asarray(two))


# --- noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("draws", [1, 2])
def test_noise_of_a_stated_variance_is_in_the_units_of_the_weighted_potential(draws: int) -> None:
    # f_c = U_c / w_c, so a standard deviation of 3 of ∇f_c is 3 w_c of ∇U_c; draws are averaged.
    target, site, x, y = logistic()
    oracle = gradients.noisy(gradients.exact(target), 9.0, FEATURES)
    normal = np.arange(1.0, 1 + draws * FEATURES).reshape(draws, FEATURES)
    prepared = oracle.prepare(((), jnp.asarray(normal)), site)
    made = np.asarray(jax.jit(oracle.bind(site))(prepared, jnp.asarray(THETA)))
    expected = by_hand(x, y, THETA) / WEIGHT + 3 * normal.mean(axis=0)
    np.testing.assert_allclose(made / WEIGHT, expected, rtol=1e-12)


@pytest.mark.parametrize("draws", [1, 2])
def test_the_measured_variance_of_the_noise_is_the_stated_one(draws: int) -> None:
    target, site, _, _ = logistic()
    oracle = gradients.noisy(gradients.exact(target), 9.0, FEATURES)
    count = 40_000
    key = random.phase_key(random.base_key(0), 0, 0)

    def declare(rng: random.RandomStreams) -> Any:
        return oracle.numbers(rng, "first", (count, draws))

    drawn = jax.jit(lambda key: random.declared(declare, key, 0, 0, None))(key)
    prepared = oracle.prepare(drawn, site)
    evaluate = jax.vmap(oracle.bind(site), ((((), 0)), None))
    values = np.asarray(jax.jit(evaluate)(prepared, jnp.asarray(THETA))) / WEIGHT
    ratio = values.var(axis=0) / (9.0 / draws)
    # 4.5 standard errors of a variance, √(2/n); the coordinates are three more chances.
    assert np.all(np.abs(ratio - 1) < 4.5 * np.sqrt(2 / count))
    assert np.all(np.abs(1.1**2 * ratio - 1) > 4.5 * np.sqrt(2 / count))  # noise × 1.1 must fail


def test_noise_leaves_no_gradient_deterministic() -> None:
    target, _, _, _ = logistic()
    assert not gradients.noisy(gradients.exact(target), 1.0, FEATURES).deterministic
    assert not gradients.minibatch(target, 2).deterministic


# --- control variates ----------------------------------------------------------------------------


def corrected(oracle: gradients.GradientOracle, active: bool = True) -> gradients.GradientOracle:
    _, _, x, y = logistic()
    at_anchor = jnp.asarray(by_hand(x, y, ANCHOR))
    replacement = jnp.asarray([10.0, 20.0, 30.0])
    flag = jnp.asarray(active)
    return gradients.control_variate(oracle, jnp.asarray(ANCHOR), at_anchor, replacement, flag)


def test_a_control_variate_takes_the_same_rows_at_both_points() -> None:
    target, site, x, y = logistic()
    rows = jnp.asarray([[4, 1]], jnp.int32)
    evaluate = jax.jit(corrected(gradients.minibatch(target, 2)).bind(site))
    made = evaluate(rows, jnp.asarray(THETA))
    flat = np.array([4, 1])
    at_theta = by_hand(x[flat], y[flat], THETA, scale=ROWS / 2)
    at_anchor = by_hand(x[flat], y[flat], ANCHOR, scale=ROWS / 2)
    expected = at_theta - at_anchor + np.array([10.0, 20.0, 30.0])
    np.testing.assert_allclose(made, expected, rtol=1e-12)


@pytest.mark.parametrize("row", range(ROWS))
def test_at_the_anchor_a_control_variate_is_the_replacement_whatever_the_rows(row: int) -> None:
    target, site, _, _ = logistic()
    evaluate = jax.jit(corrected(gradients.minibatch(target, 1)).bind(site))
    made = evaluate(jnp.asarray([[row]], jnp.int32), jnp.asarray(ANCHOR))
    np.testing.assert_allclose(made, [10.0, 20.0, 30.0], rtol=1e-13)


def test_an_exact_gradient_uses_the_stored_value_at_the_anchor() -> None:
    target, site, x, y = logistic()
    evaluate = jax.jit(corrected(gradients.exact(target)).bind(site))
    made = evaluate((), jnp.asarray(THETA))
    expected = by_hand(x, y, THETA) - by_hand(x, y, ANCHOR) + np.array([10.0, 20.0, 30.0])
    np.testing.assert_allclose(made, expected, rtol=1e-12)
    # It is the stored value, and no second evaluation, that is subtracted.
    other = gradients.control_variate(
        gradients.exact(target), jnp.asarray(ANCHOR), jnp.zeros(3), jnp.zeros(3), jnp.asarray(True)
    )
    np.testing.assert_allclose(
        jax.jit(other.bind(site))((), jnp.asarray(THETA)), by_hand(x, y, THETA), rtol=1e-12
    )


def test_without_an_anchor_the_oracle_is_left_as_it_is() -> None:
    target, site, _, _ = logistic()
    oracle = gradients.minibatch(target, 2)
    rows = jnp.asarray([[4, 1]], jnp.int32)
    made = jax.jit(corrected(oracle, active=False).bind(site))(rows, jnp.asarray(THETA))
    np.testing.assert_array_equal(made, jax.jit(oracle.bind(site))(rows, jnp.asarray(THETA)))


def test_averaged_over_all_rows_a_control_variate_adds_the_replacement_without_bias() -> None:
    target, site, x, y = logistic()
    evaluate = jax.jit(corrected(gradients.minibatch(target, 1)).bind(site))
    every = jnp.arange(ROWS, dtype=jnp.int32)[:, None, None]
    made = jax.jit(jax.vmap(evaluate, (0, None)))(every, jnp.asarray(THETA))
    expected = by_hand(x, y, THETA) - by_hand(x, y, ANCHOR) + np.array([10.0, 20.0, 30.0])
    np.testing.assert_allclose(np.mean(made, axis=0), expected, rtol=1e-12)


def test_noise_around_a_control_variate_is_added_once() -> None:
    target, site, x, y = logistic()
    oracle = gradients.noisy(corrected(gradients.exact(target)), 9.0, FEATURES)
    normal = np.array([[1.0, -2.0, 3.0]])
    prepared = oracle.prepare(((), jnp.asarray(normal)), site)
    made = jax.jit(oracle.bind(site))(prepared, jnp.asarray(THETA))
    force = by_hand(x, y, THETA) - by_hand(x, y, ANCHOR) + np.array([10.0, 20.0, 30.0])
    np.testing.assert_allclose(made, force + 3 * WEIGHT * normal[0], rtol=1e-12)
