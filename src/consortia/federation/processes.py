"""Processes that are started, waited for with a deadline, and ended with all that they started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from consortia.errors import DeploymentError

GRACE_SECONDS = 10.0
"""Seconds that a process has to end by itself before it is killed."""

POLL_SECONDS = 0.1

GUARD = Path(__file__).with_name("guard.py")
"""Under it, on Linux, a program ends with all that it started when who started it is gone."""


class Process:
    """One process in a session of its own, whose output is appended to a file."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name, self.log = name, log
        self._start = log.stat().st_size if log.exists() else 0
        guarded = list(command)
        if sys.platform == "linux":
            guarded = [sys.executable, "-I", str(GUARD), str(os.getpid()), *command]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                guarded,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process number of its guard where there is one, else its own."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    def output(self) -> str:
        """Return its output since it was started."""
        with self.log.open("rb") as file:
            file.seek(self._start)
            return file.read().decode(errors="replace")

    def wait(self, deadline: float) -> int | None:
        """Return its exit status, or None when it still runs after so many seconds."""
        try:
            return self._process.wait(deadline)
        except subprocess.TimeoutExpired:
            return None


def wait_for(condition: Callable[[], object], what: str, process: Process, deadline: float) -> None:
    """Wait until ``condition()`` holds, while the process runs.

    Raises:
        DeploymentError: the process has ended, or the deadline has passed; with its last lines.
    """
    end = time.monotonic() + deadline
    while not condition():
        problem = None
        if not process.running:
            problem = f"{process.name} has ended before {what}."
        elif time.monotonic() > end:
            problem = f"{process.name}: waited {deadline:g} s until {what}."
        if problem is not None:
            output = process.output()
            raise DeploymentError(f"{problem}{hint(output)}\n{last_lines(output)}")
        time.sleep(POLL_SECONDS)


def stop(processes: Iterable[Process], *, kill: bool = False) -> None:
    """End processes and all that they have started, within twice `GRACE_SECONDS`.

    Args:
        processes: to be ended together.
        kill: at once, without a chance to clean up.
    """
    processes = list(processes)
    groups = [process.pid for process in processes]
    # A child in a session of its own is a descendant; one whose parent is gone is in the group.
    family = {*descendants(groups), *_of_groups(groups)}
    if not kill:
        for group in groups:
            _signal_group(group, signal.SIGTERM)
        _wait_all(processes, family)
    for group in groups:
        _signal_group(group, signal.SIGKILL)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_all(processes, family)


def descendants(pids: Iterable[int]) -> list[psutil.Process]:
    """Find the processes that these have started, at any depth."""
    children = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            children += psutil.Process(pid).children(recursive=True)
    return children


def is_alive(process: psutil.Process) -> bool:
    """Return True while it runs; a later process with its number does not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def hint(output: str) -> str:
    """Advise on an output of Flower's programs, for the reasons that are known."""
    for text, advice in HINTS.items():
        if text in output:
            return f" {advice}"
    return ""


HINTS = {
    "CERTIFICATE_VERIFY_FAILED] certificate verify failed: IP address mismatch": "The "
    "certificate of the SuperLink was made for other addresses: make it with --host for each name "
    "or address that sites use.",
    "CERTIFICATE_VERIFY_FAILED] certificate verify failed: Hostname mismatch": "The certificate "
    "of the SuperLink was made for other names: make it with --host for each name or address that "
    "sites use.",
    "CERTIFICATE_VERIFY_FAILED": "The certificate of the SuperLink was not signed by the authority "
    "in --root-certificates: copy the ca.crt that was made with it.",
    "Invalid SuperNode authentication": "The SuperLink did not accept its signature: its clock is "
    "more than 5 s early or 5 minutes late, or its key was exchanged.",
    "[code: 2004]": "The SuperLink does not know its key (register its .pub file), or believes it "
    "to be still connected, for 60 s after its last sign of life (start it again then).",
    "address already in use": "The port is in use: choose another.",
}


def last_lines(output: str) -> str:
    """Return the last 12 lines of an output, indented, without colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    lines = [line.rstrip() for line in plain.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-12:])


def _of_groups(groups: Sequence[int]) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) in groups:
                members.append(process)
    return members


def _wait_all(processes: Sequence[Process], family: Iterable[psutil.Process]) -> None:
    end = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < end:
        if not any(process.running for process in processes) and not any(map(is_alive, family)):
            return
        time.sleep(POLL_SECONDS)


def _signal_group(group: int, number: int) -> None:
    # macOS: not permitted where all that is left is a zombie
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
