"""``consortia watch RUN``: a run while it runs, in the terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Json, Run

if TYPE_CHECKING:
    from consortia.report.watching import View, Watch

SECONDS = 2.0
"""Between two looks."""


def watch(
    run: Run,
    once: Annotated[bool, typer.Option("--once", help="Show it once and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Show a run while it runs: rounds, seconds left, R-hat and ESS so far, sites, bytes.

    All comes from the directory of the run, so it is the same over every engine, and this command
    may run as another user or on another machine that sees the directory.
    """
    with reported(as_json):
        from consortia.report.watching import Watch

        watched = Watch(Path(run))
        first = watched.look()
        if as_json:
            typer.echo(json.dumps(first.plain()))
        else:
            _follow(watched, first, once=once)


def _follow(watched: Watch, view: View, *, once: bool) -> None:
    """Show the run until it has ended, or the user does."""
    from rich.live import Live

    from consortia.report.terminal import console_of, view_panel

    console = console_of()
    if once or not console.is_terminal:
        console.print(view_panel(view))
        return
    with Live(view_panel(view), console=console, auto_refresh=False) as live:
        try:
            while view.alive or view.state == "starting":
                time.sleep(SECONDS)
                view = watched.look()
                live.update(view_panel(view), refresh=True)
        except KeyboardInterrupt:  # of the watcher; the run continues
            pass
