"""Running the ranks of an MPI job, and reading what they leave."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MPIEXEC = Path(sys.executable).parent / "mpiexec"
TIMEOUT = 540
PATHS = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
"""Where a script finds this folder's modules."""


def mpiexec() -> str:
    """The launcher that belongs to this Python, or the one on the path."""
    found = str(MPIEXEC) if MPIEXEC.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("mpiexec is not installed: pip install 'consortia[mpi]'")
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    return found


def environment(**more: str) -> dict[str, str]:
    """Of a rank: one thread each, or the ranks slow one another down; compiled in less time.

    What is compared is who computes what with which numbers, not how well loops are compiled: that
    would take a third of the time of these tests.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_ENABLE")}
    return inherited | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false "
        "--xla_backend_optimization_level=0",
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


def together(
    count: int, command: Callable[[int], list[str]], timeout: float = TIMEOUT
) -> list[Any]:
    """Finished processes ``python COMMAND(number)`` that run at the same time, one device each."""
    started = [
        subprocess.Popen(
            [sys.executable, *command(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for number in range(count)
    ]
    try:
        ends = [process.communicate(timeout=timeout) for process in started]
    finally:
        for process in started:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *end)
        for process, end in zip(started, ends, strict=True)
    ]


def free_port() -> int:
    """A port of this machine at which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
