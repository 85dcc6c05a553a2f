"""Section 1, figure 1: the variance of gradient estimates, Bernoulli rows at three shards.

Thirty fair coin tosses at three shards of ten rows with means .1, .5 and .9 (our copy of the paper
reads "−0.1" for the first, perhaps a dash), m = 5 rows a gradient, a uniform prior. The estimates'
mean and variance are computed exactly, for batches with replacement, and checked by drawing
batches. FSGLD is ours in this figure. Its band has Gaussian surrogates matched to each shard's
gradient and curvature at θ = ½, where it is evaluated; the recipe of section 3.1, the moments of
each shard's normalised likelihood, and Laplace's are beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments import records
from experiments.claims import Finding, computed
from experiments.drawing import LAW

SHARDS = np.array([[1] * 1 + [0] * 9, [1] * 5 + [0] * 5, [1] * 9 + [0] * 1])
BATCH = 5
GRID = np.linspace(0.1, 0.9, 33)
ANCHOR = 0.5
DRAWS = {"quick": 2000, "small": 50_000, "full": 500_000}
METHODS = ("sgld", "dsgld", "fsgld")


def slope(x: Any, theta: Any) -> Any:
    """d/dθ of the log-likelihood of a toss."""
    return x / theta - (1 - x) / (1 - theta)


def conducive(theta: Any) -> np.ndarray:
    """g_s(θ) of the anchored surrogates, (shards, ...)."""
    ones = SHARDS.sum(axis=1)
    zeros = SHARDS.shape[1] - ones
    gradient = ones / ANCHOR - zeros / (1 - ANCHOR)
    curvature = ones / ANCHOR**2 + zeros / (1 - ANCHOR) ** 2
    each = gradient[:, None] - curvature[:, None] * (np.atleast_1d(theta)[None] - ANCHOR)
    return each.sum(axis=0, keepdims=True) - len(SHARDS) * each


def by_recipe() -> dict[str, float]:
    """Return the gradient's standard deviation over SGLD's at θ = ½ by other surrogates."""
    shards, size = SHARDS.shape
    ones, theta = SHARDS.sum(axis=1), np.array([0.5])
    beta = {"moments": (ones + 1) / (size + 2), "laplace": ones / size}  # of Beta(ones + 1, ...)
    spread = {"moments": size + 3, "laplace": size}
    plain = slope(SHARDS, theta)
    within = (shards * size) ** 2 * plain.var(axis=1).mean() / BATCH
    found = {}
    for name, mean in beta.items():
        each = (mean - theta) * spread[name] / (mean * (1 - mean))
        centres = shards * (plain.sum(axis=1) - each) + each.sum()
        found[name] = float(np.sqrt(within + centres.var()) / exact(theta)["sgld"][1][0])
    return found


def exact(theta: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and standard deviation of the estimates of the log-likelihood's gradient."""
    shards, size = SHARDS.shape
    rows = slope(SHARDS[:, :, None], theta[None, None])
    pooled = rows.reshape(-1, theta.size)
    total = pooled.sum(axis=0)
    result = {"sgld": (total, (shards * size) * pooled.std(axis=0) / np.sqrt(BATCH))}
    within = (shards * size) ** 2 * rows.var(axis=1).mean(axis=0) / BATCH
    for name, shift in (("dsgld", 0.0), ("fsgld", conducive(theta))):
        centres = shards * rows.sum(axis=1) + shift
        result[name] = (centres.mean(axis=0), np.sqrt(within + centres.var(axis=0)))
    return result


def drawn(theta: float, draws: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The estimates from batches, (draws,) each."""
    shards, size = SHARDS.shape
    pooled = rng.choice(SHARDS.ravel(), (draws, BATCH))
    site = rng.integers(shards, size=draws)
    local = SHARDS[site[:, None], rng.integers(size, size=(draws, BATCH))]
    plain = shards * size / BATCH * slope(local, theta).sum(axis=1)
    return {
        "sgld": shards * size / BATCH * slope(pooled, theta).sum(axis=1),
        "dsgld": plain,
        "fsgld": plain + conducive(theta)[:, 0][site],
    }


def study(scale: str, seed: int) -> dict[str, Any]:
    """Standard deviations on the grid; at three points the drawn ones beside them."""
    rng = np.random.default_rng(seed)
    law = exact(GRID)
    checks = []
    for theta in (0.3, 0.5, 0.7):
        estimates = drawn(theta, DRAWS[scale], rng)
        here = exact(np.array([theta]))
        for name in METHODS:
            deviation = float(here[name][1][0])
            checks.append(
                {
                    "theta": theta,
                    "method": name,
                    "deviation": deviation,
                    "drawn": float(estimates[name].std()),
                    "mean_z": float(
                        (estimates[name].mean() - here[name][0][0])
                        / (deviation / np.sqrt(DRAWS[scale]))
                    ),
                }
            )
    middle = {name: float(exact(np.array([0.5]))[name][1][0]) for name in METHODS}
    records.say(f"standard deviations at one half: {middle}")
    return {
        "theta": GRID,
        "mean": law["sgld"][0],
        "deviation": {name: law[name][1] for name in METHODS},
        "at_one_half": middle,
        "recipes": by_recipe(),
        "checks": checks,
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 1: at one half, over SGLD's standard deviation."""
    middle = results["at_one_half"]
    drawn = {c["method"]: c["drawn"] for c in results["checks"] if c["theta"] == 0.5}
    recipes = {f"fig1-{name}": computed(ratio) for name, ratio in results["recipes"].items()}
    return recipes | {
        f"fig1-{name}": Finding(drawn[name] / drawn["sgld"], law=middle[name] / middle["sgld"])
        for name in ("dsgld", "fsgld")
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw the gradient with bands of one standard deviation."""
    theta, mean = np.asarray(results["theta"]), np.asarray(results["mean"])
    for name, colour in zip(METHODS, ("C0", "C1", "C2"), strict=True):
        spread = np.asarray(results["deviation"][name])
        axes[0].fill_between(theta, mean - spread, mean + spread, alpha=0.3, color=colour)
        axes[0].plot(theta, mean + spread, color=colour, label=name.upper())
    axes[0].plot(theta, mean, **LAW, label="exact")
    for check in results["checks"]:
        at = float(np.interp(check["theta"], theta, mean)) + check["drawn"]
        axes[0].plot(check["theta"], at, "o", ms=3, color=f"C{METHODS.index(check['method'])}")
    axes[0].set(xlabel="θ", ylabel="gradient of the log-likelihood")
    axes[0].legend()
