"""A whole Flower network on one machine: a SuperLink and SuperNodes over TLS, with registered keys.

It is what an installation on several machines is, but for the addresses; for trying a study out and
for tests. Everything listens on 127.0.0.1 only.
"""

from __future__ import annotations

import json
import os
import queue
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consortia.errors import DeploymentError, wrong
from consortia.federation.certificates import Certificates, make_certificates, make_node_key
from consortia.federation.commands import as_toml, environment, program, supernode_command
from consortia.federation.processes import Process, hint, last_lines, stop, wait_for

HOST = "127.0.0.1"
CONNECTION = "loopback"
"""The name of the connection in Flower's configuration."""

DEADLINE_SECONDS = 90.0


@dataclass(frozen=True)
class Node:
    """A SuperNode."""

    name: str  # of the site
    # its node configuration, which a site's own code reads
    config: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    apps: tuple[str, ...] | None = None  # hashes of the apps that it runs; all when None


class Loopback:
    """A network that runs within a ``with`` statement.

    Args:
        folder: where certificates, keys, configurations and logs are written; must not hold any.
        nodes: the SuperNodes.
        deadline: seconds to wait for each program to be ready.

    Raises:
        InputError: two nodes have one name.
        DeploymentError: a program ended or was not ready in time; with its last lines.
        MissingExtraError: the extra ``flower`` is not installed.

    Example:
        with Loopback(folder, [Node("north", {"partition-id": 0})]) as network:
            status = network.run("my-app", show=print)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        nodes: Sequence[Node],
        *,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        names = [node.name for node in nodes]
        if len(set(names)) < len(names):
            raise wrong("nodes", f": two have one name, of {', '.join(names)}.")
        self.folder = Path(folder).resolve()
        self.nodes = {node.name: node for node in nodes}
        self.deadline = deadline
        self.port = 0
        self.certificates: Certificates | None = None
        self.superlink: Process | None = None
        self.supernodes: dict[str, Process] = {}

    # --- starting and stopping -------------------------------------------------------------------

    def __enter__(self) -> Loopback:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *details: Any) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """Address at which the SuperLink listens."""
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Make certificates and keys, then start the SuperLink and every node."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.certificates = make_certificates(self.folder / "certificates", [HOST, "localhost"])
        self.port = free_port()
        self.start_superlink()
        for name in self.nodes:
            make_node_key(self.folder / "keys" / name)
            self.register(name)
            self.start_node(name, wait=False)
        for name in self.nodes:
            self.wait_for_node(name)

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers over TLS."""
        assert self.certificates is not None
        made = self.certificates
        home = self._home("superlink")
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{self.address}"\n'
            f"root-certificates = {json.dumps(str(made.authority))}\n"
        )
        command = [
            program("flower-superlink"),
            *("--ssl-ca-certfile", str(made.authority)),
            *("--ssl-certfile", str(made.server)),
            *("--ssl-keyfile", str(made.server_key)),
            "--enable-supernode-auth",
            *("--host", HOST, "--port", str(self.port)),
            "--disable-runtime-dependency-installation",
        ]
        self.superlink = self._started("SuperLink", "superlink", command)
        context = ssl.create_default_context(cafile=str(made.authority))
        wait_for(lambda: _answers(self.port, context), "it answered", self.superlink, self.deadline)

    def register(self, name: str) -> None:
        """Make a node's key known to the SuperLink."""
        public = self.folder / "keys" / f"{name}.pub"
        done = self.flwr("supernode", "register", str(public), CONNECTION)
        if done.returncode:
            raise DeploymentError(
                f"the key of {name!r} could not be registered:\n{last_lines(_said(done))}"
            )

    def start_node(self, name: str, *, wait: bool = True) -> Process:
        """Start a node, or start it again, with the key that it has.

        Args:
            name: of the node.
            wait: until the SuperLink has accepted it.
        """
        assert self.certificates is not None
        node = self.nodes[name]
        command = supernode_command(
            self.address,
            self.certificates.authority,
            self.folder / "keys" / name,
            node.config,
            free_port(),
            node.apps,
        )
        self.supernodes[name] = self._started(f"SuperNode {name!r}", name, command)
        if wait:
            self.wait_for_node(name)
        return self.supernodes[name]

    def wait_for_node(self, name: str) -> None:
        """Wait until the SuperLink has accepted a node."""
        process = self.supernodes[name]
        wait_for(
            lambda: "SuperNode ID:" in process.output(),
            "the SuperLink accepted it",
            process,
            self.deadline,
        )

    def stop(self) -> None:
        """End everything; nothing that was started here is left."""
        started = [*self.supernodes.values()]
        stop(started)
        if self.superlink is not None:
            stop([self.superlink])

    # --- running ---------------------------------------------------------------------------------

    def run(
        self,
        app: str | os.PathLike[str],
        *,
        config: Mapping[str, str | int | float | bool] | None = None,
        show: Callable[[str], None] = lambda line: None,
        deadline: float | None = None,
    ) -> str:
        """Run an app to its end.

        Args:
            app: folder of the app.
            config: values of its run configuration.
            show: is called with each line of its log.
            deadline: seconds that it may take; None is for ever.

        Returns:
            Flower's word for how it ended, ``finished:completed`` when all is well.

        Raises:
            DeploymentError: it could not be started, the SuperLink ended, or the time is up.
        """
        command = [program("flwr"), "run", str(Path(app).resolve()), CONNECTION, "--stream"]
        given = " ".join(f"{key}={as_toml(value)}" for key, value in (config or {}).items())
        command += ["--run-config", given] if given else []
        output: list[str] = []
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment("superlink"),
            start_new_session=True,
        ) as streaming:
            try:
                for line in self._lines(streaming, deadline):
                    output.append(line)
                    show(line)
                streaming.wait(self.deadline)
            finally:
                streaming.kill()
        started = re.search(r"Successfully started run (\d+)", "\n".join(output))
        if started is None:
            text = "\n".join(output)
            raise DeploymentError(f"the app was not started.{hint(text)}\n{last_lines(text)}")
        return self.status(started[1])

    def status(self, run: str) -> str:
        """Return Flower's word for the state of a run."""
        done = self.flwr("list", CONNECTION, "--run-id", run, "--format", "json")
        try:
            return str(json.loads(done.stdout)["runs"][0]["status"])
        except (ValueError, KeyError, IndexError):
            raise DeploymentError(
                f"Flower does not say how run {run} ended:\n{last_lines(_said(done))}"
            ) from None

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command ``flwr`` against this network."""
        return subprocess.run(
            [program("flwr"), *words],
            env=self._environment("superlink"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self.deadline,
            check=False,
        )

    def _lines(self, streaming: Any, deadline: float | None) -> Any:
        """Yield lines as they come, while the SuperLink runs."""
        assert self.superlink is not None
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            for line in streaming.stdout:
                lines.put(line.decode(errors="replace").rstrip("\n"))
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        end = None if deadline is None else time.monotonic() + deadline
        while True:
            try:
                line = lines.get(timeout=1)
            except queue.Empty:
                line = ""
                if not self.superlink.running:
                    raise DeploymentError(
                        "the SuperLink ended during the run.\n"
                        f"{last_lines(self.superlink.output())}"
                    ) from None
            else:
                if line is None:
                    return
                yield line
            if end is not None and time.monotonic() > end:
                raise DeploymentError(f"the run has not ended after {deadline:g} s.")

    # --- what programs get -----------------------------------------------------------------------

    def _started(self, what: str, name: str, command: Sequence[str]) -> Process:
        return Process(what, command, self.folder / f"{name}.log", self._environment(name))

    def _home(self, name: str) -> Path:
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _environment(self, name: str) -> dict[str, str]:
        """Return an environment with a Flower folder of the program: a node unpacks apps there."""
        return environment(self._home(name))


def free_port() -> int:
    """Return a port of the loopback interface that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _answers(port: int, context: ssl.SSLContext) -> bool:
    try:
        with (
            socket.create_connection((HOST, port), timeout=2) as plain,
            context.wrap_socket(plain, server_hostname=HOST),
        ):
            return True
    except OSError:
        return False


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return f"{done.stdout}\n{done.stderr}"
