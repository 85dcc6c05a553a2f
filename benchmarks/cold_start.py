"""Cold starts, each in a fresh process: imports, a small job, JAX's cache of compiled programs."""

from __future__ import annotations

import json
import tempfile

import numpy as np

from benchmarks.environment import run_python
from benchmarks.measure import Gate, Row, row_of

NAME = "cold start"
PAIRS = {"full": 7, "quick": 3, "tiny": 1}
CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def rows(scale: str) -> list[Row]:
    """The figures."""
    return [_imports(PAIRS[scale]), _small_job(PAIRS[scale]), *_cache(min(PAIRS[scale], 5))]


def _imports(pairs: int) -> Row:
    """CPU seconds of `import consortia` beyond those of `import jax`."""
    commands = ("-c", "import jax"), ("-c", "import consortia")
    for command in commands:  # writes the byte code, fills the file cache
        run_python(*command)
    seconds = np.array([[run_python(*command)[0] for command in commands] for _ in range(pairs)])
    detail = f"{np.median(seconds[:, 1]):.2f} s against {np.median(seconds[:, 0]):.2f} s"
    what = "import consortia beyond import jax, seconds"
    return row_of(NAME, what, seconds[:, 1] - seconds[:, 0], Gate("<=", 0.3), detail)


def _small_job(pairs: int) -> Row:
    """A small job from the start of the process to its end, against bare JAX."""
    commands = ("-m", "benchmarks.cold_jobs", "library"), ("-m", "benchmarks.cold_jobs", "bare")
    seconds = np.array([[run_python(*command)[0] for command in commands] for _ in range(pairs)])
    detail = f"{np.median(seconds[:, 0]):.2f} s / {np.median(seconds[:, 1]):.2f} s"
    what = "time, small job from cold, consortia / bare JAX"
    return row_of(NAME, what, seconds[:, 0] / seconds[:, 1], Gate("<=", 1.5), detail)


def _cache(pairs: int) -> list[Row]:
    """The same job with an empty and then with a filled compilation cache."""
    command = ("-m", "benchmarks.cold_jobs", "library")
    compiling, whole = [], []
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            extra = {**CACHE, "JAX_COMPILATION_CACHE_DIR": folder}
            cold, warm = run_python(*command, extra=extra), run_python(*command, extra=extra)
        compiling.append([json.loads(printed)["compile_seconds"] for _, printed in (cold, warm)])
        whole.append([cold[0], warm[0]])
    compiling, whole = np.array(compiling), np.array(whole)
    medians = np.median(compiling, axis=0), np.median(whole, axis=0)
    return [
        row_of(
            NAME,
            "compile time, empty cache / filled cache",
            compiling[:, 0] / compiling[:, 1],
            Gate(">=", 4),
            "{:.2f} s / {:.2f} s".format(*medians[0]),
        ),
        row_of(
            NAME,
            "time of the whole job, empty cache / filled cache",
            whole[:, 0] / whole[:, 1],
            None,
            "{:.2f} s / {:.2f} s".format(*medians[1]),
        ),
    ]
