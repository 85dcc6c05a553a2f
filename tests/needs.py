"""Packages that a module of tests needs, looked for without being imported.

Each process of the tests collects all modules, and would load what a few of them use.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*packages: str, extra: str = "") -> None:
    """Skip the module that calls this where a package, of an extra of ours, is not installed."""
    for package in packages:
        if find_spec(package) is None:
            why = f"needs the extra `{extra}`" if extra else f"could not import {package!r}"
            pytest.skip(why, allow_module_level=True)
