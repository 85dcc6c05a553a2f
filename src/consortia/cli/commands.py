"""The commands of ``consortia``, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from consortia.cli.check import check
from consortia.cli.describe import describe
from consortia.cli.exits import EXIT_CODES
from consortia.cli.export import export
from consortia.cli.flower import flower
from consortia.cli.init import init
from consortia.cli.letter import letter
from consortia.cli.listing import algorithms, examples, schema
from consortia.cli.network import certificates, key, loopback, node
from consortia.cli.papers import papers
from consortia.cli.register import register
from consortia.cli.report import report
from consortia.cli.resume import resume
from consortia.cli.run import run
from consortia.cli.sbc import sbc
from consortia.cli.site import site
from consortia.cli.size import plan_size
from consortia.cli.watch import watch
from consortia.core.version import __version__

app = typer.Typer(
    name="consortia",
    help="Federated Bayesian sampling: posteriors from data that stay at their sites.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"consortia {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Sample posteriors from data that stay at their sites: federated Bayesian sampling."""


CODES = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."

app.command(epilog=CODES)(check)
app.command(epilog=CODES)(describe)
app.command(epilog=CODES)(run)
app.command(epilog=CODES)(resume)
app.command()(watch)
app.command(epilog=CODES)(report)
app.command(epilog=CODES)(sbc)
app.command("plan-size", epilog=CODES)(plan_size)
app.command()(init)
app.command(epilog=CODES)(register)
app.command()(export)
app.command()(examples)
app.command()(algorithms)
app.command()(schema)
for command in (loopback, certificates, key, node):
    flower.command()(command)
app.add_typer(flower, name="flower", epilog=CODES)
app.add_typer(letter, name="letter", epilog=CODES)
app.add_typer(papers, name="papers", epilog=CODES)
app.add_typer(site, name="site", epilog=CODES)
