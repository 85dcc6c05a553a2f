"""FA-HMC with exact gradients at 20 sites of 50 rows: a round is 2,000 small gradients.

The peers do the same arithmetic on the same data with their own random numbers: a bare JAX loop
(random numbers in blocks, every draw recorded), NumPy over all sites at once, NumPy site by site,
PyTorch with automatic gradients, and fedjax.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from benchmarks.measure import Contender, Gate, Row, fastest, interleaved, throughput

NAME = "FA-HMC"
BLOCK = 24
"""Rounds whose momenta a bare loop draws at once: 96 kB, the best of 8, 24 and 64."""

STEP_SIZE = 0.01

SIZES: dict[str, dict[str, int]] = {
    "full": {"rounds": 2000, "numpy": 100, "numpy_loop": 20, "torch": 3, "fedjax": 30, "pairs": 7},
    "quick": {"rounds": 500, "numpy": 50, "numpy_loop": 10, "torch": 1, "fedjax": 10, "pairs": 5},
    "tiny": {"rounds": 20, "numpy": 2, "numpy_loop": 1, "torch": 1, "fedjax": 1, "pairs": 1},
}


@dataclass(frozen=True)
class Problem:
    """A logistic regression at sites of equal size; x (sites, rows, d), y (sites, rows)."""

    x: np.ndarray
    y: np.ndarray
    leapfrog_steps: int
    local_steps: int

    @property
    def weight(self) -> float:
        """w_c, and λ_c, of every site."""
        return 1 / len(self.x)

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return self.x.shape[-1]

    @classmethod
    def synthetic(
        cls,
        sites: int = 20,
        rows: int = 50,
        dimension: int = 100,
        leapfrog_steps: int = 10,
        local_steps: int = 10,
    ) -> Problem:
        """Rows on the unit sphere, labels of a logistic model."""
        rng = np.random.default_rng(0)
        x = rng.normal(size=(sites, rows, dimension))
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        odds = x @ rng.normal(size=dimension)
        y = rng.random((sites, rows)) < 1 / (1 + np.exp(-odds))
        return cls(x.astype(np.float32), y.astype(np.float32), leapfrog_steps, local_steps)


def library(problem: Problem, rounds: int, name: str = "consortia.sample") -> Contender:
    """The whole call of `consortia.sample`, checks and diagnostics included."""
    model = consortia.models.logistic_regression(problem.dimension)
    sites = consortia.Sites.from_list(
        [{"x": x, "y": y} for x, y in zip(problem.x, problem.y, strict=True)]
    )
    method = consortia.fa_hmc(STEP_SIZE, problem.leapfrog_steps, problem.local_steps)

    def run(seed: int) -> Any:
        return consortia.sample(
            model, sites, method, rounds=rounds, seed=seed, progress=False, chains=1
        )

    return Contender(name, run, rounds)


# --- bare JAX -------------------------------------------------------------------------------------


def automatic_gradient(theta: Any, x: Any, y: Any, weight: float) -> Any:
    """∇U_c by automatic differentiation."""

    def potential(theta: Any) -> Any:
        fit = jnp.sum(jax.nn.log_sigmoid((2 * y - 1) * (x @ theta)))
        return -fit + weight * 0.5 * jnp.sum(theta**2)

    return jax.grad(potential)(theta)


def hand_gradient(theta: Any, x: Any, y: Any, weight: float) -> Any:
    """∇U_c written out."""
    return (jax.nn.sigmoid(x @ theta) - y) @ x + weight * theta


def bare_round(
    problem: Problem, gradient: Callable[..., Any], batched: bool
) -> Callable[[Any, Any, Any, Any], Any]:
    """``(theta, momenta (T, d), x, y) -> theta``, one round of a hand-written sampler."""
    weight, step_size = problem.weight, STEP_SIZE

    def at_site(theta: Any, momenta: Any, x: Any, y: Any) -> Any:
        def force(theta: Any) -> Any:
            return gradient(theta, x, y, weight) / weight

        def iteration(theta: Any, momentum: Any) -> Any:
            momentum = momentum - step_size / 2 * force(theta)

            def leap(state: Any, _: None) -> Any:
                theta, momentum = state
                theta = theta + step_size * momentum
                return (theta, momentum - step_size * force(theta)), None

            steps = problem.leapfrog_steps - 1
            (theta, momentum), _ = jax.lax.scan(leap, (theta, momentum), None, length=steps)
            return theta + step_size * momentum, None

        return jax.lax.scan(iteration, theta, momenta)[0]

    def one_round(theta: Any, momenta: Any, x: Any, y: Any) -> Any:
        if batched:
            moved = jax.vmap(partial(at_site, theta, momenta))(x, y)
        else:
            moved = jax.lax.map(lambda site: at_site(theta, momenta, *site), (x, y))
        return jnp.full(len(x), weight) @ moved

    return one_round


def bare_chain(
    problem: Problem, rounds: int, one_round: Callable[[Any, Any, Any, Any], Any]
) -> Callable[[Any, Any, Any, Any], Any]:
    """``(theta, key, x, y) -> draws``, not compiled: one `jax.lax.scan` over the whole run."""
    shape = (BLOCK, problem.local_steps, problem.dimension)

    def chain(theta: Any, key: Any, x: Any, y: Any) -> Any:
        def block(theta: Any, number: Any) -> Any:
            def body(theta: Any, momenta: Any) -> Any:
                theta = one_round(theta, momenta, x, y)
                return theta, theta

            momenta = jax.random.normal(jax.random.fold_in(key, number), shape)
            return jax.lax.scan(body, theta, momenta)

        _, draws = jax.lax.scan(block, theta, jnp.arange(math.ceil(rounds / BLOCK)))
        return draws.reshape(-1, draws.shape[-1])[:rounds]

    return chain


def bare(problem: Problem, rounds: int, *, by_hand: bool, batched: bool) -> Contender:
    """One compiled `jax.lax.scan` over the whole run."""
    one_round = bare_round(problem, hand_gradient if by_hand else automatic_gradient, batched)
    chain = jax.jit(bare_chain(problem, rounds, one_round))
    x, y = jnp.asarray(problem.x), jnp.asarray(problem.y)

    def run(seed: int) -> Any:
        return np.asarray(chain(jnp.zeros(problem.dimension), jax.random.key(seed), x, y))

    gradient = "gradient by hand" if by_hand else "automatic gradient"
    name = f"bare JAX scan ({gradient}, sites {'batched' if batched else 'in turn'})"
    return Contender(name, run, math.ceil(rounds / BLOCK) * BLOCK)


# --- other libraries ------------------------------------------------------------------------------


def numpy_round(problem: Problem, theta: np.ndarray, momenta: np.ndarray) -> np.ndarray:
    """One round over all sites at once."""
    x, y = problem.x, problem.y
    weight, step_size = np.float32(problem.weight), np.float32(STEP_SIZE)

    def force(theta: np.ndarray) -> np.ndarray:
        odds = np.matmul(x, theta[:, :, None])[:, :, 0]
        residual = 1 / (1 + np.exp(-odds)) - y
        return np.matmul(residual[:, None, :], x)[:, 0] / weight + theta

    theta = np.repeat(theta[None], len(x), axis=0)
    for normal in momenta:
        momentum = normal - step_size / 2 * force(theta)
        for _ in range(problem.leapfrog_steps - 1):
            theta = theta + step_size * momentum
            momentum = momentum - step_size * force(theta)
        theta = theta + step_size * momentum
    return theta.sum(axis=0) * weight


def numpy_loop_round(problem: Problem, theta: np.ndarray, momenta: np.ndarray) -> np.ndarray:
    """One round, site by site."""
    weight = np.float32(problem.weight)
    total = np.zeros_like(theta)
    for x, y in zip(problem.x, problem.y, strict=True):
        total += weight * _site_round(problem, theta, momenta, partial(_numpy_force, x, y, weight))
    return total


def _numpy_force(x: np.ndarray, y: np.ndarray, weight: Any, theta: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-(x @ theta))) - y) @ x / weight + theta


def _site_round(problem: Problem, theta: Any, momenta: Any, force: Callable[[Any], Any]) -> Any:
    step_size = np.float32(STEP_SIZE).item()
    for normal in momenta:
        momentum = normal - step_size / 2 * force(theta)
        for _ in range(problem.leapfrog_steps - 1):
            theta = theta + step_size * momentum
            momentum = momentum - step_size * force(theta)
        theta = theta + step_size * momentum
    return theta


def numpy_chain(problem: Problem, rounds: int, *, loop: bool) -> Contender:
    """A chain in NumPy, all sites at once or site by site."""
    one_round = numpy_loop_round if loop else numpy_round
    shape = (problem.local_steps, problem.dimension)

    def run(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        theta = np.zeros(problem.dimension, np.float32)
        draws = np.empty((rounds, problem.dimension), np.float32)
        for i in range(rounds):
            theta = one_round(problem, theta, rng.standard_normal(shape, np.float32))
            draws[i] = theta
        return draws

    return Contender("NumPy, site by site" if loop else "NumPy, all sites at once", run, rounds)


def torch_chain(problem: Problem, rounds: int) -> Contender:
    """A chain in PyTorch, site by site, with automatic gradients."""
    import torch

    torch.set_num_threads(1)
    data = [
        (torch.from_numpy(x), torch.from_numpy(y))
        for x, y in zip(problem.x, problem.y, strict=True)
    ]
    weight = problem.weight

    def force(x: Any, y: Any, theta: Any) -> Any:
        theta = theta.detach().requires_grad_(True)
        fit = torch.nn.functional.logsigmoid((2 * y - 1) * (x @ theta)).sum()
        potential = -fit + weight * 0.5 * (theta**2).sum()
        return torch.autograd.grad(potential, theta)[0] / weight

    def run(seed: int) -> Any:
        torch.manual_seed(seed)
        theta = torch.zeros(problem.dimension)
        draws = torch.empty(rounds, problem.dimension)
        for i in range(rounds):
            momenta = torch.randn(problem.local_steps, problem.dimension)
            moved = [_site_round(problem, theta, momenta, partial(force, x, y)) for x, y in data]
            theta = weight * torch.stack(moved).sum(dim=0)
            draws[i] = theta
        return draws

    return Contender("PyTorch, automatic gradients, site by site", run, rounds)


def fedjax_chain(problem: Problem, rounds: int) -> Contender:
    """A chain in fedjax: one step of a client is one trajectory, the server averages."""
    import fedjax

    weight, steps = problem.weight, problem.leapfrog_steps - 1

    def begin(shared: Any, key: Any) -> Any:
        return {"theta": shared, "key": key}

    def trajectory(state: Any, batch: Any) -> Any:
        def force(theta: Any) -> Any:
            return automatic_gradient(theta, batch["x"], batch["y"], weight) / weight

        def leap(state: Any, _: None) -> Any:
            theta, momentum = state
            theta = theta + STEP_SIZE * momentum
            return (theta, momentum - STEP_SIZE * force(theta)), None

        key, noise = jax.random.split(state["key"])
        theta = state["theta"]
        momentum = jax.random.normal(noise, theta.shape) - STEP_SIZE / 2 * force(theta)
        (theta, momentum), _ = jax.lax.scan(leap, (theta, momentum), None, length=steps)
        return {"theta": theta + STEP_SIZE * momentum, "key": key}

    client = fedjax.for_each_client(begin, trajectory, lambda shared, state: state["theta"])
    clients = [
        (str(index), [{"x": x, "y": y}] * problem.local_steps)
        for index, (x, y) in enumerate(zip(problem.x, problem.y, strict=True))
    ]

    def run(seed: int) -> Any:
        theta, key = jnp.zeros(problem.dimension), jax.random.key(seed)
        draws = []
        for _ in range(rounds):
            key, *keys = jax.random.split(key, len(clients) + 1)
            asked = [(*client, own) for client, own in zip(clients, keys, strict=True)]
            moved = [output for _, output in client(theta, asked)]
            theta = weight * sum(moved)
            draws.append(np.asarray(theta))
        return draws

    return Contender("fedjax, a loop over rounds", run, rounds)


def rows(scale: str) -> list[Row]:
    """The figures."""
    sizes = SIZES[scale]
    problem = Problem.synthetic()
    ours = library(problem, sizes["rounds"])
    forms = [
        bare(problem, sizes["rounds"], by_hand=by_hand, batched=batched)
        for by_hand in (False, True)
        for batched in (False, True)
    ]
    same = fastest(forms[:2])
    best = fastest(forms)
    peers = [
        numpy_chain(problem, sizes["numpy"], loop=False),
        numpy_chain(problem, sizes["numpy_loop"], loop=True),
    ]
    has_torch = importlib.util.find_spec("torch") is not None
    if has_torch:
        peers.append(torch_chain(problem, sizes["torch"]))
    gates = [Gate(">=", 1.4), Gate(">=", 7), *([Gate(">=", 60)] if has_torch else [])]
    if importlib.util.find_spec("fedjax") is not None:
        peers.append(fedjax_chain(problem, sizes["fedjax"]))
        gates.append(Gate(">=", 10))
    contenders = list({c.name: c for c in (ours, same, best, *peers)}.values())
    times = interleaved(contenders, sizes["pairs"])
    result = [throughput(NAME, times, ours.name, same.name, gate=Gate(">=", 0.9))]
    if best is not same:
        result.append(throughput(NAME, times, ours.name, best.name, gate=Gate(">=", 0.9)))
    result += [
        throughput(NAME, times, ours.name, peer.name, gate=gate)
        for peer, gate in zip(peers, gates, strict=True)
    ]
    if not has_torch:
        result.append(
            Row(NAME, "throughput, consortia / PyTorch", gate=Gate(">=", 60), skipped="no torch")
        )
    return result
