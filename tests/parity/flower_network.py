"""Flower's simulation for a test: a SuperLink of its own, in a folder, on a free port."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from parity.launch import free_port

BIN = Path(sys.executable).parent
POLL = 0.5


def environment(folder: Path) -> dict[str, str]:
    """Of every process of a network: its own home, no telemetry, short polls."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("JAX_", "FLWR_"))
        or k.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))
    }
    return kept | {
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false "
        "--xla_backend_optimization_level=0 "
        "intra_op_parallelism_threads=1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


class Network:
    """A SuperLink, and the connection ``test`` to it.

    Args:
        folder: of everything that the processes write.
        link: further options of the SuperLink.
        connection: further lines of the connection in Flower's configuration.
    """

    def __init__(self, folder: Path, link: list[str], connection: str) -> None:
        self.folder, self.environment = folder, environment(folder)
        self.port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        home = folder / "flwr"
        home.mkdir(parents=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "test"\n\n[superlink.test]\n'
            f'address = "127.0.0.1:{self.port}"\n{connection}\n'
        )
        options = ["--host", "127.0.0.1", "--port", str(self.port)]
        self.start(
            "superlink",
            "flower-superlink",
            *options,
            "--disable-runtime-dependency-installation",
            *link,
        )

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: Any) -> None:
        for name in reversed(list(self._processes)):
            self.end(name)

    def start(self, name: str, *command: str) -> None:
        """Starts a process that is ended with the network."""
        with (self.folder / f"{name}.log").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def end(self, name: str, signal: int = 15) -> None:
        """Ends a process and all that it started."""
        process = self._processes.pop(name)
        for number in (signal, 9):
            try:
                os.killpg(process.pid, number)
                process.wait(timeout=15)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        process.wait(timeout=15)

    def log(self, name: str) -> str:
        """What a process has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def flwr(self, *arguments: str, timeout: float = 120) -> Any:
        """A finished ``flwr`` command."""
        return subprocess.run(
            [str(BIN / "flwr"), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environment,
            cwd=self.folder,
        )

    def submit(self, app: Path, **config: Any) -> str:
        """Submits a run; its id."""
        given = " ".join(f"{k.replace('_', '-')}={json.dumps(v)}" for k, v in config.items())
        options = ["--run-config", given] if given else []
        end = time.monotonic() + 60
        while True:
            done = self.flwr("run", str(app), "test", "--format", "json", *options)
            if done.returncode == 0 and '"run-id"' in done.stdout:
                content = json.loads(done.stdout[done.stdout.index("{") :])
                assert content["success"], done.stdout
                return str(content["run-id"])
            if time.monotonic() > end or "Invalid Flower App" in done.stdout:
                raise AssertionError(done.stdout + done.stderr + self.log("superlink")[-2000:])
            time.sleep(POLL)

    def state(self, run: str) -> str:
        """The state of a run, such as ``finished:completed``."""
        done = self.flwr("list", "test", "--run-id", run, "--format", "json")
        content = json.loads(done.stdout[done.stdout.index("{") :])
        return str(content["runs"][0]["status"])

    def wait(self, run: str, timeout: float) -> str:
        """The final state of a run."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if re.search(f"Finished task [0-9]+ of run {run}", self.log("superlink")):
                return self.state(run)
            time.sleep(POLL)
        raise AssertionError(f"run {run} has not ended: {self.log('superlink')[-3000:]}")


def simulation(folder: Path, nodes: int) -> Network:
    """A network whose nodes are simulated."""
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'consortia[flower]'")
    pytest.importorskip("ray", reason="ray is not installed: pip install 'consortia[simulation]'")
    connection = f"insecure = true\noptions.num-supernodes = {nodes}"
    return Network(folder, ["--insecure", "--simulation"], connection)
