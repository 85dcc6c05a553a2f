"""An emulated trial by letters with masks, and over Flower: treatment, then weighted outcome."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app
from consortia.engines.flower.transport import InProcess
from consortia.federation.app import serve, site_of
from consortia.study.build import load_study
from tests.federation.correspondence import POLICY, Correspondence
from tests.federation.hospitals import NAMES

KINDS = 'messages = ["description", "moments", "query"]\n'
STUDY = """
[data]
files = ["north.csv", "south.csv", "west.csv"]
[model]
formula = "Surv(months, event) ~ arm"
family = "cox"
levels = { arm = ["none", "hormone"] }
[propensity]
formula = "I(arm == 'hormone') ~ age"
estimand = "ATT"
[algorithm]
name = "few_rounds"
[run]
chains = 4
[output]
figure = false
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sites' files."""
    folder = tmp_path_factory.mktemp("data")
    with (Path(__file__).parents[1] / "references" / "gbsg.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    for place, name in enumerate(NAMES):
        with (folder / f"{name}.csv").open("w") as lines:
            writer = csv.DictWriter(lines, rows[0])
            writer.writeheader()
            writer.writerows(row for row in rows if int(row["id"]) % 3 == place)
    return folder


def by_letters(root: Path, asked: str, data: Path) -> Any:
    """Return where the result of a study is."""
    now = Correspondence(root, keys=True, asked=asked, data=data)
    for name in NAMES:
        policy = now.site(name) / "site-policy.toml"
        policy.write_text(f"{KINDS}{policy.read_text()}")
    progress = now.proceed()
    while progress.result is None:
        for name, number in progress.awaited.items():
            error = now.answer(name, number).error
            assert error is None, str(error)
        progress = now.proceed()
    return progress.result


def over_flower(root: Path, asked: str, data: Path) -> Any:
    """Return where the result of a study is, with the messages of Flower's apps."""
    path, sites = root / "study.toml", {}
    root.mkdir()
    path.write_text(asked.replace("[run]", "[run]\nsecure_sums = false"))
    for number, name in enumerate(NAMES):
        folder = root / name
        folder.mkdir()
        (folder / "site-policy.toml").write_text(f"{KINDS}{POLICY}secure_sums = false\n")
        node = {"site": name, "data": str(data / f"{name}.csv"), "folder": str(folder)}
        sites[number] = site_of(load_study(path), node, {}).answer
    serve(path, InProcess(sites), {"output": str(root / "run"), "quiet": True})
    return root / "run"


@pytest.mark.slow
@pytest.mark.parametrize("carried", [by_letters, over_flower])
def test_institutions_have_the_weighted_estimate_of_one_process(
    data: Path, tmp_path: Path, carried: Any
) -> None:
    first = carried(tmp_path / "first", STUDY, data)
    (tmp_path / "study.toml").write_text(STUDY)
    words = ["register", str(tmp_path / "study.toml"), "--propensity", str(first)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    asked = (tmp_path / "study.toml").read_text()
    tree = consortia.open_run(carried(tmp_path / "second", asked, data))
    built = load_study(tmp_path / "study.toml").build(data_folder=data)
    alone = consortia.sample(
        built.model, built.sites, built.algorithm, seed=3, progress=False, metadata=built.metadata
    )
    there, here = (np.asarray(one["posterior"]["coefficients"]) for one in (tree, alone))
    assert abs(there.mean() - here.mean()) < 0.15 * here.std()
    assert there.std() == pytest.approx(here.std(), rel=0.1)
    assert "widths are those of a sandwich estimator" in str(consortia.summary(tree))
