"""Stale gradients: eight workers of a parameter server on a logistic regression shaped as a9a.

The peer is a bare `jax.lax.scan` over the same trace of events with the same ring of past
parameters, its minibatch rows gathered in the loop and its random numbers drawn in blocks. The
trace is simulated anew in every call of both. The simulation alone is timed against a bare loop
over a heap that keeps the staleness and nothing else.
"""

from __future__ import annotations

import heapq
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from benchmarks import langevin
from benchmarks.measure import Contender, Gate, Row, interleaved, throughput
from consortia.schedules.events import simulate

NAME = "stale"
WORKERS, BLOCK = 8, 64
STEP = 2e-6
SIZES = {
    "full": {"updates": 200_000, "pairs": 7},
    "quick": {"updates": 50_000, "pairs": 5},
    "tiny": {"updates": 300, "pairs": 1},
}


def library(x: np.ndarray, y: np.ndarray, updates: int) -> Contender:
    """The whole call of `consortia.sample`."""
    model = consortia.models.logistic_regression(x.shape[1])
    sites = consortia.Sites.from_list([{"x": x, "y": y}])
    method = consortia.stale_sgld(STEP, langevin.BATCH, workers=WORKERS)

    def run(seed: int) -> Any:
        return consortia.sample(
            model, sites, method, rounds=updates, seed=seed, progress=False, chains=1
        )

    return Contender("consortia.sample", run, updates)


def bare(x: np.ndarray, y: np.ndarray, updates: int) -> Contender:
    """One compiled scan over the trace."""
    rows, width = x.shape
    data = jnp.asarray(x), jnp.asarray(y)
    blocks = math.ceil(updates / BLOCK)
    ring = 16 * WORKERS

    @jax.jit
    def chain(theta: Any, key: Any, staleness: Any, x: Any, y: Any) -> Any:
        def block(state: Any, inputs: Any) -> Any:
            number, late = inputs
            first, second = jax.random.split(jax.random.fold_in(key, number))
            chosen = jax.random.randint(first, (BLOCK, langevin.BATCH), 0, rows)
            normals = jax.random.normal(second, (BLOCK, width))

            def body(state: Any, inputs: Any) -> Any:
                theta, held, update = state
                index, normal, tau = inputs
                old = held[(update - tau) % ring]
                gradient = langevin.hand_gradient(old, x[index], y[index], rows)
                theta = theta - STEP * gradient + math.sqrt(2 * STEP) * normal
                held = jax.lax.dynamic_update_index_in_dim(held, theta, (update + 1) % ring, 0)
                return (theta, held, update + 1), theta

            return jax.lax.scan(body, state, (chosen, normals, late))

        start = (theta, jnp.zeros((ring, width)), jnp.int32(0))
        late = staleness.reshape(blocks, BLOCK)
        _, draws = jax.lax.scan(block, start, (jnp.arange(blocks), late))
        return draws.reshape(-1, width)

    model = consortia.latency.lognormal()

    def run(seed: int) -> Any:
        trace = simulate(model, workers=WORKERS, updates=blocks * BLOCK, seed=seed)
        if trace.largest_staleness >= ring:
            raise RuntimeError("the bare ring is too short for this trace")
        late = jnp.asarray(trace.staleness)
        return np.asarray(chain(jnp.zeros(width), jax.random.key(seed), late, *data))

    return Contender("bare JAX scan over the same trace", run, blocks * BLOCK)


def simulation(updates: int) -> Contender:
    """All that is recorded of the events of one server."""
    model = consortia.latency.exponential()

    def run(seed: int) -> Any:
        return simulate(model, workers=WORKERS, updates=updates, seed=seed)

    return Contender("simulated events", run, updates)


def bare_heap(updates: int) -> Contender:
    """The least that such a simulation can do."""

    def run(seed: int) -> Any:
        waits = iter(np.random.default_rng(seed).exponential(size=updates + WORKERS).tolist())
        heap = [(next(waits), worker) for worker in range(WORKERS)]
        heapq.heapify(heap)
        held = [0] * WORKERS
        staleness = []
        for done in range(updates):
            now, worker = heap[0]
            staleness.append(done - held[worker])
            held[worker] = done + 1
            heapq.heapreplace(heap, (now + next(waits), worker))
        return staleness

    return Contender("bare loop over a heap", run, updates)


def rows(scale: str) -> list[Row]:
    """The figures."""
    sizes = SIZES[scale]
    x, y = langevin.data()
    contenders = [library(x, y, sizes["updates"]), bare(x, y, sizes["updates"])]
    times = interleaved(contenders, sizes["pairs"])
    peers = [simulation(sizes["updates"]), bare_heap(sizes["updates"])]
    bare_times = interleaved(peers, sizes["pairs"])
    return [
        throughput(NAME, times, *(c.name for c in contenders), gate=Gate(">=", 0.9)),
        throughput(NAME, bare_times, *(c.name for c in peers), gate=Gate(">=", 0.15), unit="event"),
    ]
