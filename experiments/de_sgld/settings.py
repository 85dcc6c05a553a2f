"""Figure 4: DE-SGLD with other batch sizes, step sizes and networks.

As in the figure, batches are drawn with replacement. An agent's W₂ is that of the Gaussian law with
its exact mean and covariance; its law itself is not Gaussian with minibatches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import consortia
from consortia.oracles import de_sgld_law, largest_stable_step
from experiments import records
from experiments.claims import Finding, computed
from experiments.de_sgld.problem import NETWORKS, Problem, curves_of, figures_of, worst_score

STEP_SIZE, BATCH = 0.009, 25
NETWORK_STEP = 0.008
AGENT = 0
"""The agent of the curves, "one randomly picked agent" in the figure."""

EXPECTED_BATCHES = {
    5: (0.0244, 0.408),
    10: (0.0144, 0.312),
    25: (0.0080, 0.250),
    50: (0.0057, 0.228),
}
"""W₂ of the average and of an agent in the long run, complete network; one row diverges."""

EXPECTED_STEPS = {0.001: 0.0486, 0.002: 0.078, 0.005: 0.149, 0.008: 0.222, 0.009: 0.250}
"""W₂ of an agent in the long run; 0.012 has no stationary law."""


class Case(NamedTuple):
    """One curve."""

    label: str
    network: str
    step_size: float
    batch: int


PANELS = {
    "batch size": [Case(f"b = {b}", "complete", STEP_SIZE, b) for b in (1, *EXPECTED_BATCHES)],
    "step size": [Case(f"η = {h}", "complete", h, BATCH) for h in (*EXPECTED_STEPS, 0.012)],
    "network": [Case(label, network, NETWORK_STEP, BATCH) for label, network in NETWORKS.items()],
}


class Scale(NamedTuple):
    """Runs of each case, iterations, between how many of these distances are taken, and cases."""

    runs: int
    iterations: int
    every: int
    cases: int = 9
    """Of each panel, at most."""


SCALES = {
    "quick": Scale(200, 20, 10, 2),
    "small": Scale(500, 120, 5),
    "full": Scale(100, 400, 20),  # 100 runs as printed, iterations read off the figure's axis
}


def curve(problem: Problem, case: Case, scale: Scale, seed: int) -> dict[str, Any]:
    """One case: in the long run where it settles, along the iterations, and by runs."""
    options: dict[str, Any] = {"batch_size": case.batch}
    law = de_sgld_law(problem.agents, case.network, step_size=case.step_size, **options)
    settled = figures_of(law.stationary) if law.stable else None
    iterations = list(range(scale.every, scale.iterations + 1, scale.every))
    path = law.along(iterations, 0.0)
    result = {
        "label": case.label,
        **case._asdict(),
        "stationary": settled,
        "instability": law.instability,
        "iterations": iterations,
        "exact": curves_of(path)["agents"][AGENT],
    }
    if not law.stable:
        # Its moments are carried by rare runs, which no number of runs shows.
        limit = largest_stable_step(
            problem.agents, case.network, batch_size=case.batch, tolerance=1e-3
        )
        records.say(
            f"{case.label}, {case.network}: {law.instability}; stable up to η = {limit:.4f}"
        )
        return {**result, "runs": None, "largest_stable_step": limit}
    method = consortia.de_sgld(case.step_size, case.network, draws="agents", **options)
    positions = problem.positions(method, iterations, scale.runs, seed)
    score = worst_score(positions, path)
    runs = problem.distances(positions[:, :, [AGENT]])["agents"][0]
    records.say(
        f"{case.label} ({case.network}, η = {case.step_size}, b = {case.batch}): W₂ of the "
        f"average {settled['average']:.4f}, of an agent "
        f"{settled['agent']:.4f}; agent {AGENT + 1} at k = {iterations[-1]}: exact "
        f"{result['exact'][-1]:.3f}, {scale.runs} runs {runs[-1]:.3f}; farthest from the law "
        f"{score:.1f} standard errors"
    )
    return {**result, "runs": runs, "worst_score": score}


def study(scale: str, seed: int) -> dict[str, Any]:
    """The three panels of the figure."""
    problem, chosen = Problem(seed), SCALES[scale]
    return {
        "panels": {
            name: [curve(problem, case, chosen, seed) for case in cases[: chosen.cases]]
            for name, cases in PANELS.items()
        },
        "expected": {"batch size": EXPECTED_BATCHES, "step size": EXPECTED_STEPS},
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 4."""
    batches, steps, networks = results["panels"].values()

    def settled(part: dict[str, Any]) -> float:
        return part["stationary"]["agent"]

    stable = [part for part in batches if part["stationary"] is not None]
    steady = [part for part in steps if part["stationary"] is not None]
    one = batches[0]
    found = {
        "fig4a-one": Finding(None, shown=f"no law: {one['instability']}"),
        "fig4a-order": computed(settled(stable[0]) / settled(stable[-1])),
        "fig4b-order": computed(settled(steady[-1]) / settled(steady[0])),
        "fig4c-order": computed(settled(networks[-1]) / settled(networks[0])),
        "fig4-law": Finding(
            max(p["worst_score"] for p in (*batches, *steps, *networks) if p["runs"] is not None)
        ),
    }
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw W₂ of one agent along the iterations: lines by the exact moments, points by runs."""
    for axis, curves in zip(axes, results["panels"].values(), strict=True):
        for part in curves:
            label = part["label"] + (", no law in the long run" if part["runs"] is None else "")
            if part["runs"] is None:
                axis.semilogy(part["iterations"], part["exact"], "--", lw=0.8, label=label)
                continue
            (line,) = axis.semilogy(part["iterations"], part["runs"], "o", ms=2.5, label=label)
            axis.semilogy(part["iterations"], part["exact"], lw=0.6, color=line.get_color())
        axis.set(xlabel="iteration k", ylabel="W₂ of one agent", ylim=(0.03, 8))
        axis.legend()
