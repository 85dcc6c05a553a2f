"""Ctrl-C on a job of MPI ranks: it ends at once, with its draws."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from parity import launch
from parity.studies import STUDY

import consortia
from consortia.store.checkpoint import Checkpoints

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("mpi")]

RANK = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from consortia.cli import main
main()
"""
"""What a background job of a shell has started ignores the interrupt, and so do its children."""

STUDIES = {
    "fa_hmc": (3, 2, "step_size = 0.1\nleapfrog_steps = 2\nlocal_steps = 2"),
    "stale_sgld": (1, 3, "step_size = 0.001\nbatch_size = 4\nworkers = 2"),
}
"""Sites, ranks and arguments of a method that meets each round, and of an asynchronous one."""


@pytest.mark.parametrize("algorithm", STUDIES)
def test_ctrl_c_ends_all_ranks_and_keeps_their_draws(tmp_path, algorithm):
    sites, count, arguments = STUDIES[algorithm]
    study, store = tmp_path / "study.toml", tmp_path / "run"
    study.write_text(STUDY.format(sites=sites, algorithm=algorithm, arguments=arguments))
    command = [launch.mpiexec(), "-n", str(count), sys.executable, "-c", RANK, "run", str(study)]
    job = subprocess.Popen(
        [*command, "--engine", "mpi", "--output", str(store), "--rounds", str(10**7)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=launch.environment(),
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 120
        while not Checkpoints(store).present and job.poll() is None and time.monotonic() < until:
            time.sleep(0.05)  # there is one before the first round, when others are not as far
        job.send_signal(signal.SIGINT)
        printed, said = job.communicate(timeout=120)
    finally:
        job.kill()
    assert job.returncode == 130, said
    assert said.count("interrupted after round") == 1
    assert f"consortia resume {store}" in printed.replace("\n", " ")
    for wrong in ("Traceback", "Exception ignored", "error:", "before any round"):
        assert wrong not in said
    tree = consortia.open_run(store)
    assert tree.attrs["state"] == "interrupted"
    kept, damaged = Checkpoints(store).readable()
    assert not damaged
    assert max(one.done for one in kept) == tree["posterior"].sizes["draw"] > 0


HEARS = """
import os, signal, time
os.register_at_fork(after_in_parent=lambda: time.sleep({pause}))  # as libraries do
from consortia.engines.mpi.guard import stand_guard
signal.signal(signal.SIGINT, signal.default_int_handler)
stand_guard("")
heard = []
signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
print("ready", flush=True)
until = time.monotonic() + {seconds}
while time.monotonic() < until and not heard:
    time.sleep(0.01)
time.sleep(0.5)  # in which a second one would come
print(len(heard), flush=True)
"""


def guarded(seconds, pause=0.0):
    """A rank that says how often it was interrupted, under its guard, in a group of their own.

    The guard is still in its fork for ``pause`` seconds when the rank is ready.
    """
    guard = subprocess.Popen(
        [sys.executable, "-c", HEARS.format(seconds=seconds, pause=pause)],
        stdout=subprocess.PIPE,
        text=True,
        env=launch.environment(PMI_RANK="0"),
        start_new_session=True,
    )
    assert guard.stdout.readline() == "ready\n"
    return guard


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prctl")
def test_a_rank_hears_once_of_an_interrupt_and_ends_with_its_guard():
    for interrupt, pause in ((os.killpg, 0.0), (os.kill, 0.0), (os.killpg, 1.0), (os.kill, 1.0)):
        guard = guarded(30.0, pause)
        interrupt(guard.pid, signal.SIGINT)
        assert guard.communicate(timeout=60)[0] == "1\n"
        assert guard.returncode == 0
    guard = guarded(60.0)
    guard.kill()
    assert guard.communicate(timeout=30)[0] == ""  # nobody is left who could write
