"""A small study of three sites with a file each, as its people would write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import consortia
from consortia.study.build import load_study

NAMES = ("oslo", "lima", "pune")
SIZES = (30, 45, 60)

STUDY = """
[data]
files = ["oslo.npz", "lima.npz", "pune.npz"]
standardise = {standardise}

[model]
kind = "logistic_regression"
intercept = true

[algorithm]
name = "{algorithm}"
{arguments}

[run]
rounds = {rounds}
warmup = {warmup}
chains = {chains}
seed = 5

[output]
figure = false
"""

FORMULA = """
[data]
files = ["oslo.csv", "lima.csv", "pune.csv"]

[model]
formula = "died ~ age * arm + (1 | site)"
family = "bernoulli"
integrate = true

[algorithm]
name = "federated_hmc"
step_size = 0.1
leapfrog_steps = 2
mass_matrix = "identity"

[run]
rounds = 4
chains = 2
seed = 5

[output]
figure = false
"""

FA_HMC = {
    "algorithm": "fa_hmc",
    "arguments": "step_size = 0.02\nleapfrog_steps = 3\nlocal_steps = 2",
}
DEBIASED = {
    "algorithm": "fa_hmc",
    "arguments": "step_size = 0.02\nleapfrog_steps = 2\nlocal_steps = 2\n"
    "debias = true\nbatch_size = 9",
}
FSGLD = {"algorithm": "fsgld", "arguments": "step_size = 0.01\nlocal_steps = 3"}


def write(
    folder: Path,
    *,
    rounds: int = 6,
    warmup: int = 0,
    chains: int = 2,
    standardise: bool = False,
    algorithm: str = "fa_hmc",
    arguments: str = "",
) -> Path:
    """The study file, and beside it the data of all sites."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    for number, (name, size) in enumerate(zip(NAMES, SIZES, strict=True)):
        x = rng.normal(number / 2, 1, (size, 2))
        y = (rng.uniform(size=size) < 0.3 + number / 10).astype(np.int64)
        np.savez(folder / f"{name}.npz", x=x, y=y)
    path = folder / "study.toml"
    path.write_text(
        STUDY.format(
            rounds=rounds,
            warmup=warmup,
            chains=chains,
            standardise=str(standardise).lower(),
            algorithm=algorithm,
            arguments=arguments,
        )
    )
    return path


def write_with_formula(folder: Path) -> Path:
    """A study of a formula with a level of each site, which stays there; beside it the tables."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(4)
    for name, size in zip(NAMES, SIZES, strict=True):
        lines = [
            f"{rng.normal(60, 9):.1f},{rng.choice(['new', 'old'])},{rng.choice(['no', 'yes'])}"
            for _ in range(size)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["age,arm,died", *lines, ""]))
    path = folder / "study.toml"
    path.write_text(FORMULA)
    return path


def alone(study: Path) -> Any:
    """The same study in one process."""
    asked = load_study(study)
    built = asked.build()
    return consortia.sample(
        built.model, built.sites, built.algorithm, **asked.run_options, progress=False
    )
