"""A process that has imported all that a site's message needs, and forks one for each message.

    python -P forks.py DESCRIPTOR

Flower starts a program for every message; most of its seconds go into imports. Here they are done
once. Over the socket DESCRIPTOR it says "ready", or why it cannot be used; then for each line, the
arguments of ``flwr-clientapp`` as JSON, the number of the process that runs it. It ends when the
other end of the socket is closed. It computes nothing itself, so that no thread is forked: JAX's
begin in the child, which is in all else what Flower would have started.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

IMPORTED = (
    "flwr.supernode.cli.flwr_clientapp",
    "consortia.engines.flower.grid",
    "consortia.federation.app",
    "consortia.federation.governance.gate",
)
"""Modules that together import all that an answer needs but what JAX loads as it compiles."""

READY = "ready"
REAPED_SECONDS = 1.0
"""Between two looks for children that have ended."""


def threads() -> int:
    """Return how many threads this process has."""
    return len(os.listdir("/proc/self/task"))


def serve(connection: socket.socket) -> list[str] | None:
    """Fork for each line; return its arguments in the child, and None once nobody asks any more."""
    with connection, connection.makefile("rb") as lines:
        connection.sendall(f"{READY}\n".encode())
        while True:
            if not select.select([connection], [], [], REAPED_SECONDS)[0]:
                reap()
                continue
            line = lines.readline()
            if not line:
                return None
            reap()
            try:
                child = os.fork()
            except OSError as error:
                connection.sendall(f"no process could be forked: {error}\n".encode())
                continue
            if child == 0:
                found: list[str] = json.loads(line)
                return found
            connection.sendall(f"{child}\n".encode())


def reap() -> None:
    """Collect children that have ended; say which ones a signal has ended."""
    try:
        while True:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            if os.WIFSIGNALED(status):
                name = signal.Signals(os.WTERMSIG(status)).name
                print(f"fork server: process {child} of a message ended by {name}", flush=True)
    except ChildProcessError:
        return


def as_started(arguments: list[str]) -> None:
    """Make a forked process what one is that was started with these arguments."""
    sys.argv = arguments
    sys.path.insert(0, str(Path(sys.executable).parent))  # where the program is
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def leave(number: int, frame: FrameType | None) -> None:
    """End at once: there is nothing to clean up."""
    os._exit(0)


def main() -> None:
    """Import, then fork until nobody asks any more; in a child run its message."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)
    try:
        program = importlib.import_module(IMPORTED[0])
        for name in IMPORTED[1:]:
            importlib.import_module(name)
    except ImportError as error:
        connection.sendall(f"an import has failed: {error}\n".encode())
        return
    if threads() > 1:
        text = f"the imports have started {threads() - 1} thread(s), which a fork would lose"
        connection.sendall(f"{text}; set OPENBLAS_NUM_THREADS=1\n".encode())
        return
    gc.collect()
    gc.freeze()  # what is shared with children is not looked at, which would copy it
    print(f"fork server: ready, process {os.getpid()}", flush=True)
    arguments = serve(connection)
    if arguments is not None:
        as_started(arguments)
        program.flwr_clientapp()


if __name__ == "__main__":
    main()
