"""The pooled rows of an ordinary study are those of its sites, and what cannot run says why."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from consortia.models.regression.construction import regression

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return import_module("benchmarks.ordinary_study")


def test_other_libraries_fit_the_rows_that_the_sites_have(ordinary, tmp_path: Path) -> None:
    for index, study in enumerate(ordinary._studies("tiny")):
        folder = tmp_path / str(index)
        folder.mkdir()
        pooled = study.write(folder)
        written = tomllib.loads((folder / "study.toml").read_text())
        model = written["model"]
        assert model["family"] == study.family
        assert study.formula.partition(" ~ ")[0] == model["formula"].partition(" ~ ")[0]
        files = {Path(name).stem: folder / name for name in written["data"]["files"]}
        options = {name: model[name] for name in ("missing", "prior") if name in model}
        made = regression(
            model["formula"],
            files,
            family=model["family"],
            integrate=model.get("integrate", False),
            harmonise=written.get("harmonise"),
            **options,
        )
        assert set(pooled["site"]) == set(files)
        response = pooled[study.formula.partition(" ~ ")[0]]
        for name in files:
            rows, expected = made.sites.site(name)["y"], response[pooled["site"] == name]
            assert len(rows) == len(expected)
            if study.family == "bernoulli":
                np.testing.assert_array_equal(rows, expected)


def test_a_library_that_is_not_there_or_fails_has_no_figure(ordinary, tmp_path: Path) -> None:
    table = tmp_path / "pooled.csv"
    pd.DataFrame({"y": [0, 1], "x": [0.5, 1.5]}).to_csv(table, index=False)
    study = ordinary.Study("two rows", None, "y ~ x", "bernoulli")
    absent = ordinary.of_peer(study, ordinary.Peer("no_such_library", ""), table, 2)
    assert (absent.figure, absent.skipped) == (None, "not installed")
    failing = ordinary.of_peer(
        study, ordinary.Peer("pandas", "raise SystemExit('{formula}')"), table, 2
    )
    assert failing.figure is None
    assert failing.skipped == "ended with 1: y ~ x"
    mixed = study._replace(formula="y ~ x + (1 | site)")
    alone = ordinary.of_peer(mixed, ordinary.Peer("pandas", "", groups=False), table, 2)
    assert alone.skipped == "it does not fit this model"
    many = ordinary.of_peer(study, ordinary.Peer("pandas", ""), table, 100_001)
    assert many.skipped == "not tried on more than 100,000 rows"
    slow = ordinary.Peer("pandas", "raise SystemExit(124)")  # as `timeout` ends it
    assert ordinary.of_peer(study, slow, table, 2).skipped == "given up after 300 s"


def test_a_command_is_measured_with_all_processes_that_it_starts(ordinary) -> None:
    child = "x = bytearray(300_000_000); x[::4096] = bytes(len(x[::4096]))"
    parent = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    row = ordinary._row("a child", [[sys.executable, "-c", parent]], {})
    assert row.figure > 0
    assert int(row.detail.split()[-2].replace(",", "")) >= 300
