"""Runs with secure sums of which server, network and sites are ended, and sites put back."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from federation.hospitals import NAMES
from federation.test_secure_runs import Network

import consortia
from consortia.engines.messages.agreement import PUT_BACK
from consortia.engines.messages.envelope import decode
from consortia.engines.messages.files import secret_of
from consortia.engines.messages.identities import body_of
from consortia.engines.messages.questions import question_of
from consortia.errors import ConsortiaError, SiteRefusedError
from consortia.federation.governance import verify
from consortia.store.runs import holds_run

pytestmark = [pytest.mark.engines, pytest.mark.slow]

KILLS = 5
"""In each of six runs."""


class Killed(BaseException):
    """The server's process has ended; no transport takes it for a lost node."""


class Doomed(Network):
    """Sites and a server that end at random messages, each of which is a copy of the same start.

    Attributes:
        kills: what has happened, in order.
        ends: how the processes of the server ended, but the last.
    """

    def __init__(self, folder: Path, start: Path, seed: int) -> None:
        shutil.copytree(start, folder)
        self.__dict__ |= STARTS[start].__dict__ | {"folder": folder, "path": folder / "study.toml"}
        self.seen = {name: [] for name in NAMES}
        self.rng = np.random.default_rng(seed)
        self.kills: list[str] = []
        self.ends: list[str] = []
        self.backups: dict[str, list[Path]] = {name: [] for name in NAMES}
        self.newest: dict[str, Path] = {}
        self.countdown = int(self.rng.integers(1, 5))
        self.sites = {name: self.site(name) for name in NAMES}

    def answer(self, name: str, message: bytes) -> bytes:
        if self.rng.random() < 0.3:
            backup = self.folder / f"backup {name} {len(self.backups[name])}"
            shutil.copytree(self.folder / name, backup)
            self.backups[name].append(backup)
        self.countdown -= 1
        if self.countdown or len(self.kills) == KILLS:
            return super().answer(name, message)
        self.countdown = int(self.rng.integers(1, 5))
        kind = str(self.rng.choice(["server", "SuperLink", "SuperNode", "ClientApp", "backup"]))
        self.kills.append(kind)
        if kind == "server":
            raise Killed
        if kind == "backup" and self.backups[name]:
            backup = self.backups[name][self.rng.integers(len(self.backups[name]))]
            newest = self.folder / f"newest {name} {len(self.kills)}"
            self.newest[name] = Path(shutil.move(self.folder / name, newest))
            shutil.copytree(backup, self.folder / name)
        if kind == "ClientApp":  # it has answered, and nobody hears of it
            super().answer(name, message)
        self.sites[name] = self.site(name)
        if kind in ("SuperLink", "ClientApp"):
            raise RuntimeError(kind)
        return super().answer(name, message)

    def finished(self) -> Any:
        """Run, and resume until there is a result."""
        directory = self.folder / "run"
        for _ in range(4 * KILLS):
            engine = self.engine(deadline=20.0)
            try:
                if not holds_run(directory):
                    return self.run(engine, store=directory)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)
                    built = self.study.build(engine)
                    parts = built.model, built.rows, built.algorithm
                    return consortia.resume(directory, *parts, engine=engine, progress=False)
            except (Killed, ConsortiaError) as error:
                self.ends.append(type(error).__name__)
                if isinstance(error, SiteRefusedError) and PUT_BACK in str(error):
                    for name in error.sites:  # whoever has put it back is to undo that
                        shutil.rmtree(self.folder / name)
                        shutil.move(self.newest.pop(name), self.folder / name)
                        self.sites[name] = self.site(name)
        raise AssertionError(self.ends)


STARTS: dict[Path, Network] = {}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "network"
    STARTS[folder] = Network(folder)
    for name in NAMES:
        secret_of(folder / name)
    return folder


@pytest.fixture(scope="module")
def undisturbed(start: Path) -> Any:
    network = Doomed(start.with_name("undisturbed"), start, 0)
    network.countdown = 10**9
    return network.finished()


@pytest.mark.parametrize("seed", range(6))
def test_nothing_wrong_is_accepted_and_no_question_answered_twice_with_other_bits(
    tmp_path: Path, start: Path, undisturbed: Any, seed: int
) -> None:
    network = Doomed(tmp_path / "network", start, seed + 1)
    found = network.finished()
    for name, values in undisturbed["posterior"].data_vars.items():
        np.testing.assert_array_equal(values, found["posterior"][name])
    assert found.attrs["messages"] == undisturbed.attrs["messages"]
    for name in NAMES:
        assert verify(network.folder / name / "ledger.jsonl").problem is None
        bits: dict[str, set[bytes]] = {}
        for request, answer in network.queries(name):
            if answer.kind == "query":
                left = b"".join(answer.arrays[one].tobytes() for one in sorted(answer.arrays))
                bits.setdefault(question_of(request).digest, set()).add(left)
        assert bits
        assert all(len(one) == 1 for one in bits.values())
    assert len(network.kills) == KILLS, (network.kills, network.ends)
    assert all(decode(body_of(a)).run == decode(body_of(b)).run for a, b in network.seen["north"])
