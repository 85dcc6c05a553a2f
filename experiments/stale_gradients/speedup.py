"""Section 5.1, figure 2: how the variance of an average falls with more workers, on a9a.

Bayesian logistic regression (prior N(0, I)) on the 32,561 rows of a9a, h = 2e-6, batches of 100,
starts N(0, I), the same for every number of workers W; the test function is the mean logistic loss
of 1,000 test points. With ε the variance of the average after 300 iterations of one worker, the
iteration speed-up of W workers is 300 over the iterations a worker needs for ε.

This reproduces the figure and tests little: the variance is that of starts which are being
forgotten, and a sampler without any noise would pass. Bias, mean square error and variance stand
side by side here, against the Gaussian approximation of the posterior at its mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from consortia.data import datasets
from experiments import records
from experiments.claims import Finding

STEP, BATCH, POINTS, ITERATIONS, THIN = 2e-6, 100, 1000, 300, 3
SERVER_COST = 0.1
"""Time of one update of the server, a task of a worker taking 1 on average."""


@dataclass(frozen=True)
class Scale:
    """Numbers of workers, independent runs, iterations a worker, draws of the reference."""

    workers: tuple[int, ...]
    runs: int
    iterations: int
    reference: int


SCALES = {
    "quick": Scale((1, 4), 32, 150, 500),
    "small": Scale((1, 2, 4, 8), 64, 600, 4000),
    "full": Scale((1, 2, 4, 6, 9), 256, 1000, 4000),
}


def losses(draws: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The mean logistic loss of every draw, (chains, draws)."""

    @jax.jit
    def of_chain(chain: Any) -> Any:
        odds = chain @ x.T
        return jnp.mean(jax.nn.softplus((1.0 - 2.0 * y)[None, :] * odds), axis=1)

    return np.stack([np.asarray(of_chain(chain)) for chain in draws]).astype(np.float64)


def run(
    sites: consortia.Sites,
    test: tuple[np.ndarray, np.ndarray],
    workers: int,
    scale: Scale,
    seed: int,
) -> dict[str, Any]:
    """Running averages of the loss over runs, by iterations a worker."""
    features = sites.shards[0]["x"].shape[1]
    model = consortia.models.logistic_regression(features)
    latency = consortia.latency.lognormal(server_cost=SERVER_COST)
    tree = consortia.sample(
        model,
        sites,
        consortia.stale_sgld(STEP, BATCH, workers=workers, latency=latency),
        rounds=scale.iterations * workers,
        thin=THIN,
        chains=scale.runs,
        seed=seed,
        # the same starts for every number of workers: the key depends on seed and chain alone
        init=lambda key: {"coefficients": jax.random.normal(key, (features,))},
        progress=False,
        on_divergence="ignore",
    )
    values = losses(np.asarray(tree["posterior"]["coefficients"]), *test)
    running = np.cumsum(values, axis=1) / np.arange(1, values.shape[1] + 1)
    return {
        "workers": workers,
        "iterations": THIN * np.arange(1, values.shape[1] + 1) / workers,
        "mean": running.mean(axis=0),
        "variance": running.var(axis=0, ddof=1),
        "updates_per_time": float(np.mean(_numbers(tree.attrs["throughput"]))),
        "staleness": float(np.mean(_numbers(tree.attrs["staleness"]))),
    }


def _numbers(text: str) -> list[float]:
    return [float(value) for value in text.strip("[]").split(",")]


def reference(
    train: dict[str, np.ndarray], test: tuple[np.ndarray, np.ndarray], draws: int, seed: int
) -> float:
    """The posterior mean of the loss, by the Gaussian approximation at the mode."""
    x, y = train["x"].astype(np.float64), train["y"].astype(np.float64)
    mode = np.zeros(x.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-x @ mode))
        precision = (x.T * (p * (1 - p))) @ x + np.eye(len(mode))
        mode = mode - np.linalg.solve(precision, x.T @ (p - y) + mode)
    root = np.linalg.cholesky(np.linalg.inv(precision))
    normal = np.random.default_rng(seed).normal(size=(draws, len(mode)))
    return float(losses((mode + normal @ root.T).astype(np.float32)[None], *test).mean())


def needed(entry: dict[str, Any], level: float) -> float:
    """Iterations a worker until the variance is below the level for good; NaN if never."""
    above = np.flatnonzero(entry["variance"] > level)
    if above.size == 0:
        return float(entry["iterations"][0])
    if above[-1] + 1 == len(entry["variance"]):
        return math.nan
    # between the two places, linearly in the logarithm of the variance
    i = above[-1]
    low, high = np.log(entry["variance"][i : i + 2])
    share = (low - math.log(level)) / (low - high)
    return float(entry["iterations"][i] + share * np.diff(entry["iterations"][i : i + 2])[0])


def study(scale: str, seed: int) -> dict[str, Any]:
    """Variance, bias and error by iterations a worker, and both speed-ups."""
    data = datasets.load("a9a")
    size = SCALES[scale]
    train = {"x": data.train["x"].astype(np.float32), "y": data.train["y"]}
    sites = consortia.Sites.from_list([train])
    picked = np.random.default_rng(seed).choice(len(data.test["y"]), POINTS, replace=False)
    test = (data.test["x"][picked].astype(np.float32), data.test["y"][picked].astype(np.float32))
    target = reference(train, test, size.reference, seed)
    entries = [run(sites, test, workers, size, seed) for workers in size.workers]
    at = min(ITERATIONS, size.iterations // 2)
    level = float(np.interp(at, entries[0]["iterations"], entries[0]["variance"]))
    results: dict[str, Any] = {
        "target": target,
        "level": level,
        "at": at,
        "chains": size.runs,
        "runs": entries,
    }
    alone = entries[0]
    for entry in entries:
        iterations = needed(entry, level)
        place = int(np.searchsorted(entry["iterations"], at))
        bias = entry["mean"] - target
        entry["bias"] = bias
        entry["error"] = bias**2 + entry["variance"]
        entry["iteration_speedup"] = at / iterations
        entry["time_speedup"] = (at / alone["updates_per_time"]) / (
            iterations * entry["workers"] / entry["updates_per_time"]
        )
        entry["bound"] = min(entry["workers"], (1 + SERVER_COST) / SERVER_COST)
        records.say(
            f"W = {entry['workers']} (staleness {entry['staleness']:.2f}): iteration speed-up "
            f"{entry['iteration_speedup']:.2f}, time speed-up {entry['time_speedup']:.2f} (bound "
            f"{entry['bound']:.1f}); after {at} iterations a worker: variance "
            f"{entry['variance'][place]:.3g}, bias {bias[place]:.3g}, error "
            f"{entry['error'][place]:.3g}"
        )
    for entry in entries:  # a record needs no more points than a figure shows
        kept = np.unique(np.geomspace(1, len(entry["iterations"]), 80).astype(int)) - 1
        for name in ("iterations", "mean", "variance", "bias", "error"):
            entry[name] = entry[name][kept]
    return results


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 2, of the largest number of workers."""
    most = results["runs"][-1]
    place = int(np.searchsorted(most["iterations"], results["at"]))
    ratio = most["bias"][place] ** 2 / most["error"][place]
    # A variance over n runs has the relative error √(2/(n − 1)), a ratio of two √2 times that; a
    # variance that falls like one over the iterations passes it on to those.
    apart = 2 / math.sqrt(results["chains"] - 1)

    def ratio_of(value: float) -> Finding:
        return Finding(value, apart * value)

    return {
        "fig2a": ratio_of(results["runs"][0]["variance"][-1] / most["variance"][-1]),
        "fig2c-iterations": ratio_of(most["iteration_speedup"] / most["workers"]),
        "fig2c-time": ratio_of(most["time_speedup"] / most["workers"]),
        "fig2-bias": Finding(ratio),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw the variance by iterations (a) and time (b), the speed-ups (c), bias and error."""
    for entry in results["runs"]:
        label = f"W = {entry['workers']}"
        axes[0].loglog(entry["iterations"], entry["variance"], lw=0.9, label=label)
        time = np.array(entry["iterations"]) * entry["workers"] / entry["updates_per_time"]
        axes[1].loglog(time, entry["variance"], lw=0.9, label=label)
        axes[3].loglog(entry["iterations"], np.abs(entry["bias"]), lw=0.9, label=label)
    axes[0].set(xlabel="iterations a worker", ylabel="variance")
    axes[1].set(xlabel="simulated time", ylabel="variance")
    axes[3].set(xlabel="iterations a worker", ylabel="|bias|")
    for axis in axes[:2]:
        axis.axhline(results["level"], color="grey", lw=0.6)
    workers = [entry["workers"] for entry in results["runs"]]
    for name, label in (("iteration_speedup", "iterations"), ("time_speedup", "simulated time")):
        axes[2].plot(workers, [e[name] for e in results["runs"]], "o-", ms=3, lw=0.9, label=label)
    axes[2].plot(workers, workers, "k:", lw=0.7, label="linear")
    axes[2].set(xlabel="workers W", ylabel="speed-up")
    for axis in axes:
        axis.legend()
