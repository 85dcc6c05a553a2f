"""The network of a run: disagreement over time, each agent's error, and a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from consortia.core.gaussian import gaussian_wasserstein2
from consortia.core.parameters import as_sampled
from consortia.errors import InputError, require_extra
from consortia.graphs.mixing import MixingMatrix


def disagreement(tree: Any) -> Any:
    r"""Measure the agents' distance from their average, draw by draw.

    .. math:: \Bigl(\tfrac1N \sum_i \|x_i - \bar x\|^2\Bigr)^{1/2}

    Args:
        tree: result of a run with ``draws="agents"``.

    Returns:
        `xarray.DataArray` (chain, draw), in units of the parameters.

    Raises:
        InputError: the run did not keep the agents' series.

    Example:
        >>> import xarray
        >>> draws = np.zeros((1, 2, 3, 1)) + np.array([[-1.0], [0.0], [1.0]])
        >>> agents = xarray.Dataset({"theta": (("chain", "draw", "agent", "axis"), draws)})
        >>> tree = xarray.DataTree.from_dict({"posterior": agents.mean("agent"), "agents": agents})
        >>> disagreement(tree).values.round(3)
        array([[0.816, 0.816]])
    """
    agents, names = _agents(tree)
    total: Any = 0.0
    for name in names:
        values = agents[name]
        squares = (values - values.mean("agent")) ** 2
        total = total + squares.sum([d for d in squares.dims if d not in ("chain", "draw")])
    return (np.sqrt(total / agents.sizes["agent"])).rename("disagreement")


def agent_errors(tree: Any, mean: Any, covariance: Any) -> np.ndarray:
    """Return W₂ of each agent's draws to a Gaussian law, by their first two moments.

    Args:
        tree: result of a run with ``draws="agents"``; its chains are pooled.
        mean: of the law, (d,), in the order of the flat parameters.
        covariance: of the law, (d, d).

    Returns:
        One distance an agent, (agents,).

    Raises:
        InputError: the run did not keep the agents' series.

    Example:
        >>> import xarray
        >>> draws = np.random.default_rng(0).normal(size=(4, 500, 3, 1))
        >>> agents = xarray.Dataset({"theta": (("chain", "draw", "agent", "axis"), draws)})
        >>> tree = xarray.DataTree.from_dict({"posterior": agents.mean("agent"), "agents": agents})
        >>> agent_errors(tree, [0.0], [[1.0]]).round(1)
        array([0., 0., 0.])
    """
    agents, names = _agents(tree)
    count = agents.sizes["agent"]
    parts = [agents[name].transpose("agent", "chain", "draw", ...).values for name in names]
    draws = np.concatenate(
        [part.reshape(count, part.shape[1] * part.shape[2], -1) for part in parts], axis=-1
    ).astype(np.float64)
    return np.array(
        [
            gaussian_wasserstein2(x.mean(axis=0), np.atleast_2d(np.cov(x.T)), mean, covariance)
            for x in draws
        ]
    )


def picture(mixing: Any, values: Any = None, *, label: str = "", axes: Any = None) -> Any:
    """Draw the network, each agent coloured by a value such as its error.

    Args:
        mixing: a `MixingMatrix`, an array or a SciPy sparse matrix.
        values: one number an agent, (agents,); one colour for all when None.
        label: what the colour means.
        axes: `matplotlib.axes.Axes` to draw on; a new figure when None.

    Returns:
        The axes.

    Raises:
        InputError: another number of values than of agents.
        MissingExtraError: Matplotlib is not installed.

    Example:
        >>> from consortia import graphs
        >>> axes = graphs.picture(graphs.resolve("ring", 8))  # doctest: +SKIP
    """
    with require_extra("plots", "a picture needs Matplotlib"):
        import matplotlib.pyplot as plt
    import networkx

    matrix = MixingMatrix.of(mixing)
    colours = None if values is None else np.asarray(values, np.float64)
    if colours is not None and colours.shape != (matrix.agents,):
        raise InputError(
            f"values has shape {colours.shape}: give one number for each of {matrix.agents} agents."
        ).at("values")
    if axes is None:
        _, axes = plt.subplots()
    graph = networkx.empty_graph(matrix.agents)
    one_way = matrix.rows < matrix.columns
    pairs = zip(matrix.rows[one_way].tolist(), matrix.columns[one_way].tolist(), strict=True)
    graph.add_edges_from(pairs)
    degrees = np.array([degree for _, degree in graph.degree()])
    ring_like = matrix.agents > 2 and int(degrees.max(initial=0)) <= 2
    layout = networkx.circular_layout if ring_like else networkx.kamada_kawai_layout
    if matrix.components > 1 or matrix.agents > 300:
        layout = networkx.circular_layout
    places = np.array([layout(graph)[agent] for agent in range(matrix.agents)])
    first, second = matrix.rows[one_way], matrix.columns[one_way]
    lines = np.stack([places[first], places[second]], axis=1)
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(list(lines), colors="0.8", linewidths=0.6, zorder=1))
    points = axes.scatter(*places.T, c=colours, s=30, zorder=2)
    if colours is not None:
        axes.figure.colorbar(points, ax=axes, label=label)
    axes.set_aspect("equal")
    axes.set_axis_off()
    return axes


def _agents(tree: Any) -> tuple[Any, list[str]]:
    if "agents" not in tree.children:
        raise InputError(
            "the run has no agents' series: run the method with draws='agents' to keep them."
        ).at("draws")
    agents = tree["agents"].to_dataset()
    names = [name for name in as_sampled(tree)["posterior"].data_vars if name in agents]
    if not names:
        raise InputError("the group agents holds no parameters: run with draws='agents'.")
    return agents, names
