"""Results hold natural quantities in ``posterior`` and coordinates beside them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core import parameters
from consortia.core.target import Target
from consortia.diagnostics.reference import nuts
from consortia.errors import StoreError
from consortia.report.run_report import report_of
from consortia.store.export import to_csv, to_netcdf
from tests.refusals import refused

LENGTH: dict[str, Any] = {"rounds": 12, "warmup": 4, "chains": 2, "seed": 3, "progress": False}


def log_likelihood(p: Any, rows: Any) -> Any:
    z = (rows["y"] - p["mean"]) * jnp.exp(-p["log_sd"])
    return -0.5 * z**2 - p["log_sd"]


def natural(p: Any) -> dict[str, Any]:
    sd = jnp.exp(p["log_sd"])
    return {"mean": p["mean"], "sd": sd, "ends": jnp.stack([p["mean"] - sd, p["mean"] + sd])}


MODEL = consortia.Model(
    lambda p: -0.5 * (p["mean"] ** 2 + p["log_sd"] ** 2),
    log_likelihood,
    {"mean": 0.0, "log_sd": 0.0},
    predict=lambda p, rows: p["mean"] + 0 * rows["y"],
    natural=natural,
)
PLAIN = consortia.Model(MODEL.log_prior, log_likelihood, MODEL.init)
ROWS = [{"y": np.linspace(-1, 3, 8, dtype=np.float32)}, {"y": np.ones(5, np.float32)}]
SITES = consortia.Sites.from_list(ROWS)
METHOD = consortia.federated_hmc(step_size=0.2, leapfrog_steps=3, mass_matrix="identity")


@pytest.fixture(scope="module")
def tree() -> Any:
    return consortia.sample(MODEL, SITES, METHOD, **LENGTH)


def same(one: Any, other: Any) -> None:
    for group in ("posterior", "unconstrained_posterior"):
        assert set(one[group].data_vars) == set(other[group].data_vars)
        for name, values in one[group].data_vars.items():
            np.testing.assert_array_equal(values, other[group][name])


def test_the_posterior_has_the_names_of_the_author_and_the_coordinates_are_beside(
    tree: Any,
) -> None:
    plain = consortia.sample(PLAIN, SITES, METHOD, **LENGTH)
    assert "unconstrained_posterior" not in plain.children
    assert set(plain["posterior"].data_vars) == {"mean", "log_sd"}
    for name, values in plain["posterior"].data_vars.items():
        np.testing.assert_array_equal(tree["unconstrained_posterior"][name], values)
    found = tree["posterior"]
    assert set(found.data_vars) == {"mean", "sd", "ends"} == set(tree["diagnostics"].data_vars)
    np.testing.assert_allclose(found["sd"], np.exp(plain["posterior"]["log_sd"]), rtol=1e-6)
    assert found["ends"].dims == ("chain", "draw", "ends_dim_0")


def test_what_needs_coordinates_takes_them_from_the_result(tree: Any) -> None:
    given = {name: a.values for name, a in tree["unconstrained_posterior"].data_vars.items()}
    for one in (tree["posterior"], consortia.natural(tree, MODEL)):
        for name, values in consortia.natural(given, MODEL).data_vars.items():
            np.testing.assert_array_equal(one[name], values)
    means = consortia.predict(tree, MODEL, ROWS[0])
    np.testing.assert_array_equal(means, consortia.predict(given, MODEL, ROWS[0]))
    parts = parameters.variables(Target(MODEL, MODEL.init).structure)
    flat = parameters.join(parameters.sampled_draws(tree), parts)
    np.testing.assert_array_equal(flat[..., 0], given["log_sd"])
    for wrong in (tree["posterior"], tree["posterior"].to_dataset()):
        with refused(argument="tree", match="unconstrained_posterior"):
            consortia.predict(wrong, MODEL, ROWS[0])


@pytest.mark.slow
def test_a_reference_has_both_too(tree: Any) -> None:
    drawn = nuts(MODEL, SITES, draws=6, warmup=20, chains=2)
    for group in ("posterior", "unconstrained_posterior"):
        assert set(drawn[group].data_vars) == set(tree[group].data_vars)
    table = consortia.summary(tree, reference=drawn)
    np.testing.assert_allclose(
        table["ref_mean"][table.coordinates.index("sd")],
        float(np.exp(drawn["unconstrained_posterior"]["log_sd"]).mean()),
    )


def test_tables_and_files_have_natural_quantities_alone(tree: Any, tmp_path: Path) -> None:
    import xarray

    names = {"mean", "sd", "ends[0]", "ends[1]"}
    table = consortia.summary(tree, reference=tree)
    assert set(table.coordinates) == names
    assert set(consortia.summary(tree, units="sampled").coordinates) == {"mean", "log_sd"}
    np.testing.assert_array_equal(table["shift"], 0)
    content = json.loads(report_of(tree, model=MODEL, reference=tree).json())
    assert {row["name"] for row in content["parameters"]} == names
    assert {row["name"] for row in content["unconstrained_parameters"]} == {"mean", "log_sd"}
    with open(to_csv(tree, tmp_path / "a.csv"), newline="") as opened:
        assert set(next(csv.reader(opened))) == {"chain", "draw", *names}
    same(xarray.open_datatree(to_netcdf(tree, tmp_path / "a.nc")).load(), tree)


def test_a_stored_run_has_both_and_goes_on(tree: Any, tmp_path: Path) -> None:
    path = tmp_path / "run"
    short = consortia.sample(MODEL, SITES, METHOD, **LENGTH | {"rounds": 5, "store": path})
    assert next(iter(short.children)) == "posterior"
    longer = consortia.resume(path, MODEL, SITES, METHOD, rounds=12, progress=False)
    same(longer, tree)
    same(consortia.open_run(path), tree)
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(record | {"format": 3}))
    with refused(StoreError, file=str(path), match="format 3 by an older"):
        consortia.open_run(path)


def test_moments_are_of_the_coordinates_and_called_so(tree: Any) -> None:
    found = consortia.sample(MODEL, SITES, METHOD, **LENGTH, keep="moments")
    same(found, tree)
    assert "moments" not in found.children
    wanted = tree["unconstrained_posterior"]["log_sd"].mean("draw")
    np.testing.assert_allclose(found["unconstrained_moments"]["log_sd_mean"], wanted, rtol=1e-5)


def test_names_that_no_result_can_hold_are_refused_before_the_first_round() -> None:
    model = consortia.Model(
        MODEL.log_prior, log_likelihood, MODEL.init, natural=lambda p: {"a/b": p["mean"]}
    )
    with refused(argument="natural", match="cannot be named 'a/b'"):
        consortia.sample(model, SITES, METHOD, **LENGTH)


def test_a_formula_has_its_quantities_in_double_precision() -> None:
    """A response far from zero: single precision would lose its intercept."""
    rng = np.random.default_rng(0)
    tables = {}
    for site in ("oslo", "lima"):
        x = rng.normal(2020, 3, size=30)
        tables[site] = {"y": 3e6 + 0.5 * (x - 2020) + rng.normal(size=30), "x": x}
    made = consortia.regression("y ~ x", tables)
    found = consortia.sample(made.model, made.sites, METHOD, **LENGTH)
    posterior = found["posterior"]
    assert set(posterior.data_vars) == {"coefficients", "intercept", "sigma"}
    assert posterior["coefficients"].coords["coefficients_dim_0"].values.tolist() == ["x"]
    assert posterior["intercept"].dtype == np.float64
    table = consortia.summary(found)
    np.testing.assert_allclose(table["mean"][0], float(posterior["coefficients"].mean()))
    for name, values in made.natural(found).data_vars.items():
        np.testing.assert_array_equal(posterior[name], values)
