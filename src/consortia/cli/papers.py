"""``consortia papers``: the five papers' figures and tables, redrawn, with computed verdicts.

Their programs live beside the package in the source tree and are not part of the wheel.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Json
from consortia.errors import InputError

CLAIMS = Path("experiments") / "claims.py"
OUTPUT = Path("runs/papers")


class Scale(StrEnum):
    """The part of a paper that is run."""

    quick = "quick"
    small = "small"
    full = "full"


papers = typer.Typer(help="Redraw the figures and tables of the five papers.")


@papers.callback(invoke_without_command=True)
def listed(context: typer.Context, as_json: Json = False) -> None:
    """List the papers: their studies, the available data, and the verdicts of the stored runs."""
    if context.invoked_subcommand is not None:
        return
    with reported(as_json):
        claims, records = _modules("claims", "records")
        entries = [
            _entry(records, paper, study)
            for paper in map(claims.read, claims.PAPERS)
            for study in paper.studies
        ]
        if as_json:
            content = {"scales": claims.MEANINGS, "studies": entries}
            typer.echo(json.dumps(content, indent=1, ensure_ascii=False))
            return
        _show(entries, claims.MEANINGS)


@papers.command()
def run(
    name: Annotated[str | None, typer.Argument(help="The paper; or pass --all.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All five papers.")] = False,
    figure: Annotated[
        str | None, typer.Option(help="The number of a figure, or the name of a study.")
    ] = None,
    scale: Annotated[Scale, typer.Option(help="Size of the experiments.")] = Scale.quick,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and samplers.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of records and figures.")] = OUTPUT,
    store: Annotated[
        bool,
        typer.Option(
            "--store", help="Keep the records as the project's own results; includes --resume."
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Keep finished parts of long runs under --out, and reuse those of an earlier run "
            "of the same commit.",
        ),
    ] = False,
) -> None:
    """Run the programs of a paper, and draw its figures with the paper's numbers and verdicts."""
    with reported(False):
        claims, records = _modules("claims", "records")
        if (name is None) != every:
            raise InputError("name one paper, or pass --all.")
        if name is not None and name not in claims.PAPERS:
            raise InputError(f"no paper is called {name!r}; there are {', '.join(claims.PAPERS)}.")
        if every and scale is Scale.quick and not store:  # long runs print as they go
            options = [f"--seed={seed}", f"--out={out}", *["--resume"] * resume]
            options += [] if figure is None else [f"--figure={figure}"]
            _run_all([claims.read(each) for each in claims.PAPERS], options)
            return
        for named in claims.PAPERS if every else (name,):
            paper = claims.read(named)
            chosen = paper.chosen(figure)
            if not chosen:
                known = [text for study in paper.studies for text in (*study.figures, study.name)]
                raise InputError(f"{named} has no figure {figure!r}; there are {', '.join(known)}.")
            for study in chosen:
                parts = contextlib.nullcontext()
                if resume or store:
                    parts = records.parts_in(records.parts_of(paper, study, scale.value, seed, out))
                with parts:
                    _redraw(paper, study, scale.value, seed, out, store)
        if store:
            _write_pages()


@papers.command()
def write() -> None:
    """Write RESULTS.md, cards and figures again from the claims and the results of stored runs.

    What was found is computed again from the results. Quotes are looked for in the papers,
    where CONSORTIA_PAPERS, or papers beside CONSORTIA_DATA, has them.
    """
    with reported(False):
        _write_pages()


def _run_all(papers: Sequence[Any], options: Sequence[str]) -> None:
    """Run papers in processes, as many at once as processors; those that measure times alone."""

    def ended(paper: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "consortia", "papers", "run", paper.name, *options]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True)

    alone = [paper for paper in papers if any(study.alone for study in paper.studies)]
    longest = sorted(papers, key=lambda paper: -len(paper.studies))
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ends = pool.map(ended, [paper for paper in longest if paper not in alone])
        for process in itertools.chain(ends, map(ended, alone)):
            typer.echo(process.stdout, nl=False)
            failed = failed or process.returncode
    if failed:  # it has said why
        raise typer.Exit(failed)


def _redraw(paper: Any, study: Any, scale: str, seed: int, out: Path, store: bool) -> None:
    """Run a study and draw it; where its data are absent, draw the nearest stored record."""
    from consortia.data.downloads import DatasetMissing

    records, drawing = _modules("records", "drawing")
    typer.echo(f"{paper.name}, {study.name}: {study.title}")
    remark = ""
    try:
        record = records.run(paper, study, scale, seed)
    except DatasetMissing as absent:
        typer.echo(f"  {absent}", err=True)
        stored = records.best(paper, study)
        if stored is None:
            return
        record, remark = stored, f"data absent: stored run {stored['commit']}"
    else:
        target = out / paper.name / f"{study.name}.{scale}.json"
        records.write(record, records.path(paper, study, scale) if store else target)
    findings, share = records.findings(record), study.shares.get(record["scale"], "")
    for claim in study.claims:
        answer = findings.get(claim.id)
        text = "" if answer is None else f"{answer.text}; "
        typer.echo(f"  {claim.quantity}: {text}paper {claim.paper}: {claim.verdict(answer, share)}")
    drawing.save(paper, study, record, out / paper.name / f"{study.name}.{scale}.png", remark)


def _write_pages() -> None:
    claims, records, drawing, pages, sources = _modules(
        "claims", "records", "drawing", "pages", "sources"
    )
    for paper in map(claims.read, claims.PAPERS):
        text = sources.text_of(paper.name)
        wrong = [] if text is None else sources.faults(paper, text)
        if wrong:
            raise InputError("; ".join(wrong))
        for study in paper.studies:
            for scale, stored in records.stored(paper, study).items():
                again = records.found_again(paper, study, stored)
                records.write(again, records.path(paper, study, scale))
            record = records.best(paper, study)
            if record is not None:
                drawing.save(paper, study, record, records.picture(paper, study))
        drawing.save_sheet(paper, records.RESULTS / paper.name / "sheet.svg")
    for path, text in pages.pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        typer.echo(f"wrote {path}")


def _modules(*names: str) -> list[ModuleType]:
    """Return modules of the source tree's ``experiments``.

    Raises:
        InputError: neither the current folder nor the one of this package is a source tree.
    """
    for root in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if (root / CLAIMS).is_file():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return [importlib.import_module(f"experiments.{name}") for name in names]
    raise InputError(
        "the papers' programs are in the source tree, not in the installed package: get the "
        "source and run the command from its root."
    )


def _entry(records: Any, paper: Any, study: Any) -> dict[str, Any]:
    """Return a study as plain values, with its available data and its verdicts."""
    record = records.best(paper, study)
    findings = {} if record is None else records.findings(record)
    share = "" if record is None else study.shares.get(record["scale"], "")
    return {
        "paper": paper.name,
        "study": study.name,
        "repeats": study.title,
        "figures": study.figures,
        "data": {name: present(name) for name in study.data},
        "scale": None if record is None else record["scale"],
        "verdicts": {c.id: c.verdict(findings.get(c.id), share) for c in study.claims},
    }


def present(name: str) -> bool:
    """Return True if the files of a data set are here; checksums are compared in reading.

    A set has one folder of its name, in CONSORTIA_DATA or in the cache.
    """
    from consortia.data.downloads import directories

    folders = [directory / name for directory in directories()]
    return any(folder.is_dir() and any(folder.iterdir()) for folder in folders)


def _show(entries: list[dict[str, Any]], scales: dict[str, str]) -> None:
    from collections import Counter

    from rich.markup import escape
    from rich.table import Table

    from consortia.report.terminal import console_of

    shown = Table(title="The five papers", title_justify="left", show_lines=True)
    for head in ("paper", "repeats", "data", "stored verdicts"):
        shown.add_column(head, overflow="fold")
    for entry in entries:
        data = [f"{name}: {'here' if here else 'absent'}" for name, here in entry["data"].items()]
        kinds = Counter(text.partition(":")[0] for text in entry["verdicts"].values())
        verdicts = [f"{number} {kind}" for kind, number in kinds.items()]
        repeats = f"{entry['repeats']} (--figure {entry['study']})"
        cells = (entry["paper"], repeats, "\n".join(data) or "none needed", "\n".join(verdicts))
        shown.add_row(*map(escape, cells))
    console = console_of()
    console.print(shown)
    text = "; ".join(f"{scale}: {meaning}" for scale, meaning in scales.items())
    console.print(f"consortia papers run NAME --scale ...: {text}.", markup=False)
