"""Graphs by name, as `networkx.Graph` with the agents 0, 1, ... as nodes."""

from __future__ import annotations

from typing import Any

from consortia.core import arguments


@arguments.hinted
def complete(agents: int) -> Any:
    """Return the graph in which every agent is a neighbour of every other.

    Args:
        agents: how many there are, 1 or more.

    Returns:
        `networkx.Graph` with the nodes 0, 1, ..., agents − 1.

    Raises:
        InputError: a number is not a whole one above 0.

    Example:
        >>> complete(4).number_of_edges()
        6
    """
    import networkx

    return networkx.complete_graph(arguments.whole("agents", agents, 1))


@arguments.hinted
def ring(agents: int) -> Any:
    """Return the graph of neighbours i − 1 and i + 1, the last one beside the first.

    Args:
        agents: how many there are, 1 or more.

    Returns:
        `networkx.Graph` with the nodes 0, 1, ..., agents − 1.

    Raises:
        InputError: a number is not a whole one above 0.

    Example:
        >>> sorted(ring(4)[0])
        [1, 3]
    """
    import networkx

    if arguments.whole("agents", agents, 1) < 3:
        return networkx.path_graph(agents)
    return networkx.cycle_graph(agents)


@arguments.hinted
def path(agents: int) -> Any:
    """Return a ring without the edge from the last agent to the first.

    Args:
        agents: how many there are, 1 or more.

    Returns:
        `networkx.Graph` with the nodes 0, 1, ..., agents − 1.

    Raises:
        InputError: a number is not a whole one above 0.

    Example:
        >>> sorted(path(4)[0])
        [1]
    """
    import networkx

    return networkx.path_graph(arguments.whole("agents", agents, 1))


@arguments.hinted
def star(agents: int) -> Any:
    """Return the graph of agent 0 beside all others, which have no other neighbour.

    Args:
        agents: how many there are, 1 or more.

    Returns:
        `networkx.Graph` with the nodes 0, 1, ..., agents − 1.

    Raises:
        InputError: a number is not a whole one above 0.

    Example:
        >>> sorted(star(4)[0])
        [1, 2, 3]
    """
    import networkx

    return networkx.star_graph(arguments.whole("agents", agents, 1) - 1)


@arguments.hinted
def grid(rows: int, columns: int) -> Any:
    """Return a rectangle: agent r · columns + c beside those above, below, left and right.

    Args:
        rows: 1 or more.
        columns: 1 or more.

    Returns:
        `networkx.Graph` of rows · columns nodes.

    Raises:
        InputError: a number is not a whole one above 0.

    Example:
        >>> sorted(grid(2, 3)[0])
        [1, 3]
    """
    return _rectangle(rows, columns, periodic=False)


@arguments.hinted
def torus(rows: int, columns: int) -> Any:
    """Return a `grid` whose opposite sides are joined.

    Args:
        rows: 1 or more.
        columns: 1 or more.

    Returns:
        `networkx.Graph` of rows · columns nodes.

    Raises:
        InputError: a number is not a whole one above 0.

    Example:
        >>> sorted(torus(3, 3)[0])
        [1, 2, 3, 6]
    """
    return _rectangle(rows, columns, periodic=True)


@arguments.hinted
def erdos_renyi(agents: int, probability: float, *, seed: int) -> Any:
    """Return a graph that joins each pair of agents with this probability, independently.

    It may be disconnected: connected ones are likely only well above log(agents)/agents.

    Args:
        agents: how many there are, 1 or more.
        probability: of each edge, from 0 to 1.
        seed: an integer; the same one gives the same graph.

    Returns:
        `networkx.Graph` with the nodes 0, 1, ..., agents − 1.

    Raises:
        InputError: a number is out of its range.

    Example:
        >>> erdos_renyi(5, 1.0, seed=0).number_of_edges()
        10
    """
    import networkx

    return networkx.fast_gnp_random_graph(
        arguments.whole("agents", agents, 1),
        arguments.number("probability", probability, 0.0, 1.0),
        seed=arguments.whole("seed", seed, 0),
    )


@arguments.hinted
def cliques(count: int, size: int) -> Any:
    """Return ``count`` complete graphs of ``size`` agents without an edge between them.

    Args:
        count: how many, 1 or more.
        size: agents of each, 1 or more.

    Returns:
        `networkx.Graph` of count · size nodes, those of one after those of the other.

    Raises:
        InputError: a number is not a whole one above 0.

    Example:
        >>> sorted(cliques(2, 3)[4])
        [3, 5]
    """
    import networkx

    graph = networkx.complete_graph(arguments.whole("size", size, 1))
    return networkx.disjoint_union_all([graph] * arguments.whole("count", count, 1))


def _rectangle(rows: int, columns: int, *, periodic: bool) -> Any:
    import networkx

    shape = (arguments.whole("rows", rows, 1), arguments.whole("columns", columns, 1))
    graph = networkx.grid_2d_graph(*shape, periodic=periodic)
    return networkx.convert_node_labels_to_integers(graph, ordering="sorted")
