"""Section 5.1, figure 1: what staleness does to the average of θ² on a normal mean.

N = 1,000 rows N(θ, 1), prior N(0, 1), batches of 10, L = 500 τ updates with the staleness τ and
h = C τ^(−2/3) L^(−1/3), C = 1/30, so that h = .0042/τ.

Read literally every chain diverges: hΛ = 4.2/τ with Λ = 1,001; the limit is 2 sin(π/(4τ + 2)).
The working reading is the dynamics of U/N, a step h/N in U, started from N(0, 1). Its errors at the
end are alike for all τ, as the figure says; nearly all of each is the start, which has not been
forgotten. The second part of this study shows staleness itself: the step and the length are fixed,
chains start in the posterior, and the bias grows with τ as the exact law says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from consortia.errors import InputError
from consortia.oracles import minibatch_noise, stale_sgld_law, stale_square_error
from experiments import records
from experiments.claims import Finding, computed
from experiments.drawing import LAW

ROWS, BATCH, CONSTANT, LENGTH = 1000, 10, 1 / 30, 500
CURVATURE = ROWS + 1.0
DELAYS = (1, 2, 5, 10, 15, 20)
FIXED_DELAYS = (0, 1, 5, 10, 20, 40)
CONTRACTION, FIXED_LENGTH = 0.02, 5000
POINTS = 25
"""Of a curve along the updates."""


@dataclass(frozen=True)
class Scale:
    """Runs (independent chains) of each setting, and the staleness values of both parts."""

    runs: int
    fixed_runs: int
    delays: tuple[int, ...]
    fixed_delays: tuple[int, ...]


SCALES = {
    "quick": Scale(200, 40, (1, 5), (0, 10)),
    "small": Scale(2000, 200, DELAYS, FIXED_DELAYS),
    "full": Scale(20_000, 2000, DELAYS, FIXED_DELAYS),
}


def model() -> consortia.Model:
    """Rows N(θ, 1), prior N(0, 1)."""
    return consortia.Model(
        lambda theta: -0.5 * jnp.sum(theta**2),
        lambda theta, rows: -0.5 * (rows["y"] - theta[0]) ** 2,
        np.zeros(1, np.float32),
    )


def rows(seed: int) -> np.ndarray:
    """d_i ~ N(θ*, 1) with θ* ~ N(0, 1)."""
    rng = np.random.default_rng(seed)
    return (rng.normal() + rng.normal(size=ROWS)).astype(np.float32)


def step_size(delay: int) -> float:
    """The paper's h = C τ^(−2/3) L^(−1/3) at L = 500 τ."""
    return CONSTANT * delay ** (-2 / 3) * (LENGTH * delay) ** (-1 / 3)


def literal(y: np.ndarray, delay: int, seed: int) -> str:
    """What `sample` says of the step read literally."""
    method = consortia.stale_sgld(step_size(delay), BATCH, workers=delay + 1)
    try:
        sites = consortia.Sites.from_list([{"y": y}])
        consortia.sample(model(), sites, method, rounds=10, seed=seed, progress=False, chains=1)
    except InputError as error:
        return str(error)
    return "not refused"


def averages(
    y: np.ndarray,
    delay: int,
    updates: int,
    step: float,
    batch: int | None,
    runs: int,
    seed: int,
    start: tuple[float, float],
) -> np.ndarray:
    """The running average of θ² of each run, (runs, updates); starts N(mean, variance)."""
    mean, variance = start
    tree = consortia.sample(
        model(),
        consortia.Sites.from_list([{"y": y}]),
        consortia.stale_sgld(step, batch, workers=delay + 1, latency=consortia.latency.constant()),
        rounds=updates,
        chains=runs,
        seed=seed,
        init=lambda key: mean + math.sqrt(variance) * jax.random.normal(key, (1,)),
        progress=False,
        on_divergence="ignore",
    )
    theta = np.asarray(tree["posterior"]["theta"])[..., 0]
    return np.cumsum(np.square(theta, dtype=np.float64), axis=1) / np.arange(1, updates + 1)


def working(y: np.ndarray, delay: int, runs: int, seed: int) -> dict[str, Any]:
    """The mean square error after 500 τ updates of step h/N, measured and exact."""
    updates, step = LENGTH * delay, step_size(delay) / ROWS
    running = averages(y, delay, updates, step, BATCH, runs, seed, (0.0, 1.0))
    centre = float(y.sum(dtype=np.float64)) / CURVATURE
    places = np.unique(np.geomspace(5, updates, POINTS).astype(int))
    along = (running[:, places - 1] - centre**2 - 1 / CURVATURE) ** 2
    errors = along[:, -1]
    noise = float(minibatch_noise(float(y.astype(np.float64).var()), ROWS, BATCH))
    common: dict[str, Any] = {"target_mean": centre, "target_variance": 1 / CURVATURE}
    exact = stale_square_error(
        step * CURVATURE,
        delay,
        2 * step + step**2 * noise,
        updates,
        start_variance=1.0,
        **common,
    )
    started = stale_square_error(
        step * CURVATURE,
        delay,
        2 * step + step**2 * noise,
        updates,
        start_variance=1 / CURVATURE,
        start_mean=centre,
        **common,
    )
    return {
        "delay": delay,
        "updates": updates,
        "places": places,
        "along": along.mean(axis=0),
        "error": float(errors.mean()),
        "standard_error": float(errors.std() / math.sqrt(runs)),
        "exact": exact.mean_square,
        "exact_from_the_posterior": started.mean_square,
    }


def fixed(y: np.ndarray, delay: int, runs: int, seed: int) -> dict[str, Any]:
    """The bias of the average of θ² with h and L fixed, in posterior variances."""
    y = y - y.mean(dtype=np.float64).astype(np.float32)
    step = CONTRACTION / CURVATURE
    start = (0.0, 1 / CURVATURE)
    values = averages(y, delay, FIXED_LENGTH, step, None, runs, seed, start)[:, -1]
    exact = stale_square_error(
        CONTRACTION,
        delay,
        2 * step,
        FIXED_LENGTH,
        start_variance=1 / CURVATURE,
        target_variance=1 / CURVATURE,
    )
    return {
        "delay": delay,
        "bias": CURVATURE * float(values.mean()) - 1,
        "standard_error": CURVATURE * float(values.std() / math.sqrt(runs)),
        "exact": CURVATURE * exact.bias,
        "stationary": float(
            stale_sgld_law(step, CURVATURE, delay).stationary.variance_ratio[0] - 1
        ),
    }


def study(scale: str, seed: int) -> dict[str, Any]:
    """Both parts."""
    size, y = SCALES[scale], rows(seed)
    results: dict[str, Any] = {"literal": literal(y, DELAYS[0], seed), "working": [], "fixed": []}
    records.say(f"h = .0042/τ read literally: {results['literal']}")
    for delay in size.delays:
        entry = working(y, delay, size.runs, seed)
        results["working"].append(entry)
        records.say(
            f"τ = {delay}: error {entry['error']:.4f} ± {entry['standard_error']:.4f}, exact "
            f"{entry['exact']:.4f}, of which the start {entry['exact']:.4f} − "
            f"{entry['exact_from_the_posterior']:.2g}"
        )
    for delay in size.fixed_delays:
        entry = fixed(y, delay, size.fixed_runs, seed)
        results["fixed"].append(entry)
        records.say(
            f"fixed step, τ = {delay}: bias {entry['bias']:.3f} ± {entry['standard_error']:.3f} "
            f"posterior variances, exact {entry['exact']:.4f}, stationary {entry['stationary']:.4f}"
        )
    return results


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 1 and of theorem 2."""
    ends = [entry["error"] for entry in results["working"]]
    exact = [entry["exact"] for entry in results["working"]]
    worst = max(results["working"], key=lambda e: abs(e["error"] - e["exact"]))
    first = results["working"][0]
    biased = [entry for entry in results["fixed"] if entry["delay"] > 0]
    last = biased[-1]
    none = results["fixed"][0]
    started = first["exact_from_the_posterior"] / first["exact"]
    refused = results["literal"].startswith("step_size")
    return {
        "fig1-literal": computed(
            0.0 if refused else 1.0, "refused: unstable" if refused else results["literal"]
        ),
        "fig1-alike": Finding(max(ends) / min(ends), law=max(exact) / min(exact)),
        "fig1-law": Finding(abs(worst["error"] - worst["exact"]) / worst["standard_error"]),
        "fig1-start": computed(1 - started),
        "thm2-bias": Finding(
            last["bias"] / none["exact"],
            last["standard_error"] / none["exact"],
            law=last["exact"] / none["exact"],
        ),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw errors along the updates, those at the end, and the bias at a fixed step."""
    for entry in results["working"]:
        axes[0].loglog(entry["places"], entry["along"], lw=0.9, label=f"τ = {entry['delay']}")
    axes[0].set(xlabel="updates", ylabel="mean square error")
    axes[0].legend()
    for axis, part, value in zip(axes[1:], ("working", "fixed"), ("error", "bias"), strict=True):
        entries = results[part]
        delays = [entry["delay"] for entry in entries]
        axis.errorbar(
            delays,
            [entry[value] for entry in entries],
            [2 * entry["standard_error"] for entry in entries],
            fmt="o",
            ms=3,
            label="sampled, ± 2 standard errors",
        )
        axis.plot(delays, [entry["exact"] for entry in entries], **LAW, label="exact law")
        axis.set(xlabel="staleness τ")
        axis.legend()
    axes[1].set(ylabel="mean square error at L = 500 τ", ylim=(0, None))
    axes[2].set(ylabel="bias / posterior variance")
