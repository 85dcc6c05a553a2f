"""The affine recursion: its stationary law against SciPy's solution of Lyapunov's equation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

from consortia.errors import InputError
from consortia.theory.affine import AffineMap, AffineRecursion, operator_radius


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_stationary_covariance_solves_lyapunovs_equation(symmetric: bool) -> None:
    rng = np.random.default_rng(0)
    matrices, roots = rng.normal(size=(2, 3, 5, 5))
    if symmetric:
        matrices = matrices + matrices.mT
    radius = np.abs(np.linalg.eigvals(matrices)).max(axis=1)
    matrices *= (np.array([0.2, 0.9, 0.999]) / radius)[:, None, None]
    found = AffineMap(matrices, np.zeros((3, 5)), roots @ roots.mT).stationary_covariance()
    for matrix, root, covariance in zip(matrices, roots, found, strict=True):
        exact = solve_discrete_lyapunov(matrix, root @ root.T)
        # 1e-16 over 1 − .999, and some operations.
        np.testing.assert_allclose(covariance, exact, rtol=1e-10, atol=1e-10 * np.abs(exact).max())


@pytest.mark.parametrize("matrix", [np.diag([0.5, -1.0]), np.array([[0.0, 1.0], [-1.0, 0.0]])])
def test_a_radius_of_one_has_no_stationary_covariance(matrix: np.ndarray) -> None:
    with pytest.raises(InputError, match="spectral radius is one"):
        AffineMap(matrix, np.zeros(2), np.eye(2)).stationary_covariance()


@pytest.mark.parametrize("off", [-4e-16, -1e-15, 0.0, 1e-15])
def test_a_radius_of_one_to_rounding_is_not_stable(off: float) -> None:
    """A law that calls itself stable has a stationary law."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]

    def recursion(radius: float) -> AffineRecursion:
        matrix = turn @ np.diag([0.3, 0.5, -radius]) @ turn.T
        matrix[0, 1] += 1e-16  # as products round: not symmetric
        step = AffineMap(matrix[None], np.zeros((1, 3)), np.eye(3)[None])
        return AffineRecursion(step, step)

    assert not recursion(1 + off).stable
    assert recursion(1 - 1e-12).stable
    assert np.isfinite(recursion(1 - 1e-12).stationary().covariance).all()


def test_the_radius_of_a_large_map_is_that_of_its_padding() -> None:
    # Eight by eight is treated densely, nine by nine is not; the ninth never feeds the others.
    step = np.random.default_rng(0).uniform(0, 0.2, (8, 8))
    padded = np.pad(step, (0, 1))
    padded[8, 7] = 1.0
    dense, sparse = (
        operator_radius(lambda second, one=one: one @ second @ one.T, one.shape)
        for one in (step, padded)
    )
    assert dense == pytest.approx(np.abs(np.linalg.eigvals(step)).max() ** 2, rel=1e-12)
    assert sparse == pytest.approx(dense, abs=1e-7)
