"""``consortia algorithms`` and ``consortia schema``: what there is."""

from __future__ import annotations

import json

import typer


def algorithms() -> None:
    """List the algorithms: what they sample, their bias, their step size, their paper."""
    from consortia.report.terminal import algorithms_table, console_of

    console_of().print(algorithms_table())


def schema() -> None:
    """Print the JSON schema of a study file."""
    from consortia.study.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))
