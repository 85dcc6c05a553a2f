"""The Laplacian of a network, and an exchange that gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia import graphs
from consortia.errors import InputError
from consortia.graphs import MixingMatrix

MOST_NUMBERS = 2_000_000
"""Of the curvatures of all sites."""

MOST_PRODUCTS = 2_000_000_000
"""Rows times squared parameters, about a second of work."""


def laplacian_exchange(mixing: MixingMatrix | str) -> tuple[MixingMatrix | str, Callable[..., Any]]:
    """A matrix I − δL on the network, and δ as a function of the (traced) number of agents."""
    if isinstance(mixing, MixingMatrix):
        matrix = graphs.mixing_matrix(links_of(mixing), "laplacian", agents=mixing.agents)
        most = int(np.bincount(links_of(mixing)[:, 0], minlength=mixing.agents).max(initial=0))
        return matrix, lambda agents: jnp.full_like(agents, 1 / (1 + most))
    # The weights of a network by name are 1/(1 + most neighbours) on every link.
    if mixing in ("complete", "star"):
        return mixing, lambda agents: 1 / agents
    if mixing in ("ring", "path"):
        return mixing, lambda agents: 1 / jnp.minimum(agents, 3)
    return mixing, jnp.ones_like


def largest_laplacian_eigenvalue(matrix: MixingMatrix) -> float:
    """λ_max of the graph's Laplacian, whatever the weights."""
    links = links_of(matrix)
    most = int(np.bincount(links[:, 0], minlength=matrix.agents).max(initial=0))
    on_graph = graphs.mixing_matrix(links, "laplacian", agents=matrix.agents)
    return (1 - on_graph.smallest_eigenvalue) * (1 + most)


def largest_curvature(model: Any, sites: Any, parameters: Any) -> float | None:
    """λ_max of ∇²U at a point; None where it is too large to compute, or not convex there."""
    from consortia.theory.gossip_agents import GaussianAgents

    dimension = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(parameters))
    if len(sites) * dimension**2 > MOST_NUMBERS or sites.rows * dimension**2 > MOST_PRODUCTS:
        return None
    try:
        agents = GaussianAgents.near(model, sites, parameters, rows=False)
    except InputError:  # not convex there: nothing can be said
        return None
    return float(np.linalg.eigvalsh(agents.curvatures.sum(axis=0))[-1])


def links_of(matrix: MixingMatrix) -> np.ndarray:
    """(links, 2): ordered pairs of different agents with a positive weight either way."""
    other = matrix.rows != matrix.columns
    pairs = np.stack([matrix.rows[other], matrix.columns[other]], axis=1)
    return np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
