"""Section 5.2 on a9a: Bayesian logistic regression, with settings of our own."""

from __future__ import annotations

from typing import Any

import numpy as np

import consortia
from consortia.data import datasets
from experiments import command
from experiments.stale_gradients import workers

RATE, BATCH = 0.01, 100

SCALES = {
    "quick": workers.Scale(20, 4, 2, workers=(1, 4), servers=(1, 3)),
    "laptop": workers.Scale(100, 20, 8),
    "paper": workers.Scale(1000, 50, 10),
}


def study(scale: str, seed: int) -> dict[str, Any]:
    """All rows; test loss on all test rows."""
    try:
        data = datasets.load("a9a")
    except datasets.DatasetMissing as absent:
        command.say(f"skipped a9a: {absent}")
        return {"skipped": {"a9a": str(absent)}}
    assert data.train is not None
    assert data.test is not None
    train = {"x": data.train["x"].astype(np.float32), "y": data.train["y"]}
    problem = workers.Problem(
        model=consortia.models.logistic_regression(train["x"].shape[1]),
        sites=consortia.Sites.from_list([train]),
        test={"x": data.test["x"].astype(np.float32), "y": data.test["y"]},
        rows=len(train["y"]),
        rate=RATE,
        batch=BATCH,
        together=True,
    )
    return workers.study(problem, SCALES[scale], seed)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """The program."""
    return command.main(
        "stale_gradients",
        "logistic",
        "Chen et al. (2016), section 5.2, figures 3 and 4: workers and servers on a9a",
        study,
        workers.draw,
        panels=3,
        arguments=arguments,
    )


if __name__ == "__main__":
    main()
