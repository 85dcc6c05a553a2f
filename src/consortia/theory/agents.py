"""Agents with Gaussian potentials, as the gossip oracles read them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from consortia.core import arguments
from consortia.core.model import Model
from consortia.data.sites import Sites
from consortia.errors import InputError, wrong
from consortia.theory.arguments import Array, check_density, curvatures_of, floats, full_matrices
from consortia.theory.potentials import SitePotentials

PyTree = Any


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
        by_modes: laws are those of `consortia.theory.coupled_modes`, as there are too many.

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
            raise wrong(name, f" has shape {centres.shape}: give (agents,) or (agents, d).")
        given = full_matrices(
            curvatures_of(curvatures, centres.shape, "curvatures", "agents", rounding=1e-6)
        )
        check_density(given.sum(axis=0), "curvatures")
        self.curvatures = given
        self.pulls = centres if means is None else np.einsum("nij,nj->ni", given, centres)
        self.rows: tuple[tuple[Array, Array], ...] | None = None
        self.by_modes = False

    @classmethod
    def linear_regression(
        cls,
        shards: Sequence[PyTree],
        *,
        noise_variance: float = 1.0,
        prior_variance: float = 1.0,
    ) -> GaussianAgents:
        r"""Return agents of a Bayesian linear regression with known noise and a normal prior.

        .. math:: A_i = X_i^\top X_i/\sigma^2 + I/(Ns^2), \qquad b_i = X_i^\top y_i/\sigma^2

        Args:
            shards: one for each agent: a pair (features ``(n_i, d)``, responses ``(n_i,)``) or a
                dict with ``x`` and ``y``.
            noise_variance: σ².
            prior_variance: s².
        """
        sigma2 = arguments.positive("noise_variance", noise_variance)
        s2 = arguments.positive("prior_variance", prior_variance)
        scale = np.sqrt(sigma2)
        rows = []
        for shard in shards:
            x, y = (shard["x"], shard["y"]) if isinstance(shard, dict) else shard
            x, y = np.asarray(x, np.float64) / scale, np.asarray(y, np.float64) / scale
            rows.append((x[:, :, None] * x[:, None, :], x * y[:, None]))
        if not rows:
            raise wrong("shards", " is empty: give at least one agent.")
        share = np.eye(rows[0][1].shape[1]) / (len(rows) * s2)
        agents = cls(
            [curvatures.sum(axis=0) + share for curvatures, _ in rows],
            pulls=[pulls.sum(axis=0) for _, pulls in rows],
        )
        agents.rows = tuple(rows)
        return agents

    @classmethod
    def near(
        cls, model: Model, sites: Sites, position: PyTree, *, rows: bool = True
    ) -> GaussianAgents:
        r"""Return the agents of any model, by second-order expansions of their potentials.

        Exact for Gaussian potentials; else what holds as long as positions stay near.

        Args:
            model: the model.
            sites: the data, each site one agent.
            position: the point, parameters like the model's.
            rows: keep every row's expansion, which the noise of minibatches needs: d² numbers a
                row.

        Raises:
            InputError: a site's potential is not convex there, or their sum not strictly.
        """
        potentials = SitePotentials(model, sites, position)
        origin = potentials.start
        _, slope, prior = potentials.prior(origin)
        kept = None
        if rows:
            expansions = [potentials.single_rows(i, origin) for i in range(len(sites))]
            kept = tuple((hessians, hessians @ origin - slopes) for hessians, slopes in expansions)
            matrices = np.stack([curvatures.sum(axis=0) for curvatures, _ in kept])
            pulls = np.stack([pulls.sum(axis=0) for _, pulls in kept])
        else:
            _, gradients, matrices = potentials.expansion(origin)
            pulls = matrices @ origin - gradients
        share = 1 / len(sites)
        # Single precision leaves Hessians symmetric to rounding only.
        matrices = (matrices + matrices.mT) / 2 + share * (prior + prior.T) / 2
        agents = cls(matrices, pulls=pulls + share * (prior @ origin - slope))
        agents.rows = kept
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
    def target_covariance(self) -> Float[np.ndarray, "d d"]:
        """Covariance of exp(−Σ f_i), ``(d, d)``."""
        return np.linalg.inv(self.curvatures.sum(axis=0))

    @cached_property
    def target_mean(self) -> Float[np.ndarray, " d"]:
        """Mean of exp(−Σ f_i), ``(d,)``."""
        return np.linalg.solve(self.curvatures.sum(axis=0), self.pulls.sum(axis=0))

    @cached_property
    def apart(self) -> tuple[Array, Array, Array]:
        """The mean curvature's eigenvalues and principal axes, and each A_i less it along these."""
        values, axes = np.linalg.eigh(self.curvatures.mean(axis=0))
        return values, axes, axes.T @ self.curvatures @ axes - np.diag(values)

    @cached_property
    def smoothness(self) -> float:
        """L, the largest eigenvalue of any A_i."""
        return float(np.linalg.eigvalsh(self.curvatures).max())

    @cached_property
    def strong_convexity(self) -> float:
        """μ, the smallest eigenvalue of any A_i."""
        return float(np.linalg.eigvalsh(self.curvatures).min())

    def stacked_curvature(self) -> Float[np.ndarray, "Nd Nd"]:
        """Return diag(A_1, …, A_N), ``(N d, N d)``."""
        return block_diagonal(self.curvatures)


def block_diagonal(blocks: Float[np.ndarray, "N d d"]) -> Float[np.ndarray, "Nd Nd"]:
    """Return blocks (N, d, d) on the diagonal of a matrix (N d, N d)."""
    from scipy.linalg import block_diag  # imported where it is needed: it takes a while

    return block_diag(*blocks)
