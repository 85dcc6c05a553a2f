"""Values that another process has sent, read in the types that they should have."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, get_type_hints


def expect(met: bool, text: str) -> None:
    """Raise an error unless a condition is met."""
    if not met:
        raise ValueError(text)


def read_as(hint: Any, value: Any, text: str) -> Any:
    """Return a value in the type of a hint, with tuples where JSON has lists.

    Raises:
        ValueError: it has another type; ``text`` says so, and nothing of the value is in it.
    """
    try:
        return _adapter(hint).validate_json(json.dumps(value), strict=True)
    except (TypeError, ValueError, RecursionError):
        raise ValueError(text) from None


def read_fields(
    kind: type, values: Any, text: str, **readers: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return the fields of a class by the hints of its annotations, or by a reader if not None.

    Raises:
        ValueError: a field is missing, unknown or of another type.
    """
    hints = _hints(kind)
    expect(isinstance(values, dict) and values.keys() == hints.keys(), text)
    fields = {}
    for name, hint in hints.items():
        if name not in readers:
            fields[name] = read_as(hint, values[name], f"{text}: {name}")
        else:
            fields[name] = None if values[name] is None else readers[name](values[name])
    return fields


_hints = functools.cache(get_type_hints)


@functools.cache
def _adapter(hint: Any) -> Any:
    from pydantic import TypeAdapter  # heavy, and only wanted between processes

    return TypeAdapter(hint)
