"""A Gaussian as a value that the user gives, and as the natural parameters that the sites share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from consortia.core import arguments
from consortia.errors import InputError, wrong
from consortia.runtime.late import Array, jnp


class Gaussian:
    r"""The surrogate N(θ | mean, covariance) of one site's likelihood, in flat parameters.

    .. math:: \nabla\log q_s(\theta) = \Sigma_s^{-1}(\mu_s - \theta)

    For n rows of N(θ, I) it is N(row mean, I/n), exactly.

    Args:
        mean: (d,).
        covariance: (d, d), the variances (d,), or one variance for all.

    Raises:
        InputError: not numbers, not finite, of another shape, not symmetric, or not positive
            definite.

    Gaussians compare and hash by value.

    Example:
        >>> Gaussian([1.0, 2.0], 0.25) == Gaussian([1.0, 2.0], [0.25, 0.25])
        True
    """

    __slots__ = ("_key", "mean", "precision")

    mean: np.ndarray
    precision: np.ndarray

    def __init__(self, mean: Any, covariance: Any) -> None:
        mean = _vector(mean)
        matrix = _shaped(covariance, "covariance", mean.size)
        if matrix.ndim == 1:
            if not np.all(matrix > 0):
                raise InputError(
                    f"covariance holds the variance {matrix.min():g}: every variance must be "
                    "positive."
                ).at("covariance")
            self._keep(mean, 1 / matrix)
            return
        self._keep(mean, np.linalg.inv(_positive_definite(matrix, "covariance")))

    @classmethod
    def from_precision(cls, mean: Any, precision: Any) -> Gaussian:
        """Return the Gaussian of this precision, the inverse of the covariance; shapes as there."""
        made = cls.__new__(cls)
        mean = _vector(mean)
        matrix = _shaped(precision, "precision", mean.size)
        if matrix.ndim == 2:
            matrix = _positive_definite(matrix, "precision")
        elif not np.all(matrix > 0):
            raise wrong("precision", f" holds {matrix.min():g}: every entry must be positive.")
        made._keep(mean, matrix)
        return made

    def _keep(self, mean: np.ndarray, precision: np.ndarray) -> None:
        for array in (mean, precision):
            array.setflags(write=False)
        self.mean, self.precision = mean, precision
        self._key = (precision.ndim, mean.tobytes(), precision.tobytes())

    @property
    def dimension(self) -> int:
        """d."""
        return int(self.mean.size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gaussian) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        kind = "diagonal" if self.precision.ndim == 1 else "full"
        return f"Gaussian({self.dimension} parameters, {kind})"


def read_gaussians(values: Any) -> tuple[Gaussian, ...]:
    """Read the user's Gaussians, one a site: `Gaussian` objects or pairs of mean and covariance.

    Raises:
        InputError: none, an entry of another type, or entries of different dimensions; the
            message gives the index.
    """
    if not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise InputError(
            f"surrogate is {values!r}: give 'anchored', 'laplace', 'sgld_moments', None, or a "
            "list of consortia.surrogates.Gaussian, one a site."
        ).at("surrogate")
    result: list[Gaussian] = []
    for index, value in enumerate(values):
        where = f"surrogate[{index}]"
        if not isinstance(value, Gaussian):
            if not isinstance(value, (tuple, list)) or len(value) != 2:
                raise InputError(
                    f"{where} is {value!r}: give a consortia.surrogates.Gaussian or a pair "
                    "(mean, covariance)."
                ).at(where)
            try:
                value = Gaussian(*value)
            except InputError as error:
                raise InputError(f"{where}: {error}").at(where) from None
        if result and value.dimension != result[0].dimension:
            raise InputError(
                f"{where} is for {value.dimension} parameters, surrogate[0] for "
                f"{result[0].dimension}: all must have the model's number of parameters."
            ).at(where)
        result.append(value)
    if not result:
        raise wrong("surrogate", " is an empty list: give one Gaussian a site.")
    return tuple(result)


class Natural(NamedTuple):
    r"""log q up to a constant, around a reference point c that all sites share.

    .. math:: \nabla\log q(\theta) = g - \Lambda (\theta - c)

    Sums of these are products of Gaussians. Around a point near the posterior no precision is lost
    to cancellation.

    Attributes:
        gradient: g, (d,).
        precision: Λ, (d,) when it is diagonal, else (d, d).
    """

    gradient: Array
    precision: Array

    def at(self, deviation: Array) -> Array:
        """Return ∇log q at θ = c + deviation."""
        return self.gradient - apply(self.precision, deviation)


def apply(matrix: Array, vector: Array) -> Array:
    """Return Λ v, for Λ (d,) or (d, d)."""
    return matrix * vector if matrix.ndim == 1 else matrix @ vector


def clipped(matrix: Array, least: Any, most: Any) -> Array:
    """Return a symmetric matrix (or diagonal) with its eigenvalues moved into [least, most]."""
    if matrix.ndim == 1:
        return jnp.clip(matrix, least, most)
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    values = jnp.clip(values, least, most)
    return (vectors * values[None, :]) @ vectors.T


# --- arguments -------------------------------------------------------------------------------


def _vector(value: Any) -> np.ndarray:
    mean = arguments.array("mean", value, "an array of numbers")
    if mean.ndim != 1 or not mean.size:
        raise wrong("mean", f" has shape {mean.shape}: give the flat parameters, (d,).")
    return mean


def _shaped(value: Any, name: str, d: int) -> np.ndarray:
    matrix = arguments.array(name, value, "an array of numbers")
    if matrix.ndim == 0:
        matrix = np.full(d, float(matrix))
    if matrix.shape not in ((d,), (d, d)):
        raise InputError(
            f"{name} has shape {matrix.shape} for a mean of {d} parameters: give ({d}, {d}), "
            f"({d},) or one number."
        ).at(name)
    return matrix


def _positive_definite(matrix: np.ndarray, name: str) -> np.ndarray:
    if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-12 * np.abs(matrix).max()):
        raise wrong(name, " is not symmetric.")
    matrix = (matrix + matrix.T) / 2
    values = np.linalg.eigvalsh(matrix)
    # Below this the inverse is rounding error.
    if values[0] <= 1e-13 * values[-1]:
        raise InputError(
            f"{name} is not positive definite: its eigenvalues go from {values[0]:.3g} to "
            f"{values[-1]:.3g}."
        ).at(name)
    return matrix
