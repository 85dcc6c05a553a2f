"""Strict numerics for every test, and the fixtures that all of them share."""

from __future__ import annotations

import functools
import gc
import hashlib
import itertools
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Before JAX starts; an explicit choice, say of a GPU, stands.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# A suite that a script starts in the background, or under nohup, has these ignored, and so would
# have the programs that it starts: their tests send them.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)

# Tests compile for longer than they compute. XLA's newer code generator for loops takes more than
# twice as long as the older one, and so does splitting a program to compile it in many threads.
FLAGS = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")


def is_known(flag: str) -> bool:
    """Return False where this version of XLA has no such flag, for which it would end the tests.

    It is asked in a process of its own, once for each version.
    """
    name = f"{version('jaxlib')} {flag}".replace("=", " ")
    answer = Path(__file__).parents[1] / ".pytest_cache" / "flags" / name
    if not answer.exists():
        asked = [sys.executable, "-c", "import jax; jax.devices()"]
        given = os.environ | {"XLA_FLAGS": flag}
        known = subprocess.run(asked, env=given, capture_output=True).returncode == 0
        answer.parent.mkdir(parents=True, exist_ok=True)
        answer.write_text(str(known))
    return answer.read_text() != "False"


for option in FLAGS:
    if option not in os.environ.get("XLA_FLAGS", "") and is_known(option):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {option}".strip()

# Where an operation stands in the source is for profilers: it is written into no program here.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import jax
import numpy as np
import pytest
import typer.testing
from _pytest.doctest import DoctestItem, DoctestModule
from jax._src.interpreters import mlir

from consortia.core.contract import Algorithm, Claims, Method
from consortia.core.fingerprints import of_processor
from consortia.core.target import Target
from consortia.run import prediction
from consortia.run.compiled import remove_oldest
from consortia.study.model import MODELS

# JAX makes a context of MLIR for each program and keeps it with the program: with thousands of them
# the tests take a twelfth longer, and nearly twice the memory. The programs are the same in one.
mlir.make_ir_context = functools.cache(mlir.make_ir_context)

# Typer makes all commands anew from their signatures at each call in a test, for 0.05 s and more.
typer.testing._get_command = functools.cache(typer.testing._get_command)

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

TESTS = Path(__file__).parent

# What one process of the tests has compiled the others read, also those that tests start, and the
# next run, which takes a fifth less time. The key of an entry is the program with all options of
# the compiler.
COMPILED = TESTS.parent / ".pytest_cache" / "compiled" / of_processor()
KEPT = {
    "jax_compilation_cache_dir": str(COMPILED),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    for option, value in KEPT.items():
        jax.config.update(option, value)
        os.environ[option.upper()] = str(value)


def pytest_configure() -> None:
    """Make room for compiled programs, in the first process of a run."""
    if "PYTEST_XDIST_WORKER" not in os.environ and COMPILED.is_dir():
        remove_oldest(COMPILED, most_bytes=2**30)


def pytest_unconfigure() -> None:
    """Look for garbage once more, in place of several times over."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for no garbage while tests are collected: a seventh of that time, and hardly any is."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[Any], list[Any]]:
    """Look for examples in the source alone: there are none in tests, and it takes seconds."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule)]


def pytest_collection_finish() -> None:
    """Let the collector of garbage look less often, and never at what is imported by now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


LONGEST = ("flower deployment", "mpi", "devices", "tests/docs/test_site.py", "flower simulation")
"""Groups that are begun first, so that no process is left with one at the end."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process run the tests of a file: what they share is made and compiled there once."""
    for item in items:
        if isinstance(item, DoctestItem):
            item.add_marker(pytest.mark.lint)
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    groups = {item: item.get_closest_marker("xdist_group").args[0] for item in items}
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(groups[item], len(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Quick tests compile much and compute little: the compiler leaves its slow passes out there.

    So it does in what several tests share, and in the processes that they start. Programs of one
    kind are forgotten before those of the other: two halves of a comparison bit for bit would else
    be compiled differently.
    """
    quickly = item.path.is_relative_to(TESTS) and item.get_closest_marker("slow") is None
    if item.config.stash.get(QUICKLY, quickly) != quickly:
        import insides  # loads more than most tests need

        insides.clear_programs()
    item.config.stash[QUICKLY] = quickly
    with pytest.MonkeyPatch.context() as patch:
        if quickly:
            jax.config.update("jax_disable_most_optimizations", True)
            patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        try:
            return (yield)
        finally:
            jax.config.update("jax_disable_most_optimizations", False)


QUICKLY = pytest.StashKey[bool]()
"""True if the last test compiled without the slow passes."""

LARGEST_PREDICTED = prediction.MOST_OPERATIONS


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Predict the bias in tests marked ``predicted`` only: it compiles a second for each model."""
    wanted = item.get_closest_marker("predicted") is not None
    prediction.MOST_OPERATIONS = LARGEST_PREDICTED if wanted else 0


@pytest.fixture
def x64() -> Iterator[None]:
    """Run the test in double precision; compiled functions of the two precisions never mix."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def secrets_by_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw what sites keep secret from a test's name, so that a run of it has one noise.

    Processes that the test starts draw theirs anew, or all that are forked would have the same.
    """
    process, counted, drawn = os.getpid(), itertools.count(), secrets.token_hex

    def token_hex(count: int) -> str:
        if os.getpid() != process:
            return drawn(count)
        name = request.node.nodeid.partition("@")[0]  # before what xdist adds
        text = f"{name} {next(counted)}"
        return hashlib.shake_256(text.encode()).hexdigest(count)

    for module in DRAWING:
        monkeypatch.setattr(f"{module}.secrets", SimpleNamespace(token_hex=token_hex))


DRAWING = (
    "consortia.engines.messages.engine",
    "consortia.engines.messages.files",
    "consortia.federation.letters.coordinating",
)
"""Modules that draw the secret of a site, or a run's identity, which is in its noise, too."""


@pytest.fixture
def width_of_before() -> Iterator[None]:
    """Give numbers their width back, which a server and a site set for their whole process."""
    before = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def require_data() -> Callable[[str], Path]:
    """Return a function from a data set's name to its folder; it skips the test if it is absent."""

    def folder_of(name: str) -> Path:
        root = os.environ.get("CONSORTIA_DATA")
        if root is None:
            pytest.skip(f"needs the data set {name}: CONSORTIA_DATA is not set")
        folder = Path(root) / name
        if not folder.is_dir():
            pytest.skip(f"needs the data set {name}, which CONSORTIA_DATA lacks")
        return folder

    return folder_of


@pytest.fixture(scope="module")
def one_model_object() -> Iterator[None]:
    """Studies of a module share their model, so that equal programs are compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        shared = functools.cache(MODELS["softmax_regression"])
        patch.setitem(MODELS, "softmax_regression", shared)
        yield


@dataclass(frozen=True)
class Sketch(Method):
    """A `consortia.core.contract.Method` around phases; weights by rows, or all ``equal``."""

    make: Callable[[Target], Algorithm]
    equal: bool = False
    name: str = "sketch"

    step_size = None
    claims = Claims("a sketch", "not known", "the position", "none", "ours")

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        return np.full(len(sizes), 1 / len(sizes)) if self.equal else sizes / sizes.sum()

    def build(self, target: Target) -> Algorithm:
        return self.make(target)

    def parameters(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def method_around() -> type[Sketch]:
    """A method made of phases that belong to no published one."""
    return Sketch
