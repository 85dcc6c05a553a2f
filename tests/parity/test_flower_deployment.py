"""A SuperLink and SuperNodes on loopback, over TLS and with registered keys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from consortia.deployment.apps import app_hash
from consortia.deployment.certificates import make_certificates, make_node_key
from consortia.deployment.loopback import Loopback, Node
from consortia.deployment.processes import descendants, started_at
from consortia.errors import DeploymentError

pytest.importorskip("flwr")
pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("flower deployment")]

TRIVIAL = Path(__file__).resolve().parents[1] / "deployment" / "apps" / "trivial"


def test_a_killed_node_comes_back_by_its_key_strangers_do_not_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    north = Node("north", {"partition-id": 1}, (app_hash(TRIVIAL),))
    with Loopback(tmp_path / "network", [north]) as network:
        superlink = network.superlink
        assert superlink is not None

        make_node_key(tmp_path / "network" / "keys" / "stranger")
        network.nodes["stranger"] = Node("stranger", {"partition-id": 5})
        with pytest.raises(DeploymentError, match=r"register its \.pub file"):
            network.start_node("stranger")

        other = make_certificates(tmp_path / "other", ["127.0.0.1"])
        network.nodes["north again"] = network.nodes["north"]
        (tmp_path / "network" / "keys" / "north again").write_bytes(
            (tmp_path / "network" / "keys" / "north").read_bytes()
        )
        with pytest.raises(DeploymentError, match="was not signed by the authority"):
            network.start_node("north again", authority=other.authority)

        killed = []

        def show(line: str) -> None:
            lines.append(line)
            if line.startswith("round 0") and not killed:
                killed.append(network.supernodes["north"].output())
                network.kill_node("north")
                network.restart_node("north")

        config = {"sites": 1, "rounds": 3}
        assert network.run(TRIVIAL, config=config, show=show, deadline=280) == "finished:completed"
        family = descendants([superlink.pid, *(p.pid for p in network.supernodes.values())])
        identity = r"SuperNode ID: (\d+)"
        before = re.findall(identity, killed[0])
        assert re.findall(identity, network.supernodes["north"].output()) == before
    totals = [line for line in lines if line.startswith("round")]
    assert totals == [f"round {number} total {3.0 * (number + 1)}" for number in range(3)]
    assert not superlink.running
    assert not any(started_at(pid) for pid in family)
