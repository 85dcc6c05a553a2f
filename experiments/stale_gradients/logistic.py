"""Section 5.2 on a9a: Bayesian logistic regression, with settings of our own."""

from __future__ import annotations

from typing import Any

import numpy as np

import consortia
from consortia.data import datasets
from experiments.claims import Finding
from experiments.stale_gradients import workers

RATE, BATCH = 0.01, 100

SCALES = {
    "quick": workers.Scale(20, 4, 2, workers=(1, 4), servers=(1, 3)),
    "small": workers.Scale(100, 20, 8),
    "full": workers.Scale(1000, 50, 10),
}


def problem() -> workers.Problem:
    """Return all rows, and the test rows."""
    data = datasets.load("a9a")
    assert data.train is not None
    assert data.test is not None
    train = {"x": data.train["x"].astype(np.float32), "y": data.train["y"]}
    return workers.Problem(
        model=consortia.models.logistic_regression(train["x"].shape[1]),
        sites=consortia.Sites.from_list([train]),
        test={"x": data.test["x"].astype(np.float32), "y": data.test["y"]},
        rows=len(train["y"]),
        rate=RATE,
        batch=BATCH,
        together=True,
    )


def study(scale: str, seed: int) -> dict[str, Any]:
    """All rows; test loss on all test rows."""
    return workers.study(problem(), SCALES[scale], seed)


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figures 3 and 4."""
    return workers.findings(results, "a9a")


draw = workers.draw
