"""Section 4 on the Gaussian mean of section 5.1: annealed steps, batches, length, and α.

Everything comes from the exact law of a travelling chain. With the printed surrogates FSGLD's
covariance obeys C' = (1 − h(N + 1)/2)² C + hI + (hN/2)² S, S the covariance of a minibatch's mean
within the shards, also for a step that falls along the updates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import consortia
from consortia.oracles import location_shards
from experiments import records
from experiments.claims import Finding
from experiments.drawing import LAW
from experiments.fsgld import gaussian_mean
from experiments.fsgld.gaussian_mean import BATCH, STEP

VISITS, UPDATES = 2000, 100
OFFSET, POWER = 20.0, 0.55
BATCHES = (2, 5, 10, 20, 40)
LENGTHS = (1_000, 10_000, 100_000, 1_000_000)
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)

# visits of the annealed chains, and chains
SCALES = {"quick": (100, 50), "small": (VISITS, 400), "full": (VISITS, 2000)}


def steps(visits: int) -> np.ndarray:
    """Return h by visits: Σh = ∞ and Σh² < ∞."""
    return STEP * (OFFSET / (OFFSET + np.arange(visits))) ** POWER


def annealed(rows: list[np.ndarray], by_visit: np.ndarray) -> np.ndarray:
    """Return the variance of a coordinate over the posterior's after each visit, from a point."""
    total = sum(len(x) for x in rows)
    noise = location_shards(rows, BATCH, replace=False)["gradient_noise"]
    spread = float(np.mean([np.trace(one) / 2 for one in noise])) * len(rows) ** 2
    variance, path = 0.0, []
    for h in by_visit:
        for _ in range(UPDATES):
            variance = (1 - h * (total + 1) / 2) ** 2 * variance + h + h**2 / 4 * spread
        path.append(variance * (total + 1))
    return np.array(path)


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return inflation by visits, and the laws by batch, length and α."""
    rows = gaussian_mean.shards(seed)
    visits, chains = SCALES[scale]
    laws = annealed(rows, steps(visits)), annealed(rows, np.full(visits, STEP))
    given = gaussian_mean.method(rows, "fsgld", UPDATES)
    method = consortia.fsgld(
        steps(visits), UPDATES, BATCH, surrogate=given.surrogate, replace=False
    )
    tree = consortia.sample(
        gaussian_mean.model(),
        consortia.Sites.from_list([{"x": x.astype(np.float32)} for x in rows]),
        method,
        rounds=visits,
        thin=visits,
        chains=chains,
        seed=seed,
        init=np.concatenate(rows).mean(axis=0).astype(np.float32),
        progress=False,
    )
    ends = np.asarray(tree["posterior"]["theta"], np.float64).reshape(chains, 2)
    total = sum(len(x) for x in rows)
    drawn = float(ends.var(axis=0, ddof=1).mean()) * (total + 1)
    records.say(f"annealed, {visits} visits: variance ratio {drawn:.2f}, law {laws[0][-1]:.2f}")
    every = max(visits // 100, 1)
    by_batch = [
        float(gaussian_mean.law(rows, "fsgld", 100, batch_size=m).stationary.variance_ratio.mean())
        for m in BATCHES
    ]
    by_length = {
        name: [
            gaussian_mean.law(rows, name, 100).recursion.mean_square_error(length, 100)
            for length in LENGTHS
        ]
        for name in ("fsgld", "dsgld")
    }
    by_strength = [
        float(np.trace(gaussian_mean.law(rows, "fsgld", 100, strength=a).stationary.covariance))
        for a in STRENGTHS
    ]
    return {
        "visits": every * np.arange(len(laws[0][::every])) + 1,
        "annealed": laws[0][::every],
        "constant": laws[1][::every],
        "drawn": {"visits": visits, "ratio": drawn, "error": drawn / np.sqrt(chains)},
        "end": float(laws[0][-1]),
        "batches": BATCHES,
        "by_batch": by_batch,
        "lengths": LENGTHS,
        "by_length": by_length,
        "strengths": STRENGTHS,
        "by_strength": by_strength,
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of section 4 and of remark 1."""
    drawn = results["drawn"]
    excess = np.log(np.array(results["by_batch"]) - 1)
    lengths = np.log(results["lengths"])
    slopes = {n: np.polyfit(lengths, np.log(v), 1)[0] for n, v in results["by_length"].items()}
    widths = np.array(results["by_strength"])
    quadratic = (widths[2] - widths[-1]) / (widths[0] - widths[-1])
    return {
        "annealed": Finding(drawn["ratio"], drawn["error"], law=results["end"]),
        "thm2-batch": Finding(float(np.polyfit(np.log(results["batches"]), excess, 1)[0])),
        "thm2-length": Finding(float(slopes["fsgld"])),
        "thm1-length": Finding(float(slopes["dsgld"])),
        "thm1-thm2": Finding(results["by_length"]["dsgld"][-2] / results["by_length"]["fsgld"][-2]),
        "remark1-alpha": Finding(float(quadratic)),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw inflation by visits, by batch, errors by length, and the spread by α."""
    axes[0].loglog(results["visits"], results["annealed"], **LAW, label="annealed, exact law")
    axes[0].loglog(results["visits"], results["constant"], color="C1", lw=0.9, label="h = 1e-4")
    drawn = results["drawn"]
    axes[0].errorbar(drawn["visits"], drawn["ratio"], 2 * drawn["error"], fmt="o", ms=3,
                     label="sampled")  # fmt: skip
    axes[0].axhline(1, color="0.6", lw=0.6)
    axes[0].set(xlabel="visits", ylabel="variance / posterior's")
    axes[0].legend()
    axes[1].loglog(results["batches"], np.array(results["by_batch"]) - 1, "ko-", ms=3, lw=0.7)
    axes[1].set(xlabel="rows a gradient m", ylabel="variance / posterior's − 1")
    for name, values in results["by_length"].items():
        axes[2].loglog(results["lengths"], values, "o-", ms=3, lw=0.8, label=f"{name.upper()}(100)")
    axes[2].set(xlabel="updates", ylabel="squared error of the mean")
    axes[2].legend()
    axes[3].semilogy(results["strengths"], results["by_strength"], "ko-", ms=3, lw=0.7)
    axes[3].set(xlabel="α", ylabel="trace of the covariance, T = 100")
