"""The libraries that hold and store draws, imported while rounds compile.

They take most of a second to import.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

IN_MEMORY = ("xarray",)
IN_A_STORE = (*IN_MEMORY, "zarr")


@contextlib.contextmanager
def imported_aside(modules: Sequence[str]) -> Iterator[None]:
    """Import modules in a thread of their own while the body runs; return when they are there.

    The body must import none of them: of modules that import each other in a circle, two threads
    get half of one. A module that cannot be imported is an error where it is needed.
    """
    missing = [name for name in modules if name not in sys.modules]
    if not missing:
        yield
        return
    with ThreadPoolExecutor(1) as aside:  # its end waits for the thread
        aside.submit(lambda: [importlib.import_module(name) for name in missing])
        yield
