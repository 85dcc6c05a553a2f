"""A run beside the exact sampler of few rounds and beside the sites' gradients."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from cli.irises import NO_FIGURE, STUDY, invoke

import consortia
from consortia.report.run_report import load_run
from consortia.theory.potentials import SitePotentials
from tests.refusals import refused

MODEL = consortia.Model(
    log_prior=lambda p: -0.5 * jnp.sum(p["b"] ** 2) - 0.5 * p["a"] ** 2,
    log_likelihood=lambda p, rows: (
        rows["y"] * (rows["x"] @ p["b"] + p["a"]) - jnp.logaddexp(0.0, rows["x"] @ p["b"] + p["a"])
    ),
    init={"b": jnp.zeros(2), "a": jnp.zeros(())},
)


def sites(dtype: Any = np.float32) -> consortia.Sites:
    rng, rows = np.random.default_rng(3), []
    for size in (15, 40, 25):
        x = rng.normal(size=(size, 2)).astype(dtype)
        y = rng.random(size) < 1 / (1 + np.exp(-x @ [1.0, -0.5]))
        rows.append({"x": x, "y": y.astype(dtype)})
    return consortia.Sites.from_list(rows)


@pytest.mark.usefixtures("x64")
def test_the_sites_scores_sum_to_the_gradient_of_the_whole_log_density():
    data = sites(np.float64)
    points = np.random.default_rng(0).normal(size=(7, 3))
    found = SitePotentials(MODEL, data, MODEL.init).scores(points)
    rows = data.pooled()

    def whole(x):  # a, then b: the order of the flat position
        p = {"a": x[0], "b": x[1:]}
        return MODEL.log_prior(p) + jnp.sum(MODEL.log_likelihood(p, rows))

    np.testing.assert_allclose(found, jax.vmap(jax.grad(whole))(points), rtol=1e-6)


@pytest.fixture(scope="module")
def found():
    """An exact run, of another seed than the one beside it, and one that is far off."""
    data, options = sites(), {"progress": False, "on_divergence": "ignore"}
    exact = consortia.sample(MODEL, data, consortia.few_rounds(), **options)
    wide = consortia.fa_ld(0.35, local_steps=12)
    off = consortia.sample(MODEL, data, wide, rounds=1500, **options)
    return [consortia.verify(tree, MODEL, data, progress=False) for tree in (exact, off)]


def test_an_exact_run_is_good_beside_both(found):
    exact, _ = found
    verdict = exact.summary.verdict
    assert {one.severity.word for one in verdict.checks if one.counts} <= {"good", "unknown"}, exact
    assert exact.stein.p_value > 0.01
    assert "few_rounds" in exact.reference.attrs["algorithm"]
    assert "ref_mean" in repr(exact)


def test_a_run_that_is_off_is_seen_by_both(found):
    _, off = found
    assert off.stein.p_value <= 0.01
    checks = {one.title: one.severity.word for one in off.summary.verdict.checks}
    assert checks["Do the draws fit the sites' gradients?"] == "care"
    assert checks["How large is the measured bias?"] in ("care", "bad")


def test_a_run_of_another_model_is_refused(found):
    other = consortia.models.logistic_regression(2)
    with refused(argument="posterior", match="the model that was sampled"):
        consortia.verify(found[0].tree, other, sites(), progress=False)


@pytest.mark.parametrize("shapes", [{"a": (), "b": (3,)}, {"a": (3,), "b": (3,)}, {"a": ()}])
def test_draws_of_other_shapes_than_the_models_are_refused(shapes):
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(
                {
                    "a": (("chain", "draw", "i"), np.zeros((2, 300, 3))),
                    "b": (("chain", "draw", "j", "i"), np.zeros((2, 300, 4, 3))),
                }
            )
        }
    )
    init = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    model = consortia.Model(lambda p: 0.0, lambda p, rows: rows["y"] * 0.0, init)
    rows = consortia.Sites.from_list([{"y": np.zeros(5, np.float32)}])
    with refused(argument="posterior", match="the model that was sampled"):
        consortia.verify(tree, model, rows, progress=False)


@pytest.mark.usefixtures("one_model_object")
def test_a_verified_study_keeps_what_was_found_for_its_report(tmp_path):
    path = tmp_path / "irises.toml"
    text = STUDY.partition("[algorithm]")[0] + '[algorithm]\nname = "few_rounds"\n[run]\nseed = 5\n'
    path.write_text(text + NO_FIGURE)
    outcome = invoke("run", path, "--output", tmp_path / "run", "--verify")
    assert outcome.exit_code == 0, outcome.output
    assert "beside few_rounds" in outcome.stdout
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())
    again = load_run(tmp_path / "run")
    for title in ("How large is the measured bias?", "Do the draws fit the sites' gradients?"):
        (one,), (other,) = (
            [check for check in plain["checks"] if check["title"] == title]
            for plain in (kept, again.verdict.plain())
        )
        assert one == other
        assert one["counts"]
    assert again.beside == "few_rounds"
    wrong = tmp_path / "run" / "verification.json"
    wrong.write_text("{}")
    assert invoke("report", tmp_path / "run").exit_code == 3
