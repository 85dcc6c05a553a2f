"""Runs one algorithm of the registry into a directory, or goes on there: ``NAME DIRECTORY SAVES``.

With SAVES it is saved after every call, so that a kill falls into a write as often as not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.run import execution, loop
from consortia.store.checkpoint import Checkpoints

LENGTH: dict[str, Any] = {"rounds": 160, "warmup": 6, "thin": 3, "chains": 2, "seed": 3}


def sites_of(count: int | None) -> consortia.Sites:
    """Three unequal sites that disagree, or one."""
    rng = np.random.default_rng(3)
    shards = []
    for rows, slope in ((4, 1.0), (7, -0.5), (12, 2.0)):
        x = rng.normal(size=(rows, 2)).astype(np.float32)
        y = (rng.uniform(size=rows) < 1 / (1 + np.exp(-slope * x[:, 0]))).astype(np.int32)
        shards.append({"x": x, "y": y})
    return consortia.Sites.from_list(shards[:count])


def main(name: str, directory: Path, saves: bool) -> None:
    """Starts the run, or goes on with what is there."""
    if saves:
        loop.SECONDS_PER_CALL = 0.0
        loop.SECONDS_PER_CHUNK = -1.0
        execution.STORED_BYTES = 1
    entry = ALGORITHMS[name]
    model = consortia.models.logistic_regression(2, intercept=True)
    common = (model, sites_of(entry.sites), entry.factory(**entry.example))
    if (directory / "run.json").exists() or Checkpoints(directory).present:
        consortia.resume(directory, *common, progress=False)
    else:
        consortia.sample(*common, store=directory, progress=False, **LENGTH)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "saves")
