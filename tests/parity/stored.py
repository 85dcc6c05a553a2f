"""One process's part of a stored run that saves itself often.

``python stored.py ENGINE STORE ALGORITHM CHAINS``, the engine as in ``problem.py``.
The run is begun where the directory has none, and gone on with where it has.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path

import consortia
from consortia import running
from consortia.algorithms.registry import ALGORITHMS
from consortia.engines.mpi.guard import stand_guard
from consortia.errors import ConsortiaError

if __name__ == "__main__":
    stand_guard("Go on.")  # before JAX has started

SPECIFICATION = importlib.util.spec_from_file_location(
    "problem", Path(__file__).parent / "problem.py"
)
problem = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(problem)

ROUNDS = 6000


def main() -> None:
    """Samples or resumes; the exit code is 7 after an error, as the command line's."""
    kind, store, name, chains = sys.argv[1:]
    running.SECONDS_PER_CHUNK = 0.1
    running.SECONDS_PER_CALL = 0.05
    warnings.simplefilter("ignore", UserWarning)
    engine = problem.engine_of(kind)
    # All ranks must see the same: the first to come would else begin before the last has looked.
    begun = Path(store).exists()
    engine.meet()
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
            lengths = {"rounds": ROUNDS, "chains": int(chains), "thin": 3, "seed": 5}
            consortia.sample(*problem_of_it, **lengths, store=store, **more)
    except ConsortiaError as error:
        print(error, file=sys.stderr)
        engine.leave(error, 7)
        sys.exit(7)


if __name__ == "__main__":
    main()
