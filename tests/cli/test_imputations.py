"""A study whose missing values are imputed, from its file to its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.irises import invoke

import consortia

STUDY = """
[data]
files = ["oslo.csv", "lima.csv", "bern.csv"]
[model]
formula = "died ~ age + arm"
family = "bernoulli"
missing = "impute"
imputations = 2
[algorithm]
name = "few_rounds"
[run]
rounds = 100
[output]
figure = false
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base, rng = tmp_path_factory.mktemp("impute"), np.random.default_rng(1)
    for name in ("oslo", "lima", "bern"):
        lines = ["age,arm,died"]
        for row in range(40):
            age = "NA" if row % 4 == 0 else f"{rng.normal(60, 9):.1f}"
            lines.append(f"{age},{rng.choice(['new', 'old'])},{rng.integers(2)}")
        (base / f"{name}.csv").write_text("\n".join([*lines, ""]))
    (base / "study.toml").write_text(STUDY)
    return base


@pytest.fixture(scope="module")
def finished(folder: Path) -> Any:
    return invoke("run", folder / "study.toml", "--output", folder / "out")


def test_a_run_samples_every_imputation_and_writes_one_table(folder, finished):
    assert finished.exit_code == 0, finished.output
    text = " ".join(finished.stdout.split())
    assert "missing values (age 30) are drawn 2 times" in text
    assert "How much information is missing?" in text
    tree = consortia.open_run(folder / "out")
    first, second = np.bincount(tree["posterior"].coords["imputation"])
    assert first == second >= 100
    written = (folder / "out" / "estimates.txt").read_text()
    for table in ("odds ratio", "on the probability of died", "age, per unit"):
        assert table in written, table
    assert sorted(one.name for one in (folder / "out" / "imputations").iterdir()) == ["0", "1"]


def test_a_finished_run_is_finished_and_is_reported(folder, finished):
    outcome = invoke("resume", folder / "out")
    assert outcome.exit_code == 0, outcome.output
    assert "is finished" in outcome.output
    outcome = invoke("report", folder / "out")
    assert outcome.exit_code == 0, outcome.output
    page = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert "On the outcome itself" in page
    assert "Change of the probability of death" in page


def test_check_counts_the_cost_of_all_imputations(folder):
    outcome = invoke("check", folder / "study.toml", "--no-bias")
    assert outcome.exit_code == 0, outcome.output
    assert "drawn 2 times" in " ".join(outcome.stdout.split())
    once = folder / "once.toml"
    once.write_text(STUDY.replace('"impute"', '"indicator"'))
    costs = [invoke("check", path, "--no-bias", "--json") for path in (folder / "study.toml", once)]
    found = [json.loads(one.stdout)["cost"]["draws"] for one in costs]
    assert found[0] == 2 * found[1]


@pytest.mark.parametrize("option", ["--verify", "--loo"])
def test_what_has_one_data_set_is_refused(folder, tmp_path, option):
    outcome = invoke("run", folder / "study.toml", option, "-o", tmp_path / "out")
    assert outcome.exit_code == 2
    assert "imput" in outcome.output
