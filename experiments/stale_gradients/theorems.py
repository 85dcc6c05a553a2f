r"""Section 4: variance and workers, bias and staleness, the best step for a length, servers.

A Gaussian target with gradients of all rows, constant staleness W − 1, by exact laws. The mean of
θ² is averaged over L updates a server, from the posterior's own law where no other start is named.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from consortia.oracles import stale_sgld_law, stale_square_error
from experiments.claims import Finding, computed
from experiments.drawing import LAW
from experiments.stale_gradients.impact import CURVATURE

WORKERS = (1, 2, 4, 6, 9)
DELAYS = (0, 1, 2, 5, 10, 20)
CONTRACTIONS = (0.0025, 0.005, 0.01, 0.02)
ITERATIONS = 1_000
LENGTHS = (300, 1_000, 3_000, 10_000)
SERVERS = (1, 2, 4, 8)

# step sizes tried for each length
SCALES = {"quick": 8, "small": 24, "full": 24}


def error(contraction: float, delay: int, updates: int, start: float = 1 / CURVATURE) -> Any:
    """Return the exact error of the average of θ² after so many updates.

    Args:
        contraction: hΛ of an update.
        delay: staleness of its gradient.
        updates: L.
        start: variance of the chain's start; by default the posterior's.
    """
    step = contraction / CURVATURE
    return stale_square_error(
        contraction,
        delay,
        2 * step,
        updates,
        start_variance=start,
        target_variance=1 / CURVATURE,
    )


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return the laws; nothing is drawn, so that the seed is not used."""
    by_workers = []
    for workers in WORKERS:
        found = error(0.01, workers - 1, ITERATIONS * workers)
        by_workers.append({"workers": workers, "variance": CURVATURE**2 * found.variance,
                           "bias": CURVATURE * found.bias})  # fmt: skip
    by_delay = [
        {
            "contraction": a,
            "bias": [
                float(stale_sgld_law(a / CURVATURE, CURVATURE, tau).stationary.variance_ratio[0])
                - 1
                for tau in DELAYS
            ],
        }
        for a in CONTRACTIONS
    ]
    best = []
    for length in LENGTHS:
        grid = np.geomspace(1e-4, 0.3, SCALES[scale])
        errors = [CURVATURE**2 * error(float(a), 1, length).mean_square for a in grid]
        best.append({"length": length, "error": min(errors), "step": grid[int(np.argmin(errors))]})
    by_servers = []
    for servers in SERVERS:
        # S chains without staleness of L updates each, or one chain of S·L with staleness S − 1
        many = error(0.02, 0, ITERATIONS)
        one = error(0.02, servers - 1, ITERATIONS * servers)
        by_servers.append(
            {
                "servers": servers,
                "many": CURVATURE**2 * (many.variance / servers + many.bias**2),
                "one": CURVATURE**2 * one.mean_square,
                "bias_many": CURVATURE * many.bias,
                "bias_one": CURVATURE * one.bias,
                "start_many": CURVATURE * error(0.02, 0, ITERATIONS, 1.0).bias,
                "start_one": CURVATURE * error(0.02, servers - 1, ITERATIONS * servers, 1.0).bias,
            }
        )
    return {
        "by_workers": by_workers,
        "delays": DELAYS,
        "by_delay": by_delay,
        "best": best,
        "by_servers": by_servers,
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of section 4."""
    one, nine = results["by_workers"][0], results["by_workers"][-1]
    delays = np.array(results["delays"][1:], float)
    small = results["by_delay"][0]["bias"]
    added = np.array(small[1:]) - small[0]
    slope = np.polyfit(np.log([e["length"] for e in results["best"]]),
                       np.log([e["error"] for e in results["best"]]), 1)[0]  # fmt: skip
    servers = results["by_servers"][-1]
    return {
        "cor5-variance": computed(one["variance"] / nine["variance"] / 9),
        "thm2-delay": computed(float(np.polyfit(np.log(delays), np.log(added), 1)[0])),
        "cor5-rate": computed(float(slope)),
        "thm67-servers": computed(
            servers["bias_many"] / servers["bias_one"],
            f"S = {servers['servers']}: {servers['bias_many']:.3g} many, "
            f"{servers['bias_one']:.3g} one (posterior variances)",
        ),
        "thm67-start": computed(servers["start_many"] / servers["start_one"]),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw variance by workers, bias by staleness, the best error by length, and servers."""
    workers = np.array([entry["workers"] for entry in results["by_workers"]])
    variance = np.array([entry["variance"] for entry in results["by_workers"]])
    axes[0].loglog(workers, variance, "o-", ms=3, **LAW, label="variance")
    axes[0].loglog(workers, variance[0] / workers, ":", color="tab:red", label="∝ 1/W")
    squares = [entry["bias"] ** 2 for entry in results["by_workers"]]
    axes[0].loglog(workers, squares, "s--", ms=3, color="C0", lw=0.8, label="bias²")
    axes[0].set(xlabel="workers W", ylabel="error of the average")
    axes[0].legend()
    for entry in results["by_delay"]:
        label = f"hΛ = {entry['contraction']:g}"
        axes[1].plot(results["delays"], entry["bias"], "o-", ms=3, lw=0.8, label=label)
    axes[1].set(xlabel="staleness τ", ylabel="bias / posterior variance")
    axes[1].legend()
    lengths = np.array([entry["length"] for entry in results["best"]])
    errors = np.array([entry["error"] for entry in results["best"]])
    axes[2].loglog(lengths, errors, "o-", ms=3, **LAW, label="best step")
    rate = errors[0] * (lengths / lengths[0]) ** (-2 / 3)
    axes[2].loglog(lengths, rate, ":", color="tab:red", label="L^(−2/3)")
    axes[2].set(xlabel="updates L, τ = 1", ylabel="mean square error")
    axes[2].legend()
    servers = [entry["servers"] for entry in results["by_servers"]]
    for name, label in (("many", "S servers, 1 worker"), ("one", "1 server, S workers")):
        values = [entry[name] for entry in results["by_servers"]]
        axes[3].semilogy(servers, values, "o-", ms=3, lw=0.8, label=label)
    axes[3].set(xlabel="S", ylabel="mean square error")
    axes[3].legend()
