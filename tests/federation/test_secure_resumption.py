"""Runs whose answers are masked go on after an interruption at which sites knew more."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from federation import test_secure_runs as secure
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app as command
from consortia.engines.messages.envelope import Envelope, decode
from consortia.engines.messages.identities import body_of
from consortia.errors import SiteMissingError
from consortia.run import loop
from tests.federation.hospitals import HOSPITALS, NAMES

pytestmark = pytest.mark.engines


def resumed(network: secure.Network, store: Path, **options: Any) -> Any:
    engine = network.engine(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        built = network.study.build(engine)
        parts = built.model, built.rows, built.algorithm
        return consortia.resume(store, *parts, engine=engine, progress=False)


def dies_at(network: secure.Network, last: Any) -> Any:
    """Let the network be gone from the first message on of which ``last`` is true."""
    answer, gone = network.answer, []

    def dies(site: str, message: bytes) -> bytes:
        gone.extend([True] if last(site, decode(body_of(message))) else [])
        if gone:
            raise RuntimeError("the network is gone")
        return answer(site, message)

    network.answer = dies  # type: ignore[method-assign]
    return answer


def test_rounds_that_were_answered_after_several_checkpoints_are_answered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server names older checkpoints then, and none once it is resumed; the numbers agree."""
    monkeypatch.setattr(loop, "SECONDS_PER_CALL", 0.0)
    monkeypatch.setattr(loop, "SECONDS_PER_CHUNK", 0.2)
    network = secure.Network(tmp_path / "network", algorithm=secure.FEDERATED)
    rounds: list[Any] = []

    def last(site: str, request: Envelope) -> bool:
        if request.kind == "round" and request.values["oldest"][1] >= 0:
            rounds.append(request.label)
        return len(rounds) > 4

    answer = dies_at(network, last)
    with pytest.raises(SiteMissingError):
        network.run(store=tmp_path / "run", rounds=40)
    assert rounds, "no checkpoint was old enough"
    network.answer = answer  # type: ignore[method-assign]
    assert resumed(network, tmp_path / "run")["posterior"].sizes["draw"] == 40


def test_a_registered_run_goes_on_with_a_query_that_some_sites_have_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = tmp_path / "agreed"
    agreed.mkdir()
    for name in NAMES:
        shutil.copy(HOSPITALS / f"{name}.csv", agreed)
    (agreed / "study.toml").write_text(
        '[data]\nfiles = ["north.csv", "south.csv", "west.csv"]\n[model]\n'
        'formula = "ill ~ age + dose"\nfamily = "bernoulli"\n[algorithm]\nname = "few_rounds"\n'
        "effective_size = 200\n[run]\nrounds = 60\nseed = 1\n"
    )
    done = CliRunner().invoke(command, ["register", str(agreed / "study.toml")])
    assert done.exit_code == 0, done.output
    text = (agreed / "study.toml").read_text()
    monkeypatch.setattr(secure, "study", lambda algorithm: text)
    network = secure.Network(tmp_path / "network", algorithm="")
    assert network.terms.exchanges == 2 + network.study.method.most_messages
    answer = dies_at(
        network,
        lambda site, request: request.kind == "query" and request.label[1] >= 1 and site == "west",
    )
    with pytest.raises(SiteMissingError):
        network.run(network.engine(registered=True), store=tmp_path / "run")
    assert len(network.queries("north")) == 2
    network.answer = answer  # type: ignore[method-assign]
    tree = resumed(network, tmp_path / "run", registered=True)
    assert tree.attrs["rejected_replies"] == 0
    assert tree["posterior"].sizes["draw"] >= 200
