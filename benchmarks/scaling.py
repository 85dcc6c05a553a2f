"""How the time of a round grows with sites, chains, rows and parameters, all else kept.

FA-HMC with exact gradients (two leapfrog steps, two local steps) on logistic regressions. What
grows is the time of a further round, the difference of two lengths of run; its exponent is the
slope of a line through the logarithms. An exponent below one is a fixed cost that is shared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import consortia
from benchmarks.measure import Contender, Row, growth_of

NAME = "scaling"


@dataclass(frozen=True)
class Shape:
    """The sizes of a run."""

    sites: int = 4
    chains: int = 1
    rows: int = 50
    parameters: int = 20

    @property
    def row_gradients(self) -> int:
        """Numbers that the gradients of one round read."""
        return self.sites * self.chains * self.rows * self.parameters


SIZES: dict[str, dict[str, Any]] = {
    "full": {
        "sites": (100, 1000, 10_000, 100_000),
        "chains": (10, 100, 1000),
        "rows": (1000, 10_000, 100_000),
        "parameters": (100, 1000, 10_000),
        "work": 400_000_000,
        "pairs": 5,
    },
    "quick": {
        "sites": (100, 1000, 10_000),
        "chains": (10, 100, 1000),
        "rows": (1000, 10_000),
        "parameters": (100, 1000),
        "work": 100_000_000,
        "pairs": 3,
    },
    "tiny": {
        "sites": (3, 6),
        "chains": (2, 4),
        "rows": (10, 20),
        "parameters": (4, 8),
        "work": 1000,
        "pairs": 1,
    },
}

SMALL_SITE = Shape(rows=5, parameters=2)
"""At each of many sites."""


def runs_of(shape: Shape, name: str, work: int) -> tuple[Contender, Contender]:
    """A run of about so many numbers read, and one of a quarter of its rounds."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(shape.sites, shape.rows, shape.parameters)).astype(np.float32)
    y = rng.integers(0, 2, x.shape[:2]).astype(np.float32)
    model = consortia.models.logistic_regression(shape.parameters)
    sites = consortia.Sites.from_list([{"x": x[i], "y": y[i]} for i in range(shape.sites)])
    method = consortia.fa_hmc(1e-4, 2, 2)
    long = max(work // shape.row_gradients, 8)

    def run_of(rounds: int) -> Any:
        def run(seed: int) -> Any:
            return consortia.sample(
                model,
                sites,
                method,
                rounds=rounds,
                chains=shape.chains,
                thin=max(rounds // 8, 1),
                seed=seed,
                progress=False,
            )

        return run

    return (
        Contender(name, run_of(long), long),
        Contender(f"{name}, short", run_of(long // 4), long // 4),
    )


def rows(scale: str) -> list[Row]:
    """The figures."""
    sizes = SIZES[scale]
    found = []
    for what in ("sites", "chains", "rows", "parameters"):
        base = SMALL_SITE if what == "sites" else Shape()
        contenders = {
            size: runs_of(replace(base, **{what: size}), f"{size} {what}", sizes["work"])
            for size in sizes[what]
        }
        found += growth_of(NAME, what, contenders, sizes["pairs"])
    return found
