"""Mass matrices: identity, diagonal or dense, as values that compare and hash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core import arguments
from consortia.errors import InputError, wrong
from consortia.runtime.late import Array, jnp


@dataclass(frozen=True)
class MassMatrix:
    """M of the momentum law N(0, M); the identity when ``values`` is None.

    Attributes:
        values: None, the diagonal (d,) as a tuple, or the rows of a dense matrix as a tuple of
            tuples; symmetric and positive definite.
    """

    values: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, mass_matrix: Any) -> MassMatrix:
        """Return a mass matrix from None, a diagonal (d,) or a dense matrix (d, d).

        Raises:
            InputError: not one of these shapes, not finite, not symmetric or not positive definite.
        """
        if mass_matrix is None:
            return cls()
        if isinstance(mass_matrix, MassMatrix):
            return mass_matrix
        wanted = "the diagonal (d,) or a matrix (d, d)"
        matrix = arguments.array("mass_matrix", mass_matrix, wanted)
        if matrix.ndim not in (1, 2) or (matrix.ndim == 2 and matrix.shape[0] != matrix.shape[1]):
            raise wrong("mass_matrix", f" has shape {matrix.shape}: give {wanted}.")
        if matrix.ndim == 1:
            if not np.all(matrix > 0):
                raise wrong("mass_matrix", ": every diagonal entry must be positive.")
            return cls(tuple(matrix.tolist()))
        if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=0):
            raise wrong("mass_matrix", " is not symmetric.")
        if np.linalg.eigvalsh(matrix)[0] <= 0:
            raise wrong("mass_matrix", " is not positive definite.")
        return cls(tuple(tuple(row) for row in matrix.tolist()))

    @property
    def dimension(self) -> int | None:
        """d; None for the identity, which suits any."""
        return None if self.values is None else len(self.values)

    def check(self, dimension: int) -> None:
        """Refuse a matrix of another dimension than the model's."""
        if self.values is not None and len(self.values) != dimension:
            raise InputError(
                f"mass_matrix is for {len(self.values)} parameters, the model has {dimension}."
            ).at("mass_matrix")

    def velocity(self, normal: Float[Array, "*steps d"]) -> Float[Array, "*steps d"]:
        """Return v = M⁻¹p ~ N(0, M⁻¹) from standard normal numbers (..., d)."""
        if self.values is None:
            return normal
        values = np.asarray(self.values)
        if values.ndim == 1:
            return normal * _row(1 / np.sqrt(values), normal)
        # L⁻ᵀ of M = LLᵀ, so that p = Lξ has covariance M and v = M⁻¹p = L⁻ᵀξ.
        inverse_root = np.linalg.inv(np.linalg.cholesky(values))
        return normal @ jnp.asarray(inverse_root, normal.dtype)

    def solve(self, gradient: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return M⁻¹g for g (d,)."""
        if self.values is None:
            return gradient
        values = np.asarray(self.values)
        if values.ndim == 1:
            return gradient * jnp.asarray(1 / values, gradient.dtype)
        return gradient @ jnp.asarray(np.linalg.inv(values), gradient.dtype)


def _row(values: np.ndarray, like: Array) -> Array:
    """Return ``values`` (d,) with the rank of ``like`` (..., d)."""
    return jnp.asarray(values, like.dtype).reshape((1,) * (like.ndim - 1) + (-1,))
