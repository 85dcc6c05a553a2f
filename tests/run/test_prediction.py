"""The predicted bias that `sample` finds, warns of and keeps."""

from __future__ import annotations

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.diagnostics.verdict import prediction_in
from consortia.errors import DivergenceError
from tests.refusals import refused

pytestmark = pytest.mark.predicted

MODEL = consortia.Model(
    log_prior=lambda x: -0.5 * jnp.sum(x**2),
    log_likelihood=lambda x, rows: -0.5 * jnp.sum((rows["y"] - x[None]) ** 2, axis=1),
    init=jnp.zeros(2),
)
SITES = consortia.Sites.from_list([{"y": np.full((9, 2), float(site))} for site in (0, 1)])


def run(step: float, **options: Any) -> Any:
    method = consortia.fa_ld(step_size=step, local_steps=2)
    options = {"rounds": 20, "chains": 2, "progress": False} | options
    return consortia.sample(MODEL, SITES, method, **options)


def test_a_run_keeps_its_predicted_bias_also_when_it_is_resumed(tmp_path):
    tree = run(0.05, store=tmp_path / "run")
    found = prediction_in(tree)
    assert found is not None
    assert found.gaussian
    again = consortia.resume(
        tmp_path / "run",
        MODEL,
        SITES,
        consortia.fa_ld(step_size=0.05, local_steps=2),
        rounds=30,
        progress=False,
    )
    assert json.loads(again.attrs["prediction"]) == found.plain()


def test_a_step_that_is_predicted_to_diverge_is_warned_of_and_refused_on_request():
    # The linear map of a step of 0.5 on a curvature of 10 has the factor 1 − 0.5² · 10/2 = −1.5.
    with pytest.warns(UserWarning, match="it diverges") as caught:
        tree = run(0.5)
    assert {one.filename for one in caught} == {__file__}, "not at the line of the caller"
    assert consortia.summary(tree).verdict.word == "bad"
    with pytest.raises(DivergenceError, match="Lower step_size|Halve step_size"):
        run(0.5, on_divergence="raise")
    with refused(argument="on_divergence"):
        run(0.5, on_divergence="stop")


def test_nothing_is_predicted_where_it_is_ignored():
    assert "prediction" not in run(0.5, on_divergence="ignore").attrs


def test_settings_that_are_far_off_are_warned_of():
    with pytest.warns(UserWarning, match="Do not run these settings"):
        run(0.25)
