"""Arguments of the laws as checked float64 arrays."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from consortia.core import arguments
from consortia.errors import InputError, wrong

Array = Float[np.ndarray, "..."]


def floats(value: ArrayLike, name: str) -> Array:
    """Return a float64 array of finite numbers, or raise an `InputError` with the name."""
    return arguments.array(name, value, "an array of numbers")


def filled(value: ArrayLike, shape: tuple[int, ...], name: str) -> Array:
    """Return a number or an array of this very shape as an array of this shape."""
    array = floats(value, name)
    if array.shape not in ((), shape):
        raise wrong(name, f": shape {array.shape}; give a number or shape {shape}")
    return np.broadcast_to(array, shape)


def shares_of(value: ArrayLike, name: str, count: int | None = None) -> Float[np.ndarray, " S"]:
    """Return positive numbers of sum one, as many as ``count`` where it is given."""
    given = np.array(arguments.site_weights(floats(value, name), name))
    if count not in (None, given.size):
        raise wrong(name, f": got {given.size} numbers; give {count}")
    return given


def curvatures_of(
    value: ArrayLike, shape: tuple[int, ...], name: str, holders: str, *, rounding: float = 1e-10
) -> Array:
    """Return positive semi-definite matrices, (N, d, d), or their diagonals, (N, d).

    Args:
        value: (N,), times the identity; (N, d), diagonals; or (N, d, d), symmetric.
        shape: (N, d).
        name: of the argument.
        holders: whose matrices they are.
        rounding: by which an eigenvalue may be negative, relative to the largest entry.
    """
    n, d = shape
    given = floats(value, name)
    if given.shape not in ((n,), (n, d), (n, d, d)):
        raise InputError(
            f"{name}: shape {given.shape} for {n} {holders} in {d} dimensions; give ({n},), "
            f"({n}, {d}) or ({n}, {d}, {d})"
        ).at(name)
    if given.ndim < 3:
        given = np.broadcast_to(given if given.ndim == 2 else given[:, None], (n, d))
        lowest, rounding = given.min(axis=1), 0.0
    else:
        size = np.abs(given).max()
        if not np.allclose(given, given.mT, rtol=1e-8, atol=1e-12 * size):
            raise wrong(name, ": a matrix is not symmetric; give (L + L.T) / 2")
        lowest, rounding = np.linalg.eigvalsh(given)[:, 0], rounding * size
    if np.any(lowest < -rounding):
        raise InputError(
            f"{name}: matrix {int(np.argmin(lowest))} has a negative eigenvalue; give positive "
            "semi-definite matrices"
        ).at(name)
    return given


def check_density(precision: Array, name: str, rounding: float = 0.0) -> None:
    """Refuse a precision, (d, d) or its diagonal (d,), that no proper density has."""
    values = precision if precision.ndim == 1 else np.linalg.eigvalsh(precision)
    if values.min() <= rounding * np.abs(values).max():
        raise InputError(
            f"{name}: their sum is not positive definite, so the target is not a density; add a "
            "prior or drop the flat coordinates"
        ).at(name)


def matrix_of(value: ArrayLike, name: str, d: int | None = None) -> Float[np.ndarray, "d d"]:
    """Return a number (times the identity), a diagonal (d,) or a matrix as a matrix (d, d)."""
    given = floats(value, name)
    d = np.atleast_1d(given).shape[0] if d is None else d
    made = given * np.eye(d) if given.shape in ((), (d,)) else given
    if made.shape != (d, d):
        raise wrong(name, f": shape {given.shape}; give a number, ({d},) or ({d}, {d})")
    return made


def full_matrices(matrices: Float[np.ndarray, "S *d d"]) -> Float[np.ndarray, "S d d"]:
    """Return matrices as they are, or those of which the diagonals are given."""
    return matrices if matrices.ndim == 3 else matrices[:, :, None] * np.eye(matrices.shape[-1])
