"""Runs algorithms of the registry into directories, or goes on there, each in a process of its own.

It imports what a run needs, then forks for each line NAME, DIRECTORY, SAVES, as JSON, and says the
number of the process, and its exit code once it has ended. With SAVES a run is saved after every
call, so that a kill falls into a write as often as not. What a process says is in DIRECTORY.log.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.run import checks, execution, loop
from consortia.store.checkpoint import Checkpoints

IMPORTED = ("consortia.run.sampling", "zarr")
"""Beside this package's own: what a run imports when it needs it."""

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


def forked(name: str, directory: str, saves: bool) -> None:
    """Runs in a process that was forked from one in which nothing had been computed."""
    checks.PROCESS = os.getpid()
    code = 1
    with open(f"{directory}.log", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        try:
            main(name, Path(directory), saves)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)


def serve() -> None:
    """Forks for each line, one process at a time."""
    for name in IMPORTED:
        import_module(name)
    assert psutil.Process().num_threads() == 1
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            forked(*json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
