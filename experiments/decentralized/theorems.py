r"""Appendix 1: consensus by ε and network, the Taylor test, averaged HMC, and contraction.

The consensus error is the root mean square distance of an agent from the average in the long run,
of regressions with unlike rows, by the exact law. The Taylor test is compared with the exact change
of the Hamiltonian under the published proposal, ω* = ω − ε(p + εg), on a logistic regression; one
step puts two chains apart by the difference of their chances to accept, times the step. Averaged
HMC has the agents' mean momentum and the mean gradient at its own position. Coupled chains share
their momenta; they contract by the exact law's spectral radius.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from consortia import graphs
from consortia.oracles import GaussianAgents, decentralized_hmc_law
from experiments.claims import Finding, computed, over_runs
from experiments.drawing import LAW

AGENTS, ROWS, DIMENSION = 8, 40, 4
NETWORKS = ("ring", "star", "path")
STEPS = (0.001, 0.002, 0.005, 0.01, 0.02)
ENERGY_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02)
ITERATIONS = 20
"""Of the agents beside averaged HMC."""

# proposals for each ε
REPEATS = 5
"""Of what is drawn, for the error of an exponent."""
SCALES = {"quick": 200, "small": 2000, "full": 20_000}


def unlike_agents(seed: int) -> GaussianAgents:
    """Return regressions whose rows are sorted by the response."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(AGENTS * ROWS, DIMENSION))
    y = x @ rng.normal(size=DIMENSION) + rng.normal(size=len(x))
    parts = np.array_split(np.argsort(y), AGENTS)
    return GaussianAgents.linear_regression([{"x": x[p], "y": y[p]} for p in parts])


def energies(proposals: int, seed: int) -> list[dict[str, float]]:
    """Return the Taylor test's results by ε, as printed and with the right sign.

    Of the energy the mean absolute error; of two chains their mean distance after one step.
    """
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
        entry = {"step": step}
        for name, sign in (("printed", 1), ("right", -1)):
            test = step**2 / 2 * (curvature + sign * square)
            chances = np.minimum(1, np.exp(-test)), np.minimum(1, np.exp(-change))
            length = step * np.sqrt((moved**2).sum(axis=1))
            entry[name] = float(np.abs(test - change).mean())
            entry[f"{name}_distance"] = float((np.abs(chances[0] - chances[1]) * length).mean())
        found.append(entry)
    return found


def from_averaged(agents: GaussianAgents, step: float, chains: int, seed: int) -> float:
    """Return the mean distance of the agents' average on the ring from averaged HMC."""
    rng = np.random.default_rng(seed)
    links = np.asarray(graphs.resolve("ring", AGENTS))
    shape = chains, AGENTS, DIMENSION

    def gradients(at: np.ndarray) -> np.ndarray:
        return np.einsum("iab,nib->nia", agents.curvatures, at) - agents.pulls

    positions, centre = np.zeros(shape), np.zeros((chains, 1, DIMENSION))
    tracked = gradients(positions)
    for _ in range(ITERATIONS):
        momentum, own = rng.normal(size=shape), gradients(positions)
        mean = gradients(np.broadcast_to(centre, shape)).mean(axis=1, keepdims=True)
        centre = centre - step * (momentum.mean(axis=1, keepdims=True) + step * mean)
        positions = links @ (positions - step * (momentum + step * tracked))
        tracked = links @ (tracked + gradients(positions) - own)
    return float(np.linalg.norm(positions.mean(axis=1) - centre[:, 0], axis=1).mean())


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return consensus, the Taylor test, the distance from averaged HMC, and contraction by ε."""
    agents = unlike_agents(seed)
    consensus: dict[str, Any] = {}
    for network in NETWORKS:
        spectrum = np.abs(np.linalg.eigvalsh(np.asarray(graphs.resolve(network, AGENTS))))
        errors = []
        for step in STEPS:
            law = decentralized_hmc_law(agents, network, step_size=step, variant="corrected")
            errors.append(max(law.stationary.agents.disagreement, 0.0) ** 0.5)
        consensus[network] = {"second": float(np.sort(spectrum)[-2]), "errors": errors}
    contraction = []
    least = float(np.linalg.eigvalsh(agents.curvatures.mean(axis=0))[0])
    for step in STEPS:
        law = decentralized_hmc_law(agents, "ring", step_size=step, variant="published")
        rate = 1 - law.spectral_radius**2
        contraction.append({"step": step, "rate": rate, "claimed": step**2 * least / 4})
    return {
        "consensus": consensus,
        "energies": [energies(SCALES[scale], seed + r) for r in range(REPEATS)],
        "from_averaged": [
            [from_averaged(agents, s, SCALES[scale], seed + r) for s in STEPS]
            for r in range(REPEATS)
        ],
        "contraction": contraction,
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of theorems 3.1 to 3.5."""
    ring, path = (results["consensus"][name]["errors"] for name in ("ring", "path"))
    steps = np.log([entry["step"] for entry in results["energies"][0]])

    def slope(values: Any, where: Any) -> float:
        return float(np.polyfit(where, np.log(values), 1)[0])

    def drawn(name: str) -> Finding:
        return over_runs([slope([e[name] for e in es], steps) for es in results["energies"]])

    return {
        "thm32-step": computed(slope(ring, np.log(STEPS))),
        "thm32-network": computed(path[2] / ring[2]),
        "thm31-printed": drawn("printed"),
        "thm31-right": drawn("right"),
        "thm31-distance": drawn("printed_distance"),
        "thm31-distance-right": drawn("right_distance"),
        "thm33": over_runs([slope(run, np.log(STEPS)) for run in results["from_averaged"]]),
        "thm34": computed(min(e["rate"] / e["claimed"] for e in results["contraction"])),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw by ε: consensus, the Taylor test's error, distances of two chains, contraction."""
    for name, entry in results["consensus"].items():
        label = f"{name}, β = {entry['second']:.2f}"
        axes[0].loglog(STEPS, entry["errors"], "o-", ms=3, lw=0.8, label=label)
    axes[0].set(xlabel="ε", ylabel="distance of an agent from the average")
    axes[0].legend()
    steps = np.array([entry["step"] for entry in results["energies"][0]])
    for name, label in (("printed", "as printed, ℵ + |g|²"), ("right", "ℵ − |g|²")):
        values = [entry[name] for entry in results["energies"][0]]
        axes[1].loglog(steps, values, "o-", ms=3, lw=0.8, label=label)
    axes[1].loglog(steps, values[-1] * (steps / steps[-1]) ** 3, ":", **LAW, label="∝ ε³")
    axes[1].set(xlabel="ε", ylabel="error of the test's energy")
    axes[1].legend()
    for name, label in (("printed", "test as printed"), ("right", "ℵ − |g|²")):
        values = [entry[f"{name}_distance"] for entry in results["energies"][0]]
        axes[2].loglog(steps, values, "o-", ms=3, lw=0.8, label=f"exact energy, {label}")
    axes[2].loglog(
        STEPS, results["from_averaged"][0], "s--", ms=3, lw=0.8, label="averaged HMC, ring"
    )
    axes[2].loglog(steps, values[-1] * (steps / steps[-1]) ** 4, ":", **LAW, label="∝ ε⁴")
    axes[2].set(xlabel="ε", ylabel="distance of two chains")
    axes[2].legend()
    for name, style in (("rate", "o-"), ("claimed", ":")):
        label = "exact law, ring" if name == "rate" else "ε²K/4"
        values = [entry[name] for entry in results["contraction"]]
        axes[3].loglog(STEPS, values, style, ms=3, **LAW, label=label)
    axes[3].set(xlabel="ε", ylabel="contraction an iteration")
    axes[3].legend()
