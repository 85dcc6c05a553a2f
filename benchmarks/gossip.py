"""DE-SGLD on a ring with exact gradients, and how its time grows with the number of agents.

Linear regression in 10 dimensions, 20 rows an agent (for the growth 2 dimensions and 5 rows, so
that 10,000 agents fit in a cache), the average of the agents recorded in every iteration. The peer
is a bare `jax.lax.scan` of the same arithmetic: gradients by `jax.vmap`, the ring by two shifts,
random numbers in blocks, its best block and its best form of the gradient. The growth is the slope
over three numbers of agents of the time of further iterations alone.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from benchmarks.measure import Contender, Gate, Row, fastest, growth_of, interleaved, throughput

NAME = "gossip"
FEATURES, ROWS = 10, 20
SMALL = (2, 5)
"""Features and rows for the growth."""

STEP = 0.01
BLOCKS = (16, 64)
"""Iterations whose random numbers a bare loop draws at once; the better of the two is the peer."""

SIZES: dict[str, dict[str, Any]] = {
    "full": {
        "iterations": {10: 60_000, 100: 15_000},
        "pairs": 7,
        "growth": (1000, 10_000, 100_000),
    },
    "quick": {
        "iterations": {10: 200_000, 100: 25_000},
        "pairs": 5,
        "growth": (1000, 10_000, 100_000),
    },
    "tiny": {"iterations": {10: 64, 100: 64}, "pairs": 1, "growth": (10, 100, 1000)},
}

AGENT_ITERATIONS = {"full": 20_000_000, "quick": 10_000_000, "tiny": 4000}
"""Iterations times agents of the longer runs of the growth; the shorter ones have a quarter."""


def data(agents: int, features: int = FEATURES, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Features (agents, rows, features) and responses (agents, rows), float32."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(agents, rows, features)).astype(np.float32)
    noise = rng.normal(size=(agents, rows)).astype(np.float32)
    return x, (x @ rng.normal(size=features)).astype(np.float32) + noise


def library(
    agents: int,
    iterations: int,
    name: str = "consortia.sample",
    shape: tuple[int, int] = (FEATURES, ROWS),
) -> Contender:
    """The whole call of `consortia.sample`; ``shape`` is (features, rows)."""
    x, y = data(agents, *shape)
    model = consortia.models.linear_regression(shape[0])
    sites = consortia.Sites.from_list([{"x": x[i], "y": y[i]} for i in range(agents)])
    method = consortia.de_sgld(STEP, consortia.graphs.mixing_matrix(consortia.graphs.ring(agents)))

    def run(seed: int) -> Any:
        return consortia.sample(
            model, sites, method, rounds=iterations, seed=seed, progress=False, chains=1
        )

    return Contender(name, run, iterations)


def automatic_gradient(theta: Any, x: Any, y: Any, agents: int) -> Any:
    """∇f_i by automatic differentiation."""

    def potential(theta: Any) -> Any:
        return 0.5 * jnp.sum((y - x @ theta) ** 2) + 0.5 / agents * jnp.sum(theta**2)

    return jax.grad(potential)(theta)


def hand_gradient(theta: Any, x: Any, y: Any, agents: int) -> Any:
    """The same, written out."""
    return (x @ theta - y) @ x + theta / agents


def bare_step(gradient: Any, positions: Any, normal: Any, x: Any, y: Any) -> Any:
    """One iteration of all agents, positions and normal numbers (agents, features)."""
    agents = len(x)
    drift = jax.vmap(gradient, in_axes=(0, 0, 0, None))(positions, x, y, agents)
    mixed = (positions + jnp.roll(positions, 1, axis=0) + jnp.roll(positions, -1, axis=0)) / 3
    return mixed - STEP * drift + math.sqrt(2 * STEP) * normal


def bare(agents: int, iterations: int, *, by_hand: bool, block: int) -> Contender:
    """One compiled scan that records the average of every iteration."""
    x, y = (jnp.asarray(part) for part in data(agents))
    gradient = hand_gradient if by_hand else automatic_gradient
    blocks = math.ceil(iterations / block)

    @jax.jit
    def chain(positions: Any, key: Any, x: Any, y: Any) -> Any:
        def one_block(positions: Any, number: Any) -> Any:
            def body(positions: Any, normal: Any) -> Any:
                positions = bare_step(gradient, positions, normal, x, y)
                return positions, jnp.mean(positions, axis=0)

            shape = (block, agents, FEATURES)
            return jax.lax.scan(
                body, positions, jax.random.normal(jax.random.fold_in(key, number), shape)
            )

        _, draws = jax.lax.scan(one_block, positions, jnp.arange(blocks))
        return draws.reshape(-1, FEATURES)[:iterations]

    def run(seed: int) -> Any:
        return np.asarray(chain(jnp.zeros((agents, FEATURES)), jax.random.key(seed), x, y))

    form = "gradient by hand" if by_hand else "automatic gradient"
    return Contender(
        f"bare JAX scan, {agents} agents ({form}, blocks of {block})", run, blocks * block
    )


def rows(scale: str) -> list[Row]:
    """The figures."""
    sizes = SIZES[scale]
    result = []
    for agents, iterations in sizes["iterations"].items():
        ours = library(agents, iterations)
        forms = [
            bare(agents, iterations, by_hand=by_hand, block=block)
            for by_hand in (False, True)
            for block in BLOCKS
        ]
        peer = fastest(forms)
        times = interleaved([ours, peer], sizes["pairs"])
        gate = Gate(">=", 0.9 if agents >= 100 else 0.85)
        result.append(throughput(NAME, times, ours.name, peer.name, gate=gate, unit="iteration"))
    return [*result, *growth(sizes["growth"], AGENT_ITERATIONS[scale], sizes["pairs"])]


def growth(agents: tuple[int, ...], work: int, pairs: int) -> list[Row]:
    """The exponent of the time of an iteration in the number of agents, whole and by parts."""
    contenders = {}
    for count in agents:
        long = max(work // count, 8)
        contenders[count] = (
            library(count, long, f"{count} agents", SMALL),
            library(count, long // 4, f"{count} agents, short", SMALL),
        )
    return growth_of(NAME, "agents", contenders, pairs)
