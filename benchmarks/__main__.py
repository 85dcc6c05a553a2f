"""``python -m benchmarks [--quick] [--peers] [--only NAME ...]``: a table, and JSON beside it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.environment import (
    ROOT,
    child_environment,
    machine,
    pin_to_one_core,
    python_with_peers,
)
from benchmarks.measure import Row

BENCHMARKS = {
    "fa-hmc": "federated_hmc",
    "sgld": "langevin",
    "travelling": "travelling",
    "softmax": "softmax",
    "gossip": "gossip",
    "stale": "stale",
    "decentralized": "decentralized",
    "scaling": "scaling",
    "devices": "devices",
    "mpi": "ranks",
    "flower": "flower",
    "run-loop": "recording",
    "cold-start": "cold_start",
}
GUARD = {"guard": "guard"}
"""Run only when it is asked for."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmarks; 1 when a gate is missed (not with --quick), else 0."""
    options = _parse(arguments)
    if options.child:
        _measure(options.child, options.scale, Path(options.output))
        return 0
    if options.peers:
        return _with_peers(sys.argv[1:] if arguments is None else arguments)
    names = options.only or list(BENCHMARKS)
    scale = "quick" if options.quick else options.scale
    started = time.strftime("%Y-%m-%dT%H-%M-%S")
    rows: list[Row] = []
    errors: list[str] = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        found, error = _in_a_process(name, scale)
        rows += found
        if error:
            errors.append(error)
            print(error, file=sys.stderr, flush=True)
    record = {"started": started, "scale": scale, "machine": machine(), "errors": errors}
    folder = Path(options.output or ROOT / "runs" / "bench")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{started}-{scale}.json"
    path.write_text(json.dumps({**record, "rows": [row.plain() for row in rows]}, indent=1))
    _print(rows, record["machine"])
    if options.results:
        Path(options.results).write_text(_markdown(rows, record))
    print(f"written to {path}")
    missed = [row for row in rows if row.verdict == "FAIL"]
    if missed and scale != "full":
        print("The runs are too short for a verdict; without --quick a FAIL ends with status 1.")
    return 1 if errors or (missed and scale == "full") else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs, in about two minutes")
    parser.add_argument("--peers", action="store_true", help="install other libraries, once")
    parser.add_argument("--only", nargs="+", choices=[*BENCHMARKS, *GUARD], metavar="NAME")
    parser.add_argument("--results", metavar="FILE", help="write the table there, as Markdown")
    parser.add_argument("--output", help="folder of the JSON file; runs/bench by default")
    parser.add_argument("--scale", choices=["full", "quick", "tiny"], default="full")
    parser.add_argument("--child", choices=[*BENCHMARKS, *GUARD], help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _with_peers(arguments: list[str]) -> int:
    """The same in an environment that has the peers beside what is installed here."""
    others = [argument for argument in arguments if argument != "--peers"]
    beside = str(Path(sys.executable).parent)  # mpiexec is there
    environment = {**os.environ, "PATH": os.pathsep.join([beside, os.environ.get("PATH", "")])}
    return subprocess.run(
        [python_with_peers(), "-m", "benchmarks", *others], env=environment, cwd=ROOT, check=False
    ).returncode


def _in_a_process(name: str, scale: str) -> tuple[list[Row], str | None]:
    """The rows of one benchmark, measured in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.json"
        command = ["-m", "benchmarks", "--child", name, "--scale", scale, "--output", str(output)]
        finished = subprocess.run(
            [sys.executable, *command],
            env=child_environment(),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        rows = json.loads(output.read_text()) if output.exists() else []
    error = None if finished.returncode == 0 else f"{name}: ended with {finished.returncode}"
    return [Row.of_plain(row) for row in rows], error


def _measure(name: str, scale: str, output: Path) -> None:
    pin_to_one_core()  # before JAX starts and counts the cores
    import_module("consortia")  # before JAX computes: it sets options of the compiler for all
    benchmark = import_module(f"benchmarks.{(BENCHMARKS | GUARD)[name]}")
    output.write_text(json.dumps([row.plain() for row in benchmark.rows(scale)]))


def _print(rows: list[Row], information: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console() if sys.stdout.isatty() else Console(width=170)
    table = Table(
        title=f"{information['processor']}, one core, one thread, CPU time; "
        "devices and mpi: all cores, wall time"
    )
    for heading in ("", "what", "median", "least", "greatest", "pairs", "gate", "", "absolute"):
        right = heading in ("median", "least", "greatest", "pairs")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    colours = {"PASS": "green", "FAIL": "bold red", "skipped": "yellow"}
    last = ""
    for row in rows:
        if row.benchmark != last and last:
            table.add_section()
        figures = [_number(value) for value in (row.figure, row.least, row.greatest)]
        verdict = row.verdict
        if verdict in colours:
            verdict = f"[{colours[verdict]}]{verdict}[/]"
        table.add_row(
            row.benchmark if row.benchmark != last else "",
            row.what,
            *figures,
            str(row.pairs or ""),
            str(row.gate or ""),
            verdict,
            row.detail or row.skipped,
        )
        last = row.benchmark
    console.print(table)


def _markdown(rows: list[Row], record: dict[str, Any]) -> str:
    """The table with what it was measured on."""
    machine = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        "# Measured",
        "",
        f"Written by `python -m benchmarks` at {record['started']}, scale {record['scale']}, on "
        f"{machine['processor']} ({machine['cores']} cores, {machine['system']}), load "
        f"{machine['load_average']}, commit {machine['commit']}; {versions}. CPU time on one core "
        "with one thread; of devices and ranks wall time on all cores. Contenders run in turn; a "
        "figure is the median over pairs, with the least and the greatest.",
        "",
        "| | what | median | least | greatest | pairs | gate | | absolute |",
        "|---|---|---:|---:|---:|---:|---|---|---|",
    ]
    for row in rows:
        figures = [_number(value) for value in (row.figure, row.least, row.greatest)]
        told = (row.gate or "", row.verdict, row.detail or row.skipped)
        cells = [row.benchmark, row.what, *figures, row.pairs or "", *told]
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    return "\n".join([*lines, "", *record["errors"]]).rstrip() + "\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
