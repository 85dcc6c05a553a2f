"""The Laplacian of a network, and an exchange that gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from consortia.graphs.mixing import MixingMatrix
from consortia.graphs.weights import mixing_matrix
from consortia.runtime.late import jnp


def laplacian_exchange(mixing: MixingMatrix | str) -> tuple[MixingMatrix | str, Callable[..., Any]]:
    """Return a matrix I − δL on the network, and δ as a function of the (traced) agents' count."""
    if isinstance(mixing, MixingMatrix):
        matrix = mixing_matrix(links_of(mixing), "laplacian", agents=mixing.agents)
        most = int(np.bincount(links_of(mixing)[:, 0], minlength=mixing.agents).max(initial=0))
        return matrix, lambda agents: jnp.full_like(agents, 1 / (1 + most))
    # The weights of a network by name are 1/(1 + most neighbours) on every link.
    if mixing in ("complete", "star"):
        return mixing, lambda agents: 1 / agents
    if mixing in ("ring", "path"):
        return mixing, lambda agents: 1 / jnp.minimum(agents, 3)
    return mixing, jnp.ones_like


def largest_laplacian_eigenvalue(matrix: MixingMatrix) -> float:
    """Return λ_max of the graph's Laplacian, whatever the weights."""
    links = links_of(matrix)
    most = int(np.bincount(links[:, 0], minlength=matrix.agents).max(initial=0))
    on_graph = mixing_matrix(links, "laplacian", agents=matrix.agents)
    return (1 - on_graph.smallest_eigenvalue) * (1 + most)


def laplacian_of(matrix: MixingMatrix) -> np.ndarray:
    """Return the graph's Laplacian, (agents, agents), whatever the weights."""
    adjacency = np.zeros((matrix.agents, matrix.agents))
    adjacency[tuple(links_of(matrix).T)] = 1.0
    return np.diag(adjacency.sum(axis=1)) - adjacency


def links_of(matrix: MixingMatrix) -> np.ndarray:
    """Return the ordered pairs of agents with a positive weight either way, (links, 2)."""
    other = matrix.rows != matrix.columns
    pairs = np.stack([matrix.rows[other], matrix.columns[other]], axis=1)
    return np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
