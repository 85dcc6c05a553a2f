"""JAX, imported when something of it is first used.

It takes longer to import than most commands take altogether, and those that compile nothing do
without. Modules import from here what they else would from JAX, and use it in functions alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from consortia.errors import InputError

__all__ = ["Array", "PyTree", "jax", "jnp", "when_loaded"]


_waiting: list[Callable[[], object]] = []


def when_loaded(action: Callable[[], object]) -> None:
    """Do something to JAX before its first use by this package, at once if that is loaded."""
    if "jax" in sys.modules:
        action()
    else:
        _waiting.append(action)


class _Late:
    """A module that is imported at the first use of a member."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, member: str) -> Any:
        try:
            module = import_module(self._name)
        except ValueError as error:  # an environment variable that JAX cannot read
            raise InputError(f"JAX cannot start: {error}") from None
        while _waiting:
            _waiting.pop(0)()
        return getattr(module, member)


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jaxtyping import Array, PyTree
else:
    jax, jnp = _Late("jax"), _Late("jax.numpy")
    Array = PyTree = Any
