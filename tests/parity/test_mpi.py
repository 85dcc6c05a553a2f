"""The same draws over MPI ranks as in one process; asynchronous runs replay."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
import xarray
from parity import launch, problem
from parity.comparing import TOLERANCE, assert_same_bits, assert_same_run

import consortia
from consortia.algorithms.registry import ALGORITHMS

HERE = Path(__file__).parent


pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("mpi")]

SINGLE = ("fa_hmc-1", "de_sghmc-1", "fsgld-1", "federated_hmc-1", "decentralized_hmc-1")
"""A single chain has no chain axis: one case of each exchange."""

RANKS = {
    3: [label for label in problem.CASES if not label.endswith("-1") or label in SINGLE],
    5: ["fa_hmc-2", "de_sgld-agents", "fsgld-updates"],
}
"""Cases of a job of so many ranks: five hold a site each, of three two hold two."""

CASES = [
    pytest.param(count, label, marks=[pytest.mark.slow] if problem.repeats(label) else [])
    for count, labels in RANKS.items()
    for label in labels
]


@pytest.fixture(scope="module", autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory):
    """The folder with a result of a job of so many ranks; slow cases run apart."""
    made = {}

    def folder(count, label):
        job = count, problem.repeats(label)
        if job not in made:
            made[job] = tmp_path_factory.mktemp(f"ranks{count}")
            labels = [one for one in RANKS[count] if problem.repeats(one) == job[1]]
            done = launch.ranks(count, str(HERE / "problem.py"), "mpi", str(made[job]), *labels)
            assert done.returncode == 0, done.stderr[-4000:]
        return made[job]

    return folder


@pytest.fixture(scope="module")
def local():
    """Results in one process, each made once."""
    made = {}

    def result(label):
        if label not in made:
            name, count, chains, more = problem.CASES[label]
            made[label] = problem.sampled(name, count, chains, consortia.LocalEngine(), **more)
        return made[label]

    return result


def test_every_registered_algorithm_is_compared():
    compared = {problem.CASES[label][0] for label in RANKS[3]}
    assert compared | {name for name, *_ in problem.ASYNCHRONOUS.values()} == set(ALGORITHMS)


@pytest.mark.parametrize(("count", "label"), CASES)
def test_the_draws_are_those_of_one_process(synchronous, local, count, label):
    over_ranks = xarray.open_datatree(synchronous(count, label) / f"{label}.zarr", engine="zarr")
    assert_same_run(over_ranks, local(label))


@pytest.mark.parametrize("label", ["fa_hmc-2", "fa_hmc-debiased", "fa_hmc-within"])
def test_averages_have_the_bits_of_one_process_in_single_precision(synchronous, local, label):
    over_ranks = xarray.open_datatree(synchronous(3, label) / f"{label}.zarr", engine="zarr")
    assert_same_bits(over_ranks, local(label))


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory):
    """A folder with recorded runs of three workers, one of them slower, and a server."""
    folder = tmp_path_factory.mktemp("asynchronous")
    job = launch.ranks(4, str(HERE / "problem.py"), "mpi", str(folder), *problem.ASYNCHRONOUS)
    assert job.returncode == 0, job.stderr[-4000:]
    return folder


@pytest.mark.parametrize("label", problem.ASYNCHRONOUS)
def test_a_recorded_run_is_replayed_with_the_same_draws(asynchronous, label):
    assert_replayed(asynchronous, label)


def assert_replayed(folder, label):
    name, count, chains, more = problem.ASYNCHRONOUS[label]
    recorded = xarray.open_datatree(folder / f"{label}.zarr", engine="zarr")
    log = recorded["events"]["log"].values
    assert (np.bincount(log[:, 1]) > 0.05 * problem.UPDATES / 3).all()
    latency = consortia.latency.recorded(log)
    again = problem.sampled(name, count, chains, None, latency=latency, **more)
    for variable, values in again["posterior"].data_vars.items():
        gap = np.abs(values.values - recorded["posterior"][variable].values).max()
        assert gap <= TOLERANCE * values.values.std()
    assert again.attrs["dropped_gradients"] == recorded.attrs["dropped_gradients"]
    assert again.attrs["staleness"] == recorded.attrs["staleness"]


def test_another_order_of_the_same_gradients_is_another_chain(asynchronous):
    """The comparison above would notice a replay that does not follow the log."""
    recorded = xarray.open_datatree(asynchronous / "stale_sgld-replay.zarr", engine="zarr")
    turns = consortia.latency.constant(1.0)
    other = problem.sampled("stale_sgld", 1, 2, None, latency=turns)
    for variable in other["posterior"].data_vars:
        values = other["posterior"][variable].values
        gap = np.abs(values - recorded["posterior"][variable].values).max()
        assert gap > 100 * TOLERANCE * values.std()


def test_the_draws_are_the_same_where_the_host_carries_messages(tmp_path, local):
    labels = "federated_hmc-1", "de_sgld-agents", "stale_sgld-replay"
    command = [str(HERE / "problem.py"), problem.CARRIED, str(tmp_path), *labels]
    job = launch.ranks(4, *command)
    assert job.returncode == 0, job.stderr[-4000:]
    for label in labels[:2]:
        carried = xarray.open_datatree(tmp_path / f"{label}.zarr", engine="zarr")
        assert_same_run(carried, local(label))
    assert_replayed(tmp_path, labels[2])
