"""A study of the three hospitals, with the method that a test is about."""

from __future__ import annotations

import csv
import functools
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

import consortia
from consortia.study.build import study_of

HOSPITALS = Path(__file__).resolve().parents[2] / "examples" / "three_hospitals"
NAMES = ("north", "south", "west")


def study(algorithm: str = 'name = "few_rounds"', *, rounds: int = 60, chains: int = 4) -> str:
    """Return the study file, with the lines of its algorithm."""
    return f"""
[data]
files = ["north.csv", "south.csv", "west.csv"]
target = "ill"
[model]
kind = "logistic_regression"
intercept = true
[algorithm]
{algorithm}
[run]
rounds = {rounds}
chains = {chains}
seed = 1
"""


def deal(reference: str, folder: Path, by: str = "id") -> Path:
    """Deal the rows of a file of tests/references out to the sites by a number there."""
    folder.mkdir(exist_ok=True)
    with (Path(__file__).parents[1] / "references" / f"{reference}.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    for place, name in enumerate(NAMES):
        with (folder / f"{name}.csv").open("w") as lines:
            writer = csv.DictWriter(lines, rows[0])
            writer.writeheader()
            writer.writerows(row for row in rows if int(row[by]) % len(NAMES) == place)
    return folder


@functools.cache
def posterior_tree(names: tuple[str, ...] = NAMES) -> Any:
    """Return a run of the study in one process, with the rows of these hospitals."""
    given = tomllib.loads(study())
    given["data"]["files"] = [f"{name}.csv" for name in names]
    built = study_of(given, HOSPITALS / "study.toml").build()
    method = consortia.few_rounds(effective_size=4000)
    return consortia.sample(
        built.model, built.sites, method, chains=4, seed=7, metadata=built.metadata, progress=False
    )


@functools.cache
def posterior() -> dict[str, tuple[float, float]]:
    """Return mean and sd of each parameter of the study, from a run in one process."""
    return moments(posterior_tree())


def moments(tree: object) -> dict[str, tuple[float, float]]:
    """Return mean and sd of each parameter of a result."""
    table = consortia.summary(tree)
    rows = {name: table.row(name) for name in table.coordinates}
    return {name: (row["mean"], row["sd"]) for name, row in rows.items()}


def check_posterior(tree: object) -> None:
    """Check that a result of some thousand effective draws has the posterior of the study."""
    exact, here = posterior(), moments(tree)
    assert here.keys() == exact.keys()
    for name, (mean, sd) in exact.items():
        # Errors of means of 1,000 and 4,000 effective draws: .032 and .016 sd; of an sd .7 of them.
        assert abs(here[name][0] - mean) < 0.15 * sd, name
        np.testing.assert_allclose(here[name][1], sd, rtol=0.1, err_msg=name)
