r"""The exact law of decentralized MA-HMC and ULA on Gaussian agents, agent by agent.

With :math:`U_i(\omega) = \tfrac12 \omega^\top A_i \omega - b_i^\top \omega`, an iteration without
rejections is linear in the positions and in :math:`z = g - c`, the tracked gradients less the
agents' own, which starts at 0:

.. math::
    g' = W^R (z + A\omega - b), \qquad \omega' = W(\omega - h g' - \epsilon p), \qquad
    z' = g' - (A\omega - b)

with h = ε²/2 corrected and ε² as published. The sum of z over the agents stays 0, which is why the
*average* gradient is tracked without error. With one agent the variance along an eigenvalue λ is

.. math:: \frac{1}{\lambda(1 - \epsilon^2\lambda/4)} \text{ corrected}, \qquad
          \frac{1}{\lambda(2 - \epsilon^2\lambda)} \text{ as published}

and for m agents on a complete network, whose curvatures agree, the same with λ/m for λ in the
brackets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consortia import graphs
from consortia.errors import InputError
from consortia.theory.gaussian_clients import count, number
from consortia.theory.gossip_agents import GaussianAgents
from consortia.theory.gossip_law import GossipLaw, GossipMoments
from consortia.theory.gossip_recursion import Recursion


def decentralized_hmc_law(
    agents: GaussianAgents,
    mixing: Any,
    *,
    step_size: float,
    variant: str = "corrected",
    gossip_rounds: int = 1,
) -> GossipLaw:
    """The exact law of `consortia.decentralized_hmc` on Gaussian agents, after mixing.

    Args:
        agents: the problem.
        mixing: W, as in `consortia.decentralized_hmc`.
        step_size: ε.
        variant: ``"corrected"``; or ``"published"``, the law while every proposal is accepted.
        gossip_rounds: R.

    Returns:
        The law. It is returned for unstable settings too: ask ``.stable``.

    Raises:
        InputError: an argument has a wrong shape or value.

    Example:
        >>> agents = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])
        >>> for variant in ("corrected", "published"):
        ...     law = decentralized_hmc_law(agents, "complete", step_size=0.1, variant=variant)
        ...     moments = law.stationary
        ...     ratio = moments.average_covariance / moments.target_covariance
        ...     print(moments.average_mean.round(6), np.sqrt(ratio).round(3))
        [3.] [[1.003]]
        [3.] [[0.711]]
    """
    epsilon = number(step_size, "step_size", strict=True)
    if variant not in ("corrected", "published"):
        raise InputError(f"variant is {variant!r}: use 'corrected' or 'published'.")
    drift = epsilon**2 if variant == "published" else epsilon**2 / 2
    matrix = graphs.resolve(graphs.as_mixing(mixing), agents.count)
    eye = np.eye(agents.dimension)
    links = np.kron(np.asarray(matrix), eye)
    tracking = np.linalg.matrix_power(links, count(gossip_rounds, "gossip_rounds"))
    curvature, pulls = agents.stacked_curvature(), agents.pulls.ravel()
    identity = np.eye(len(links))
    pulled = drift * links @ tracking
    recursion = np.block(
        [
            [links - pulled @ curvature, -pulled],
            [(tracking - identity) @ curvature, tracking],
        ]
    )
    offset = np.concatenate([pulled @ pulls, -(tracking - identity) @ pulls])
    # The sum of z over each part of the network stays 0: take it out.
    parts = matrix.component_of
    same = (parts[:, None] == parts[None, :]) / np.bincount(parts)[parts][:, None]
    size = len(links)
    recursion[:, size:] -= recursion[:, size:] @ np.kron(same, eye)
    entry = np.concatenate([links, np.zeros_like(links)])
    step = Recursion(recursion, offset, entry, np.eye(agents.count), epsilon, drift, averaged=False)
    return GossipLaw(agents, step, None)


def decentralized_ula_moments(
    agents: GaussianAgents,
    mixing: Any,
    *,
    step_size: float,
    iterations: int,
    start: ArrayLike,
    decay: tuple[float, float] = (0.55, 230.0),
    consensus: tuple[float, float, float] = (0.48, 0.01, 230.0),
    noise: str = "corrected",
) -> GossipMoments:
    """The exact law of `consortia.decentralized_ula` on Gaussian agents after some iterations.

    Args:
        agents: the problem.
        mixing: the network.
        step_size: α₀.
        iterations: how many; the time grows with it, because no two are alike.
        start: where all agents start, a number or ``(d,)``.
        decay: (δ₂, b₁).
        consensus: (β₀, δ₁, b₂).
        noise: ``"corrected"`` or ``"published"``.

    Raises:
        InputError: an argument has a wrong shape or value.
    """
    alpha = number(step_size, "step_size", strict=True)
    if noise not in ("corrected", "published"):
        raise InputError(f"noise is {noise!r}: use 'corrected' or 'published'.")
    power, offset = decay
    first, slow, begin = consensus
    m, d = agents.pulls.shape
    matrix = graphs.resolve(graphs.as_mixing(mixing), m)
    linked = (np.asarray(matrix) > 0) & ~np.eye(m, dtype=bool)
    adjacency = (linked | linked.T).astype(np.float64)
    laplacian = np.kron(np.diag(adjacency.sum(axis=1)) - adjacency, np.eye(d))
    curvature, pulls = agents.stacked_curvature(), agents.pulls.ravel()
    identity = np.eye(m * d)
    heat = m if noise == "corrected" else 1
    mean = np.broadcast_to(np.asarray(start, np.float64), (m, d)).ravel().copy()
    covariance = np.zeros_like(identity)
    for t in range(count(iterations, "iterations", least=0)):
        step = alpha * (t + offset) ** -power
        pull = first * (t + begin) ** -slow
        moved = identity - pull * laplacian - step * m * curvature
        mean = moved @ mean + step * m * pulls
        covariance = moved @ covariance @ moved.T + 2 * step * heat * identity
    return GossipMoments(
        mean.reshape(m, d), covariance, agents.target_mean, agents.target_covariance
    )
