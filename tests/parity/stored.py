"""One process's part of a stored run that saves itself often.

``python stored.py ENGINE STORE ALGORITHM CHAINS``, the engine as in ``problem.py``.
The run is begun where the directory has none, and gone on with where it has. Tests that end such
a process in mid-run read here how far the run is.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.engines.mpi.guard import stand_guard
from consortia.errors import ConsortiaError
from consortia.run import loop as running
from consortia.store.checkpoint import Checkpoints

if __name__ == "__main__":
    stand_guard("Go on.")  # before JAX has started

SPECIFICATION = importlib.util.spec_from_file_location(
    "problem", Path(__file__).parent / "problem.py"
)
problem = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(problem)

ROUNDS = {"mpi": 15_000}
OTHERWISE = 6000
SLOWER = {"fsgld": 3000, "federated_hmc": 6000}
"""Rounds that take some seconds: there must be time for a kill."""


def rounds_of(kind: str, algorithm: str) -> int:
    """How long such a run is, by its engine and its algorithm."""
    return min(ROUNDS.get(kind, OTHERWISE), SLOWER.get(algorithm, ROUNDS["mpi"]))


def done(store: Path) -> int:
    """Rounds that the newest checkpoint counts; 0 where none was saved yet."""
    found, _ = Checkpoints(store).readable()
    return found[0].done if found else 0


def resumed_at(store: Path) -> list[int]:
    """The rounds from which the run was gone on with, by the newest checkpoint's account."""
    return list(Checkpoints(store).readable()[0][0].header["resumed_at"])


def wait_for(store: Path, rounds: int, running: Callable[[], bool], seconds: float = 120) -> None:
    """Returns when so many rounds are saved: the first checkpoint is written before any is run."""
    until = time.monotonic() + seconds
    before = done(store)
    while (now := done(store)) < rounds:
        assert now >= before, f"gone on with from round {now}, though {before} were saved"
        assert running(), f"ended by itself, with {now} of the {rounds} rounds before the kill"
        assert time.monotonic() < until, f"{now} of {rounds} rounds after {seconds} s"
        time.sleep(0.02)


def main() -> None:
    """Samples or resumes; the exit code is 7 after an error, as the command line's."""
    kind, store, name, chains = sys.argv[1:]
    running.SECONDS_PER_CHUNK = 0.1
    running.SECONDS_PER_CALL = 0.05
    warnings.simplefilter("ignore", UserWarning)
    engine = problem.engine_of(kind)
    # All ranks must see the same: the first to come would else begin before the last has looked.
    begun = Path(store).exists()
    engine.barrier()
    problem_of_it = (
        problem.MODEL,
        problem.sites(4),
        ALGORITHMS[name].factory(**ALGORITHMS[name].example),
    )
    more = {"engine": engine, "progress": False}
    try:
        if begun:
            consortia.resume(store, *problem_of_it, **more)
        else:
            lengths = {
                "rounds": rounds_of(kind, name),
                "chains": int(chains),
                "thin": 3,
                "seed": 5,
            }
            consortia.sample(*problem_of_it, **lengths, store=store, **more)
    except ConsortiaError as error:
        print(error, file=sys.stderr)
        engine.abort(error, 7)
        sys.exit(7)


if __name__ == "__main__":
    main()
