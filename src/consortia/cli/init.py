"""``consortia init TABLE...``: a first study of your tables."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortia.cli.exits import reported
from consortia.errors import InputError

if TYPE_CHECKING:
    from consortia.data.columns import Guess, LazyTable, Table
    from consortia.data.harmonisation import Harmonisation
    from consortia.study.dictionary import Entry
    from consortia.study.likeness import Suggestion
    from consortia.study.proposal import Proposal

ALIKE = {
    "words": "Do these names and words mean the same?",
    "numbers": "Are these codes for missing values, and other units?",
}
"""Questions about proposed changes, by their kind (`consortia.study.likeness.Suggestion`)."""

ASKED = "Which column is the response? (a time to an event: Surv(time, event))"

# Options whose help takes several lines

Response = Annotated[
    str | None,
    typer.Option(
        help="The response: a column, 'Surv(time, event)' or 'Surv(start, stop, event)'. If "
        "omitted, the command prompts for it."
    ),
]
Reference = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=LEVEL",
        help="The reference level; by default the most frequent one of the response; of a term the "
        "one called control or the like, else alphabetically the first; repeatable.",
    ),
]
Levels = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=LEVEL,LEVEL,...",
        help="All levels in order: the lowest first for an ordinal response, the reference first "
        "for a term; repeatable.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column with the number of persons that a row represents."),
]
Persons = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="With Surv(start, stop, event): the person of each interval."
    ),
]
Groups = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of a group with several rows, such as a patient or a ward: adds (1 | COLUMN).",
    ),
]
Trials = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="With --family binomial: the column of the number of trials."
    ),
]
Event = Annotated[
    str | None,
    typer.Option(
        metavar="VALUE",
        help="With Surv(time, event): the value that means an event; all others are censored.",
    ),
]
BySite = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="A column, such as a treatment, whose effect may differ between sites.",
    ),
]
Question = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="The column that the study is about; by default that of --by-site."
    ),
]
Missing = Annotated[
    str | None,
    typer.Option(help="Rows with missing values: refuse, complete, indicator or impute."),
]
Dictionary = Annotated[
    Path | None,
    typer.Option(
        metavar="COLUMNS.csv",
        help="Instead of tables: column, low and high of numbers, levels of words. The study is "
        "registered: no site is queried for means or levels.",
    ),
]
SiteNames = Annotated[
    str | None,
    typer.Option(metavar="NAME,NAME,...", help="With --dictionary: the sites, each with NAME.csv."),
]


def init(
    tables: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="One table a site: .csv, .tsv, .xlsx, .sav, .dta, .sas7bdat, .rds, .sql, "
            ".parquet, .feather, .npz.",
        ),
    ] = None,
    dictionary: Dictionary = None,
    sites: SiteNames = None,
    response: Response = None,
    by_site: BySite = None,
    question: Question = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Leave a column out; repeatable.")
    ] = None,
    reference: Reference = None,
    levels: Levels = None,
    weights: Weights = None,
    persons: Persons = None,
    group: Groups = None,
    trials: Trials = None,
    event: Event = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Analyse only these rows, such as 'service > 0'."),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="Family of the response; by default chosen from its values.")
    ] = None,
    missing: Missing = None,
    harmonise: Annotated[
        bool,
        typer.Option(
            "--harmonise/--no-harmonise",
            help="Propose how to harmonise names, labels, codes and units that differ between "
            "sites.",
        ),
    ] = True,
    changes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Begin with the harmonise.SITE tables of this file, such as an earlier study.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Accept every proposal.")] = False,
    title: Annotated[str | None, typer.Option(help="One line.")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="STUDY.toml", help="The file to write.")
    ] = Path("study.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a study of your tables: a formula of all columns that can be used, an exact sampler.

    Left out, each with a reason, are columns that tell rows apart, dates, strings of many levels,
    columns of one value, repeated and missing columns. The tables are read here and sent nowhere.
    Between institutions nobody has all tables: give --dictionary and --sites.
    """
    with reported(quiet=False), tempfile.TemporaryDirectory() as folder:
        from consortia.study.proposal import propose

        _check_output(output, force=force)
        entries, by_name = _given(tables or (), dictionary, sites, Path(folder))
        if entries:
            missing = missing or "complete"
        agreed, read = _alike(by_name, changes, wanted=harmonise and not entries, yes=yes)
        if response is None:
            response = _asked(read)
        if (family or "").startswith("binomial") and trials is None:
            trials = _asked(read, "Which column is the number of trials?", "--trials")
        proposal = propose(
            read,
            response,
            **{"family": family, "missing": missing, "trials": trials},
            **{"by_site": by_site, "group": group, "weights": weights, "event": event},
            **{"keep": keep, "question": question, "persons": persons},
            drop=drop or (),
            references=dict(_pair(pair, "--reference", "arm=control") for pair in reference or ()),
            levels=dict(map(_order, levels or ())),
        )
        if entries:
            _write_registered(proposal, entries, output, title=title)
        else:
            _write(proposal, agreed, [*by_name.values()], output, title=title)


def _check_output(output: Path, *, force: bool) -> None:
    """Check that the study can be written."""
    if output.exists() and not force:
        raise InputError(
            f"{output} already exists: choose another --output, or pass --force to overwrite it."
        )
    if output.suffix != ".toml":
        raise InputError(f"--output {output}: the name of a study must end in .toml.")


def _given(
    tables: Sequence[Path], dictionary: Path | None, sites: str | None, folder: Path
) -> tuple[dict[str, Entry], dict[str, Path]]:
    """Return the entries of a dictionary, and by site its table.

    With a dictionary the table is made up, in the folder: nobody has read a row.
    """
    from consortia.study.dictionary import made_up, read_dictionary
    from consortia.study.files import names_of

    names = [name.strip() for name in (sites or "").split(",")]
    given = {"TABLE": bool(tables), "--dictionary": dictionary is not None, "--sites": bool(sites)}
    if [name for name, is_given in given.items() if is_given] not in (
        ["TABLE"],
        ["--dictionary", "--sites"],
    ):
        raise InputError(
            "give one TABLE a site; or, where nobody has all tables, --dictionary COLUMNS.csv and "
            "--sites NAME,NAME,..."
        )
    if dictionary is None:
        names = [*names_of(tuple(map(str, tables)))]
    if len(set(names)) < len(names):
        raise InputError("a table, or a site, is given twice.")
    if dictionary is None:
        return {}, dict(zip(names, tables, strict=True))
    if wrong := [name for name in names if Path(f"{name}.csv").name != f"{name}.csv" or not name]:
        raise InputError(f"--sites: {wrong[0]!r} cannot name a file: NAME.csv is the site's.")
    entries = read_dictionary(dictionary)
    return entries, made_up(entries, names, folder)


def _write_registered(
    proposal: Proposal, entries: Mapping[str, Entry], output: Path, *, title: str | None
) -> None:
    """Write the study of a dictionary, with levels and scales that no row was read for; show it."""
    import tomllib

    from consortia.data.mending import in_formula
    from consortia.store.durable import replace_file, writing
    from consortia.study.build import study_of
    from consortia.study.dictionary import registration_of

    # notes on columns are of rows, and those here are made up
    used = tuple(replace(column, note="") for column in proposal.used)
    why = f"Family {proposal.family}, from the data dictionary. No row was read for this study."
    proposal = replace(proposal, why=why, used=used)
    files = [f"{site}.csv" for site in proposal.sites]
    content = proposal.toml(files, title or f"{_words(proposal)}, {len(files)} sites")
    registered = registration_of(study_of(tomllib.loads(content), output), entries).toml()
    content = f"{content}\n# By the data dictionary: the sites tell none of this.\n{registered}"
    study_of(tomllib.loads(content), output)  # refuses a table that does not fit
    with writing(output):
        replace_file(output, [content.encode()])
    for name, reason in proposal.left_out:
        if entries[name].identifier:  # without the counts of what was made up
            reason = f"--group {name} writes (1 | site:{in_formula(name)})"
            reason += "; without it all rows count as independent"
        typer.echo(f"left out: {name}: {reason}")
    typer.echo(f"{registered}\n{proposal.formula}\n\nwritten: {output}. Next:")
    typer.echo(f"  consortia register {output}      # its digest, for the protocol")
    typer.echo(f"  consortia letter open {output} --keys KEYS")


def _write(
    proposal: Proposal,
    changes: Mapping[str, Harmonisation],
    tables: Sequence[Path],
    output: Path,
    *,
    title: str | None,
) -> None:
    """Write the study with what it leaves in doubt, once it has been built; show it."""
    from consortia.store.durable import replace_file, writing
    from consortia.study.likeness import toml

    title = title or f"{_words(proposal)}, {len(tables)} site{'s' if len(tables) > 1 else ''}"
    folder = output.resolve().parent
    files = [Path(os.path.relpath(path.resolve(), folder)).as_posix() for path in tables]
    lines = toml(changes)
    readings = _built(proposal.toml(files, title, lines), output)
    doubts = [str(reading) for reading in readings if reading.confirm]
    with writing(output):
        replace_file(output, [proposal.toml(files, title, lines, doubts).encode()])
    _show(proposal, output, [str(reading) for reading in readings])


def _words(proposal: Proposal) -> str:
    """Return the response of a study without the words of a formula."""
    from consortia.report.effects import in_words

    response = proposal.formula.partition("~")[0].strip()
    words = in_words(response).strip("`")
    return f"Time to {words}" if response.startswith("Surv(") else words


def _alike(
    paths: Mapping[str, Path], changes: Path | None, *, wanted: bool, yes: bool
) -> tuple[dict[str, Harmonisation], Mapping[str, Table]]:
    """Return the changes that somebody takes, and the tables of all sites with them.

    Args:
        paths: of the tables, by site.
        changes: a file with tables of changes to begin with.
        wanted: further ones are proposed.
        yes: they are taken without a question.
    """
    from consortia.core.arguments import read_toml
    from consortia.data.dialect import fitting_encoding
    from consortia.data.harmonisation import NONE, read_harmonisations
    from consortia.study.likeness import Suggestion, suggestions

    given = read_toml(changes, "file for --changes")[1] if changes else {}
    start, needed = read_harmonisations(given.get("harmonise"), paths), list[Suggestion]()

    read = partial(_read, paths)
    for name, path in paths.items():
        encoding = fitting_encoding(path)
        if encoding != "utf-8" and start.get(name, NONE).encoding is None:
            start[name] = start.get(name, NONE).model_copy(update={"encoding": encoding})
            sentence = f"{name}: not UTF-8; read as {encoding}"
            needed.append(Suggestion(name, "words", sentence, "rename", {}))
    if not wanted:
        return start, read(start)
    asking = Asking(yes, list(paths))
    agreed = suggestions(read, start, asking, needed)
    if not asking.answered:
        agreed = {
            name: change.model_copy(update={"approved": False}) for name, change in agreed.items()
        }
    return agreed, read(agreed)


def _read(paths: Mapping[str, Path], changes: Mapping[str, Harmonisation]) -> dict[str, LazyTable]:
    """Return the tables of all sites with changes; refuse all that cannot be read, at once."""
    from consortia.core.faults import Faults
    from consortia.data.tables import read_table

    faults, tables = Faults(), {}
    for name, path in paths.items():
        with faults.noted(site=name):
            tables[name] = read_table(
                path, f"site {name!r}", site=name, harmonise=changes.get(name)
            )
    faults.check()
    return tables


class Asking:
    """Questions about what is proposed.

    Args:
        yes: everything is taken without a question.
        sites: names of all of them.

    Attributes:
        answered: False once nobody has answered: then all is proposed, and approved by nobody.
    """

    def __init__(self, yes: bool, sites: Sequence[str]) -> None:
        self.yes, self.sites, self.answered = yes, sites, True

    def __call__(self, changes: Sequence[Suggestion]) -> bool:
        """Show suggestions, and return whether they are taken."""
        from consortia.core.printable import printable
        from consortia.data.mending import joined

        sentences = ((each.site, next(iter(each.entries), ""), each.sentence) for each in changes)
        for line in joined(sentences, self.sites):
            typer.echo(f"  {printable(line)}", err=True)
        if self.yes:
            return True
        try:
            return typer.confirm(ALIKE[changes[0].kind], err=True)
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
        built = study_of(tomllib.loads(content), output).build()
    except InputError as error:
        raise InputError(
            f"nothing was written, because the study would be refused: {error}\nLeave columns out "
            "with --drop COLUMN, rows with --keep EXPRESSION, or correct the tables."
        ) from None
    return () if built.regression is None else built.regression.readings


def _pair(given: str, option: str, example: str) -> tuple[str, str]:
    """Split an option at its =."""
    column, sign, rest = given.partition("=")
    if not sign:
        wanted = f"COLUMN={'LEVEL' if option == '--reference' else 'LEVEL,LEVEL,...'}"
        raise InputError(f"{option} {given}: give {wanted}, as in {option} {example}.")
    return column, rest


def _order(given: str) -> tuple[str, tuple[str, ...]]:
    """Return the column and the levels of COLUMN=LEVEL,LEVEL,..."""
    column, levels = _pair(given, "--levels", "stage=I,II,III")
    return column, tuple(level.strip() for level in levels.split(","))


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
            raise InputError(f"no answer: give {option} COLUMN.") from None
        if answer in names or "(" in answer:
            return str(answer)
        typer.echo(f"{printable(answer)!r} is not a column: {printable(unknown(answer, names))}")


def _show(proposal: Proposal, output: Path, readings: Sequence[str]) -> None:
    """Print the columns, what to look at, the formula and the next commands."""
    from rich.markup import escape
    from rich.table import Table as Grid

    from consortia.report.terminal import console_of

    console = console_of()
    gaps = any(sum(column.missing) for column in proposal.used)
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for head in ("column", "holds", *(("missing",) if gaps else ())):
        grid.add_column(head)
    for column in proposal.used:
        cells = [column.name, column.what]
        if gaps:
            count = sum(column.missing)
            by_site = ", ".join(
                f"{site} {missing}"
                for site, missing in zip(proposal.sites, column.missing, strict=True)
                if missing
            )
            cells.append(f"{count:,} ({by_site})" if count else "0")
        grid.add_row(*map(escape, cells))
    console.print(grid)
    if any("the reference is" in column.what for column in proposal.used):
        console.print(
            "",
            "Levels are compared with the reference. To change it: --reference COLUMN=LEVEL.",
            sep="\n",
        )
    noted = [(column.name, column.note) for column in proposal.used if column.note]
    if readings:
        console.print("", "[bold]How the tables are read[/]", sep="\n")
        console.print("\n".join(f"  {escape(reading)}" for reading in readings))
    for head, lines in (("Look at", noted), ("Left out", proposal.left_out)):
        if lines:
            console.print("", f"[bold]{head}[/]", sep="\n")
        for name, reason in lines:
            console.print(escape(f"  {name}: {reason}"))
    rows = ", ".join(
        f"{site} {count:,}" + (f" of {given:,}" if count < given else "")
        for site, count, given in zip(proposal.sites, proposal.complete, proposal.rows, strict=True)
    )
    what = "Complete rows" if proposal.missing == "complete" else "Rows without a missing value"
    console.print("", escape(f"{what}: {rows}."), escape(proposal.why), sep="\n")
    console.print("", escape(proposal.formula), sep="\n", style="bold", soft_wrap=True)
    name = escape(str(output))
    steps = [f"\nwritten: {name}. Next:", f"  consortia check {name}", f"  consortia run {name}"]
    if len(proposal.sites) > 1:
        steps.append(
            "Before it goes to other institutions, so that they send no means or levels:\n  "
            f"consortia register {name}"
        )
    console.print(*steps, sep="\n", soft_wrap=True)
