"""A `Mailbox` in one process: a simulated trace of events, and a ring of past replies."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from consortia.core.contract import Algorithm, Mailbox
from consortia.core.target import in_jax_width
from consortia.engines.rng import Arrival, Events
from consortia.errors import warn
from consortia.runtime.late import Array, PyTree, jax, jnp
from consortia.schedules.events import Trace, simulate

STRETCH = 16384
"""Events handed to the compiled program at once, so that a trace's length is not in its shapes."""

RING_BYTES = 2 * 1024 * 1024
"""A ring is made longer than its trace needs within this size, so that seeds share programs."""

WINDOWS = 100
"""Parts of a run whose staleness is recorded."""

MISDECLARED = 0.1
"""Relative gap between a declared share and the counted one beyond which the user is warned."""


class Ring(NamedTuple):
    """The inbox of a `Mailbox`: past replies, of which a worker may hold any."""

    # pytree of arrays (length, chains, ...); the reply to update l − 1 is at l modulo the length
    replies: PyTree
    last: PyTree  # the latest of them


def mailbox_of(algorithm: Algorithm) -> Mailbox | None:
    """Return the algorithm's `Mailbox`, or None; it is then its only phase.

    Raises:
        TypeError: there are other phases beside it.
    """
    phases = algorithm.phases
    mailboxes = [phase.exchange for phase in phases if isinstance(phase.exchange, Mailbox)]
    if not mailboxes:
        return None
    if len(phases) > 1 or algorithm.fit or algorithm.setup or algorithm.draws.hub is None:
        raise TypeError("a phase with a Mailbox must be the only one, and its hub must draw")
    return mailboxes[0]


def servers_of(algorithm: Algorithm) -> int:
    """Return independent copies of every chain: the servers of its `Mailbox`."""
    mailbox = mailbox_of(algorithm)
    return 1 if mailbox is None else mailbox.servers


# --- the ring of past replies ---------------------------------------------------------------------


def ring_length(largest_staleness: int, workers: int, reply_bytes: int) -> int:
    """Choose the length of the ring: a power of two that serves most other seeds' traces too."""
    roomy = min(16 * workers, RING_BYTES // max(reply_bytes, 1))
    wanted = max(largest_staleness + 1, roomy, 1)
    return 1 << (wanted - 1).bit_length()


def held(ring: Ring, arrival: Arrival) -> PyTree:
    """Return the replies that the workers hold whose messages arrive now, chain axis first."""
    length = jax.tree.leaves(ring.replies)[0].shape[0]
    slot = (arrival.update - arrival.staleness) % length
    index = (slot,) if slot.ndim == 0 else (slot, jnp.arange(slot.size))
    return jax.tree.map(lambda leaf: leaf[index], ring.replies)


def pushed(ring: Ring, reply: PyTree, update: Int32[Array, ""]) -> Ring:
    """Return the ring with the reply to this update in the place of the oldest."""

    def put(leaf: Array, value: Array) -> Array:
        slot = (update + 1) % leaf.shape[0]
        return jax.lax.dynamic_update_index_in_dim(leaf, value, slot, 0)

    return Ring(jax.tree.map(put, ring.replies, reply), reply)


def latest(inbox: PyTree) -> PyTree:
    """Return the last reply, where an inbox holds past ones too."""
    return inbox.last if isinstance(inbox, Ring) else inbox


# --- the trace -----------------------------------------------------------------------------------


class Arrivals:
    """The trace of a run, simulated once for all of its chains.

    Args:
        mailbox: workers, servers, latencies.
        seed: of the run.
        updates: accepted updates of each server, warm-up included.
        warmup: of these, the ones before the first recorded one.
        names: names of the sites; each worker holds its own if there are several.

    Attributes:
        trace: the events.
        shares: weight of each worker's site, (servers, workers); ones with a single site.
    """

    def __init__(
        self, mailbox: Mailbox, seed: int, updates: int, warmup: int, names: tuple[str, ...]
    ) -> None:
        several = len(names) > 1
        self.trace: Trace = simulate(
            mailbox.latency,
            workers=mailbox.workers,
            servers=mailbox.servers,
            max_staleness=mailbox.max_staleness,
            updates=updates,
            warmup=warmup,
            seed=seed,
            sites=names if several else None,
        )
        self.shares = np.ones((mailbox.servers, mailbox.workers))
        if several:
            self.shares = self.trace.shares
            if mailbox.shares is not None:
                if mailbox.by_share:
                    compare_shares(np.asarray(mailbox.shares), self.shares, names)
                self.shares = np.tile(mailbox.shares, (mailbox.servers, 1))
        self._columns = [self.trace.accepted(n) for n in ("worker", "task", "staleness")]
        self._here: Events | None = None
        self._index = -1

    def stretch(self, update: int) -> tuple[Events, int]:
        """Return the events around one update, and the first update beyond them."""
        index = update // STRETCH
        if self._here is None or index != self._index:
            start = index * STRETCH
            rows = [column[:, start : start + STRETCH] for column in self._columns]
            missing = STRETCH - rows[0].shape[1]
            padded = [in_jax_width(np.pad(row, ((0, 0), (0, missing)))) for row in rows]
            shares = in_jax_width(np.asarray(self.shares, np.float64))
            # Put as they are: `jnp.asarray` would compile a program for each type.
            self._here = Events(*jax.device_put((np.int32(start), *padded, shares)))
            self._index = index
        return self._here, (index + 1) * STRETCH

    def record(self) -> dict[str, Any]:
        """Record the trace for the result of a run; of updates after the warm-up only."""
        return facts_of(self.trace)


def facts_of(trace: Trace) -> dict[str, Any]:
    """Return staleness, drops, throughput and shares of a trace, as plain values."""
    return {
        "workers": trace.workers,
        "servers": trace.servers,
        "staleness": [float(value) for value in trace.mean_staleness],
        "staleness_largest": trace.largest_staleness,
        "staleness_histogram": trace.histogram().tolist(),
        "staleness_windows": _windows(trace.accepted("staleness")),
        "dropped_gradients": trace.drops.tolist(),
        "throughput": [float(value) for value in trace.throughput],
        "simulated_time": [float(row[-1]) for row in trace.accepted("finish")],
        "update_shares": trace.shares.tolist(),
    }


def _windows(staleness: np.ndarray) -> dict[str, Any]:
    """Return mean and largest staleness (servers, updates) of each server over equal windows."""
    updates = staleness.shape[1]
    edges = np.unique(np.linspace(0, updates, min(WINDOWS, updates) + 1).astype(int))
    sums, largest = (f.reduceat(staleness, edges[:-1], axis=1) for f in (np.add, np.maximum))
    return {
        "edges": edges.tolist(),
        "mean": (sums / np.diff(edges)).tolist(),
        "largest": largest.tolist(),
    }


def compare_shares(declared: np.ndarray, counted: np.ndarray, names: tuple[str, ...]) -> None:
    """Warn where declared shares (sites,) are far from the counted ones, (servers, sites)."""
    gap = np.abs(declared / counted - 1)
    server, site = np.unravel_index(int(np.argmax(gap)), gap.shape)
    if gap[server, site] > MISDECLARED:
        warn(
            f"site {names[site]!r} is declared to have {declared[site]:.3f} of the updates and has "
            f"{counted[server, site]:.3f} of those of server {server}: the chain samples a "
            "posterior in which sites are counted in proportion to counted / declared share."
        )
