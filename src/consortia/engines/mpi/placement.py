"""The division of sites among ranks, and the neighbours of a rank in gossip."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consortia.engines.mpi.communicator import Links
from consortia.errors import InputError
from consortia.graphs import MixingMatrix, MixingSchedule


@dataclass(frozen=True)
class Places:
    """The sites of each rank: consecutive ones, as evenly as their number permits."""

    nodes: int  # number of sites
    ranks: int  # number of ranks, at most one for each site
    rank: int  # the one whose view this is

    def __post_init__(self) -> None:
        if self.ranks > self.nodes:
            raise InputError(
                f"there are {self.ranks} ranks for {self.nodes} sites: start at most as many ranks "
                f"as sites (mpiexec -n {self.nodes})."
            )

    @property
    def bounds(self) -> np.ndarray:
        """Rank r holds the sites bounds[r] to bounds[r + 1] − 1; (ranks + 1,)."""
        return np.arange(self.ranks + 1) * self.nodes // self.ranks

    @property
    def own(self) -> np.ndarray:
        """Numbers of this rank's sites."""
        return np.arange(self.bounds[self.rank], self.bounds[self.rank + 1])

    def owner(self, node: np.ndarray) -> np.ndarray:
        """Return the rank that holds each of these sites."""
        return np.searchsorted(self.bounds, node, side="right") - 1

    def lines(self, names: tuple[str, ...], processes: list[int]) -> list[str]:
        """List the ranks, with this process id, and their sites: one line each."""
        held = [names[self.bounds[r] : self.bounds[r + 1]] for r in range(self.ranks)]
        return [
            f"rank {rank} (process {number}): {some(sites)}"
            for rank, (sites, number) in enumerate(zip(held, processes, strict=True))
        ]


@dataclass(frozen=True)
class Neighbourhood:
    """The part of a mixing matrix that concerns this rank's agents."""

    links: Links  # rows to and from neighbouring ranks
    # of each own agent, one neighbour after the other: an own agent, or one from elsewhere behind
    # all own ones, (slots, own agents); itself where it has fewer
    senders: np.ndarray
    slots: np.ndarray  # where the weights of those are found, (slots, own agents)
    # W_ij and, behind them, a zero for an agent that hears itself, float64 (turns, links + 1)
    weights: np.ndarray

    @classmethod
    def of(cls, mixing: MixingMatrix | MixingSchedule, places: Places) -> Neighbourhood:
        """Return the part of ``mixing`` for one rank."""
        if isinstance(mixing, MixingSchedule):
            receivers, senders, weights = mixing.table()
        else:
            other = mixing.rows != mixing.columns
            receivers, senders = mixing.rows[other], mixing.columns[other]
            weights = mixing.values[other][None]
        hears, heard = places.owner(receivers), places.owner(senders)
        here = hears == places.rank
        outside = here & (heard != places.rank)
        foreign = np.unique(senders[outside])  # sorted by number, hence by rank
        origin = places.owner(foreign)
        sources = np.unique(origin)
        abroad = hears != heard
        asked = (heard == places.rank) & (hears != places.rank)
        destinations = np.unique(hears[asked])
        leaving = [np.unique(senders[asked & (hears == to)]) for to in destinations]
        first, count = places.own[0], len(places.own)
        mine = heard[here] == places.rank
        index = np.where(mine, senders[here] - first, 0)
        index[~mine] = count + np.searchsorted(foreign, senders[here][~mine])
        links = Links(
            tuple(int(rank) for rank in sources),
            tuple(int((origin == rank).sum()) for rank in sources),
            tuple(int(rank) for rank in destinations),
            np.concatenate([*leaving, np.zeros(0, int)]).astype(int) - first,
            tuple(len(rows) for rows in leaving),
            tuple(sorted(set(zip(hears[abroad].tolist(), heard[abroad].tolist(), strict=True)))),
        )
        own_weights = np.pad(weights[:, here], ((0, 0), (0, 1)))
        return cls(links, *_slots(receivers[here] - first, index, count), own_weights)


def _slots(
    receivers: np.ndarray, senders: np.ndarray, agents: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each agent's neighbour in each slot, and the index of the link; (slots, agents)."""
    most = int(np.bincount(receivers, minlength=agents).max(initial=0))
    neighbours = np.tile(np.arange(agents), (most, 1))
    link = np.full((most, agents), len(receivers))
    taken = np.zeros(agents, int)
    for number, (receiver, sender) in enumerate(zip(receivers, senders, strict=True)):
        neighbours[taken[receiver], receiver], link[taken[receiver], receiver] = sender, number
        taken[receiver] += 1
    return neighbours, link


MOST_NAMES = 6
"""Sites of a rank that the plan names."""


def some(names: tuple[str, ...]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
