"""Agents with Gaussian potentials, as the gossip oracles read them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from consortia.core.model import Model
from consortia.core.target import Target
from consortia.errors import InputError
from consortia.theory.arguments import floats, number

Array = NDArray[np.floating[Any]]


class GaussianAgents:
    r"""N agents with :math:`f_i(x) = \tfrac12 x^\top A_i x - b_i^\top x`; target exp(−Σ f_i).

    Args:
        curvatures: :math:`A_i`: ``(N,)`` (times the identity), ``(N, d)`` (diagonals) or
            ``(N, d, d)``, symmetric, none of them negative; their sum must be positive definite.
        means: where :math:`\nabla f_i` vanishes, ``(N,)`` or ``(N, d)``; one of means and pulls.
        pulls: :math:`b_i`, ``(N,)`` or ``(N, d)``, which a singular :math:`A_i` needs.

    Attributes:
        curvatures: :math:`A_i`, ``(N, d, d)``.
        pulls: :math:`b_i`, ``(N, d)``.
        rows: what each agent's minibatches are drawn from: of each row of its data the curvature
            H_j and the pull p_j, ``(n_i, d, d)`` and ``(n_i, d)``, with the row's share of the
            gradient :math:`H_j x - p_j`; or None.

    Raises:
        InputError: shapes that do not fit, or a target that is not a Gaussian law.

    Example:
        >>> agents = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])
        >>> print(agents.target_mean, agents.target_covariance)
        [3.] [[0.25]]
    """

    def __init__(
        self,
        curvatures: ArrayLike,
        *,
        means: ArrayLike | None = None,
        pulls: ArrayLike | None = None,
    ) -> None:
        if (means is None) == (pulls is None):
            raise InputError("GaussianAgents: give one of means and pulls.")
        name = "means" if pulls is None else "pulls"
        centres = floats(means if pulls is None else pulls, name)  # type: ignore[arg-type]
        centres = centres[:, None] if centres.ndim == 1 else centres
        if centres.ndim != 2 or not centres.size:
            raise InputError(f"{name} has shape {centres.shape}: give (agents,) or (agents, d).")
        count, d = centres.shape
        given = floats(curvatures, "curvatures")
        if given.ndim == 1:
            given = np.repeat(given[:, None], d, axis=1)
        if given.ndim == 2:
            given = given[:, :, None] * np.eye(given.shape[1])
        if given.shape != (count, d, d):
            raise InputError(
                f"curvatures has shape {np.shape(curvatures)} for {count} agents in {d} "
                "dimensions: give (agents,), (agents, d) or (agents, d, d)."
            )
        if not np.allclose(given, np.swapaxes(given, 1, 2), rtol=1e-9, atol=0.0):
            raise InputError("curvatures: a matrix is not symmetric.")
        values = np.linalg.eigvalsh(given)
        if np.min(values) < -1e-6 * np.max(np.abs(values)):
            raise InputError("curvatures: a matrix has a negative eigenvalue.")
        if np.linalg.eigvalsh(given.sum(axis=0))[0] <= 0:
            raise InputError("curvatures: their sum is not positive definite.")
        self.curvatures = given
        self.pulls = centres if means is None else np.einsum("nij,nj->ni", given, centres)
        self.rows: tuple[tuple[Array, Array], ...] | None = None

    @classmethod
    def linear_regression(
        cls,
        shards: Sequence[Any],
        *,
        noise_variance: float = 1.0,
        prior_variance: float = 1.0,
    ) -> GaussianAgents:
        r"""Agents that share a Bayesian linear regression with known noise and a normal prior.

        .. math:: A_i = X_i^\top X_i/\sigma^2 + I/(Ns^2), \qquad b_i = X_i^\top y_i/\sigma^2

        Args:
            shards: one for each agent: a pair (features ``(n_i, d)``, responses ``(n_i,)``) or a
                dict with ``x`` and ``y``.
            noise_variance: σ².
            prior_variance: s².
        """
        sigma2 = number(noise_variance, "noise_variance", strict=True)
        s2 = number(prior_variance, "prior_variance", strict=True)
        scale = np.sqrt(sigma2)
        rows = []
        for shard in shards:
            x, y = (shard["x"], shard["y"]) if isinstance(shard, dict) else shard
            x, y = np.asarray(x, np.float64) / scale, np.asarray(y, np.float64) / scale
            rows.append((x[:, :, None] * x[:, None, :], x * y[:, None]))
        if not rows:
            raise InputError("shards is empty: give at least one agent.")
        share = np.eye(rows[0][1].shape[1]) / (len(rows) * s2)
        agents = cls(
            [curvatures.sum(axis=0) + share for curvatures, _ in rows],
            pulls=[pulls.sum(axis=0) for _, pulls in rows],
        )
        agents.rows = tuple(rows)
        return agents

    @classmethod
    def near(cls, model: Any, sites: Any, position: Any, *, rows: bool = True) -> GaussianAgents:
        r"""The agents of any model, by the second-order expansion of their potentials at a point.

        Exact for Gaussian potentials; else what holds as long as positions stay near.

        Args:
            model: a `consortia.Model`.
            sites: a `consortia.Sites`, each site one agent.
            position: the point, parameters like the model's.
            rows: keep every row's expansion, which the noise of minibatches needs: d² numbers a
                row.

        Raises:
            InputError: a site's potential is not convex there, or their sum not strictly.
        """
        target, point = _at(model, position)
        sizes = np.asarray(sites.sizes)
        of_sites, of_rows, of_prior = _expansions(model, _structure_key(target))
        prior = [np.asarray(part, np.float64) / len(sizes) for part in of_prior(point)]
        data = jax.tree.map(_device_array, sites.padded())
        if rows:
            parts = [np.asarray(part, np.float64) for part in of_rows(point, data)]
            kept = [(parts[0][i, :n], parts[1][i, :n]) for i, n in enumerate(sizes)]
            matrices = np.stack([own[0].sum(axis=0) for own in kept])
            pulls = np.stack([own[1].sum(axis=0) for own in kept])
        else:
            both = of_sites(point, data, jnp.asarray(sizes, jnp.int32))
            matrices, pulls = (np.asarray(part, np.float64) for part in both)
        matrices = matrices + prior[0]
        # Single precision leaves Hessians symmetric to rounding only.
        agents = cls((matrices + np.swapaxes(matrices, 1, 2)) / 2, pulls=pulls + prior[1])
        if rows:
            agents.rows = tuple(kept)
        return agents

    @property
    def count(self) -> int:
        """N."""
        return len(self.pulls)

    @property
    def dimension(self) -> int:
        """Number of parameters d."""
        return self.pulls.shape[1]

    @cached_property
    def target_covariance(self) -> Array:
        """Covariance of exp(−Σ f_i), ``(d, d)``."""
        return np.linalg.inv(self.curvatures.sum(axis=0))

    @cached_property
    def target_mean(self) -> Array:
        """Mean of exp(−Σ f_i), ``(d,)``."""
        return np.linalg.solve(self.curvatures.sum(axis=0), self.pulls.sum(axis=0))

    @cached_property
    def smoothness(self) -> float:
        """L, the largest eigenvalue of any A_i."""
        return float(np.linalg.eigvalsh(self.curvatures).max())

    @cached_property
    def strong_convexity(self) -> float:
        """μ, the smallest eigenvalue of any A_i."""
        return float(np.linalg.eigvalsh(self.curvatures).min())

    def stacked_curvature(self) -> Array:
        """diag(A_1, …, A_N), ``(N d, N d)``."""
        return block_diagonal(self.curvatures)


def _at(model: Model, position: Any) -> tuple[Target, Any]:
    """The target of a model, and the flat position of these parameters."""
    parameters = jax.tree.map(jnp.asarray, position)
    target = Target(model, parameters)
    return target, target.ravel(parameters)


def _device_array(leaf: Array) -> Any:
    return jnp.asarray(leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False))


def _structure_key(target: Target) -> Any:
    leaves, structure = jax.tree.flatten(target.structure)
    return structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


@lru_cache(maxsize=8)
def _expansions(model: Model, key: Any) -> tuple[Any, Any, Any]:
    """Compiled second-order expansions: of the sites, of each row there, and of the prior.

    Each gives the curvature H and the pull H x − ∇ at a point x; kept for the next call.
    """
    structure, leaves = key
    example = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves]
    target = Target(model, jax.tree.unflatten(structure, example))

    def expansion(function: Any, point: Any) -> Any:
        curvature = jax.hessian(function)(point)
        return curvature, curvature @ point - jax.grad(function)(point)

    def of_site(point: Any, rows: Any, size: Any) -> Any:
        def potential(x: Any) -> Any:
            values = target.log_likelihood(x, rows)
            return -jnp.sum(jnp.where(jnp.arange(len(values), dtype=size.dtype) < size, values, 0))

        return expansion(potential, point)

    def of_row(point: Any, row: Any) -> Any:
        one = jax.tree.map(lambda leaf: leaf[None], row)
        return expansion(lambda x: -target.log_likelihood(x, one)[0], point)

    rows_of_site = jax.vmap(of_row, in_axes=(None, 0))
    return (
        jax.jit(jax.vmap(of_site, in_axes=(None, 0, 0))),
        jax.jit(jax.vmap(rows_of_site, in_axes=(None, 0))),
        jax.jit(lambda point: expansion(lambda x: -target.log_prior(x), point)),
    )


def block_diagonal(blocks: Array) -> Array:
    """Blocks (N, d, d) on the diagonal of a matrix (N d, N d)."""
    agents, d, _ = blocks.shape
    result = np.zeros((agents, d, agents, d))
    result[np.arange(agents), :, np.arange(agents)] = blocks
    return result.reshape(agents * d, agents * d)
