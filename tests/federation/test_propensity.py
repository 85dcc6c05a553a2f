"""An emulated trial by letters with masks, and over Flower: treatment, then weighted outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app
from consortia.engines.messages.transport import InProcess
from consortia.federation.app import serve, site_of
from consortia.report.participants import participants
from consortia.report.run_report import load_run
from consortia.study.build import load_study
from tests.federation.correspondence import POLICY, Correspondence
from tests.federation.hospitals import NAMES, deal

KINDS = 'messages = ["description", "moments", "query"]\n'
STUDY = """
[data]
files = ["north.csv", "south.csv", "west.csv"]
[model]
formula = "Surv(months, event) ~ arm"
family = "cox"
levels = { arm = ["none", "hormone"] }
[model.describe]
cells = 10
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
    return deal("gbsg", tmp_path_factory.mktemp("data"))


def by_letters(root: Path, asked: str, data: Path) -> Any:
    """Return where the result of a study is, under the policies that the sites are proposed.

    The study of the outcome is in the ledgers of that of who was treated.
    """
    first = root.parent / "first"
    after = Correspondence(first) if root != first else None
    now = Correspondence(root, keys=True, asked=asked, data=data, after=after)
    now.permit_as_proposed()
    return now.answered()


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
    second = carried(tmp_path / "second", asked, data)
    tree = consortia.open_run(second)
    built = load_study(tmp_path / "study.toml").build(data_folder=data)
    alone = consortia.sample(
        built.model, built.sites, built.algorithm, seed=3, progress=False, metadata=built.metadata
    )
    there, here = (np.asarray(one["posterior"]["coefficients"]) for one in (tree, alone))
    assert abs(there.mean() - here.mean()) < 0.15 * here.std()
    assert there.std() == pytest.approx(here.std(), rel=0.1)
    assert "widths are those of a sandwich estimator" in str(consortia.summary(tree))
    # one line a covariate: differences at each site and overall, before and with weights
    told, _ = participants(load_run(second)) or (None, None)
    assert told is not None
    assert built.regression is not None
    assert told.balance == built.regression.table_one().balance
    assert {line.variable for line in told.balance} >= {"age", "treated, other rows"}
