"""The collector of garbage looks less often: by default a tenth of a short run is spent on it.

What is imported and traced are millions of objects that stay, at which Python's collector looks
again and again. What no cycle holds is freed at once, whatever is set here.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SELDOM = (20_000, 20, 20)
"""New objects before a collection of the youngest, and how many of each age before the next."""


def collect_seldom() -> None:
    """Set it for good, in a process of our own."""
    gc.set_threshold(*SELDOM)


def set_imports_aside() -> None:
    """Let no collection look at what is there by now, nor the one at Python's end: .1 s of it.

    For a process of our own, after its imports. What is made later, by a user's model as well, is
    finalised as ever.
    """
    gc.freeze()


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Set it for as long as something of ours is prepared and run; then as the user has it."""
    before = gc.get_threshold()
    if 0 < before[0] < SELDOM[0]:  # 0: the user has turned it off
        gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def collected_seldom(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with `seldom_collected` around it.

    Written out: between contextlib's own frames and the caller's a warning would name the wrong
    line.
    """

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        with seldom_collected():
            return function(*args, **options)

    return call
