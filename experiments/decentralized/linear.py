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
from experiments import records
from experiments.claims import Finding, computed, over_pairs
from experiments.drawing import LAW

AGENTS = 4
PAPER_STEP = 4e-4
PAPER_ITERATIONS = 100_000
LARGE_STEP = 0.02
START = 0.0
UNTESTED = 1000

ULA_STEP = 3e-7
SEEDS = 9
TEST_SHARE = 0.2

# iterations of the comparison of samplers, nine chains each; the paper's are 100,000
LENGTHS = {"quick": 2_000, "small": PAPER_ITERATIONS, "full": PAPER_ITERATIONS}

# iterations and chains of the run that is compared with the law
CHECKS = {"quick": (60, 400), "small": (2000, 400), "full": (PAPER_ITERATIONS, 9)}


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
    step = PAPER_STEP if scale == "full" else LARGE_STEP
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
            on_divergence="ignore",
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


def samplers(scale: str, seed: int) -> list[dict[str, Any]]:
    """Return the test error of each sampler along its iterations, nine chains each."""
    table = consortia.datasets.load("boston").train
    x = (table["x"] - table["x"].mean(axis=0)) / table["x"].std(axis=0)
    y = (table["y"] - table["y"].mean()) / table["y"].std()
    rows = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    train, test = consortia.datasets.train_test_split(rows, test_share=TEST_SHARE, seed=seed)
    parts = np.array_split(np.random.default_rng(seed).permutation(len(train["y"])), AGENTS)
    shards = [{name: array[part] for name, array in train.items()} for part in parts]
    model, length = consortia.models.linear_regression(x.shape[1]), LENGTHS[scale]
    central = consortia.federated_hmc(
        step_size=PAPER_STEP, leapfrog_steps=1, mass_matrix="identity", jitter=0.0
    )
    published = {"variant": "published", "metropolis_from": UNTESTED}
    methods = {
        "MA-HMC, published": (
            shards,
            consortia.decentralized_hmc(PAPER_STEP, "complete", **published),
        ),
        "MA-HMC, corrected": (shards, consortia.decentralized_hmc(PAPER_STEP, "complete")),
        "ULA": (shards, consortia.decentralized_ula(ULA_STEP, "complete", noise="published")),
        "HMC, centralized": ([train], central),
    }
    best = np.linalg.solve(
        train["x"].T @ train["x"] + np.eye(x.shape[1]), train["x"].T @ train["y"]
    )
    floor = float(np.sqrt(np.mean((test["x"] @ best - test["y"]) ** 2)))
    found = [{"label": "posterior mean", "error": [floor], "iterations": [length]}]
    for label, (parts_of, method) in methods.items():
        tree = consortia.sample(
            model,
            consortia.Sites.from_list(parts_of),
            method,
            rounds=length,
            thin=length // 50,
            chains=SEEDS,
            seed=seed,
            progress=False,
            on_divergence="ignore",
        )
        draws = np.asarray(tree["posterior"]["coefficients"], np.float64)
        errors = np.sqrt(np.mean((draws @ test["x"].T - test["y"]) ** 2, axis=-1))
        found.append(
            {
                "label": label,
                "iterations": length // 50 * np.arange(1, 51),
                "error": errors.mean(axis=0),
                "deviation": errors.std(axis=0, ddof=1),
                "ends": errors[:, -1],
            }
        )
        records.say(f"{label}: test error {errors[:, -1].mean():.4f} ± {errors[:, -1].std():.4f}")
    return found


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
        records.say(f"{split}: {results[split]['checks']}")
    one, two = targets["rows"], targets["features"]
    sd = np.sqrt(np.diag(one.target_covariance))
    results["samplers"] = samplers(scale, seed)
    results["features_against_rows"] = {
        "mean_apart_in_sds": float(np.abs((two.target_mean - one.target_mean) / sd).max()),
        "sd_ratios": np.sqrt(np.diag(two.target_covariance)) / sd,
    }
    return results


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of the linear regression."""
    laws = {(law["variant"], law["step_size"]): law for law in results["rows"]["laws"]}
    runs = {entry["label"]: entry for entry in results["samplers"]}

    def apart(label: str) -> Finding:
        return over_pairs(list(np.subtract(runs[label]["ends"], runs["HMC, centralized"]["ends"])))

    found = {}
    for variant in ("published", "corrected"):
        settled = laws[variant, PAPER_STEP]["in_the_end"]["largest_sd_ratio"]
        found[f"linear-sd-{variant}"] = computed(settled)
        after = laws[variant, PAPER_STEP]["after"]["mean_error_in_sds"]
        found[f"linear-way-{variant}"] = computed(after)
        found[f"linear-error-{variant}"] = apart(f"MA-HMC, {variant}")
    found["linear-error-ula"] = apart("ULA")
    floor = runs["posterior mean"]["error"][0]
    found["linear-central"] = over_pairs(list(np.subtract(runs["HMC, centralized"]["ends"], floor)))
    scores = [s for split in ("rows", "features") for c in results[split]["checks"]
              for s in (c["largest_mean_z"], c["largest_variance_z"])]  # fmt: skip
    found["linear-law"] = Finding(max(scores))
    found["linear-features"] = Finding(results["features_against_rows"]["mean_apart_in_sds"])
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw sd ratios of the average draw for both splits, and test errors along the iterations."""
    for panel, split in zip(axes, ("rows", "features"), strict=False):
        entries = results[split]["laws"]
        for at, entry in enumerate(entries):
            for shift, when, colour in ((-0.1, "after", "C1"), (0.1, "in_the_end", "k")):
                low, high = (entry[when][f"{which}_sd_ratio"] for which in ("least", "largest"))
                panel.plot([at + shift] * 2, [low, high], "o-", ms=3, lw=0.8, color=colour)
        panel.axhline(1, color="0.6", lw=0.6)
        panel.axhline(math.sqrt(0.5), color="0.6", lw=0.6, ls=":")
        names = [f"{e['variant'][:4]}.\nε = {e['step_size']:g}" for e in entries]
        panel.set_xticks(range(len(entries)), names, fontsize=5.5)
        panel.set(ylim=(0, 1.15), ylabel="sd of the draw / posterior sd")
    axes[0].plot([], [], "o-", ms=3, color="C1", label=f"after {PAPER_ITERATIONS:,} iterations")
    axes[0].plot([], [], "ko-", ms=3, label="in the end: exact law")
    axes[0].legend(loc="lower right")
    floor, *runs = results["samplers"]
    for entry in runs:
        middle, spread = np.array(entry["error"]), np.array(entry["deviation"])
        (line,) = axes[2].plot(entry["iterations"], middle, lw=0.9, label=entry["label"])
        axes[2].fill_between(
            entry["iterations"], middle - spread, middle + spread, alpha=0.2, color=line.get_color()
        )
    axes[2].axhline(floor["error"][0], **LAW)
    axes[2].set(xlabel="iterations", ylabel="test RMSE of a draw, nine seeds")
    axes[2].legend()
