"""Mixing matrices from graphs, and whatever a user gives as ``mixing``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consortia.core import arguments
from consortia.errors import InputError, wrong
from consortia.graphs import builders
from consortia.graphs.mixing import MixingMatrix
from consortia.graphs.schedule import MixingSchedule

KINDS = ("metropolis", "laplacian", "max_degree", "lazy", "uniform", "identity")

NETWORKS = ("complete", "ring", "path", "star", "identity")
"""Networks that a name and the number of agents say all about."""


Mixing = MixingMatrix | MixingSchedule | str | ArrayLike
"""Values that stand for a mixing matrix, SciPy's sparse matrices included."""


def mixing_matrix(
    graph: Any, kind: Any = "metropolis", *, delta: float | None = None, agents: int | None = None
) -> MixingMatrix:
    r"""Return a doubly stochastic matrix on a graph.

    With :math:`d_i` the number of neighbours of i, Δ the largest of them and L the graph's
    Laplacian, the weights of neighbours i ≠ j are (the rest is :math:`W_{ii} = 1 - \sum_j W_{ij}`)

    ============== ===========================================================================
    ``metropolis`` :math:`1/(1 + \max(d_i, d_j))`; needs to know the neighbours' degrees only
    ``lazy``       half of that, so that no eigenvalue is negative
    ``max_degree`` :math:`1/(1 + \Delta)`
    ``laplacian``  ``delta``, so that :math:`W = I - \delta L`; without it :math:`1/(1 + \Delta)`
    ``uniform``    :math:`1/(1 + d_i)`: the plain average with all neighbours, for regular graphs
                   only: :math:`11^\top/N` if complete, ⅓ ⅓ ⅓ on a ring
    ``identity``   0: nobody sends anything
    ============== ===========================================================================

    Args:
        graph: a `networkx.Graph` (edge attributes and self-loops do not count; agent i is the i-th
            node), or pairs of agents, as an edge list.
        kind: one of the names above; or a matrix of your own, which is checked against the graph.
        delta: δ of ``laplacian``, positive; at most :math:`1/\Delta` so that no weight is negative.
        agents: number of agents, for an edge list.

    Returns:
        The matrix. The graph may be disconnected.

    Raises:
        InputError: an unknown kind, a graph that is empty or directed, weights that are negative,
            not doubly stochastic, or on an edge that the graph lacks.

    Example:
        >>> from consortia import graphs
        >>> W = graphs.mixing_matrix(graphs.ring(5))
        >>> np.asarray(W)[0].round(3)
        array([0.333, 0.333, 0.   , 0.   , 0.333])

    Source: the slides on Gürbüzbalaban et al. (2021) take :math:`W = I - \delta L`; Metropolis and
    max-degree weights are those of Xiao, Boyd, "Fast linear iterations for distributed averaging"
    (2004).
    """
    first, second, count = _edges(graph, agents)
    degrees = np.bincount(first, minlength=count)
    if not isinstance(kind, str):
        return _on_graph(MixingMatrix.of(kind), first, second, count)
    if kind not in KINDS:
        raise wrong("kind", f" is {kind!r}: use one of {', '.join(KINDS)}, or give a matrix.")
    if delta is not None and kind != "laplacian":
        raise wrong("delta", f" is for kind='laplacian', not for kind={kind!r}.")
    most = int(degrees.max(initial=0))
    larger = np.maximum(degrees[first], degrees[second])
    if kind == "laplacian" and delta is not None:
        step = arguments.number("delta", delta, 0.0, np.inf)
        if step * most > 1.0 + 1e-12:
            raise InputError(
                f"delta={step:g} makes the own weight of an agent with {most} neighbours negative:"
                f" give at most {1 / most:g}."
            ).at("delta")
        weights = np.full(len(first), step)
    elif kind in ("laplacian", "max_degree"):
        weights = np.full(len(first), 1.0 / (1 + most))
    elif kind == "identity":
        weights = np.zeros(len(first))
    else:
        weights = 1.0 / (1.0 + larger)
    if kind == "lazy":
        weights = weights / 2
    if kind == "uniform":
        _check_regular(degrees, first, second)
        diagonal = 1.0 / (1.0 + degrees)
    else:
        diagonal = 1.0 - np.bincount(first, weights=weights, minlength=count)
        diagonal[np.abs(diagonal) < 1e-12] = 0.0  # rounding would leave weights below 0
    everyone = np.arange(count)
    return MixingMatrix(
        np.concatenate([first, everyone]),
        np.concatenate([second, everyone]),
        np.concatenate([weights, diagonal]),
        count,
    )


def as_mixing(mixing: Mixing) -> MixingMatrix | MixingSchedule | str:
    """Read a gossip method's network: a matrix, a schedule of them, or a network's name.

    Raises:
        InputError: none of these, or a matrix that is not doubly stochastic.
    """
    if isinstance(mixing, MixingSchedule):
        return mixing
    if isinstance(mixing, str):
        if mixing not in NETWORKS:
            raise InputError(
                f"mixing is {mixing!r}: use one of {', '.join(NETWORKS)}, or "
                "consortia.graphs.mixing_matrix(graph)."
            ).at("mixing")
        return mixing
    return MixingMatrix.of(mixing)


def resolve(mixing: Any, agents: int) -> MixingMatrix:
    """Return the matrix for this number of agents, from a matrix, rows or a network's name.

    Args:
        mixing: a matrix, rows, or the name of a network (`NETWORKS`).
        agents: how many there are.

    Returns:
        The matrix.

    Raises:
        InputError: the matrix is for another number of agents, or there are several in turn.

    Example:
        >>> resolve("ring", 4)
        MixingMatrix(4 agents, 8 links, form='roll')
    """
    matrix = resolve_any(mixing, agents)
    if isinstance(matrix, MixingSchedule):
        raise wrong("mixing", " is a schedule of matrices, and only one can be used here.")
    return matrix


@lru_cache(maxsize=64)
def resolve_any(mixing: Any, agents: int) -> MixingMatrix | MixingSchedule:
    """Return the result of `resolve`, or a schedule."""
    matrix = as_mixing(mixing)
    if isinstance(matrix, str):
        return _named(matrix, agents)
    if matrix.agents != agents:
        raise InputError(
            f"mixing is for {matrix.agents} agents, there are {agents} sites: give one row and "
            "one column for each."
        ).at("mixing")
    return matrix


def _named(name: str, agents: int) -> MixingMatrix:
    if name == "identity":
        return mixing_matrix((), "identity", agents=agents)
    kind = "uniform" if name in ("complete", "ring") else "metropolis"
    return mixing_matrix(getattr(builders, name)(agents), kind)


def _edges(graph: Any, agents: int | None) -> tuple[np.ndarray, np.ndarray, int]:
    """Return both directions of every edge between different agents, and how many agents."""
    if isinstance(graph, str):
        known = graph in NETWORKS and graph != "identity"
        text = f"graphs.{graph}({agents or 'AGENTS'})" if known else "graphs.ring(AGENTS)"
        raise InputError(
            f"graph is {graph!r}, the name of a network: give the network itself, e.g. {text}. A "
            "method takes the name alone, as its argument mixing."
        ).at("graph")
    if hasattr(graph, "is_directed"):
        if graph.is_directed():
            raise wrong("graph", " is directed: gossip needs links in both directions.")
        number = {node: i for i, node in enumerate(graph.nodes)}
        pairs = [(number[a], number[b]) for a, b in graph.edges()]
        count = len(number)
    else:
        if agents is None:
            raise InputError(
                "agents is missing: a list of edges does not say how many agents there are; give "
                "agents=, or a networkx graph with a node for each site."
            ).at("agents")
        pairs, count = list(graph), arguments.whole("agents", agents, 1)
    if count == 0:
        raise wrong("graph", " has no nodes: give one node for each site.")
    try:
        ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    except (ValueError, TypeError):
        raise InputError(
            f"graph is {graph!r}: give a networkx graph, or a list of pairs of agents' indices."
        ).at("graph") from None
    strange = np.flatnonzero(np.any((ends < 0) | (ends >= count), axis=1))
    if strange.size:
        raise InputError(
            f"graph: edge {tuple(ends[strange[0]].tolist())} names an agent outside 0..{count - 1}."
        ).at("graph")
    ends = ends[ends[:, 0] != ends[:, 1]]
    both = np.concatenate([ends, ends[:, ::-1]])
    first, second = np.divmod(np.unique(both[:, 0] * count + both[:, 1]), count)
    return first, second, count


def _check_regular(degrees: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    unlike = np.flatnonzero(degrees[first] != degrees[second])
    if unlike.size:
        i, j = int(first[unlike[0]]), int(second[unlike[0]])
        raise InputError(
            f"kind='uniform' is not doubly stochastic here: neighbours {i} and {j} have "
            f"{degrees[i]} and {degrees[j]} neighbours. Use kind='metropolis'."
        ).at("kind")


def _on_graph(
    matrix: MixingMatrix, first: np.ndarray, second: np.ndarray, count: int
) -> MixingMatrix:
    if matrix.agents != count:
        raise InputError(
            f"the matrix is for {matrix.agents} agents, the graph has {count} nodes: give one row "
            "and one column for each."
        ).at("matrix")
    other = matrix.rows != matrix.columns
    keys = matrix.rows[other].astype(np.int64) * count + matrix.columns[other]
    missing = np.flatnonzero(~np.isin(keys, first * count + second))
    if missing.size:
        i, j = divmod(int(keys[missing[0]]), count)
        raise InputError(
            f"mixing: agent {i} gives agent {j} the weight {matrix.values[other][missing[0]]:g}, "
            "but the graph has no edge between them: set it to zero or add the edge."
        ).at("mixing")
    return matrix
