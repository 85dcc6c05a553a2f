"""Threads of the libraries of linear algebra."""

from __future__ import annotations

import functools
import sys
from contextlib import AbstractContextManager

from threadpoolctl import ThreadpoolController


@functools.lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Find the libraries of this process, again once more modules are imported."""
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """Keep products of matrices on one thread.

    Many share a small product badly, wait for each other in busy loops, and round it by their
    number.
    """
    return _libraries(len(sys.modules)).limit(limits=1, user_api="blas")
