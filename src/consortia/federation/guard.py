"""Runs a program and ends all that it has started, with it or when the starter is gone (Linux).

Run as ``python -I -S guard.py STARTER PROGRAM ...``, STARTER being a process number; it imports
nothing of consortia, so as to begin at once. What the program starts may be in sessions of its own
and outlive its parents: whatever loses its parent below this process becomes its child, so that
nothing is out of reach.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36
"""Of ``prctl``: a signal when the parent ends; orphans below become children."""

GONE = signal.SIGUSR1
PAUSE = 0.02
LEFT = 2.0
"""Seconds that what a program has started has to end after it, before it is killed."""


def main(starter: int, command: list[str]) -> None:
    """Ends as the program ends."""
    prctl = ctypes.CDLL(None).prctl
    prctl(SET_CHILD_SUBREAPER, 1)
    signal.signal(GONE, lambda number, frame: starter_gone(starter))
    prctl(SET_PDEATHSIG, GONE)
    if os.getppid() != starter:  # it was gone before this was said
        sys.exit(1)
    own = os.getpid()
    program = os.fork()
    if program == 0:
        os.setpgid(0, 0)
        prctl(SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != own:
            os._exit(1)
        os.execv(command[0], command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: pass_on(program, number))
    while True:
        ended, status = os.wait()
        if ended == program:
            end = time.monotonic() + LEFT
            while time.monotonic() < end and descendants(own):
                reap()
                time.sleep(PAUSE)
            end_all()
            leave(status)


def pass_on(group: int, number: int) -> None:
    """Gives a signal to the program's group, which is not this process's: each gets it once."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        os.kill(group, number)  # it has no group yet


def leave(status: int) -> None:
    """Ends in the way that a wait status tells."""
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def starter_gone(starter: int) -> None:
    """Ends everything, if it is."""
    if os.getppid() != starter:  # else only the thread that started this has ended
        end_all()
        os._exit(1)


def end_all() -> None:
    """Kills all descendants, and those that come of them meanwhile."""
    while found := descendants(os.getpid()):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        reap()
        time.sleep(PAUSE)


def reap() -> None:
    """Takes note of children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def descendants(root: int) -> list[int]:
    """Processes below one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
