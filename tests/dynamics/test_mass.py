"""Mass matrices: the law of the velocity, the solve, and what is refused."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from consortia.dynamics import MassMatrix
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("x64")

DENSE = np.array([[2.0, 0.6, 0.1], [0.6, 1.0, -0.3], [0.1, -0.3, 0.5]])
DIAGONAL = np.array([4.0, 0.25, 1.5])


@pytest.mark.parametrize("matrix", [DENSE, DIAGONAL], ids=["dense", "diagonal"])
def test_the_velocity_has_the_covariance_of_the_inverse(matrix: np.ndarray) -> None:
    # v = Aξ has covariance AA'; the rows of velocity(1) are the columns of A.
    rows = np.asarray(MassMatrix.of(matrix).velocity(jnp.eye(3)))
    full = np.diag(matrix) if matrix.ndim == 1 else matrix
    np.testing.assert_allclose(rows.T @ rows, np.linalg.inv(full), rtol=0, atol=1e-12)
    assert np.abs(rows.T @ rows - full).max() > 0.1  # the mass itself would be seen


@pytest.mark.parametrize("matrix", [DENSE, DIAGONAL], ids=["dense", "diagonal"])
def test_solve_applies_the_inverse(matrix: np.ndarray) -> None:
    full = np.diag(matrix) if matrix.ndim == 1 else matrix
    gradient = np.array([1.0, -2.0, 0.7])
    made = MassMatrix.of(matrix).solve(jnp.asarray(gradient))
    np.testing.assert_allclose(made, np.linalg.solve(full, gradient), rtol=1e-12)


def test_a_diagonal_matrix_given_densely_does_the_same() -> None:
    dense, diagonal = MassMatrix.of(np.diag(DIAGONAL)), MassMatrix.of(DIAGONAL)
    vectors = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    np.testing.assert_allclose(dense.velocity(vectors), diagonal.velocity(vectors), rtol=1e-12)
    np.testing.assert_allclose(dense.solve(vectors[0]), diagonal.solve(vectors[0]), rtol=1e-12)


def test_none_is_the_identity() -> None:
    vector = jnp.asarray([1.0, 2.0, 3.0])
    identity = MassMatrix.of(None)
    assert identity.velocity(vector) is vector
    assert identity.solve(vector) is vector


def test_velocity_and_solve_belong_to_one_matrix() -> None:
    # E[v v'] g = M⁻¹ g: what the noise allows is what the force uses.
    mass = MassMatrix.of(DENSE)
    rows = np.asarray(mass.velocity(jnp.eye(3)))
    gradient = np.array([0.2, 1.0, -3.0])
    solved = mass.solve(jnp.asarray(gradient))
    np.testing.assert_allclose(rows.T @ rows @ gradient, solved, rtol=1e-12)


def test_equal_matrices_are_equal_values() -> None:
    assert MassMatrix.of(DENSE) == MassMatrix.of(DENSE.tolist())
    assert hash(MassMatrix.of(DIAGONAL)) == hash(MassMatrix.of(list(DIAGONAL)))
    assert MassMatrix.of(DENSE) != MassMatrix.of(2 * DENSE)
    assert MassMatrix.of(MassMatrix.of(DENSE)) == MassMatrix.of(DENSE)


@pytest.mark.parametrize(
    ("matrix", "argument", "match"),
    [
        (3.0, "mass_matrix", "shape"),
        (np.ones((2, 3)), "mass_matrix", "shape"),
        ([1.0, float("nan")], "mass_matrix", "not finite"),
        ([1.0, 0.0], "mass_matrix", "positive"),
        ([[1.0, 2.0], [0.0, 1.0]], "mass_matrix", "symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "mass_matrix", "positive definite"),
    ],
)
def test_what_is_no_mass_matrix_is_refused(matrix: Any, argument: str, match: str) -> None:
    with refused(argument=argument, match=match):
        MassMatrix.of(matrix)


def test_a_matrix_of_another_dimension_is_refused() -> None:
    with refused(argument="mass_matrix", match="3.*has 2"):
        MassMatrix.of(DENSE).check(2)
    MassMatrix.of(DENSE).check(3)
