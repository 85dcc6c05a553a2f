"""The MPI engine beside bare mpi4py: a gossip step of 10,000 floats, and asynchronous updates.

Three ranks on a ring exchange single-precision numbers with both neighbours; the peer is one
`Neighbor_allgather` of the same buffer. Then three workers send gradients of a logistic regression
shaped as a9a to one server; the peer is the same loop of blocking sends and receives with compiled
gradients and updates. Wall time at rank 0: waiting for others is what is measured.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import ROOT, child_environment, use_all_cores
from benchmarks.measure import Gate, Row, throughput, time_ratio

NAME = "mpi"
SIZES: dict[str, dict[str, int]] = {
    "full": {"steps": 2000, "updates": 10_000, "pairs": 7},
    "quick": {"steps": 500, "updates": 2000, "pairs": 3},
    "tiny": {"steps": 20, "updates": 50, "pairs": 1},
}
GOSSIP_RANKS, ASYNCHRONOUS_RANKS = 3, 4
LIMIT = 600
"""Seconds after which a job is ended."""


def rows(scale: str) -> list[Row]:
    """The figures."""
    launcher = _mpiexec()
    if launcher is None or importlib.util.find_spec("mpi4py") is None:
        return [Row(NAME, "MPI engine / bare mpi4py", skipped="the extra mpi is not installed")]
    sizes = SIZES[scale]
    gossip = _job(launcher, GOSSIP_RANKS, "gossip", sizes["pairs"], sizes["steps"])
    updates = _job(launcher, ASYNCHRONOUS_RANKS, "asynchronous", sizes["pairs"], sizes["updates"])
    floats = "gossip of 10,000 floats"
    named = {
        floats: gossip["consensus"],
        "de_sgld, 10,000 dimensions": gossip["de_sgld"],
        "bare neighbour exchange": gossip["bare"],
        "asynchronous updates": updates["engine"],
        "bare mpi4py loop": updates["bare"],
    }
    bare = "bare neighbour exchange"
    return [
        time_ratio(NAME, named, floats, bare, gate=Gate("<=", 2.5), unit="step"),
        time_ratio(NAME, named, "de_sgld, 10,000 dimensions", bare, gate=None, unit="step"),
        throughput(
            NAME,
            named,
            "asynchronous updates",
            "bare mpi4py loop",
            gate=Gate(">=", 0.5),
            unit="update",
        ),
    ]


def _mpiexec() -> str | None:
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def _job(launcher: str, ranks: int, kind: str, pairs: int, work: int) -> dict[str, Any]:
    """Seconds a unit of work by contender, from ranks on all cores."""
    finished = subprocess.run(
        [
            *(launcher, "-n", str(ranks), sys.executable, "-m", "benchmarks.mpi_job"),
            *(kind, str(pairs), str(work)),
        ],
        env=child_environment(),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT,
        check=True,
        preexec_fn=use_all_cores,
    )
    return {name: np.asarray(values) for name, values in json.loads(finished.stdout).items()}
