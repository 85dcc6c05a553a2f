"""A factory is code: commands that look at what others made run it when they are told to."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from consortia.cli.commands import app
from consortia.study.build import load_study
from consortia.study.code import hash_of, may_run, modules, remember
from tests.refusals import refused

FACTORY = """
from pathlib import Path
import consortia
import helper

Path(__file__).with_name("ran").touch()

def make(features):
    return consortia.models.linear_regression(features)
"""
STUDY = """
[data]
files = ["a.csv"]
[model]
factory = "own_factory:make"
[algorithm]
name = "fa_ld"
step_size = 0.01
local_steps = 1
[run]
rounds = 10
chains = 1
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setenv("CONSORTIA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "own_factory.py").write_text(FACTORY)
    (folder / "helper.py").write_text("")
    (folder / "a.csv").write_text("x,y\n1,0.5\n2,1.5\n3,2.5\n")
    (folder / "study.toml").write_text(STUDY)
    return folder / "study.toml"


def ran(study):
    return study.with_name("ran").exists()


def test_check_leaves_a_factory_out_until_it_is_asked_for(study):
    for options in ([], ["--json"]):
        outcome = CliRunner().invoke(app, ["check", str(study), *options])
        assert outcome.exit_code == 0
        assert "runs with your rights" in outcome.stdout
        assert not ran(study)
    assert json.loads(outcome.stdout)["left_out"].startswith("the factory own_factory:make")


def test_a_factory_that_was_run_before_is_known_until_a_file_of_it_changes(study):
    loaded = load_study(study)
    assert not may_run(*loaded.code, code=False)
    assert may_run(*loaded.code, code=True)
    assert may_run(*loaded.code, code=False)
    assert set(modules(*loaded.code)) == {"own_factory.py", "helper.py"}
    before = hash_of(*loaded.code)
    study.with_name("helper.py").write_text("# another\n")
    assert hash_of(*loaded.code) != before
    assert not may_run(*loaded.code, code=False)


def test_a_list_that_others_may_write_is_not_believed(study, tmp_path):
    loaded = load_study(study)
    remember(*loaded.code)
    assert may_run(*loaded.code, code=False)
    (tmp_path / "cache" / "factories.txt").chmod(0o666)
    assert not may_run(*loaded.code, code=False)


def test_an_installed_module_is_found_without_its_package_being_imported(study, capfd):
    text = study.read_text().replace("own_factory:make", "this.x:make")
    study.write_text(text)
    with refused(argument="model.factory"):
        modules(*load_study(study).code)
    assert "Zen" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("text", "argument", "match"),
    [
        ("import sys\nsys.exit(0)\n", "model.factory", "SystemExit"),
        ("def make(:\n", "model.factory", "SyntaxError"),
        ("raise RuntimeError('mine')\n", "model.factory", "line 1"),
        (
            "def make(features):\n    raise KeyError('mine')\n",
            None,
            "KeyError: 'mine', in line 2 of",
        ),
        ("def make(features):\n    raise SystemExit(0)\n", None, "SystemExit"),
        ("make = iter\n", "model.factory", "name a Python function"),
    ],
)
def test_what_a_factory_raises_is_told_with_its_place(study, tmp_path, text, argument, match):
    name = f"own_{abs(hash(text))}"
    study.write_text(study.read_text().replace("own_factory", name))
    study.with_name(f"{name}.py").write_text(text)
    with refused(argument=argument, match=match):
        load_study(study).build()


def test_a_module_of_the_same_name_from_elsewhere_is_not_taken_for_the_own_one(study, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for file in study.parent.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    load_study(study).build()
    with refused(argument="model.factory", match="another module"):
        load_study(other / "study.toml").build()
