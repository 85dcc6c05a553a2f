"""Runs that are killed with SIGKILL at random moments, and gone on with, have the usual bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.algorithms.registry import ALGORITHMS

DRIVER = Path(__file__).with_name("driver.py")
MOST_WRITES = 16
"""Checkpoints that are waited for before a kill, at most; a whole run writes about 40."""

WAIT = 0.03
"""Seconds from there to the kill, at most; a checkpoint takes about so long."""

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Compiled programs are shared, so that a process is soon where it can be killed."""
    cache = str(tmp_path_factory.mktemp("compiled"))
    return {
        "JAX_PLATFORMS": "cpu",
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


def start(name: str, directory: Path, saves: str, environment: dict[str, str]) -> Any:
    return subprocess.Popen(
        [sys.executable, str(DRIVER), name, str(directory), saves],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def written(directory: Path) -> list[tuple[str, int]]:
    """Names and times of what a process writes as soon as its run begins."""
    files = [directory / "checkpoint-a.bin", directory / "checkpoint-b.bin", directory / "run.json"]
    return [(file.name, file.stat().st_mtime_ns) for file in files if file.exists()]


def kill_once(process: Any, directory: Path, writes: int, wait: float) -> bool:
    """Kills a process some time after so many writes; False when it ended before."""
    before = written(directory)
    while writes and process.poll() is None:
        time.sleep(0.001)
        now = written(directory)
        writes -= now != before
        before = now
    time.sleep(wait)
    ended = process.poll() is not None
    process.kill()
    output = process.communicate()[0]
    if ended:
        assert process.returncode == 0, output
    return not ended


def killed_run(name: str, kills: int, seed: int, folder: Path, environment: Any) -> None:
    whole = start(name, folder / "whole", "at once", environment)
    output = whole.communicate()[0]
    assert whole.returncode == 0, output
    dice = random.Random(seed)
    count = attempts = 0
    rounds = set()
    while count < kills:
        # Sometimes at once, in the first write of all; a run that was too quick is begun anew.
        directory = folder / f"killed-{attempts}"
        attempts += 1
        assert attempts <= kills, "the runs end before they can be killed"
        while count < kills:
            writes, wait = dice.randint(1, MOST_WRITES), dice.uniform(0, WAIT)
            process = start(name, directory, "saves", environment)
            if not kill_once(process, directory, writes, wait):
                break
            count += 1
            tree = consortia.open_run(directory)
            rounds.add(tree["posterior"].sizes["draw"] if "posterior" in tree.children else 0)
        process = start(name, directory, "at once", environment)
        output = process.communicate()[0]
        assert process.returncode == 0, output
        compare(folder / "whole", directory)
    print(name, "killed", count, "times, with", sorted(rounds), "draws stored")
    assert len(rounds) > 1  # the kills came at different places


def compare(one: Path, two: Path) -> None:
    left, right = consortia.open_run(one), consortia.open_run(two)
    assert set(left.children) == set(right.children)
    for group in set(left.children) - {"diagnostics"}:
        assert set(left[group].variables) == set(right[group].variables)
        for name in left[group].variables:
            np.testing.assert_array_equal(left[group][name], right[group][name], err_msg=str(name))


def test_a_run_that_is_killed_five_times_has_the_bits_of_a_whole_one(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    killed_run("de_sgld", 5, 1, tmp_path, environment)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_runs_of_every_algorithm_that_are_killed_have_the_bits_of_whole_ones(
    name: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    killed_run(name, 5, list(ALGORITHMS).index(name), tmp_path, environment)  # 60 kills in all
