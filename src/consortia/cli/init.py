"""``consortia init TABLE...``: a first study of tables that are at hand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortia.cli.exits import reported
from consortia.errors import InputError

if TYPE_CHECKING:
    from consortia.data.columns import Table
    from consortia.study.proposal import Proposal

ASKED = "Which column is the response? (a time to an event: Surv(time, event))"


def init(
    tables: Annotated[
        list[Path],
        typer.Argument(
            metavar="TABLE...", help="One table a site: .csv, .tsv, .parquet, .feather, .npz."
        ),
    ],
    response: Annotated[
        str | None,
        typer.Option(help="Its column, or 'Surv(time, event)'. Asked for without it."),
    ] = None,
    by_site: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="A column, perhaps a treatment, whose effect may differ by site."
        ),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Leave a column out; repeatable.")
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=LEVEL",
            help="The level that the others are against, the first in the alphabet without it; "
            "repeatable.",
        ),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="Of the response; found from its values without it.")
    ] = None,
    missing: Annotated[
        str | None,
        typer.Option(help="Rows with missing values: refuse, complete, indicator or impute."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="One line.")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="STUDY.toml", help="The file to write.")
    ] = Path("study.toml"),
    force: Annotated[bool, typer.Option("--force", help="Write over the file.")] = False,
) -> None:
    """Write a study of your tables: a formula of all columns that can be used, an exact sampler.

    Columns that tell rows apart, dates, texts of many levels, columns of one value, those that say
    what another says and those that a site lacks are left out, each with the reason. The tables are
    read here and sent nowhere.
    """
    with reported(quiet=False):
        from consortia.data.tables import read_table
        from consortia.store.durable import replace_file
        from consortia.store.runs import writing
        from consortia.study.files import names_of
        from consortia.study.proposal import propose

        if output.exists() and not force:
            raise InputError(
                f"{output} is there already: give another --output, or --force to write over it."
            )
        if output.suffix != ".toml":
            raise InputError(f"--output {output}: the name of a study ends in .toml.")
        names = names_of([str(path) for path in tables])
        if len(set(names)) < len(names):
            raise InputError("a table is given twice.")
        read = {
            name: read_table(path, f"site {name!r}")
            for name, path in zip(names, tables, strict=True)
        }
        if response is None:
            response = _asked(read)
        found = propose(
            read,
            response,
            family=family,
            missing=missing,
            drop=drop or (),
            by_site=by_site,
            references=dict(map(_reference, reference or ())),
        )
        folder = output.resolve().parent
        files = [Path(os.path.relpath(path.resolve(), folder)).as_posix() for path in tables]
        title = title or f"{response}, {len(names)} site{'s' if len(names) > 1 else ''}"
        with writing(output):
            replace_file(output, [found.toml(files, title).encode()])
        _show(found, output)


def _reference(given: str) -> tuple[str, str]:
    """Return the column and the level of COLUMN=LEVEL."""
    column, sign, level = given.partition("=")
    if not sign:
        raise InputError(f"--reference {given}: give COLUMN=LEVEL, as in --reference arm=control.")
    return column, level


def _asked(tables: Mapping[str, Table]) -> str:
    """Return the response that the user names; ask again after an unknown one."""
    from consortia.core.arguments import unknown
    from consortia.core.printable import printable

    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    typer.echo(f"Columns: {printable(', '.join(names))}", err=True)
    while True:
        try:
            answer = typer.prompt(ASKED, err=True).strip()
        except typer.Abort:
            raise InputError("nobody answered: give --response COLUMN.") from None
        if answer in names or "(" in answer:
            return str(answer)
        typer.echo(f"{printable(answer)!r} is no column: {printable(unknown(answer, names))}")


def _show(found: Proposal, output: Path) -> None:
    from rich.markup import escape
    from rich.table import Table as Grid

    from consortia.report.terminal import console_of

    console = console_of()
    gaps = any(sum(one.missing) for one in found.used)
    shown = Grid(box=None, pad_edge=False, header_style="bold")
    for head in ("column", "holds", *(("missing",) if gaps else ())):
        shown.add_column(head)
    for one in found.used:
        cells = [one.name, one.what]
        if gaps:
            count = sum(one.missing)
            by = ", ".join(
                f"{site} {each}"
                for site, each in zip(found.sites, one.missing, strict=True)
                if each
            )
            cells.append(f"{count:,} ({by})" if count else "0")
        shown.add_row(*map(escape, cells))
    console.print(shown)
    if any("the reference is" in one.what for one in found.used):
        console.print(
            "",
            "Of texts the coefficients are against the reference. Another one: --reference "
            "COLUMN=LEVEL.",
            sep="\n",
        )
    noted = [(one.name, one.note) for one in found.used if one.note]
    for head, lines in (("Look at", noted), ("Left out", found.left_out)):
        if lines:
            console.print("", f"[bold]{head}[/]", sep="\n")
        for name, reason in lines:
            console.print(escape(f"  {name}: {reason}"))
    rows = ", ".join(
        f"{site} {count:,}" + (f" of {given:,}" if count < given else "")
        for site, count, given in zip(found.sites, found.complete, found.rows, strict=True)
    )
    what = "Complete rows" if found.missing == "complete" else "Rows without a missing value"
    console.print("", escape(f"{what}: {rows}."), escape(found.why), sep="\n")
    console.print("", escape(found.formula), sep="\n", style="bold", soft_wrap=True)
    console.print(
        f"\nwritten: {escape(str(output))}. Next:",
        f"  consortia check {escape(str(output))}",
        f"  consortia run {escape(str(output))}",
        sep="\n",
        soft_wrap=True,
    )
