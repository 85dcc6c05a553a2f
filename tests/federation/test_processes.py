"""Processes end with all that they have started, and say why they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from consortia.errors import DeploymentError
from consortia.federation import processes
from consortia.federation.processes import Process, hint, is_alive, stop, wait_for

FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                         start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
ORPHANS = """
import os, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
deaf += "time.sleep(50)"
start = "import subprocess, sys; "
start += f"print(subprocess.Popen([sys.executable, '-c', {deaf!r}]).pid, flush=True)"
subprocess.run([sys.executable, "-c", start], start_new_session=True)
print(os.getpid(), flush=True)
time.sleep(60)
"""
"""Starts, in another session, a process whose parent ends at once."""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


def started(folder: Path, code: str) -> Process:
    return Process("it", [sys.executable, "-c", code], folder / "log", os.environ)


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and is_alive(psutil.Process(pid))


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("kill", [False, True])
def test_a_process_ends_with_what_it_started_in_other_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.5)
    process = started(tmp_path, FAMILY)
    until(lambda: process.output().endswith("\n"))
    child = int(process.output())
    assert runs(child)
    stop([process], kill=kill)
    assert not process.running
    assert not runs(child)


def test_a_process_that_does_not_listen_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.3)
    process = started(tmp_path, DEAF)
    until(lambda: "ready" in process.output())
    stop([process])
    assert process.wait(1.0) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_process_ends_with_all_it_started_when_who_started_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from consortia.federation.processes import Process\n"
        f"command = [sys.executable, '-c', {ORPHANS!r}]\n"
        f"process = Process('it', command, Path({str(tmp_path / 'log')!r}), os.environ)\n"
        "while process.output().count('\\n') < 2:\n"
        "    time.sleep(0.02)\n"
        "print(process.pid, *process.output().split(), flush=True)\n"
        "time.sleep(60)\n"
    )
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as starter:
        assert starter.stdout is not None
        family = list(map(int, starter.stdout.readline().split()))
        assert len(family) == 3
        assert all(map(runs, family))
        starter.kill()
    until(lambda: not any(map(runs, family)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose child was an orphan")
def test_what_a_process_has_started_does_not_outlive_it(tmp_path: Path) -> None:
    process = started(tmp_path, ORPHANS.replace("time.sleep(60)\n", "sys.exit(3)\n"))
    assert process.wait(20) == 3
    family = process.output().split()
    assert len(family) == 2
    assert not any(runs(int(pid)) for pid in family)


def test_a_process_that_ends_too_early_is_told_with_its_last_lines(tmp_path: Path) -> None:
    process = started(tmp_path, "raise SystemExit('\\x1b[91mno such port')")
    with pytest.raises(
        DeploymentError, match=r"it has ended before it answered\.\n    no such port"
    ):
        wait_for(lambda: False, "it answered", process, 20)


def test_a_process_that_is_never_ready_is_told_after_the_deadline(tmp_path: Path) -> None:
    process = started(tmp_path, "import time; time.sleep(60)")
    try:
        with pytest.raises(DeploymentError, match=r"waited 0\.3 s until it answered"):
            wait_for(lambda: False, "it answered", process, 0.3)
    finally:
        stop([process])


def test_known_reasons_have_advice() -> None:
    assert "--host" in hint("x certificate verify failed: unable") or "authority" in hint(
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer"
    )
    mismatch = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: IP address mismatch, x"
    assert "--host" in hint(mismatch)
    assert "register" in hint("[code: 2004] Failed to activate SuperNode.")
    assert hint("something else") == ""
