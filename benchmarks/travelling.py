"""FSGLD with 100 chains at once on a Gaussian mean: tiny steps at sites that are visited.

Ten shards of 200 rows from N(μ_s, I) in two dimensions, exact surrogates, h = 1e-4, batches of 10
with replacement, T = 100 updates a visit; the ends of visits are recorded. The whole call of
`consortia.sample` is timed, and its time for each further visit besides (two lengths of run, their
difference). The unit is one update of all 100 chains.

Random numbers are most of the work. One peer draws them with `jax.random`; another with the
library's own generator, so that nothing but the engine is left to differ.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from benchmarks.measure import Contender, Gate, Row, fastest, interleaved, throughput
from consortia.core import random as numbers

NAME = "travelling"
SITES, ROWS, BATCH, STEP = 10, 200, 10, 1e-4
CHAINS, LOCAL_STEPS = 100, 100
PIECES = (50, 25)
"""Updates whose random numbers a bare loop draws at once; the best of them is the peer."""

SIZES: dict[str, dict[str, int]] = {
    "full": {"rounds": 5000, "short": 500, "pairs": 5},
    "quick": {"rounds": 300, "short": 30, "pairs": 5},
    "tiny": {"rounds": 4, "short": 2, "pairs": 1},
}


class Problem(NamedTuple):
    """Rows (sites, rows, 2), their means (sites, 2), and the mean of all (2,)."""

    rows: np.ndarray
    means: np.ndarray
    mean: np.ndarray


def problem(sites: int = SITES, rows: int = ROWS) -> Problem:
    """Shards whose centres are uniform on [−6, 6]²."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(-6, 6, (sites, 1, 2))
    x = (centres + rng.normal(size=(sites, rows, 2))).astype(np.float32)
    return Problem(x, x.mean(axis=1), x.mean(axis=(0, 1)))


def library(given: Problem, rounds: int, name: str) -> Contender:
    """The whole call of `consortia.sample`."""

    def log_prior(theta: Any) -> Any:
        return -0.5 * jnp.sum(theta**2)

    def log_likelihood(theta: Any, batch: Any) -> Any:
        return -0.5 * jnp.sum((batch["x"] - theta[None, :]) ** 2, axis=1)

    model = consortia.Model(log_prior, log_likelihood, np.zeros(2, np.float32))
    sites = consortia.Sites.from_list([{"x": x} for x in given.rows])
    surrogate = [(mean, 1 / given.rows.shape[1]) for mean in given.means]
    method = consortia.fsgld(STEP, LOCAL_STEPS, BATCH, surrogate=surrogate)

    def run(seed: int) -> Any:
        return consortia.sample(
            model, sites, method, rounds=rounds, chains=CHAINS, seed=seed, progress=False
        )

    return Contender(name, run, rounds * LOCAL_STEPS)


def update(theta: Any, index: Any, normal: Any, node: Any, given: Problem) -> Any:
    """One update of one chain at a site, with the gradient by automatic differentiation."""
    sites, size = given.rows.shape[:2]
    batch = given.rows[node, index]

    def potential(theta: Any) -> Any:
        share = 1 / sites
        fit = 0.5 * size / len(index) * jnp.sum((batch - theta[None, :]) ** 2)
        return fit / share + 0.5 * jnp.sum(theta**2)

    own = size * (given.means[node] - theta)
    pooled = sites * size * (given.mean - theta)
    drift = -jax.grad(potential)(theta) + pooled - sites * own
    return theta + STEP / 2 * drift + math.sqrt(STEP) * normal


def bare(given: Problem, rounds: int, piece: int) -> Contender:
    """One compiled `jax.lax.scan` over visits and their updates; the ends are recorded."""
    sites, size = given.rows.shape[:2]

    @jax.jit
    def chain(theta: Any, key: Any, given: Problem) -> Any:
        def visit(theta: Any, number: Any) -> Any:
            key_of_node, key_of_updates = jax.random.split(jax.random.fold_in(key, number))
            nodes = jax.random.randint(key_of_node, (CHAINS,), 0, sites)

            def some(theta: Any, part: Any) -> Any:
                keys = jax.random.split(jax.random.fold_in(key_of_updates, part))
                # One word a row number, as the library does.
                words = jax.random.bits(keys[0], (piece, CHAINS, BATCH), jnp.uint32) >> 8
                index = (words.astype(jnp.float32) * (size / 2**24)).astype(jnp.int32)
                normal = jax.random.normal(keys[1], (piece, CHAINS, 2))

                def body(theta: Any, numbers: Any) -> Any:
                    moved = jax.vmap(update, (0, 0, 0, 0, None))(theta, *numbers, nodes, given)
                    return moved, None

                return jax.lax.scan(body, theta, (index, normal))[0], None

            theta = jax.lax.scan(some, theta, jnp.arange(LOCAL_STEPS // piece))[0]
            return theta, theta

        return jax.lax.scan(visit, theta, jnp.arange(rounds))[1]

    on_device = Problem(*map(jnp.asarray, given))

    def run(seed: int) -> Any:
        return np.asarray(chain(jnp.zeros((CHAINS, 2)), jax.random.key(seed), on_device))

    return Contender(f"bare JAX scan (blocks of {piece} updates)", run, rounds * LOCAL_STEPS)


def bare_same_numbers(given: Problem, rounds: int) -> Contender:
    """The same scan, its random numbers drawn a visit at a time by `consortia.core.random`."""
    sites, size = given.rows.shape[:2]

    def of_updates(rng: numbers.RandomStreams) -> tuple[Any, Any]:
        rows = rng.bits("rows", (LOCAL_STEPS, BATCH))
        return rows, rng.normal("normal", (LOCAL_STEPS, 2))

    @jax.jit
    def chain(theta: Any, keys: Any, given: Problem) -> Any:
        def visit(theta: Any, number: Any) -> Any:
            def drawn(key: Any) -> Any:
                level = numbers.declared(lambda rng: rng.uniform("node"), key, number, 0, None)
                return level, numbers.declared(of_updates, key, number, 0, None)

            level, own = jax.vmap(drawn)(keys)
            nodes = (level * sites).astype(jnp.int32)

            def one(theta: Any, own: Any, node: Any) -> Any:
                def body(theta: Any, drawn: Any) -> Any:
                    return update(theta, *drawn, node, given), None

                index = numbers.below(own[0], jnp.int32(size))
                return jax.lax.scan(body, theta, (index, own[1]))[0]

            theta = jax.vmap(one)(theta, own, nodes)
            return theta, theta

        return jax.lax.scan(visit, theta, jnp.arange(rounds, dtype=jnp.int32))[1]

    on_device = Problem(*map(jnp.asarray, given))

    def run(seed: int) -> Any:
        keys = numbers.phase_key(numbers.base_key(seed), np.arange(CHAINS, dtype=np.uint32), 0)
        return np.asarray(chain(jnp.zeros((CHAINS, 2)), keys, on_device))

    return Contender("bare JAX scan (the library's numbers)", run, rounds * LOCAL_STEPS)


def rows(scale: str) -> list[Row]:
    """The figures."""
    sizes = SIZES[scale]
    rounds, short = sizes["rounds"], sizes["short"]
    given = problem()
    ours = library(given, rounds, "consortia.sample, 100 chains")
    brief = library(given, short, "short run")
    usual = fastest([bare(given, rounds, piece) for piece in PIECES])
    same = bare_same_numbers(given, rounds)
    times = interleaved([ours, brief, usual, same], sizes["pairs"])
    further = "consortia, each further update"
    difference = rounds * times[ours.name] - short * times[brief.name]
    times[further] = difference / (rounds - short)
    gate = Gate(">=", 0.9)
    unit = "update of 100 chains"
    return [
        throughput(NAME, times, name, peer.name, gate=gate, unit=unit)
        for peer in (usual, same)
        for name in (ours.name, further)
    ]
