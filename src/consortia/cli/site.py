"""``consortia site check | key | rehearse | ledger``: what a site permits, risks, and has sent."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortia.cli.exits import REFUSED, UNKNOWN, reported
from consortia.cli.options import Json

if TYPE_CHECKING:
    from consortia.federation.governance import StudyTerms, Verification
    from consortia.federation.governance.declared import Declared

UNBOUND = (
    "apps = ['any'] lets a server send any code, so the hashes of studies and models protect "
    "nothing: they cover files that import statements reach, not code that is loaded in other "
    "ways. Give the hash of the app."
)

site = typer.Typer(
    help="A site's policy, keys and ledger, and attacks on its own rows.", no_args_is_help=True
)


SiteName = Annotated[
    str | None, typer.Option("--site", help="The site's name in the study; by default FILE's.")
]


@site.command()
def check(
    policy: Annotated[
        Path | None,
        typer.Argument(metavar="POLICY", help="The site's policy file, or a study as of --study."),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(metavar="STUDY.toml", help="Check whether the policy permits this study."),
    ] = None,
    app: Annotated[
        Path | None,
        typer.Option(
            metavar="APP", help="Check whether it permits this Flower app: a folder or a .fab file."
        ),
    ] = None,
    two_sites: Annotated[
        bool,
        typer.Option("--two-sites", help="Also propose a policy if the study has only two sites."),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The rows of the site, which are only counted; nothing leaves."
        ),
    ] = None,
    identities: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Public keys of coordinator and sites, for the policy proposed."
        ),
    ] = None,
    name: SiteName = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The site's folder, to compare with studies it answered."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Validate a policy; say in sentences what a study wants, and whether the policy permits it.

    Without POLICY print a policy that permits the study and nothing else (the sentences then go to
    the terminal's error output, so that the policy can be written to a file).
    """
    with reported(as_json):
        from consortia.core.arguments import read_toml
        from consortia.engines.messages.identities import lines_in
        from consortia.errors import InputError, PolicyError, warn
        from consortia.federation.governance import load_policy
        from consortia.federation.governance.proposal import proposed

        if study is not None and app is not None:
            raise InputError("give --study or --app, not both.").at("study")
        if policy is not None and study is app is None and "data" in read_toml(policy, "policy")[1]:
            study, policy = policy, None
        site_policy = None if policy is None else load_policy(policy)
        if (
            site_policy is not None
            and site_policy.apps == ["any"]
            and (site_policy.studies or site_policy.models)
        ):
            warn(UNBOUND)
        terms, of_app, explained, limits = _terms(study, app, data, folder, name)
        if terms is None:
            if site_policy is None:
                raise InputError("give a policy, or --study, or --app.")
            typer.echo(f"{policy} is a policy. Give --study or --app to compare it with a study.")
            return
        if site_policy is None:
            if not as_json:
                _show(terms, of_app, explained, err=True)
            if identities is not None:
                limits["keys"] = lines_in(identities)
            typer.echo(proposed(terms, of_app, two_sites=two_sites, **limits), nl=False)
            return
        answer = {"terms": asdict(terms), "app": of_app}
        try:
            site_policy.permits(terms, of_app)
            site_policy.check_keys(terms)
        except PolicyError as error:
            if as_json:
                typer.echo(json.dumps(answer | {"permitted": False, "rules": error.rules}))
            else:
                _show(terms, of_app, explained)
            raise
        if as_json:
            typer.echo(json.dumps(answer | {"permitted": True, "rules": []}))
            return
        _show(terms, of_app, explained)
        typer.echo(f"{policy} permits it, at a site with {site_policy.minimum_rows} rows or more.")


@site.command()
def key(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the site or of the coordinator.")
    ],
    name: Annotated[
        str | None, typer.Option("--site", help="The site's name in studies; by default FOLDER's.")
    ] = None,
    coordinator: Annotated[
        bool, typer.Option("--coordinator", help="Make the coordinator's key.")
    ] = False,
    study: Annotated[
        Path | None,
        typer.Option(
            metavar="STUDY.toml",
            help="Prepare the key of secure sums for this registered study and the rows of --data.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The rows of the site, for --study.")
    ] = None,
) -> None:
    """Make the key by which others know a site or the coordinator; print the line for policies.

    With --study print the line that saves the sites of a registered study a letter, too.
    """
    with reported(False):
        from consortia.engines.messages.identities import (
            COORDINATOR,
            FILE,
            RING,
            SUMS,
            make_identity,
        )
        from consortia.errors import InputError

        site_name = folder.resolve().name if name is None else name
        if (study is None) != (data is None) or (study is not None and coordinator):
            raise InputError("--study and --data are used together, at a site.")
        if study is not None and data is not None:
            from consortia.federation.app import prepared_key
            from consortia.study.build import load_study

            line = f'"{site_name}" = "{prepared_key(load_study(study), site_name, data, folder)}"'
            typer.echo(f"For the coordinator's file {RING} (below [{SUMS}]), of these rows only:")
            typer.echo(line)
            return
        public = make_identity(folder).hex()
        typer.echo(f"{folder / FILE}: keep it secret; whoever has it can impersonate {site_name}")
        if coordinator:
            typer.echo(f"For every policy, and {folder / RING} (above [identities]):")
            typer.echo(f'{COORDINATOR} = "{public}"')
        else:
            typer.echo("For every policy, and the coordinator's file (below [identities]):")
            typer.echo(f'"{site_name}" = "{public}"')


@site.command()
def ledger(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The ledger, or its folder.")],
    run: Annotated[str | None, typer.Option(help="Show this run only.")] = None,
    head: Annotated[
        str | None, typer.Option(help="An earlier head, which must be in the ledger.")
    ] = None,
    message: Annotated[
        str | None,
        typer.Option(
            help="SHA-256 of a message (from last_messages of a run's record), which must be in "
            "the ledger."
        ),
    ] = None,
    lines: Annotated[int, typer.Option(min=0, help="Number of last lines to show.")] = 20,
    as_json: Json = False,
) -> None:
    """Show what has left the site, and verify that no line was changed, removed or inserted."""
    with reported(as_json):
        from consortia.errors import LedgerError
        from consortia.federation.governance import verify
        from consortia.federation.governance.gate import LEDGER

        path = file / LEDGER if file.is_dir() else file
        verified = verify(path)
        totals = _totals(verified, run)
        if as_json:
            typer.echo(json.dumps(_plain_ledger(verified, totals)))
        else:
            _show_ledger(verified, totals, run, lines)
        if verified.problem is not None:
            broken = LedgerError(f"{path}, line {verified.line}: {verified.problem}.")
            raise broken.at(file=str(path), line=verified.line)
        if head is not None and head not in {"0" * 64, *(entry.hash for entry in verified.entries)}:
            raise LedgerError(
                f"{path}: no line has the hash {head}: lines were removed from the end, or the "
                "ledger was rewritten."
            )
        if message is not None and message not in {entry.sha256 for entry in verified.entries}:
            raise LedgerError(
                f"{path}: no line records the message {message}, which the server has: an older "
                "copy of the ledger was restored, or it was rewritten."
            )
        if as_json:
            return
        for note in verified.notes:
            typer.echo(f"warning: {note}", err=True)
        typer.echo(f"The chain is intact: {len(verified.entries)} lines. Head: {verified.head}")


@site.command()
def rehearse(
    data: Annotated[Path, typer.Option(metavar="FILE", help="The rows of the site.")],
    study: Annotated[Path | None, typer.Argument(metavar="STUDY", help="As --study.")] = None,
    named: Annotated[
        Path | None,
        typer.Option(
            "--study", metavar="STUDY", help="The study file, or an app's folder or .fab file."
        ),
    ] = None,
    name: SiteName = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="POLICY", help="The site's policy; by default the proposed one."),
    ] = None,
    week: Annotated[
        bool,
        typer.Option(
            "--week",
            help="Also run ordinary studies in sequence: another seed, one covariate fewer, an "
            "updated export.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Try the known attacks on the site's own rows, before it takes part; nothing leaves.

    Copies of FILE stand for the other sites. Of an attack that cannot be tried it says UNKNOWN; if
    an honest run would end without a result it says what to change. Both have exit codes.
    """
    with reported(as_json), _study_in(study, named) as path:
        from consortia.federation.rehearsal import rehearsed

        findings, unknown, refused = [], 0, False
        for finding in rehearsed(path, data, site=name, policy=policy, week=week):
            plain = {"attack": finding.attack, "known": finding.known, "sentence": finding.sentence}
            findings.append(plain | finding.numbers)
            unknown += not finding.known
            refused = refused or finding.refused
            if not as_json:
                heading = typer.style(
                    f"{finding.attack[:1].upper()}{finding.attack[1:]}", bold=True
                )
                mark = "" if finding.known else typer.style("UNKNOWN, ", fg=typer.colors.YELLOW)
                typer.echo(f"{heading}: {mark}{finding.sentence}\n")
        if as_json:
            typer.echo(json.dumps(findings))
        if refused:
            raise typer.Exit(REFUSED)
        if unknown:
            raise typer.Exit(UNKNOWN)


@contextlib.contextmanager
def _study_in(*given: Path | None) -> Iterator[Path]:
    """Yield the study file that is given once: the file itself, or that of an app."""
    from consortia.errors import InputError

    if len(paths := [path for path in given if path is not None]) != 1:
        raise InputError("give one study: --study STUDY.toml.").at("study")
    path = paths[0]
    if path.suffix == ".toml":
        yield path
        return
    from consortia.federation.bundle import study_of

    with study_of(path) as study:
        yield study


def show_study(path: Path, data: Path | None, folder: Path | None, name: str | None) -> None:
    """Print what a study asks of a site, in sentences; compare it with others in its folder."""
    terms, of_app, explained, _ = _terms(path, None, data, folder, name)
    assert terms is not None
    _show(terms, of_app, explained)


# --- terms ---------------------------------------------------------------------------------------


def _terms(
    study: Path | None, app: Path | None, data: Path | None, folder: Path | None, name: str | None
) -> tuple[StudyTerms | None, str | None, list[tuple[str, str]], dict[str, Any]]:
    """Return the terms of a study or of that in an app, its hash, sentences, and counted limits."""
    from consortia.federation.bundle import app_hash, study_of

    if study is not None:
        return _explained(study, data, None, folder, name)
    if app is None:
        return None, None, [], {}
    with study_of(app) as path:
        return _explained(path, data, app_hash(app), folder, name)


def _explained(
    path: Path, data: Path | None, hashed: str | None, folder: Path | None, name: str | None
) -> tuple[StudyTerms, str | None, list[tuple[str, str]], dict[str, Any]]:
    from consortia.federation.governance import terms_of
    from consortia.federation.governance.approved import answered_before, differences
    from consortia.federation.governance.declared import declared_of
    from consortia.federation.governance.early_end import beforehand
    from consortia.federation.governance.explanation import sentences
    from consortia.study.build import load_study

    study = load_study(path)
    terms = terms_of(study)
    rows = columns = choices = None
    numbers: list[Declared] = []
    limits: dict[str, Any] = {}
    if data is not None and study.data.files is not None:
        # without changes of some site's values every site reads a file in the same way
        named = name is not None or study.harmonise or data.stem in study.data.site_names
        index = study.data.index_of(name or data.stem) if named else 0
        facts, choices = study.contribution(data, index), study.row_choices(data, index)
        rows = facts.rows
        columns = sum(math.prod(shape) for shape, _ in facts.arrays.values())
        numbers = declared_of(study, data, index)
        each = [number.proposed for number in numbers]
        limits = {"numbers": max(each), "per_value": sum(each) / facts.values}
    given: dict[str, Any] = {
        "rows": rows,
        "columns": columns,
        "numbers": numbers,
        "choices": choices,
    }
    if terms.measured:
        given["ends"] = beforehand(study, data, "" if data is None else name or data.stem)
    if folder is not None:
        given["before"] = differences(study, answered_before(folder, terms.study))
    explained = sentences(study, terms, **given)
    return terms, hashed, explained, limits


def _show(
    terms: StudyTerms, app: str | None, explained: list[tuple[str, str]], *, err: bool = False
) -> None:
    """Print the sentences, and behind them what they stand for, for whoever compares."""
    from rich.markup import escape
    from rich.table import Table

    from consortia.core.printable import printable
    from consortia.report.terminal import console_of, grid_of

    table = grid_of(((heading, printable(text)) for heading, text in explained), no_wrap=True)
    exact = Table.grid(padding=(0, 2))
    exact.add_row("study", terms.study)
    exact.add_row("model", terms.model)
    if app is not None:
        exact.add_row("app", app)
    values = "; ".join(f"{name} = {value}" for name, value in terms.parameters.items())
    exact.add_row("algorithm", escape(printable(f"{terms.algorithm}: {values}")))
    exact.add_row("version", terms.version)
    console_of(error=err).print(table, "", "To compare with others:", exact, "", sep="\n")


# --- what has left -------------------------------------------------------------------------------


def _totals(verified: Verification, run: str | None) -> list[tuple[str, str, int, int]]:
    """Return (run, kind, messages, bytes) of what has left."""
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for entry in verified.entries:
        if entry.left and run in (None, entry.run):
            key = (entry.run, entry.kind or entry.event)
            count, size = totals.get(key, (0, 0))
            totals[key] = (count + 1, size + entry.bytes)
    return [(*key, *value) for key, value in totals.items()]


def _plain_ledger(
    verified: Verification, totals: list[tuple[str, str, int, int]]
) -> dict[str, Any]:
    names = ("run", "kind", "messages", "bytes")
    return {
        "lines": len(verified.entries),
        "head": verified.head,
        "problem": verified.problem,
        "line": verified.line,
        "notes": list(verified.notes),
        "totals": [dict(zip(names, row, strict=True)) for row in totals],
    }


def _show_ledger(
    verified: Verification, totals: list[tuple[str, str, int, int]], run: str | None, lines: int
) -> None:
    from rich.markup import escape
    from rich.table import Table

    from consortia.report.terminal import console_of

    console = console_of()
    shown = [entry for entry in verified.entries if run in (None, entry.run)]
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
