"""Programs and shapes that are kept for later runs, those that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def kept(values: OrderedDict[Any, T], key: Any, make: Callable[[], T], most: int) -> T:
    """Return the value under a key, made now if it is new; drop the oldest beyond ``most``."""
    value = values.pop(key) if key in values else make()
    values[key] = value  # the youngest last
    while len(values) > most:
        values.popitem(last=False)
    return value
