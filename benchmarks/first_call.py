"""The first draws of each method in a fresh process: ``python -m benchmarks.first_call METHOD``.

Import, data, plan, compiling and fifty rounds on the tumours at four sites, in CPU seconds: with no
program kept from before, and with those of the process before.
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
ROUNDS = 50
PAIRS = {"full": 3, "quick": 1, "tiny": 1}
COLD, WARM = Gate("<=", 3.0), Gate("<=", 0.8)

METHODS: dict[str, Callable[[Any], Any]] = {
    "fa_hmc": lambda c: c.fa_hmc(1e-3, leapfrog_steps=5, local_steps=2),
    "few_rounds": lambda c: c.few_rounds(),
    "federated_hmc": lambda c: c.federated_hmc(),
    "fsgld": lambda c: c.fsgld(1e-5, local_steps=5, batch_size=10),
    "de_sgld": lambda c: c.de_sgld(1e-5, "ring"),
    "stale_sghmc": lambda c: c.stale_sghmc(1e-4, 1.0, 10, workers=4),
    "decentralized_hmc": lambda c: c.decentralized_hmc(1e-3, "ring"),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "few_rounds": {},  # ends by itself
    "federated_hmc": {"rounds": ROUNDS, "warmup": 100},  # learns its step
}


def rows(scale: str) -> list[Row]:
    """The figures."""
    methods = ["fa_hmc"] if scale == "tiny" else list(METHODS)
    return [row for method in methods for row in _of_method(method, PAIRS[scale])]


def _of_method(method: str, pairs: int) -> list[Row]:
    command = ("-m", "benchmarks.first_call", method)
    cold, warm = [], []
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            kept = {"CONSORTIA_CACHE": folder, "CONSORTIA_COMPILATION_CACHE": "1"}
            cold.append(run_python(*command, extra=kept)[0])
            warm.append(run_python(*command, extra=kept)[0])
    return [
        row_of(NAME, f"CPU seconds, {method}, nothing kept", np.array(cold), COLD),
        row_of(NAME, f"CPU seconds, {method}, programs kept", np.array(warm), WARM),
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
