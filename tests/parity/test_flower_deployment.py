"""A SuperLink and SuperNodes on loopback, over TLS and with registered keys."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from needs import needs
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app as command
from consortia.cli.network import prepared_sites
from consortia.errors import DeploymentError
from consortia.federation.bundle import app_hash
from consortia.federation.certificates import make_certificates, make_node_key
from consortia.federation.governance import verify
from consortia.federation.loopback import Loopback, Node
from consortia.federation.processes import descendants, is_alive, stop
from consortia.study.build import load_study

needs("flwr")
pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("flower deployment")]

PLANNED = "│ wall time"
"""In the last line but a few before the first round; those of progress may be ten seconds late."""

RETRY_SECONDS = 4.0
"""Between two attempts to start a node again."""

BELIEVED_SECONDS = 37.0
"""Shortest time for which the SuperLink believes a killed node to be connected: 60 s from its last
heartbeat, and one is sent each 17.5 to 22.5 s."""

TRIVIAL = Path(__file__).resolve().parents[1] / "federation" / "apps" / "trivial"


FA_HMC = """
name = "fa_hmc"
step_size = 0.05
leapfrog_steps = 3
local_steps = 4
debias = true
"""
# Without minibatches and momenta of the sites' own nothing is private, and draws are the seed's.
FEDERATED = """
name = "federated_hmc"
step_size = 0.05
leapfrog_steps = 2
mass_matrix = "identity"
"""
STUDY = """
[data]
files = ["north.csv", "south.csv", "west.csv"]
[model]
kind = "logistic_regression"
intercept = true
[algorithm]
{algorithm}
[run]
rounds = {rounds}
warmup = {warmup}
chains = 2
seed = 5
"""


class Consortium:
    """Three sites on loopback, with policies for one app, and what came of a run.

    Args:
        folder: of everything.
        algorithm: the table of the study.
        rounds: of the run.
        warmup: of the run.
    """

    def __init__(self, folder: Path, algorithm: str, rounds: int, warmup: int) -> None:
        self.folder = folder
        rng = np.random.default_rng(0)
        for shift, name in enumerate(("north", "south", "west")):
            x = rng.normal(shift / 3, 1, (60 + 10 * shift, 2))
            y = rng.random(len(x)) < 1 / (1 + np.exp(-x @ [1.0, -0.5]))
            table = np.column_stack([x, y])
            np.savetxt(folder / f"{name}.csv", table, "%.6f", ",", header="a,b,y", comments="")
        self.study = folder / "study.toml"
        self.study.write_text(STUDY.format(algorithm=algorithm, rounds=rounds, warmup=warmup))
        self.app = self.make(self.study, "app")
        self.nodes = prepared_sites(self.app, folder, folder / "place", 50)

    def make(self, study: Path, name: str) -> Path:
        """An app of a study."""
        words = ["flower", "new", str(study), "--to", str(self.folder / name), "--x64"]
        made = CliRunner().invoke(command, words)
        assert made.exit_code == 0, made.output
        return self.folder / name

    def run(self, network: Loopback, app: Path, output: str, show: Callable[[str], None]) -> str:
        config = {"output": str(self.folder / output), "resend": 60.0, "join-deadline": 200.0}
        config["keys"] = str(self.folder / "place" / "coordinator")
        return network.run(app, config=config, show=show, deadline=2400)

    def difference(self, output: str) -> float:
        """From the draws of one process, in posterior standard deviations; the largest."""
        tree = consortia.open_run(self.folder / output)
        with jax.enable_x64(True):
            study = load_study(self.study)
            built = study.build()
            run = study.run_options
            own = consortia.sample(built.model, built.sites, built.algorithm, **run, progress=False)
        assert set(tree.posterior.data_vars) == set(own.posterior.data_vars)
        found = []
        for name, draws in own.posterior.data_vars.items():
            other = tree.posterior[name].values
            assert other.dtype == np.float64
            assert other.shape == draws.shape
            found.append(np.max(np.abs(other - draws.values) / draws.values.std()))
        return float(max(found))

    def check_ledgers(self, output: str, killed: str | None) -> None:
        """Each chain is whole, and what the server has received is what left the site."""
        record = json.loads((self.folder / output / "run.json").read_text())
        for name, (messages, size) in json.loads(record["received"]).items():
            found = verify(self.folder / "place" / "sites" / name / "ledger.jsonl")
            assert (found.problem, found.notes) == (None, ())
            left = [e for e in found.entries if e.left and e.run == record["flower_run"]]
            if name == killed:  # what it sent while it died, or sent again, may have been lost
                assert len({entry.sha256 for entry in left}) <= messages <= len(left)
                assert size <= sum(entry.bytes for entry in left)
            else:
                assert len(left) == messages
                assert sum(entry.bytes for entry in left) == size
            assert {entry.kind for entry in left} >= {"description", "round"}


def killing(network: Loopback, name: str) -> tuple[Callable[[str], None], list[str]]:
    """A reader of a run's log that kills a node as the rounds begin, and starts it again."""
    lines: list[str] = []

    def show(line: str) -> None:
        lines.append(line)
        if PLANNED in line:
            stop([network.supernodes[name]], kill=True)
            restart(network, name)

    return show, lines


def restart(network: Loopback, name: str) -> None:
    """Start a node that was killed, with its key, as soon as the SuperLink lets it in.

    Until then the SuperLink refuses a second one of its key. A refused attempt costs seconds of a
    core: none is made before.
    """
    end = time.monotonic() + network.deadline
    time.sleep(BELIEVED_SECONDS)
    while True:
        try:
            network.start_node(name)
        except DeploymentError:
            refused = "[code: 2004]" in network.supernodes[name].output()
            if not refused or time.monotonic() > end:
                raise
        else:
            return
        stop([network.supernodes[name]])
        time.sleep(RETRY_SECONDS)


def test_fa_hmc_between_three_sites_one_of_them_killed_has_the_draws_of_one_process(
    tmp_path: Path,
) -> None:
    made = Consortium(tmp_path, FA_HMC, rounds=3, warmup=0)
    with Loopback(tmp_path / "network", made.nodes) as network:
        superlink = network.superlink
        assert superlink is not None
        refuse_strangers(network, tmp_path)
        before = identities(network, "south")
        restart, lines = killing(network, "south")
        assert made.run(network, made.app, "run", restart) == "finished:completed", lines
        assert identities(network, "south") == before != []
        assert "is approved" in network.supernodes["south"].output()
        family = descendants([superlink.pid, *(p.pid for p in network.supernodes.values())])
    assert any("expected wall time" in line for line in lines)
    assert sum(PLANNED in line for line in lines) == 1
    assert made.difference("run") < 1e-5
    made.check_ledgers("run", "south")
    assert not superlink.running
    assert not any(map(is_alive, family))


def identities(network: Loopback, name: str) -> list[str]:
    """The numbers by which the SuperLink knows a node, from the node's log."""
    return re.findall(r"SuperNode ID: (\d+)", network.supernodes[name].output())


def refuse_strangers(network: Loopback, folder: Path) -> None:
    """A node without a registered key, and one that trusts another authority, do not come in."""
    keys = folder / "network" / "keys"
    make_node_key(keys / "stranger")
    network.nodes["stranger"] = Node("stranger")
    with pytest.raises(DeploymentError, match=r"register its \.pub file"):
        network.start_node("stranger")
    other = make_certificates(folder / "other", ["127.0.0.1"])
    network.nodes["north again"] = network.nodes["north"]
    (keys / "north again").write_bytes((keys / "north").read_bytes())
    own, network.certificates = network.certificates, other
    with pytest.raises(DeploymentError, match="was not signed by the authority"):
        network.start_node("north again")
    network.certificates = own


@pytest.mark.slow
def test_federated_hmc_between_three_sites_one_of_them_killed_has_the_draws_of_one_process(
    tmp_path: Path,
) -> None:
    made = Consortium(tmp_path, FEDERATED, rounds=3, warmup=4)
    with Loopback(tmp_path / "network", made.nodes) as network:
        show, lines = killing(network, "west")
        assert made.run(network, made.app, "run", show) == "finished:completed", lines
    assert made.difference("run") < 1e-5
    made.check_ledgers("run", "west")


def wait_for(node, text):
    """Wait until a process has written a text; a slow site may look for the app later."""
    for _ in range(600):
        if text in node.output():
            return
        assert node.running
        time.sleep(0.1)
    raise AssertionError(f"{text!r} is not in {node.output()}")


def test_a_policy_stops_a_study_before_data_are_read_and_an_unknown_app_is_never_unpacked(
    tmp_path: Path,
) -> None:
    made = Consortium(tmp_path, FA_HMC, rounds=3, warmup=0)
    longer = tmp_path / "longer.toml"
    longer.write_text(made.study.read_text().replace("rounds = 3", "rounds = 4"))
    app = made.make(longer, "longer")
    nodes = [Node(node.name, node.config, (app_hash(app),)) for node in made.nodes]
    for name in ("north", "south", "west"):
        (tmp_path / f"{name}.csv").unlink()  # whoever reads it says something else
    unknown = tmp_path / "unknown"
    shutil.copytree(TRIVIAL, unknown)
    (unknown / "trivial" / "evil.py").write_text("x = 1\n")
    lines: list[str] = []
    with Loopback(tmp_path / "network", nodes) as network:
        assert made.run(network, app, "run", lines.append) == "finished:failed"
        said: list[str] = []
        with pytest.raises(DeploymentError, match="has not ended after 12 s"):
            network.run(unknown, config={"sites": 3, "rounds": 1}, show=said.append, deadline=12)
        assert "lost a site, asking again" in said
        for name, node in network.supernodes.items():
            wait_for(node, f"The app {app_hash(unknown)} is NOT approved")
            assert not list((tmp_path / "network" / "homes" / name).rglob("evil.py"))
    text = " ".join(lines)
    assert "the site's policy does not permit this (studies, maximum_rounds)" in text
    # The first refusal ends the run: a site that was slower to start may have nothing to record.
    ledgers = [Path(str(node.config["folder"])) / "ledger.jsonl" for node in made.nodes]
    refused = [entry for ledger in ledgers if ledger.exists() for entry in verify(ledger).entries]
    assert refused
    assert {entry.event for entry in refused} == {"refused"}
