"""JAX, imported when something of it is first used.

It takes longer to import than most commands take altogether, and those that compile nothing do
without. Modules import from here what they else would from JAX, and use it in functions alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from consortia.errors import InputError, MissingExtraError

__all__ = [
    "Array",
    "PyTree",
    "absent",
    "float_type",
    "is_loaded",
    "jax",
    "jnp",
    "set_width",
    "when_loaded",
    "width_of",
]


TRUE, FALSE = ("y", "yes", "t", "true", "on", "1"), ("n", "no", "f", "false", "off", "0", "")
"""Words that JAX reads in an environment variable."""

_waiting: list[Callable[[], object]] = []


_wide: bool | None = None  # set before JAX is loaded


def is_loaded() -> bool:
    """Return True if JAX has been imported, by whomever."""
    return "jax" in sys.modules


def float_type() -> np.dtype:
    """Return the type of parameters: JAX's own width, whether it is imported already or not."""
    if is_loaded():
        return np.dtype(jnp.result_type(float))
    named = os.environ.get("JAX_ENABLE_X64", "0").lower()
    if named not in (*TRUE, *FALSE):  # which JAX refuses, too
        raise InputError(f"JAX cannot start: {named!r} for environment 'JAX_ENABLE_X64'")
    return np.dtype(np.float64 if (named in TRUE if _wide is None else _wide) else np.float32)


def set_width(*, wide: bool) -> None:
    """Let JAX compute with 64 bits or with 32 in this process, whatever its environment says."""
    global _wide
    _wide = wide
    when_loaded(lambda: jax.config.update("jax_enable_x64", _wide))


def width_of(dtype: np.dtype) -> np.dtype:
    """Return the type that JAX has for such numbers: 64 bits are 32 where it runs in these."""
    if dtype.kind not in "iufc" or float_type().itemsize == 8:
        return dtype
    half = {"c": 8}.get(dtype.kind, 4)
    return np.dtype(f"{dtype.kind}{min(half, dtype.itemsize)}")


def when_loaded(action: Callable[[], object]) -> None:
    """Do something to JAX before its first use by this package, at once if that is loaded."""
    if is_loaded():
        action()
    else:
        _waiting.append(action)


def absent(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Make the error of a package that consortia-site leaves out; None where that is not here."""
    name = (error.name or "").partition(".")[0]
    try:
        version("consortia-site")
    except PackageNotFoundError:
        return None
    return MissingExtraError(
        f"{name} is not installed: consortia-site answers studies by a formula, and this needs "
        "more. Uninstall consortia-site, then: pip install consortia."
    )


class _Late:
    """A module that is imported at the first use of a member."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, member: str) -> Any:
        try:
            module = import_module(self._name)
        except ValueError as error:  # an environment variable that JAX cannot read
            raise InputError(f"JAX cannot start: {error}") from None
        except ModuleNotFoundError as error:
            raise absent(error) or error from None
        # Each uses JAX, too: taken out before, or the first would call the second, and so on.
        actions, _waiting[:] = _waiting[:], []
        for action in actions:
            action()
        return getattr(module, member)


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jaxtyping import Array, PyTree
else:
    jax, jnp = _Late("jax"), _Late("jax.numpy")
    Array = PyTree = Any
