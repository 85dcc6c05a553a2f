"""A run as one netCDF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app

MODEL = consortia.Model(
    log_prior=lambda theta: -0.5 * (theta["a"] ** 2).sum(),
    log_likelihood=lambda theta, batch: -0.5 * ((batch - theta["a"][None]) ** 2).sum(axis=-1),
    init={"a": np.zeros(2, np.float32)},
)
SITES = consortia.Sites.from_list([np.ones((2, 2), np.float32), np.zeros((3, 2), np.float32)])


def test_an_exported_run_is_read_back_with_its_groups_and_attributes(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5py", reason="needs the extra `netcdf`")
    method = consortia.de_sgld(0.05, mixing="ring", draws="agents")
    tree = consortia.sample(
        MODEL, SITES, method, rounds=12, chains=2, store=tmp_path / "run", progress=False
    )
    outcome = CliRunner().invoke(app, ["export", str(tmp_path / "run"), str(tmp_path / "a.nc")])
    assert outcome.exit_code == 0, outcome.output
    with xarray.open_datatree(tmp_path / "a.nc", engine="h5netcdf") as found:
        assert set(found.children) == set(tree.children)
        for group in ("posterior", "agents"):
            np.testing.assert_array_equal(found[group]["a"], tree[group]["a"])
        assert list(found["agents"]["agent"].values) == list(SITES.names)
        assert found.attrs["algorithm"] == "de_sgld"
        assert found.attrs["seed"] == 0
    again = CliRunner().invoke(app, ["export", str(tmp_path / "run"), str(tmp_path / "a.nc")])
    assert again.exit_code == 3
    assert "already exists" in again.stderr


@pytest.mark.parametrize("backwards", [False, True])
def test_variables_keep_their_order_however_the_disk_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backwards: bool
) -> None:
    model = consortia.Model(
        log_prior=lambda theta: -0.5 * (theta["slope"] ** 2 + theta["b"] ** 2 + theta["z"] ** 2),
        log_likelihood=lambda theta, batch: -0.5 * (batch - theta["slope"]) ** 2,
        init={"slope": np.zeros(()), "b": np.zeros(()), "z": np.zeros(())},
    )
    sites = consortia.Sites.from_list([np.ones(2, np.float32), np.zeros(3, np.float32)])
    method = consortia.de_sgld(0.05, mixing="complete")
    asked = {"rounds": 4, "warmup": 0, "chains": 1, "progress": False}
    whole = consortia.sample(model, sites, method, **asked)
    consortia.sample(model, sites, method, store=tmp_path / "run", **asked)
    listed = Path.iterdir

    def iterdir(path: Path) -> Any:
        return iter(sorted(listed(path), reverse=backwards))

    monkeypatch.setattr(Path, "iterdir", iterdir)
    found = consortia.open_run(tmp_path / "run")
    assert list(found["posterior"].data_vars) == list(whole["posterior"].data_vars)
    assert next(iter(found.children)) == "posterior"
    assert found["posterior"].attrs == whole["posterior"].attrs


def test_draws_are_exported_to_a_table_and_no_file_is_overwritten(tmp_path: Path) -> None:
    method = consortia.fa_ld(0.05, local_steps=2)
    options = {"rounds": 6, "chains": 2, "progress": False}
    tree = consortia.sample(MODEL, SITES, method, store=tmp_path / "run", **options)
    words = ["export", str(tmp_path / "run"), str(tmp_path / "a.csv")]
    assert CliRunner().invoke(app, words).exit_code == 0
    header, *rows = (tmp_path / "a.csv").read_text().splitlines()
    assert header == "chain,draw,a[0],a[1]"
    found = np.array([row.split(",") for row in rows], float)
    assert found[:, 0].tolist() == [1] * 6 + [2] * 6
    np.testing.assert_allclose(found[:, 2:], tree["posterior"]["a"].values.reshape(-1, 2))
    assert CliRunner().invoke(app, words).exit_code == 3
