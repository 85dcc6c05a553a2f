"""Standard output and error that never end a command: what cannot be written is left out.

A run's result is on the disk, and a terminal that is gone, a disk that is full under a log, or an
encoding without some letter is no reason to lose it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

OUT, ERROR = 1, 2
FILES = ("run", "resume", "report", "export", "init", "papers", "flower")
"""Commands whose result is files; of the others what they print is the result."""


class Lenient(io.RawIOBase):
    """A file descriptor; what cannot be written to it is dropped.

    Args:
        number: of the descriptor.
        strict: raise in the place of dropping.
    """

    def __init__(self, number: int, *, strict: bool) -> None:
        super().__init__()
        self._number, self._strict = number, strict

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the number of the descriptor."""
        return self._number

    def isatty(self) -> bool:
        """Return True if it is a terminal."""
        return os.isatty(self._number)

    def write(self, data: object) -> int:
        """Write, or drop; return the number of bytes."""
        content = memoryview(data)  # type: ignore[arg-type]
        try:
            return os.write(self._number, content)
        except OSError:
            if self._strict:
                raise
            return content.nbytes


@contextmanager
def lenient(command: str) -> Iterator[None]:
    """Make standard error lenient while a command runs, and output that is not its result.

    Raises:
        OSError: standard output cannot be written, and it is the command's result.
    """
    _open_closed()
    before = sys.stdout, sys.stderr
    raw = Lenient(OUT, strict=command not in FILES), Lenient(ERROR, strict=False)
    sys.stdout, sys.stderr = (_text(one, stream) for one, stream in zip(raw, before, strict=True))
    own = sys.stdout, sys.stderr
    try:
        yield
    except BaseException:
        with suppress(OSError):  # what ends the command is said already
            own[0].flush()
        raise
    else:
        own[0].flush()
    finally:
        sys.stdout, sys.stderr = before


def _text(raw: Lenient, stream: object) -> io.TextIOWrapper:
    """Return a text stream on a descriptor, in the encoding of the one that was there."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, "replace", line_buffering=True, write_through=True
    )


def _open_closed() -> None:
    """Open the standard descriptors that are closed, or a file of the run would be one of them."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= ERROR:
        pass
    os.close(number)
