"""Commands whose output cannot be written: the result is on the disk, the exit code right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cli.irises import invoke

import consortia
from consortia.errors import StoreError

STUDY = """
[data]
files = ["a.csv"]
[model]
formula = "y ~ x + étage"
[algorithm]
name = "federated_hmc"
step_size = 0.2
leapfrog_steps = 3
mass_matrix = "identity"
[run]
rounds = 20
chains = 2
[output]
figure = false
"""
ROWS = "".join(f"{i % 7},{i % 5},{'haut' if i % 3 else 'bas'}\n" for i in range(40))
FULL = Path("/dev/full")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with a letter that not every encoding has, and a run of it."""
    made = tmp_path_factory.mktemp("streams")
    (made / "a.csv").write_text("y,x,étage\n" + ROWS, encoding="utf-8")
    (made / "s.toml").write_text(STUDY, encoding="utf-8")
    assert command(made, "run", "s.toml", "-o", "whole").returncode == 0
    return made


def command(folder: Path, *words: str, shell: str = "", options: str = "", **more: str) -> Any:
    """Run ``python -m consortia`` in a folder, its streams as the shell redirects them."""
    line = " ".join([sys.executable, *options.split(), "-m", "consortia", *words, shell])
    source = str(Path(consortia.__file__).parents[1])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": source, **more}
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, env=environment, capture_output=True, timeout=300
    )


@pytest.mark.parametrize(
    ("shell", "more"),
    [
        ("", {"PYTHONIOENCODING": "cp1252"}),
        (">/dev/full", {}),
        pytest.param("2>/dev/full", {}, marks=pytest.mark.slow),
        pytest.param(">&-", {}, marks=pytest.mark.slow),
        pytest.param("2>&-", {}, marks=pytest.mark.slow),
        (">&- 2>&-", {"PYTHONIOENCODING": "ascii"}),
        pytest.param("", {"COLUMNS": "0"}, marks=pytest.mark.slow),
    ],
    ids=["cp1252", "output full", "error full", "output closed", "error closed", "both", "narrow"],
)
def test_a_run_whose_output_cannot_be_written_is_on_the_disk(folder, tmp_path, shell, more):
    if "full" in shell and not FULL.exists():
        pytest.skip("the system has no /dev/full")
    ended = command(folder, "run", "s.toml", "-o", str(tmp_path / "run"), shell=shell, **more)
    assert ended.returncode == 0, ended.stderr
    assert b"Traceback" not in ended.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["parameters"]
    assert (tmp_path / "run" / "estimates.txt").is_file()
    if not shell:
        assert b"look at it with" in ended.stdout


@pytest.mark.parametrize(
    "words",
    [["check", "s.toml", "--no-bias"], ["algorithms"], ["watch", "whole", "--once"]],
    ids=lambda words: words[0],
)
def test_a_command_whose_result_is_its_output_fails_where_that_cannot_be_written(folder, words):
    if not FULL.exists():
        pytest.skip("the system has no /dev/full")
    ended = command(folder, *words, shell=">/dev/full")
    assert ended.returncode == 2
    assert b"Traceback" not in ended.stderr
    assert ended.stderr.count(b"No space left on device") == 1
    other = command(folder, *words, PYTHONIOENCODING="cp1252")
    assert other.returncode == 0, other.stderr
    assert command(folder, *words, shell="2>&-").returncode == 0


@pytest.mark.slow
def test_runs_that_begin_together_have_a_directory_each(folder):
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda _: command(folder, "run", "s.toml", "-q"), range(3)))
    assert [one.returncode for one in ended] == [0, 0, 0]
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["s", "s-2", "s-3"]


def test_without_assertions_a_run_is_refused_before_it_begins(folder, tmp_path):
    ended = command(folder, "run", "s.toml", "-o", str(tmp_path / "run"), options="-O")
    assert ended.returncode == 3
    assert b"Python runs with -O" in ended.stderr
    assert not (tmp_path / "run").exists()
    assert command(folder, "check", "s.toml", "--no-bias", options="-O").returncode == 0


@pytest.mark.parametrize(
    "name", ["posterior/log_sigma", "sample_stats/energy", "posterior/chain", "posterior/draw"]
)
def test_a_run_that_was_copied_without_a_file_is_named_with_it(folder, tmp_path, name):
    copy = tmp_path / "copy"
    shutil.copytree(folder / "whole", copy)
    (path,) = (path for path in (copy / "draws.zarr" / name / "c").rglob("*") if path.is_file())
    path.unlink()
    with pytest.raises(StoreError, match=f"the file draws.zarr/{name}/c.* is missing"):
        consortia.open_run(copy)
    if name.endswith("log_sigma"):
        for words in (["report", str(copy)], ["export", str(copy), str(tmp_path / "x.nc")]):
            ended = invoke(*words)
            assert ended.exit_code == 3
            assert "is missing. Copy the directory of the run again" in ended.stderr
