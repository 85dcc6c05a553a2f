"""The leapfrog integrator against the algorithm as it is printed, draw by draw."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia.dynamics import leapfrog

pytestmark = pytest.mark.usefixtures("x64")

D = 3
CURVATURE = np.array([[2.0, 0.4, 0.0], [0.4, 1.0, -0.3], [0.0, -0.3, 0.5]])


def field(position: Any, draw: Any) -> Any:
    """A stochastic gradient that is not linear: its numbers act where it is evaluated."""
    return CURVATURE @ position + 0.3 * np.sin(position) * draw + draw


def force(numbers: Any, position: Any) -> Any:
    """The average over the draws (draws, d) of one point."""
    each = [jnp.asarray(CURVATURE) @ position + 0.3 * jnp.sin(position) * n + n for n in numbers]
    return sum(each) / len(each)


def as_printed(
    position: np.ndarray, momentum: np.ndarray, eta: float, draws: list[np.ndarray], steps: int
) -> np.ndarray:
    """θ' = θ + ηp − (η²/2) g(θ, ξ_k);  p' = p − (η/2) [g(θ, ξ_k) + g(θ', ξ_{k+1/2})].

    ``draws`` are ξ_0, ξ_{1/2}, ξ_1, ξ_{3/2}, ..., ξ_{K-1}: 2K − 1 of them; the last half draw
    never reaches the position and is given as zero.
    """
    draws = [*draws, np.zeros(D)]
    for k in range(steps):
        start, end = draws[2 * k], draws[2 * k + 1]
        moved = position + eta * momentum - eta**2 / 2 * field(position, start)
        momentum = momentum - eta / 2 * (field(position, start) + field(moved, end))
        position = moved
    return position


def ours(
    position: np.ndarray, momentum: np.ndarray, eta: float, draws: list[np.ndarray], steps: int
) -> np.ndarray:
    first = jnp.asarray(draws[0])[None]
    # At an inner point the end draw of one step and the start draw of the next.
    inner = jnp.asarray(np.array(draws[1:]).reshape(steps - 1, 2, D))
    moved = leapfrog(
        force,
        jnp.asarray(position),
        jnp.asarray(momentum),
        jnp.asarray(eta),
        first,
        inner,
        steps - 1,
    )
    return np.asarray(moved)


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_leapfrog_is_the_printed_algorithm_with_2k_minus_1_draws(steps: int) -> None:
    rng = np.random.default_rng(steps)
    position, momentum = rng.normal(size=(2, D))
    draws = list(rng.normal(size=(2 * steps - 1, D)))
    made = ours(position, momentum, 0.31, draws, steps)
    np.testing.assert_allclose(
        made, as_printed(position, momentum, 0.31, draws, steps), rtol=0, atol=1e-12
    )


def test_one_step_more_or_a_drift_of_eta_squared_would_be_seen() -> None:
    # The negative controls: the misprint k <= K, and a kick of η where η/2 belongs.
    rng = np.random.default_rng(0)
    position, momentum = rng.normal(size=(2, D))
    draws = list(rng.normal(size=(5, D)))
    made = ours(position, momentum, 0.31, draws, 3)
    longer = as_printed(position, momentum, 0.31, [*draws, np.zeros(D), np.zeros(D)], 4)
    assert np.abs(made - longer).max() > 1e-2
    doubled = position + 0.31 * momentum - 0.31**2 * field(position, draws[0])
    single = ours(position, momentum, 0.31, draws[:1], 1)
    assert np.abs(single - doubled).max() > 1e-2


def test_one_draw_a_point_is_two_equal_draws() -> None:
    rng = np.random.default_rng(4)
    position, momentum = rng.normal(size=(2, D))
    points = rng.normal(size=(4, D))
    twice = [points[0], *np.repeat(points[1:], 2, axis=0)]
    once = leapfrog(
        force,
        jnp.asarray(position),
        jnp.asarray(momentum),
        jnp.asarray(0.2),
        jnp.asarray(points[:1]),
        jnp.asarray(points[1:, None]),
        3,
    )
    expected = as_printed(position, momentum, 0.2, twice, 4)
    np.testing.assert_allclose(once, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 4, 25])
def test_on_a_quadratic_the_answer_is_a_rotation(steps: int) -> None:
    # cos φ = 1 − η²λ/2; x_K = cos(Kφ) x + sin(Kφ) / (√λ √(1 − η²λ/4)) p.
    eta, curvature = 0.4, 1.7
    phi = math.acos(1 - eta**2 * curvature / 2)
    answer = math.sin(steps * phi) / math.sqrt(curvature * (1 - eta**2 * curvature / 4))
    position, momentum = 0.8, -1.3
    inner = jnp.zeros((steps - 1, 1))
    made = leapfrog(
        lambda numbers, theta: curvature * theta,
        jnp.asarray([position]),
        jnp.asarray([momentum]),
        jnp.asarray(eta),
        jnp.zeros(1),
        inner,
        steps - 1,
    )
    expected = math.cos(steps * phi) * position + answer * momentum
    np.testing.assert_allclose(made, [expected], rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_k_steps_ask_for_k_gradients(steps: int) -> None:
    asked: list[int] = []

    def counted(numbers: Any, theta: Any) -> Any:
        jax.debug.callback(lambda: asked.append(1))
        return theta

    leapfrog(
        counted,
        jnp.ones(D),
        jnp.ones(D),
        jnp.asarray(0.1),
        jnp.zeros(1),
        jnp.zeros((steps - 1, 1)),
        steps - 1,
    )
    jax.effects_barrier()
    assert len(asked) == steps
