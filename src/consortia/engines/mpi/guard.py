"""A guard over one rank: tells which rank was ended from outside, before the launcher ends all.

MPI launchers answer the death of a rank by killing the job at once, and name no rank. Here the
process that the launcher knows is only a guard; the rank is its child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import warnings
from typing import Any

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
"""Variables in which launchers give a process its rank."""

SECONDS_TO_SPEAK = 15.0
"""Seconds that the other ranks have to end by themselves after one has died."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SET_PDEATHSIG = 1
"""Option of ``prctl``: a signal when the parent ends."""


def stand_guard(hint: str) -> None:
    """Return in a child process; wait for it here and end as it does.

    To be called before MPI and JAX have started. Does nothing where no launcher has started this
    process, or the system cannot fork.

    Args:
        hint: what the user can do after a rank has died.
    """
    rank = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), None)
    if rank is None or not hasattr(os, "fork"):
        return
    sys.stdout.flush()
    guard = os.getpid()
    # Linux's call that ties a process to its parent.
    prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None
    # Libraries run functions of their own after a fork: an interrupt that came there would be lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads that a fork would lose: none has been started
        child = os.fork()
    if child == 0:
        if prctl is not None:
            _apart(guard, prctl)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    for number in SIGNALS:
        signal.signal(number, lambda received, _: _passed_on(child, received))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        name = signal.Signals(-code).name
        print(
            f"error: rank {rank} (process {child}) was ended by the signal {name}. {hint}",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(SECONDS_TO_SPEAK)
        code = 128 - code
    sys.stdout.flush()
    os._exit(code)


def _passed_on(child: int, received: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, received)


def _apart(guard: int, prctl: Any) -> None:
    """Take the rank out of the guard's group, and let it end with the guard.

    Launchers signal the group. The rank would hear of an interrupt from them and from the guard,
    and a second one ends a run at once. What kills the group must still reach it.
    """
    prctl(SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:  # it was gone before this was said
        os._exit(1)
    os.setpgid(0, 0)
