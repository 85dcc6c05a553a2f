"""One core, one thread, the environment of the peers, and a record of the machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

PEERS = ROOT / "benchmarks" / "peers.txt"
"""Other libraries, pinned: the package depends on none of them."""

PACKAGES = (
    "consortia",
    "jax",
    "jaxlib",
    "numpy",
    "numpyro",
    "blackjax",
    "nutpie",
    "torch",
    "posteriors",
    "fedjax",
    "mpi4py",
    "flwr",
    "statsmodels",
    "bambi",
)
"""Their versions stand above the table."""

SINGLE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


def child_environment() -> dict[str, str]:
    """The environment of a measuring process: one thread, on the CPU unless told otherwise.

    No program is kept from an earlier run.
    """
    environment = {"JAX_PLATFORMS": "cpu", **os.environ, **SINGLE_THREAD}
    environment["CONSORTIA_COMPILATION_CACHE"] = "0"
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    path = [str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
    return environment


def python_with_peers() -> str:
    """Return the interpreter of an environment that has the peers beside what this one has.

    It is made in ``build/`` for each list and interpreter once; what is installed here stays as it
    is, and is seen there.

    Raises:
        subprocess.CalledProcessError: a peer cannot be installed.
    """
    ours = sysconfig.get_path("purelib")
    key = f"{sys.version} {ours} {PEERS.read_text()}"
    folder = ROOT / "build" / f"peers-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    done = folder / "installed"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        # Read after the environment's own folder, so that a peer's version is the one pinned.
        theirs = Path(sysconfig.get_path("purelib", "venv", {"base": folder, "platbase": folder}))
        # As a folder of packages: beneath a bare path no .pth is read, which this package needs.
        beside = f"import site; site.addsitedir({ours!r})\n"
        (theirs / "consortia-environment.pth").write_text(beside)
        install = [python, "-m", "pip", "install", "--quiet", "-r", PEERS]
        subprocess.run(install, stdin=subprocess.DEVNULL, check=True)
        done.touch()
    return str(python)


def pin_to_one_core() -> int | None:
    """Keeps this process and its children on one core; None where the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def use_all_cores() -> None:
    """Undoes `pin_to_one_core` for this process."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    load = os.getloadavg() if hasattr(os, "getloadavg") else ()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "idle_polling_ns": _idle_polling(),
        "load_average": [round(value, 2) for value in load],
        "commit": _commit(),
        "versions": versions,
    }


def run_python(*arguments: str, extra: dict[str, str] | None = None) -> tuple[float, str]:
    """CPU seconds of a Python process with these arguments, and what it printed."""
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = subprocess.run(
        [sys.executable, *arguments],
        env={**child_environment(), **(extra or {})},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return seconds, finished.stdout


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _idle_polling() -> int | None:
    """How long an idle core of a virtual machine waits before it halts; None if it is none."""
    told = Path("/sys/module/haltpoll/parameters/guest_halt_poll_ns")
    return int(told.read_text()) if told.exists() else None


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
        )
    except OSError:
        return ""
    return found.stdout.strip()
