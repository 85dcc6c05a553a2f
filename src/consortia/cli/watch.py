"""``consortia watch RUN``: a run while it runs, in the terminal or as a local page."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Json, Run
from consortia.errors import InputError, StoreError

if TYPE_CHECKING:
    from consortia.report.watching import View, Watch

SECONDS = 2.0
"""Between two looks."""

HOST = "127.0.0.1"
"""A page is for this machine only."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def watch(
    run: Run,
    page: Annotated[
        bool, typer.Option("--page", help="Serve a page on this machine, in place of the terminal.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of the page; 0 takes one that is free.")
    ] = 0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
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
        if page and (once or as_json):
            raise InputError("--page goes with neither --once nor --json.")
        if as_json:
            typer.echo(json.dumps(first.plain()))
        elif page:
            _serve(watched, port)
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


def _serve(watched: Watch, port: int) -> None:
    """Serve the page until the user ends it."""
    with server_of(watched, port) as server:
        address, at = server.server_address[:2]
        typer.echo(f"http://{address!s}:{at}/ shows the run; Ctrl-C ends the page, not the run.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def server_of(watched: Watch, port: int) -> ThreadingHTTPServer:
    """Return a server of the page, on this machine only.

    Raises:
        InputError: the port is taken.
    """
    from consortia.report.watching import watch_page

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            names = {f"{name}:{server.server_port}" for name in (HOST, "localhost")}
            # A page of elsewhere could give this address a name of its own, and read it then.
            if self.headers.get("Host") not in names or self.path != "/":
                self.send_error(404)
                return
            try:
                view = watched.look()
            except StoreError as error:
                self.send_error(503, explain=str(error))
                return
            content = watch_page(view).encode()
            self.send_response(200)
            headers = {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"}
            headers |= {"Content-Security-Policy": POLICY, "Content-Length": str(len(content))}
            if view.alive or view.state == "starting":
                headers["Refresh"] = f"{SECONDS:g}"
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            return

    try:
        server = ThreadingHTTPServer((HOST, port), Page)
        return server
    except OSError as error:
        raise InputError(f"--port {port}: {error.strerror}: give another, or 0.") from None
