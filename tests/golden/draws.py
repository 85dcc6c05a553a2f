"""Golden draws: a hash of every draw of every method over every engine, fresh and resumed.

They prove that a change of the code changes no bit. ``--write FILE`` makes them from this tree,
``--compare FILE`` makes them again and names what differs, ``--from COMMIT`` makes them from that
commit and compares this tree with it; ``--only PART ...`` takes cases whose name holds a PART.
Rounding differs between processors and versions: hashes are compared only where these are equal.
All programs are compiled without the slow passes. JAX_COMPILATION_CACHE_DIR names a folder in which
they are kept: it changes no bit, and what is the same program in two trees is compiled once.

A case is called CASE/ENGINE/HOW. HOW is ``fresh`` (every draw is kept), ``resumed`` (stored, ended
in the middle of a block of thinned draws, gone on with) or ``replayed`` (a log of asynchronous
workers). Names and signatures of the package are cases too, ``public/NAME``.

Left out, besides the pairs that the registry does not have: asynchronous workers over MPI, whose
gradients arrive in another order in every run (tests/parity compares a log's replay with it);
resuming workers with sites of their own, which cannot be made longer; over devices a single
travelling chain, which has nothing to divide; on other engines than the local one, to save time,
what `supported` in `golden.cases` does not name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[2]
JOBS = {"public": 1, "local": 1, "single": 1, "sharded": 1, "mpi2": 2, "mpi3": 3, "flower": 1}
"""Processes of an engine's job; ``single`` is the local engine in single precision, the others
compute in double precision."""


def machine() -> dict[str, str]:
    """Name the machine that hashes hold for: other processors and versions round otherwise."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    kinds = sorted({line for line in lines if line.startswith(("model name", "flags", "Feat"))})
    name = next((line.split(":")[1].strip() for line in kinds if line.startswith("model")), "")
    flags = hashlib.sha256("".join(kinds).encode()).hexdigest()[:8]
    processor = " ".join((platform.machine(), name, flags))
    return {"processor": processor, "jax": version("jax"), "numpy": version("numpy")}


def environment(tree: Path, folder: Path) -> dict[str, str]:
    """Return the variables of a job: the tree's sources, a thread, devices, no slow passes."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_ENABLE", "CONSORTIA"))}
    return (
        cache
        | kept
        | {
            "PYTHONPATH": os.pathsep.join(str(tree / name) for name in ("src", "tests")),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "4",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
    )


def job(tree: Path, kind: str, only: list[str], folder: Path) -> dict[str, Any]:
    """Return the hashes of an engine's cases, made in a job of its own."""
    output, began, used = folder / f"{kind}.json", time.monotonic(), processor_seconds()
    beside = Path(sys.executable).parent / "mpiexec"
    launcher = [str(beside) if beside.exists() else "mpiexec", "-n", str(JOBS[kind])]
    script = str(tree / "tests" / "golden" / "cases.py")
    command = [sys.executable, script, kind, str(output), *only]
    ranks = launcher if JOBS[kind] > 1 else []
    subprocess.run([*ranks, *command], env=environment(tree, folder), check=True, timeout=1800)
    made = dict(json.loads(output.read_text())) if output.exists() else {}
    if made:
        seconds, used = time.monotonic() - began, processor_seconds() - used
        print(f"{kind}: {len(made)} hashes, {seconds:.0f} s, {used:.0f} s of CPU", flush=True)
    return made


def processor_seconds() -> float:
    """Return the processor time of the jobs so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def make(tree: Path, only: list[str]) -> dict[str, Any]:
    """Return the hashes of a tree, and what they hold for."""
    made: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in JOBS:
            made |= job(tree, kind, only, Path(folder))
    commit = git(tree, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return machine() | {"commit": commit, "hashes": made}


def of_commit(commit: str, only: list[str]) -> dict[str, Any]:
    """Return the hashes of another commit; it takes these cases where it has none."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git(TREE, "worktree", "add", "--detach", str(tree), commit)
        try:
            if not (tree / "tests" / "golden").exists():
                shutil.copytree(Path(__file__).parent, tree / "tests" / "golden")
            return make(tree, only)
        finally:
            git(TREE, "worktree", "remove", "--force", str(tree))


def git(tree: Path, *command: str) -> str:
    """Return git's answer about a tree."""
    command = "git", "-C", str(tree), *command
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def refusal(stored: dict[str, Any]) -> str | None:
    """Explain why hashes cannot be compared with those made here, or return None."""
    for fact, here in machine().items():
        if stored[fact] != here:
            return f"{fact} is {here!r}, but the hashes were made with {stored[fact]!r}: use --from"
    return None


def differences(stored: dict[str, Any], made: dict[str, Any]) -> list[str]:
    """Return a line for each stored case that is gone or has variables that differ."""
    lines = []
    for case, before in stored.items():
        now = made.get(case, {})
        names = [name for name in sorted(before | now) if before.get(name) != now.get(name)]
        lines += [f"{case}: {', '.join(names)}" if now else f"{case}: it is gone"] if names else []
    return lines


def compare(stored: dict[str, Any], made: dict[str, Any], only: list[str]) -> int:
    """Print what differs; return the exit status."""
    before = {
        case: hashes
        for case, hashes in stored["hashes"].items()
        if not only or any(part in case for part in only)
    }
    lines = differences(before, made["hashes"])
    new = sorted(made["hashes"].keys() - before.keys())
    print(*lines, *[f"{case}: it is new" for case in new], sep="\n")
    print(f"{len(lines)} of {len(before)} cases differ from {stored['commit']}")
    return int(bool(lines))


def main() -> int:
    """Read the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--write", metavar="FILE", type=Path, help="make the hashes, store them")
    way.add_argument("--compare", metavar="FILE", type=Path, help="make them, compare with these")
    way.add_argument("--from", metavar="COMMIT", dest="commit", help="compare with a commit's")
    parser.add_argument("--only", metavar="PART", nargs="+", default=[], help="of CASE/ENGINE/HOW")
    given = parser.parse_args()
    if given.write:
        given.write.write_text(json.dumps(make(TREE, given.only), indent=1) + "\n")
        return 0
    if given.commit:
        stored = of_commit(given.commit, given.only)
    else:
        stored = json.loads(given.compare.read_text())
        if why := refusal(stored):
            sys.exit(why)
    return compare(stored, make(TREE, given.only), given.only)


if __name__ == "__main__":
    sys.exit(main())
