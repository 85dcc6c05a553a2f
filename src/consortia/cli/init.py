"""``consortia init TABLE...``: a first study of your tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortia.cli.exits import reported
from consortia.errors import InputError

if TYPE_CHECKING:
    from consortia.data.columns import Guess, LazyTable, Table
    from consortia.data.harmonisation import Harmonisation
    from consortia.study.likeness import Suggestion
    from consortia.study.proposal import Proposal

ALIKE = {
    "words": "Do these names and words mean the same?",
    "numbers": "Are these codes for missing values, and other units?",
}
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
    group: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="What several rows are of, a patient or a ward: (1 | COLUMN)."
        ),
    ] = None,
    trials: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="With --family binomial: how many could have been."),
    ] = None,
    event: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE", help="With Surv(time, event): the value that is an event; no other is."
        ),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="Of the response; found from its values without it.")
    ] = None,
    missing: Annotated[
        str | None,
        typer.Option(help="Rows with missing values: refuse, complete, indicator or impute."),
    ] = None,
    harmonise: Annotated[
        bool,
        typer.Option(
            "--harmonise/--no-harmonise",
            help="Propose how different names, words, codes and units of the sites become equal.",
        ),
    ] = True,
    yes: Annotated[bool, typer.Option("--yes", help="Take all that is proposed.")] = False,
    title: Annotated[str | None, typer.Option(help="One line.")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="STUDY.toml", help="The file to write.")
    ] = Path("study.toml"),
    force: Annotated[bool, typer.Option("--force", help="Write over the file.")] = False,
) -> None:
    """Write a study of your tables: a formula of all columns that can be used, an exact sampler.

    Left out, each with a reason, are columns that tell rows apart, dates, strings of many levels,
    columns of one value, repeated and missing columns. The tables are read here and sent nowhere.
    """
    with reported(quiet=False):
        from consortia.study.proposal import propose

        by_name = _named(tables, output, force=force)
        changes, read = _alike(by_name, wanted=harmonise, yes=yes)
        if response is None:
            response = _asked(read)
        if event is not None:
            changes, read = _with_event(changes, read, response, event, by_name)
        if (family or "").startswith("binomial") and trials is None:
            trials = _asked(read, "Which column is the number of trials?", "--trials")
        found = propose(
            read,
            response,
            **{"family": family, "missing": missing, "trials": trials},
            **{"by_site": by_site, "group": group},
            drop=drop or (),
            references=dict(map(_reference, reference or ())),
        )
        _write(found, changes, tables, output, title=title, response=response)


def _named(tables: Sequence[Path], output: Path, *, force: bool) -> dict[str, Path]:
    """Return the tables by the names of their sites; check that the study can be written."""
    from consortia.study.files import names_of

    if output.exists() and not force:
        raise InputError(
            f"{output} is there already: give another --output, or --force to write over it."
        )
    if output.suffix != ".toml":
        raise InputError(f"--output {output}: the name of a study ends in .toml.")
    names = names_of([str(path) for path in tables])
    if len(set(names)) < len(names):
        raise InputError("a table is given twice.")
    return dict(zip(names, tables, strict=True))


def _write(
    found: Proposal,
    changes: Mapping[str, Harmonisation],
    tables: Sequence[Path],
    output: Path,
    *,
    title: str | None,
    response: str,
) -> None:
    """Write the study with what it leaves in doubt, once it has been built; show it."""
    from consortia.store.durable import replace_file, writing
    from consortia.study.likeness import toml

    title = title or f"{response}, {len(tables)} site{'s' if len(tables) > 1 else ''}"
    folder = output.resolve().parent
    files = [Path(os.path.relpath(path.resolve(), folder)).as_posix() for path in tables]
    lines = toml(changes)
    readings = _built(found.toml(files, title, lines), output)
    doubts = [str(one) for one in readings if one.confirm]
    with writing(output):
        replace_file(output, [found.toml(files, title, lines, doubts).encode()])
    _show(found, output, [str(one) for one in readings])


def _alike(
    paths: Mapping[str, Path], *, wanted: bool, yes: bool
) -> tuple[dict[str, Harmonisation], Mapping[str, Table]]:
    """Return the changes that somebody takes, and the tables of all sites with them."""
    from consortia.data.dialect import fitting_encoding
    from consortia.data.harmonisation import NONE
    from consortia.study.likeness import Suggestion, suggestions

    start: dict[str, Harmonisation] = {}
    needed: list[Suggestion] = []

    read = partial(_read, paths)
    for name, path in paths.items():
        encoding = fitting_encoding(path)
        if encoding != "utf-8":
            start[name] = NONE.model_copy(update={"encoding": encoding})
            said = f"{name}: it is not UTF-8, and read as {encoding}"
            needed.append(Suggestion(name, "words", said, lambda made: made))
    if not wanted:
        return start, read(start)
    asking = Asking(yes)
    made = suggestions(read, start, asking, needed)
    if not asking.answered:
        made = {name: one.model_copy(update={"approved": False}) for name, one in made.items()}
    return made, read(made)


def _read(paths: Mapping[str, Path], changes: Mapping[str, Harmonisation]) -> dict[str, LazyTable]:
    """Return the tables of all sites with changes; refuse all that cannot be read, at once."""
    from consortia.core.faults import Faults
    from consortia.data.tables import read_table

    faults, found = Faults(), {}
    for name, path in paths.items():
        with faults.noted():
            found[name] = read_table(path, f"site {name!r}", site=name, harmonise=changes.get(name))
    faults.check()
    return found


def _with_event(
    changes: dict[str, Harmonisation],
    tables: Mapping[str, Table],
    response: str,
    event: str,
    paths: Mapping[str, Path],
) -> tuple[dict[str, Harmonisation], Mapping[str, Table]]:
    """Return the changes by which a value of the event's column is 1 and every other 0."""
    import numpy as np

    from consortia.core.arguments import unknown
    from consortia.data.columns import as_levels, column_of
    from consortia.data.harmonisation import NONE
    from consortia.models.regression.formula import parse

    columns = parse(f"{response} ~ 1").response_columns if "(" in response else ()
    if len(columns) < 2:
        raise InputError("--event VALUE goes with --response 'Surv(time, event)'.")
    column, found = columns[-1], {}
    for site, table in tables.items():
        own = column_of(table, column, f"site {site!r}")
        found[site] = np.unique(as_levels(own)[~own.missing]).tolist()
    every = sorted({level for levels in found.values() for level in levels})
    if not any(_one_value(level, event) for level in every):
        raise InputError(f"--event {event}: {column} has no such value: {unknown(event, every)}.")
    made = dict(changes)
    having = [levels for levels in found.values() if any(_one_value(v, event) for v in levels)]
    for site, levels in found.items():
        before = made.get(site, NONE)
        codes = {level: str(int(_one_value(level, event))) for level in levels}
        other = [v for v in levels if not any(_one_value(v, w) for own in having for w in own)]
        if other and levels not in having:
            raise InputError(
                f"--event {event}: site {site!r} has no such value of {column}, but {other[0]!r}, "
                "which no site with the event has: recode it there, or leave --event out."
            )
        earlier = before.recode.get(column, {})
        through = {old: codes.get(new, new) for old, new in earlier.items()}
        recode = before.recode | {column: {**codes, **through}}
        made[site] = before.model_copy(update={"recode": recode})
    return made, _read(paths, made)


def _one_value(one: str, other: str) -> bool:
    """Return True if two writings are of one number, one bool or one string."""
    from consortia.data.writing import truth_of

    if one == other or (truth_of(one) is not None and truth_of(one) == truth_of(other)):
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False


class Asking:
    """Questions about what is proposed.

    Args:
        yes: everything is taken without a question.

    Attributes:
        answered: False once nobody has answered: then all is proposed, and approved by nobody.
    """

    def __init__(self, yes: bool) -> None:
        self.yes, self.answered = yes, True

    def __call__(self, found: Sequence[Suggestion]) -> bool:
        """Show suggestions, and return whether they are taken."""
        from consortia.core.printable import printable

        for one in found:
            typer.echo(f"  {printable(one.said)}", err=True)
        if self.yes:
            return True
        try:
            return typer.confirm(ALIKE[found[0].kind], err=True)
        except typer.Abort:
            self.answered = False
            typer.echo("", err=True)
            return True


def _built(content: str, output: Path) -> tuple[Guess, ...]:
    """Build a study before it is written, and return how its tables are read.

    Raises:
        InputError: it cannot be built.
    """
    import tomllib

    from consortia.study.build import study_of

    try:
        made = study_of(tomllib.loads(content), output).build()
    except InputError as error:
        raise InputError(
            f"nothing is written, for the study would be refused: {error}\nLeave columns out with "
            "--drop COLUMN, or mend the tables."
        ) from None
    return () if made.regression is None else made.regression.readings


def _reference(given: str) -> tuple[str, str]:
    """Return the column and the level of COLUMN=LEVEL."""
    column, sign, level = given.partition("=")
    if not sign:
        raise InputError(f"--reference {given}: give COLUMN=LEVEL, as in --reference arm=control.")
    return column, level


def _asked(tables: Mapping[str, Table], question: str = ASKED, option: str = "--response") -> str:
    """Return the column that the user names; ask again after an unknown one."""
    from consortia.core.arguments import unknown
    from consortia.core.printable import printable

    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    typer.echo(f"Columns: {printable(', '.join(names))}", err=True)
    while True:
        try:
            answer = typer.prompt(question, err=True).strip()
        except typer.Abort:
            raise InputError(f"nobody answered: give {option} COLUMN.") from None
        if answer in names or "(" in answer:
            return str(answer)
        typer.echo(f"{printable(answer)!r} is not a column: {printable(unknown(answer, names))}")


def _show(found: Proposal, output: Path, readings: Sequence[str]) -> None:
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
            "The coefficients of words are against the reference. Another one: --reference "
            "COLUMN=LEVEL.",
            sep="\n",
        )
    noted = [(one.name, one.note) for one in found.used if one.note]
    if readings:
        console.print("", "[bold]How the tables are read[/]", sep="\n")
        console.print("\n".join(f"  {escape(one)}" for one in readings))
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
