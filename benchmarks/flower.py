"""`FlowerEngine` beside a bare Flower app: CPU seconds a round of all processes together.

Three sites in Flower's simulation, one chain of 7,850 floats; the peer is an app that imports JAX
and carries the same floats to the same nodes and back. Both run in one app in turn, so that they
have the same processes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from benchmarks.environment import ROOT, child_environment, use_all_cores
from benchmarks.measure import Gate, Row, time_ratio

NAME = "flower"
SIZES: dict[str, dict[str, int]] = {
    "full": {"pairs": 7, "rounds": 20},
    "quick": {"pairs": 3, "rounds": 10},
    "tiny": {"pairs": 1, "rounds": 2},
}
LIMIT = 500
SITES = 3

PYPROJECT = """\
[project]
name = "benchmark"
version = "1.0.0"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41,<1.43"]
[tool.flwr.app]
publisher = "consortia"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "compared:server"
clientapp = "compared:client"
[tool.flwr.app.config]
pairs = {pairs}
rounds = {rounds}
root = {root}
folder = "{folder}"
result = "{folder}/times.json"
"""


def rows(scale: str) -> list[Row]:
    """The figures."""
    if importlib.util.find_spec("flwr") is None or importlib.util.find_spec("ray") is None:
        return [Row(NAME, "FlowerEngine / bare app", skipped="the extra flower is not installed")]
    sizes = SIZES[scale]
    with tempfile.TemporaryDirectory() as folder:
        times = _simulated(Path(folder), sizes["pairs"], sizes["rounds"])
    ours, bare = "FlowerEngine", "bare Flower app"
    return [time_ratio(NAME, times, ours, bare, gate=Gate("<=", 1.2), unit="round")]


def _simulated(folder: Path, pairs: int, rounds: int) -> dict[str, np.ndarray]:
    """CPU seconds a round of both."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = folder / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port}"\n'
        f"insecure = true\noptions.num-supernodes = {SITES}\n"
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = child_environment() | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": path,
        "PJRT_NPROC": "1",  # one thread here too, although the processes have all cores
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
    }
    tools = Path(sys.executable).parent
    with (folder / "log").open("wb") as log:
        superlink = subprocess.Popen(
            [
                *(str(tools / "flower-superlink"), "--insecure", "--simulation"),
                *("--host", "127.0.0.1", "--port", str(port)),
                "--disable-runtime-dependency-installation",
            ],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=use_all_cores,
        )
    try:
        app = folder / "app"
        app.mkdir()
        values = {"pairs": pairs, "rounds": rounds, "root": superlink.pid, "folder": folder}
        (app / "pyproject.toml").write_text(PYPROJECT.format(**values))
        (app / "LICENSE").write_text("As the project's.\n")
        code = "from benchmarks import flower_job\n"
        code += "client = flower_job.client\nserver = flower_job.server\n"
        (app / "compared.py").write_text(code)
        end = time.monotonic() + LIMIT
        command = [str(tools / "flwr"), "run", str(app), "local"]
        while True:
            done = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True
            )
            if done.returncode == 0:
                break
            if time.monotonic() > end or "Invalid" in done.stdout + done.stderr:
                raise RuntimeError(f"the run was not taken: {done.stdout}{done.stderr}")
            time.sleep(1)
        result = folder / "times.json"
        while not result.exists():
            if time.monotonic() > end or superlink.poll() is not None:
                raise RuntimeError(f"no figures: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(1)
        found = json.loads(result.read_text())
        if "error" in found:
            raise RuntimeError(f"no figures: {found['error']}")
        return {name: np.asarray(times) for name, times in found.items()}
    finally:
        _end(superlink)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it has started; some of it has a session of its own."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(started, timeout=20)
