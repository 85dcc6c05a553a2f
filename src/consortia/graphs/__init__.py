"""Networks of agents, and the weights with which neighbours average.

Gossip methods need a doubly stochastic matrix W whose entry W_ij is positive only where agents i
and j are neighbours (or i = j). `mixing_matrix` makes one from a graph; agent i of the graph is
site number i.
"""

from consortia.core import public
from consortia.graphs.builders import cliques as cliques
from consortia.graphs.builders import complete as complete
from consortia.graphs.builders import erdos_renyi as erdos_renyi
from consortia.graphs.builders import grid as grid
from consortia.graphs.builders import path as path
from consortia.graphs.builders import ring as ring
from consortia.graphs.builders import star as star
from consortia.graphs.builders import torus as torus
from consortia.graphs.mixing import MixingMatrix as MixingMatrix
from consortia.graphs.network import agent_errors as agent_errors
from consortia.graphs.network import disagreement as disagreement
from consortia.graphs.network import picture as picture
from consortia.graphs.schedule import MixingSchedule as MixingSchedule
from consortia.graphs.schedule import lost_links as lost_links
from consortia.graphs.weights import NETWORKS as NETWORKS
from consortia.graphs.weights import mixing_matrix as mixing_matrix
from consortia.graphs.weights import resolve as resolve

__all__ = public.names(vars())
