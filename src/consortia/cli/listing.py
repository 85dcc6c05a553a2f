"""``consortia algorithms``, ``examples`` and ``schema``: what there is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Json
from consortia.errors import InputError
from consortia.store.durable import writing

if TYPE_CHECKING:
    from consortia.algorithms.registry import Entry, Setting

INSTALLED = Path(__file__).parent / "examples"
"""Folder of the examples in a wheel; in a source tree they are at its root."""


def algorithms(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show all details of this one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the algorithms and what they sample; with NAME one's bias, arguments and paper."""
    with reported(as_json):
        from consortia.algorithms.registry import ALGORITHMS, SETTINGS, explain_missing

        plain = None if name is None else name.lower().replace("-", "_")
        if name not in ALGORITHMS and plain in SETTINGS:
            _tell(plain, SETTINGS[plain], as_json)
            return
        if name is not None and name not in ALGORITHMS:
            raise InputError(f"unknown algorithm {name!r}: {explain_missing(name)}.")
        if as_json:
            facts = {
                algorithm: _facts(ALGORITHMS[algorithm])
                for algorithm in ALGORITHMS
                if name in (None, algorithm)
            }
            typer.echo(json.dumps(facts, indent=1, ensure_ascii=False))
        elif name is None:
            _list({algorithm: entry.claims.samples for algorithm, entry in ALGORITHMS.items()})
            typer.echo("\nDetails of one: consortia algorithms NAME. Start with few_rounds.")
        else:
            _show(name, ALGORITHMS[name])


def _tell(name: str, setting: Setting, as_json: bool) -> None:
    """Print how a method that has another name is done here."""
    from rich.markup import escape

    from consortia.algorithms.registry import ALGORITHMS
    from consortia.report.terminal import console_of

    example = ALGORITHMS[setting.algorithm].example | setting.arguments
    needed = {"name": setting.algorithm} | example
    if as_json:
        answer = {name: {"algorithm": setting.algorithm, "how": setting.how, "example": needed}}
        typer.echo(json.dumps(answer, indent=1, ensure_ascii=False))
        return
    console = console_of()
    console.print(f"[bold]{name}[/] here: {escape(setting.how)}")
    lines = [f"{key} = {json.dumps(value)}" for key, value in needed.items()]
    console.print("\nIn a study:\n\n[algorithm]", *lines, sep="\n", markup=False)
    console.print(f"\nMore: consortia algorithms {setting.algorithm}.")


def _facts(entry: Entry) -> dict[str, Any]:
    """Return everything about an algorithm as plain values."""
    from consortia.study.schema import argument_schemas

    claims = entry.claims
    return {
        "samples": claims.samples,
        "bias": claims.bias,
        "draw": claims.draw,
        "step_size": claims.step_size,
        "source": claims.source,
        "engines": list(entry.engines),
        "arguments": argument_schemas(entry.factory),
    }


def _list(texts: dict[str, str]) -> None:
    """Print a name and a text a line; what a line has no room for is cut."""
    from rich.markup import escape

    from consortia.report.terminal import console_of

    console, width = console_of(), max(map(len, texts))
    for name, text in texts.items():
        line = f"[bold]{name.ljust(width)}[/]  {escape(text)}"
        console.print(line, no_wrap=True, overflow="ellipsis")


def _show(name: str, entry: Entry) -> None:
    from rich.markup import escape
    from rich.table import Table

    from consortia.report.terminal import console_of, grid_of

    values, console = _facts(entry), console_of()
    heads = ("samples", "bias", "one draw is", "step size", "paper")
    names = ("samples", "bias", "draw", "step_size", "source")
    rows = [(head, values[name]) for head, name in zip(heads, names, strict=True)]
    facts = grid_of([*rows, ("engines", ", ".join(values["engines"]))], no_wrap=True)
    console.print(f"[bold]{name}[/]", facts, "", "[bold]Arguments[/]", sep="\n")
    arguments = Table.grid(padding=(0, 2))
    arguments.add_column(no_wrap=True)
    arguments.add_column()
    for argument, schema in values["arguments"].items():
        default = f" = {schema['default']}" if "default" in schema else ""
        arguments.add_row(
            f"[bold]{argument}[/]{escape(default)}", escape(schema.get("description", ""))
        )
    console.print(arguments)
    needed = [
        argument for argument, schema in values["arguments"].items() if "default" not in schema
    ]
    given = {"name": name} | {
        argument: entry.example[argument] for argument in needed if argument in entry.example
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    console.print("\nIn a study:\n\n[algorithm]", *lines, sep="\n", markup=False)


def examples(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The example to copy; by default all are listed."),
    ] = None,
    to: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Destination; by default the current folder.")
    ] = Path(),
) -> None:
    """List the example studies that come with the package, or copy one to start from."""
    with reported(quiet=False):
        from consortia.core.arguments import read_toml, unknown

        paths = _examples()
        if name is None:
            _list(
                {example: read_toml(path, "study")[1]["title"] for example, path in paths.items()}
            )
            typer.echo(
                "\nTo copy one: consortia examples NAME. For your own tables: consortia init."
            )
            return
        if name not in paths:
            raise InputError(f"unknown example {name!r}: {unknown(name, paths)}.")
        source = paths[name] if paths[name].stem == name else paths[name].parent
        target = to / source.name
        if target.exists():
            raise InputError(f"{target} already exists: choose another folder with --to.")
        with writing(target):
            to.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copyfile(source, target)
        study = target / paths[name].name if source.is_dir() else target
        typer.echo(f"written: {target}. Next: consortia run {study}")


def _examples() -> dict[str, Path]:
    """Return the study files by name: a folder's is called as the folder."""
    folder = INSTALLED if INSTALLED.is_dir() else Path(__file__).parents[3] / "examples"
    files = sorted(folder.glob("*.toml")) + sorted(folder.glob("*/study.toml"))
    if not files:
        raise InputError("this package was installed without its examples.")
    return {path.parent.name if path.stem == "study" else path.stem: path for path in files}


def schema() -> None:
    """Print the JSON schema of a study file."""
    from consortia.study.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))
