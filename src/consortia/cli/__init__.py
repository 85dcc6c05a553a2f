"""The command line: ``consortia run STUDY.toml``, ``resume RUN``, ``algorithms``, ``schema``.

Everything heavy is imported by the command that needs it, so that a study file with a mistake is
answered before anything else happens. One module a command; errors and exit codes in `exits`.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from consortia.cli.check import check
from consortia.cli.exits import EXIT_CODES, exit_code, reported
from consortia.cli.experiments import experiments
from consortia.cli.export import export
from consortia.cli.flower import flower
from consortia.cli.listing import algorithms, schema
from consortia.cli.network import certificates, key, loopback, node
from consortia.cli.report import report
from consortia.cli.resume import resume
from consortia.cli.run import run
from consortia.cli.site import site
from consortia.core.version import __version__

__all__ = ["EXIT_CODES", "app", "exit_code", "main", "reported"]

app = typer.Typer(
    name="consortia",
    help="Federated Bayesian sampling: posteriors from data that stay at their sites.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command ``consortia``."""
    _keep_compiled_programs()
    app()


def _keep_compiled_programs() -> None:
    """Keep compiled programs for the next run, unless CONSORTIA_COMPILATION_CACHE is 0.

    In a folder for each kind of processor: one cache may be shared by unlike machines. A cache that
    JAX has from its own variable is left as it is.
    """
    import jax

    from consortia.core import fingerprints
    from consortia.data.downloads import cache_directory

    if (
        os.environ.get("CONSORTIA_COMPILATION_CACHE") == "0"
        or "JAX_COMPILATION_CACHE_DIR" in os.environ
    ):
        return
    folder = cache_directory() / "compiled" / fingerprints.of_processor()
    jax.config.update("jax_compilation_cache_dir", str(folder))


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
    """Federated Bayesian sampling: posteriors from data that stay at their sites."""


CODES = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."

app.command(epilog=CODES)(check)
app.command(epilog=CODES)(run)
app.command(epilog=CODES)(resume)
app.command(epilog=CODES)(report)
app.command()(export)
app.command()(algorithms)
app.command(epilog=CODES)(experiments)
app.command()(schema)
for command in (loopback, certificates, key, node):
    flower.command()(command)
app.add_typer(flower, name="flower", epilog=CODES)
app.add_typer(site, name="site", epilog=CODES)
