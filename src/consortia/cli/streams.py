"""Standard output and error that never end a command: what cannot be written is left out.

A run's result is on the disk, and a terminal that is gone, a disk that is full under a log, or an
encoding without some letter must not lose it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

OUT, ERROR = 1, 2
FILES = ("run", "resume", "report", "export", "init", "sbc", "flower")
"""Commands whose result is files; of the others what they print is the result."""

FILES_OF_ONE = ("examples", "papers")
"""Commands that print a list, or write the files of what is named."""


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
        except OSError as error:
            if self._strict:
                raise OSError(error.errno, error.strerror, "standard output") from None
            return content.nbytes


def prints_result(arguments: Sequence[str]) -> bool:
    """Return True if what a command prints is its result, and no file holds it."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    if "--help" in arguments or not words:
        return True
    return words[0] not in FILES and not (words[0] in FILES_OF_ONE and len(words) > 1)


@contextmanager
def lenient(arguments: Sequence[str]) -> Iterator[None]:
    """Make standard error lenient while a command runs, and output that is not its result.

    Args:
        arguments: of the command line, the command first.

    Raises:
        OSError: standard output cannot be written, and it is the command's result.
    """
    strict = prints_result(arguments)
    _open_closed(strict=strict)
    before = sys.stdout, sys.stderr
    raw = Lenient(OUT, strict=strict), Lenient(ERROR, strict=False)
    sys.stdout, sys.stderr = (_text(file, stream) for file, stream in zip(raw, before, strict=True))
    streams = sys.stdout, sys.stderr
    try:
        yield
    except BaseException:
        with suppress(OSError):  # what ends the command is said already
            streams[0].flush()
        raise
    else:
        streams[0].flush()
    finally:
        sys.stdout, sys.stderr = before


def write_error(text: str) -> None:
    """Write a line to standard error, where that can be written."""
    with _text(Lenient(ERROR, strict=False), sys.stderr) as stream:
        stream.write(f"{text}\n")


def _text(raw: Lenient, stream: object) -> io.TextIOWrapper:
    """Return a text stream on a descriptor, in the encoding of the one that was there."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, "replace", line_buffering=True, write_through=True
    )


def _open_closed(*, strict: bool) -> None:
    """Open the standard descriptors that are closed, or a file of the run would be one of them.

    Args:
        strict: an output that was closed cannot be written.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= ERROR:
        if number == OUT and strict:
            os.close(number)
            os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free: the same
    os.close(number)
