"""Errors on the command line: one message and an exit code."""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import typer

from consortia.core.printable import printable
from consortia.errors import (
    ConsortiaError,
    DeploymentError,
    DivergenceError,
    InputError,
    LedgerError,
    MissingExtraError,
    NonFiniteError,
    PolicyError,
    RankError,
    SiteMissingError,
    StoreError,
    WarmupError,
)
from consortia.run.interrupts import Abrupt, Interrupts, held
from consortia.runtime.late import absent

BAD = 11
UNKNOWN, REFUSED = 12, 13
INTERRUPTED = 130
UNUSABLE = 2
"""Exit code where what an argument names cannot be used; see `EXIT_CODES`."""

BACKENDS = "xla_bridge.py"
"""File in which JAX looks for devices, and raises errors that may have no message."""

INTERRUPTED_OUTSIDE = "interrupted before any round ran"
INTERRUPTED_AGAIN = "interrupted again: everything since the last checkpoint is lost"

EXIT_CODES = {
    0: "done; a run is complete",
    2: "the study, an argument or the data cannot be used",
    3: "the run directory cannot be used: it is not empty, belongs to another run, is damaged, "
    "is in use by another process, or is not writable",
    4: "a chain turned non-finite; the draws before it are kept",
    5: "an extra must be installed",
    6: "a data set is absent, or its checksum is wrong",
    7: "a site or a process did not answer by the deadline, refused, or sent an implausible "
    "message; earlier draws are kept",
    8: "the warm-up did not find usable settings",
    9: "a site's policy forbids the study",
    10: "a site's ledger is broken",
    BAD: "the verdict on the settings is bad: they are predicted to diverge or to have a large "
    "bias; or the ranks of `consortia sbc` are not uniform",
    UNKNOWN: "`consortia site rehearse` cannot tell what an attack would read, or how many rows "
    "the messages determine",
    REFUSED: "`consortia site rehearse` finds that an honest run may end without a result",
    INTERRUPTED: "interrupted; the draws so far are kept, and `consortia resume` continues",
}
"""Meaning of each exit code of ``consortia check``, ``run`` and ``resume``."""


@contextlib.contextmanager
def reported(quiet: bool, engine: Any = None) -> Iterator[None]:
    """Turn errors into one message and an exit code, and warnings into one line each.

    Of an ``engine`` of many processes the root prints for all, and each informs the others that
    it ends. The root alone decides whether an interrupt ends the run: it may come while the others
    are not as far as the root is.
    """
    silent = engine is not None and not engine.root
    interrupts = Interrupts()

    def show(message: Warning | str, *details: Any, **more: Any) -> None:
        if not quiet:
            typer.echo(f"warning: {printable(str(message), lines=True)}", err=True)

    def end(text: str, error: BaseException | None, code: int) -> typer.Exit:
        """Print what ended the command, inform the other processes, and return its exit."""
        if not silent:
            typer.echo(text, err=True)
        if engine is not None and error is not None:
            engine.abort(error, code)
        return typer.Exit(code)

    try:
        noting = interrupts if silent else contextlib.nullcontext()
        with warnings.catch_warnings(), noting, held():
            warnings.showwarning = show
            yield
    except (ConsortiaError, ModuleNotFoundError) as caught:
        error = absent(caught) if isinstance(caught, ModuleNotFoundError) else caught
        if error is None:
            raise
        ended = interrupts.requested and isinstance(error, RankError)
        code = INTERRUPTED if ended else exit_code(error)
        raise end(f"error: {printable(str(error), lines=True)}", error, code) from None
    except (OSError, MemoryError) as error:  # our own are above
        if isinstance(error, BrokenPipeError):
            raise  # who read the output has gone
        raise end(f"error: {printable(_system_text(error))}", error, UNUSABLE) from None
    except (RuntimeError, AssertionError) as error:
        if not _of_backends(error):
            raise
        asked = os.environ.get("JAX_PLATFORMS", "")
        text = f"JAX finds no device (JAX_PLATFORMS={asked!r}): set it to cpu, or unset it"
        raise end(f"error: {printable(text)}.", None, UNUSABLE) from None
    except KeyboardInterrupt as error:
        text = INTERRUPTED_AGAIN if isinstance(error, Abrupt) else INTERRUPTED_OUTSIDE
        raise end(text, KeyboardInterrupt("it was interrupted"), INTERRUPTED) from None


def _of_backends(error: BaseException) -> bool:
    """Return True if JAX has raised an error because it found no device."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.endswith(BACKENDS)


def _system_text(error: OSError | MemoryError) -> str:
    """Return the system's refusal, without its name for the error."""
    if isinstance(error, MemoryError):
        return "there is not enough memory."
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}."


def exit_code(error: BaseException) -> int:
    """Return the exit code that stands for an error, see `EXIT_CODES`."""
    from consortia.data.datasets import DatasetCorrupted, DatasetMissing

    kinds = (
        (InputError, 2),
        (StoreError, 3),
        (NonFiniteError, 4),
        (MissingExtraError, 5),
        (DatasetMissing, 6),
        (DatasetCorrupted, 6),
        (RankError, 7),
        (DeploymentError, 7),
        (SiteMissingError, 7),
        (WarmupError, 8),
        (PolicyError, 9),
        (LedgerError, 10),
        (DivergenceError, BAD),
        (OSError, UNUSABLE),
    )
    return next((code for kind, code in kinds if isinstance(error, kind)), 1)
