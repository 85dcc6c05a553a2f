"""The first draws of each method in a fresh process: ``python -m benchmarks.first_call METHOD``.

Import, data, the choice of settings, plan, compiling and 200 rounds on the tumours at four sites,
in CPU seconds: with no program kept from before, and with those of the process before. No setting
is given, but those of ``fsgld`` with Laplace surrogates, for which none can be chosen on this
posterior. What binds is the ratio to ``fa_hmc``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.environment import run_python
from benchmarks.measure import Gate, Row, row_of

NAME = "first call"
ROUNDS = 200
PAIRS = {"full": 3, "quick": 1, "tiny": 1}
OF_FA_HMC = Gate("<=", 1.3)

METHODS: dict[str, Callable[[Any], Any]] = {
    "fa_hmc": lambda c: c.fa_hmc(),
    "few_rounds": lambda c: c.few_rounds(),
    "federated_hmc": lambda c: c.federated_hmc(),
    "fsgld": lambda c: c.fsgld(),
    "fsgld, Laplace": lambda c: c.fsgld(1e-5, local_steps=5, batch_size=10, surrogate="laplace"),
    "de_sgld": lambda c: c.de_sgld(mixing="ring"),
    "stale_sghmc": lambda c: c.stale_sghmc(workers=4),
    "decentralized_hmc": lambda c: c.decentralized_hmc(mixing="ring"),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "few_rounds": {},  # ends by itself
    "federated_hmc": {"rounds": ROUNDS, "warmup": 100},  # learns its step
}


def rows(scale: str) -> list[Row]:
    """The figures."""
    methods = ["fa_hmc"] if scale == "tiny" else list(METHODS)
    cold = {method: np.zeros(PAIRS[scale]) for method in methods}
    warm = {method: np.zeros(PAIRS[scale]) for method in methods}
    for pair in range(PAIRS[scale]):
        for method in methods:
            with tempfile.TemporaryDirectory() as folder:
                kept = {"CONSORTIA_CACHE": folder, "CONSORTIA_COMPILATION_CACHE": "1"}
                for seconds in (cold, warm):
                    spent, *_ = run_python("-m", "benchmarks.first_call", method, extra=kept)
                    seconds[method][pair] = spent
    least = cold["fa_hmc"]
    return [
        row
        for method in methods
        for row in (
            row_of(NAME, f"CPU seconds, {method}, nothing kept", cold[method], None),
            row_of(NAME, f"CPU seconds, {method}, programs kept", warm[method], None),
            row_of(NAME, f"{method} / fa_hmc, nothing kept", cold[method] / least, OF_FA_HMC),
        )
    ]


def main(method: str) -> None:
    """Sample with a method, from the import on."""
    import consortia

    data = consortia.datasets.load("breast_cancer")
    table, _ = consortia.datasets.standardise(data.train)
    sites = consortia.partition.by_column(table, table["x"][:, 20], sites=4)
    model = consortia.models.logistic_regression(table["x"].shape[1], intercept=True)
    made = METHODS[method](consortia)
    options = OPTIONS.get(method, {"rounds": ROUNDS})
    tree = consortia.sample(model, sites, made, progress=False, **options)
    assert "posterior" in tree.children


if __name__ == "__main__":
    main(sys.argv[1])
