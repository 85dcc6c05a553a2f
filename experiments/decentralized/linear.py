"""Appendix 2, linear regression: Boston housing at four agents, complete network, W = 1/4.

The paper's scripts give each agent some of the *features* of all rows. The product of the agents'
densities is then not the posterior of a regression on all features, which their centralized HMC
samples; so the study has the split by rows beside it. Features and target are standardised here,
with unit noise and unit prior; the paper does not say how its data were scaled.

The target is Gaussian, so that the law of every method is known exactly after any number of
iterations. The samplers are run too and compared with it.

Boston housing is used to repeat the paper's experiment and for nothing else: one of its columns
encodes race.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import consortia
from consortia.oracles import GaussianAgents, decentralized_hmc_law
from experiments import command

AGENTS = 4
PAPER_STEP = 4e-4
PAPER_ITERATIONS = 100_000
LARGE_STEP = 0.02
START = 0.0

# iterations and chains of the run that is compared with the law
CHECKS = {"quick": (60, 400), "laptop": (2000, 400), "paper": (PAPER_ITERATIONS, 9)}


def shards(split: str, seed: int) -> list[dict[str, np.ndarray]]:
    """The four agents' data: all features of some rows, or some features of all rows."""
    table = consortia.datasets.load("boston").train
    x = (table["x"] - table["x"].mean(axis=0)) / table["x"].std(axis=0)
    y = ((table["y"] - table["y"].mean()) / table["y"].std()).astype(np.float32)
    x = x.astype(np.float32)
    if split == "rows":
        order = np.random.default_rng(seed).permutation(len(y))
        return [{"x": x[part], "y": y[part]} for part in np.array_split(order, AGENTS)]
    result = []
    for columns in np.array_split(np.arange(x.shape[1]), AGENTS):
        seen = np.zeros_like(x)
        seen[:, columns] = x[:, columns]
        result.append({"x": seen, "y": y})
    return result


def compared(moments: Any, agents: GaussianAgents) -> dict[str, float]:
    """Mean error in sds and range of sd ratios of the average, against the agents' product."""
    sd = np.sqrt(np.diag(agents.target_covariance))
    ratio = np.sqrt(np.diag(moments.covariance)) / sd
    return {
        "mean_error_in_sds": float(np.abs((moments.mean - agents.target_mean) / sd).max()),
        "least_sd_ratio": float(ratio.min()),
        "largest_sd_ratio": float(ratio.max()),
    }


def laws(agents: GaussianAgents) -> list[dict[str, Any]]:
    """The law of both variants, after the paper's iterations and in the end."""
    result = []
    for variant in ("published", "corrected"):
        for step in (PAPER_STEP, LARGE_STEP):
            law = decentralized_hmc_law(agents, "complete", step_size=step, variant=variant)
            weakest = np.linalg.eigvalsh(np.linalg.inv(agents.target_covariance))[0]
            result.append(
                {
                    "variant": variant,
                    "step_size": step,
                    "relaxation": 2 * AGENTS / (step**2 * weakest),
                    "after": compared(law.after(PAPER_ITERATIONS, START), agents),
                    "in_the_end": compared(law.stationary, agents),
                }
            )
    return result


def check_by_sampling(
    data: list[dict[str, np.ndarray]], agents: GaussianAgents, scale: str, seed: int
) -> list[dict[str, Any]]:
    """Draws of many chains after some iterations, against the law there, in standard errors."""
    iterations, chains = CHECKS[scale]
    step = PAPER_STEP if scale == "paper" else LARGE_STEP
    sites = consortia.Sites.from_list(data)
    model = consortia.models.linear_regression(data[0]["x"].shape[1])
    result = []
    for variant in ("published", "corrected"):
        # No proposal is tested: the law is that of the linear recursion.
        untested = {"metropolis_from": iterations} if variant == "published" else {}
        method = consortia.decentralized_hmc(step, "complete", variant=variant, **untested)
        tree = consortia.sample(
            model,
            sites,
            method,
            rounds=iterations,
            thin=iterations,
            chains=chains,
            seed=seed,
            progress=False,
        )
        draws = np.asarray(tree["posterior"]["coefficients"], np.float64)[:, 0]
        law = decentralized_hmc_law(agents, "complete", step_size=step, variant=variant)
        exact = law.after(iterations, START)
        variance = np.diag(exact.covariance)
        off = (draws.mean(axis=0) - exact.mean) / np.sqrt(variance / chains)
        spread = ((draws - exact.mean) ** 2).mean(axis=0) / variance - 1
        result.append(
            {
                "variant": variant,
                "iterations": iterations,
                "chains": chains,
                "largest_mean_z": float(np.abs(off).max()),
                "largest_variance_z": float(np.abs(spread).max() / math.sqrt(2 / chains)),
            }
        )
    return result


def study(scale: str, seed: int) -> dict[str, Any]:
    """Both splits: laws, samplers, and how far apart the two posteriors are."""
    results: dict[str, Any] = {}
    targets = {}
    for split in ("rows", "features"):
        data = shards(split, seed)
        agents = GaussianAgents.linear_regression(data)
        targets[split] = agents
        results[split] = {
            "laws": laws(agents),
            "checks": check_by_sampling(data, agents, scale, seed),
        }
        command.say(f"{split}: {results[split]['checks']}")
    one, two = targets["rows"], targets["features"]
    sd = np.sqrt(np.diag(one.target_covariance))
    results["features_against_rows"] = {
        "mean_apart_in_sds": float(np.abs((two.target_mean - one.target_mean) / sd).max()),
        "sd_ratios": np.sqrt(np.diag(two.target_covariance)) / sd,
    }
    return results


def draw(results: dict[str, Any], axes: Any) -> None:
    """Sd ratios of the average draw: after the paper's iterations, and in the end."""
    for panel, split in zip(axes, ("rows", "features"), strict=True):
        entries = results[split]["laws"]
        for at, entry in enumerate(entries):
            for shift, when, colour in ((-0.1, "after", "C1"), (0.1, "in_the_end", "C0")):
                low, high = (entry[when][f"{which}_sd_ratio"] for which in ("least", "largest"))
                panel.plot([at + shift] * 2, [low, high], "o-", color=colour)
        panel.axhline(1, color="0.6", linewidth=0.8)
        panel.axhline(math.sqrt(0.5), color="0.6", linewidth=0.8, linestyle=":")
        names = [f"{entry['variant']}\nε = {entry['step_size']:g}" for entry in entries]
        panel.set_xticks(range(len(entries)), names, fontsize=7)
        panel.set_ylim(0, 1.15)
        panel.set_title(f"split by {split}")
        panel.set_ylabel("sd of the draw / posterior sd")
    axes[0].plot([], [], "o-", color="C1", label=f"after {PAPER_ITERATIONS:,} iterations")
    axes[0].plot([], [], "o-", color="C0", label="in the end")
    axes[0].legend(fontsize=7, loc="lower right")


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Runs the study from the command line."""
    return command.main(
        "decentralized",
        "linear",
        "Kungurtsev et al. (2023), appendix 2: linear regression on Boston housing, four agents",
        study,
        draw,
        panels=2,
        arguments=arguments,
    )


if __name__ == "__main__":
    main()
