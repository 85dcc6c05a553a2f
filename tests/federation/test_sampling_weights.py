"""Weights of a sample between institutions: the draws have the sandwich of one process."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app
from consortia.engines.messages.transport import InProcess
from consortia.federation.app import answer, serve
from consortia.store.metadata import recorded
from consortia.study.build import load_study
from tests.federation.correspondence import Correspondence, as_one_process
from tests.federation.hospitals import NAMES

STUDY = """
[data]
files = ["north.csv", "south.csv", "west.csv"]
[model]
formula = "y ~ x"
family = "bernoulli"
weights = "w"
weights_are = "sampling"
[algorithm]
name = "few_rounds"
effective_size = 1000
[run]
chains = 4
seed = 1
[output]
figure = false
"""

POLICY = """models = ["any"]
messages = ["description", "moments", "query"]
maximum_rounds = 1000
minimum_rows = 50
minimum_pattern_rows = 1
maximum_settled_rows = 0
"""
"""It permits moments with all digits, as one process has them."""

PEOPLE = 2000
"""At each site, of whom some 720 are in the sample."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sites' files, whose rows were drawn with unequal probabilities."""
    folder = tmp_path_factory.mktemp("data")
    for place, name in enumerate(NAMES):
        rng = np.random.default_rng(place)
        x = rng.uniform(-1, 5, PEOPLE) + place / 3  # a row far out would be settled by few sums
        y = rng.random(PEOPLE) < 1 / (1 + np.exp(0.5 - 0.4 * x))
        chance = np.where(rng.random(PEOPLE) < 0.5, 0.12, 0.6)
        table = np.column_stack([x, y, 1 / chance])[rng.random(PEOPLE) < chance]
        np.savetxt(folder / f"{name}.csv", table, "%.6f", ",", header="x,y,w", comments="")
    (folder / "study.toml").write_text(STUDY.replace("[run]", "[run]\nsecure_sums = false"))
    return folder


@pytest.fixture(scope="module")
def own(data: Path) -> Any:
    """Return the result of one process."""
    study = load_study(data / "study.toml")
    built = study.build()
    parts, run = (built.model, built.sites, built.algorithm), study.run_options
    return consortia.sample(*parts, **run, progress=False, metadata=built.metadata)


def check_law(tree: Any, own: Any) -> None:
    """Compare the sandwich, and means and sds of 1,000 effective draws each."""
    found, wanted = (recorded(one, "sandwich") for one in (tree, own))
    assert wanted["low"] > 1.2  # else the test shows nothing
    assert found == pytest.approx(wanted, rel=0.02)
    for name, draws in own["posterior"].data_vars.items():
        other, sd = tree["posterior"][name], float(draws.std())
        # the standard error of the difference of two means is .045 sd, of the ratio of sds .032
        assert abs(float(other.mean() - draws.mean())) < 4 * 0.045 * sd
        assert float(other.std()) / sd == pytest.approx(1, abs=4 * 0.032)
    assert "widths are those of a sandwich estimator" in str(consortia.summary(tree))
    assert "of no posterior" in tree.attrs["bias"] or "no posterior" in tree.attrs["bias"]


@pytest.mark.slow
def test_letters_have_the_draws_of_one_process(
    data: Path, own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_one_process(monkeypatch)
    now = Correspondence(tmp_path / "letters", asked=STUDY, data=data)
    for name in NAMES:
        (now.site(name) / "site-policy.toml").write_text(f"{POLICY}secure_sums = false\n")
    found, number = now.proceed(), 0
    while found.result is None:
        number += 1
        for name in NAMES:
            now.answer(name, number)
        found = now.proceed()
    tree = consortia.open_run(found.result)
    print(number, "letters to each site", recorded(tree, "sandwich"))
    assert number <= 8
    for name, draws in own["unconstrained_posterior"].data_vars.items():
        np.testing.assert_allclose(tree["unconstrained_posterior"][name], draws, atol=1e-3)
    check_law(tree, own)


@pytest.mark.slow
def test_sites_with_noise_of_their_own_have_the_law_of_one_process(
    data: Path, own: Any, tmp_path: Path
) -> None:
    def site(name: str) -> Any:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "site-policy.toml").write_text(f"{POLICY}secure_sums = false\n")
        node = {"site": name, "data": str(data / f"{name}.csv"), "folder": str(folder)}
        return lambda message: answer(data / "study.toml", message, node, {})

    transport = InProcess({number: site(name) for number, name in enumerate(NAMES)})
    serve(data / "study.toml", transport, {"output": str(tmp_path / "run"), "join-deadline": 5})
    check_law(consortia.open_run(tmp_path / "run"), own)


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs the extra `flower`")
def test_a_flower_network_with_secure_sums_has_the_law_of_one_process(
    data: Path, own: Any, tmp_path: Path
) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    for words in (
        ("flower", "new", tmp_path / "study.toml", "--to", tmp_path / "app"),
        ("flower", "loopback", tmp_path / "app", "--data", data, "--folder", tmp_path / "place"),
    ):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
    check_law(consortia.open_run(tmp_path / "place" / "run"), own)
