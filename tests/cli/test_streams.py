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
from consortia.cli.exits import UNKNOWN
from consortia.errors import StoreError
from tests.refusals import refused

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
COMPILES_NOTHING = (
    STUDY.partition("[algorithm]")[0]
    + """[algorithm]
name = "few_rounds"
[output]
figure = false
"""
)
ROWS = "".join(f"{i % 7},{i % 5},{'haut' if i % 3 else 'bas'}\n" for i in range(40))
FULL = Path("/dev/full")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with a letter that not every encoding has, and a run of it."""
    made = tmp_path_factory.mktemp("streams")
    (made / "a.csv").write_text("y,x,étage\n" + ROWS, encoding="utf-8")
    (made / "s.toml").write_text(STUDY, encoding="utf-8")
    (made / "few.toml").write_text(COMPILES_NOTHING, encoding="utf-8")
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
        pytest.param("", {"PYTHONIOENCODING": "cp1252"}, marks=pytest.mark.slow),
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
    ended = command(folder, "run", "few.toml", "-o", str(tmp_path / "run"), shell=shell, **more)
    assert ended.returncode == 0, ended.stderr
    assert b"Traceback" not in ended.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["parameters"]
    assert (tmp_path / "run" / "estimates.txt").is_file()
    if not shell:
        assert b"view it with" in ended.stdout


PRINTED = {
    "check": "check s.toml --no-bias",
    "watch": "watch whole --once",
    "examples": "examples",
    "algorithms": "algorithms",
    "one algorithm": "algorithms few_rounds",
    "schema": "schema",
    "papers": "papers",
    "a policy": "site check --study s.toml",
    "site check": "site check policy.toml --study s.toml",
    "ledger": "site ledger ledger.jsonl",
    "rehearse": "site rehearse s.toml --data a.csv",
    "help": "run --help",
    "version": "--version",
}
"""Commands whose result is what they print."""

WRITTEN = {
    "report": ("report whole -o {}/x.html", "x.html"),
    "sbc": ("sbc s.toml --simulations 2 --draws 3 -o {}", "sbc.json"),
    "init": ("init a.csv --response y -o {}/x.toml", "x.toml"),
    "export": ("export whole {}/x.nc", "x.nc"),
    "resume": ("resume {} --rounds 30", "summary.json"),
    "an example": ("examples breast_cancer --to {}", "breast_cancer.toml"),
    "flower new": ("flower new s.toml --to {}/app", "app/pyproject.toml"),
    "certificates": ("flower certificates {}/keys --host localhost", "keys/server.crt"),
    "key": ("flower key {}/site", "site/node-key"),
}
"""Commands whose result is files, and one of these."""

QUICK = ("check", "schema", "help", "init", "export", "key")
STREAMS = {
    "all at once": (">/dev/full 2>&-", {"PYTHONIOENCODING": "cp1252"}),
    "cp1252": ("", {"PYTHONIOENCODING": "cp1252"}),
    "output full": (">/dev/full", {}),
    "error full": ("2>/dev/full", {}),
    "output closed": (">&-", {}),
    "error closed": ("2>&-", {}),
}


def cases(commands: Any) -> list[Any]:
    """Return every command under every stream; one stream of six commands is not slow."""
    return [
        pytest.param(
            name,
            stream,
            id=f"{name}, {stream}",
            marks=[pytest.mark.slow] * (stream != "all at once" or name not in QUICK),
        )
        for name in commands
        for stream in STREAMS
    ]


@pytest.fixture
def given(folder: Path) -> Path:
    """The study and its run, a policy that permits it, and a ledger."""
    if not FULL.exists():
        pytest.skip("the system has no /dev/full")
    if not (folder / "policy.toml").exists():
        from consortia.federation.governance.ledger import Ledger

        (folder / "policy.toml").write_text(
            invoke("site", "check", "--study", str(folder / "s.toml")).stdout
        )
        Ledger(folder / "ledger.jsonl").append("opened", run="1", site="a")
    return folder


@pytest.mark.parametrize(("name", "stream"), cases(PRINTED))
def test_a_command_whose_result_is_its_output_fails_where_that_cannot_be_written(
    given, name, stream
):
    shell, more = STREAMS[stream]
    ended = command(given, PRINTED[name], shell=shell, **more)
    lost = ">/dev/full" in shell.split() or ">&-" in shell.split()
    # Of this study's method nobody knows how many rows its messages settle.
    whole = UNKNOWN if name == "rehearse" else 0
    assert ended.returncode == (2 if lost else whole), ended.stderr
    assert b"Traceback" not in ended.stderr
    assert bool(ended.stdout) is not lost
    if lost and "2>" not in shell:
        assert ended.stderr.count(b"error: standard output: ") == 1, ended.stderr


@pytest.mark.parametrize(("name", "stream"), cases(WRITTEN))
def test_a_command_whose_result_is_files_writes_them_whatever_becomes_of_its_output(
    given, tmp_path, name, stream
):
    (shell, more), (words, file) = STREAMS[stream], WRITTEN[name]
    place = tmp_path / "place"
    if name == "resume":
        shutil.copytree(given / "whole", place)
        (place / "summary.json").unlink()
    else:
        place.mkdir()
    ended = command(given, words.format(place), shell=shell, **more)
    assert ended.returncode == 0, ended.stderr
    assert b"Traceback" not in ended.stderr
    assert (place / file).stat().st_size > 0


@pytest.mark.slow
def test_runs_that_begin_together_have_a_directory_each(folder):
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda _: command(folder, "run", "s.toml", "-q"), range(3)))
    assert [one.returncode for one in ended] == [0, 0, 0]
    made = (path.name for path in (folder / "runs").iterdir() if path.is_dir())
    assert sorted(made) == ["s", "s-2", "s-3"]  # beside the ledger's witness


@pytest.mark.slow
def test_without_assertions_a_run_is_refused_before_it_begins(folder, tmp_path):
    ended = command(folder, "run", "few.toml", "-o", str(tmp_path / "run"), options="-O")
    assert ended.returncode == 3
    assert b"Python runs with -O" in ended.stderr
    assert not (tmp_path / "run").exists()
    assert command(folder, "check", "s.toml", "--no-bias", options="-O").returncode == 0


DRAWN = """
import hashlib, consortia, numpy as np
rows = {"y": np.arange(40) % 2, "x": np.arange(40) % 7}
made = consortia.regression("y ~ x", {"a": rows, "b": rows}, family="bernoulli")
tree = consortia.sample(made.model, made.sites, consortia.few_rounds(), progress=False, seed=3)
print(hashlib.sha256(tree["posterior"]["intercept"].values.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_without_assertions_and_without_a_store_the_draws_are_the_same(folder):
    (folder / "drawn.py").write_text(DRAWN)
    source = str(Path(consortia.__file__).parents[1])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": source}
    drawn = [
        subprocess.run(
            [sys.executable, "-W", "ignore", *options, "drawn.py"],
            cwd=folder,
            env=environment,
            capture_output=True,
            timeout=300,
        )
        for options in ([], ["-O"], ["-OO"])
    ]
    assert [one.returncode for one in drawn] == [0, 0, 0], drawn
    assert len({one.stdout for one in drawn}) == 1
    assert command(folder, "schema", options="-OO").returncode == 0


@pytest.mark.parametrize(
    "name",
    [
        "unconstrained_posterior/log_sigma",
        "sample_stats/energy",
        "posterior/chain",
        "posterior/draw",
    ],
)
def test_a_run_that_was_copied_without_a_file_is_named_with_it(folder, tmp_path, name):
    copy = tmp_path / "copy"
    shutil.copytree(folder / "whole", copy)
    (path,) = (path for path in (copy / "draws.zarr" / name / "c").rglob("*") if path.is_file())
    path.unlink()
    with refused(StoreError, file=str(path.relative_to(copy)), match="is missing"):
        consortia.open_run(copy)
    if name.endswith("log_sigma"):
        for words in (["report", str(copy)], ["export", str(copy), str(tmp_path / "x.nc")]):
            ended = invoke(*words)
            assert ended.exit_code == 3
            assert "is missing. Copy the directory of the run again" in ended.stderr
