"""The same draws over two devices, of one process or of two, as on one device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import xarray
from parity import launch, problem
from parity.comparing import assert_same_run

import consortia
from consortia.algorithms.registry import ALGORITHMS

HERE = Path(__file__).parent

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("devices")]

ALL = problem.DIVIDED | problem.ASYNCHRONOUS
VISITING = {"dsgld", "fsgld"}
"""One site acts at a time: their nodes cannot be divided."""
ONE_HUB = "few_rounds"
"""One hub holds all chains: they cannot be divided."""


def of(chains, *, nodes_divide):
    """Labels of the cases with so many chains, of algorithms whose nodes can be divided or not."""
    return [
        label
        for label, (name, _, count, _) in ALL.items()
        if count == chains
        and (name not in VISITING and not problem.is_asynchronous(name)) >= nodes_divide
        and (nodes_divide or name != ONE_HUB)
    ]


MESHES = {
    "2x1": of(1, nodes_divide=True),
    "1x2": of(2, nodes_divide=False),
    "2x2": ["fa_hmc-2-even", "de_sgld-agents-even", "federated_hmc-surrogate-even"],
}
TOGETHER = [
    label for label in problem.DIVIDED if label in of(1, nodes_divide=True) or "fsgld-2" in label
]
"""Cases of two processes: the nodes divided, of travelling chains the chains."""


@pytest.fixture(scope="module", autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def alone():
    """Results on one device, each made once."""
    made = {}

    def result(label):
        if label not in made:
            name, count, chains, more = ALL[label]
            engine = consortia.LocalEngine(devices=1)
            made[label] = problem.sampled(name, count, chains, engine, **more)
        return made[label]

    return result


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """The folder with the results of a mesh, from one process with four devices."""
    made = {}

    def folder(mesh):
        if mesh not in made:
            made[mesh] = tmp_path_factory.mktemp(mesh)
            command = [HERE / "problem.py", mesh, made[mesh], *MESHES[mesh]]
            job = subprocess.run(
                [sys.executable, *map(str, command)],
                capture_output=True,
                text=True,
                timeout=launch.TIMEOUT,
                env=launch.environment(JAX_NUM_CPU_DEVICES="4"),
            )
            assert job.returncode == 0, job.stderr[-4000:]
        return made[mesh]

    return folder


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The folder with the results of two processes with a device each."""
    folder = tmp_path_factory.mktemp("together")
    port = launch.free_port()

    def command(number):
        return [str(HERE / "problem.py"), f"{port}/2/{number}", str(folder), *TOGETHER]

    for job in launch.together(2, command):
        assert job.returncode == 0, job.stderr[-4000:]
    return folder


def test_every_registered_algorithm_is_divided():
    assert {ALL[label][0] for labels in MESHES.values() for label in labels} == set(ALGORITHMS)


@pytest.mark.parametrize(
    ("mesh", "label"), [(mesh, label) for mesh, labels in MESHES.items() for label in labels]
)
def test_the_draws_over_a_mesh_are_those_of_one_device(divided, alone, mesh, label):
    tree = xarray.open_datatree(divided(mesh) / f"{label}.zarr", engine="zarr")
    assert len(json.loads(tree.attrs["devices"])) == (4 if mesh == "2x2" else 2)
    assert_same_run(tree, alone(label))


@pytest.mark.parametrize("label", TOGETHER)
def test_the_draws_of_two_processes_are_those_of_one(together, alone, label):
    tree = xarray.open_datatree(together / f"{label}.zarr", engine="zarr")
    assert len(json.loads(tree.attrs["processes"])) == 2
    assert_same_run(tree, alone(label))
