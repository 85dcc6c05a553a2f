"""The commands of Flower's programs, and the environment that they get."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from consortia.errors import MissingExtraError
from consortia.federation import supernode

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
}
"""Flower sends nothing home, and looks for new tasks twenty times a second."""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs, in which they find one another by PATH."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": programs}


def supernode_command(
    address: str,
    authority: Path,
    key: Path,
    config: Mapping[str, str | int | float | bool],
    port: int,
    apps: Sequence[str] | Path | None,
) -> list[str]:
    """Return the command that starts a SuperNode.

    Args:
        address: of the SuperLink, host:port.
        authority: certificate of the authority that signed the SuperLink's.
        key: private key of the node.
        config: node configuration.
        port: on the loopback interface, for the node's own processes.
        apps: hashes of the apps that it runs, or the policy that has them; all when None.
    """
    node_config = " ".join(f"{name}={as_toml(value)}" for name, value in config.items())
    start = [program("flower-supernode")]
    if apps is not None:
        given = f"@{apps}" if isinstance(apps, Path) else ",".join(apps)
        start = [sys.executable, supernode.__file__, given]
    return [
        *start,
        *("--root-certificates", str(authority)),
        *("--superlink", address),
        *("--auth-supernode-private-key", str(key)),
        *("--port", str(port)),
        *(("--node-config", node_config) if node_config else ()),
    ]


def program(name: str) -> str:
    """Return the path of one of Flower's programs, of this Python's environment.

    Raises:
        MissingExtraError: it is not there.
    """
    neighbour = Path(sys.executable).parent / name
    path = str(neighbour) if neighbour.exists() else shutil.which(name)
    if path is None:
        raise MissingExtraError(f'{name} is not installed: pip install "consortia[flower]".')
    return path


def as_toml(value: str | int | float | bool) -> str:
    """Return a value as Flower's command line takes it."""
    return json.dumps(value)
