"""Gaussian clients as the oracles read them: checked once, diagonal where they can be.

A problem is diagonal when every curvature and the mass matrix are; operators are then held as
their diagonals and every function here works coordinate by coordinate, in any dimension.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consortia.errors import InputError

Array = NDArray[np.floating[Any]]


class GaussianClients(NamedTuple):
    """Clients with f_c(x) = ½ (x - m_c)' L_c (x - m_c), a weighted sum and a mass matrix.

    Attributes:
        weights: w_c, (N,).
        means: m_c, (N, d).
        curvatures: L_c, (N, d) in a diagonal problem, else (N, d, d).
        mass: M, (d,) in a diagonal problem, else (d, d).
        eigenvalues: of L_c against M, (N, d).
        basis: P_c with P_c' M P_c = 1 and P_c' L_c P_c = diag(eigenvalues): (N, d, d), or
            M^(-1/2), (d,), in a diagonal problem.
    """

    weights: Array
    means: Array
    curvatures: Array
    mass: Array
    eigenvalues: Array
    basis: Array

    @property
    def diagonal(self) -> bool:
        """Whether operators are held as their diagonals."""
        return self.mass.ndim == 1

    @property
    def precision(self) -> Array:
        """Σ_c w_c L_c."""
        return self.average(self.curvatures)

    @property
    def target_mean(self) -> Array:
        """The mode of Σ_c w_c f_c, (d,)."""
        # Around the first mean, so that a common shift of all clients costs no precision.
        pull = self.weights @ apply(self.curvatures, self.means - self.means[0])
        return self.means[0] + solve(self.precision, pull)

    def average(self, values: Array) -> Array:
        """Σ_c w_c values_c."""
        return np.tensordot(self.weights, values, axes=1)

    def pair(self, values: Array) -> Array:
        """Products of values (N, d): squares in a diagonal problem, else all, (N, d, d)."""
        return values**2 if self.diagonal else values[:, :, None] * values[:, None, :]

    def lift(self, values: Array) -> Array:
        """P_c diag(values_c) P_c': from answers in the clients' own coordinates to operators."""
        if self.diagonal:
            return values * self.basis**2
        return np.einsum("nij,nj,nkj->nik", self.basis, values, self.basis)

    def lift_noise(self, products: Array) -> Array:
        """Covariance of positions from gradient noise N(0, 1), given the `pair` of the answers."""
        if self.diagonal:
            return products * self.basis**4
        across = np.swapaxes(self.basis, 1, 2)
        return self.basis @ (products * (across @ self.basis)) @ across

    def from_momentum(self, kick: Array) -> Array:
        """Covariance of a symmetric operator times a momentum N(0, M) common to all clients."""
        return kick**2 * self.mass if self.diagonal else kick @ self.mass @ kick


def multiply(left: Array, right: Array, *, diagonal: bool) -> Array:
    """The product of two operators, or of two stacks of them."""
    return left * right if diagonal else left @ right


def apply(operators: Array, vectors: Array) -> Array:
    """Operators (N, d) or (N, d, d) on vectors (N, d)."""
    return (
        operators * vectors if operators.ndim == 2 else np.einsum("nij,nj->ni", operators, vectors)
    )


def solve(operator: Array, vector: Array) -> Array:
    """The solution x of ``operator x = vector``, for (d,) or (d, d) and (d,)."""
    return vector / operator if operator.ndim == 1 else np.linalg.solve(operator, vector)


# --- arguments -------------------------------------------------------------------------------


def read_clients(
    means: ArrayLike, curvatures: ArrayLike, weights: ArrayLike, mass_matrix: ArrayLike | None
) -> GaussianClients:
    """Check the clients; shapes as in `consortia.oracles.fa_hmc_law`."""
    w, m, lam = (
        floats(weights, "weights"),
        floats(means, "means"),
        floats(curvatures, "curvatures"),
    )
    if w.ndim != 1 or not w.size or np.any(w <= 0.0) or abs(w.sum() - 1.0) > 1e-6:
        raise InputError(f"weights: got {w}; give one positive weight per client, of sum one")
    n = w.size
    d = m.shape[1] if m.ndim == 2 else lam.shape[1] if lam.ndim >= 2 else 1
    if m.shape not in ((n,), (n, d)):
        raise InputError(f"means: shape {m.shape}; give ({n},) or ({n}, {d}) for {n} weights")
    if lam.shape not in ((n,), (n, d), (n, d, d)):
        raise InputError(
            f"curvatures: shape {lam.shape}; give ({n},), ({n}, {d}) or ({n}, {d}, {d}) "
            f"for {n} weights and {d} coordinates"
        )
    m = np.broadcast_to(m if m.ndim == 2 else m[:, None], (n, d))
    if lam.ndim == 1:
        lam = np.broadcast_to(lam[:, None], (n, d))
    mass = _mass(mass_matrix, d)
    _check_curvatures(lam, w)
    if lam.ndim == 2 and mass.ndim == 1:
        return GaussianClients(w, m, lam, mass, lam / mass, 1.0 / np.sqrt(mass))
    full = lam if lam.ndim == 3 else lam[:, :, None] * np.eye(d)
    mass = mass if mass.ndim == 2 else np.diag(mass)
    whiten = np.linalg.inv(np.linalg.cholesky(mass).T)
    values, vectors = np.linalg.eigh(whiten.T @ full @ whiten)
    # A semi-definite matrix can have eigenvalues of minus a rounding error.
    return GaussianClients(w, m, full, mass, np.maximum(values, 0.0), whiten @ vectors)


def _check_curvatures(curvatures: Array, weights: Array) -> None:
    overall = np.tensordot(weights, curvatures, axes=1)
    size = np.abs(curvatures).max()
    if curvatures.ndim == 3:
        across = np.swapaxes(curvatures, 1, 2)
        if not np.allclose(curvatures, across, rtol=1e-8, atol=1e-12 * size):
            raise InputError("curvatures: a matrix is not symmetric; give (L + L.T) / 2")
        lowest, lowest_overall = (
            np.linalg.eigvalsh(curvatures)[:, 0],
            np.linalg.eigvalsh(overall)[0],
        )
        rounding = 1e-10 * size
    else:
        lowest, lowest_overall, rounding = curvatures.min(axis=1), overall.min(), 0.0
    if np.any(lowest < -rounding):
        raise InputError(
            f"curvatures: client {int(np.argmin(lowest))} has a negative curvature; "
            "give positive semi-definite matrices"
        )
    if lowest_overall <= rounding:
        raise InputError(
            "curvatures: their weighted sum is not positive, so the target is not a density; "
            "add a prior or drop the flat coordinates"
        )


def _mass(mass_matrix: ArrayLike | None, d: int) -> Array:
    if mass_matrix is None:
        return np.ones(d)
    mass = floats(mass_matrix, "mass_matrix")
    if mass.shape not in ((d,), (d, d)):
        raise InputError(f"mass_matrix: shape {mass.shape}; give None, ({d},) or ({d}, {d})")
    positive = bool(np.all(mass > 0.0)) if mass.ndim == 1 else _is_positive_definite(mass)
    if not positive:
        raise InputError(
            "mass_matrix: not positive definite; give positive numbers or a covariance"
        )
    return mass


def _is_positive_definite(matrix: Array) -> bool:
    return bool(np.allclose(matrix, matrix.T) and np.linalg.eigvalsh(matrix)[0] > 0.0)


def floats(value: ArrayLike, name: str) -> Array:
    """A float64 array of finite numbers, or an `InputError` that names the argument."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: cannot be read as an array of numbers ({error})") from error
    if not np.all(np.isfinite(array)):
        raise InputError(f"{name}: holds a value that is not finite; give finite numbers")
    return array


def filled(value: ArrayLike, shape: tuple[int, ...], name: str) -> Array:
    """A number or an array of this very shape, as an array of this shape."""
    array = floats(value, name)
    if array.shape not in ((), shape):
        raise InputError(f"{name}: shape {array.shape}; give a number or shape {shape}")
    return np.broadcast_to(array, shape)


def number(
    value: float, name: str, *, least: float = 0.0, most: float = math.inf, strict: bool = False
) -> float:
    """One number of at least (``strict``: above) ``least`` and at most ``most``."""
    array = floats(value, name)
    if array.ndim or not (least < array if strict else least <= array) or array > most:
        bounds = f"{'above' if strict else 'of at least'} {least:g}"
        bounds += f" and at most {most:g}" if math.isfinite(most) else ""
        raise InputError(f"{name}: got {value!r}; give one number {bounds}")
    return float(array)


def count(value: int, name: str, *, least: int = 1) -> int:
    """A whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name}: got {value!r}; give a whole number of at least {least}")
    return int(value)
