"""Second-order expansions of a model's potentials, and the posterior's Gaussian law at its mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from consortia.core.model import Model
from consortia.core.target import Target, in_jax_width
from consortia.data.sites import Sites
from consortia.errors import InputError
from consortia.surrogates.curvature import hessian
from consortia.theory.looks import Looks

RATIOS = 500
"""Points at which `Expansion.k_hat` compares the posterior with its Gaussian law."""

PROBES = tuple(np.arange(2.0, 12.5, 0.5).tolist())
"""Standard deviations from the mode at which mass is looked for that the Gaussian law misses."""

MOST_LINES = 40
"""Principal axes, and coordinates' lines, on which it is looked for."""

EXCESS, DEPTH = 4.0, 6.0
"""Mass is missed where the log-density is so much above the Gaussian law's, and at most so much
below that of the mode."""

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
        prior_curvature: P, (d, d).
        prior_gradient: p, (d,).
        sizes: n_c, (S,).
        gaussian: True if the curvature is the same two standard deviations away.
        looks: where it is from.
    """

    mode: Float[np.ndarray, " d"]
    curvatures: Float[np.ndarray, "S d d"]
    gradients: Float[np.ndarray, "S d"]
    prior_curvature: Float[np.ndarray, "d d"]
    prior_gradient: Float[np.ndarray, " d"]
    sizes: Float[np.ndarray, " S"]
    gaussian: bool
    covariance: Float[np.ndarray, "d d"] = field(repr=False)
    looks: Looks = field(repr=False)

    @cached_property
    def row_covariances(self) -> Float[np.ndarray, "S d d"]:
        """Covariance of the gradients of single rows (divided by n_c) at every site."""
        return self.looks.rows(self.mode)

    @cached_property
    def k_hat(self) -> float:
        """Pareto shape of the importance ratios of the posterior to the Gaussian law.

        Infinite where the posterior has mass that the Gaussian law does not reach at all: another
        mode, which its draws would not find, on a principal axis or a coordinate's own line.
        """
        rng, d = np.random.default_rng(0), self.mode.size
        values, axes = np.linalg.eigh(self.covariance)
        principal = (axes * np.sqrt(values)).T[::-1][:MOST_LINES]
        lines = np.concatenate([principal, (self.covariance / self.sd).T[:MOST_LINES]])
        far = np.concatenate([t * lines for t in (*PROBES, *(-one for one in PROBES))])
        normal = rng.normal(size=(RATIOS, d))
        inside = normal @ (axes * np.sqrt(values)).T
        places = np.concatenate([np.zeros((1, d)), inside, far])
        density = self.looks.values(self.mode + places)
        density = density - density[0]
        gaussian = -0.5 * np.einsum("ki,ij,kj->k", places, self.precision, places)
        ratios = density - gaussian
        inner, outer = slice(1, 1 + RATIOS), slice(1 + RATIOS, None)
        if not np.isfinite(density[inner]).all():
            return float("inf")
        missed = (ratios[outer] > EXCESS) & (density[outer] > -DEPTH)
        return float("inf") if missed.any() else pareto_shape(ratios[inner])

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


def expand(looks: Looks) -> Expansion:
    """Find the mode downhill from the start, and the curvatures there.

    Raises:
        InputError: too many parameters, no mode is found, or it is not log-concave there.
    """
    d, rows = looks.start.size, int(looks.sizes.sum())
    if d > MOST_PARAMETERS or rows * d**2 > MOST_OPERATIONS:
        raise InputError(
            f"the curvature of {rows:,} rows in {d:,} parameters is too large to be computed here"
        )
    mode = looks.mode()
    _, gradients, curvatures = looks.expansion(mode)
    _, prior_gradient, prior_curvature = looks.prior(mode)
    precision = curvatures.sum(axis=0) + prior_curvature
    values = np.linalg.eigvalsh(precision)
    if not values[0] > 1e-6 * values[-1]:
        raise InputError("the posterior is flat in some direction at its mode")
    covariance = np.linalg.inv(precision)
    away = looks.away(mode, covariance)
    there = looks.expansion(away)[2].sum(axis=0) + looks.prior(away)[2]
    change = np.abs(there - precision).max() / np.abs(precision).max()
    return Expansion(
        mode,
        curvatures,
        gradients,
        prior_curvature,
        prior_gradient,
        looks.sizes,
        bool(change < GAUSSIAN),
        covariance,
        looks,
    )


def pareto_shape(log_ratios: Float[np.ndarray, " K"]) -> float:
    """Return k-hat, the shape of the generalised Pareto law of the largest importance ratios.

    Source: Vehtari, Simpson, Gelman, Yao, Gabry (2024).
    """
    from arviz_stats.base.array import array_stats  # a second that few runs need

    with np.errstate(all="ignore"):  # of ratios that are all but equal
        return float(array_stats.psislw(log_ratios)[1])


def on_device(sites: Sites) -> tuple[PyTree, Int[Array, " S"]]:
    """Return all sites' rows, padded to equal numbers, and the numbers."""
    return jax.device_put(
        (jax.tree.map(in_jax_width, sites.padded()), np.asarray(sites.sizes, np.int32))
    )


def double(arrays: PyTree) -> tuple[Float[np.ndarray, ...], ...]:
    """Return device arrays in double precision on the host."""
    return tuple(np.asarray(array, np.float64) for array in arrays)


class Potentials(NamedTuple):
    """Compiled functions of a position x and of all sites' padded rows and their numbers.

    Attributes:
        sites: Hessian and gradient of every site's −log-likelihood, (S, d, d) and (S, d).
        rows: those of every row, (S, n, d, d) and (S, n, d); of x and the rows.
        prior: Hessian and gradient of −log-prior, of x alone.
    """

    sites: Callable[..., tuple[Array, Array]]
    rows: Callable[..., tuple[Array, Array]]
    prior: Callable[..., tuple[Square, Flat]]

    @classmethod
    def of(cls, model: Model, parameters: PyTree) -> tuple[Potentials, Flat]:
        """Return a model's functions, kept for the next call, and these parameters' position."""
        target = Target(model, parameters)
        leaves, structure = jax.tree.flatten(target.structure)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        return _compiled(model, structure, shapes), jax.device_put(target.flat(parameters))


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
    def sites(x: Flat, data: PyTree, sizes: Int[Array, " S"]) -> tuple[Array, Array]:
        return jax.lax.map(lambda own: expansion(lambda at: likelihood(at, *own), x), (data, sizes))

    @jax.jit
    def rows(x: Flat, data: PyTree) -> tuple[Array, Array]:
        def of_site(own: PyTree) -> tuple[Array, Array]:
            return jax.vmap(lambda row: expansion(lambda at: of_row(at, row), x))(own)

        return jax.lax.map(of_site, data)

    prior = jax.jit(lambda x: expansion(lambda at: -target.log_prior(at), x))
    return Potentials(sites, rows, prior)
