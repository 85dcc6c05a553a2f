"""What is kept beside the draws: title, names, units of the columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

import consortia
from consortia.core.parameters import as_sampled
from consortia.report.run_report import load_run
from consortia.store.metadata import Metadata
from consortia.study.build import load_study
from consortia.study.tables import in_column_units
from tests.refusals import refused

STUDY = """
title = "Doses"

[data]
files = ["oslo.csv", "lima.csv"]
target = "died"
standardise = true
dtype = "float32"

[model]
kind = "logistic_regression"
intercept = true

[algorithm]
name = "fa_ld"
step_size = 0.05
local_steps = 1

[run]
rounds = 40
chains = 2
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doses")
    rng = np.random.default_rng(0)
    for site in ("oslo", "lima"):
        age, dose = rng.normal(60, 9, 30), rng.gamma(2, 50, 30)
        died = rng.random(30) < 0.4
        lines = [f"{a},{d},{int(y)}" for a, d, y in zip(age, dose, died, strict=True)]
        (folder / f"{site}.csv").write_text("\n".join(["age,dose,died", *lines]) + "\n")
    (folder / "study.toml").write_text(STUDY)
    return folder / "study.toml"


@pytest.fixture(scope="module")
def stored(study: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    built = load_study(study).build()
    folder = tmp_path_factory.mktemp("runs") / "run"
    options: dict[str, Any] = {"metadata": built.metadata, "progress": False, "store": folder}
    tree = consortia.sample(
        built.model, built.sites, built.algorithm, rounds=40, chains=2, **options
    )
    longer = consortia.resume(
        folder, built.model, built.sites, built.algorithm, rounds=50, progress=False
    )
    assert tree["posterior"].sizes["draw"] == 40
    return folder, longer


def test_a_run_and_its_netcdf_name_the_parameters_also_after_it_was_resumed(stored, tmp_path):
    folder, tree = stored
    assert list(tree["posterior"]["coefficients"].coords["coefficients_dim_0"].values) == [
        "age",
        "dose",
    ]
    file = consortia.to_netcdf(folder, tmp_path / "run.nc")
    with xarray.open_datatree(file, engine="h5netcdf") as written:
        names = written["posterior"]["coefficients"].coords["coefficients_dim_0"].values
        assert list(names) == ["age", "dose"]
        assert written.attrs["title"] == "Doses"
        assert json.loads(written.attrs["settings"])["model"]["prior_scale"] == 1.0


def test_a_report_has_title_and_names_without_the_study(stored):
    report = load_run(stored[0])
    assert report.title == "Doses"
    assert report.table.coordinates == ("coefficients[age]", "coefficients[dose]", "intercept")


def test_a_summary_is_in_the_units_of_the_columns_as_they_were_read(stored, study):
    _, tree = stored
    table, sampled = consortia.summary(tree), consortia.summary(tree, units="sampled")
    ages = np.concatenate(
        [np.loadtxt(study.parent / f"{s}.csv", delimiter=",", skiprows=1) for s in ("oslo", "lima")]
    )[:, 0]
    assert table["mean"][0] == pytest.approx(sampled["mean"][0] / ages.std(), rel=1e-5)
    assert any("units of the columns" in note for note in table.notes)
    assert not any("units of the columns" in note for note in sampled.notes)


def test_the_draws_of_a_study_with_standardised_columns_are_per_unit_of_these(stored):
    _, tree = stored
    table, sampled = consortia.summary(tree), consortia.summary(tree, units="sampled")
    means = [
        float(tree[g]["coefficients"][..., 0].mean())
        for g in ("posterior", "unconstrained_posterior")
    ]
    np.testing.assert_allclose(means, [table["mean"][0], sampled["mean"][0]], rtol=1e-6)
    assert table.verdict == sampled.verdict


def test_a_run_of_an_earlier_version_is_summarised_as_of_standardised_columns(stored):
    earlier = as_sampled(stored[1]).copy()
    assert not any("standardised" in note for note in consortia.summary(earlier).notes)
    earlier.attrs["scaling"] = '{"columns": ["age", "dose"]}'
    assert any("standardised columns" in note for note in consortia.summary(earlier).notes)


CASES = {
    "an intercept": ("coefficients", "intercept"),
    "no intercept": ("coefficients",),
    "a column of ones": ("coefficients",),
    "a standardised response": ("coefficients", "intercept", "log_noise_scale"),
    "classes": ("coefficients", "intercept"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_draw_in_column_units_has_the_same_predictor(case):
    """As an identity: the predictor at raw rows is that of the draw at standardised rows."""
    rng = np.random.default_rng(1)
    x = rng.normal(50, [2.0, 20.0], size=(6, 2))
    means, sds = x.mean(0), x.std(0)
    scaled, columns = (x - means) / sds, ("a", "b")
    if case == "a column of ones":
        x, scaled = (np.column_stack([each, np.ones(6)]) for each in (x, scaled))
        means, sds, columns = np.append(means, 0), np.append(sds, 1), ("a", "b", "intercept")
    response = (3.0, 2.5) if case == "a standardised response" else (0.0, 1.0)
    classes = (3,) if case == "classes" else ()
    shapes = {"coefficients": (*classes, len(columns)), "intercept": classes, "log_noise_scale": ()}
    draws = {name: rng.normal(size=(2, 5, *shapes[name])) for name in CASES[case]}
    ones = case == "a column of ones"
    turned = in_column_units(draws, columns=(means, sds), response=response, ones=ones)

    def predictor(slopes: Any, constant: Any, rows: np.ndarray) -> np.ndarray:
        return np.moveaxis(np.asarray(slopes) @ rows.T, -1, 0) + np.asarray(constant)

    before = predictor(draws["coefficients"], draws.get("intercept", 0.0), scaled)
    constant = turned.get("intercept", 0.0)
    after = predictor(turned["coefficients"], constant, x)
    centre, unit = response
    np.testing.assert_allclose(after, centre + unit * before, rtol=1e-10, atol=1e-10)
    if "log_noise_scale" in draws:
        shift = np.asarray(turned["log_noise_scale"]) - draws["log_noise_scale"]
        np.testing.assert_allclose(shift, np.log(unit))


@pytest.mark.parametrize(
    ("labels", "argument", "match"),
    [
        ({"gamma": [["a"]]}, "metadata.labels", "'gamma'"),
        ({"theta": ["a", "b"]}, "metadata.labels", "a sequence of names for each axis"),
        ({"theta": [["a"]]}, "metadata.labels", "has 1.*of 2"),
        ({"theta": [["a"], ["a", "b"]]}, "metadata.labels", "names 2.*has 1"),
    ],
)
def test_labels_that_do_not_fit_the_model_are_refused(labels, argument, match):
    import jax.numpy as jnp

    model = consortia.Model(
        lambda t: -jnp.sum(t**2), lambda t, rows: -((rows["y"] - t[0]) ** 2), jnp.zeros(2)
    )
    sites = consortia.Sites.from_list([{"y": np.ones(2, np.float32)}])
    with refused(argument=argument, match=match):
        consortia.sample(
            model,
            sites,
            consortia.fa_ld(step_size=0.1, local_steps=1),
            rounds=1,
            metadata=Metadata(labels=labels),
            chains=1,
        )
