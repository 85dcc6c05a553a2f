"""Federated, asynchronous and decentralized Bayesian sampling.

The public names are those that ``__init__.pyi`` imports. Each is imported when it is first used:
JAX takes longer to load than many a command or script that only mentions this package.
"""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from consortia.core.version import __version__ as __version__
from consortia.runtime import wrong_sums
from consortia.runtime.garbage import seldom_collected

wrong_sums.avoid()


def _modules() -> dict[str, str]:
    """Return the module of each public name, from the imports of the stub."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_MODULES = _modules()
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the package, at its first use."""
    module = _MODULES.get(name, __name__)
    with seldom_collected():
        value = vars(import_module(module)).get(name)
    if value is None:
        if find_spec(f"{module}.{name}") is None:
            raise AttributeError(_explain_missing(name))
        value = import_module(f"{module}.{name}")
    globals()[name] = value
    return value


def _explain_missing(name: str) -> str:
    from consortia.algorithms.registry import advice_on

    return advice_on(name) or f"module {__name__!r} has no attribute {name!r}"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
