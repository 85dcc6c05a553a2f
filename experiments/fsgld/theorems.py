"""Section 4 on the Gaussian mean of section 5.1: annealed steps, batches, length, and α.

Everything comes from the exact law of a travelling chain. With the printed surrogates FSGLD's
covariance obeys C' = (1 − h(N + 1)/2)² C + hI + (hN/2)² S, S the covariance of a minibatch's mean
within the shards, also for a step that falls along the updates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import consortia
from consortia.oracles import Law, location_shards, travelling_law
from experiments import records
from experiments.claims import Finding, computed
from experiments.drawing import LAW
from experiments.fsgld import gaussian_mean
from experiments.fsgld.gaussian_mean import BATCH, STEP, gradient_constants

VISITS, UPDATES, LONG = 2000, 100, 100_000
OFFSET, POWER = 20.0, 0.55
BATCHES = (2, 5, 10, 20, 40)
LENGTHS = (1_000, 10_000, 100_000, 1_000_000)
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
WIDTHS, SHIFTS = (0.5, 0.8, 1.0, 2.0), (0.0, 0.3, 1.0)
"""Wrong surrogates: their precision in parts of the right one, and how far their mean is off."""

# visits of the annealed chains, and chains
SCALES = {"quick": (100, 50), "small": (VISITS, 400), "full": (VISITS, 2000)}


def steps(visits: int) -> np.ndarray:
    """Return h by visits: Σh = ∞ and Σh² < ∞."""
    return STEP * (OFFSET / (OFFSET + np.arange(visits))) ** POWER


def annealed(rows: list[np.ndarray], by_visit: np.ndarray) -> np.ndarray:
    """Return the variance of a coordinate over the posterior's after each visit, from a point.

    Args:
        rows: of each shard.
        by_visit: h of each visit, (visits,), or of each of its updates, (visits, updates).
    """
    total = sum(len(x) for x in rows)
    noise = location_shards(rows, BATCH, replace=False)["gradient_noise"]
    spread = float(np.mean([np.trace(one) / 2 for one in noise])) * len(rows) ** 2
    falls = np.broadcast_to(by_visit.reshape(len(by_visit), -1), (len(by_visit), UPDATES))
    keeps, adds = (1 - falls * (total + 1) / 2) ** 2, falls + falls**2 / 4 * spread
    share, gain = np.ones(len(falls)), np.zeros(len(falls))
    for keep, add in zip(keeps.T, adds.T, strict=True):
        share, gain = keep * share, keep * gain + add
    variance, path = 0.0, []
    for kept, gained in zip(share, gain, strict=True):
        variance = kept * variance + gained
        path.append(variance * (total + 1))
    return np.array(path)


def scores(rows: list[np.ndarray]) -> list[dict[str, float]]:
    """Return ε² and its bound by remark 3 for surrogates that are ever more wrong, first shard."""
    x = rows[0]
    axis = np.linspace(-gaussian_mean.BOX, gaussian_mean.BOX, 13)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    right = len(x) * (x.mean(axis=0) - grid)
    found = []
    for width in WIDTHS:
        for shift in SHIFTS:
            given = width * (right + len(x) * np.array([shift, 0.0]))
            _, epsilon = gradient_constants(x[None] - grid[:, None], given)
            score = float(((right - given) ** 2).sum(axis=1).max()) / len(x) ** 2
            bound = float(x.var(axis=0).sum()) + score
            found.append({"score": score, "epsilon_squared": epsilon, "bound": bound})
    return found


UNEVEN = np.tile([0.05, 0.15], gaussian_mean.SHARDS // 2)
"""f_s of theorem 1's comparison."""


def one_shard(rows: list[np.ndarray]) -> dict[str, float]:
    """Return the variance of DSGLD on all rows as one shard, and SGLD's by its own formula."""
    together = np.concatenate(rows)
    law = gaussian_mean.law([together], "dsgld", 1)
    count, batches = len(together), together.var(axis=0, ddof=1)
    spread = STEP + STEP**2 / 4 * count**2 * batches / BATCH * (1 - BATCH / count)
    variance = spread / (1 - (1 - STEP * (count + 1) / 2) ** 2)
    return {"dsgld": float(np.trace(law.stationary.covariance)), "sgld": float(variance.sum())}


def law_within(rows: list[np.ndarray], steps: np.ndarray) -> Law:
    """Return the law of FSGLD where each update of a visit has a step of its own, as printed."""
    return travelling_law(
        **location_shards(rows, BATCH, replace=False),
        step_size=STEP,
        step_factors=steps / STEP,
        local_steps=len(steps),
        prior_precision=1.0,
        strength=1.0,
    )


def uneven(rows: list[np.ndarray]) -> dict[str, float]:
    """Return the squared error of DSGLD(1) with even and with uneven probabilities."""
    found = {}
    for name, shares in (("even", None), ("uneven", UNEVEN)):
        law = travelling_law(
            **location_shards(rows, BATCH, replace=False),
            probabilities=shares,
            step_size=STEP,
            local_steps=1,
            prior_precision=1.0,
        )
        found[name] = law.recursion.mean_square_error(LONG, 1)
    return found


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
        on_divergence="ignore",
    )
    ends = np.asarray(tree["posterior"]["theta"], np.float64).reshape(chains, 2)
    total = sum(len(x) for x in rows)
    drawn = float(ends.var(axis=0, ddof=1).mean()) * (total + 1)
    records.say(f"annealed, {visits} visits: variance ratio {drawn:.2f}, law {laws[0][-1]:.2f}")
    falling = STEP * 2 * (1 - (np.arange(UPDATES) + 0.5) / UPDATES)
    within = float(law_within(rows, falling).stationary.variance_ratio.mean())
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
        "long": {"visits": LONG, "ratio": float(annealed(rows, steps(LONG))[-1])},
        "batches": BATCHES,
        "by_batch": by_batch,
        "lengths": LENGTHS,
        "by_length": by_length,
        "strengths": STRENGTHS,
        "by_strength": by_strength,
        "within": within,
        "surrogates": scores(rows),
        "one_shard": one_shard(rows),
        "uneven": uneven(rows),
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of section 4 and of remarks 1 and 3."""
    drawn = results["drawn"]
    excess = np.log(np.array(results["by_batch"]) - 1)
    lengths = np.log(results["lengths"])
    slopes = {n: np.polyfit(lengths, np.log(v), 1)[0] for n, v in results["by_length"].items()}
    widths = np.array(results["by_strength"])
    quadratic = (widths[2] - widths[-1]) / (widths[0] - widths[-1])
    found = {
        "annealed": computed(
            results["long"]["ratio"],
            f"{results['long']['ratio']:.3f}; {results['end']:.2f} after {drawn['visits']:,}",
        ),
        "annealed-sampled": Finding(
            abs(drawn["ratio"] - results["end"]) / drawn["error"],
            shown=f"after {drawn['visits']:,} visits {drawn['ratio']:.2f} ± {drawn['error']:.2f}, "
            f"law {results['end']:.2f}",
        ),
        "thm2-batch": computed(float(np.polyfit(np.log(results["batches"]), excess, 1)[0])),
        "thm2-length": computed(float(slopes["fsgld"])),
        "thm1-length": computed(float(slopes["dsgld"])),
        "thm1-thm2": computed(
            results["by_length"]["dsgld"][-2] / results["by_length"]["fsgld"][-2]
        ),
        "remark1-alpha": computed(float(quadratic)),
        "alg1-steps": computed(results["within"]),
        "remark3": computed(
            max(entry["epsilon_squared"] / entry["bound"] for entry in results["surrogates"])
        ),
    }
    if "uneven" in results:
        one, two = results["one_shard"], results["uneven"]
        found["remark2"] = computed(one["dsgld"] / one["sgld"])
        found["thm1-unequal"] = computed(two["uneven"] / two["even"])
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw inflation by visits, by batch, errors by length, the spread by α, and ε² by score."""
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
    surrogates = sorted(results["surrogates"], key=lambda entry: entry["score"])
    score = [entry["score"] for entry in surrogates]
    axes[4].plot(score, [entry["epsilon_squared"] for entry in surrogates], "o", ms=3, label="ε²")
    axes[4].plot(score, [entry["bound"] for entry in surrogates], **LAW, label="bound")
    axes[4].set(xlabel="largest squared difference / N_s²", ylabel="ε²", xscale="symlog",
                yscale="log")  # fmt: skip
    axes[4].legend()
