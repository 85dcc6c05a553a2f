"""The public names of a module that only imports them, so that they are not listed twice."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any


def names(imported: Mapping[str, Any]) -> list[str]:
    """Return the names that a module offers to its users: all that it imports but modules.

    Example:
        >>> import math
        >>> names({"math": math, "sqrt": math.sqrt, "__name__": "roots"})
        ['sqrt']
    """
    return sorted(
        name
        for name, value in imported.items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    )
