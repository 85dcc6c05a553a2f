"""The affine recursion: its stationary law against SciPy's solution of Lyapunov's equation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

from consortia.errors import InputError
from consortia.theory.affine import AffineMap


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
