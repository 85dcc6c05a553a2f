"""The reference in a process of its own: the same draws, and it ends with whoever wanted it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.irises import STUDY

from consortia.diagnostics.reference import nuts
from consortia.study import reference
from consortia.study.build import load_study
from consortia.study.reference import Aside, begun_aside, begun_early, reference_of

pytestmark = pytest.mark.usefixtures("one_model_object")
DRAWS = {"draws": 20, "warmup": 20, "chains": 2}
SOON = 60.0
"""Seconds in which a process has ended that has nothing more to do."""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "irises.toml"
    table = "\n".join(f"{name} = {value}" for name, value in DRAWS.items())
    path.write_text(f"{STUDY}\n[reference]\n{table}\n")
    return path


@pytest.fixture
def begun(study: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The process, begun as on a machine with two cores."""
    pytest.importorskip("blackjax", reason="needs the extra `reference`")
    monkeypatch.setattr("consortia.engines.sharding.cores", lambda: 2)
    with begun_aside(study) as aside:
        assert aside is not None
        yield aside


def test_another_process_samples_the_very_draws_of_this_one(study, begun, tmp_path, monkeypatch):
    given = load_study(study)
    built = given.build()
    expected = nuts(built.model, built.rows, **DRAWS)["posterior"]["coefficients"]
    monkeypatch.setattr(reference, "sampled", None)
    found = reference_of(given, built, tmp_path / "reference", begun)
    assert found.attrs["state"] == "finished"
    np.testing.assert_array_equal(found["posterior"]["coefficients"], expected)


def test_what_another_process_does_not_finish_is_sampled_here(study, tmp_path, monkeypatch):
    failed = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    monkeypatch.setattr(reference, "sampled", lambda study, built, directory: directory)
    aside: Any = Aside(study, tmp_path / "nothing", failed)
    assert reference_of(None, None, tmp_path / "reference", aside) == tmp_path / "reference"  # type: ignore[arg-type]


def test_the_process_and_its_files_end_with_the_context(study, monkeypatch):
    pytest.importorskip("blackjax", reason="needs the extra `reference`")
    monkeypatch.setattr("consortia.engines.sharding.cores", lambda: 2)
    with begun_aside(study) as aside:
        assert aside is not None
        folder = aside.directory.parent
        assert folder.is_dir()
    assert aside.process.returncode is not None
    assert not folder.exists()


def test_the_process_ends_when_its_starter_is_gone(study, tmp_path):
    (folder := tmp_path / "folder").mkdir()
    command = [sys.executable, "-P", reference.__file__, study, folder / "reference"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.close()  # as the system does it for a process that was killed
    assert process.wait(SOON) == 1
    assert not folder.exists()


@pytest.mark.parametrize("missing", ["a core", "BlackJAX"])
def test_nothing_is_begun_where_it_would_not_be_sooner(study, missing, monkeypatch):
    cores = 1 if missing == "a core" else 2
    monkeypatch.setattr("consortia.engines.sharding.cores", lambda: cores)
    if missing == "BlackJAX":
        monkeypatch.setitem(sys.modules, "blackjax", None)
    with begun_aside(study) as aside:
        assert aside is None


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The commands of processes that would be started, in place of these."""
    given: list[Any] = []

    def started(command: list[Any], **options: Any) -> Any:
        given.append(command)
        return real([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    real = subprocess.Popen
    monkeypatch.setattr(reference, "find_spec", lambda name: True)
    monkeypatch.setattr(reference.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(reference.subprocess, "Popen", started)
    return given


def test_the_command_begins_it_before_its_own_imports(study, commands, monkeypatch):
    monkeypatch.setattr("consortia.engines.sharding.cores", lambda: 2)
    with begun_early(["run", str(study), "--seed", "3"]) as early:
        assert early is not None
        assert commands == [[sys.executable, "-P", reference.__file__, study, early.directory]]
        with begun_aside(study, early) as aside:
            assert aside is early
            assert early.process.poll() is None
    assert len(commands) == 1
    assert early.process.returncode is not None


@pytest.mark.parametrize(
    "words",
    [
        ["check", "irises.toml"],
        ["run", "irises.toml", "--no-reference"],
        ["run", "irises.toml", "--engine=mpi"],
        ["run", "irises.toml", "--verify"],
        ["run", "without.toml"],
        ["run", "broken.toml"],
        ["run", "missing.toml"],
        ["run"],
        [],
    ],
)
def test_it_is_not_begun_early_where_it_is_not_wanted(study, commands, words, monkeypatch):
    monkeypatch.chdir(study.parent)
    Path("without.toml").write_text(STUDY)
    Path("broken.toml").write_text("[reference")
    with begun_early(words) as early:
        assert early is None
    assert commands == []


def test_what_was_begun_early_ends_where_the_reference_is_not_wanted(study, commands):
    with begun_early(["run", str(study)]) as early:
        assert early is not None
        with begun_aside(study, early, wanted=False) as aside:
            assert aside is None
            assert early.process.wait(SOON) != 0


def test_what_was_begun_early_for_another_file_is_not_taken(study, commands, monkeypatch):
    monkeypatch.setattr("consortia.engines.sharding.cores", lambda: 2)
    (other := study.with_name("other.toml")).write_text(study.read_text())
    with begun_early(["run", "--output", str(other), str(study)]) as early:
        assert early is not None
        with begun_aside(study, early) as aside:
            assert aside is not None
            assert aside is not early
            assert early.process.wait(SOON) != 0
    assert [command[-2] for command in commands] == [other, study]
