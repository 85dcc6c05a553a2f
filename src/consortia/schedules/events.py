r"""Simulated asynchrony: who sends a gradient when, and how stale it is, without any numerics.

A worker fetches parameters, works for a while and sends its gradient. The server takes gradients
in the order of their arrival (ties: the lowest worker), updates and answers that worker alone. With
l the updates that the server has done,

.. math:: \tau = l - (\text{version at which the gradient was computed}).

The order of events does not depend on the numbers computed, so that it is simulated first, on the
host, and the numerics then run in one loop over it. A gradient with τ above a bound is dropped: the
server's state and l stay, the worker fetches the state again.

Over the events of one server with W workers and L updates, in integers,

.. math:: \sum_{\text{accepted}}\tau + \sum_{\text{dropped}}\tau
          + \sum_{\text{in flight}} (L - \text{version}) = L (W - 1),

whatever the durations, so that the mean staleness tends to W − 1 when nothing is dropped.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.errors import InputError
from consortia.latency import Latency, Recorded

Array = np.ndarray

LEAST_SHARE = 0.1
"""Least share of the updates from a site, in units of 1/sites; less stops the run."""

MOST_DROPPED = 0.5
"""Share of the gradients that may be dropped."""

FIRST_BLOCK = 256


@dataclass(frozen=True, eq=False)
class Trace:
    """The events of all servers, server by server, each in the order of its server."""

    workers: int  # W, workers per server
    updates: int  # L, accepted updates of each server, warm-up included
    warmup: int  # of these, updates before the first recorded one
    server: Array  # (events,), int32, as are the next four
    worker: Array  # numbered within its server
    task: Array  # number of the worker's task, from 0, dropped ones counted
    version: Array  # updates that the server had done when the worker fetched its parameters
    staleness: Array  # τ
    finish: Array  # simulated time at which the server answered, float64
    dropped: Array  # the gradient was too stale
    in_flight: Array  # versions that the workers hold at the end, (servers, workers), int32

    @property
    def servers(self) -> int:
        """Number of servers."""
        return len(self.in_flight)

    def accepted(self, field: str) -> Array:
        """Return a field of the accepted updates, (servers, updates)."""
        return getattr(self, field)[~self.dropped].reshape(self.servers, self.updates)

    @property
    def largest_staleness(self) -> int:
        """Largest staleness of an accepted update; a ring of one more reply serves the trace."""
        return int(self.staleness[~self.dropped].max())

    @cached_property
    def shares(self) -> Array:
        """f: each worker's share of its server's accepted updates after warm-up, (S, W)."""
        return np.stack(
            [
                np.bincount(row[self.warmup :], minlength=self.workers)
                for row in self.accepted("worker")
            ]
        ) / (self.updates - self.warmup)

    @property
    def drops(self) -> Array:
        """Dropped gradients, (servers, workers)."""
        count = np.zeros((self.servers, self.workers), np.int64)
        np.add.at(count, (self.server[self.dropped], self.worker[self.dropped]), 1)
        return count

    @property
    def mean_staleness(self) -> Array:
        """Mean staleness of the accepted updates after warm-up, (servers,)."""
        return self.accepted("staleness")[:, self.warmup :].mean(axis=1)

    def histogram(self) -> Array:
        """Return accepted updates after warm-up by staleness, (servers, largest staleness + 1)."""
        length = self.largest_staleness + 1
        rows = self.accepted("staleness")[:, self.warmup :]
        return np.stack([np.bincount(row, minlength=length) for row in rows])

    @property
    def throughput(self) -> Array:
        """Accepted updates per unit of simulated time, (servers,)."""
        return self.updates / self.accepted("finish")[:, -1]

    def excess(self) -> Array:
        """Return left minus right side of the integer identity, (servers,); 0 in any simulation."""
        total = np.zeros(self.servers, np.int64)
        np.add.at(total, self.server, self.staleness.astype(np.int64))
        held = (self.updates - self.in_flight.astype(np.int64)).sum(axis=1)
        return total + held - self.updates * (self.workers - 1)


def simulate(
    latency: Latency,
    *,
    workers: int,
    updates: int,
    servers: int = 1,
    max_staleness: int | None = None,
    warmup: int = 0,
    seed: int = 0,
    sites: tuple[str, ...] | None = None,
) -> Trace:
    """Return the events until each server has done ``updates`` updates.

    Args:
        latency: a model of `consortia.latency`; a recorded trace is replayed as it is.
        workers: W, workers per server.
        updates: L, accepted updates of each server, warm-up included.
        servers: S; they share nothing.
        max_staleness: gradients that are staler are dropped; none is when None.
        warmup: of the updates, those before the first recorded one.
        seed: of the durations.
        sites: names of the sites when each worker holds its own; then every site must send.

    Raises:
        InputError: an argument is out of its range; more than half of the gradients are dropped; a
            site has no updates, or fewer than a tenth of an equal share; a recorded trace names
            unknown workers or servers, versions from the future, or ends too early.
    """
    workers = arguments.whole("workers", workers, 1)
    servers = arguments.whole("servers", servers, 1)
    updates = arguments.whole("updates", updates, 1)
    warmup = arguments.whole("warmup", warmup, 0, updates - 1)
    cap = arguments.optional_whole("max_staleness", max_staleness, 0)
    if sites is not None and len(sites) != workers:
        raise InputError(
            f"there are {len(sites)} sites for {workers} workers per server: give one site that "
            "all workers share, or as many sites as workers."
        ).at("workers")
    latency.check(workers)
    if isinstance(latency, Recorded):
        logs = _logs(latency, servers)
        parts = [_replay(log, server, workers, updates, cap) for server, log in enumerate(logs)]
    else:
        parts = [_events(latency, seed, s, workers, updates, cap) for s in range(servers)]
    # Dropped gradients make servers differ in length: the trace is flat, with the server of each.
    columns = [np.concatenate([part[0][i] for part in parts]) for i in range(6)]
    lengths = [len(part[0][0]) for part in parts]
    worker, task, version, staleness, finish, dropped = columns
    trace = Trace(
        workers,
        updates,
        warmup,
        np.repeat(np.arange(servers, dtype=np.int32), lengths),
        worker,
        task,
        version,
        staleness,
        finish,
        dropped,
        np.array([part[1] for part in parts], np.int32),
    )
    _check_drops(trace, cap)
    if sites is not None and workers > 1:
        _check_shares(trace, sites, cap)
    return trace


def _events(
    latency: Latency, seed: int, server: int, workers: int, updates: int, cap: int | None
) -> tuple[list[Array], list[int]]:
    """Return the events of one server, as columns, and the versions in flight at the end."""
    limit = updates + 1 if cap is None else cap
    cost = latency.server_cost
    ahead = [
        latency.durations(seed, server, w, 0, FIRST_BLOCK)[::-1].tolist() for w in range(workers)
    ]
    drawn = [FIRST_BLOCK] * workers
    version, task = [0] * workers, [0] * workers
    heap = [(ahead[w].pop(), w) for w in range(workers)]
    heapq.heapify(heap)
    events: list[tuple[int, int, int, int, float, bool]] = []
    record, replace = events.append, heapq.heapreplace
    done, free = 0, 0.0
    while done < updates:
        now, w = heap[0]
        now = max(now, free)
        held, number = version[w], task[w]
        staleness = done - held
        dropped = staleness > limit
        if not dropped:
            free = now = now + cost
            done += 1
        record((w, number, held, staleness, now, dropped))
        version[w], task[w] = done, number + 1
        durations = ahead[w]
        if not durations:
            count = drawn[w]
            durations.extend(latency.durations(seed, server, w, count, count)[::-1].tolist())
            drawn[w] = 2 * count
        replace(heap, (now + durations.pop(), w))
    return _columns(events), version


def _columns(events: list[tuple[int, int, int, int, float, bool]]) -> list[Array]:
    table = np.array(events, np.dtype("i4, i4, i4, i4, f8, ?"))
    return [np.ascontiguousarray(table[name]) for name in table.dtype.names or ()]


# --- replay --------------------------------------------------------------------------------------


def _logs(latency: Recorded, servers: int) -> list[list[Any]]:
    """Return (event, worker, version, time) of each server."""
    logs: list[list[Any]] = [[] for _ in range(servers)]
    rows = zip(latency.servers, latency.workers, latency.versions, latency.times, strict=True)
    for event, (server, *row) in enumerate(rows):
        if server >= servers:
            raise InputError(
                f"recorded trace: event {event} names server {server}, but there are {servers}."
            ).at("latency")
        logs[server].append((event, *row))
    return logs


def _replay(
    log: list[Any], server: int, workers: int, updates: int, cap: int | None
) -> tuple[list[Array], list[int]]:
    limit = updates + 1 if cap is None else cap
    version, task = [0] * workers, [0] * workers
    events, done = [], 0
    for event, worker, held, time in log:
        if done == updates:
            break
        staleness = done - held
        if staleness < 0:
            raise InputError(
                f"recorded trace: event {event} says that worker {worker} of server {server} had "
                f"version {held}, but the server had done {done} updates: that is in the future."
            ).at("latency")
        dropped = staleness > limit
        events.append((worker, task[worker], held, staleness, time, dropped))
        done += not dropped
        version[worker], task[worker] = done, task[worker] + 1
    if done < updates:
        raise InputError(
            f"recorded trace: server {server} has {done} accepted updates, {updates} are needed: "
            "lower rounds or warmup, or raise max_staleness."
        ).at("latency")
    return _columns(events), version


# --- refusals ------------------------------------------------------------------------------------


def _check_drops(trace: Trace, cap: int | None) -> None:
    dropped = trace.drops.sum(axis=1)
    share = dropped / (dropped + trace.updates)
    worst = int(np.argmax(share))
    if share[worst] > MOST_DROPPED:
        raise InputError(
            f"max_staleness={cap} drops {share[worst]:.0%} of the gradients of server {worst}, "
            f"more than half; with {trace.workers} workers the staleness is {trace.workers - 1} on "
            "average: raise max_staleness, or take fewer workers."
        ).at("max_staleness")


def _check_shares(trace: Trace, sites: tuple[str, ...], cap: int | None) -> None:
    """Refuse a trace in which a site is too rare: another posterior would be sampled."""
    shares, drops = trace.shares, trace.drops
    server, site = np.unravel_index(int(np.argmin(shares)), shares.shape)
    share = shares[server, site]
    if share >= LEAST_SHARE / len(sites):
        return
    heard = "has no part in" if share == 0 else f"sends only {share:.2%} of"
    text = (
        f"site {sites[site]!r} {heard} the accepted updates of server {server} (an equal share is "
        f"{1 / len(sites):.2%}): the chain would leave its data out"
    )
    if drops[server, site]:
        text += f"; {drops[server, site]} of its gradients were staler than max_staleness={cap}"
        raise InputError(f"{text}: raise max_staleness.").at("max_staleness", site=sites[site])
    text += ": run longer, or make the workers' speeds more equal."
    raise InputError(text).at(site=sites[site])
