"""The same answers and draws of a conversation over every engine as in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray
from engines import toy_conversation as toy
from parity import flower_sites, launch

import consortia
from consortia.core.queries import in_width
from consortia.core.target import Target
from consortia.engines.messages.stages import QUERY
from consortia.errors import SiteImplausibleError
from consortia.store.runs import read_record

SCRIPT = Path(toy.__file__)
SUMS = 1e-9
"""Relative and absolute: sums are taken in another order, in 64 bits."""


@pytest.fixture(scope="module", autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def alone():
    panel = consortia.LocalEngine(devices=1).panel(
        Target(toy.MODEL, toy.MODEL.init), toy.sites(), toy.Toy()
    )
    found = [panel.ask(one._replace(arrays=in_width(one.arrays))) for one in toy.queries()]
    return found, toy.sampled(consortia.LocalEngine(devices=1))


def assert_stored_answers(folder, alone):
    answers, tree = alone
    for number, own in enumerate(answers):
        with np.load(folder / f"answer-{number}.npz") as other:
            assert set(other) == set(own)
            for name, values in own.items():
                np.testing.assert_allclose(other[name], values, rtol=SUMS, atol=SUMS)
    assert_same_tree(xarray.open_datatree(folder / "tree.zarr", engine="zarr"), tree)


def assert_same_tree(other, tree):
    for name, values in tree["posterior"].data_vars.items():
        np.testing.assert_allclose(other["posterior"][name], values, rtol=1e-7, atol=1e-9)
    for fact in ("messages", "communication_rounds", "bytes_up", "bytes_down", "row_gradients"):
        assert other.attrs[fact] == tree.attrs[fact]


@pytest.mark.engines
@pytest.mark.xdist_group("mpi")
def test_three_ranks_answer_as_one_process(tmp_path, alone):
    job = launch.ranks(3, str(SCRIPT), "mpi", str(tmp_path))
    assert job.returncode == 0, job.stderr[-4000:]
    assert_stored_answers(tmp_path, alone)


@pytest.mark.engines
@pytest.mark.xdist_group("devices")
@pytest.mark.parametrize("kind", ["2", "4", "mesh"])
def test_several_devices_answer_as_one(tmp_path, alone, kind):
    """Five sites over two and four devices: they do not divide evenly."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), f"devices-{kind}", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env=launch.environment(JAX_NUM_CPU_DEVICES="4"),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert_stored_answers(tmp_path, alone)


@pytest.mark.engines
@pytest.mark.xdist_group("devices")
def test_two_processes_that_share_their_devices_answer_as_one(tmp_path, alone):
    port = launch.free_port()
    command = [sys.executable, str(SCRIPT)]
    jobs = [
        subprocess.Popen(
            [*command, f"{port}/2/{number}", str(tmp_path)],
            env=launch.environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for job in jobs:
        _, errors = job.communicate(timeout=300)
        assert job.returncode == 0, errors[-4000:]
    assert_stored_answers(tmp_path, alone)


# --- messages ------------------------------------------------------------------------------------


def network_of(folder, method=None):
    more = {"model": toy.MODEL, "sites": toy.sites(), "warmup": 0, "seed": 11}
    found = flower_sites.Sites(folder, "fa_hmc", 5, 2, **more)
    found.method = toy.Toy() if method is None else method
    return found


def over(network, engine=None, **more):
    return network.sampled(engine, rounds=3, **more)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """Sites that have answered a whole run, and its result."""
    network = network_of(tmp_path_factory.mktemp("answered"))
    return network, over(network)


def test_sites_that_answer_messages_answer_as_one_process(answered, alone):
    network, tree = answered
    assert_same_tree(tree, alone[1])
    kinds = [kind for kind, _, _ in network.gates[0].left]
    assert kinds == ["description", "description", *["query"] * 8]
    assert [at for _, at, _ in network.gates[0].left][2:] == list(range(8))
    assert tree.attrs["rejected_replies"] == 0


def test_a_site_knows_where_it_is_asked_and_what_an_answer_holds(answered):
    network, _ = answered
    places = network.gates[1].places
    assert [one.points for one in places] == [0, 1, 1, 1, 1, 64, 64, 64]
    assert [one.numbers for one in places] == [3, *[1 + 3 + 9] * 4, *[64] * 3]
    assert all(0 < one.farthest < 10 for one in places[2:])


def test_a_run_over_messages_is_resumed_and_only_what_is_missing_is_asked(tmp_path, alone):
    network = network_of(tmp_path / "sites")
    lost = []

    def faults(node, message, payload, arrival):
        asked = len(network.gates[0].left)
        return [] if asked > 7 and not lost else [arrival]

    engine = network.engine(faults, deadline=0.5)
    with pytest.raises(consortia.errors.SiteMissingError) as caught:
        over(network, engine, store=tmp_path / "run")
    assert caught.value.round == 5
    lost.append(True)
    # names that earlier versions have stored, so that their runs are resumed
    attributes, specification = read_record(tmp_path / "run")
    assert attributes["engine"] == "flower"
    assert specification["sites_know_it_as"].keys() == {"flower run"}
    before = [payload for _, at, payload in network.gates[0].left if at == 5]
    tree = consortia.resume(
        tmp_path / "run",
        toy.MODEL,
        network._read(again := network.engine()),
        network.method,
        engine=again,
        progress=False,
    )
    assert tree.attrs["flower_run"] == specification["sites_know_it_as"]["flower run"]
    assert_same_tree(tree, alone[1])
    asked = [at for kind, at, _ in network.gates[0].left if kind == "query"]
    assert sorted(asked) == [0, 1, 2, 3, 4, *[5] * (asked.count(5)), 6, 7]
    # The question that was asked twice has the same answer, but for what names its message.
    after = [payload for _, at, payload in network.gates[0].left if at == 5]
    assert len(after) > len(before) >= 1
    assert len(set(after)) == 1


def test_an_answer_that_no_honest_site_sends_ends_the_run(tmp_path):
    network = network_of(tmp_path)
    rows = toy.sites().site(4)
    x = np.where(np.arange(len(rows["x"]))[:, None] == 0, 1e7, rows["x"])
    shards = [toy.sites().site(number) for number in range(4)]
    network.sites = consortia.Sites.from_list([*shards, rows | {"x": x}])
    with pytest.raises(SiteImplausibleError, match="its gradient is .* times the median one"):
        over(network)


def test_a_site_answers_nothing_but_its_own_functions(tmp_path):
    network = network_of(tmp_path)
    engine = network.engine()
    panel = engine.panel(Target(toy.MODEL, toy.MODEL.init), network._read(engine), network.method)
    panel.start_values(np.zeros((1, 3)))
    channel, site = engine._channel, network.handlers[0]
    for label, name in (
        ((QUERY, 0, 0, 0), "slopes"),
        ((QUERY, 0, 7, 0), "slopes"),
        ((QUERY, 0, 2, 1), "slopes"),
    ):
        arrays = {"points": np.zeros((1, 3))}
        values = {"function": name}
        request = channel.request("query", 0, label=label, values=values, arrays=arrays)
        site.answer(request.encode())
    errors = " ".join(map(str, network.gates[0].errors.values()))
    assert len(network.gates[0].errors) == 3
    assert "another name" in errors
    assert "no such site function" in errors
    assert os.listdir(tmp_path)
