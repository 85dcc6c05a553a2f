"""Run a program and end all that it has started, with it or when the starter is gone (Linux).

Run as ``python -I guard.py STARTER PROGRAM ...``, STARTER being a process number; it imports
nothing of consortia, so as to begin soon. What the program starts may be in sessions of its own
and outlive its parents: whatever loses its parent below this process becomes its child, so that
nothing is out of reach.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

import psutil

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36
"""Options of ``prctl``: a signal when the parent ends; orphans below become children."""

GONE = signal.SIGUSR1
POLL_SECONDS = 0.02
GRACE_SECONDS = 2.0
"""Seconds that what a program has started has to end after it, before it is killed."""


def main(starter: int, command: list[str]) -> None:
    """Run the command, and end as it ends."""
    prctl = ctypes.CDLL(None).prctl
    prctl(SET_CHILD_SUBREAPER, 1)
    signal.signal(GONE, lambda number, frame: starter_gone(starter))
    prctl(SET_PDEATHSIG, GONE)
    if os.getppid() != starter:  # it was gone before this was said
        sys.exit(1)
    guard = psutil.Process()
    program = os.fork()
    if program == 0:
        os.setpgid(0, 0)
        prctl(SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard.pid:
            os._exit(1)
        os.execv(command[0], command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: pass_on(program, number))
    while True:
        ended, status = os.wait()
        if ended == program:
            end = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < end and guard.children(recursive=True):
                reap()
                time.sleep(POLL_SECONDS)
            end_all()
            leave(status)


def pass_on(group: int, number: int) -> None:
    """Give a signal to the program's group, which is not this process's: each gets it once."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        os.kill(group, number)  # it has no group yet


def leave(status: int) -> None:
    """End in the way that a wait status says."""
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def starter_gone(starter: int) -> None:
    """End everything, if the starter is gone."""
    if os.getppid() != starter:  # else only the thread that started this has ended
        end_all()
        os._exit(1)


def end_all() -> None:
    """Kill all descendants, and those that come of them meanwhile."""
    while descendants := psutil.Process().children(recursive=True):
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        reap()
        time.sleep(POLL_SECONDS)


def reap() -> None:
    """Collect children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
