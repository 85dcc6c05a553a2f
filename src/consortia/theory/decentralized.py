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

import numpy as np
from numpy.typing import ArrayLike

from consortia.core import arguments
from consortia.graphs.laplacian import laplacian_of
from consortia.graphs.weights import Mixing
from consortia.theory.affine import Array
from consortia.theory.agents import GaussianAgents
from consortia.theory.arguments import filled
from consortia.theory.gossip import Network, agent_law, at_agents, over_agents, resolved, symbols
from consortia.theory.law import AgentMoments, Law, Moments


def decentralized_hmc_law(
    agents: GaussianAgents,
    mixing: Mixing,
    *,
    step_size: float,
    variant: str = "corrected",
    gossip_rounds: int = 1,
) -> Law:
    """Return the exact law of `consortia.decentralized_hmc` on Gaussian agents, after mixing.

    Args:
        agents: the problem.
        mixing: W, as in `consortia.decentralized_hmc`.
        step_size: ε.
        variant: ``"corrected"``; or ``"published"``, the law while every proposal is accepted.
        gossip_rounds: R.

    Returns:
        The law. It is returned for unstable settings too: see ``stable``.

    Raises:
        InputError: an argument has a wrong shape or value.

    Example:
        >>> agents = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])
        >>> for variant in ("corrected", "published"):
        ...     law = decentralized_hmc_law(agents, "complete", step_size=0.1, variant=variant)
        ...     print(law.stationary.mean.round(6), law.stationary.sd_ratio.round(3))
        [3.] [1.003]
        [3.] [0.711]
    """
    epsilon = arguments.positive("step_size", step_size)
    arguments.one_of("variant", variant, ("corrected", "published"))
    drift = epsilon**2 if variant == "published" else epsilon**2 / 2
    rounds = arguments.whole("gossip_rounds", gossip_rounds, 1)

    def iteration(agents: GaussianAgents, network: Network) -> list[Array]:
        x, z, pulls, noise = symbols(agents, network, 2, balanced=True)
        gradient = at_agents(agents.curvatures, x) - pulls
        tracked = over_agents(np.linalg.matrix_power(network.links, rounds), z + gradient)
        return [over_agents(network.links, x - drift * tracked + noise), tracked - gradient]

    return agent_law(agents, mixing, iteration, noise=epsilon**2)


def decentralized_ula_moments(
    agents: GaussianAgents,
    mixing: Mixing,
    *,
    step_size: float,
    iterations: int,
    start: ArrayLike,
    decay: tuple[float, float] = (0.55, 230.0),
    consensus: tuple[float, float, float] = (0.48, 0.01, 230.0),
    noise: str = "corrected",
) -> Moments:
    """Return the exact moments of `consortia.decentralized_ula` after some iterations.

    Args:
        agents: the problem.
        mixing: the network.
        step_size: α₀.
        iterations: how many; the time grows with it, because no two are equal.
        start: where all agents start, a number or ``(d,)``.
        decay: (δ₂, b₁).
        consensus: (β₀, δ₁, b₂).
        noise: ``"corrected"`` or ``"published"``.

    Returns:
        The moments of the average over the agents, with those of each agent.

    Raises:
        InputError: an argument has a wrong shape or value.

    Example:
        >>> from consortia.oracles import GaussianAgents
        >>> agents = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])
        >>> found = decentralized_ula_moments(
        ...     agents, "complete", step_size=0.4, iterations=200, start=0.0)
        >>> found.sd_ratio.round(2)
        array([1.02])
    """
    alpha = arguments.positive("step_size", step_size)
    arguments.one_of("noise", noise, ("corrected", "published"))
    power, offset = decay
    first, slow, begin = consensus
    m, d = agents.pulls.shape
    laplacian = np.kron(laplacian_of(resolved(agents, mixing)), np.eye(d))
    curvature, pulls = agents.stacked_curvature(), agents.pulls.ravel()
    identity = np.eye(m * d)
    temperature = m if noise == "corrected" else 1
    mean = np.tile(filled(start, (d,), "start"), m)
    covariance = np.zeros_like(identity)
    for t in range(arguments.whole("iterations", iterations, 0)):
        step = alpha * (t + offset) ** -power
        pull = first * (t + begin) ** -slow
        moved = identity - pull * laplacian - step * m * curvature
        mean = moved @ mean + step * m * pulls
        covariance = moved @ covariance @ moved.T + 2 * step * temperature * identity
    target = Moments(agents.target_mean, agents.target_covariance)
    return AgentMoments(mean.reshape(m, d), covariance, target).average
