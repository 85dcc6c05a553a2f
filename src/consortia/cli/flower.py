"""``consortia flower new STUDY.toml``: a Flower app that runs a study."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortia.cli.exits import reported
from consortia.cli.options import StudyFile
from consortia.errors import InputError, StoreError

if TYPE_CHECKING:
    from consortia.study.build import Study

flower = typer.Typer(help="Studies between institutions, over Flower.", no_args_is_help=True)

PYPROJECT = """\
# A Flower app that runs a study of consortia: `flwr run .`; the study is {package}/study.toml.

[project]
name = "{name}"
version = "1.0.0"
description = "A study of consortia"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41,<1.43"]  # and consortia[flower] {version}, at the server and each site

[tool.flwr.app]
publisher = "consortia"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# Each can be given anew: flwr run . --run-config "deadline=900.0"
[tool.flwr.app.config]
output = "{output}"          # on the server: the directory of the run; an interrupted run continues
deadline = 600.0       # seconds that a site has for an answer, a restart of its node included
resend = 120.0         # seconds after which an unanswered request is sent again
join-deadline = 600.0  # seconds that the sites have to come
on-missing = "stop"    # or "continue": without sites that do not answer; the draws then differ
minimum-sites = 0      # with "continue": so many sites make an average
maximum-position = 20.0  # of a site's message, in prior sds; beyond it the run ends, the site named
maximum-step = 20.0    # likewise, of how far a site moves a chain in a round
x64 = {x64}            # numbers of 64 bits, at the server and all sites
keys = ""              # folder of the coordinator: identity-key and identities.toml
origin = ""            # in a simulation: the folder where the study's data files are
"""

SERVER = '''\
"""The server of the study."""

from pathlib import Path

from consortia.federation.app import server_app

app = server_app(Path(__file__).parent / "study.toml")
'''

CLIENT = '''\
"""A site of the study."""

from pathlib import Path

from consortia.federation.app import client_app

app = client_app(Path(__file__).parent / "study.toml")
'''


@flower.callback()
def _several() -> None:
    """Run studies between institutions, over Flower."""


@flower.command()
def new(
    study: StudyFile,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="New or empty folder; by default NAME-flower."),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="Where the server keeps the run; ~/consortia/runs/NAME when empty.",
        ),
    ] = "",
    x64: Annotated[bool, typer.Option("--x64", help="Compute with numbers of 64 bits.")] = False,
    two_sites: Annotated[
        bool,
        typer.Option(
            "--two-sites", help="Both sites accept that each can compute the other's contribution."
        ),
    ] = False,
) -> None:
    """Write a Flower app that runs a study: in Flower's simulation, or between sites."""
    with reported(False):
        from consortia.engines.messages.stages import check_method
        from consortia.study.build import load_study

        given = load_study(study)
        check_method(given.method)
        if given.data.files is not None and len(given.data.files) == 2 and not two_sites:
            raise InputError(
                "the study has two sites: each can compute the other's message from its own and "
                "the average, so a sum hides neither. Add a third site, or pass --two-sites if "
                "both sites accept this; their policies must say so, too."
            )
        folder = Path(f"{given.name}-flower") if to is None else to
        write_app(given, study, folder, output, x64=x64)
        typer.echo(f"written to {folder}; run it with: flwr run {folder}")
        if given.data.files is not None:
            config = f"origin={json.dumps(study.resolve().parent.as_posix())}"
            typer.echo(f"in Flower's simulation add: --run-config {shlex.quote(config)}")
        if given.data.files is None:
            typer.echo(
                "the study divides one data set among sites: this app runs only in Flower's "
                "simulation"
            )


def write_app(study: Study, source: Path, folder: Path, output: str, *, x64: bool) -> None:
    """Write the app.

    Raises:
        StoreError: the folder holds something.
        InputError: a value cannot stand in a TOML file.
    """
    from consortia.core.version import __version__

    if folder.exists() and any(folder.iterdir()):
        raise StoreError(f"{folder} is not empty: choose another folder.")
    if any(character in output for character in '"\\\n'):
        raise InputError(f"{output!r} contains a quotation mark, a backslash or a line break.")
    name = re.sub(r"[^a-z0-9]+", "-", study.name.lower()).strip("-") or "study"
    package = f"{name.replace('-', '_')}_app"
    code = folder / package
    code.mkdir(parents=True)
    shutil.copyfile(source, code / "study.toml")
    for module in modules_of(study):
        target = code / module.relative_to(source.resolve().parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(module, target)
    text = PYPROJECT.format(
        name=f"{name}-study",
        package=package,
        version=__version__,
        output=output,
        x64=str(x64).lower(),
    )
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    (folder / "LICENSE").write_text(
        f"The study {study.name} belongs to those who wrote it.\n", encoding="utf-8"
    )
    (code / "__init__.py").write_text(f'"""The study {name}."""\n', encoding="utf-8")
    (code / "server_app.py").write_text(SERVER, encoding="utf-8")
    (code / "client_app.py").write_text(CLIENT, encoding="utf-8")


def modules_of(study: Study) -> list[Path]:
    """Return the files beside the study file that the factory of its model is in, or imports."""
    from consortia.study.code import modules

    folder = study.path.resolve().parent if study.path else Path()
    return [folder / name for name in modules(*study.code) if (folder / name).is_file()]
