r"""Theorems 1 and 7 and lemma 3 beside the exact law: bounds, orders in η, and a budget.

The bound in the long run is √η E₁ for the average (exact gradients, σ = 0, a start at zero),
with D of eq. (16) and C₁ of eq. (17). The last factor of E₁ is read under a square root, as its
square has the units of the others. On a disconnected network the bound is infinite. In lemma 3 the
disagreement is bounded by (2Dη/(1 − γ̄))² + 8dNη/(1 − γ̄²). For theorem 7 the friction leaves the
largest momentum β = 1 − γη that its condition (24) allows, which is of the order of η⁴.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from consortia import graphs
from consortia.oracles import de_sghmc_law, de_sgld_law
from experiments import records
from experiments.claims import Finding, computed
from experiments.de_sgld.problem import Problem, figures_of
from experiments.drawing import LAW

NETWORKS = ("complete", "ring")
STEPS = (0.0001, 0.0003, 0.001, 0.003, 0.009)
BUDGETS = (16, 64, 256, 1024, 4096, 16384)
CONSTANT = 2.0
MOMENTA = (0.0, 0.5, 0.8)
LIMIT_STEPS = (1e-7, 3e-7, 1e-6)
"""η, and η² of theorem 7, where orders are read off: a bound's order is one as η falls to zero."""

SQUARED_STEPS = (0.0001, 0.0003, 0.001, 0.002, 0.0045)
"""η² of theorem 7, whose steps are to theorem 1's as squares; the condition allows .0048."""

SCALES = {"quick": BUDGETS[:4], "small": BUDGETS, "full": BUDGETS}


class Constants(NamedTuple):
    """What the bounds are made of: L, μ, γ̄ and D² of eq. (16)."""

    smooth: float
    strong: float
    gap: float
    gradients: float


def constants(problem: Problem, network: str, step: float) -> Constants:
    """Return the constants of theorem 1 with exact gradients and a start at zero."""
    agents = problem.agents
    count, dimension = agents.count, agents.dimension
    strong, smooth = agents.strong_convexity, agents.smoothness
    spectrum = np.sort(np.linalg.eigvalsh(np.asarray(graphs.resolve(network, count))))
    gap, least = max(abs(spectrum[0]), abs(spectrum[-2])), spectrum[0]
    own = np.linalg.solve(agents.curvatures, agents.pulls[..., None])[..., 0]
    drop = 0.5 * np.einsum("ni,ni->n", agents.pulls, own).sum()
    at_mode = np.einsum("nij,j->ni", agents.curvatures, agents.target_mean) - agents.pulls
    first = math.sqrt(2 * smooth * drop) * (1 + 2 * (smooth + strong) / strong)
    gradients = (
        4 * smooth**2 * count * float(agents.target_mean @ agents.target_mean)
        + 8 * smooth**2 * first**2 * step**2 * count / (1 - gap) ** 2
        + 2 * smooth**2 * 2 * dimension * count / (strong * (1 + least - step * smooth))
        + 4 * float((at_mode**2).sum())
    )
    return Constants(smooth, strong, gap, gradients)


def bound(problem: Problem, network: str, step: float) -> float:
    """Return √η E₁, which theorem 1 gives for the average in the long run."""
    count, dimension = problem.agents.count, problem.agents.dimension
    smooth, strong, gap, gradients = constants(problem, network, step)
    room = strong * (1 - step * smooth / 2)
    apart = (
        4 * smooth**2 * gradients * step / (count * (1 - gap) ** 2)
        + 4 * smooth**2 * gradients * step / (1 - gap**2) ** 2
        + 8 * smooth**2 * dimension / (1 - gap**2)
    )
    term = 1.65 * smooth / strong * math.sqrt(dimension / count)
    return math.sqrt(step) * (term + math.sqrt(step / room + 1 / room**2) * math.sqrt(apart))


def disagreement_bound(problem: Problem, network: str, step: float) -> float:
    """Return lemma 3's bound on Σ|x_i − x̄|² in the long run."""
    count, dimension = problem.agents.count, problem.agents.dimension
    _, _, gap, gradients = constants(problem, network, step)
    noise = 8 * dimension * count * step / (1 - gap**2)
    return 4 * gradients * step**2 / (1 - gap) ** 2 + noise


def largest_momentum(problem: Problem, network: str, squared_step: float) -> float:
    """Return the largest β that condition (24) of theorem 7 allows at η², by iteration."""
    smooth, strong = problem.agents.smoothness, problem.agents.strong_convexity
    weights = np.asarray(graphs.resolve(network, problem.agents.count))
    least = float(np.linalg.eigvalsh(weights)[0])
    slow, beta = squared_step * strong, 0.0
    for _ in range(50):  # β is of the order of η⁴: two would do
        room = (1 + beta) + (1 - beta) * slow / (1 - least + squared_step * smooth)
        first = 0.5 * slow / room
        second = squared_step**1.5 * math.sqrt(first * strong**3 * (1 + least) / 64)
        beta = min((1 + least - 4 * slow) / 4, second)
    return beta


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return laws and bounds by η, the law at a budget's end, and D-ASG's way to the mode."""
    problem = Problem(seed)
    by_step = {n: [beside(problem, n, step) for step in STEPS] for n in NETWORKS}
    limits = {n: [beside(problem, n, step) for step in LIMIT_STEPS] for n in NETWORKS}
    records.say(f"{by_step['ring'][-1]}")
    strong = float(np.linalg.eigvalsh(problem.agents.curvatures)[:, 0].min())
    budget = []
    for number in SCALES[scale]:
        step = min(CONSTANT * math.log(math.sqrt(number)) / (strong * number), 0.009)
        law = de_sgld_law(problem.agents, "complete", step_size=step)
        budget.append({"iterations": number, "w2": law.after(number, 0.0).w2})
    modes = {}
    for momentum in MOMENTA:
        law = de_sgld_law(
            problem.agents, "complete", step_size=0.001, temperature=0.0, momentum=momentum
        )
        centre = problem.agents.target_mean
        path = law.along(range(1, 101), 0.0)
        modes[f"{momentum:g}"] = [float(np.linalg.norm(m.mean - centre)) for m in path]
    hamiltonian = [momentum_law(problem, squared) for squared in SQUARED_STEPS]
    limits["momentum"] = [momentum_law(problem, squared) for squared in LIMIT_STEPS]
    records.say(f"theorem 7: {hamiltonian[-1]}")
    return {
        "by_step": by_step,
        "limits": limits,
        "budget": budget,
        "modes": modes,
        "hamiltonian": hamiltonian,
    }


def beside(problem: Problem, network: str, step: float) -> dict[str, float]:
    """Return the law of DE-SGLD at η, and the bounds of theorem 1 and of lemma 3."""
    settled = de_sgld_law(problem.agents, network, step_size=step).stationary
    return {
        "step": step,
        "bound": bound(problem, network, step),
        "disagreement_bound": disagreement_bound(problem, network, step),
        "disagreement": settled.agents.disagreement * problem.agents.count,
        **figures_of(settled),
    }


def momentum_law(problem: Problem, squared_step: float) -> dict[str, float]:
    """Return the law of DE-SGHMC at η², with the largest β that theorem 7 allows."""
    eta, beta = math.sqrt(squared_step), largest_momentum(problem, "complete", squared_step)
    law = de_sghmc_law(problem.agents, "complete", step_size=eta, friction=(1 - beta) / eta)
    return {"step": eta, "momentum": beta, **figures_of(law.stationary)}


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of theorems 1 and 7, of lemma 3 and of D-ASG."""
    largest = {n: entries[-1] for n, entries in results["by_step"].items()}
    slack = min(e["bound"] / e["average"] for es in results["by_step"].values() for e in es)
    k = np.array([entry["iterations"] for entry in results["budget"]], float)[1:]
    w2 = np.array([entry["w2"] for entry in results["budget"]])[1:]
    rate = np.polyfit(np.log(np.sqrt(np.log(k) / k)), np.log(w2), 1)[0]
    plain, fast = (results["modes"][name][29] for name in ("0", "0.8"))
    limits, ring = results["limits"], results["by_step"]["ring"]

    def order(network: str, name: str) -> Finding:
        logs = np.log([(entry["step"], entry[name]) for entry in limits[network]])
        return computed(float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]))

    return {
        "thm1-bound": computed(
            slack,
            ", ".join(
                f"{n} at η = .009: bound {e['bound']:.3g}, law {e['average']:.2g}"
                for n, e in largest.items()
            ),
        ),
        "thm1-average": order("complete", "average"),
        "thm1-agent": order("complete", "agent"),
        "thm1-budget": computed(float(rate)),
        "lemma3-bound": computed(min(e["disagreement_bound"] / e["disagreement"] for e in ring)),
        "lemma3": order("complete", "disagreement"),
        "lemma3-ring": order("ring", "disagreement"),
        "thm7-average": order("momentum", "average"),
        "thm7-agent": order("momentum", "agent"),
        "d-asg": computed(
            plain / fast,
            f"after 30 iterations {plain:.2g} from the mode, {fast:.2g} with β = .8",
        ),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw the law and the bound by η, the error at a budget's end, and the way to the mode."""
    for axis, entries in zip(axes, results["by_step"].values(), strict=False):
        steps = np.array([entry["step"] for entry in entries])
        for name, style in (("average", "o-"), ("agent", "s--")):
            axis.loglog(steps, [e[name] for e in entries], style, ms=3, **LAW, label=f"law, {name}")
        axis.loglog(steps, [e["bound"] for e in entries], color="tab:red", lw=0.9,
                    label="bound, average")  # fmt: skip
        axis.set(xlabel="step size η", ylabel="W₂ in the long run")
        axis.legend()
    k = np.array([entry["iterations"] for entry in results["budget"]], float)
    w2 = np.array([entry["w2"] for entry in results["budget"]])
    axes[2].loglog(k, w2, "o-", ms=3, **LAW, label="law at the end")
    rate = np.sqrt(np.log(k) / k)
    axes[2].loglog(k, w2[-1] * rate / rate[-1], ":", color="tab:red", label="√(log K / K)")
    axes[2].set(xlabel="budget K", ylabel="W₂ of the average")
    axes[2].legend()
    for name, path in results["modes"].items():
        label = "D-SG" if name == "0" else f"D-ASG, β = {name}"
        axes[3].semilogy(range(1, len(path) + 1), path, lw=0.9, label=label)
    axes[3].set(xlabel="iteration k", ylabel="distance of the average to the mode")
    axes[3].legend()
    for (network, entries), style in zip(results["by_step"].items(), ("o-", "s--"), strict=True):
        steps = [entry["step"] for entry in entries]
        values = [entry["disagreement"] for entry in entries]
        axes[4].loglog(steps, values, style, ms=3, **LAW, label=f"law, {network}")
        bounds = [entry["disagreement_bound"] for entry in entries]
        axes[4].loglog(steps, bounds, style[1:], color="tab:red", lw=0.9, label=f"bound, {network}")
    axes[4].set(xlabel="step size η", ylabel="Σ|x_i − x̄|² in the long run")
    axes[4].legend()
    steps = np.array([entry["step"] for entry in results["hamiltonian"]])
    for name, style in (("average", "o-"), ("agent", "s--")):
        values = [entry[name] for entry in results["hamiltonian"]]
        axes[5].loglog(steps, values, style, ms=3, **LAW, label=f"law, {name}")
    axes[5].loglog(steps, values[0] * steps / steps[0], ":", color="tab:red", label="∝ η")
    axes[5].set(xlabel="step size η of DE-SGHMC", ylabel="W₂ in the long run")
    axes[5].minorticks_off()
    axes[5].set_xticks((0.01, 0.02, 0.05), ("0.01", "0.02", "0.05"))
    axes[5].legend()
