r"""Section 5.1, figure 1(c) by sampling: rounds to an error, averages every T leapfrog steps.

K = 100, η = .01, d = n rows at 20 clients, noise of variance 100 in each gradient. The error is the
mean over chains of that of a chain's draws so far, one after a fixed number of rounds, of at most
ten leapfrog steps each.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

import consortia
from consortia.diagnostics import marginal_error
from experiments import records
from experiments.claims import Finding
from experiments.drawing import LAW
from experiments.fa_hmc import logistic
from experiments.fa_hmc.marginal_error import EPSILONS, NOISE
from experiments.fa_hmc.reference import reference_draws
from experiments.fa_hmc.sampled import given
from experiments.fa_hmc.synchronisation import (
    EVERY,
    LEAPFROG_STEPS,
    PUBLISHED_BEST,
    STEP,
    with_noise,
)

WARMUP = 5
"""Trajectories of a radian, after which the start is forgotten."""
LONGER = 4
"""Rounds of a run over those that the law has for independent trajectories: a chain remembers."""
CHECKED = 24
"""Numbers of draws, from twenty on, at which a chain's error is computed."""
RESAMPLED = 400
"""Samples of the chains with replacement, for the error of the best T."""

# d and n, T, chains, reference draws
SCALES: dict[str, tuple[int, tuple[int, ...], int, int]] = {
    "quick": (40, (1, 50, 70, 100), 4, 2000),
    "small": (100, (1, 30, 50, 60, 70, 80, 100), 12, 20_000),
    "full": (100, (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100), 100, 50_000),
}


def rounds_to_errors(
    problem: Any, reference: np.ndarray, every: int, rounds: int, chains: int
) -> list[list[float]]:
    """Return the rounds of each chain to each ε, infinity where it has not come down to it."""
    model, sites = problem
    thin = max(1, EVERY // every)
    tree = consortia.sample(
        model, sites,
        consortia.fa_hmc(
            STEP, LEAPFROG_STEPS, local_steps=1, average_every=every, gradient_noise=NOISE
        ),
        rounds=rounds, warmup=WARMUP * LEAPFROG_STEPS // every, chains=chains, thin=thin, seed=1,
        progress=False, on_divergence="ignore",
    )  # fmt: skip
    draws = np.asarray(tree["posterior"]["coefficients"], np.float64)
    counts = np.unique(np.geomspace(20, draws.shape[1], CHECKED).astype(int))
    errors = [[marginal_error(chain[:n], reference) for n in counts] for chain in draws]
    falling = -np.log(np.minimum.accumulate(errors, axis=1))
    logs = np.log(thin * counts)
    return [
        np.exp([np.interp(-math.log(e), path, logs, right=math.inf) for e in EPSILONS]).tolist()
        for path in falling
    ]


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return each chain's rounds to each ε by T, and those of the law."""
    dimension, times, chains, kept = SCALES[scale]
    data, model, sites, clients = given(dimension, seed)
    reference = reference_draws(
        model, data, draws=kept // 4, step_size=logistic.REFERENCE_STEP, seed=seed
    ).draws.reshape(-1, dimension)
    by_time = []
    for every in times:
        law = with_noise(clients, every)["rounds"]
        length = int(LONGER * law[0])
        run = partial(rounds_to_errors, (model, sites), reference, every, length, chains)
        found = records.part(f"d{dimension}-T{every}-rounds", run)
        by_time.append({"every": every, "rounds": found, "law": law})
        records.say(f"T = {every}: {logs_of(by_time[-1])[:, 0].mean():.2f}, log of rounds")
    return {"by_time": by_time}


def logs_of(entry: dict[str, Any]) -> np.ndarray:
    """Return the logarithms of the rounds of chains, (chains, ε)."""
    reached = [[math.inf if r is None else r for r in chain] for chain in entry["rounds"]]
    return np.log(np.array(reached))


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 1(c) by sampling: ratios of geometric means over chains."""
    by_time = {entry["every"]: entry for entry in results["by_time"]}
    times, logs = list(by_time), {every: logs_of(entry) for every, entry in by_time.items()}
    means = {every: chains.mean(axis=0) for every, chains in logs.items()}
    best = min(times, key=lambda every: means[every][0])
    rng, chains = np.random.default_rng(0), len(logs[best])
    resampled = [
        times[int(np.argmin([logs[t][rng.integers(chains, size=chains), 0].mean() for t in times]))]
        for _ in range(RESAMPLED)
    ]
    law = {every: np.array(entry["law"]) for every, entry in by_time.items()}
    quickest = min(times, key=lambda every: law[every][0])
    gain = math.exp(means[1][0] - means[best][0])
    spread = math.sqrt(sum(logs[every][:, 0].var(ddof=1) for every in (1, best)) / chains)
    over = np.exp(means[100] - means[PUBLISHED_BEST])
    # Both of one chain's path: the ratio's error is that of its logarithm's difference.
    apart = [logs[every][:, 0] - logs[every][:, -1] for every in (100, PUBLISHED_BEST)]
    error = math.sqrt(sum(part.var(ddof=1) for part in apart) / chains)
    lawful = law[100] / law[PUBLISHED_BEST]
    shown = ", ".join(f"T = {every}: {math.exp(mean[0]):.3g}" for every, mean in means.items())
    return {
        "rounds-best": Finding(
            best,
            float(np.std(resampled)),
            law=quickest,
            shown=f"T = {best} ± {np.std(resampled):.2g}; rounds at {shown}",
        ),
        "rounds-gain": Finding(gain, gain * spread, law=float(law[1][0] / law[quickest][0])),
        "rounds-hundred": Finding(
            over[0] / over[-1],
            over[0] / over[-1] * error,
            law=float(lawful[0] / lawful[-1]),
            shown=f"{over[0]:.2f} at ε = .1012, {over[-1]:.2f} at ε = .11: "
            f"{over[0] / over[-1]:.3f} ± {over[0] / over[-1] * error:.2g}",
        ),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw rounds to each ε by T beside the law."""
    times = [entry["every"] for entry in results["by_time"]]
    for column, epsilon in enumerate(EPSILONS):
        rounds = [math.exp(logs_of(entry)[:, column].mean()) for entry in results["by_time"]]
        axes[0].semilogy(times, rounds, "o-", ms=4, lw=0.8, label=f"sampled, ε = {epsilon:g}")
    law = [entry["law"][0] for entry in results["by_time"]]
    label = "law, independent trajectories, ε = .1012"
    axes[0].semilogy(times, law, "s-", ms=3, **LAW, label=label)
    axes[0].axvline(PUBLISHED_BEST, color="tab:red", lw=0.7, ls=":")
    axes[0].text(PUBLISHED_BEST - 1, 0.7, "paper: T = 70 is best", fontsize=5.5, color="tab:red",
                 ha="right", va="top", transform=axes[0].get_xaxis_transform())  # fmt: skip
    axes[0].set(xlabel="T, leapfrog steps between averages", ylabel="rounds, K = 100, η = .01")
    axes[0].legend()
