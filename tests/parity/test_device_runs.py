"""Runs over devices and processes: killed, gone on with, and asked for wrongly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from parity import launch, problem, stored
from parity.studies import STUDY

import consortia

HERE = Path(__file__).parent

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("devices")]

COMMAND = ("-c", "from consortia.cli import main; main()")
AVERAGED = "step_size = 0.1\nleapfrog_steps = 2\nlocal_steps = 2"


def study(folder):
    path = folder / "study.toml"
    path.write_text(STUDY.format(sites=4, algorithm="fa_hmc", arguments=AVERAGED))
    return str(path)


def command(*arguments, devices="2"):
    """A finished command of a machine with so many devices."""
    return subprocess.run(
        [sys.executable, *COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=launch.environment(JAX_NUM_CPU_DEVICES=devices),
    )


def draws(path):
    posterior = consortia.open_run(path)["posterior"].data_vars.values()
    return np.concatenate([v.values.reshape(*v.shape[:2], -1) for v in posterior], axis=2)


def test_a_run_over_two_devices_goes_on_on_two_or_if_allowed_on_one(tmp_path):
    asked, run, whole = study(tmp_path), str(tmp_path / "run"), str(tmp_path / "whole")
    first = command("run", asked, "--output", run)
    assert first.returncode == 0, first.stderr
    assert "each runs 4 of 4 sites and 1 of 2 chains; each holds all data" in first.stdout
    assert command("run", asked, "--output", whole, "--rounds", "90").returncode == 0
    there = command("resume", run, "--rounds", "90")
    assert there.returncode == 0, there.stderr
    np.testing.assert_array_equal(draws(run), draws(whole))
    alone = command("resume", run, "--rounds", "120", devices="1")
    assert alone.returncode == 2
    assert "JAX_NUM_CPU_DEVICES=2" in alone.stderr
    other = command("resume", run, "--rounds", "120", "--devices", "1")
    assert other.returncode == 3
    assert "2 devices (nodes in 1, chains in 2 parts), not one device" in other.stderr
    allowed = command("resume", run, "--rounds", "120", "--inexact", devices="1")
    assert allowed.returncode == 0, allowed.stderr
    assert draws(run).shape[:2] == (2, 120)
    assert np.isfinite(draws(run)).all()


def together(store):
    """Two processes that divide the sites of one run, and exchange in every round."""
    port = launch.free_port()
    return [
        subprocess.Popen(
            [
                *(sys.executable, str(HERE / "stored.py"), f"{port}/2/{number}"),
                *(str(store), "fa_hmc", "1"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=launch.environment(),
        )
        for number in range(2)
    ]


def ended(processes):
    try:
        return [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_a_killed_process_ends_the_other_and_nothing_is_lost(tmp_path):
    run, whole = tmp_path / "run", tmp_path / "whole"
    unharmed = together(whole)
    errors = ended(unharmed)
    assert [process.returncode for process in unharmed] == [0, 0], errors
    first = together(run)
    try:
        stored.wait_for(run, stored.OTHERWISE // 10, lambda: first[1].poll() is None)
    finally:
        first[1].kill()
    said = ended(first)[0]
    assert first[0].returncode == 7
    assert "process 0 lost another of the 2 processes" in said
    assert json.loads((run / "run.json").read_text())["state"] != "finished"
    assert 0 < stored.done(run) < stored.OTHERWISE
    again = together(run)
    errors = ended(again)
    assert [process.returncode for process in again] == [0, 0], errors
    (began_at,) = stored.resumed_at(run)
    assert 0 < began_at < stored.OTHERWISE
    np.testing.assert_array_equal(draws(run), draws(whole))


REQUESTS = """
import sys
import jax, numpy as np
from jax.sharding import Mesh
import consortia
from consortia.errors import InputError
from parity import problem
devices = np.asarray(jax.devices())
meshes = {
    "divide": ("fa_hmc", Mesh(devices[:4], ("nodes",)), 6, 1),
    "chains": ("fa_hmc", Mesh(devices[:2], ("chains",)), 6, 3),
    "axis": ("fa_hmc", Mesh(devices[:2], ("sites",)), 6, 1),
    "visits": ("fsgld", Mesh(devices[:2], ("nodes",)), 6, 1),
    "many": ("fa_hmc", 8, 6, 1),
    "uneven": ("fa_hmc", 4, 6, 1),
}
for label, (name, asked, sites, chains) in meshes.items():
    try:
        if isinstance(asked, int):
            engine = consortia.LocalEngine(devices=asked)
        else:
            engine = consortia.LocalEngine(asked)
        problem.sampled(name, sites, chains, engine)
    except InputError as error:
        print(f"{label}: {error}")
tree = problem.sampled("fa_hmc", 6, 1, consortia.LocalEngine(devices=[devices[1]]))
print(f"second: {tree.attrs['devices']}")
"""


def test_what_cannot_be_divided_is_refused_with_the_reason():
    job = subprocess.run(
        [sys.executable, "-c", REQUESTS],
        capture_output=True,
        text=True,
        timeout=200,
        env=launch.environment(JAX_NUM_CPU_DEVICES="4", PYTHONPATH=launch.PATHS),
    )
    assert job.returncode == 0, job.stderr
    said = dict(line.split(": ", 1) for line in job.stdout.splitlines())
    assert "4 devices along 'nodes', which does not divide the 6 nodes" in said["divide"]
    assert "2 devices along 'chains', which does not divide the 3 chains" in said["chains"]
    assert "mesh has the axis 'sites'" in said["axis"]
    assert "one site acts at a time" in said["visits"]
    assert "devices is 8, but JAX has 4" in said["many"]
    assert "4 do not divide 1 chain and 6 sites evenly" in said["uneven"]
    assert "1" in said["second"]
    assert "0" not in said["second"]  # a device that is asked for is not traded for the first


def test_arguments_that_make_no_sense_are_refused():
    with pytest.raises(consortia.errors.InputError, match="give one of them"):
        consortia.LocalEngine(object(), devices=2)
    for wrong in (0, 1.5, "two", ["cpu"]):
        with pytest.raises(consortia.errors.InputError, match="devices"):
            consortia.LocalEngine(devices=wrong)
    every = np.ones((5, 3), bool)
    with pytest.raises(consortia.errors.InputError, match="not divided among devices"):
        consortia.LocalEngine(devices=2, participation=every)
    with pytest.raises(consortia.errors.InputError, match="5 rows: give one for each of the 70"):
        problem.sampled("fa_hmc", 3, 1, consortia.LocalEngine(participation=every))


UNLIKE = """
import sys
sys.path.insert(0, sys.argv[3])
number = int(sys.argv[1])
from consortia.engines import sharding
sharding.join("127.0.0.1:" + sys.argv[2], 2, number)
import consortia, numpy as np
from consortia.errors import InputError, RankError
from parity import problem
every = np.ones((70, 4), bool)
for given, seed in (({"devices": 2}, number), ({"devices": 1}, 0), ({"participation": every}, 0)):
    engine = consortia.LocalEngine(**given)
    try:
        problem.sampled("fa_hmc", 4, 1, engine, seed=seed)
    except (InputError, RankError) as error:
        print(error)
"""


def test_processes_that_run_different_studies_or_leave_one_out_are_refused():
    port = launch.free_port()
    for job in launch.together(
        2, lambda number: ["-c", UNLIKE, str(number), str(port), str(HERE.parent)]
    ):
        assert job.returncode == 0, job.stderr
        assert "Different from process 0: process 1 in seed." in job.stdout
        assert job.stdout.count("belong to 1 of 2 processes") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--coordinator", "127.0.0.1:1"), "are used together"),
        (
            ("--coordinator", "slurm", "--processes", "2", "--process", "0"),
            "only --coordinator slurm",
        ),
        (("--coordinator", "slurm"), "this is not a task of Slurm"),
        (("--coordinator", "here", "--processes", "2", "--process", "0"), "give HOST:PORT"),
        (("--coordinator", "127.0.0.1:1", "--processes", "2", "--process", "2"), "number the 2"),
        (("--engine", "mpi", "--devices", "2"), "for the engine 'local'"),
    ],
)
def test_processes_that_cannot_be_joined_are_refused(tmp_path, arguments, says):
    job = command("run", study(tmp_path), *arguments)
    assert job.returncode == 2
    assert says in job.stderr
    assert "Traceback" not in job.stderr


OF_SLURM = """
import os, sys
os.environ |= {
    "SLURM_JOB_ID": sys.argv[2],
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": sys.argv[1],
    "SLURM_LOCALID": sys.argv[1],
}
from consortia.engines import sharding
sharding.join("slurm")
import jax
print(jax.process_index(), jax.process_count(), len(jax.devices()))
"""


def test_processes_find_one_another_by_what_slurm_says():
    port = launch.free_port()
    jobs = launch.together(2, lambda number: ["-c", OF_SLURM, str(number), str(port)])
    assert [job.returncode for job in jobs] == [0, 0], [job.stderr for job in jobs]
    assert [job.stdout.split()[:2] for job in jobs] == [["0", "2"], ["1", "2"]]
