"""Laws and limits of a class, which a subclass with another algorithm does not inherit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consortia.algorithms.expanding import Expanding
from consortia.algorithms.preconditioning import Preconditioned

MAKERS = ("build", "converse", "agent_step", "dynamics", "functions")
"""Members that make the algorithm: phases, a conversation, or the part of them that varies."""

WRAPPERS = (Expanding, Preconditioned)
"""Bases of the classes that wrap a method: they are judged by the method."""


def has_algorithm_of(kind: type, base: type) -> bool:
    """Return True if a class is the base, or a subclass that overrides none of its `MAKERS`."""
    if base not in kind.__mro__:
        return False
    below = kind.__mro__[: kind.__mro__.index(base)]
    classes = [part for part in below if not set(WRAPPERS) & set(part.__bases__)]
    return not any(name in vars(part) for part in classes for name in MAKERS)


def knows(function: Callable[..., Any], kind: type) -> bool:
    """Return True if a `functools.singledispatch` function is registered for this algorithm."""
    dispatched: Any = function
    handler = dispatched.dispatch(kind)
    bases = [base for base in kind.__mro__ if dispatched.registry.get(base) is handler]
    # Of a class that joins an abstract one by `ABC.register` nobody knows what it builds.
    return bool(bases) and bases[0] is not object and has_algorithm_of(kind, bases[0])
