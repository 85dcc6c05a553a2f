"""``consortia resume``: after an interrupt, of a finished run, longer, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.irises import DATA, NO_FIGURE, invoke

import consortia
from consortia.errors import StoreError
from consortia.run import loop as running
from consortia.run.specification import check_same
from consortia.store.runs import checksum

pytestmark = pytest.mark.usefixtures("one_model_object")
STUDY = DATA + "[run]\nrounds = 40\nchains = 2\nthin = 3\n" + NO_FIGURE


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "irises.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="module")
def finished(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("finished") / "out"
    outcome = invoke("run", study, "--output", directory, "--quiet", "--seed", "11")
    assert outcome.exit_code == 0, outcome.output
    return directory


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "copy")


def draws(directory: Path) -> np.ndarray:
    return np.asarray(consortia.open_run(directory)["posterior"]["coefficients"])


@pytest.mark.filterwarnings("default:interrupted")
def test_an_interrupted_run_says_how_to_go_on_and_its_draws_are_those_of_a_whole_one(
    study: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = running.RunLoop._call

    def interrupted(loop: Any, end: int, thin: int) -> None:
        if loop.done >= 10:
            raise KeyboardInterrupt
        call(loop, min(end, loop.done + 5), thin)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(running.RunLoop, "_call", interrupted)
        outcome = invoke("run", study, "--output", out, "--seed", "11")
    assert outcome.exit_code == 130, outcome.output
    assert f"consortia resume {out}" in outcome.stdout
    assert consortia.open_run(out).attrs["state"] == "interrupted"

    outcome = invoke("resume", out)
    assert outcome.exit_code == 0, outcome.output
    np.testing.assert_array_equal(draws(out), draws(finished))
    assert json.loads((out / "summary.json").read_text())["parameters"]


INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from consortia.cli import main
main()
"""
"""A shell's background jobs, and what they start, ignore the interrupt."""


def test_ctrl_c_beside_a_bar_ends_the_chunk_saves_it_and_says_how_to_go_on(
    study: Path, tmp_path: Path
) -> None:
    pty = pytest.importorskip("pty", reason="needs a pseudo-terminal")
    terminal, end = pty.openpty()
    out = tmp_path / "out"
    command = ["run", str(study), "--output", str(out), "--rounds", str(10**7)]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *command],
        env={"JAX_PLATFORMS": "cpu", **os.environ, "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=end,
        text=True,
    )
    os.close(end)
    guard = threading.Timer(300, process.kill)
    guard.start()
    shown = b""
    with contextlib.suppress(OSError):  # at its end
        while part := os.read(terminal, 4096):
            asked = b"/s" in shown
            shown += part
            if b"/s" in shown and not asked:
                process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    guard.cancel()
    os.close(terminal)
    assert process.returncode == 130, shown.decode()
    assert f"consortia resume {out}" in said.replace("\n", " ")
    assert b"/10000000 rounds" in shown
    assert b"\x1b[" in shown  # a bar that is drawn again and again
    assert b'{"algorithm"' not in shown
    tree = consortia.open_run(out)
    assert tree.attrs["state"] == "interrupted"
    assert tree["posterior"].sizes["draw"] > 0


def test_a_finished_run_says_so_and_is_left_alone(copy: Path) -> None:
    before = (copy / "run.json").read_bytes()
    outcome = invoke("resume", copy)
    assert outcome.exit_code == 0, outcome.output
    assert "is finished: all rounds were run" in outcome.stdout
    assert (copy / "run.json").read_bytes() == before


def test_a_finished_run_made_longer_is_the_longer_run(
    study: Path, copy: Path, tmp_path: Path
) -> None:
    assert invoke("resume", copy, "--rounds", "70", "--quiet").exit_code == 0
    longer = tmp_path / "longer"
    options = ("--quiet", "--seed", "11", "--rounds", "70")
    assert invoke("run", study, "--output", longer, *options).exit_code == 0
    np.testing.assert_array_equal(draws(copy), draws(longer))
    fewer = invoke("resume", copy, "--rounds", "50")
    assert fewer.exit_code == 2
    assert "70 are done" in fewer.stderr


def test_a_directory_without_a_checkpoint_starts_that_run_from_the_beginning(
    finished: Path, copy: Path, tmp_path: Path
) -> None:
    for name in ("checkpoint-a.bin", "checkpoint-b.bin", "summary.json"):
        (copy / name).unlink()
    assert invoke("resume", copy, "--quiet").exit_code == 0
    np.testing.assert_array_equal(draws(copy), draws(finished))
    asked = tmp_path / "asked"  # killed before the run began
    asked.mkdir()
    for name in ("study.toml", "command.json"):
        shutil.copyfile(finished / name, asked / name)
    assert invoke("resume", asked, "--quiet").exit_code == 0
    np.testing.assert_array_equal(draws(asked), draws(finished))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("step_size = 0.1", "step_size = 0.2", "step_size"),
        ('kind = "iid"', 'kind = "iid"\nseed = 3', "other data"),
        ('kind = "softmax_regression"', 'kind = "softmax_regression"\nprior_scale = 2.0', "model"),
    ],
)
def test_a_run_of_something_else_is_refused(copy: Path, old: str, new: str, said: str) -> None:
    edited = (copy / "study.toml").read_text().replace(old, new)
    (copy / "study.toml").write_text(edited)
    before = (copy / "run.json").read_bytes()
    outcome = invoke("resume", copy, "--rounds", "70")
    assert outcome.exit_code == 3, outcome.output
    assert said in outcome.stderr
    assert "Traceback" not in outcome.output
    assert (copy / "run.json").read_bytes() == before


def test_a_run_of_a_method_that_is_gone_is_read_and_reported_and_not_gone_on_with(
    copy: Path, finished: Path
) -> None:
    path = copy / "run.json"
    content = json.loads(path.read_text())
    version = content.pop("format")
    del content["checksum"]
    content["algorithm"] = content["specification"]["algorithm"]["name"] = "surrogate_hmc"
    path.write_text(json.dumps(content | {"format": version, "checksum": checksum(content)}))
    study = (copy / "study.toml").read_text().replace('"fa_hmc"', '"surrogate_hmc"')
    (copy / "study.toml").write_text(study)
    assert consortia.open_run(copy).attrs["algorithm"] == "surrogate_hmc"
    np.testing.assert_array_equal(draws(copy), draws(finished))
    reported = invoke("report", copy)
    assert reported.exit_code == 0, reported.output
    outcome = invoke("resume", copy, "--rounds", "70")
    assert outcome.exit_code == 2, outcome.output
    assert "surrogate_hmc was removed: use few_rounds" in " ".join(outcome.stderr.split())


def test_a_stored_run_of_a_method_that_is_gone_says_what_to_take() -> None:
    then, now = ({"algorithm": {"name": name}} for name in ("surrogate_hmc", "few_rounds"))
    with pytest.raises(
        StoreError, match=r"not few_rounds: surrogate_hmc was removed: use few_rounds"
    ):
        check_same(then, now, "run", exact=True)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    outcome = invoke("resume", tmp_path)
    assert outcome.exit_code == 3
    assert "consortia.resume(" in outcome.stderr
    assert invoke("resume", tmp_path / "nothing").exit_code == 3
