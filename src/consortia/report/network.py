"""The figure of a gossip run: the network, each agent coloured by its error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from consortia import graphs


def draw_network(mixing: Any, tree: Any, path: Path, reference: Any = None) -> None:
    """Writes the network as a PNG.

    An agent's error is the 2-Wasserstein distance of its draws to the reference's, by their first
    two moments; without a reference, to the draws of the average, which is how far it disagrees.

    Args:
        mixing: W, a name or a schedule, of which the average is shown.
        tree: a result with the group ``agents``.
        path: of the file.
        reference: a result with the same parameters, or None.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    matrix, errors, label = errors_of(mixing, tree, reference)
    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    axes = figure.subplots()
    graphs.picture(matrix, errors, label=label, axes=axes)
    axes.set_title(f"{matrix.agents} agents, {matrix.links // 2} edges")
    FigureCanvasAgg(figure).print_png(path)


def errors_of(
    mixing: Any, tree: Any, reference: Any = None
) -> tuple[graphs.MixingMatrix, np.ndarray, str]:
    """The matrix, each agent's error (agents,) and what it is, as `draw_network` shows them."""
    matrix = graphs.resolve_any(mixing, tree["agents"].sizes["agent"])
    if isinstance(matrix, graphs.MixingSchedule):
        matrix = matrix.average
    names = list(tree["posterior"].data_vars)
    draws = _flat(tree if reference is None else reference, names)
    errors = graphs.agent_errors(tree, draws.mean(axis=0), np.atleast_2d(np.cov(draws.T)))
    other = "the average of the agents" if reference is None else "the reference"
    return matrix, errors, f"W₂ of an agent to {other}"


def _flat(tree: Any, names: list[Any]) -> np.ndarray:
    """Draws of these variables with all chains pooled, (draws, d)."""
    parts = [tree["posterior"][name].transpose("chain", "draw", ...).to_numpy() for name in names]
    count = parts[0].shape[0] * parts[0].shape[1]
    return np.concatenate([part.reshape(count, -1) for part in parts], axis=1).astype(np.float64)
