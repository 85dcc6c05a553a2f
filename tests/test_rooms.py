"""Which room of the package may import which, imports inside functions counted."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

import consortia

PACKAGE = Path(consortia.__file__).parent
PATHS = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    .removesuffix("__init__")
    .strip("."): path
    for path in PACKAGE.rglob("*.py")
}
ROOT_MOST = 23
"""Modules and packages beside one another at the root, the package itself included."""

FORBIDDEN = {
    "algorithms": {"engines", "theory", "oracles", "run"},
    "theory": {"engines"},
    "engines": {"run", "study", "report", "federation", "cli"},
    "data": {"engines"},
    "report": {"engines"},
}
TYPED = ("algorithms", "dynamics", "engines", "gradients", "theory")
MOST_UNTYPED = 0.1
"""Share of the parameters of a typed room's functions whose type may be left open."""

BELOW_CORE = {"core", "errors"}
IMPORT_ALL = {"federation", "cli", "__main__"}
PENDING: set[tuple[str, str]] = set()
"""Imports that break the rules and wait for their rooms to be redrawn."""


def imported(name: str) -> set[str]:
    """Return the modules of the package that a module imports, anywhere in its text."""
    found = set()
    for node in ast.walk(ast.parse(PATHS[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "consortia":
            base = (node.module or "").removeprefix("consortia").strip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".strip(".")
                found.add(inner if inner in PATHS else base)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "consortia":
                    found.add(alias.name.removeprefix("consortia").strip("."))
    return found


@functools.cache
def imports() -> dict[str, set[str]]:
    """Return for each module of the package those that it imports."""
    return {name: imported(name) for name in PATHS}


def room(name: str) -> str:
    """Return the package or module at the root in which a module lies."""
    return name.split(".")[0]


def test_no_import_runs_in_a_circle():
    remaining = dict(imports())
    while free := [name for name, targets in remaining.items() if not targets & remaining.keys()]:
        for name in free:
            del remaining[name]
    # What only leads into a circle without being part of one goes too.
    while free := [n for n in remaining if not any(n in t for t in remaining.values())]:
        for name in free:
            del remaining[name]
    assert not remaining, sorted(remaining)


def test_rooms_import_only_what_they_may():
    broken = set()
    for name, targets in imports().items():
        here = room(name)
        for target in targets:
            there = room(target)
            wrong = (
                there in FORBIDDEN.get(here, ())
                or (here == "core" and there not in BELOW_CORE)
                or (there in IMPORT_ALL and here not in IMPORT_ALL)
            )
            if wrong:
                broken.add((name, target))
    assert broken == PENDING


def test_no_two_files_of_a_folder_have_a_common_prefix():
    found: dict[tuple[Path, str], list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if path.name != "__init__.py":
            prefix = path.stem.strip("_").split("_")[0]
            found.setdefault((path.parent, prefix), []).append(path.name)
    assert [names for names in found.values() if len(names) > 1] == []


def test_the_root_has_few_modules_and_packages():
    entries = {path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    entries -= {"__pycache__", "__main__.py"}  # of `python -m`
    assert len(entries) <= ROOT_MOST, sorted(entries)


def left_open(name: str) -> list[bool]:
    """Return for each parameter of a module's functions whether its type is left open."""
    tree = ast.parse(PATHS[name].read_text(encoding="utf-8"))
    anything = {"Any"} | {
        ast.unparse(node.targets[0])
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "Any"
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            given = node.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            found += [
                each.annotation is None or ast.unparse(each.annotation) in anything
                for each in every
                if each is not None and each.arg not in ("self", "cls")
            ]
    return found


@pytest.mark.parametrize("typed", TYPED)
def test_the_parameters_of_the_rooms_that_compute_have_types(typed):
    found = [one for name in PATHS if room(name) == typed for one in left_open(name)]
    assert sum(found) <= MOST_UNTYPED * len(found), f"{sum(found)} of {len(found)}"


PROBED = re.compile(r"(has|get)attr\((\w*method|\w*algorithm|\w*engine|run|self\._run)\b")


def test_no_member_of_a_method_an_engine_or_a_run_is_looked_for_by_name():
    found = [name for name, path in PATHS.items() if PROBED.search(path.read_text("utf-8"))]
    assert found == []
