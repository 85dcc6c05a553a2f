"""FA-HMC on a softmax regression of the shape of Fashion-MNIST: large products, memory traffic.

60,000 random rows of 785 features and 10 classes at 10 sites, batches of 1,000 rows, T = 50,
K = 10, one draw of the gradient a point. The arithmetic that counts is that of the two products of
each gradient, 4 · 785 · 10 operations a row; the peak is the best rate of a square product on this
core.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from benchmarks.measure import Contender, Gate, Row, interleaved, row_of, throughput

NAME = "softmax"
SITES, ROWS, FEATURES, CLASSES = 10, 6000, 785, 10
LEAPFROG_STEPS, STEP_SIZE = 10, 7e-4

SIZES: dict[str, dict[str, Any]] = {
    "full": {
        "rows": ROWS,
        "batch": 1000,
        "local_steps": 50,
        "rounds": 1,
        "peak": (768, 1536),
        "pairs": 5,
    },
    "quick": {
        "rows": ROWS,
        "batch": 1000,
        "local_steps": 10,
        "rounds": 1,
        "peak": (768, 1536),
        "pairs": 5,
    },
    "tiny": {"rows": 50, "batch": 20, "local_steps": 1, "rounds": 1, "peak": (64,), "pairs": 1},
}


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Random pixels (sites, rows, features) with an intercept, random labels (sites, rows)."""
    rng = np.random.default_rng(0)
    x = rng.random((SITES, rows, FEATURES), dtype=np.float32)
    x[..., -1] = 1
    return x, rng.integers(0, CLASSES, (SITES, rows)).astype(np.int32)


def library(
    x: np.ndarray, y: np.ndarray, batch: int, local_steps: int, rounds: int, draws: int, name: str
) -> Contender:
    """The whole call of `consortia.sample`."""
    model = consortia.models.softmax_regression(FEATURES, CLASSES)
    sites = consortia.Sites.from_list([{"x": a, "y": b} for a, b in zip(x, y, strict=True)])
    method = consortia.fa_hmc(
        STEP_SIZE, LEAPFROG_STEPS, local_steps, batch_size=batch, gradient_draws=draws
    )

    def run(seed: int) -> Any:
        return consortia.sample(
            model, sites, method, rounds=rounds, seed=seed, progress=False, chains=1
        )

    return Contender(name, run, rounds)


def bare(x: np.ndarray, y: np.ndarray, batch: int, local_steps: int, rounds: int) -> Contender:
    """A bare JAX loop with automatic gradients, sites one after the other."""
    weight, rows = 1 / len(x), x.shape[1]

    def potential(theta: Any, x: Any, y: Any) -> Any:
        scores = x @ theta.T
        chosen = y[:, None] == jnp.arange(CLASSES)[None, :]
        fit = jnp.sum(jnp.where(chosen, scores, 0), axis=-1) - jax.nn.logsumexp(scores, axis=-1)
        return -rows / batch * jnp.sum(fit) + weight * 0.5 * jnp.sum(theta**2)

    def at_site(theta: Any, momenta: Any, key: Any, site: Any, x: Any, y: Any) -> Any:
        shape = (local_steps, LEAPFROG_STEPS, batch)
        index = jax.random.randint(jax.random.fold_in(key, site), shape, 0, rows)

        def force(theta: Any, index: Any) -> Any:
            return jax.grad(potential)(theta, x[site, index], y[site, index]) / weight

        def iteration(theta: Any, numbers: Any) -> Any:
            momentum, index = numbers
            momentum = momentum - STEP_SIZE / 2 * force(theta, index[0])

            def leap(state: Any, index: Any) -> Any:
                theta, momentum = state
                theta = theta + STEP_SIZE * momentum
                return (theta, momentum - STEP_SIZE * force(theta, index)), None

            (theta, momentum), _ = jax.lax.scan(leap, (theta, momentum), index[1:])
            return theta + STEP_SIZE * momentum, None

        return jax.lax.scan(iteration, theta, (momenta, index))[0]

    @jax.jit
    def chain(theta: Any, key: Any, x: Any, y: Any) -> Any:
        def body(theta: Any, key: Any) -> Any:
            shared, private = jax.random.split(key)
            momenta = jax.random.normal(shared, (local_steps, CLASSES, FEATURES))
            sites = jnp.arange(len(x))
            moved = jax.lax.map(lambda site: at_site(theta, momenta, private, site, x, y), sites)
            theta = weight * jnp.sum(moved, axis=0)
            return theta, theta

        return jax.lax.scan(body, theta, jax.random.split(key, rounds))[1]

    on_device = jnp.asarray(x), jnp.asarray(y)

    def run(seed: int) -> Any:
        start = jnp.zeros((CLASSES, FEATURES))
        return np.asarray(chain(start, jax.random.key(seed), *on_device))

    return Contender("bare JAX scan", run, rounds)


def products(sizes: tuple[int, ...]) -> list[tuple[Contender, float]]:
    """Square products by NumPy and by JAX, with the operations of each."""
    rng = np.random.default_rng(0)
    result: list[tuple[Contender, float]] = []
    multiply = jax.jit(jnp.matmul)
    for size in sizes:
        matrix = rng.random((size, size), dtype=np.float32)
        on_device = jnp.asarray(matrix)

        def by_numpy(seed: int, matrix: np.ndarray = matrix) -> Any:
            return matrix @ matrix

        def by_jax(seed: int, matrix: Any = on_device) -> Any:
            return multiply(matrix, matrix).block_until_ready()

        result.append((Contender(f"NumPy product {size}", by_numpy), 2.0 * size**3))
        result.append((Contender(f"JAX product {size}", by_jax), 2.0 * size**3))
    return result


def rows(scale: str) -> list[Row]:
    """The figures."""
    sizes = SIZES[scale]
    x, y = data(sizes["rows"])
    shape = (sizes["batch"], sizes["local_steps"], sizes["rounds"])
    ours = library(x, y, *shape, draws=1, name="consortia.sample")
    peer = bare(x, y, *shape)
    square = products(sizes["peak"])
    contenders = [ours, peer, *(contender for contender, _ in square)]
    times = interleaved(contenders, sizes["pairs"])

    batch, local_steps, _ = shape
    operations = 4.0 * FEATURES * CLASSES * batch * LEAPFROG_STEPS * local_steps * SITES
    rates = np.stack([work / times[contender.name] for contender, work in square])
    peak, achieved = rates.max(axis=0), operations / times[ours.name]
    detail = f"{np.median(achieved) / 1e9:.1f} / {np.median(peak) / 1e9:.1f} GFLOP/s"
    what = "share of the core's product peak"
    share = row_of(NAME, what, achieved / peak, Gate(">=", 0.25), detail)
    return [throughput(NAME, times, ours.name, peer.name, gate=Gate(">=", 0.9)), share]
