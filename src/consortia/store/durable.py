"""Files that are written whole or not at all, whatever ends the process or the machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO


def private(name: str, flags: int) -> int:
    """Open a file that only its owner may read, as the ``opener`` of `open`."""
    return os.open(name, flags, 0o600)


def write_through(file: BinaryIO, *pieces: Any) -> None:
    """Write bytes and have them on the disk."""
    file.writelines(pieces)
    file.flush()
    os.fsync(file.fileno())


def replace_file(path: Path, pieces: Iterable[Any], opener: Any = None) -> None:
    """Put a file of these bytes in the place of ``path``, once they are on the disk."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb", opener=opener) as file:
        write_through(file, *pieces)
    os.replace(temporary, path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Have the names in a directory on the disk; only POSIX can."""
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
