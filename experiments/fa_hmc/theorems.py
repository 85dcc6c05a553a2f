r"""What section 4's theorems say, by the exact law of two Gaussian clients.

The clients are N(2, 1) and N(0, 4) with even weights, in one dimension, and chains start at 6. The
number of rounds to a given W₂² is the least over step sizes, as the theorems choose η for ε. With a
local accept/reject step, which section 2.2 permits, there is no such law: many chains take its
place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import norm

from consortia.oracles import Law, fa_hmc_law
from experiments import records
from experiments.claims import Finding, computed
from experiments.drawing import LAW

MEANS, CURVATURES, START = (2.0, 0.0), (1.0, 0.25), 6.0
THRESHOLD = 1e-4
NOISE = 100.0
LOCAL_STEPS = (1, 2, 5, 10, 20, 50, 100, 300)
THRESHOLDS = tuple(float(value) for value in np.geomspace(1e-6, 1e-2, 9))
STAGES, FIRST_STAGE = 7, 60
MOST_ROUNDS = 60_000
MOST_AVERAGED = 600
"""Rounds in which K = T = 10 is to arrive."""
TESTED_STEPS = (0.1, 0.2, 0.5, 0.8)
TESTED_CHAINS, TESTED_ROUNDS = 20_000, 60
"""Enough: at these step sizes a chain forgets its start in some ten rounds."""

# T of the first panel, and step sizes tried for each number
SCALES = {
    "quick": ((1, 10, 100), 20),
    "small": (LOCAL_STEPS, 200),
    "full": (LOCAL_STEPS, 200),
}


def law(
    step: float,
    steps: int,
    local: int,
    noise: float = 0.0,
    rho: float = 1.0,
    *,
    debias: bool = False,
) -> Law:
    """Return the law in one dimension."""
    return fa_hmc_law(
        MEANS,
        CURVATURES,
        (0.5, 0.5),
        step_size=step,
        leapfrog_steps=steps,
        local_steps=local,
        gradient_noise=noise,
        momentum_correlation=rho,
        debias=debias,
    )


def rounds_at(exact: Law, threshold: float) -> float:
    """Return the first round with W₂² below the threshold; infinity if there is none."""
    alpha = float(exact.recursion.alpha[0, 0, 0])
    if not abs(alpha) < 1:
        return math.inf
    settled, centre = exact.stationary, float(exact.target.mean[0])
    variance = float(settled.variance[0])
    decay = alpha ** np.arange(1, MOST_ROUNDS)
    shift = float(settled.bias[0]) + decay * (START - centre - float(settled.bias[0]))
    spread = np.sqrt(variance * (1 - decay**2)) - math.sqrt(float(exact.target.variance[0]))
    near = np.flatnonzero(shift**2 + spread**2 < threshold)
    return float(near[0] + 1) if near.size else math.inf


def fewest(
    steps: int, local: int, noise: float, tries: int, threshold: float = THRESHOLD, rho: float = 1.0
) -> float:
    """Return the fewest rounds over step sizes."""
    grid = np.geomspace(1e-4, 1.5, tries) / steps
    return min(rounds_at(law(eta, steps, local, noise, rho), threshold) for eta in grid)


def terms(step: float) -> dict[str, float]:
    """Return W₂² to the posterior in the long run, one source of error added after the other."""
    parts = {}
    before = 0.0
    for name, noise, rho in (("bias", 0.0, 1.0), ("ρ = 0", 0.0, 0.0), ("σ² = 100", NOISE, 0.0)):
        whole = law(step, 10, 10, noise, rho).stationary.w2 ** 2
        parts[name] = whole - before
        before = whole
    return parts


def staged(first: float, length: int) -> list[float]:
    """Return W₂² after each round where stage s lasts 2^s ``length`` rounds with η/2^(s/2)."""
    mean, variance, path = START, 0.0, []
    centre = None
    for stage in range(STAGES):
        exact = law(first / 2 ** (stage / 2), 10, 1)
        alpha = float(exact.recursion.alpha[0, 0, 0])
        beta, noise = (
            float(exact.recursion.beta[0]),
            float(exact.recursion.innovation_covariance[0, 0, 0]),
        )
        centre = float(exact.target.mean[0]), math.sqrt(float(exact.target.variance[0]))
        for _ in range(length * 2**stage):
            mean, variance = alpha * mean + beta, alpha**2 * variance + noise
            path.append((mean - centre[0]) ** 2 + (math.sqrt(variance) - centre[1]) ** 2)
    return path


def with_test(step: float, seed: int) -> float:
    """Return W₂ in the long run where each of K = 5, T = 10 local trajectories is tested."""
    rng = np.random.default_rng(seed)
    target = law(step, 5, 10).target
    place = np.full(TESTED_CHAINS, float(target.mean[0]))
    for _ in range(TESTED_ROUNDS):
        momenta = rng.normal(size=(10, TESTED_CHAINS))
        ends = []
        for mean, curvature in zip(MEANS, CURVATURES, strict=True):
            at = place
            for momentum in momenta:
                moved, p = at, momentum - step / 2 * curvature * (at - mean)
                for leap in range(5):
                    moved = moved + step * p
                    p = p - step * (1 if leap < 4 else 0.5) * curvature * (moved - mean)
                energies = [
                    curvature * (x - mean) ** 2 / 2 + q**2 / 2
                    for x, q in ((moved, p), (at, momentum))
                ]
                taken = np.log(rng.uniform(size=TESTED_CHAINS)) < energies[1] - energies[0]
                at = np.where(taken, moved, at)
            ends.append(at)
        place = np.mean(ends, axis=0)
    levels = (np.arange(TESTED_CHAINS) + 0.5) / TESTED_CHAINS
    exact = float(target.mean[0]) + math.sqrt(float(target.variance[0])) * norm.ppf(levels)
    return float(np.sqrt(np.mean((np.sort(place) - exact) ** 2)))


def arrival(step: float, debias: bool) -> float:
    """Return the first round of K = T = 10 with W₂² below the threshold; infinity if none is."""
    exact = law(step, 10, 10, debias=debias)
    if not exact.stable or exact.stationary.w2**2 >= THRESHOLD:
        return math.inf
    return exact.rounds_to_w2_squared(THRESHOLD, START, MOST_AVERAGED) or math.inf


def debiased(step: float, tries: int) -> dict[str, float]:
    """Return what algorithm B.2 does to the error and to the rounds."""
    target = law(step, 10, 10).target
    plain, mended = (law(step, 10, 10, debias=debias).stationary for debias in (False, True))
    grid = np.geomspace(0.004, 0.1, tries)
    rounds = [min(arrival(float(eta), debias) for eta in grid) for debias in (False, True)]
    return {
        "step": step,
        "plain": plain.w2,
        "debiased": mended.w2,
        "shift": abs(float(mended.bias[0])) / math.sqrt(float(target.variance[0])),
        "rounds_plain": rounds[0],
        "rounds_debiased": rounds[1],
    }


def stopped() -> dict[str, float]:
    """Return how far the mean is off in the long run, where R̂ of any number of chains is 1."""
    settled = law(0.5, 5, 10).stationary
    sd = math.sqrt(float(settled.target.variance[0]))
    return {"shift": abs(float(settled.bias[0])) / sd, "spread": float(settled.sd_ratio[0])}


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return rounds by T, by ε and by noise, the terms of the error, stages and the limit η → 0."""
    times, tries = SCALES[scale]
    by_local = []
    for noise in (0.0, NOISE):
        for steps in (1, 10):
            found = [fewest(steps, local, noise, tries) for local in times]
            by_local.append({"noise": noise, "leapfrog_steps": steps, "rounds": found})
            records.say(f"noise {noise:g}, K = {steps}: rounds by T {found}")
    by_epsilon = [fewest(5, 10, 0.0, tries, value) for value in THRESHOLDS]
    private = [fewest(10, local, 0.0, tries, rho=0.0) for local in times]
    limit = []
    for steps in (1, 2, 5, 10, 20, 50):
        near = law(0.2 / steps, steps, 10).stationary
        limit.append({"leapfrog_steps": steps, "w2": near.w2})
    path = staged(0.03, FIRST_STAGE)
    plain = fewest(10, 1, 0.0, tries, path[-1])
    constant = {}
    for eta in (0.03, 0.01):
        exact = law(eta, 10, 1)
        constant[f"{eta:g}"] = [m.w2**2 for m in exact.along(range(1, len(path) + 1), START)]
    return {
        "local_steps": times,
        "by_local": by_local,
        "private": private,
        "thresholds": THRESHOLDS,
        "by_epsilon": by_epsilon,
        "terms": [{"step": eta, **terms(eta)} for eta in (0.002, 0.005, 0.01, 0.02)],
        "stages_end": {"rounds": len(path), "w2_squared": path[-1], "constant_needs": plain},
        "stages": path[:: max(len(path) // 200, 1)],
        "constant": {name: c[:: max(len(c) // 200, 1)] for name, c in constant.items()},
        "every": max(len(path) // 200, 1),
        "limit": limit,
        "tested": [
            {"step": eta, "with": with_test(eta, seed), "without": law(eta, 5, 10).stationary.w2}
            for eta in TESTED_STEPS
        ],
        "debiased": debiased(0.02, tries),
        "stopped": stopped(),
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of section 4."""
    times = list(results["local_steps"])
    rounds = {
        (entry["noise"], entry["leapfrog_steps"]): dict(zip(times, entry["rounds"], strict=True))
        for entry in results["by_local"]
    }
    noisy, exact = rounds[NOISE, 10], rounds[0.0, 10]
    epsilon = np.sqrt(np.array(results["thresholds"]))
    bare = np.array(results["by_epsilon"]) / np.log(1 / epsilon**2)
    slope = -np.polyfit(np.log(epsilon), np.log(bare), 1)[0]
    end = results["stages_end"]
    private = dict(zip(times, results["private"], strict=True))
    corrected = results["debiased"]
    tested = next(entry for entry in results["tested"] if entry["step"] == 0.5)

    def told(one: dict[int, float]) -> str:
        return ", ".join(f"T = {t}: {one[t]:.0f}" for t in (1, 10, 100))

    return {
        "thm41-noise": computed(noisy[1] / noisy[100], shown=f"K = 10, {told(noisy)}"),
        "thm41-upturn": computed(
            noisy[times[-1]] / min(noisy.values()), shown=f"T = {times[-1]}: {noisy[times[-1]]:.0f}"
        ),
        "thm41-leapfrogs": computed(
            rounds[NOISE, 1][10] / noisy[10],
            f"{rounds[NOISE, 1][10] / noisy[10]:.3g} by rounds, "
            f"{rounds[NOISE, 1][10] / noisy[10] / 10:.3g} by gradients; FA-LD, "
            f"{told(rounds[NOISE, 1])}",
        ),
        "thm41-private": computed(private[1] / private[100], shown=f"ρ = 0, {told(private)}"),
        "prop43-exact": computed(
            max(exact.values()) / min(exact.values()), f"K = 10, {told(exact)}"
        ),
        "prop43-epsilon": computed(float(slope)),
        "thm44-terms": computed(
            results["terms"][0]["σ² = 100"] / results["terms"][0]["bias"],
            shown="at η = .002: " + ", ".join(
                f"{n} {v:.2g}" for n, v in results["terms"][0].items() if n != "step"
            ),
        ),
        "prop45-stages": computed(
            end["constant_needs"] / end["rounds"],
            shown=f"W₂² = {end['w2_squared']:.2g} after {end['rounds']} rounds; the best constant "
            f"η needs {end['constant_needs']:.0f}",
        ),
        "alg2-metropolis": Finding(
            tested["with"] / tested["without"],
            shown=f"W₂ = {tested['with']:.3g} with the test, {tested['without']:.3g} without",
        ),
        "b2-error": computed(
            corrected["plain"] / corrected["debiased"],
            f"W₂ {corrected['plain']:.2g} plain, {corrected['debiased']:.2g} de-biased",
        ),
        "b2-mean": computed(corrected["shift"], f"{corrected['shift']:.1g} sd"),
        "b2-rounds": computed(
            corrected["rounds_plain"] / corrected["rounds_debiased"],
            f"{corrected['rounds_plain']:.0f} plain, {corrected['rounds_debiased']:.0f} de-biased",
        ),
        "remark42": computed(
            results["stopped"]["shift"],
            f"R̂ = 1, mean {results['stopped']['shift']:.2f} sd off, "
            f"spread {results['stopped']['spread']:.2f} times the posterior's",
        ),
        "thmc1-limit": computed(
            results["limit"][-1]["w2"] / results["limit"][0]["w2"],
            shown=", ".join(f"K = {e['leapfrog_steps']}: {e['w2']:.3g}" for e in results["limit"]),
        ),
    }  # fmt: skip


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw rounds by T, by 1/ε, the terms of the error, stages, and the continuous limit."""
    for entry in results["by_local"]:
        name = "FA-LD" if entry["leapfrog_steps"] == 1 else "FA-HMC, K = 10"
        noise = f"σ² = {entry['noise']:g}"
        style = "-" if entry["noise"] else "--"
        axes[0].loglog(results["local_steps"], entry["rounds"], style, marker="o", ms=3, lw=0.8,
                       label=f"{name}, {noise}")  # fmt: skip
    axes[0].loglog(
        results["local_steps"], results["private"], ":", lw=0.8, label="K = 10, ρ = 0, exact"
    )
    axes[0].set(xlabel="local steps T", ylabel="rounds to W₂² < 10⁻⁴")
    axes[0].legend()
    inverse = 1 / np.sqrt(np.array(results["thresholds"]))
    rounds = np.array(results["by_epsilon"])
    axes[1].loglog(inverse, rounds, "ko-", ms=3, lw=0.7, label="exact law")
    bound = inverse * np.log(inverse**2)
    axes[1].loglog(inverse, rounds[-1] * bound / bound[-1], ":", color="tab:red",
                   label="∝ log(1/ε²)/ε")  # fmt: skip
    axes[1].set(xlabel="1/ε", ylabel="rounds to W₂ < ε, T = 10")
    axes[1].legend()
    bottom = np.zeros(len(results["terms"]))
    names = [f"{entry['step']:g}" for entry in results["terms"]]
    for name in ("bias", "ρ = 0", "σ² = 100"):
        heights = np.array([entry[name] for entry in results["terms"]])
        axes[2].bar(names, heights, 0.6, bottom, label=name)
        bottom = bottom + heights
    axes[2].set(
        xlabel="step size η, K = T = 10", ylabel="W₂² in the long run", yscale="log",
        ylim=(results["terms"][0]["bias"] / 5, None),
    )  # fmt: skip
    axes[2].legend()
    k = results["every"] * np.arange(len(results["stages"])) + 1
    axes[3].loglog(k, results["stages"], "k-", lw=0.7, label="stages, η from .03")
    for name, path in results["constant"].items():
        axes[3].loglog(k, path, lw=0.8, label=f"η = {name}")
    axes[3].set(xlabel="rounds", ylabel="W₂²")
    axes[3].legend()
    steps = [entry["leapfrog_steps"] for entry in results["limit"]]
    axes[4].semilogx(steps, [entry["w2"] for entry in results["limit"]], "ko-", ms=3, lw=0.7)
    axes[4].set(xlabel="leapfrog steps K at Kη = .2", ylabel="W₂ in the long run", ylim=(0, None))
    for name, label in (("without", "exact law, without"), ("with", "with the test")):
        style = LAW if name == "without" else {"lw": 0.9}
        values = [entry[name] for entry in results["tested"]]
        axes[5].loglog(TESTED_STEPS, values, "o-", ms=3, **style, label=label)
    axes[5].set(xlabel="step size η, K = 5, T = 10", ylabel="W₂ in the long run", ylim=(0.1, 2))
    axes[5].minorticks_off()
    axes[5].set_xticks(TESTED_STEPS, [f"{step:g}" for step in TESTED_STEPS])
    axes[5].legend()
