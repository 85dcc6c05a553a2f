"""Gaussian clients of federated averaging: weights, means, curvatures and a mass matrix."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from consortia.errors import wrong
from consortia.theory.affine import Array
from consortia.theory.arguments import (
    check_density,
    curvatures_of,
    floats,
    full_matrices,
    matrix_of,
    shares_of,
)

Blocks = Float[np.ndarray, "blocks w w"]


class GaussianClients(NamedTuple):
    """Clients with f_c(x) = ½ (x - m_c)' L_c (x - m_c), a weighted sum and a mass matrix.

    Coordinates come in independent blocks of width w: d blocks of one coordinate where every
    curvature and the mass matrix are diagonal, which no dimension is too large for; else one of d.
    """

    weights: Float[np.ndarray, " N"]  # w_c, (N,)
    means: Float[np.ndarray, "N blocks w"]  # m_c, (N, blocks, w)
    curvatures: Float[np.ndarray, "N blocks w w"]  # L_c, (N, blocks, w, w)
    mass: Blocks  # M, (blocks, w, w)

    @property
    def precision(self) -> Blocks:
        """Σ_c w_c L_c."""
        return self.average(self.curvatures)

    @property
    def target_mean(self) -> Float[np.ndarray, "blocks w"]:
        """The mode of Σ_c w_c f_c."""
        # Around the first mean, so that a common shift of all clients costs no precision.
        pull = self.average(applied(self.curvatures, self.means - self.means[0]))
        return self.means[0] + np.linalg.solve(self.precision, pull[..., None])[..., 0]

    def average(self, values: Array) -> Array:
        """Return Σ_c w_c values_c."""
        return np.tensordot(self.weights, values, axes=1)


def applied(operators: Array, vectors: Array) -> Array:
    """Return operators (..., w, w) times vectors (..., w)."""
    return (operators @ vectors[..., None])[..., 0]


def read_clients(
    means: ArrayLike, curvatures: ArrayLike, weights: ArrayLike, mass_matrix: ArrayLike | None
) -> GaussianClients:
    """Return the checked clients; shapes as in `consortia.oracles.fa_hmc_law`."""
    w, m, given = shares_of(weights, "weights"), floats(means, "means"), np.shape(curvatures)
    n = w.size
    d = m.shape[1] if m.ndim == 2 else given[1] if len(given) >= 2 else 1
    if m.shape not in ((n,), (n, d)):
        raise wrong("means", f": shape {m.shape}; give ({n},) or ({n}, {d}) for {n} weights")
    m = np.broadcast_to(m if m.ndim == 2 else m[:, None], (n, d))
    lam = curvatures_of(curvatures, (n, d), "curvatures", "weights")
    check_density(np.tensordot(w, lam, axes=1), "curvatures", 1e-10 if lam.ndim == 3 else 0.0)
    mass = np.ones(d) if mass_matrix is None else floats(mass_matrix, "mass_matrix")
    if mass.shape not in ((d,), (d, d)):
        raise wrong("mass_matrix", f": shape {mass.shape}; give None, ({d},) or ({d}, {d})")
    if lam.ndim == 2 and mass.ndim == 1:
        m, lam, mass = m[:, :, None], lam[:, :, None, None], mass[:, None, None]
    else:
        m, lam = m[:, None], full_matrices(lam)[:, None]
        mass = matrix_of(mass, "mass_matrix")[None]
    if not np.allclose(mass, mass.mT) or np.linalg.eigvalsh(mass).min() <= 0.0:
        raise wrong("mass_matrix", ": not positive definite; give positive numbers or a covariance")
    return GaussianClients(w, m, lam, mass)
