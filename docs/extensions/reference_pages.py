"""The directive ``reference``: the public names of a module, from their docstrings.

A public name may stand for a class of another name, `consortia.fa_hmc` for ``FAHMC``, and is
documented as users call it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.util.docutils import SphinxDirective

from consortia.algorithms.registry import ALGORITHMS

METHODS = [entry.factory for entry in ALGORITHMS.values()]
FIELD = "Alias for field number"
"""How Python describes a field of a named tuple that has no docstring."""


class ReferencePage(SphinxDirective):
    """A module's docstring, and a section for each of its public names."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the sections; methods of the registry are left to their pages."""
        name = self.arguments[0]
        # `consortia.datasets` is a module of another place, under a public name.
        package = import_module("consortia")
        module = package if name == "consortia" else getattr(package, name.partition(".")[2], None)
        module = module or import_module(name)
        self.env.note_dependency(module.__file__)
        public = {key: vars(module).get(key) or getattr(module, key) for key in module.__all__}
        parts = [f".. py:module:: {name}", inspect.getdoc(module) or ""]
        for key, found in public.items():
            if callable(found) and found not in METHODS and not inspect.ismodule(found):
                self.env.note_dependency(_source(found) or module.__file__)
                text = described(f"{name}.{key}", found, self.config)
                parts.append(f"{key}\n{'-' * len(key)}\n\n{text}")
        return self.parse_text_to_nodes("\n\n".join(parts), allow_section_headings=True)


def described(name: str, found: Any, config: Any) -> str:
    """Return a public name's signature and docstring as reStructuredText."""
    kind = "class" if inspect.isclass(found) else "function"
    lines = [f".. py:{kind}:: {name}{_signature(found)}", ""]
    lines += _indented(_converted(found, kind, config))
    for member, value in _members(found):
        lines += ["", f"   .. py:{_kind(value)}:: {member}{_signature(value, bound=True)}", ""]
        lines += _indented(_indented(_converted(value, "method", config)))
    return "\n".join(lines)


def _source(found: Any) -> str | None:
    module = inspect.getmodule(found)
    return module.__file__ if module is not None else None


def _converted(found: Any, what: str, config: Any) -> list[str]:
    """Return the lines of a docstring, its sections as fields."""
    docstring = inspect.getdoc(found) or ""
    return str(GoogleDocstring(docstring, config, what=what)).splitlines()


def _indented(lines: list[str]) -> list[str]:
    return [f"   {line}" if line else "" for line in lines]


def _members(found: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class of this package adds."""
    if not inspect.isclass(found) or found in METHODS:
        return
    seen: set[str] = set()
    for base in found.__mro__:
        if not base.__module__.startswith("consortia"):
            continue
        for name, value in vars(base).items():
            plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            said = inspect.getdoc(plain) or ""
            member = inspect.isfunction(plain) or isinstance(plain, property)
            if name.startswith("_") or name in seen or not member or said.startswith(FIELD):
                continue
            seen.add(name)
            yield name, value


def _kind(value: Any) -> str:
    if isinstance(value, property):
        return "property"
    return "classmethod" if isinstance(value, classmethod) else "method"


def _signature(found: Any, *, bound: bool = False) -> str:
    """Return the arguments without their types, which docstrings say with shapes and units."""
    if isinstance(found, property):
        return ""
    plain = found.__func__ if isinstance(found, classmethod | staticmethod) else found
    try:
        parameters = list(inspect.signature(plain).parameters.values())
    except ValueError:  # a type without a signature of its own
        return ""
    if bound and not isinstance(found, staticmethod):
        parameters = parameters[1:]
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("reference", ReferencePage)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
