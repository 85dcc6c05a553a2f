"""What the corrections gain over the published method, for the same gradients and messages.

EXTRA, common noise and averaged noise by their exact laws; the corrected sampler against its law;
agents that disagree (rows sorted by the response); minibatches with a control variate at the mode.
The figure shows a ring of agents that disagree, each coloured by its error.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import consortia
from consortia import graphs
from consortia.oracles import de_sghmc_law, de_sgld_law, largest_stable_step
from experiments import records
from experiments.claims import Finding
from experiments.de_sgld.problem import CORRECTED, Problem, figures_of, worst_score

STEP_SIZE, UNLIKE_STEP, BATCH = 0.009, 0.002, 25
NETWORKS = ("complete", "ring")
ITERATIONS = (16, 64, 256, 1024, 4096, 16384)

VARIANTS: dict[str, dict[str, Any]] = {
    "DE-SGLD": {},
    "EXTRA": {"correction": "extra"},
    "EXTRA, common noise": {"correction": "extra", "noise": "common"},
    "EXTRA, common and averaged noise": CORRECTED,
}

EXPECTED = {
    "DE-SGLD": {"complete": (0.0035, 0.204), "ring": (0.0037, 0.233)},
    "EXTRA": {"complete": (0.0029, 0.200), "ring": (0.0030, 0.204)},
    "EXTRA, common noise": {"complete": (0.0028, 0.0030), "ring": (0.0028, 0.0031)},
    "EXTRA, common and averaged noise": {"complete": (0.00009, 0.0010), "ring": (0.00013, 0.0014)},
}
"""W₂ of the average and of an agent in the long run, data seed 0."""


class Scale(NamedTuple):
    """Runs of the corrected sampler, its iterations, those of the picture, and the variants."""

    runs: int
    iterations: int
    picture: int
    variants: tuple[str, ...] = tuple(VARIANTS)


SCALES = {
    "quick": Scale(200, 64, 400, ("DE-SGLD", "EXTRA, common and averaged noise")),
    "small": Scale(1000, 512, 20_000),
    "full": Scale(2000, 4096, 100_000),
}


def table(problem: Problem, scale: Scale) -> dict[str, Any]:
    """Every variant on both networks: in the long run, and along the iterations from 0."""
    result: dict[str, Any] = {}
    for name in scale.variants:
        for network in NETWORKS:
            options = VARIANTS[name]
            law = de_sgld_law(problem.agents, network, step_size=STEP_SIZE, **options)
            settled = figures_of(law.stationary)
            path = [figures_of(moments) for moments in law.along(ITERATIONS, 0.0)]
            result.setdefault(name, {})[network] = {"stationary": settled, "path": path}
            records.say(
                f"{name}, {network}: average {settled['average']:.5f}, agent "
                f"{settled['agent']:.4f}; at k = "
                + ", ".join(
                    f"{k}: {point['agent']:.4f}" for k, point in zip(ITERATIONS, path, strict=True)
                )
            )
    return result


def momentum(problem: Problem) -> dict[str, Any]:
    """DE-SGHMC, η = .1 and γ = 7, plain and with EXTRA and common noise."""
    result: dict[str, Any] = {}
    for network in NETWORKS:
        for name in ("DE-SGLD", "EXTRA, common noise"):
            law = de_sghmc_law(
                problem.agents, network, step_size=0.1, friction=7.0, **VARIANTS[name]
            )
            settled = figures_of(law.stationary)
            label = name.replace("SGLD", "SGHMC")
            result.setdefault(label, {})[network] = settled
            records.say(
                f"momentum, {label}, {network}: average {settled['average']:.4f}, agent "
                f"{settled['agent']:.4f}"
            )
    return result


def minibatches(problem: Problem) -> dict[str, Any]:
    """The corrected method with 25 rows a gradient, without and with a control variate."""
    result = {}
    for name, anchor in (("plain", None), ("anchored", problem.agents.target_mean)):
        law = de_sgld_law(
            problem.agents,
            "complete",
            step_size=STEP_SIZE,
            batch_size=BATCH,
            control_variate=anchor,
            **CORRECTED,
        )
        result[name] = figures_of(law.stationary)
        records.say(
            f"corrected, {BATCH} rows, {name}: average {result[name]['average']:.5f}, agent "
            f"{result[name]['agent']:.4f}"
        )
    return result


def unlike_agents(problem: Problem, scale: Scale, seed: int) -> dict[str, Any]:
    """Rows sorted by the response, on a ring: exact figures, and each agent's error in a run."""
    result: dict[str, Any] = {}
    matrix = graphs.resolve("ring", len(problem.sites))
    for name in ("DE-SGLD", "EXTRA, common and averaged noise"):
        options = VARIANTS[name]
        law = de_sgld_law(problem.agents, matrix, step_size=UNLIKE_STEP, **options)
        settled = figures_of(law.stationary)
        method = consortia.de_sgld(UNLIKE_STEP, matrix, draws="agents", **options)
        tree = consortia.sample(
            problem.model,
            problem.sites,
            method,
            rounds=scale.picture,
            warmup=scale.picture,
            thin=max(scale.picture // 1000, 1),
            seed=seed,
            progress=False,
            on_divergence="ignore",
            chains=1,
        )
        target = problem.agents.target_mean, problem.agents.target_covariance
        errors = graphs.agent_errors(tree, *target)
        apart = float(graphs.disagreement(tree).mean())
        result[name] = {"stationary": settled, "errors": errors, "disagreement": apart}
        records.say(
            f"unlike agents on the ring, {name}: exact average {settled['average']:.4f}, agent "
            f"{settled['agent']:.4f}; one run of {scale.picture} iterations: agents "
            f"{errors.min():.4f} to {errors.max():.4f}, disagreement {apart:.4f} "
            f"(exact {law.stationary.agents.disagreement**0.5:.4f})"
        )
    return result


def by_sampling(problem: Problem, scale: Scale, seed: int) -> dict[str, Any]:
    """Runs of the corrected sampler on the ring, against its law at the same iteration."""
    method = consortia.de_sgld(STEP_SIZE, "ring", draws="agents", **CORRECTED)
    positions = problem.positions(method, [scale.iterations], scale.runs, seed)
    law = de_sgld_law(problem.agents, "ring", step_size=STEP_SIZE, **CORRECTED)
    path = law.along([scale.iterations], 0.0)
    found = problem.distances(positions)
    agent = float(np.mean([curve[-1] for curve in found["agents"]]))
    exact = figures_of(path[0])
    score = worst_score(positions, path)
    records.say(
        f"corrected sampler on the ring, k = {scale.iterations}, {scale.runs} runs: agent "
        f"{agent:.4f} (law {exact['agent']:.4f}), average {found['average'][-1]:.4f} (law "
        f"{exact['average']:.5f}); farthest from the law {score:.1f} standard errors"
    )
    return {"runs": scale.runs, "agent": agent, "exact": exact, "worst_score": score}


def study(scale: str, seed: int) -> dict[str, Any]:
    """All of it."""
    chosen, problem, unlike = SCALES[scale], Problem(seed), Problem(seed, alike=False)
    limits = {
        f"{name}, {network}": largest_stable_step(
            problem.agents, network, correction=VARIANTS[name].get("correction")
        )
        for name in ("DE-SGLD", "EXTRA")
        for network in NETWORKS
    }
    records.say(", ".join(f"{name}: stable to {limit:.4f}" for name, limit in limits.items()))
    return {
        "iterations": ITERATIONS,
        "table": table(problem, chosen),
        "expected": EXPECTED,
        "momentum": momentum(problem),
        "minibatches": minibatches(problem),
        "unlike": unlike_agents(unlike, chosen, seed),
        "sampler": by_sampling(problem, chosen, seed),
        "largest_stable_step": limits,
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Measure the gain of the corrections in the long run."""
    plain, best = "DE-SGLD", "EXTRA, common and averaged noise"
    found = {}
    for network in NETWORKS:
        for which in ("average", "agent"):
            ours = results["table"][best][network]["stationary"][which]
            theirs = results["table"][plain][network]["stationary"][which]
            shown = f"{theirs:.2g} plain, {ours:.2g} corrected"
            found[f"{network}-{which}"] = Finding(theirs / ours, law=theirs / ours, shown=shown)
    sampler = results["sampler"]
    found["sampler"] = Finding(sampler["agent"], law=sampler["exact"]["agent"])
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw an agent's W₂ along the iterations, and two pictures of a ring of unlike agents."""
    for axis, network in zip(axes, NETWORKS, strict=False):
        for name, by_network in results["table"].items():
            curve = [point["agent"] for point in by_network[network]["path"]]
            axis.loglog(results["iterations"], curve, "o-", ms=3, lw=0.8, label=name)
        axis.set(xlabel="iteration k", ylabel="W₂ of an agent")
        axis.set_ylim(axis.get_ylim()[0] / 30)  # the legend stands below the curves
        axis.legend(loc="lower left")
    errors = {name: np.log10(part["errors"]) for name, part in results["unlike"].items()}
    for axis, values in zip(axes[2:], errors.values(), strict=True):
        graphs.picture(
            graphs.resolve("ring", len(values)), values, label="log₁₀ W₂ of an agent", axes=axis
        )
