"""The rows by which a study is known again: those of its likelihood, in the order of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from consortia.data.digest import of_cells
from consortia.errors import InputError, PolicyError
from consortia.study.build import Study, load_study

KEY = b"secret"
FORMULA = """
[data]
files = ["a.csv", "b.csv"]
{data}
[model]
formula = "y ~ x{term}"
family = "gaussian"
missing = "{missing}"
{more}
[algorithm]
name = "few_rounds"
[run]
chains = 4
"""
READY = """
[data]
files = ["a.{kind}", "b.{kind}"]
{data}
[model]
kind = "linear_regression"
[algorithm]
name = "fa_ld"
step_size = 0.01
local_steps = 1
[run]
rounds = 2
"""
HELD_OUT = ["", "test_share = 0.2", "test_share = 0.2\nseed = 5", "test_share = 0.1"]


def written(folder: Path, text: str, rows: int = 60, *, misses: bool = True) -> Study:
    """A study of two files whose column y tells rows apart."""
    for site, name in enumerate("ab"):
        rng = np.random.default_rng(site)
        x, y, z = rng.normal(size=(3, rows)).round(4)
        lines = [f"{u},{v},{w}" for u, v, w in zip(x, y, z, strict=True)]
        for index in range(3, rows if misses else 0, 9):
            lines[index] = f"{x[index]},{y[index]},"
        (folder / f"{name}.csv").write_text("\n".join(["x,y,z", *lines]) + "\n")
        np.savez(folder / f"{name}.npz", x=np.stack([x, z], axis=1), y=y)
    path = folder / "study.toml"
    path.write_text(text)
    return load_study(path)


def known(study: Study, folder: Path, index: int, column: str, kind: str = "csv") -> np.ndarray:
    """Values of y of the rows that the digests of a study name, in their order."""
    name = "ab"[index]
    (digests,) = study.used_rows(folder / f"{name}.{kind}", index, KEY)
    every = np.genfromtxt(folder / f"{name}.csv", delimiter=",", skip_header=1, ndmin=2)[:, 1]
    of_all = of_cells({column: (every, np.zeros(len(every), bool))}, KEY)
    values = dict(zip(of_all.cells[:, 0].tolist(), every.tolist(), strict=True))
    at = digests.names.tolist().index(of_all.names[0])
    return np.array([values[cell] for cell in digests.cells[:, at].tolist()])


@pytest.mark.parametrize("data", HELD_OUT)
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"term": " + z"},
        {"term": " + z", "missing": "indicator"},
        {"data": "keep = 'x > -0.5'"},
        {"data": "require = ['z']"},
        {"data": "require = ['z']\nkeep = 'x > -0.5'"},
    ],
)
def test_they_are_those_of_the_likelihood_of_a_formula(
    tmp_path: Path, parts: dict[str, str], data: str
) -> None:
    given = {"term": "", "missing": "complete", "more": "", "data": ""} | parts
    study = written(tmp_path, FORMULA.format(**given | {"data": f"{given['data']}\n{data}"}))
    sites = study.build().rows
    for index in range(2):
        y = np.asarray(sites.site(index)["y"])
        np.testing.assert_allclose(known(study, tmp_path, index, "y"), y)


@pytest.mark.parametrize("data", HELD_OUT)
@pytest.mark.parametrize(("kind", "column"), [("csv", "y"), ("npz", "y 0")])
def test_they_are_those_of_a_ready_model(tmp_path: Path, kind: str, column: str, data: str) -> None:
    study = written(tmp_path, READY.format(kind=kind, data=data), misses=False)
    sites = study.build().sites
    for index in range(2):
        y = np.asarray(sites.site(index)["y"])
        np.testing.assert_allclose(known(study, tmp_path, index, column, kind), y)


def test_all_rows_are_known_where_values_are_imputed(tmp_path: Path) -> None:
    parts = {"term": " + z", "missing": "impute", "data": "", "more": ""}
    text = FORMULA.format(**parts) + 'keep = "draws"\n'
    assert len(known(written(tmp_path, text), tmp_path, 0, "y")) == 60


@pytest.mark.parametrize("text", [FORMULA, READY])
def test_a_row_alone_cannot_be_held_out_and_many_are_refused(tmp_path: Path, text: str) -> None:
    parts = {"term": "", "missing": "complete", "more": "", "kind": "csv"}
    study = written(tmp_path, text.format(data="", **parts), 1, misses=False)
    assert len(known(study, tmp_path, 0, "y")) == 1
    study = written(tmp_path, text.format(data="test_share = 0.3", **parts), 1, misses=False)
    with pytest.raises(InputError, match="of 1 rows leaves one part empty"):
        known(study, tmp_path, 0, "y")
    study = written(tmp_path, text.format(data="test_share = 0.31", **parts), misses=False)
    with pytest.raises(PolicyError, match=r"data\.test_share = 0\.31") as refusal:
        known(study, tmp_path, 0, "y")
    assert refusal.value.rules == ("test_share",)


def test_a_comparison_holds_the_same_rows_out_of_both_models(tmp_path: Path) -> None:
    parts = {"term": "", "missing": "complete", "more": "", "data": "test_share = 0.2"}
    text = FORMULA.format(**parts) + '[compare]\nformula = "y ~ 1"\nfamily = "gaussian"\n'
    study = written(tmp_path, text)
    first, other = study.used_rows(tmp_path / "a.csv", 0, KEY)
    assert len(first.cells) == 48
    np.testing.assert_array_equal(first.cells, other.cells)
