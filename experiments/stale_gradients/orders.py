r"""Section 3: the least error by staleness, integrators of order 2, servers of unequal steps.

A Gaussian target with gradients of all rows and constant staleness, by exact laws; chains start in
the posterior. Theorem 3's bound 1/(Lh) + τ²h² + h^(2K) is least at (τ/L)^(2/3), so that it is the
same for all τ at L = 500 τ. The integrator of order 2 is the symmetric splitting of SGHMC. Of
theorems 6 and 7 the constant is the least that a single chain needs at one of the steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from consortia.oracles import sghmc_server, stale_server_law, stale_sgld_law, stale_square_error
from experiments import records
from experiments.claims import Finding, computed
from experiments.drawing import LAW

LENGTH = 500
FRICTION = 1.0
STEPS = (0.01, 0.02, 0.04)
"""h of the splitting, where the orders of its bias are read off; the curvature is 1."""
UNEQUAL = (0.02, 0.01, 0.005, 0.0025)
SERVER_UPDATES, SERVER_DELAY = 2_000, 1

# staleness values, and lengths of chains of order 2
SCALES = {
    "quick": ((1, 2, 5), (64_000, 1_024_000)),
    "small": ((1, 2, 5, 10, 15, 20), (16_000, 64_000, 256_000, 1_024_000)),
    "full": ((1, 2, 5, 10, 15, 20), (16_000, 64_000, 256_000, 1_024_000)),
}


def least(delay: int, updates: int) -> dict[str, float]:
    """Return the least mean square error over steps, in squared posterior variances."""

    def error(log: float) -> float:
        a = float(np.exp(log))
        return _error(a, delay, updates).mean_square

    edge = np.log(2 * np.sin(np.pi / (4 * delay + 2)))
    found = minimize_scalar(error, bounds=(edge - 6, edge), method="bounded",
                            options={"xatol": 1e-3})  # fmt: skip
    return {"delay": delay, "error": float(found.fun), "step": float(np.exp(found.x))}


def _error(contraction: float, delay: int, updates: int) -> Any:
    """Return the error of the average of θ² on N(0, 1), from the posterior's own law."""
    return stale_square_error(
        contraction, delay, 2 * contraction, updates, start_variance=1.0, target_variance=1.0
    )


def splitting_bias(step: float, delay: int) -> float:
    """Return the bias of θ² in the long run."""
    law = stale_server_law(sghmc_server(step, FRICTION, integrator="splitting"), 1.0, delay)
    return float(law.stationary.variance_ratio[0]) - 1


def splitting_error(step: float, updates: int) -> float:
    """Return the mean square error of the average of θ² over a run without staleness."""
    law = stale_server_law(sghmc_server(step, FRICTION, integrator="splitting"), 1.0, 0)
    matrix = law.recursion.step.matrix[0]
    covariance = law.recursion.step.stationary_covariance()[0]
    values, vectors = np.linalg.eig(matrix)
    # θ's covariance at lag k is Σ_j c_j λ_j^k; its square is summed as a geometric series.
    parts = vectors[0] * np.linalg.solve(vectors, covariance[:, 0].astype(complex))
    ratio = np.multiply.outer(values, values)
    weight = np.multiply.outer(parts, parts)
    lags = ratio / (1 - ratio) - ratio * (1 - ratio**updates) / (updates * (1 - ratio) ** 2)
    spread = 2 * (covariance[0, 0] ** 2 + 2 * float(np.sum(weight * lags).real)) / updates
    return float(spread + (covariance[0, 0] - 1) ** 2)


def servers() -> dict[str, float]:
    """Return bias and variance of four servers of unequal steps, over their bounds."""
    steps = np.array(UNEQUAL)
    errors = [_error(float(h), SERVER_DELAY, SERVER_UPDATES) for h in steps]
    biases = np.array([abs(one.bias) for one in errors])
    variances = np.array([one.variance for one in errors])
    times = SERVER_UPDATES * steps
    total, largest = times.sum(), times.max()
    single = max(biases / (1 / times + 2 * SERVER_DELAY * steps))
    spread = max(variances / (1 / times + steps**2))
    mean_time = total / len(steps)
    bias_bound = single * (1 / mean_time + largest / mean_time * 2 * SERVER_DELAY * steps.max())
    variance_bound = spread * (1 / total + float(np.sum((times * steps) ** 2)) / total**2)
    shares = times / total
    return {
        "bias": float(shares @ biases) / bias_bound,
        "variance": float(shares**2 @ variances) / variance_bound,
    }


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return the laws; nothing is drawn, so that the seed is not used."""
    delays, lengths = SCALES[scale]
    by_delay = [least(delay, LENGTH * delay) for delay in delays]
    records.say(f"least errors {by_delay}")
    bias = {
        delay: [abs(splitting_bias(step, delay)) for step in STEPS] for delay in (0, SERVER_DELAY)
    }
    plain = [float(stale_sgld_law(h, 1.0, 0).stationary.variance_ratio[0]) - 1 for h in STEPS]
    by_length = []
    for length in lengths:
        found = minimize_scalar(
            lambda log, length=length: splitting_error(float(np.exp(log)), length),
            bounds=(np.log(1e-2), np.log(1.0)), method="bounded",
        )  # fmt: skip
        by_length.append({"length": length, "error": found.fun, "step": float(np.exp(found.x))})
    return {
        "by_delay": by_delay,
        "bias": {**bias, "sgld": plain},
        "by_length": by_length,
        "servers": servers(),
    }


def slope(x: Any, y: Any) -> float:
    """Return the exponent of x in y."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of theorems 2, 3, 6 and 7 and of corollary 5."""
    delays, errors, steps = (
        [one[name] for one in results["by_delay"]] for name in ("delay", "error", "step")
    )
    lengths, least_errors = (
        [e[name] for e in results["by_length"]] for name in ("length", "error")
    )
    bias = results["bias"]
    return {
        "thm3-delay": computed(
            slope(delays, errors),
            f"{slope(delays, errors):.3f}; "
            + ", ".join(f"τ = {tau}: {e:.4f}" for tau, e in zip(delays, errors, strict=True)),
        ),
        "thm3-alike": computed(max(errors) / min(errors)),
        "thm3-step": computed(slope(delays, steps)),
        "thm2-order2": computed(slope(STEPS, bias["0"])),
        "thm2-order2-stale": computed(slope(STEPS, bias[str(SERVER_DELAY)])),
        "cor5-order2": computed(slope(lengths, least_errors)),
        "thm6-unequal": computed(results["servers"]["bias"]),
        "thm7-unequal": computed(results["servers"]["variance"]),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw the least error by τ, the bias by h, and the least error of order 2 by length."""
    delays = np.array([one["delay"] for one in results["by_delay"]], float)
    errors = [one["error"] for one in results["by_delay"]]
    axes[0].semilogx(delays, errors, "o-", ms=3, **LAW, label="best step, L = 500 τ")
    axes[0].semilogx(delays, errors[-1] * ((delays + 0.5) / delays) ** (2 / 3), ":",
                     color="tab:red", label="∝ (1 + 1/(2τ))^(2/3)")  # fmt: skip
    axes[0].set(xlabel="staleness τ", ylabel="mean square error", ylim=(0, None))
    labels = {"0": "splitting, τ = 0", "1": "splitting, τ = 1", "sgld": "Euler, SGLD, τ = 0"}
    for name, values in results["bias"].items():
        axes[1].loglog(STEPS, values, "o-", ms=3, lw=0.8, label=labels[name])
    axes[1].set(xlabel="step size h", ylabel="|bias| / posterior variance")
    axes[1].minorticks_off()
    axes[1].set_xticks(STEPS, [f"{step:g}" for step in STEPS])
    lengths = np.array([one["length"] for one in results["by_length"]], float)
    best = [one["error"] for one in results["by_length"]]
    axes[2].loglog(lengths, best, "o-", ms=3, **LAW, label="splitting, best step")
    axes[2].loglog(lengths, best[0] * (lengths / lengths[0]) ** -0.8, ":", color="tab:red",
                   label="L^(−4/5)")  # fmt: skip
    axes[2].set(xlabel="updates L", ylabel="mean square error")
    for axis in axes:
        axis.legend()
