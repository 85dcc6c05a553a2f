r"""The covariance of minibatch gradients of Gaussian agents, given the law of the position.

A row's share of the gradient is :math:`g_j(x) = H_j x - p_j`; for a linear regression
:math:`H_j = X_j X_j^\top` and :math:`p_j = X_j y_j`. For b rows drawn with replacement from agent
i's n, at a position of mean m and covariance S, with averages over the rows,

.. math:: \operatorname{Cov} = \frac{n^2}{b}\Bigl[\overline{g_j(m) g_j(m)^\top + H_j S H_j}
          - \bar g(m) \bar g(m)^\top - \bar H S \bar H\Bigr]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from consortia.errors import InputError
from consortia.theory.gossip_agents import GaussianAgents

Array = NDArray[np.floating[Any]]


class BatchNoise:
    """Second moments of every agent's minibatch gradient.

    Args:
        agents: with rows.
        batch_size: b.
        replace: rows with replacement.
        anchor: the point of a control variate, ``(d,)``, or None.
    """

    def __init__(
        self, agents: GaussianAgents, batch_size: int, *, replace: bool, anchor: Array | None
    ) -> None:
        if agents.rows is None:
            raise InputError(
                "batch_size: these agents have no rows to draw; make them with "
                "GaussianAgents.linear_regression or GaussianAgents.near."
            )
        self._rows, self._anchor = agents.rows, anchor
        sizes = np.array([len(pulls) for _, pulls in agents.rows], np.float64)
        if not replace and batch_size > sizes.min():
            raise InputError(
                f"batch_size={batch_size} without replacement, but an agent has only "
                f"{int(sizes.min())} rows."
            )
        self._scale = sizes**2 / batch_size
        if not replace:
            self._scale = self._scale * (sizes - batch_size) / np.maximum(sizes - 1.0, 1.0)
        # The part that is linear in the covariance of the position, as matrices (N, d², d²).
        d = agents.dimension
        response = []
        for curvatures, pulls in agents.rows:
            pairs = np.einsum("jac,jbe->abce", curvatures, curvatures, optimize=True)
            mean = curvatures.mean(axis=0)
            response.append(pairs.reshape(d * d, d * d) / len(pulls) - np.kron(mean, mean))
        self._response = self._scale[:, None, None] * np.stack(response)

    def at_mean(self, means: Array) -> Array:
        """Covariances (N, d, d) of the gradients at fixed positions (N, d)."""
        result = []
        for scale, mean, (curvatures, pulls) in zip(self._scale, means, self._rows, strict=True):
            if self._anchor is None:
                gradients = curvatures @ mean - pulls
            else:
                gradients = curvatures @ (mean - self._anchor)
            centred = gradients - gradients.mean(axis=0)
            result.append(scale * centred.T @ centred / len(pulls))
        return np.stack(result)

    def of_spread(self, covariances: Array) -> Array:
        """What covariances (N, d, d) of the positions add to it, (N, d, d)."""
        flat = covariances.reshape(len(covariances), -1)
        return np.einsum("nij,nj->ni", self._response, flat).reshape(covariances.shape)
