"""``consortia letter open | answer | next``: a study by files, without a network."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortia.cli.exits import exit_code, reported
from consortia.cli.options import Json, StudyFile

if TYPE_CHECKING:
    from consortia.federation.letters.answering import Answered, Shown
    from consortia.federation.letters.coordinating import Progress

LOOK_SECONDS = 2.0
"""Seconds between two looks into a folder that is watched."""

DECLINED = 1

UNREGISTERED = (
    "note: the study is not registered: each site sends means, spreads and levels of its columns, "
    "in a separate letter. To state them beforehand: consortia register"
)

letter = typer.Typer(
    help="A study by letters: files in a shared folder, by mail or on a stick.",
    no_args_is_help=True,
)
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The coordinator's folder.")]
Watch = Annotated[
    bool, typer.Option("--watch", help="Keep watching, every two seconds, until the end.")
]


@letter.command("open")
def open_(
    study: StudyFile,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The coordinator's folder; by default letters/NAME."),
    ] = None,
    shared: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Shared folder of letters and answers; by default FOLDER/post.",
        ),
    ] = None,
    x64: Annotated[bool, typer.Option("--x64", help="Compute with 64 bits, at all sites.")] = False,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The coordinator's key and the public keys of all."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the first letter to each site of a study; the coordinator does it once."""
    with reported(False):
        from consortia.federation.letters.coordinating import Coordinator, open_study
        from consortia.study.build import load_study

        given = load_study(study)
        if given.model.formula is not None and given.registered is None:
            typer.echo(f"{UNREGISTERED} {study} --dictionary COLUMNS.csv", err=True)
        home = folder or Path("letters") / given.name
        open_study(study, home, shared or home / "post", x64=x64, keys=keys)
        _show(Coordinator(home).proceed(), home, shared or home / "post", as_json)


@letter.command("next")
def next_(
    folder: Folder,
    answers: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[ANSWER]...", help="Answers that arrived elsewhere, such as by mail."
        ),
    ] = None,
    again: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE", help="Set aside the last answer of SITE, which then answers again."
        ),
    ] = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Read the answers that have come; write the next letters, or the result."""
    with reported(False):
        from consortia.federation.letters.coordinating import Coordinator

        coordinator = Coordinator(folder)
        while True:
            progress, again = coordinator.proceed(answers or (), again or ()), None
            if progress.aside or progress.accepted or progress.result or not watch:
                _show(progress, folder, coordinator.shared, as_json)
            if progress.result is not None or not watch:
                return
            time.sleep(LOOK_SECONDS)


def _show(progress: Progress, folder: Path, shared: Path, as_json: bool) -> None:
    if as_json:
        plain = {
            "accepted": progress.accepted,
            "refused": {str(path): text for path, text in progress.refused.items()},
            "aside": progress.aside,
            "awaited": progress.awaited,
            "result": None if progress.result is None else str(progress.result),
        }
        typer.echo(json.dumps(plain))
        return
    for site, number in progress.accepted:
        typer.echo(f"answer {number} of {site} was accepted")
    for path, reason in progress.refused.items():
        typer.echo(f"warning: {path} is not accepted: {reason}.", err=True)
    for site, (number, reason) in progress.aside.items():
        text = f"answer {number} of {site} was set aside: {reason}. {site} may answer it again"
        typer.echo(f"warning: {text}.", err=True)
    if progress.result is not None:
        summary = progress.result / "summary.txt"
        if summary.exists():
            typer.echo(summary.read_text(encoding="utf-8"))
        typer.echo(f"The result is in {progress.result}.")
        return
    for site, number in progress.awaited.items():
        typer.echo(f"{site}: letter {number} is in {shared}; waiting for the answer")
    typer.echo(f"Once an answer has arrived: consortia letter next {folder}")


@letter.command()
def answer(
    request: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="The letter, or a folder of letters.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The rows of the site; needed for the first letter."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the site's policy and ledger; by default ~/.consortia/sites/NAME.",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="POLICY", help="By default site-policy.toml in the site's folder."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The answer; by default next to REQUEST.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Answer without confirmation.")] = False,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Show what a letter asks and what would leave; ask; write one answer."""
    with reported(False):
        from consortia.engines.letters.sealing import LetterError
        from consortia.errors import InputError
        from consortia.federation.letters.answering import Declined, answer_letter

        def permit(shown: Shown) -> bool:
            if not as_json:
                _show_request(shown, data)
            return yes or typer.confirm("Answer this letter?", err=True)

        if watch and not request.is_dir():
            raise InputError("--watch: give the folder where letters arrive, not a letter.")
        given: dict[str, Any] = {"data": data, "folder": folder, "policy": policy}
        done: set[bytes] = set()
        while True:
            for path in _letters(request, done):
                content = path.read_bytes()
                done.add(content)
                try:
                    answered = answer_letter(path, permit=permit, output=output, **given)
                except Declined:
                    typer.echo("Nothing was written, and nothing left the site.", err=True)
                    raise typer.Exit(DECLINED) from None
                except LetterError as error:
                    if not watch:
                        raise
                    # perhaps not all of it has come: it is read again when it has changed
                    typer.echo(f"warning: {error}", err=True)
                    continue
                _show_answered(answered, as_json)
                if answered.error is not None and not watch:
                    raise typer.Exit(exit_code(answered.error))
            if not watch:
                return
            time.sleep(LOOK_SECONDS)


def _letters(request: Path, done: set[bytes]) -> list[Path]:
    """Return the letters that are to be answered: in a folder those without an answer."""
    from consortia.engines.letters.sealing import ANSWER, QUESTION, SUFFIX
    from consortia.errors import InputError

    if not request.is_dir():
        if not request.exists():
            raise InputError(f"{request}: no such letter.")
        return [request]
    questions = sorted(request.glob(f"{QUESTION}-*{SUFFIX}"))
    answers = [path.with_name(path.name.replace(QUESTION, ANSWER, 1)) for path in questions]
    there = zip(questions, answers, strict=True)
    return [p for p, a in there if not a.exists() and p.read_bytes() not in done]


def _show_request(shown: Shown, data: Path | None) -> None:
    if shown.study is not None:
        from consortia.cli.site import show_study

        show_study(shown.study, data, shown.folder, shown.site)
    for line in shown.lines:
        typer.echo(line)


def _show_answered(reply: Answered, as_json: bool) -> None:
    from consortia.core.printable import printable

    error = None if reply.error is None else str(reply.error)
    if as_json:
        plain = {"answer": str(reply.path), "site": reply.site, "number": reply.number}
        plain |= {"bytes": reply.bytes, "left": list(reply.left), "refused": error}
        typer.echo(json.dumps(plain))
        return
    for text in reply.left:
        typer.echo(f"sent with it: {text}")
    if error is not None:
        typer.echo(f"error: {printable(error, lines=True)}", err=True)
        typer.echo(
            f"This site has refused letter {reply.number}, and {reply.path} says so without the "
            "reason. Fix the cause and answer the letter again, or send the file to inform the "
            "coordinator.",
            err=True,
        )
        return
    typer.echo(f"answer {reply.number} of {reply.site}: {reply.path} ({reply.bytes:,} bytes)")
