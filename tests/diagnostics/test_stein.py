"""The kernel Stein discrepancy: its kernel, its level, and what it must see."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia.diagnostics.stein import Stein, kernel_stein, stein_kernel
from tests.refusals import refused

PRECISION = np.linalg.inv([[2.0, 0.8], [0.8, 0.5]])


def p_values(shift: float, scale: float, seeds: int = 20) -> np.ndarray:
    """Of 500 normal draws each, ``shift`` and ``scale`` off in standard deviations."""
    root = np.linalg.cholesky(np.linalg.inv(PRECISION))
    found = []
    for seed in range(seeds):
        normal = np.random.default_rng(seed).normal(size=(500, 2))
        points = (scale * normal + [shift, 0]) @ root.T
        found.append(kernel_stein(points, -points @ PRECISION).p_value)
    return np.array(found)


@pytest.mark.usefixtures("x64")
def test_the_kernel_is_the_one_that_its_derivatives_give():
    rng = np.random.default_rng(0)
    x, s = rng.normal(size=(2, 5, 3))

    def k(a, b):
        return (1 + jnp.sum((a - b) ** 2) / 3) ** -0.5

    def direct(i: int, j: int) -> float:
        first, second = jax.grad(k, 0), jax.grad(k, 1)
        trace = jnp.trace(jax.jacobian(first, 1)(x[i], x[j]))
        value = s[i] @ s[j] * k(x[i], x[j]) + s[i] @ second(x[i], x[j]) + s[j] @ first(x[i], x[j])
        return float(value + trace)

    expected = [[direct(i, j) for j in range(5)] for i in range(5)]
    np.testing.assert_allclose(stein_kernel(x, s), expected, atol=1e-12)


def test_draws_of_the_density_itself_are_seldom_called_wrong():
    # Of 20 p-values below .05 with chance .05 each, more than 4 have a chance of .003.
    found = p_values(0.0, 1.0)
    assert (found < 0.05).sum() <= 4
    assert (found <= 0.01).sum() <= 1
    assert 0.2 < np.median(found) < 0.8


@pytest.mark.parametrize(("shift", "scale"), [(0.3, 1.0), (0.0, 1.25), (0.0, 0.8)])
def test_draws_that_are_off_are_called_wrong(shift, scale):
    assert (p_values(shift, scale, 8) <= 0.01).all()


def test_what_cannot_be_compared_is_refused():
    points = np.random.default_rng(0).normal(size=(100, 2))
    for wrong, argument, match in (
        ((points[:20], points[:20]), "points", "20 draws"),
        ((points, points[:, :1]), "scores", r"\(100, 1\)"),
        ((points, points * np.nan), "scores", "not finite"),
        ((points * [1, 0], points), "points", "constant"),
    ):
        with refused(argument=argument, match=match):
            kernel_stein(*wrong)


def test_a_discrepancy_comes_back_as_it_was():
    found = Stein(0.1, 0.2, 0.5, 500)
    assert Stein.read(found.plain()) == found
