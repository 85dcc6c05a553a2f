"""Which room of the package may import which, imports inside functions counted."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

import consortia
from scripts.features import FEATURES, Feature, code_lines, files_of, table

pytestmark = pytest.mark.lint

PACKAGE = Path(consortia.__file__).parent
PATHS = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    .removesuffix("__init__")
    .strip("."): path
    for path in PACKAGE.rglob("*.py")
}
ROOT_MOST = 24
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

BELOW_CORE = {"core", "errors", "runtime"}
IMPORT_ALL = {"federation", "cli", "__main__"}


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
    assert not broken


NETWORKS = (
    "engines.messages",
    "engines.letters",
    "federation.letters",
    "federation.carried",
    "federation.nvflare",
    "federation.vantage6",
)
"""Rooms and modules that run without Flower: what all networks share, and the others' own."""

STARTS_FLOWER = ("federation.app", "engines.flower.grid")
"""Where Flower's two apps are made, by functions of what the networks share."""


def flower_modules(targets_of: dict[str, set[str]]) -> set[str]:
    """Return the modules of Flower's room that the other networks reach over imports."""
    reached: set[str] = set()
    waiting = {name for name in PATHS if name.startswith(NETWORKS)}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        targets = {target for target in targets_of[name] if (name, target) != STARTS_FLOWER}
        waiting |= targets & PATHS.keys() - reached
    return {name for name in reached if name.startswith("engines.flower")}


def test_letters_vantage6_and_nvflare_import_nothing_of_flower():
    assert all(any(name.startswith(network) for name in PATHS) for network in NETWORKS)
    assert not flower_modules(imports())
    messages = {name for name in PATHS if name.startswith("engines.messages")}
    others = tuple(network for network in NETWORKS if network != "engines.messages")
    assert not [(n, t) for n in messages for t in imports()[n] if t.startswith(others)]


def test_an_import_of_flower_by_what_networks_share_is_found():
    changed = {**imports(), "store.runs": {"engines.flower"}}
    assert flower_modules(changed) == {"engines.flower", "engines.flower.grid"}


def arrows() -> dict[tuple[str, str], set[tuple[str, str]]]:
    """Return the imports between each two rooms, without those of the package itself."""
    found: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for name, targets in imports().items():
        for target in targets & PATHS.keys():
            pair = room(name), room(target)
            if pair[0] != pair[1] and "" not in pair:
                found.setdefault(pair, set()).add((name, target))
    return found


def floors(pairs: set[tuple[str, str]]) -> tuple[list[list[str]], list[str]]:
    """Return the rooms floor by floor from below, and those that import each other in a circle."""
    rooms = {name for pair in pairs for name in pair}
    found: list[list[str]] = []
    while rooms:
        above = {upper for upper, lower in pairs if upper in rooms and lower in rooms}
        if not rooms - above:
            break
        found.append(sorted(rooms - above))
        rooms = above
    return found, sorted(rooms)


def test_no_room_imports_one_above_it():
    pairs = arrows()
    found, circle = floors(set(pairs))
    for number, rooms in enumerate(found):
        print(number, *rooms)
    upward = {pair: pairs[pair] for pair in pairs if {*pair} <= {*circle}}
    print(f"{len(pairs)} arrows between rooms, {len(upward)} upward")
    assert not upward


def test_an_arrow_upward_is_found():
    pairs = {*arrows(), ("store", "report")}
    assert {"store", "report"} <= set(floors(pairs)[1])


def test_the_root_has_few_modules_and_packages():
    entries = {path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    entries -= {"__pycache__", "__main__.py"}  # of `python -m`
    assert len(entries) <= ROOT_MOST, sorted(entries)


def test_folders_of_tests_are_those_of_the_source_or_of_a_kind_of_test():
    beside = {"benchmarks", "conformance", "docs", "experiments", "golden", "hostile", "kills"}
    beside |= {"mutants", "packaging", "parity", "statistical"}
    tests = Path(__file__).parent
    found = {path.parent.relative_to(tests).as_posix() for path in tests.rglob("*/test_*.py")}
    strays = {one for one in found if not (PACKAGE / one).is_dir()}
    assert {one.split("/")[0] for one in strays} <= beside


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_feature_keeps_within_its_budget(feature: Feature) -> None:
    print(f"{feature.name}: {feature.lines:,} lines of code of {feature.most:,}")
    assert 0.9 * feature.most < feature.lines <= feature.most


def test_contributing_shows_the_features_and_their_budgets():
    assert table() in (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_documentation_comments_and_blank_lines_are_no_code():
    text = '"""Of a module."""\n\n# why\ndef f(\n    x,\n):\n    """Return x."""\n    return x\n'
    assert code_lines(text) == 4


def test_a_feature_whose_file_has_moved_is_refused():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        files_of("nowhere")


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


MAX_LINES = 90
"""Of a function, with its signature and docstring."""


def function_lines() -> dict[str, int]:
    """Return the lines of every function, by module and name; of equal names the most."""
    found: dict[str, int] = {}
    for name, path in PATHS.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                full = f"{name}.{node.name}"
                found[full] = max(found.get(full, 0), (node.end_lineno or first) - first + 1)
    return found


def test_functions_can_be_read_on_two_screens():
    lines = function_lines()
    assert lines["run.sampling.sample"] > 60  # it counts signature, docstring and body
    assert {name: n for name, n in lines.items() if n > MAX_LINES} == {}


MOST_BOUND = {
    "one": 0,
    "found": 0,
    "own": 1,
    "place": 0,
    "beside": 1,
    "said": 0,
    "told": 0,
}
"""Bindings of names that name nothing, at most: they may become fewer, and none comes back."""


def bindings() -> Counter[str]:
    """Count how often each name is bound to a variable or a parameter."""
    counts: Counter[str] = Counter()
    for path in PATHS.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                counts[node.id] += 1
            elif isinstance(node, ast.arg):
                counts[node.arg] += 1
    return counts


def test_variables_name_the_thing() -> None:
    counts = bindings()
    assert {name: counts[name] for name, most in MOST_BOUND.items() if counts[name] > most} == {}


SUBJECTS = {"first", "loo", "predict", "processes", "propensity", "servers", "there"}
"""Words that begin messages and are names of arguments elsewhere: here functions and subjects."""
BEGINNING = re.compile(r"(\w+)[\w.<>]*(=|: | = |\[| [\'<]| (is|has|have|holds|must|are) )")


def words_of(message: ast.expr) -> str:
    """Return the text of a message, with <> for what is put into it."""
    if isinstance(message, ast.JoinedStr):
        return "".join(words_of(part) for part in message.values)
    return str(message.value) if isinstance(message, ast.Constant) else "<>"


def arguments_of(trees: list[ast.Module]) -> set[str]:
    """Return the names of all parameters of functions, and of all fields of classes."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    fields = [part for node in nodes if isinstance(node, ast.ClassDef) for part in node.body]
    named = [part.target for part in fields if isinstance(part, ast.AnnAssign)]
    return {node.arg for node in nodes if isinstance(node, ast.arg)} | {
        target.id for target in named if isinstance(target, ast.Name)
    }


def without_field(tree: ast.AST, arguments: set[str], *, located: bool = False) -> list[str]:
    """Return the messages of input errors that begin with an argument's name and lack its field."""
    texts: list[str] = []
    above = [*getattr(tree, "decorator_list", []), *getattr(tree, "items", [])]
    located = located or any("(argument=" in ast.unparse(node) for node in above)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute):
        located = located or tree.func.attr == "at"
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.args:
        begun = BEGINNING.match(words_of(tree.args[0]))
        if tree.func.id == "InputError" and begun and begun[1] in arguments and not located:
            texts.append(words_of(tree.args[0]))
    for child in ast.iter_child_nodes(tree):
        texts += without_field(child, arguments, located=located)
    return texts


def test_an_error_about_an_argument_has_it_as_a_field() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PATHS.values()]
    arguments, lacking = arguments_of(trees) - SUBJECTS, []
    for tree in trees:
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        lacking += without_field(tree, arguments - functions)
    assert lacking == []


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("raise InputError(f'bins is {bins}: give more.')", True),
        ("raise InputError('bins: give more.')", True),
        ("raise InputError(f'bins={bins}: give more.') from None", True),
        ("raise InputError(f'bins is {bins}: give more.').at('bins')", False),
        ("raise InputError('the bins are few.')", False),
        ("with located(argument='bins'): raise InputError('bins: give more.')", False),
    ],
)
def test_an_error_without_its_field_is_seen(line: str, refused: bool) -> None:
    assert bool(without_field(ast.parse(line), {"bins"})) is refused
