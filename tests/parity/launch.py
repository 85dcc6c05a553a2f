"""Running the ranks of an MPI job, and reading what they leave."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MPIEXEC = Path(sys.executable).parent / "mpiexec"
TIMEOUT = 540


def mpiexec() -> str:
    """The launcher that belongs to this Python, or the one on the path."""
    found = str(MPIEXEC) if MPIEXEC.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("mpiexec is not installed: pip install 'consortia[mpi]'")
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    return found


def environment(**more: str) -> dict[str, str]:
    """Of a rank: one thread each, or the ranks slow one another down."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_ENABLE")}
    return inherited | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "CONSORTIA_COMPILATION_CACHE": "0",
        **more,
    }


def ranks(count: int, *command: str, timeout: float = TIMEOUT) -> Any:
    """A finished job of so many ranks of ``python COMMAND``; it never outlives the test."""
    return subprocess.run(
        [mpiexec(), "-n", str(count), sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(),
    )
