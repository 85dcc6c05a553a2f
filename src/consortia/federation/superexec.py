"""Flower's SuperExec, whose processes for apps of consortia are forked; started by a SuperNode.

    python superexec.py DESCRIPTOR [the options of flower-superexec]

Over the pipe DESCRIPTOR the SuperNode says, a line each, which apps are those of a study; the
processes of all others are started as Flower starts them. So are they where a fork cannot be had,
which is said each time. It imports nothing of consortia.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("forks.py")
FORKED = "flwr-clientapp"
HOOK = "flwr.supercore.superexec.executor.subprocess_executor"

READY_SECONDS, ANSWER_SECONDS = 120.0, 10.0
"""Seconds that the fork server has for its imports, and to fork."""

MOST_STARTS = 5
"""Fork servers that end without having forked, after which none is started any more."""


class ForkServer:
    """The process of `consortia.federation.forks`; started anew when it has ended."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-P", str(SERVER))) -> None:
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._ready = False
        self._starts = 0

    @property
    def pid(self) -> int | None:
        """Its process number, None where it was not started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it; do not wait for its imports.

        Raises:
            OSError: it cannot be started, or has ended too often.
        """
        self.close()
        if self._starts >= MOST_STARTS:
            raise OSError(f"it has ended {MOST_STARTS} times without a fork")
        self._starts += 1
        own, other = socket.socketpair()
        with other:
            number = other.fileno()
            self._process = subprocess.Popen([*self._command, str(number)], pass_fds=[number])
        self._connection = own

    def fork(self, arguments: Sequence[str]) -> int:
        """Return the number of a process that runs ``flwr-clientapp`` with these arguments.

        Raises:
            OSError: there is none; it says why.
        """
        if self._process is not None and self._process.poll() is not None:
            print("fork server: it has ended, and is started again", flush=True)
            self.close()
        if self._connection is None:
            self.start()
        assert self._connection is not None
        try:
            if not self._ready:
                said = self._line(READY_SECONDS)
                if said != "ready":
                    raise OSError(said)
                self._ready = True
            self._connection.sendall(json.dumps(list(arguments)).encode() + b"\n")
            said = self._line(ANSWER_SECONDS)
        except OSError:
            self.close()
            raise
        if not said.isdecimal():
            raise OSError(said)
        self._starts = 0
        return int(said)

    def close(self) -> None:
        """End it; processes that it has forked go on."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None
        self._ready = False

    def _line(self, seconds: float) -> str:
        """Return its next line; it sends one line at a time."""
        assert self._connection is not None
        self._connection.settimeout(seconds)
        said = b""
        while not said.endswith(b"\n"):
            part = self._connection.recv(4096)
            if not part:
                raise OSError("it has ended")
            said += part
        return said.decode(errors="replace").strip()


class Launcher:
    """Substitute for ``subprocess`` in Flower's executor: a fork for an app of consortia.

    Args:
        server: forks.
        apps: returns the hashes of the apps of consortia, as far as they are known now.
    """

    DEVNULL = subprocess.DEVNULL

    def __init__(self, server: ForkServer, apps: Callable[[], set[str]]) -> None:
        self.app: str | None = None
        self._server, self._apps = server, apps

    def Popen(self, command: Sequence[str], **options: Any) -> Any:  # noqa: N802
        """Fork, or start the program."""
        if command[0] == FORKED and not options and self.app in self._apps():
            try:
                return self._server.fork(command)
            except OSError as error:
                print(f"fork server: {error}; the program is started anew", flush=True)
        return subprocess.Popen(list(command), **options)


def hooked(executor: Any, launcher: Launcher) -> None:
    """Make Flower's module of the executor start its programs through the launcher.

    Raises:
        AttributeError: the module is not that of a version for which this was written.
    """
    launch = executor.SubprocessExecutor.launch
    if not callable(executor.subprocess.Popen):
        raise AttributeError("subprocess.Popen")

    def launched(self: Any, spec: Any) -> Any:
        launcher.app = spec.fab_hash
        return launch(self, spec)

    executor.SubprocessExecutor.launch = launched
    executor.subprocess = launcher


class Apps:
    """The hashes that the SuperNode has named so far.

    Args:
        descriptor: of a pipe from which they come.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._text = ""

    def __call__(self) -> set[str]:
        """Return them; each was named before its first message was given to this process."""
        try:
            while part := os.read(self._descriptor, 4096):
                self._text += part.decode(errors="replace")
        except BlockingIOError:
            pass
        return set(self._text.split("\n")[:-1])


def main() -> None:
    """Start the SuperExec."""
    server = ForkServer()
    try:
        hooked(importlib.import_module(HOOK), Launcher(server, Apps(int(sys.argv.pop(1)))))
        server.start()
    except (AttributeError, ImportError, OSError) as error:
        print(f"fork server: not used ({error}); programs are started anew", flush=True)
    from flwr.supercore.cli.flower_superexec import flower_superexec

    sys.argv[0] = "flower-superexec"
    flower_superexec()


if __name__ == "__main__":
    main()
