r"""Appendix 1: the consensus error by ε and by network, and the second-order Taylor test.

The consensus error is the root mean square distance of an agent from the average in the long run,
of regressions with unlike rows, by the exact law. The Taylor test is compared with the exact change
of the Hamiltonian under the published proposal, ω* = ω − ε(p + εg), on a logistic regression.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from consortia import graphs
from consortia.oracles import GaussianAgents, decentralized_hmc_law
from experiments.claims import Finding
from experiments.drawing import LAW

AGENTS, ROWS, DIMENSION = 8, 40, 4
NETWORKS = ("ring", "star", "path")
STEPS = (0.001, 0.002, 0.005, 0.01, 0.02)
ENERGY_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02)

# proposals for each ε
SCALES = {"quick": 200, "small": 2000, "full": 20_000}


def unlike_agents(seed: int) -> GaussianAgents:
    """Return regressions whose rows are sorted by the response."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(AGENTS * ROWS, DIMENSION))
    y = x @ rng.normal(size=DIMENSION) + rng.normal(size=len(x))
    parts = np.array_split(np.argsort(y), AGENTS)
    return GaussianAgents.linear_regression([{"x": x[p], "y": y[p]} for p in parts])


def energies(proposals: int, seed: int) -> list[dict[str, float]]:
    """Return the mean absolute error of the Taylor test, as printed and with the right sign."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, DIMENSION))
    y = rng.uniform(size=ROWS) < 1 / (1 + np.exp(-x @ rng.normal(size=DIMENSION)))

    def potential(w: np.ndarray) -> np.ndarray:
        odds = w @ x.T
        return np.logaddexp(0, odds).sum(axis=-1) - odds @ y + 0.5 * (w**2).sum(axis=-1)

    at, momentum = rng.normal(size=(2, proposals, DIMENSION))
    chance = 1 / (1 + np.exp(-at @ x.T))
    gradient = (chance - y) @ x + at
    along = momentum @ x.T
    curvature = (chance * (1 - chance) * along**2).sum(axis=1) + (momentum**2).sum(axis=1)
    square = (gradient**2).sum(axis=1)
    found = []
    for step in ENERGY_STEPS:
        moved = momentum + step * gradient
        change = potential(at - step * moved) - potential(at)
        change = change + ((moved**2).sum(axis=1) - (momentum**2).sum(axis=1)) / 2
        printed, right = (step**2 / 2 * (curvature + sign * square) for sign in (1, -1))
        found.append(
            {
                "step": step,
                "printed": float(np.abs(printed - change).mean()),
                "right": float(np.abs(right - change).mean()),
            }
        )
    return found


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return the consensus error by ε and network, and the errors of the Taylor test."""
    agents = unlike_agents(seed)
    consensus: dict[str, Any] = {}
    for network in NETWORKS:
        spectrum = np.abs(np.linalg.eigvalsh(np.asarray(graphs.resolve(network, AGENTS))))
        errors = []
        for step in STEPS:
            law = decentralized_hmc_law(agents, network, step_size=step, variant="corrected")
            errors.append(max(law.stationary.agents.disagreement, 0.0) ** 0.5)
        consensus[network] = {"second": float(np.sort(spectrum)[-2]), "errors": errors}
    return {"consensus": consensus, "energies": energies(SCALES[scale], seed)}


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of theorems 3.1 and 3.2."""
    ring, path = (results["consensus"][name]["errors"] for name in ("ring", "path"))
    steps = np.log([entry["step"] for entry in results["energies"]])

    def slope(values: Any, where: Any) -> float:
        return float(np.polyfit(where, np.log(values), 1)[0])

    return {
        "thm32-step": Finding(slope(ring, np.log(STEPS))),
        "thm32-network": Finding(path[2] / ring[2]),
        "thm31-printed": Finding(slope([e["printed"] for e in results["energies"]], steps)),
        "thm31-right": Finding(slope([e["right"] for e in results["energies"]], steps)),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw the consensus error by ε for each network, and the errors of the Taylor test."""
    for name, entry in results["consensus"].items():
        label = f"{name}, β = {entry['second']:.2f}"
        axes[0].loglog(STEPS, entry["errors"], "o-", ms=3, lw=0.8, label=label)
    axes[0].set(xlabel="ε", ylabel="distance of an agent from the average")
    axes[0].legend()
    steps = np.array([entry["step"] for entry in results["energies"]])
    for name, label in (("printed", "as printed, ℵ + |g|²"), ("right", "ℵ − |g|²")):
        values = [entry[name] for entry in results["energies"]]
        axes[1].loglog(steps, values, "o-", ms=3, lw=0.8, label=label)
    axes[1].loglog(steps, values[-1] * (steps / steps[-1]) ** 3, ":", **LAW, label="∝ ε³")
    axes[1].set(xlabel="ε", ylabel="error of the test's energy")
    axes[1].legend()
