"""SGLD on a logistic regression of the shape of a9a: 7 µs a step, so any overhead shows.

32,561 rows, 123 features of which 14 in 123 are set, batches of 100 rows with replacement, one
site, K = T = 1: one round is one SGLD step. The whole call of `consortia.sample` is timed, and its
time for each further step besides (two lengths of run, their difference).
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from benchmarks.measure import Contender, Gate, Row, fastest, interleaved, throughput

NAME = "SGLD"
ROWS, FEATURES, BATCH = 32_561, 123, 100
BLOCKS = (64, 128)
"""Steps whose random numbers a bare loop draws at once; the better of the two is the peer."""

STEP = 1e-5
"""h' of θ − h'∇U + N(0, 2h')."""

SIZES: dict[str, dict[str, int]] = {
    "full": {"steps": 200_000, "short": 20_000, "loop": 1000, "pairs": 7},
    "quick": {"steps": 50_000, "short": 5_000, "loop": 300, "pairs": 5},
    "tiny": {"steps": 300, "short": 30, "loop": 10, "pairs": 1},
}


def data() -> tuple[np.ndarray, np.ndarray]:
    """Binary features (rows, features) and labels (rows,), both float32."""
    rng = np.random.default_rng(0)
    x = (rng.random((ROWS, FEATURES)) < 14 / 123).astype(np.float32)
    odds = x @ rng.normal(size=FEATURES)
    return x, (rng.random(ROWS) < 1 / (1 + np.exp(-odds))).astype(np.float32)


def library(x: np.ndarray, y: np.ndarray, steps: int, name: str, **options: Any) -> Contender:
    """The whole call of `consortia.sample`."""
    model = consortia.models.logistic_regression(x.shape[1])
    sites = consortia.Sites.from_list([{"x": x, "y": y}])
    method = consortia.fa_ld(math.sqrt(2 * STEP), 1, batch_size=BATCH)

    def run(seed: int) -> Any:
        return consortia.sample(
            model, sites, method, rounds=steps, chains=1, seed=seed, progress=False, **options
        )

    return Contender(name, run, steps)


def automatic_gradient(theta: Any, x: Any, y: Any, rows: int) -> Any:
    """The estimate of ∇U from a batch, by automatic differentiation."""

    def potential(theta: Any) -> Any:
        fit = jnp.sum(jax.nn.log_sigmoid((2 * y - 1) * (x @ theta)))
        return -rows / len(y) * fit + 0.5 * jnp.sum(theta**2)

    return jax.grad(potential)(theta)


def hand_gradient(theta: Any, x: Any, y: Any, rows: int) -> Any:
    """The same, written out."""
    return rows / len(y) * ((jax.nn.sigmoid(x @ theta) - y) @ x) + theta


def bare_step(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """``(theta, row numbers, normal, x, y) -> theta``."""

    def step(theta: Any, index: Any, normal: Any, x: Any, y: Any) -> Any:
        drift = gradient(theta, x[index], y[index], len(y))
        return theta - STEP * drift + math.sqrt(2 * STEP) * normal

    return step


def bare(x: np.ndarray, y: np.ndarray, steps: int, *, by_hand: bool, block: int) -> Contender:
    """One compiled `jax.lax.scan`, random numbers in blocks, every draw recorded."""
    step = bare_step(hand_gradient if by_hand else automatic_gradient)
    blocks = math.ceil(steps / block)

    @jax.jit
    def chain(theta: Any, key: Any, x: Any, y: Any) -> Any:
        def one_block(theta: Any, number: Any) -> Any:
            def body(theta: Any, numbers: Any) -> Any:
                theta = step(theta, *numbers, x, y)
                return theta, theta

            index_key, normal_key = jax.random.split(jax.random.fold_in(key, number))
            index = jax.random.randint(index_key, (block, BATCH), 0, len(y))
            normal = jax.random.normal(normal_key, (block, x.shape[1]))
            return jax.lax.scan(body, theta, (index, normal))

        _, draws = jax.lax.scan(one_block, theta, jnp.arange(blocks))
        return draws.reshape(-1, x.shape[1])[:steps]

    on_device = jnp.asarray(x), jnp.asarray(y)

    def run(seed: int) -> Any:
        return np.asarray(chain(jnp.zeros(x.shape[1]), jax.random.key(seed), *on_device))

    gradient = "gradient by hand" if by_hand else "automatic gradient"
    return Contender(f"bare JAX scan ({gradient}, blocks of {block})", run, blocks * block)


def blackjax_chains(
    x: np.ndarray, y: np.ndarray, steps: int, loop_steps: int
) -> tuple[Contender, Contender]:
    """BlackJAX's SGLD in a scan, and with its step compiled in a loop of Python."""
    import blackjax
    from blackjax.sgmcmc.gradients import grad_estimator

    def log_prior(theta: Any) -> Any:
        return -0.5 * jnp.sum(theta**2)

    def log_likelihood(theta: Any, row: Any) -> Any:
        return jax.nn.log_sigmoid((2 * row[1] - 1) * (row[0] @ theta))

    kernel = blackjax.sgld(grad_estimator(log_prior, log_likelihood, len(y)))
    on_device = jnp.asarray(x), jnp.asarray(y)

    def step(theta: Any, key: Any, x: Any, y: Any) -> Any:
        index_key, step_key = jax.random.split(key)
        index = jax.random.randint(index_key, (BATCH,), 0, len(y))
        return kernel.step(step_key, theta, (x[index], y[index]), STEP)

    @jax.jit
    def chain(theta: Any, key: Any, x: Any, y: Any) -> Any:
        def body(theta: Any, key: Any) -> Any:
            theta = step(theta, key, x, y)
            return theta, theta

        return jax.lax.scan(body, theta, jax.random.split(key, steps))[1]

    def scanned(seed: int) -> Any:
        return np.asarray(chain(jnp.zeros(x.shape[1]), jax.random.key(seed), *on_device))

    compiled_step = jax.jit(step)

    def looped(seed: int) -> Any:
        theta, draws = jnp.zeros(x.shape[1]), []
        for key in jax.random.split(jax.random.key(seed), loop_steps):
            theta = compiled_step(theta, key, *on_device)
            draws.append(np.asarray(theta))
        return draws

    return (
        Contender("BlackJAX in a scan", scanned, steps),
        Contender("BlackJAX in a Python loop", looped, loop_steps),
    )


# --- without JAX ---------------------------------------------------------------------------------


def numpy_gradient(theta: np.ndarray, x: np.ndarray, y: np.ndarray, rows: int) -> np.ndarray:
    """`hand_gradient` in NumPy."""
    return rows / len(y) * ((1 / (1 + np.exp(-(x @ theta))) - y) @ x) + theta


def numpy_chain(x: np.ndarray, y: np.ndarray, steps: int) -> Contender:
    """A loop in NumPy with the gradient written out."""

    def run(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        theta = np.zeros(x.shape[1], np.float32)
        draws = np.empty((steps, x.shape[1]), np.float32)
        for i in range(steps):
            batch = rng.integers(0, len(y), BATCH)
            drift = numpy_gradient(theta, x[batch], y[batch], len(y))
            normal = rng.standard_normal(x.shape[1], np.float32)
            theta = theta - np.float32(STEP) * drift + np.float32(math.sqrt(2 * STEP)) * normal
            draws[i] = theta
        return draws

    return Contender("NumPy, gradient by hand", run, steps)


def _torch_log_density(rows: int) -> Callable[[Any, tuple[Any, Any]], tuple[Any, Any]]:
    import torch

    def log_density(theta: Any, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        x, y = batch
        fit = torch.nn.functional.logsigmoid((2 * y - 1) * (x @ theta)).sum()
        return rows / BATCH * fit - 0.5 * (theta**2).sum(), torch.tensor([])

    return log_density


def torch_chain(x: np.ndarray, y: np.ndarray, steps: int) -> Contender:
    """A loop in PyTorch with automatic gradients."""
    import torch

    torch.set_num_threads(1)
    data, log_density = (torch.from_numpy(x), torch.from_numpy(y)), _torch_log_density(len(y))

    def run(seed: int) -> Any:
        torch.manual_seed(seed)
        theta, draws = torch.zeros(x.shape[1]), torch.empty(steps, x.shape[1])
        for i in range(steps):
            batch = torch.randint(len(y), (BATCH,))
            theta = theta.detach().requires_grad_(True)
            value, _ = log_density(theta, (data[0][batch], data[1][batch]))
            (upward,) = torch.autograd.grad(value, theta)
            theta = theta + STEP * upward + math.sqrt(2 * STEP) * torch.randn_like(theta)
            draws[i] = theta.detach()
        return draws

    return Contender("PyTorch, automatic gradient", run, steps)


def posteriors_chain(x: np.ndarray, y: np.ndarray, steps: int, *, compiled: bool) -> Contender:
    """SGLD of posteriors, its update called in a loop, compiled by PyTorch or not."""
    import torch

    warnings.filterwarnings("ignore", category=FutureWarning, module="posteriors")
    import posteriors

    torch.set_num_threads(1)
    data = torch.from_numpy(x), torch.from_numpy(y)
    kernel = posteriors.sgmcmc.sgld.build(_torch_log_density(len(y)), lr=STEP)
    update = torch.compile(kernel.update) if compiled else kernel.update

    def run(seed: int) -> Any:
        torch.manual_seed(seed)
        state = kernel.init(torch.zeros(x.shape[1]))
        draws = torch.empty(steps, x.shape[1])
        for i in range(steps):
            batch = torch.randint(len(y), (BATCH,))
            state, _ = update(state, (data[0][batch], data[1][batch]))
            draws[i] = state.params
        return draws

    return Contender(f"posteriors, {'compiled' if compiled else 'eager'}", run, steps)


def rows(scale: str) -> list[Row]:
    """The figures."""
    sizes = SIZES[scale]
    steps, short = sizes["steps"], sizes["short"]
    x, y = data()
    ours = library(x, y, steps, "consortia.sample")
    brief = library(x, y, short, "short run")
    same = fastest([bare(x, y, steps, by_hand=False, block=block) for block in BLOCKS])
    best = fastest([same, *(bare(x, y, steps, by_hand=True, block=block) for block in BLOCKS)])
    contenders = [ours, brief, same] + ([best] if best is not same else [])
    jax_peers = list(blackjax_chains(x, y, steps, sizes["loop"])) if _has("blackjax") else []
    peers = [*jax_peers, numpy_chain(x, y, sizes["loop"])]
    if _has("torch"):
        peers.append(torch_chain(x, y, sizes["loop"]))
    if _has("posteriors"):
        peers += [
            posteriors_chain(x, y, sizes["loop"], compiled=compiled) for compiled in (False, True)
        ]
    times = interleaved(contenders + peers, sizes["pairs"])
    further = "consortia, each further step"
    times[further] = (steps * times[ours.name] - short * times[brief.name]) / (steps - short)

    gate = Gate(">=", 0.9)
    result = [throughput(NAME, times, ours.name, same.name, gate=gate, unit="step")]
    if best is not same:
        result.append(throughput(NAME, times, ours.name, best.name, gate=gate, unit="step"))
    result.append(throughput(NAME, times, further, best.name, gate=gate, unit="step"))
    gates = {
        "BlackJAX in a scan": Gate(">=", 1.5),
        "posteriors, eager": Gate(">=", 40),
        "posteriors, compiled": Gate(">=", 10),
    }
    result += [
        throughput(NAME, times, ours.name, peer.name, gate=gates.get(peer.name), unit="step")
        for peer in peers
    ]
    found = {peer.name for peer in peers}
    return result + [
        Row(NAME, f"throughput, {ours.name} / {name}", gate=gate, skipped="not installed")
        for name, gate in gates.items()
        if name not in found
    ]


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
