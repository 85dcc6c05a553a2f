r"""Section 5.1, figure 1 by sampling: averages every T leapfrog steps, within trajectories.

K = 100, η = .01, exact gradients, d = n rows at 20 clients. Draws of all phases of a trajectory
count together. Beside them algorithm 3, with T = 10 iterations of K leapfrog steps.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

import consortia
from consortia.diagnostics import marginal_error
from experiments import records
from experiments.claims import Finding, computed
from experiments.drawing import LAW
from experiments.fa_hmc import logistic
from experiments.fa_hmc.marginal_error import Clients
from experiments.fa_hmc.reference import reference_draws
from experiments.fa_hmc.synchronisation import EVERY, LEAPFROG_STEPS, STEP, settled

WARMUP, ITERATED_WARMUP = 5, 2
"""Trajectories of a radian, and rounds of ten of them, after which the start is forgotten."""
ITERATED = "iterations"

# d and n, T in leapfrog steps, trajectories and chains, rounds of ten trajectories, reference draws
SCALES: dict[str, tuple[int, tuple[int, ...], int, int, int, int]] = {
    "quick": (40, (10,), 10, 20, 4, 1000),
    "small": (100, (10, 70, 100), 40, 40, 4, 4000),
    "full": (100, (10, 70, 100), 200, 200, 50, 20_000),
}


def sampled(
    problem: Any, reference: np.ndarray, rounds: int, warmup: int, chains: int, **options: Any
) -> dict[str, Any]:
    """Return the marginal error of all draws together, and each coordinate's shift."""
    model, sites = problem
    tree = consortia.sample(
        model, sites, consortia.fa_hmc(STEP, LEAPFROG_STEPS, **options),
        rounds=rounds, warmup=warmup, chains=chains, seed=1, progress=False, on_divergence="ignore",
    )  # fmt: skip
    draws = np.asarray(tree["posterior"]["coefficients"], np.float64)
    means = draws.mean(axis=1)
    return {
        "error": marginal_error(draws.reshape(-1, draws.shape[-1]), reference),
        "shift": means.mean(axis=0) - reference.mean(axis=0),
        "shift_error": means.std(axis=0, ddof=1) / math.sqrt(chains),
    }


def given(dimension: int, seed: int) -> tuple[Any, consortia.Model, consortia.Sites, Clients]:
    """Return rows, model, clients with their rows, and the law's clients."""
    data = logistic.rows(dimension, dimension, seed + logistic.EVALUATION)
    model = consortia.models.logistic_regression(dimension)
    parts = np.array_split(np.arange(dimension), logistic.CLIENTS)
    sites = consortia.Sites.from_list([{k: v[part] for k, v in data.items()} for part in parts])
    clients = Clients.of(data["x"].astype(float), data["y"].astype(float), logistic.CLIENTS)
    return data, model, sites, clients


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return marginal errors by T, by sampling and by the law."""
    dimension, times, trajectories, chains, iterated, kept = SCALES[scale]
    data, model, sites, clients = given(dimension, seed)
    reference = reference_draws(
        model, data, draws=kept, step_size=logistic.REFERENCE_STEP, seed=seed
    ).draws.reshape(-1, dimension)
    by_time = []
    for every in times:
        rounds = trajectories * LEAPFROG_STEPS // every
        run = partial(
            sampled, (model, sites), reference, rounds, WARMUP * LEAPFROG_STEPS // every, chains,
            local_steps=1, average_every=every,
        )  # fmt: skip
        law = settled(clients, LEAPFROG_STEPS, every)
        entry = records.part(f"d{dimension}-T{every}-sampled", run)
        by_time.append({"every": every, **entry, "law": law.error(), "law_shift": law.shift})
        records.say(f"T = {every}: ME {entry['error']:.4f}, law {law.error():.4f}")
    run = partial(
        sampled, (model, sites), reference, iterated, ITERATED_WARMUP, chains, local_steps=EVERY
    )
    algorithm3 = records.part(f"d{dimension}-iterations-sampled", run)
    (law3,) = clients.marginal_errors(STEP, LEAPFROG_STEPS, EVERY, (0.0,))
    records.say(f"T = {EVERY} iterations: ME {algorithm3['error']:.4f}, law {law3:.4f}")
    return {"by_time": by_time, ITERATED: {"error": algorithm3["error"], "law": law3}}


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 1 by sampling."""
    by_time, iterated = results["by_time"], results[ITERATED]
    within = next(entry for entry in by_time if entry["every"] == EVERY)
    squares = [
        (np.array(e["shift"]) - e["law_shift"]) ** 2 / np.array(e["shift_error"]) ** 2
        for e in by_time
    ]
    scores = [math.sqrt(float(np.mean(square))) for square in squares]
    shown = ", ".join(f"T = {e['every']}: {e['error']:.3f} (law {e['law']:.3f})" for e in by_time)
    return {
        "sampled-within": Finding(within["error"], law=within["law"], shown=shown),
        "sampled-readings": Finding(
            iterated["error"] / within["error"],
            law=iterated["law"] / within["law"],
            shown=f"ME {iterated['error']:.3f} (law {iterated['law']:.3f}) over "
            f"{within['error']:.3f} (law {within['law']:.3f})",
        ),
        "sampled-shift": computed(max(scores)),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw marginal errors by T beside the law."""
    times = [entry["every"] for entry in results["by_time"]]
    laws = [entry["law"] for entry in results["by_time"]]
    errors = [entry["error"] for entry in results["by_time"]]
    axes[0].plot(times, laws, "s-", ms=3, **LAW, label="law, T leapfrog steps")
    axes[0].plot(times, errors, "o", ms=4, label="sampled, T leapfrog steps")
    axes[0].plot(EVERY, results[ITERATED]["error"], "o", ms=4, label="sampled, T iterations")
    axes[0].axhline(results[ITERATED]["law"], lw=0.7, ls=":", color="C1")
    axes[0].set(xlabel="T", ylabel="ME, K = 100, η = .01", ylim=(0, None))
    axes[0].legend()
