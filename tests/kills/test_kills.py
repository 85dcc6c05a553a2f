"""Runs that are killed with SIGKILL at random moments, and gone on with, have the usual bits."""

from __future__ import annotations

import functools
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.algorithms.registry import ALGORITHMS

DRIVER = Path(__file__).with_name("driver.py")
MOST_ATTEMPTS = 4
"""Runs begun for a kill: of `few_rounds` half end before it comes."""

MOST_WRITES = 16
"""Checkpoints that are waited for before a kill, at most; a whole run writes about 40."""

WAIT = 0.03
"""Seconds from there to the kill, at most; a checkpoint takes about so long."""

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


class Process:
    """A process of the driver: NAME DIRECTORY SAVES."""

    def __init__(self, driver: Any, name: str, directory: Path, saves: bool) -> None:
        self._driver, self._log = driver, Path(f"{directory}.log")
        driver.stdin.write(f"{json.dumps([name, str(directory), saves])}\n".encode())
        driver.stdin.flush()
        self.number, self.code = int(driver.stdout.readline()), None

    def ended(self, wait: float = 0.0) -> bool:
        """Whether it has ended, after at most so many seconds."""
        if self.code is None and select.select([self._driver.stdout], [], [], wait)[0]:
            self.code = int(self._driver.stdout.readline())
        return self.code is not None

    def kill(self) -> None:
        os.kill(self.number, signal.SIGKILL)
        assert self.ended(20)

    def finish(self) -> None:
        assert self.ended(300)
        assert self.code == 0, self._log.read_text()


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Process]]:
    """A function that starts a process; it is soon where it can be killed."""
    command, pipe = [sys.executable, str(DRIVER)], subprocess.PIPE
    environment = {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", **os.environ}
    with subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, env=environment) as driver:
        yield functools.partial(Process, driver)
        driver.stdin.close()


def written(directory: Path) -> list[tuple[str, int]]:
    """Names and times of what a process writes as soon as its run begins."""
    files = [directory / "checkpoint-a.bin", directory / "checkpoint-b.bin", directory / "run.json"]
    return [(file.name, file.stat().st_mtime_ns) for file in files if file.exists()]


def kill_once(process: Process, directory: Path, writes: int, wait: float) -> bool:
    """Kills a process some time after so many writes; False when it ended before."""
    before = written(directory)
    while writes and not process.ended():
        time.sleep(0.001)
        now = written(directory)
        writes -= now != before
        before = now
    if process.ended(wait):
        process.finish()
        return False
    process.kill()
    return True


def killed_run(name: str, kills: int, seed: int, folder: Path, start: Any) -> None:
    start(name, folder / "whole", False).finish()
    dice = random.Random(seed)
    count = attempts = 0
    rounds = set()
    while count < kills:
        # Sometimes at once, in the first write of all; a run that was too quick is begun anew.
        directory = folder / f"killed-{attempts}"
        attempts += 1
        assert attempts <= MOST_ATTEMPTS * kills, "the runs end before they can be killed"
        while count < kills:
            writes, wait = dice.randint(1, MOST_WRITES), dice.uniform(0, WAIT)
            if not kill_once(start(name, directory, True), directory, writes, wait):
                break
            count += 1
            tree = consortia.open_run(directory)
            rounds.add(tree["posterior"].sizes["draw"] if "posterior" in tree.children else 0)
        start(name, directory, False).finish()
        compare(folder / "whole", directory, bits=name not in SECRET)
    print(name, "killed", count, "times, with", sorted(rounds), "draws stored")
    assert len(rounds) > 1  # the kills came at different places


SECRET = ("private_posterior",)
"""Methods whose noise no two runs have in common, and no site after it was started again."""


def compare(one: Path, two: Path, *, bits: bool = True) -> None:
    left, right = consortia.open_run(one), consortia.open_run(two)
    # R-hat is kept where it takes a small part of the time, which is not the same in both.
    groups = set(left.children) - {"diagnostics"}
    assert groups == set(right.children) - {"diagnostics"}
    for group in groups:
        assert set(left[group].variables) == set(right[group].variables)
        for name in left[group].variables:
            if bits:
                wanted, given = left[group][name], right[group][name]
                np.testing.assert_array_equal(wanted, given, err_msg=str(name))
            elif group == "posterior":
                assert np.isfinite(right[group][name]).all()


def test_a_run_that_is_killed_three_times_has_the_bits_of_a_whole_one(
    tmp_path: Path, start: Any
) -> None:
    killed_run("de_sgld", 3, 1, tmp_path, start)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_runs_of_every_algorithm_that_are_killed_have_the_bits_of_whole_ones(
    name: str, tmp_path: Path, start: Any
) -> None:
    killed_run(name, 5, list(ALGORITHMS).index(name), tmp_path, start)  # 60 kills in all
