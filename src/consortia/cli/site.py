"""``consortia site check | ledger``: what a site permits, and what has left it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Json

if TYPE_CHECKING:
    from consortia.federation.governance import StudyTerms, Verification

site = typer.Typer(help="What a site's policy permits, and what has left it.", no_args_is_help=True)


@site.command()
def check(
    policy: Annotated[
        Path | None, typer.Argument(metavar="POLICY", help="The site's policy file.")
    ] = None,
    study: Annotated[
        Path | None, typer.Option(metavar="STUDY.toml", help="Would the policy permit this study?")
    ] = None,
    app: Annotated[
        Path | None,
        typer.Option(
            metavar="APP", help="Would it permit this Flower app? Its folder, or its .fab file."
        ),
    ] = None,
    two_sites: Annotated[
        bool,
        typer.Option("--two-sites", help="Propose a policy for a study of two sites, too."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Validate a policy; say what a study requires, and whether the policy permits it.

    Without POLICY print a policy that permits the study and nothing else.
    """
    with reported(as_json):
        from consortia.errors import InputError, PolicyError
        from consortia.federation.governance import load_policy
        from consortia.federation.governance.proposal import proposed

        if study is not None and app is not None:
            raise InputError("give --study or --app, not both.")
        found = None if policy is None else load_policy(policy)
        terms, of_app = _terms(study, app)
        if terms is None:
            if found is None:
                raise InputError("give a policy, or --study, or --app.")
            typer.echo(f"{policy} is a policy. Give --study or --app to ask it about a study.")
            return
        if found is None:
            typer.echo(proposed(terms, of_app, two_sites=two_sites), nl=False)
            return
        try:
            found.permits(terms, of_app)
        except PolicyError as error:
            if as_json:
                answer = {"app": of_app, "permitted": False, "rules": error.rules}
                typer.echo(json.dumps(_plain(terms) | answer))
            else:
                _show(terms, of_app)
            raise
        if as_json:
            typer.echo(json.dumps(_plain(terms) | {"app": of_app, "permitted": True, "rules": []}))
            return
        _show(terms, of_app)
        typer.echo(f"{policy} permits it, at a site with {found.minimum_rows} rows or more.")


@site.command()
def ledger(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The ledger, or its folder.")],
    run: Annotated[str | None, typer.Option(help="Show this run only.")] = None,
    head: Annotated[
        str | None, typer.Option(help="A head that was noted before: must be in the ledger.")
    ] = None,
    lines: Annotated[int, typer.Option(min=0, help="How many of the last lines to show.")] = 20,
    as_json: Json = False,
) -> None:
    """Show what has left the site, and verify that no line was changed, removed or inserted."""
    with reported(as_json):
        from consortia.errors import LedgerError
        from consortia.federation.governance import verify
        from consortia.federation.governance.gate import LEDGER

        path = file / LEDGER if file.is_dir() else file
        found = verify(path)
        totals = _totals(found, run)
        if as_json:
            typer.echo(json.dumps(_plain_ledger(found, totals)))
        else:
            _show_ledger(found, totals, run, lines)
        if found.problem is not None:
            raise LedgerError(f"{path}, line {found.line}: {found.problem}.")
        if head is not None and head not in {"0" * 64, *(entry.hash for entry in found.entries)}:
            raise LedgerError(
                f"{path}: no line has the hash {head}: lines were removed from the end, or the "
                "ledger was written anew."
            )
        if as_json:
            return
        for note in found.notes:
            typer.echo(f"warning: {note}", err=True)
        typer.echo(f"The chain is whole: {len(found.entries)} lines. Head: {found.head}")


# --- terms ---------------------------------------------------------------------------------------


def _terms(study: Path | None, app: Path | None) -> tuple[StudyTerms | None, str | None]:
    """Return the terms of a study or of the study in an app, and the hash of the app."""
    from consortia.federation.governance import terms_of
    from consortia.study.build import load_study

    if study is not None:
        return terms_of(load_study(study)), None
    if app is None:
        return None, None
    from consortia.federation.bundle import app_hash, study_of

    with study_of(app) as path:
        terms = terms_of(load_study(path))
    return terms, app_hash(app)


def _plain(terms: StudyTerms) -> dict[str, Any]:
    from dataclasses import asdict

    return json.loads(json.dumps({"terms": asdict(terms)}))


def _show(terms: StudyTerms, app: str | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    from consortia.federation.governance.terms import KINDS
    from consortia.report.terminal import console_of

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_row("study", terms.study)
    table.add_row("model", terms.model)
    if app is not None:
        table.add_row("app", app)
    table.add_row("algorithm", terms.algorithm)
    for name, value in terms.parameters.items():
        table.add_row("", escape(f"{name} = {value}"))
    table.add_row("rounds", f"{terms.rounds:,}, the warm-up included")
    for number, kind in enumerate(terms.messages):
        table.add_row("" if number else "messages", f"{kind}: {KINDS[kind]}")
    table.add_row("version", terms.version)
    console_of().print("[bold]The study requires[/]", table, "", sep="\n")


# --- what has left -------------------------------------------------------------------------------


def _totals(found: Verification, run: str | None) -> list[tuple[str, str, int, int]]:
    """Return (run, kind, messages, bytes) of what has left."""
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for entry in found.entries:
        if entry.left and run in (None, entry.run):
            key = (entry.run, entry.kind or entry.event)
            count, size = totals.get(key, (0, 0))
            totals[key] = (count + 1, size + entry.bytes)
    return [(*key, *value) for key, value in totals.items()]


def _plain_ledger(found: Verification, totals: list[tuple[str, str, int, int]]) -> dict[str, Any]:
    names = ("run", "kind", "messages", "bytes")
    return {
        "lines": len(found.entries),
        "head": found.head,
        "problem": found.problem,
        "line": found.line,
        "notes": list(found.notes),
        "totals": [dict(zip(names, row, strict=True)) for row in totals],
    }


def _show_ledger(
    found: Verification, totals: list[tuple[str, str, int, int]], run: str | None, lines: int
) -> None:
    from rich.markup import escape
    from rich.table import Table

    from consortia.report.terminal import console_of

    console = console_of()
    shown = [entry for entry in found.entries if run in (None, entry.run)]
    table = Table(
        "line", "time (UTC)", "run", "event", "kind", "round", "bytes", "SHA-256", box=None
    )
    for entry in shown[len(shown) - min(lines, len(shown)) :]:
        table.add_row(
            str(entry.index + 1),
            escape(entry.time[:19].replace("T", " ")),
            escape(entry.run),
            escape(entry.event),
            escape(entry.kind),
            "" if entry.round is None else str(entry.round),
            f"{entry.bytes:,}" if entry.left else "",
            entry.sha256[:12] if entry.left else "",
        )
    if lines:
        if len(shown) > lines:
            console.print(f"The last {lines} of {len(shown)} lines (--lines shows more):")
        console.print(table, "", sep="\n")
    sums = Table("run", "kind", "messages", "bytes", box=None)
    for of_run, kind, count, size in totals:
        sums.add_row(escape(of_run), escape(kind), f"{count:,}", f"{size:,}")
    console.print("[bold]What has left the site[/]", sums, sep="\n")
    console.print(
        f"{sum(row[2] for row in totals):,} messages, {sum(row[3] for row in totals):,} bytes in "
        "all.",
        "",
        sep="\n",
    )
