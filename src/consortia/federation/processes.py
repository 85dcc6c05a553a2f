"""Processes that are started, waited for with a deadline, and ended with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from consortia.errors import DeploymentError

GRACE = 10.0
"""Seconds that a process has to end by itself before it is killed."""

POLL = 0.1

GUARD = Path(__file__).with_name("guard.py")
"""Under it, on Linux, a program ends with all that it started when who started it is gone."""


class Process:
    """One process in a session of its own, whose output goes to a file.

    Args:
        name: for messages.
        command: program and arguments.
        log: file that gets its output, appended to.
        environment: of the process.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name, self.log = name, log
        self._start = log.stat().st_size if log.exists() else 0
        guarded = list(command)
        if sys.platform == "linux":
            guarded = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), *command]
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
        """The number of its guard where there is one, else its own."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """What it has said since it was started."""
        with self.log.open("rb") as file:
            file.seek(self._start)
            return file.read().decode(errors="replace")

    def wait(self, deadline: float) -> int | None:
        """Its exit status, or None when it still runs after so many seconds."""
        try:
            return self._process.wait(deadline)
        except subprocess.TimeoutExpired:
            return None


def wait_for(condition: object, what: str, process: Process, deadline: float) -> None:
    """Waits until ``condition()`` holds, while the process runs.

    Raises:
        DeploymentError: the process has ended, or the deadline has passed; with its last lines.
    """
    assert callable(condition)
    end = time.monotonic() + deadline
    while not condition():
        if not process.running:
            raise DeploymentError(
                f"{process.name} has ended before {what}.{hint(process.output())}\n"
                f"{last_lines(process.output())}"
            )
        if time.monotonic() > end:
            raise DeploymentError(
                f"{process.name}: waited {deadline:g} s until {what}.{hint(process.output())}\n"
                f"{last_lines(process.output())}"
            )
        time.sleep(POLL)


def stop(processes: Iterable[Process], *, kill: bool = False) -> None:
    """Ends processes and all that they have started, within twice `GRACE` seconds.

    Args:
        processes: to be ended together.
        kill: at once, without a chance to say goodbye.
    """
    processes = list(processes)
    family = descendants(process.pid for process in processes)
    for process in processes:
        family |= of_group(process.pid)
    if not kill:
        for process in processes:
            _signal_group(process.pid, signal.SIGTERM)
        _wait_all(processes, family, GRACE)
    for process in processes:
        _signal_group(process.pid, signal.SIGKILL)
    for pid in _alive(family):
        _signal(pid, signal.SIGKILL)
    _wait_all(processes, family, GRACE)


def descendants(pids: Iterable[int]) -> dict[int, str]:
    """Processes that these have started, and those have, with the times at which they began."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, str] = {}
    waiting = deque(pids)
    while waiting:
        for child in children.get(waiting.popleft(), ()):
            if child not in found:
                found[child] = started_at(child)
                waiting.append(child)
    return found


def of_group(group: int) -> dict[int, str]:
    """The processes of a group, whose parents may be gone, with the times at which they began."""
    lines = (line.split() for line in _ps("pid=,pgid=").splitlines())
    return {int(pid): started_at(int(pid)) for pid, of in lines if int(of) == group}


def started_at(pid: int) -> str:
    """When a process began, "" when there is none; tells it from a later one of the same number."""
    fields = _ps("lstart=,stat=", pid).split()
    return "" if not fields or fields[-1].startswith("Z") else " ".join(fields[:-1])


def hint(output: str) -> str:
    """What to do about an output of Flower's programs, for the reasons that are known."""
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
    "to be still connected, for 45 s after its last sign of life (start it again then).",
    "address already in use": "The port is taken: give another.",
}


def last_lines(output: str, count: int = 12) -> str:
    """The end of an output, indented, without colours."""
    import re

    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    lines = [line.rstrip() for line in plain.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-count:])


def _wait_all(processes: Sequence[Process], family: Mapping[int, str], deadline: float) -> None:
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        if not any(process.running for process in processes) and not _alive(family):
            return
        time.sleep(POLL)


def _alive(family: Mapping[int, str]) -> list[int]:
    return [pid for pid, started in family.items() if started and started_at(pid) == started]


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS: all that is left is a zombie
        return


def _parents() -> dict[int, int]:
    found = {}
    for line in _ps("pid=,ppid=").splitlines():
        pid, parent = map(int, line.split())
        found[pid] = parent
    return found


def _ps(columns: str, pid: int | None = None) -> str:
    which = ["-A"] if pid is None else ["-p", str(pid)]
    asked = subprocess.run(
        ["ps", *which, "-o", columns], capture_output=True, text=True, timeout=GRACE, check=False
    )
    return asked.stdout
