"""Second-order expansions of a model's potentials, and the posterior's Gaussian law at its mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from consortia.core.model import Model
from consortia.core.target import Target, in_jax_width
from consortia.data.sites import Sites
from consortia.errors import InputError
from consortia.surrogates.curvature import hessian, mode_of

PyTree = Any
Scalar = Float[Array, ""]
Flat = Float[Array, " d"]
Square = Float[Array, "d d"]

MOST_PARAMETERS = 200
"""Beyond, the matrices of all sites take minutes."""

MOST_OPERATIONS = 2_000_000_000
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
        gaussian: True if the curvature is the same two standard deviations away.
    """

    mode: Float[np.ndarray, " d"]
    curvatures: Float[np.ndarray, "S d d"]
    gradients: Float[np.ndarray, "S d"]
    row_covariances: Float[np.ndarray, "S d d"]
    prior_curvature: Float[np.ndarray, "d d"]
    prior_gradient: Float[np.ndarray, " d"]
    sizes: Float[np.ndarray, " S"]
    gaussian: bool
    covariance: Float[np.ndarray, "d d"] = field(repr=False)

    @property
    def sd(self) -> Float[np.ndarray, " d"]:
        """Standard deviations of the Gaussian law, (d,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def precision(self) -> Float[np.ndarray, "d d"]:
        """Σ_c H_c + P, (d, d)."""
        return self.curvatures.sum(axis=0) + self.prior_curvature

    def pieces(
        self, weights: Float[np.ndarray, " S"], shares: Float[np.ndarray, " S"]
    ) -> tuple[Float[np.ndarray, "S d d"], Float[np.ndarray, "S d"]]:
        """Return curvature and gradient of f_c = U_c / w_c with these shares of the prior."""
        share = shares / weights
        curvatures = self.curvatures / weights[:, None, None]
        curvatures = curvatures + share[:, None, None] * self.prior_curvature
        return curvatures, self.gradients / weights[:, None] + share[:, None] * self.prior_gradient


def expand(model: Model, sites: Sites, parameters: PyTree) -> Expansion:
    """Find the mode downhill from these parameters, and the curvatures there.

    Args:
        model: log-prior and per-row log-likelihood.
        sites: the data.
        parameters: where the search starts.

    Raises:
        InputError: too many parameters, no mode is found, or it is not log-concave there.
    """
    potentials, start = Potentials.of(model, parameters)
    d, rows = start.size, sites.rows
    if d > MOST_PARAMETERS or rows * d**2 > MOST_OPERATIONS:
        raise InputError(
            f"the curvature of {rows:,} rows in {d:,} parameters is too large to be computed here"
        )
    data, sizes = on_device(sites)
    mode, _, found = potentials.mode(start, data, sizes)
    if not bool(found):
        raise InputError(
            "the search for the posterior's mode did not end: it has none near the start, or is "
            "not log-concave there"
        )
    curvatures, gradients = double(potentials.sites(mode, data, sizes))
    prior_curvature, prior_gradient = double(potentials.prior(mode))
    precision = curvatures.sum(axis=0) + prior_curvature
    values = np.linalg.eigvalsh(precision)
    if not values[0] > 1e-6 * values[-1]:
        raise InputError("the posterior is flat in some direction at its mode")
    covariance = np.linalg.inv(precision)
    away = mode + jnp.asarray(2 * np.sqrt(np.diagonal(covariance)), mode.dtype)
    there = double(potentials.sites(away, data, sizes))[0].sum(axis=0)
    there = there + double(potentials.prior(away))[0]
    change = np.abs(there - precision).max() / np.abs(precision).max()
    return Expansion(
        np.asarray(mode, np.float64),
        curvatures,
        gradients,
        double([potentials.row_covariances(mode, data, sizes)])[0],
        prior_curvature,
        prior_gradient,
        np.asarray(sites.sizes, np.float64),
        bool(change < GAUSSIAN),
        covariance,
    )


def on_device(sites: Sites) -> tuple[PyTree, Int[Array, " S"]]:
    """Return all sites' rows, padded to equal numbers, and the numbers."""
    data = jax.tree.map(lambda leaf: jnp.asarray(in_jax_width(leaf)), sites.padded())
    return data, jnp.asarray(np.asarray(sites.sizes), jnp.int32)


def double(arrays: PyTree) -> tuple[Float[np.ndarray, ...], ...]:
    """Return device arrays in double precision on the host."""
    return tuple(np.asarray(array, np.float64) for array in arrays)


class Potentials(NamedTuple):
    """Compiled functions of a position x and of all sites' padded rows and their numbers.

    Attributes:
        mode: the minimum of U downhill from x, the curvature there, and whether it was reached.
        sites: Hessian and gradient of every site's −log-likelihood, (S, d, d) and (S, d).
        rows: those of every row, (S, n, d, d) and (S, n, d); of x and the rows.
        row_covariances: covariance of the gradients of single rows at every site, (S, d, d).
        prior: Hessian and gradient of −log-prior, of x alone.
    """

    mode: Callable[..., tuple[Flat, Square, Array]]
    sites: Callable[..., tuple[Array, Array]]
    rows: Callable[..., tuple[Array, Array]]
    row_covariances: Callable[..., Array]
    prior: Callable[..., tuple[Square, Flat]]

    @classmethod
    def of(cls, model: Model, parameters: PyTree) -> tuple[Potentials, Flat]:
        """Return a model's functions, kept for the next call, and these parameters' position."""
        start = jax.tree.map(jnp.asarray, parameters)
        target = Target(model, start)
        leaves, structure = jax.tree.flatten(target.structure)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        return _compiled(model, structure, shapes), target.ravel(start)


@lru_cache(maxsize=8)
def _compiled(
    model: Model,
    structure: jax.tree_util.PyTreeDef,
    shapes: tuple[tuple[tuple[int, ...], str], ...],
) -> Potentials:
    example = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    target = Target(model, jax.tree.unflatten(structure, example))

    def likelihood(x: Flat, rows: PyTree, size: Int[Array, ""]) -> Scalar:
        values = target.log_likelihood(x, rows)
        return -jnp.sum(jnp.where(jnp.arange(len(values), dtype=size.dtype) < size, values, 0))

    def of_row(x: Flat, row: PyTree) -> Scalar:
        return -target.log_likelihood(x, jax.tree.map(lambda leaf: leaf[None], row))[0]

    def expansion(function: Callable[[Flat], Scalar], x: Flat) -> tuple[Square, Flat]:
        return hessian(function, x, full=True), jax.grad(function)(x)

    @jax.jit
    def mode(x: Flat, data: PyTree, sizes: Int[Array, " S"]) -> tuple[Flat, Square, Array]:
        def potential(at: Flat) -> Scalar:
            parts = jax.lax.map(lambda own: likelihood(at, *own), (data, sizes))
            return jnp.sum(parts) - target.log_prior(at)

        return mode_of(potential, x)

    @jax.jit
    def sites(x: Flat, data: PyTree, sizes: Int[Array, " S"]) -> tuple[Array, Array]:
        return jax.lax.map(lambda own: expansion(lambda at: likelihood(at, *own), x), (data, sizes))

    @jax.jit
    def rows(x: Flat, data: PyTree) -> tuple[Array, Array]:
        def of_site(own: PyTree) -> tuple[Array, Array]:
            return jax.vmap(lambda row: expansion(lambda at: of_row(at, row), x))(own)

        return jax.lax.map(of_site, data)

    @jax.jit
    def row_covariances(x: Flat, data: PyTree, sizes: Int[Array, " S"]) -> Array:
        def of_site(site: tuple[PyTree, Int[Array, ""]]) -> Square:
            own, size = site

            def add(total: Square, each: tuple[Array, PyTree]) -> tuple[Square, None]:
                index, row = each
                value = jax.grad(of_row)(x, row)
                return total + jnp.where(index < size, jnp.outer(value, value), 0), None

            indices = jnp.arange(jax.tree.leaves(own)[0].shape[0], dtype=size.dtype)
            square, _ = jax.lax.scan(add, jnp.zeros((x.size, x.size), x.dtype), (indices, own))
            gradient, count = jax.grad(likelihood)(x, own, size), size.astype(x.dtype)
            return square / count - jnp.outer(gradient, gradient) / count**2

        return jax.lax.map(of_site, (data, sizes))

    prior = jax.jit(lambda x: expansion(lambda at: -target.log_prior(at), x))
    return Potentials(mode, sites, rows, row_covariances, prior)
