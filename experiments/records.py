"""Records of the studies: made by a run, stored beside the programs, found again.

A program of a study has three functions: ``study(scale, seed)`` returns plain results,
``findings(results)`` a `Finding` for each claim, by its id, and ``draw(results, axes)`` draws its
panels. A record has the results and the findings, and what a reader must know to believe them.

A long study is made of parts (`part`), and a part of sampler runs (`sampled`). Where the run has a
folder for them (`parts_in`), a finished part is kept there with its commit, machine and processor
time, and a sampler run has a store: a run that was stopped goes on where it was. `finished_only`
takes what is finished and begins nothing.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.claims import ROOT, SCALES, Finding, Paper, Study

RESULTS = ROOT / "results"
"""Stored records, a folder a paper."""

Record = dict[str, Any]

_PARTS: ContextVar[Path | None] = ContextVar("parts", default=None)
_FINISHED_ONLY: ContextVar[bool] = ContextVar("finished_only", default=False)
_TAKEN: ContextVar[tuple[Record, ...]] = ContextVar("taken", default=())
"""The parts that this run took from earlier ones."""


class UnfinishedError(LookupError):
    """A part that no earlier run has finished, where only finished ones are asked for."""


@contextmanager
def parts_in(folder: Path) -> Iterator[None]:
    """Keep the parts of what is run here in a folder, and take those that are in it."""
    folder.mkdir(parents=True, exist_ok=True)
    before = _PARTS.set(folder)
    try:
        yield
    finally:
        _PARTS.reset(before)


@contextmanager
def finished_only() -> Iterator[None]:
    """Let `part` take what earlier runs have finished, and raise `UnfinishedError` for the rest."""
    before = _FINISHED_ONLY.set(True)
    try:
        yield
    finally:
        _FINISHED_ONLY.reset(before)


def parts_of(paper: Paper, study: Study, scale: str, seed: int, out: Path) -> Path:
    """Return the folder of a run's parts: another commit may find other ones."""
    return out / paper.name / f"{study.name}.{scale}.{seed}.{_commit()}.parts"


def part(name: str, make: Callable[[], Any]) -> Any:
    """Return the result of ``make``, in JSON's own types, from an earlier run where it is kept.

    Args:
        name: of the part in its study; a file is called so.
        make: computes it.

    Raises:
        UnfinishedError: it is not kept, and `finished_only` asks for no other.
    """
    folder = _PARTS.get()
    target = None if folder is None else folder / f"{name}.json"
    if target is not None and target.is_file():
        say(f"{name}: kept from an earlier run")
        kept = json.loads(target.read_text())
        _TAKEN.set((*_TAKEN.get(), kept))
        return kept["made"]
    if _FINISHED_ONLY.get():
        raise UnfinishedError(f"{name} is not finished")
    before = _processor_seconds()
    made = plain(make())
    if target is None:
        return made
    whole = target.with_suffix(".partial")
    seconds = round(_processor_seconds() - before, 1)
    origin = {"commit": _commit(), "machine": _machine()}
    write({"cpu_seconds": seconds, **origin, "made": made}, whole)
    whole.replace(target)  # a run that is stopped here leaves no half of a file
    return made


def sampled(name: str, model: Any, sites: Any, method: Any, **options: Any) -> Any:
    """Return the result of `consortia.sample`, of a stored run that goes on where it was stopped.

    A finished one continues to more rounds where more are wanted.

    Args:
        name: of the run in its study; a folder is called so.
        model: of `consortia.sample`; so are the following.
        sites: see there.
        method: see there.
        **options: see there.
    """
    import consortia

    folder = _PARTS.get()
    if _FINISHED_ONLY.get():
        raise UnfinishedError(f"{name}: a sampler's run, of which no finished part is kept")
    if folder is None:
        return consortia.sample(
            model, sites, method, progress=False, on_divergence="ignore", **options
        )
    if (folder / name).is_dir():
        say(f"{name}: goes on")
        rounds = options["rounds"]
        return consortia.resume(folder / name, model, sites, method, rounds=rounds, progress=False)
    return consortia.sample(
        model, sites, method, progress=False, on_divergence="ignore", store=folder / name, **options
    )


def program(paper: Paper, study: Study) -> ModuleType:
    """Return the module of a study."""
    return importlib.import_module(f"experiments.{paper.folder}.{study.name}")


def run(paper: Paper, study: Study, scale: str, seed: int) -> Record:
    """Run a study and return its record.

    Raises:
        consortia.datasets.DatasetMissing: a data set is not here.
    """
    module = program(paper, study)
    wall, cpu = time.monotonic(), _processor_seconds()
    _TAKEN.set(())
    results = plain(module.study(scale, seed))
    taken = _TAKEN.get()
    origins = [(part["commit"], part["machine"]) for part in taken]
    if not (taken and _FINISHED_ONLY.get()):
        origins.append((_commit(), _machine()))
    commits, machines = (dict.fromkeys(entries) for entries in zip(*origins, strict=True))
    record = {
        "paper": paper.name,
        "study": study.name,
        "scale": scale,
        "seed": seed,
        "commit": ", ".join(commits),
        "date": datetime.date.today().isoformat(),
        "machine": "; ".join(machines),
        "wall_seconds": round(time.monotonic() - wall, 1),
        "cpu_seconds": round(
            _processor_seconds() - cpu + sum(part["cpu_seconds"] for part in taken), 1
        ),
        "data": {name: _checksums(name) for name in study.data},
    }
    return found_again(paper, study, {**record, "results": results})


def findings(record: Record) -> dict[str, Finding]:
    """Return the findings of a record, by the claim's id."""
    return {name: Finding(**one) for name, one in record["findings"].items()}


def found_again(paper: Paper, study: Study, record: Record) -> Record:
    """Return a record with what its program finds now in the results that it has."""
    made = program(paper, study).findings(record["results"])
    entries = {name: dataclasses.asdict(one) for name, one in made.items()}
    for entry in entries.values():
        del entry["share"]  # of other records only, see `best`
        if entry["spread"] is None:
            del entry["spread"]
    return plain({**record, "findings": entries})


def path(paper: Paper, study: Study, scale: str) -> Path:
    """Return the path of a stored record, whether it exists or not."""
    return RESULTS / paper.name / f"{study.name}.{scale}.json"


def picture(paper: Paper, study: Study) -> Path:
    """Return the path of the figure of a study's best record."""
    return RESULTS / paper.name / f"{study.name}.svg"


def stored(paper: Paper, study: Study) -> dict[str, Record]:
    """Return the stored records of a study by scale, the largest last."""
    paths = {scale: path(paper, study, scale) for scale in SCALES}
    return {scale: json.loads(p.read_text()) for scale, p in paths.items() if p.is_file()}


def best(paper: Paper, study: Study) -> Record | None:
    """Return the stored record of the largest scale, or None.

    What it has not found, because some settings were too long to run, smaller ones have: such a
    finding says its own share of the paper's size. Of a single run the error is taken
    from shorter ones, where those were several: they average fewer draws, and vary more.
    """
    found = list(stored(paper, study).values())
    if not found:
        return None
    *smaller, largest = found
    findings, borrowed = dict(largest["findings"]), {}
    for record in reversed(smaller):
        share = study.shares.get(record["scale"], "")
        missing = {n: entry for n, entry in record["findings"].items() if n not in findings}
        for name in findings.keys() & record["findings"].keys():
            findings[name] = _with_error(findings[name], record["findings"][name].get("spread"))
        findings |= {name: {**entry, "share": share} for name, entry in missing.items()}
        if missing:
            borrowed[record["scale"]] = record["commit"], sorted(missing)
    return {**largest, "findings": findings, "borrowed": borrowed}


def _with_error(entry: Record, spread: float | None) -> Record:
    """Return the finding of a single run with the error of shorter ones; others unchanged."""
    known = entry.get("value"), spread
    if None in known or entry.get("error") is not None or entry.get("law") is not None:
        return entry
    text = f"{entry['value']:.4g} ± {spread:.2g}, by shorter runs"
    return {**entry, "error": spread, "shown": entry.get("shown") or text}


def write(record: Any, target: Path) -> None:
    """Write a record, or a part of one, to a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")


def say(text: str) -> None:
    """Print one line of progress, at once."""
    print(text, flush=True)


def plain(value: Any) -> Any:
    """Return the value in JSON's own types, floats to five significant digits."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.5g}") if value == value else None
    return value


def _processor_seconds() -> float:
    """Return the processor time of this process and of those that it started and that ended."""
    return sum(os.times()[:4])


def _commit() -> str:
    """Return the commit that ran, with a + where files differ from it."""
    programs = ["--", "src", "experiments", ":!experiments/results"]

    def git(*arguments: str) -> str:
        told = subprocess.run(
            ["git", "-C", str(ROOT.parent), *arguments], capture_output=True, text=True, check=False
        )
        return told.stdout.strip()

    changed = git("status", "--porcelain", *programs)
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + ("+" if changed else "")


def _machine() -> str:
    import jax

    kind = jax.devices()[0].device_kind
    return f"{os.cpu_count()} cores ({platform.machine()}), JAX {jax.__version__} on {kind}"


def _checksums(name: str) -> dict[str, str]:
    """Return the first digits of the SHA-256 of each file of a data set."""
    import hashlib

    from consortia.data.downloads import directories

    for directory in directories():
        folder = directory / name
        if folder.is_dir():
            files = sorted(file for file in folder.iterdir() if file.is_file())
            return {f.name: hashlib.sha256(f.read_bytes()).hexdigest()[:12] for f in files}
    return {}
