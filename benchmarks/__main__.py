"""``python -m benchmarks [--quick] [--peers] [--only NAME ...]``: a table, and JSON beside it."""

from __future__ import annotations

import argparse
import json
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
    "rounds": "rounds",
    "choosing": "choosing",
    "choices": "choices",
    "other-choices": "other_choices",
    "first-call": "first_call",
    "cold-start": "cold_start",
    "effective": "effective",
    "memory": "memory",
    "letters": "letters",
    "crossing": "crossing",
    "ordinary-study": "ordinary_study",
}
COMPARED = {"fa-hmc", "sgld", "decentralized", "effective", "ordinary-study"}
"""With what `benchmarks/peers.txt` names; the others start programs of this environment."""

GUARD = {"guard": "guard"}
"""Run only when it is asked for."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmarks; 1 when a gate is missed (not with --quick), else 0."""
    options = _parse(arguments)
    if options.child:
        _measure(options.child, options.scale, Path(options.output))
        return 0
    with_peers = python_with_peers() if options.peers else sys.executable
    names = options.only or list(BENCHMARKS)
    scale = "quick" if options.quick else options.scale
    kept = _of_earlier(options.beside, scale) if options.beside else {}
    measured: dict[str, dict[str, Any]] = {}
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        python = with_peers if name in COMPARED else sys.executable
        measured[name] = _in_a_process(name, scale, python)
        if error := measured[name]["error"]:
            print(error, file=sys.stderr, flush=True)
    found = kept | measured
    parts = {name: found[name] for name in [*BENCHMARKS, *GUARD] if name in found}
    folder = Path(options.output or ROOT / "runs" / "bench")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y-%m-%dT%H-%M-%S')}-{scale}.json"
    path.write_text(json.dumps({"scale": scale, "machine": machine(), "parts": parts}, indent=1))
    rows = [row for part in parts.values() for row in _rows(part)]
    _print(rows, machine())
    if options.results:
        Path(options.results).write_text(_markdown(parts, scale))
    print(f"written to {path}")
    missed = [row for row in rows if row.verdict == "FAIL"]
    if missed and scale != "full":
        print("The runs are too short for a verdict; without --quick a FAIL ends with status 1.")
    ended = any(part["error"] for part in parts.values())
    return 1 if ended or (missed and scale == "full") else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs, in about two minutes")
    parser.add_argument("--peers", action="store_true", help="install other libraries, once")
    parser.add_argument("--only", nargs="+", choices=[*BENCHMARKS, *GUARD], metavar="NAME")
    parser.add_argument("--results", metavar="FILE", help="write the table there, as Markdown")
    parser.add_argument(
        "--beside",
        metavar="FILE",
        help="a JSON file written before on this machine: what is not measured now stays as there",
    )
    parser.add_argument("--output", help="folder of the JSON file; runs/bench by default")
    parser.add_argument("--scale", choices=["full", "quick", "tiny"], default="full")
    parser.add_argument("--child", choices=[*BENCHMARKS, *GUARD], help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _of_earlier(file: str, scale: str) -> dict[str, dict[str, Any]]:
    """The parts of an earlier run; figures of two machines or scales make no table."""
    try:
        record = json.loads(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"--beside {file}: give a file of runs/bench/, in JSON: {error}") from None
    for what, now in (("scale", scale), ("processor", machine()["processor"])):
        then = record["scale"] if what == "scale" else record["machine"]["processor"]
        if then != now:
            raise SystemExit(f"--beside {file}: its {what} is {then}, now it is {now}.")
    return dict(record["parts"])


def _in_a_process(name: str, scale: str, python: str) -> dict[str, Any]:
    """The rows of one benchmark, measured in a process of its own, and when, and on what."""
    about = {"started": time.strftime("%Y-%m-%d %H:%M"), "machine": machine()}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.json"
        command = ["-m", "benchmarks", "--child", name, "--scale", scale, "--output", str(output)]
        finished = subprocess.run(
            [python, *command],
            env=child_environment(),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        found = json.loads(output.read_text()) if output.exists() else {"versions": {}, "rows": []}
    about["machine"]["versions"] |= found["versions"]
    about |= {"ended": time.strftime("%H:%M"), "load_at_end": machine()["load_average"]}
    error = "" if finished.returncode == 0 else f"{name}: ended with {finished.returncode}"
    return {**about, "rows": found["rows"], "error": error}


def _rows(part: dict[str, Any]) -> list[Row]:
    return [Row.of_plain(row) for row in part["rows"]]


def _measure(name: str, scale: str, output: Path) -> None:
    pin_to_one_core()  # before JAX starts and counts the cores
    import_module("consortia")  # before JAX computes: it sets options of the compiler for all
    benchmark = import_module(f"benchmarks.{(BENCHMARKS | GUARD)[name]}")
    rows = []
    for row in benchmark.rows(scale):  # written as they come: what was measured stays
        rows.append(row.plain())
        value = "" if row.figure is None else f"{row.figure:.3g} "
        print(f"  {row.what}: {value}{row.detail or row.skipped}", file=sys.stderr, flush=True)
        output.write_text(json.dumps({"versions": machine()["versions"], "rows": rows}))


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


def _markdown(parts: dict[str, dict[str, Any]], scale: str) -> str:
    """A table of each part, with when it was measured and on what."""
    here = machine()
    installed: dict[str, str] = {}
    for part in parts.values():
        installed |= part["machine"]["versions"]
    versions = ", ".join(f"{name} {version}" for name, version in installed.items())
    lines = [
        "# Measured",
        "",
        f"Written by `python -m benchmarks` at scale {scale} on {here['processor']} "
        f"({here['cores']} cores, {here['system']}); {versions}. CPU time on one core with one "
        "thread; of devices and ranks wall time on all cores. Contenders run in turn; a figure is "
        "the median over pairs, with the least and the greatest.",
    ]
    for name, part in parts.items():
        then = part["machine"]
        lines += [
            "",
            f"## {name}",
            "",
            f"{part['started']}, load {then['load_average']}, commit {then['commit']}"
            + _end_of(part),
            "",
            "| what | median | least | greatest | pairs | gate | | absolute |",
            "|---|---:|---:|---:|---:|---|---|---|",
        ]
        for row in _rows(part):
            figures = [_number(value) for value in (row.figure, row.least, row.greatest)]
            told = (row.gate or "", row.verdict, row.detail or row.skipped)
            cells = [row.what, *figures, row.pairs or "", *told]
            lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
        if part["error"]:
            lines += ["", part["error"]]
    return "\n".join(lines) + "\n"


def _end_of(part: dict[str, Any]) -> str:
    if "ended" not in part:
        return "."
    return f"; ended {part['ended']}, load {part['load_at_end']}."


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
