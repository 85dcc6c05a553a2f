"""Figures 2 and 3: DE-SGLD and DE-SGHMC on three networks of 100 agents.

The figures estimate each agent's law from 100 runs; here it is known exactly, and runs of the
sampler are compared with it. W₂ is the distance to the posterior.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import consortia
from consortia.oracles import de_sghmc_law, de_sgld_law, gossip_conditions
from experiments import records
from experiments.claims import Finding, computed
from experiments.de_sgld.problem import (
    NETWORKS,
    SHOWN,
    Problem,
    curves_of,
    figures_of,
    worst_score,
)
from experiments.drawing import LAW

STEP_SIZE = 0.009
POINT_MASS = 0.020
"""W₂ of a point mass at the posterior's mean."""

TIME_STEP, FRICTION = 0.1, 7.0

EXPECTED = {
    "de_sgld": {
        "complete": (0.745, 0.0035, 0.204, 116),
        "ring": (0.900, 0.0037, 0.233, 133),
        "disconnected": (0.807, 0.0053, 0.285, 135),
    },
    "de_sghmc": {
        "complete": (None, 0.0034, 0.171, None),
        "ring": (None, 0.0036, 0.206, None),
        "disconnected": (None, 0.0051, 0.281, None),
    },
}
"""Spectral radius, W₂ of the average and of one agent, variance of an agent over the posterior's:
of the exact law with data seed 0; the figures themselves have no numbers."""


class Scale(NamedTuple):
    """Runs, iterations, between how many of these the distances are taken, and the networks."""

    runs: int
    iterations: int
    every: int
    networks: tuple[str, ...] = tuple(NETWORKS)


SCALES = {
    "quick": Scale(200, 40, 20, ("complete",)),
    "small": Scale(2000, 48, 2),
    "full": Scale(100, 500, 10),  # 100 runs as printed; the number of iterations is not printed
}


def law_of(problem: Problem, name: str, network: str) -> Any:
    """The exact law of one of the two methods."""
    if name == "de_sgld":
        return de_sgld_law(problem.agents, network, step_size=STEP_SIZE)
    return de_sghmc_law(problem.agents, network, step_size=TIME_STEP, friction=FRICTION)


def method_of(name: str, network: str) -> Any:
    """The method itself."""
    if name == "de_sgld":
        return consortia.de_sgld(STEP_SIZE, network, draws="agents")
    return consortia.de_sghmc(TIME_STEP, FRICTION, network, draws="agents")


def panel(problem: Problem, name: str, label: str, scale: Scale, seed: int) -> dict[str, Any]:
    """One method on one network: in the long run, along the iterations, and by runs."""
    network = NETWORKS[label]
    law = law_of(problem, name, network)
    settled = figures_of(law.stationary)
    iterations = list(range(scale.every, scale.iterations + 1, scale.every))
    path = law.along(iterations, 0.0)
    positions = problem.positions(method_of(name, network), iterations, scale.runs, seed)
    found = problem.distances(positions)
    score = worst_score(positions, path)
    records.say(
        f"{name:9s}{label:13s} radius {law.spectral_radius:.3f}, W₂ of the average "
        f"{settled['average']:.4f}, of an agent {settled['agent']:.3f} "
        f"({settled['variance_ratio']:.0f} times the variance); "
        f"{scale.runs} runs at k = {iterations[-1]}: average "
        f"{found['average'][-1]:.4f}, agents 1 to {SHOWN} "
        + ", ".join(f"{found['agents'][i][-1]:.3f}" for i in range(SHOWN))
        + f"; farthest from the law {score:.1f} standard errors"
    )
    exact = curves_of(path)
    exact["agents"], found["agents"] = exact["agents"][:SHOWN], found["agents"][:SHOWN]
    return {
        "method": name,
        "network": label,
        "spectral_radius": law.spectral_radius,
        "stationary": settled,
        "expected": EXPECTED[name][label],
        "iterations": iterations,
        "exact": exact,
        "runs": found,
        "number_of_runs": scale.runs,
        "worst_score": score,
    }


def study(scale: str, seed: int) -> dict[str, Any]:
    """Both methods on the three networks, and what the theorems say of the steps."""
    problem = Problem(seed)
    chosen = SCALES[scale]
    panels = [
        panel(problem, name, label, chosen, seed) for name in EXPECTED for label in chosen.networks
    ]
    conditions = {}
    for label in chosen.networks:
        network = NETWORKS[label]
        for name, options in (
            ("de_sgld", {"step_size": STEP_SIZE}),
            ("de_sghmc", {"step_size": TIME_STEP, "friction": FRICTION}),
        ):
            told = gossip_conditions(problem.agents, network, **options)
            conditions[f"{name}, {label}"] = {c.name: bool(c.holds) for c in told}
    for place, told in conditions.items():
        held = ", ".join(
            f"{name}: {'holds' if holds else 'violated'}" for name, holds in told.items()
        )
        records.say(f"conditions of the theorems, {place}: {held}")
    return {"panels": panels, "conditions": conditions}


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figures 2 and 3."""
    found = {}
    for figure, method in ((2, "de_sgld"), (3, "de_sghmc")):
        parts = {p["network"]: p for p in results["panels"] if p["method"] == method}
        one = parts["complete"]
        last = one["runs"]
        agents = float(np.mean([curve[-1] for curve in last["agents"]]))
        found[f"fig{figure}-agents"] = Finding(
            agents / last["average"][-1],
            law=one["stationary"]["agent"] / one["stationary"]["average"],
        )
        radius = one["spectral_radius"]
        found[f"fig{figure}-linear"] = computed(radius)
        found[f"fig{figure}-law"] = Finding(max(part["worst_score"] for part in parts.values()))
        found[f"fig{figure}-agent"] = Finding(agents, law=one["stationary"]["agent"])
        found[f"fig{figure}-point-mass"] = computed(one["stationary"]["agent"] / POINT_MASS)
        if "disconnected" in parts:
            apart = parts["disconnected"]["stationary"]["agent"] / one["stationary"]["agent"]
            found[f"fig{figure}-networks"] = computed(apart)
    violated = [name for name, told in results["conditions"].items() if not all(told.values())]
    found["conditions"] = Finding(
        float(len(violated)), shown=f"violated: {', '.join(violated) or 'none'}; all are stable"
    )
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw W₂ along the iterations: lines by the exact law, points by runs."""
    by = {(part["method"], part["network"]): part for part in results["panels"]}
    for axis, place in zip(axes, [(m, n) for m in EXPECTED for n in NETWORKS], strict=True):
        if place not in by:  # fewer in a quick run
            continue
        part = by[place]
        k = part["iterations"]
        for i, (curve, points) in enumerate(
            zip(part["exact"]["agents"], part["runs"]["agents"], strict=True)
        ):
            (line,) = axis.semilogy(k, points, "o", ms=2.5, label=f"agent {i + 1}")
            axis.semilogy(k, curve, color=line.get_color(), lw=0.6)
        axis.semilogy(k, part["exact"]["average"], **LAW, label="average: exact law")
        axis.semilogy(k, part["runs"]["average"], "ks", ms=2.5, label="average: runs")
        axis.axhline(POINT_MASS, color="0.6", lw=0.6, ls=":")
        axis.set(xlabel="iteration k", ylabel="W₂ to the posterior", ylim=(2e-3, 6))
    axes[0].legend(loc="upper right", ncols=2)
