"""The Gaussian law that a posterior has near its mode, site by site."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from consortia.core.model import Model
from consortia.core.target import Target, in_jax_width
from consortia.data.sites import Sites
from consortia.errors import InputError
from consortia.surrogates.curvature import hessian, mode_of

Array = NDArray[np.floating[Any]]

MOST_PARAMETERS = 200
"""Beyond, the matrices of all sites take minutes."""

MOST_PRODUCTS = 2_000_000_000
"""Rows times squared parameters, about a second of work for each look at the curvature."""

GAUSSIAN = 1e-3
"""Relative change of the curvature within two standard deviations up to which it is constant."""


@dataclass(frozen=True, eq=False)
class Expansion:
    """The potentials of the sites to second order around the mode, with the mode as the origin.

    Site c has the log-likelihood −g_c·x − ½ x'H_c x, the log-prior is −p·x − ½ x'P x.

    Attributes:
        mode: of the posterior, (d,).
        curvatures: H_c, (S, d, d).
        gradients: g_c, (S, d).
        row_covariances: covariance of the gradients of single rows (divided by n_c), (S, d, d).
        prior_curvature: P, (d, d).
        prior_gradient: p, (d,).
        sizes: n_c, (S,).
        gaussian: whether the curvature is the same two standard deviations away.
    """

    mode: Array
    curvatures: Array
    gradients: Array
    row_covariances: Array
    prior_curvature: Array
    prior_gradient: Array
    sizes: Array
    gaussian: bool
    covariance: Array = field(repr=False)

    @property
    def sd(self) -> Array:
        """Standard deviations of the Gaussian law, (d,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def precision(self) -> Array:
        """Σ_c H_c + P, (d, d)."""
        return self.curvatures.sum(axis=0) + self.prior_curvature

    def pieces(self, weights: Array, shares: Array) -> tuple[Array, Array]:
        """Curvature and gradient of f_c = U_c / w_c with these shares of the prior."""
        share = shares / weights
        curvatures = self.curvatures / weights[:, None, None]
        curvatures = curvatures + share[:, None, None] * self.prior_curvature
        return curvatures, self.gradients / weights[:, None] + share[:, None] * self.prior_gradient


def expand(model: Model, sites: Sites, parameters: Any) -> Expansion:
    """Finds the mode downhill from these parameters, and the curvatures there.

    Args:
        model: log-prior and per-row log-likelihood.
        sites: the data.
        parameters: where the search starts.

    Raises:
        InputError: too many parameters, no mode is found, or it is not log-concave there.
    """
    start = jax.tree.map(jnp.asarray, parameters)
    target = Target(model, start)
    d, rows = target.dimension, sites.rows
    if d > MOST_PARAMETERS or rows * d**2 > MOST_PRODUCTS:
        raise InputError(
            f"the curvature of {rows:,} rows in {d:,} parameters is too large to be computed here"
        )
    search, look = _programs(model, _structure_key(target))
    data = jax.tree.map(lambda leaf: jnp.asarray(in_jax_width(leaf)), sites.padded())
    sizes = jnp.asarray(np.asarray(sites.sizes), jnp.int32)
    mode, _, found = search(target.ravel(start), data, sizes)
    if not bool(found):
        raise InputError(
            "the search for the posterior's mode did not end: it has none near the start, or is "
            "not log-concave there"
        )
    at_mode = _double(look(mode, data, sizes))
    curvatures, gradients, rows_covariances, prior_curvature, prior_gradient = at_mode
    precision = curvatures.sum(axis=0) + prior_curvature
    values = np.linalg.eigvalsh(precision)
    if not values[0] > 1e-6 * values[-1]:
        raise InputError("the posterior is flat in some direction at its mode")
    covariance = np.linalg.inv(precision)
    away = mode + jnp.asarray(2 * np.sqrt(np.diagonal(covariance)), mode.dtype)
    there = _double(look(away, data, sizes))
    change = np.abs(there[0].sum(axis=0) + there[3] - precision).max() / np.abs(precision).max()
    return Expansion(
        np.asarray(mode, np.float64),
        curvatures,
        gradients,
        rows_covariances,
        prior_curvature,
        prior_gradient,
        np.asarray(sites.sizes, np.float64),
        bool(change < GAUSSIAN),
        covariance,
    )


def _double(arrays: Any) -> tuple[Array, ...]:
    return tuple(np.asarray(array, np.float64) for array in arrays)


def _structure_key(target: Target) -> Any:
    leaves, structure = jax.tree.flatten(target.structure)
    return structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


@lru_cache(maxsize=8)
def _programs(model: Model, key: Any) -> tuple[Any, Any]:
    """Compiled search for the mode and look at the sites; kept for the next call."""
    structure, leaves = key
    example = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves]
    target = Target(model, jax.tree.unflatten(structure, example))

    def log_likelihood(x: Any, rows: Any, size: Any) -> Any:
        values = target.log_likelihood(x, rows)
        return jnp.sum(jnp.where(jnp.arange(len(values), dtype=size.dtype) < size, values, 0))

    def potential(x: Any, data: Any, sizes: Any) -> Any:
        parts = jax.lax.map(lambda own: log_likelihood(x, *own), (data, sizes))
        return -jnp.sum(parts) - target.log_prior(x)

    def of_site(x: Any, rows: Any, size: Any) -> Any:
        def negative(at: Any) -> Any:
            return -log_likelihood(at, rows, size)

        def of_row(total: Any, own: Any) -> Any:
            row, true = own
            one = jax.tree.map(lambda leaf: leaf[None], row)
            value = jax.grad(lambda at: target.log_likelihood(at, one)[0])(x)
            return total + jnp.where(true, jnp.outer(value, value), 0), None

        length = jax.tree.leaves(rows)[0].shape[0]
        true = jnp.arange(length, dtype=size.dtype) < size
        square, _ = jax.lax.scan(of_row, jnp.zeros((x.size, x.size), x.dtype), (rows, true))
        gradient = jax.grad(negative)(x)
        count = size.astype(x.dtype)
        covariance = square / count - jnp.outer(gradient, gradient) / count**2
        return hessian(negative, x, full=True), gradient, covariance

    def search(start: Any, data: Any, sizes: Any) -> Any:
        return mode_of(lambda x: potential(x, data, sizes), start)

    def look(x: Any, data: Any, sizes: Any) -> Any:
        of_sites = jax.lax.map(lambda own: of_site(x, *own), (data, sizes))

        def prior(at: Any) -> Any:
            return -target.log_prior(at)

        return (*of_sites, hessian(prior, x, full=True), jax.grad(prior)(x))

    return jax.jit(search), jax.jit(look)
