"""Processes on one or several hosts that run one program together, through ``jax.distributed``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from consortia.core import arguments
from consortia.errors import InputError, RankError

SECONDS_TO_JOIN = 120
"""That a process waits at the start for the others."""


def join(coordinator: str, processes: int, process: int) -> None:
    """Makes the devices of all processes those of JAX; call it before anything else starts JAX.

    Nothing is encrypted, and whoever reaches the port can join: for a trusted network only.

    Args:
        coordinator: ``"HOST:PORT"`` at which process 0 listens.
        processes: how many.
        process: number of this one, from 0.

    Raises:
        InputError: an argument is out of its range, or JAX has started already.
        RankError: the others have not come in time.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"coordinator is {coordinator!r}: give HOST:PORT, as in 10.0.0.1:9911.")
    processes = arguments.whole("processes", processes, 1)
    process = arguments.whole("process", process, 0)
    if process >= processes:
        raise InputError(f"process is {process}: number the {processes} processes from 0.")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            coordinator, processes, process, initialization_timeout=SECONDS_TO_JOIN
        )
    except jax.errors.JaxRuntimeError as error:
        raise RankError(
            f"process {process} found not all of {processes} processes at {coordinator} within "
            f"{SECONDS_TO_JOIN} s: start all of them, with the same address ({error})."
        ) from error
    except RuntimeError as error:
        raise InputError(f"the processes cannot be joined: {error}.") from error


@contextlib.contextmanager
def losses_told() -> Iterator[None]:
    """Around what all processes do together: the loss of one becomes a `RankError`."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not jax.distributed.is_initialized():
            raise
        raise RankError(
            f"process {jax.process_index()} lost another of the {jax.process_count()} processes "
            f"of this run, which has ended or cannot be reached ({error})."
        ) from error
