"""Networks of agents, and the weights with which neighbours average.

Gossip methods need a doubly stochastic matrix W whose entry W_ij is positive only where agents i
and j are neighbours (or i = j). `mixing_matrix` makes one from a graph; agent i of the graph is
site number i.
"""

from __future__ import annotations

from consortia.graphs.builders import (
    cliques,
    complete,
    erdos_renyi,
    grid,
    path,
    ring,
    star,
    torus,
)
from consortia.graphs.mixing import MixingMatrix
from consortia.graphs.network import agent_errors, disagreement, picture
from consortia.graphs.schedule import MixingSchedule, lost_links
from consortia.graphs.weights import NETWORKS, mixing_matrix, resolve
from consortia.graphs.weights import as_mixing as as_mixing
from consortia.graphs.weights import resolve_any as resolve_any

__all__ = [
    "NETWORKS",
    "MixingMatrix",
    "MixingSchedule",
    "agent_errors",
    "cliques",
    "complete",
    "disagreement",
    "erdos_renyi",
    "grid",
    "lost_links",
    "mixing_matrix",
    "path",
    "picture",
    "resolve",
    "ring",
    "star",
    "torus",
]
