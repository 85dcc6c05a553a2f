"""Networks that change: a sequence of mixing matrices, one an iteration, and lost links."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.errors import wrong
from consortia.graphs.mixing import Array, MixingMatrix


class MixingSchedule:
    """Mixing matrices in turn: iteration k uses the matrix of index k modulo their number.

    A value: it never changes, and compares and hashes by its content.

    Attributes:
        matrices: the matrices, of equally many agents.

    Raises:
        InputError: there are no matrices, or they are for unlike numbers of agents.

    Example:
        >>> MixingSchedule([[[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]])
        MixingSchedule(2 matrices in turn, 2 agents)
    """

    def __init__(self, matrices: Iterable[Any]) -> None:
        self.matrices = tuple(MixingMatrix.of(matrix, "matrices") for matrix in matrices)
        if not self.matrices:
            raise wrong("matrices", " is empty: give at least one mixing matrix.")
        sizes = {matrix.agents for matrix in self.matrices}
        if len(sizes) > 1:
            raise wrong("matrices", f" are for {sorted(sizes)} agents: give equal sizes.")
        content = "".join(matrix.digest for matrix in self.matrices)
        self.digest = hashlib.sha256(content.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MixingSchedule) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __len__(self) -> int:
        return len(self.matrices)

    def __repr__(self) -> str:
        return f"MixingSchedule({len(self)} matrices in turn, {self.agents} agents)"

    @property
    def agents(self) -> int:
        """Number of agents."""
        return self.matrices[0].agents

    @property
    def links(self) -> int:
        """Messages of one iteration, on average over the schedule, rounded up."""
        return -(-sum(matrix.links for matrix in self.matrices) // len(self))

    @property
    def symmetric(self) -> bool:
        """True if all matrices are."""
        return all(matrix.symmetric for matrix in self.matrices)

    @cached_property
    def average(self) -> MixingMatrix:
        """The mean of the matrices; where it is connected, all agents influence one another."""
        total = sum(matrix.sparse() for matrix in self.matrices)
        return MixingMatrix.of(total / len(self))

    @property
    def components(self) -> int:
        """Number of parts of the network without a link between them."""
        return self.average.components

    @property
    def component_of(self) -> Array:
        """Index of the part of each agent, (agents,)."""
        return self.average.component_of

    def table(self) -> tuple[Array, Array, Array]:
        """Return receivers and senders of all links, (links,), and weights, (turns, links)."""
        keys = [m.rows.astype(np.int64) * m.agents + m.columns for m in self.matrices]
        every = np.unique(np.concatenate(keys))
        every = every[every // self.agents != every % self.agents]
        weights = np.zeros((len(self), len(every)))
        for turn, (links, matrix) in enumerate(zip(keys, self.matrices, strict=True)):
            other = matrix.rows != matrix.columns
            weights[turn, np.searchsorted(every, links[other])] = matrix.values[other]
        receivers, senders = np.divmod(every, self.agents)
        return receivers.astype(np.int32), senders.astype(np.int32), weights

    def summary(self) -> dict[str, Any]:
        """Return plain values that identify the schedule, for the record of a run."""
        return {
            "agents": self.agents,
            "turns": len(self),
            "links": self.links,
            "components": self.components,
            "sha256": self.digest,
        }


@arguments.hinted
def lost_links(mixing: Any, probability: float, *, turns: int, seed: int) -> MixingSchedule:
    """Return a schedule in which every link of a network fails now and then.

    In each of ``turns`` iterations each edge is lost with this probability, independently; its
    weight goes to the own weight of both ends, so that each matrix stays doubly stochastic. After
    ``turns`` iterations the same losses come again.

    Args:
        mixing: a symmetric mixing matrix.
        probability: of a loss, in [0, 1).
        turns: length of the schedule, at least 1.
        seed: seed of the losses.

    Returns:
        The schedule, of ``turns`` matrices.

    Raises:
        InputError: an argument is out of its range, or the matrix is not symmetric.

    Example:
        >>> from consortia import graphs
        >>> len(graphs.lost_links(graphs.mixing_matrix(graphs.ring(6)), 0.2, turns=8, seed=0))
        8
    """
    matrix = MixingMatrix.of(mixing)
    if not matrix.symmetric:
        raise wrong("mixing", " is not symmetric: a lost link must take the same from both ends.")
    chance = arguments.number("probability", probability, 0.0, 1.0)
    if chance == 1.0:
        raise wrong("probability", " is 1: no link would ever hold.")
    rng = np.random.default_rng(arguments.whole("seed", seed, 0))
    upper = matrix.rows < matrix.columns
    first, second, weights = matrix.rows[upper], matrix.columns[upper], matrix.values[upper]
    everyone = np.arange(matrix.agents)
    matrices = []
    for _ in range(arguments.whole("turns", turns, 1)):
        kept = rng.uniform(size=len(first)) >= chance
        i, j, w = first[kept], second[kept], weights[kept]
        received = np.bincount(i, w, matrix.agents) + np.bincount(j, w, matrix.agents)
        rows, columns = np.concatenate([i, j, everyone]), np.concatenate([j, i, everyone])
        rest = np.maximum(1.0 - received, 0.0)
        matrices.append(MixingMatrix(rows, columns, np.concatenate([w, w, rest]), matrix.agents))
    return MixingSchedule(matrices)
