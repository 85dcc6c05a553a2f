"""Compiled programs are kept for the next process, in the user's cache directory."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from consortia.core import fingerprints
from consortia.data.downloads import cache_directory
from consortia.errors import warn
from consortia.runtime import late
from consortia.runtime.late import jax

SWITCH = "CONSORTIA_COMPILATION_CACHE"
"""The environment variable that is 0 where nothing is to be kept."""

MOST_BYTES = 256 * 1024 * 1024
"""Beyond this the oldest programs are removed when a process starts."""


@functools.cache
def keep_compiled_programs() -> None:
    """Let JAX keep what it compiles from now on, unless the user has decided where, or against it.

    Decided once in a process, when JAX is loaded. JAX names a program by its operations, its
    options and the versions of JAX and of the compiler; the folder is that of this kind of
    processor, since unlike machines may share a cache. Who may write there may run code in this
    process: a folder of another user is not taken.
    """
    late.when_loaded(_keep)


def _keep() -> None:
    options: Any = jax.config
    decided = options.jax_compilation_cache_dir is not None
    if decided or os.environ.get(SWITCH) == "0" or not options.jax_enable_compilation_cache:
        return
    folder = cache_directory() / "compiled" / fingerprints.of_processor()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_own(folder)
        remove_oldest(folder, MOST_BYTES)
    except OSError as error:
        warn(
            f"compiled programs are not kept for the next run: {error}. Set CONSORTIA_CACHE to a "
            f"folder of your own, or {SWITCH}=0 to do without."
        )
        return
    options.update("jax_compilation_cache_dir", str(folder))
    options.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _check_own(folder: Path) -> None:
    """Raise an `OSError` where others may write, or this user may not."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written")
    status = folder.stat()
    if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        raise PermissionError(f"others may write to {folder}")


def remove_oldest(folder: Path, most_bytes: int) -> None:
    """Remove the oldest programs down to half of so many bytes, where there are more."""
    with os.scandir(folder) as entries:
        files = [(entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries]
    total = sum(size for _, size, _ in files)
    if total <= most_bytes:
        return
    for _, size, path in sorted(files):
        Path(path).unlink(missing_ok=True)
        total -= size
        if total <= most_bytes // 2:
            return
