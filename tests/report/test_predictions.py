"""Predictions of a run for new rows, as `consortia export --rows` writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from consortia.cli.commands import app
from consortia.report.run_report import load_run
from tests.federation.hospitals import HOSPITALS, NAMES

NEW = "age,dose\n-1,0\n0.5,1\n"


def command(*words: object, code: int = 0) -> str:
    """Return what a command prints, standard error among it."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of a formula with a level of each site."""
    root = tmp_path_factory.mktemp("predicted")
    files = [str(HOSPITALS / f"{name}.csv") for name in NAMES]
    (root / "study.toml").write_text(
        f'[data]\nfiles = {files}\n[model]\nformula = "ill ~ age + dose + (1 | site)"\n'
        'family = "bernoulli"\nintegrate = true\n[algorithm]\nname = "few_rounds"\n'
    )
    (root / "new.csv").write_text(NEW)
    command("run", root / "study.toml", "--output", root / "run", "--no-reference", "--quiet")
    return root / "run"


@pytest.mark.parametrize("site", [None, "south"])
def test_a_line_of_the_file_summarises_what_a_row_of_the_table_is_predicted(
    run: Path, tmp_path: Path, site: str | None
) -> None:
    new, file = run.with_name("new.csv"), tmp_path / "predictions.csv"
    command("export", run, file, "--rows", new, *(["--site", site] if site else []))
    table, report = pd.read_csv(file), load_run(run)
    values = report.regression.predict(report.tree, new, site).values.reshape(-1, 2)
    np.testing.assert_array_equal(table["row"], [1, 2])
    np.testing.assert_allclose(table["mean"], values.mean(0), rtol=1e-6)
    np.testing.assert_allclose(table["sd"], values.std(0), rtol=1e-6)
    for name, share in {"2.5%": 0.025, "50%": 0.5, "97.5%": 0.975}.items():
        np.testing.assert_allclose(table[name], np.quantile(values, share, axis=0), rtol=1e-6)


def test_what_cannot_be_predicted_is_refused_and_nothing_is_written(
    run: Path, tmp_path: Path
) -> None:
    new, file = run.with_name("new.csv"), tmp_path / "predictions.csv"
    assert "north, south, west" in command(
        "export", run, file, "--rows", new, "--site", "rome", code=2
    )
    assert "also give --rows" in command("export", run, file, "--site", "south", code=2)
    assert "give numbers" in command("export", run, file, "--rows", new, "--at", "soon", code=2)
    (tmp_path / "short.csv").write_text("age\n1\n")
    assert "dose" in command("export", run, file, "--rows", tmp_path / "short.csv", code=2)
    assert not file.exists()
    file.write_text("mine")
    assert "already exists" in command("export", run, file, "--rows", new, code=3)
    assert file.read_text() == "mine"
