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
from parity.comparing import assert_same_bits, assert_same_run

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.core.queries import Conversation

HERE = Path(__file__).parent

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("devices")]

ALL = problem.DIVIDED | problem.ASYNCHRONOUS
VISITING = {"dsgld", "fsgld"}
"""One site acts at a time: their nodes cannot be divided."""


def of(chains, *, nodes_divide):
    """Labels of the cases with so many chains, of algorithms whose nodes can be divided or not."""
    return [
        label
        for label, (name, _, count, _) in ALL.items()
        if count == chains
        and (name not in VISITING and not problem.is_asynchronous(name)) >= nodes_divide
    ]


MESHES = {
    "2x1": of(1, nodes_divide=True),
    "1x2": of(2, nodes_divide=False),
    "2x2": ["fa_hmc-2-even", "fa_hmc-within-even", "de_sgld-agents-even", "federated_hmc-2-even"],
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
    """The folder with a result of a mesh, from one process with four devices.

    It runs the slow cases or the others.
    """
    made = {}

    def folder(mesh, label):
        job = mesh, problem.repeats(label)
        if job not in made:
            made[job] = tmp_path_factory.mktemp(mesh)
            labels = [one for one in MESHES[mesh] if problem.repeats(one) == job[1]]
            done = subprocess.run(
                [sys.executable, str(HERE / "problem.py"), mesh, str(made[job]), *labels],
                capture_output=True,
                text=True,
                timeout=launch.TIMEOUT,
                env=launch.environment(JAX_NUM_CPU_DEVICES="4"),
            )
            assert done.returncode == 0, done.stderr[-4000:]
        return made[job]

    return folder


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The folder with a result of two processes with a device each; slow cases run apart."""
    made = {}

    def folder(label):
        slow = problem.repeats(label)
        if slow not in made:
            made[slow] = tmp_path_factory.mktemp("together")
            labels = [one for one in TOGETHER if problem.repeats(one) == slow]
            port, script = launch.free_port(), str(HERE / "problem.py")
            ends = launch.together(
                2, lambda number: [script, f"{port}/2/{number}", str(made[slow]), *labels]
            )
            for end in ends:
                assert end.returncode == 0, end.stderr[-4000:]
        return made[slow]

    return folder


def test_every_registered_algorithm_with_phases_is_divided():
    divided = {ALL[label][0] for labels in MESHES.values() for label in labels}
    talk = {name for name, one in ALGORITHMS.items() if issubclass(one.factory, Conversation)}
    assert divided | talk == set(ALGORITHMS)  # tests/parity/test_queries.py divides conversations


def marks(label):
    return [pytest.mark.slow] if problem.repeats(label) else []


@pytest.mark.parametrize(
    ("mesh", "label"),
    [
        pytest.param(mesh, label, marks=marks(label))
        for mesh, labels in MESHES.items()
        for label in labels
    ],
)
def test_the_draws_over_a_mesh_are_those_of_one_device(divided, alone, mesh, label):
    tree = xarray.open_datatree(divided(mesh, label) / f"{label}.zarr", engine="zarr")
    assert len(json.loads(tree.attrs["devices"])) == (4 if mesh == "2x2" else 2)
    assert_same_run(tree, alone(label))


@pytest.mark.parametrize("mesh", ["1x2", "2x2"])
@pytest.mark.parametrize("label", ["fa_hmc-2-even", "fa_hmc-within-even"])
def test_averages_have_the_bits_of_one_device_in_single_precision(divided, alone, mesh, label):
    tree = xarray.open_datatree(divided(mesh, label) / f"{label}.zarr", engine="zarr")
    assert_same_bits(tree, alone(label))


@pytest.mark.parametrize("label", [pytest.param(one, marks=marks(one)) for one in TOGETHER])
def test_the_draws_of_two_processes_are_those_of_one(together, alone, label):
    tree = xarray.open_datatree(together(label) / f"{label}.zarr", engine="zarr")
    assert len(json.loads(tree.attrs["processes"])) == 2
    assert_same_run(tree, alone(label))
