"""Each planted mutant is killed by the test that is named beside it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mutants.planted import MUTANTS, Mutant

import consortia

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(consortia.__file__).parent
ids = [f"{mutant.file}: {mutant.old[:40]}" for mutant in MUTANTS]


def mutated(mutant: Mutant, package: Path) -> str:
    text = (package / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.old!r} stands {text.count(mutant.old)} times"
    return text.replace(mutant.old, mutant.new)


@pytest.mark.lint
@pytest.mark.parametrize("mutant", MUTANTS, ids=ids)
def test_a_mutant_changes_one_place_and_its_killer_exists(mutant: Mutant) -> None:
    path, name = mutant.killer.split("[")[0].split("::")
    plain = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(mutated(mutant, PACKAGE))) != ast.dump(ast.parse(plain))
    module = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in module.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.lint
def test_every_room_has_a_mutant() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {mutant.file.split("/")[0] for mutant in MUTANTS} == rooms
    engines = {path.parent.name for path in PACKAGE.glob("engines/*/__init__.py")}
    assert engines <= {mutant.file.split("/")[1] for mutant in MUTANTS}


def outcome(source: Path, *killers: str) -> subprocess.CompletedProcess[str]:
    """Run these tests on the package below ``source``."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", ""]
        + [f"tests/{killer}" for killer in killers],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_without_a_mutant_every_killer_passes(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "consortia")
    done = outcome(tmp_path, *dict.fromkeys(mutant.killer for mutant in MUTANTS))
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=ids)
def test_a_mutant_is_killed(mutant: Mutant, tmp_path: Path) -> None:
    package = tmp_path / "consortia"
    shutil.copytree(PACKAGE, package)
    (package / mutant.file).write_text(mutated(mutant, PACKAGE), encoding="utf-8")
    done = outcome(tmp_path, mutant.killer)
    # 1: a test failed; an error while tests are collected, or no test at all, has another code.
    assert done.returncode == 1, done.stdout[-4000:]
    assert "\nFAILED " in done.stdout, done.stdout[-4000:]
