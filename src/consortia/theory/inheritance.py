"""Laws and limits of a class, which a subclass with another algorithm does not inherit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAKERS = ("build", "converse")
"""Methods that return the algorithm: phases, or a conversation."""


def has_algorithm_of(kind: type, base: type) -> bool:
    """Return True if a class is the base, or a subclass that overrides none of its `MAKERS`."""
    if not issubclass(kind, base):
        return False
    own = kind.__mro__[: kind.__mro__.index(base)]
    return not any(name in vars(one) for one in own for name in MAKERS)


def knows(function: Callable[..., Any], kind: type) -> bool:
    """Return True if a `functools.singledispatch` function is registered for this algorithm."""
    dispatched: Any = function
    found = dispatched.dispatch(kind)
    bases = [one for one in kind.__mro__ if dispatched.registry.get(one) is found]
    return bases[0] is not object and has_algorithm_of(kind, bases[0])
