"""The names and signatures of all that is public, as text."""

from __future__ import annotations

import inspect
import re
from typing import Any

import consortia


def signatures() -> dict[str, dict[str, str]]:
    """Return ``{"public/NAME": {"signature": ...}}``; a module's public names are with it."""
    made = {}
    for name in consortia.__all__:
        value = getattr(consortia, name)
        made[f"public/{name}"] = {"signature": signature_of(value)}
        for part in parts_of(value) if inspect.ismodule(value) else ():
            made[f"public/{name}.{part}"] = {"signature": signature_of(getattr(value, part))}
    return made


def parts_of(module: Any) -> list[str]:
    """Return the public names of a module: those it lists, or what is defined in it."""
    own = [name for name, value in vars(module).items() if is_defined_in(module, value)]
    return [name for name in getattr(module, "__all__", own) if not name.startswith("_")]


def is_defined_in(module: Any, value: Any) -> bool:
    """Return True for functions and classes of the module or of a part of it."""
    written = getattr(value, "__module__", None) or ""
    return callable(value) and f"{written}.".startswith(f"{module.__name__}.")


def signature_of(value: Any) -> str:
    """Return the parameters of a function or class, or a kind of value; no addresses."""
    try:
        return re.sub(" at 0x[0-9a-f]+", "", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return type(value).__name__
