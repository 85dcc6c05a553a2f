"""One rank of a job that times the MPI engine beside bare mpi4py, in turn; rank 0 prints JSON.

``mpiexec -n RANKS python -m benchmarks.mpi_job gossip|asynchronous PAIRS WORK``
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

import consortia
from benchmarks import langevin
from consortia.core.contract import Algorithm, Claims, Cost, Draws, Method, Mix, Phase
from consortia.core.target import Target
from consortia.engines.buffers import Window

FLOATS = 10_000
WARM = 50
"""Steps before the timed ones: everything is compiled, and the ranks have met."""

STOP, STEP = 1, 2e-6

ENGINE = consortia.MPIEngine(deadline=120)
"""Made before JAX starts, as the command line does; the peers compute in the same way."""


@dataclass(frozen=True)
class Consensus(Method):
    """Gossip alone: each node takes the weighted mean of its own and its neighbours' numbers."""

    name: str = "consensus"

    step_size = None
    claims = Claims("the sites' mean", "not known", "one number", "none", "gossip")

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """Equal."""
        return np.full(len(sizes), 1 / len(sizes))

    def build(self, target: Any) -> Algorithm:
        """One exchange an iteration, one number of it recorded."""

        def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
            return state, inbox, {}

        return Algorithm(
            init=lambda position: ((), (), position),
            phases=(Phase(local, Mix("ring")),),
            draws=Draws(node=lambda state, inbox: inbox[:1]),
        )

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """No gradient."""
        return Cost(0, 0)


def timed(run: Callable[[int], Any], pairs: int) -> list[float]:
    """Seconds that rank 0 takes for each of so many calls; all ranks begin together."""
    seconds = []
    for pair in range(pairs):
        MPI.COMM_WORLD.Barrier()
        began = time.perf_counter()
        run(pair)
        seconds.append(time.perf_counter() - began)
    return seconds


def prepared(model: Any, sites: Any, method: Any, width: int) -> tuple[Any, Any]:
    """A run of the engine, and its first carry."""
    target = Target(model, model.init)
    run = ENGINE.prepare(target, sites, method, 1)
    return run, run.start(0, jnp.zeros((1, width)), 10**6, 0)


def window(first: int, stop: int) -> Window:
    """Rounds of a run that keeps no draw but the last."""
    return Window(first, stop, 0, 10**7, 0)


def gossip(pairs: int, steps: int) -> dict[str, list[float]]:
    """Seconds a step with 10,000 floats, a site a rank, on a ring."""
    world = MPI.COMM_WORLD
    model = consortia.Model(
        log_likelihood=lambda theta, rows: -0.5 * jnp.sum(theta**2) * jnp.ones(len(rows)),
        log_prior=None,
        init=jnp.zeros(FLOATS),
    )
    sites = consortia.Sites.from_list([np.ones((1, 1), np.float32)] * world.size)
    result = {}
    for name, method in (
        ("consensus", Consensus()),
        ("de_sgld", consortia.de_sgld(1e-3, "ring")),
    ):
        run, carry = prepared(model, sites, method, FLOATS)
        state = {"carry": carry, "buffers": run.buffers(carry), "at": 0}

        def engine(_: int, run: Any = run, state: Any = state, count: int = steps) -> None:
            stop = state["at"] + count
            state["carry"], state["buffers"], _ = run.advance(
                state["carry"], state["buffers"], window(state["at"], stop)
            )
            state["at"] = stop

        engine(0, count=WARM)
        result[name] = engine
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    graph = world.Create_dist_graph_adjacent([left, right], [left, right])
    own, theirs = np.ones(FLOATS, np.float32), np.empty((2, FLOATS), np.float32)

    def bare(_: int, count: int = steps) -> None:
        for _ in range(count):
            graph.Neighbor_allgather(own, theirs)

    bare(0, WARM)
    result["bare"] = bare
    seconds: dict[str, list[float]] = {name: [] for name in result}
    for _ in range(pairs):
        for name, run in result.items():
            seconds[name] += [value / steps for value in timed(run, 1)]
    return seconds


def asynchronous(pairs: int, updates: int) -> dict[str, list[float]]:
    """Seconds an update of one server, on a logistic regression shaped as a9a."""
    world = MPI.COMM_WORLD
    x, y = langevin.data()
    width = x.shape[1]
    model = consortia.models.logistic_regression(width)
    sites = consortia.Sites.from_list([{"x": x, "y": y}])
    method = consortia.stale_sgld(STEP, langevin.BATCH, workers=world.size - 1)
    seconds: dict[str, list[float]] = {"engine": [], "bare": []}
    for _ in range(pairs):
        run, carry = prepared(model, sites, method, width)
        if run.serves:
            run.serve(carry)
        else:
            buffers = run.buffers(carry)
            carry, buffers, _ = run.advance(carry, buffers, window(0, WARM))
            began = time.perf_counter()
            run.advance(carry, buffers, window(WARM, WARM + updates))
            seconds["engine"].append((time.perf_counter() - began) / updates)
            run.finish()
        world.Barrier()
        seconds["bare"] += bare_updates(x, y, updates)
        world.Barrier()
    return seconds


def bare_updates(x: np.ndarray, y: np.ndarray, updates: int) -> list[float]:
    """The same by hand: the server answers whoever comes with the next parameters."""
    world, (rows, width) = MPI.COMM_WORLD, x.shape
    data = jnp.asarray(x), jnp.asarray(y)
    buffer = np.zeros(width, np.float32)

    @jax.jit
    def gradient(theta: Any, key: Any, number: Any, x: Any, y: Any) -> Any:
        chosen = jax.random.randint(jax.random.fold_in(key, number), (langevin.BATCH,), 0, rows)
        return langevin.hand_gradient(theta, x[chosen], y[chosen], rows)

    @jax.jit
    def update(theta: Any, gradient: Any, key: Any, number: Any) -> Any:
        normal = jax.random.normal(jax.random.fold_in(key, number), (width,))
        return theta - STEP * gradient + math.sqrt(2 * STEP) * normal

    key = jax.random.key(world.rank)
    if world.rank > 0:
        gradient(buffer, key, 0, *data)
        status, number = MPI.Status(), 0
        while True:
            world.Recv(buffer, source=0, status=status)
            if status.Get_tag() == STOP:
                return []
            number += 1
            world.Send(np.asarray(gradient(buffer, key, number, *data)), dest=0)
    theta = jnp.zeros(width)
    draws = np.empty((WARM + updates, width), np.float32)
    for worker in range(1, world.size):
        world.Send(np.asarray(theta), dest=worker)
    status = MPI.Status()
    for number in range(WARM + updates):
        if number == WARM:
            began = time.perf_counter()
        world.Recv(buffer, source=MPI.ANY_SOURCE, status=status)
        theta = update(theta, buffer, key, number)
        draws[number] = theta
        if number < WARM + updates - world.size + 1:
            world.Send(draws[number], dest=status.Get_source())
        else:
            world.Send(draws[number], dest=status.Get_source(), tag=STOP)
    return [(time.perf_counter() - began) / updates]


def main() -> None:
    """Measures what the command line asks for."""
    kind, pairs, work = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    seconds = {"gossip": gossip, "asynchronous": asynchronous}[kind](pairs, work)
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(seconds))


if __name__ == "__main__":
    main()
