r"""The exact law of DE-SGLD and DE-SGHMC on Gaussian agents, agent by agent.

With :math:`f_i(x) = \tfrac12 x^\top A_i x - b_i^\top x` an iteration of all N agents is linear in
their positions, with :math:`\mathcal{W} = W \otimes I_d` and A the block diagonal matrix of the
curvatures

.. math::
    \text{DE-SGLD} \quad & x' = (\mathcal{W} - \eta A) x - q + \eta b + \sqrt{2\eta}\,\xi \\
    \text{DE-SGHMC} \quad & v' = (1 - \gamma\eta) v - \eta (A x - b) + \sqrt{2\gamma\eta}\,\xi,
    \qquad x' = \mathcal{W} x - q + \eta v' \\
    \text{EXTRA} \quad & q' = q + \tfrac12 (1 - \mathcal{W}) x, \qquad q_0 = 0

(q = 0 without the correction), so that means and covariances are known at every iteration.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consortia import graphs
from consortia.errors import InputError
from consortia.theory.gaussian_clients import count, filled, number
from consortia.theory.gossip_agents import Array, GaussianAgents
from consortia.theory.gossip_batches import BatchNoise
from consortia.theory.gossip_law import GossipLaw
from consortia.theory.gossip_recursion import Recursion


def de_sgld_law(
    agents: GaussianAgents,
    mixing: Any,
    *,
    step_size: float,
    correction: str | None = None,
    noise: str = "independent",
    averaged_noise: bool = False,
    batch_size: int | None = None,
    replace: bool = True,
    control_variate: ArrayLike | None = None,
    temperature: float = 1.0,
) -> GossipLaw:
    """The exact law of `consortia.de_sgld` on Gaussian agents.

    Args:
        agents: the problem.
        mixing: W, as in `consortia.de_sgld`.
        step_size: η.
        correction: None or ``"extra"``.
        noise: ``"independent"`` or ``"common"``.
        averaged_noise: average the noise over two steps.
        batch_size: rows a gradient (of agents that have rows); None for all.
        replace: rows with replacement.
        control_variate: the anchor, ``(d,)``, or None.
        temperature: factor of the noise's variance.

    Returns:
        The law. It is returned for unstable settings too: ask ``.stable``.

    Raises:
        InputError: an argument has a wrong shape or value.

    Example:
        >>> agents = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])
        >>> moments = de_sgld_law(agents, "complete", step_size=0.01).stationary
        >>> print(round(float(moments.w2_average), 4), moments.w2_agents.round(4))
        0.0152 [0.048  0.0172]
    """
    eta = number(step_size, "step_size", strict=True)
    heat = number(temperature, "temperature")
    links, curvature, identity = _system(agents, mixing)
    moved = links - eta * curvature
    nil = np.zeros_like(identity)
    offset = eta * agents.pulls.ravel()
    matrix, entry = moved, identity
    if _choice("correction", correction, (None, "extra")):
        half = (identity - links) / 2
        matrix = np.block([[moved, -identity], [half, identity]])
        entry, offset = np.concatenate([identity, nil]), np.append(offset, 0 * offset)
        _forget(matrix, agents, mixing)
    return GossipLaw(
        agents,
        Recursion(
            matrix,
            offset,
            entry,
            _correlation(agents, noise),
            np.sqrt(2 * eta * heat),
            eta,
            bool(averaged_noise),
        ),
        _batches(agents, batch_size, replace, control_variate),
        heat,
    )


def de_sghmc_law(
    agents: GaussianAgents,
    mixing: Any,
    *,
    step_size: float,
    friction: float,
    correction: str | None = None,
    noise: str = "independent",
    batch_size: int | None = None,
    replace: bool = True,
    control_variate: ArrayLike | None = None,
    temperature: float = 1.0,
) -> GossipLaw:
    """The exact law of `consortia.de_sghmc` on Gaussian agents.

    Args:
        agents: the problem.
        mixing: W, as in `consortia.de_sgld`.
        step_size: η.
        friction: γ.
        correction: None or ``"extra"``.
        noise: ``"independent"`` or ``"common"``.
        batch_size: rows a gradient (of agents that have rows); None for all.
        replace: rows with replacement.
        control_variate: the anchor, ``(d,)``, or None.
        temperature: factor of the noise's variance.

    Returns:
        The law of the positions. It is returned for unstable settings too: ask ``.stable``.

    Raises:
        InputError: an argument has a wrong shape or value.
    """
    eta = number(step_size, "step_size", strict=True)
    gamma = number(friction, "friction", strict=True)
    heat = number(temperature, "temperature")
    links, curvature, identity = _system(agents, mixing)
    nil = np.zeros_like(identity)
    kept = (1.0 - gamma * eta) * identity
    force = -eta * curvature
    blocks = [[links + eta * force, eta * kept], [force, kept]]
    entry = np.concatenate([eta * identity, identity])
    pulls = eta * agents.pulls.ravel()
    offset = np.concatenate([eta * pulls, pulls])
    if _choice("correction", correction, (None, "extra")):
        blocks[0].append(-identity)
        blocks[1].append(nil)
        blocks.append([(identity - links) / 2, nil, identity])
        entry, offset = np.concatenate([entry, nil]), np.append(offset, 0 * pulls)
    matrix = np.block(blocks)
    if correction:
        _forget(matrix, agents, mixing)
    scale = np.sqrt(2 * gamma * eta * heat)
    correlation = _correlation(agents, noise)
    return GossipLaw(
        agents,
        Recursion(matrix, offset, entry, correlation, scale, eta, averaged=False),
        _batches(agents, batch_size, replace, control_variate),
        heat,
    )


def _system(agents: GaussianAgents, mixing: Any) -> tuple[Array, Array, Array]:
    """W ⊗ I, the curvatures and the identity, all (N d, N d)."""
    matrix = graphs.resolve(graphs.as_mixing(mixing), agents.count)
    links = np.kron(np.asarray(matrix), np.eye(agents.dimension))
    return links, agents.stacked_curvature(), np.eye(len(links))


def _forget(matrix: Array, agents: GaussianAgents, mixing: Any) -> None:
    """Take the sum of q over each part of the network, which stays 0, out of the recursion."""
    parts = graphs.resolve(graphs.as_mixing(mixing), agents.count).component_of
    same = (parts[:, None] == parts[None, :]) / np.bincount(parts)[parts][:, None]
    size = agents.count * agents.dimension
    sums = np.kron(same, np.eye(agents.dimension))
    matrix[:, -size:] -= matrix[:, -size:] @ sums


def _correlation(agents: GaussianAgents, noise: str) -> Array:
    if _choice("noise", noise, ("independent", "common")) == "common":
        return np.full((agents.count, agents.count), 1.0 / agents.count)
    return np.eye(agents.count)


def _batches(
    agents: GaussianAgents, batch_size: int | None, replace: bool, anchor: ArrayLike | None
) -> BatchNoise | None:
    if batch_size is None:
        return None
    point = None if anchor is None else filled(anchor, (agents.dimension,), "control_variate")
    return BatchNoise(agents, count(batch_size, "batch_size"), replace=replace, anchor=point)


def _choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        raise InputError(f"{name} is {value!r}: use {' or '.join(map(repr, choices))}.")
    return value
