"""Section 5.2, figure 2: communication rounds to W2² < 0.1 against the dimension.

Half of the sites hold N(20·1_d, I), the other half N(1_d, 2² I), so that the target is
N(16.2·1_d, 1.6 I). The paper estimates mean and variance of the draws from many repetitions; here
they come from the exact law of the sampler, and the sampler itself is compared with that law.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np

import consortia
from consortia.oracles import Law, fa_hmc_law
from experiments import records
from experiments.claims import Finding, computed
from experiments.drawing import LAW

MEANS = (20.0, 1.0)
CURVATURES = (1.0, 0.25)
START = 10.5
THRESHOLD = 0.1
LEAPFROG_STEPS = 5
LOCAL_STEPS = 10
DIMENSIONS = (2, *range(50, 1001, 50))
EXPECTED_ROUNDS = {2: 156, 50: 1139, 200: 2592, 500: 4425, 1000: 6609}
"""From the exact law; 6609² = 4.37e7 is the end of the axis of the paper's figure 2."""

# dimension and chains of the Monte Carlo check
CHECKS = {"quick": (10, 100), "small": (50, 400), "full": (200, 1000)}


def step_size(dimension: int) -> float:
    """η = 0.02 / d^¼."""
    return 0.02 / dimension**0.25


def law(dimension: int) -> Law:
    """The law of one coordinate; all d of them are independent and alike."""
    return fa_hmc_law(
        MEANS,
        CURVATURES,
        (0.5, 0.5),
        step_size=step_size(dimension),
        leapfrog_steps=LEAPFROG_STEPS,
        local_steps=LOCAL_STEPS,
    )


def rounds_needed(dimension: int) -> int:
    """The first round with W2² < 0.1, which is the sum of d equal terms."""
    rounds = law(dimension).rounds_to_w2_squared(THRESHOLD / dimension, START)
    if rounds is None:
        raise RuntimeError(f"d = {dimension}: W2² stays above {THRESHOLD}")
    return rounds


def gaussian_model(dimension: int) -> consortia.Model:
    """A model whose sites hold one row, the mean and the curvature of f_c = 2 U_c."""

    def log_likelihood(params: Any, batch: Any) -> Any:
        deviation = params["position"][None, :] - batch["mean"][:, None]
        return -0.25 * batch["curvature"] * jnp.sum(deviation**2, axis=1)

    start = {"position": np.full(dimension, START, np.float32)}
    return consortia.Model(None, log_likelihood, start)


def check_by_sampling(dimension: int, chains: int, seed: int) -> dict[str, Any]:
    """Mean and variance of the sampler's draws at the round of the law, against the law."""
    rounds = rounds_needed(dimension)
    sites = consortia.Sites.from_list(
        [
            {"mean": np.array([mean], np.float32), "curvature": np.array([curvature], np.float32)}
            for mean, curvature in zip(MEANS, CURVATURES, strict=True)
        ]
    )
    algorithm = consortia.fa_hmc(step_size(dimension), LEAPFROG_STEPS, LOCAL_STEPS)
    with warnings.catch_warnings():
        # These sites' densities are proper without one.
        warnings.filterwarnings("ignore", message="the model has no prior")
        tree = consortia.sample(
            gaussian_model(dimension),
            sites,
            algorithm,
            rounds=rounds,
            thin=rounds,
            chains=chains,
            seed=seed,
            progress=False,
            on_divergence="ignore",
        )
    draws = np.asarray(tree["posterior"]["position"], np.float64).reshape(-1)
    mean, variance = draws.mean(), draws.var()
    exact = law(dimension)
    there = exact.after(rounds, START)
    exact_mean, exact_variance = float(there.mean[0]), float(there.variance[0])
    target_mean, target_variance = float(exact.target.mean[0]), float(exact.target.variance[0])
    spread = math.sqrt(variance) - math.sqrt(target_variance)
    return {
        "dimension": dimension,
        "chains": chains,
        "rounds": rounds,
        "mean": mean,
        "exact_mean": exact_mean,
        "mean_z": (mean - exact_mean) / math.sqrt(exact_variance / draws.size),
        "variance": variance,
        "exact_variance": exact_variance,
        "variance_z": (variance / exact_variance - 1) / math.sqrt(2 / draws.size),
        "w2_squared": dimension * ((mean - target_mean) ** 2 + spread**2),
    }


def slope(rounds: dict[int, int]) -> float:
    """The slope of log rounds against log d, from d = 50 on."""
    dimensions = [d for d in rounds if d >= 50]
    return float(np.polyfit(np.log(dimensions), np.log([rounds[d] for d in dimensions]), 1)[0])


def study(scale: str, seed: int) -> dict[str, Any]:
    """Rounds at every dimension of the paper, and the check by sampling."""
    rounds = {dimension: rounds_needed(dimension) for dimension in DIMENSIONS}
    for dimension in EXPECTED_ROUNDS:
        records.say(f"d = {dimension:4d}: {rounds[dimension]} rounds to W2² < {THRESHOLD}")
    exponent = slope(rounds)
    records.say(f"slope of log rounds against log d, d >= 50: {exponent:.3f}")
    check = check_by_sampling(*CHECKS[scale], seed)
    records.say(
        f"sampler at d = {check['dimension']}, round {check['rounds']}, {check['chains']} chains: "
        f"mean {check['mean']:.4f} (law {check['exact_mean']:.4f}, z = {check['mean_z']:.2f}), "
        f"variance {check['variance']:.4f} (law {check['exact_variance']:.4f}, "
        f"z = {check['variance_z']:.2f}), W2² = {check['w2_squared']:.4f}"
    )
    return {"rounds": rounds, "slope": exponent, "expected": EXPECTED_ROUNDS, "check": check}


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 2."""
    rounds = {int(d): number for d, number in results["rounds"].items()}
    check = results["check"]
    return {
        "fig2-end": computed(rounds[1000] ** 2),
        "fig2-slope": computed(2 * results["slope"]),
        "fig2-sampler": Finding(
            max(abs(check["mean_z"]), abs(check["variance_z"])),
            shown=f"W₂² {check['w2_squared']:.3f} by {check['chains']} chains at d = "
            f"{check['dimension']}; mean and variance {check['mean_z']:.1f} and "
            f"{check['variance_z']:.1f} standard errors from the law",
        ),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw squared rounds against d, as in figure 2, and rounds on logarithmic axes."""
    dimensions = np.array([int(d) for d in results["rounds"]], float)
    rounds = np.array(list(results["rounds"].values()), float)
    axes[0].plot(dimensions, rounds**2, "o-", ms=3, **LAW)
    axes[0].set(xlabel="dimension d", ylabel="(rounds)², millions")
    axes[0].yaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g}")
    axes[1].loglog(dimensions, rounds, "o-", ms=3, **LAW, label="exact law")
    reference = rounds[-1] * np.sqrt(dimensions / dimensions[-1])
    axes[1].loglog(dimensions, reference, ":", color="tab:red", label="∝ √d")
    axes[1].set(xlabel="dimension d", ylabel="rounds")
    axes[1].legend()
