"""Files that are written whole or not at all, whatever ends the process or the machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def replace_file(path: Path, pieces: Iterable[Any]) -> None:
    """Put a file of these bytes in the place of ``path``, once they are on the disk."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
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
