"""Files that are written whole or not at all, whatever ends the process or the machine.

What is written has a name that nobody can have foreseen, and no link is followed: a directory may
come from somebody else.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from consortia.errors import StoreError

PART = ".part"
"""Ending of the names of files that are being written; one that a kill leaves is useless."""

NO_LINK = getattr(os, "O_NOFOLLOW", 0)
AT_ONCE = getattr(os, "O_NONBLOCK", 0)
"""Flags that only POSIX has: a link is an error; who opens a pipe does not wait for its writer."""


def private(name: str, flags: int) -> int:
    """Open a file that only its owner may read, as the ``opener`` of `open`."""
    return os.open(name, flags, 0o600)


def fresh(name: str, flags: int) -> int:
    """Open a file that is not there yet, as the ``opener`` of `open`."""
    return os.open(name, flags | os.O_EXCL | NO_LINK, 0o666)


def fresh_private(name: str, flags: int) -> int:
    """Open a file that is not there yet and that only its owner may read."""
    return os.open(name, flags | os.O_EXCL | NO_LINK, 0o600)


def part_of(path: Path) -> Path:
    """Return a name beside ``path``, to write its content under before it gets its own name."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART}")


def write_through(file: BinaryIO, *pieces: Any) -> None:
    """Write bytes and have them on the disk."""
    file.writelines(pieces)
    file.flush()
    os.fsync(file.fileno())


def replace_file(path: Path, pieces: Iterable[Any], *, private: bool = False) -> None:
    """Put a file of these bytes in the place of ``path``, once they are on the disk.

    Args:
        path: of the file; a link of this name is replaced, and what it points to is left alone.
        pieces: the bytes.
        private: only its owner may read it.
    """
    opener = fresh_private if private else fresh
    with written_beside(path) as temporary, open(temporary, "wb", opener=opener) as file:
        write_through(file, *pieces)


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Give a name to write to; it replaces ``path`` at the end, and is removed after an error."""
    temporary = part_of(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def read_regular(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file of at most ``most`` bytes.

    Raises:
        OSError: it is something else, longer, or cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | NO_LINK | AT_ONCE)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path.name} is not a regular file")
        if status.st_size > most:
            raise OSError(f"{path.name} has {status.st_size} bytes, the most is {most}")
        return file.read(status.st_size + 1)


def remove_parts(directory: Path) -> None:
    """Remove what a kill has left in a directory of files that were being written."""
    for path in directory.glob(f"*{PART}"):
        path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Flush the names in a directory to the disk; only POSIX can."""
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file system's error when a file cannot be written; what was saved is still there."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"{str(path)!r} cannot be written: {error.strerror or error}. What was saved is "
            f"intact: make room, then continue with `consortia resume {path}` or consortia.resume."
        ).at(file=str(path)) from error
