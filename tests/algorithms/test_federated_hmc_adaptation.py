"""What is learned in the warm-up: step size, scales, the widest direction."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia.dynamics import adaptation, metropolis

SD = np.array([1e-3, 1.0, 50.0])


def scales_after(draws, gradients):
    state = adaptation.Scales.start(jnp.zeros(draws.shape[1]))
    add = jax.jit(adaptation.Scales.add)
    for theta, gradient in zip(draws, gradients, strict=True):
        state = add(state, jnp.asarray(theta, jnp.float32), jnp.asarray(gradient, jnp.float32))
    return state


def test_the_scales_of_independent_coordinates_are_right_from_five_draws():
    rng = np.random.default_rng(0)
    draws = 10 + SD * rng.normal(size=(5, 3))
    closed = scales_after(draws, (draws - 10) / SD**2).closed(learn_variance=True)
    # Var θ / Var g is σ⁴ for any sample, up to rounding of θ, 1e-6 of whose 10 is 1 % of σ.
    np.testing.assert_allclose(np.sqrt(closed.variance), SD, rtol=0.02)
    assert float(closed.draws) == 0


def test_the_widest_direction_is_measured_in_units_of_the_scales():
    rng = np.random.default_rng(1)
    correlation = np.full((4, 4), 0.9) + 0.1 * np.eye(4)  # largest eigenvalue 3.7
    draws = 5 + rng.normal(size=(400, 4)) @ np.linalg.cholesky(correlation).T
    closed = scales_after(draws, np.zeros_like(draws)).closed(learn_variance=False)
    # 400 draws know a variance within 7 %; the component also has to be found.
    assert float(closed.widest) == pytest.approx(3.7, rel=0.25)
    np.testing.assert_array_equal(closed.variance, np.ones(4))


def test_where_the_chain_begins_does_not_count_as_a_direction():
    rng = np.random.default_rng(2)
    near = rng.normal(size=(50, 2))
    widths = [
        float(scales_after(near + shift, np.zeros((50, 2))).closed(learn_variance=False).widest)
        for shift in (0.0, 100.0)
    ]
    assert widths[1] == pytest.approx(widths[0], rel=1e-2)


def test_a_chain_that_stood_still_keeps_its_scales():
    still = np.ones((10, 3))
    closed = scales_after(still, still).closed(learn_variance=True)
    np.testing.assert_array_equal(closed.variance, np.ones(3))
    assert float(closed.widest) == 1


def test_dual_averaging_finds_the_step_with_the_rate_wanted():
    rng = np.random.default_rng(3)
    state = adaptation.StepSize.start(jnp.log(jnp.float32(30.0)))
    update = jax.jit(adaptation.StepSize.update, static_argnums=2)
    for _ in range(500):
        rate = np.clip(np.exp(-np.exp(float(state.logarithm))) + 0.1 * rng.normal(), 0, 1)
        state = update(state, jnp.float32(rate), 0.8)
    # Cutting the noise at 1 moves the rate by some hundredths.
    assert np.exp(-float(jnp.exp(state.average))) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("warmup", [0, 1, 7, 20, 100, 12345])
def test_windows_close_in_order_within_the_warm_up(warmup):
    ends = np.asarray(adaptation.edges(jnp.int32(warmup)))
    assert np.all(np.diff(ends) >= 0)
    assert ends[-1] <= warmup


def learned(iteration, warmup=100):
    start = adaptation.Adaptation(
        adaptation.StepSize.start(jnp.zeros(())),
        adaptation.Scales.start(jnp.zeros(2)),
        jnp.zeros(()),
        jnp.zeros(()),
    )
    after = adaptation.learned(
        start, jnp.int32(iteration), jnp.int32(warmup), jnp.float32(0.5), jnp.ones(2), jnp.ones(2),
        wanted=0.8, learn_variance=True,
    )  # fmt: skip
    return start, after


def test_nothing_is_learned_after_the_warm_up():
    start, after = learned(100)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), start, after))
    start, after = learned(99)
    assert after.step.logarithm != start.step.logarithm


@pytest.mark.parametrize(("iteration", "counts"), [(3, 0), (20, 1), (89, 0), (95, 0)])
def test_draws_count_between_the_way_in_and_the_last_window(iteration, counts):
    # At 89 the window closes.
    assert int(learned(iteration)[1].scales.draws) == counts


def test_jittered_steps_fill_their_range_evenly():
    iterations = jnp.arange(10_000, dtype=jnp.int32)
    steps = np.asarray(metropolis.jittered_steps(iterations, jnp.float32(10.0), 0.5))
    values, counts = np.unique(steps, return_counts=True)
    np.testing.assert_array_equal(values, [6, 7, 8, 9, 10])
    # A Weyl sequence is even up to a few members.
    assert np.all(np.abs(counts - 2000) < 10)
    assert np.all(np.asarray(metropolis.jittered_steps(iterations, jnp.float32(7.0), 0.0)) == 7)
