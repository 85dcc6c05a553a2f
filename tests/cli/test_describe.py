"""`consortia describe`, and what a report says of participants."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from consortia import few_rounds, sample
from consortia.cli.commands import app
from consortia.report.participants import participant_tables, participants
from consortia.report.run_report import report_of
from consortia.study.build import load_study

STUDY = """
[data]
files = ["oslo.csv", "lima.csv"]
[model]
formula = "Surv(time, status == 1) ~ age"
family = "weibull"
missing = "complete"
[model.describe]
times = [5, 10]
event = "status"
causes = { 1 = "relapse", 2 = "death" }
[algorithm]
name = "few_rounds"
"""


@pytest.fixture
def study(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("oslo", "lima"):
        rows = 300
        time, end = rng.exponential(10, rows), rng.uniform(0, 20, rows)
        frame = pd.DataFrame({"time": np.minimum(time, end), "age": rng.normal(60, 9, rows)})
        frame["status"] = (time <= end) * rng.integers(1, 3, rows)
        frame.loc[:20, "age"] = np.nan
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def test_it_shows_rows_table_and_curves_and_writes_the_table(study):
    target = study.parent / "table1.csv"
    done = CliRunner().invoke(app, ["describe", str(study), "--output", str(target)])
    assert done.exit_code == 0, done.output
    assert "missing values, in rows read" in done.output
    assert "incidence of death" in done.output
    frame = pd.read_csv(target)
    assert {"part", "variable", "oslo", "lima", "all sites"} <= {*frame.columns}


def test_a_file_of_another_kind_is_refused_before_anything_is_read(study):
    done = CliRunner().invoke(app, ["describe", str(study), "--output", "table1.xlsx"])
    assert done.exit_code == 2
    assert ".csv or .tsv" in done.output


@pytest.mark.slow
def test_a_report_without_rows_has_table_and_curves_from_the_record(study):
    built = load_study(study).build()
    tree = sample(built.model, built.sites, few_rounds(), seed=1, metadata=built.metadata)
    told, curves = participants(report_of(tree))
    assert participant_tables(told)[-1].rows
    assert curves.kinds == ("relapse", "death")
