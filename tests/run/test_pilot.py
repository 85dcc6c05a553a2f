"""The pilot of posteriors too large for a prediction, beside the exact laws of Gaussian ones."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from cli.irises import invoke

import consortia
from consortia.core.target import Target
from consortia.diagnostics.verdict import judge, prediction_in
from consortia.report.run_report import load_run
from consortia.run import pilot
from consortia.theory.bias import Problem, law_of
from consortia.theory.expansion import MOST_PARAMETERS
from consortia.theory.tuning import BiasTarget
from tests.refusals import refused

SCALES = np.float32([1.0, 3.0])
RNG = np.random.default_rng(0)
ROWS = [RNG.normal([0.3 * site, -0.2 * site], 1.0, (12, 2)).astype(np.float32) for site in range(3)]
COPIES = 110
"""Of two directions, so that the laws of all are those of two."""

METHODS: dict[str, Any] = {
    "fa_ld": consortia.fa_ld(0.05, local_steps=2),
    "fa_hmc": consortia.fa_hmc(0.07, leapfrog_steps=3, local_steps=2),
    "de_sgld": consortia.de_sgld(0.008, "complete", batch_size=None),
}


@functools.cache
def problem(copies: int) -> Problem:
    scales = jnp.tile(SCALES, copies)
    model = consortia.Model(
        log_prior=lambda x: -0.5 * jnp.sum(x**2),
        log_likelihood=lambda x, rows: (
            -0.5 * jnp.sum((rows["y"] - (x * scales)[None]) ** 2, axis=1)
        ),
        init=jnp.zeros(2 * copies),
    )
    rows = [{"y": np.tile(one, (1, copies))} for one in ROWS]
    return Problem(model, consortia.Sites.from_list(rows))


QUICK = [pytest.param(name, marks=[] if name == "fa_ld" else pytest.mark.slow) for name in METHODS]
"""All methods, of which `make test` takes one."""


def squares(method: Any) -> float:
    """The mean of r² + m² over all directions by the exact law of two."""
    small = problem(1)
    moments = law_of(method, small).stationary
    whole = moments.covariance + np.outer(moments.mean, moments.mean)
    return float(np.trace(small.near.precision @ whole)) / 2


def halved(method: Any, factor: float = 0.5) -> Any:
    return dataclasses.replace(method, step_size=factor * float(method.step_size(0)))


def law_difference(method: Any) -> float:
    return (squares(method) - squares(halved(method))) / 2


@pytest.mark.parametrize("name", METHODS)
def test_four_times_the_difference_bounds_what_a_step_is_off_by_the_exact_law(name):
    method = METHODS[name]
    for factor in (1.0, 0.7, 0.5, 0.2):
        stepped = halved(method, factor)
        assert 4 * law_difference(stepped) >= 0.98 * (squares(stepped) - 1) > 0


@pytest.mark.parametrize("name", QUICK)
def test_the_acceptance_agrees_with_the_exact_law_s_bias(name):
    whole, method = problem(COPIES), METHODS[name]
    target = Target(whole.model, whole.start)
    options: dict[str, Any] = {"chains": 12, "progress": False, "on_divergence": "ignore"}

    def level(stepped: Any, seed: int) -> pilot.Level:
        run = consortia.sample(whole.model, whole.sites, stepped, rounds=600, seed=seed, **options)
        return pilot.level_of(run, whole, target)

    levels = level(method, 1), level(halved(method), 2), level(method, 3)
    found, error = pilot.difference(*levels, target.dimension)
    expected = law_difference(method)
    # Four standard errors, which 36 chains tell to an eighth; the seeds are fixed.
    assert abs(found - expected) <= 4 * error
    assert abs(pilot.acceptance(found) - np.exp(-expected)) <= 4 * error
    assert abs(found - 2 * expected) > 4 * error  # the control: of about twice the step


@pytest.mark.parametrize("name", QUICK[::2])
def test_of_a_posterior_too_large_for_a_prediction_a_step_too_long_is_halved(name):
    whole = problem(COPIES)
    assert whole.start.size > MOST_PARAMETERS
    plans: list[Any] = []
    method = dataclasses.replace(METHODS[name], step_size=None)
    tree = consortia.sample(
        whole.model,
        whole.sites,
        method,
        rounds=250,
        bias_target=(
            0.1,
            0.1,
        ),  # of half of it this pilot confirms only shorter steps
        progress=False,
        on_plan=plans.append,
    )
    (said,) = [text for what, text in plans[0].lines if what == "step_size"]
    assert "chosen: the longest that a pilot confirms" in said
    prediction = prediction_in(tree)
    assert prediction is not None
    assert "too large to be computed here; a pilot with half the step" in str(prediction.reason)
    assert not prediction.open  # `check` and the report leave it as it is
    assert judge(prediction).word == "unknown"  # one number of all directions is no prediction
    chosen = dataclasses.replace(method, step_size=float(said.partition(",")[0]))
    most = 1.1**2
    assert squares(chosen) <= most
    four_times = law_of(halved(chosen, 4.0), problem(1))
    assert not four_times.stable or squares(halved(chosen, 4.0)) > most


def test_a_step_is_confirmed_only_where_the_difference_and_its_error_are_small():
    target = BiasTarget(0.1, 0.1)  # r² up to 1.21, so differences up to 0.0525
    assert pilot.confirms(0.03, 0.02, target)
    assert not pilot.confirms(0.03, 0.03, target)
    assert not pilot.confirms(-0.06, 0.0, target)


def test_that_no_step_within_the_budget_can_is_an_answer(monkeypatch):
    monkeypatch.setattr(pilot, "HALVINGS", 2)
    whole = problem(COPIES)
    method = consortia.fa_ld(step_size=None, local_steps=2)
    with refused(argument="step_size", match="of 2"):
        consortia.sample(whole.model, whole.sites, method, rounds=20, progress=False)


@pytest.mark.parametrize(
    ("method", "step", "words"),
    [
        (consortia.fa_hmc(), None, "leapfrog_steps=5, local_steps=1, debias=True"),
        (consortia.fa_hmc(0.05, leapfrog_steps=2), "as given", "local_steps=1, debias=True"),
        (consortia.dsgld(), None, "local_steps=1"),
    ],
)
def test_other_settings_left_open_have_defaults_where_nothing_is_predicted(method, step, words):
    whole, plans = problem(COPIES), list[Any]()
    options: dict[str, Any] = {"progress": False, "bias_target": (1.0, 1.0), "seed": 1}
    options |= {"on_plan": plans.append, "on_divergence": "ignore"}
    tree = consortia.sample(whole.model, whole.sites, method, rounds=20, **options)
    (line,) = [text for what, text in plans[0].lines if what == "step_size"]
    assert line.endswith(f"; {words} by default, since no bias is predicted")
    assert line.startswith(step or "0.")
    kept = json.loads(tree.attrs["parameters"])
    assert kept["local_steps"] == 1
    assert step is None or (kept["step_size"]["value"], kept["leapfrog_steps"]) == (0.05, 2)


def test_an_open_setting_without_a_default_is_refused_by_name():
    whole, method = problem(COPIES), consortia.de_sghmc(0.008, None, "complete")
    with refused(argument="friction", match="too large to be computed here"):
        consortia.sample(whole.model, whole.sites, method, rounds=20, progress=False)


STUDY = """
[data]
dataset = "iris"
dtype = "float32"
[partition]
kind = "iid"
sites = 3
[model]
kind = "mlp"
hidden = [40]
[algorithm]
name = "fa_ld"
step_size = 0.01
local_steps = 2
[run]
rounds = 20
[output]
figure = false
"""


def test_that_nothing_is_predicted_of_a_network_is_said_by_check_run_and_report_alike(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    checked = invoke("check", path, "--json")
    ran = invoke("run", path, "--output", tmp_path / "run")
    assert ran.exit_code == 0, ran.output
    tree = consortia.open_run(tmp_path / "run")
    verdict = consortia.summary(tree).verdict
    assert verdict is not None
    said = []
    for checks in (
        json.loads(checked.stdout),
        load_run(tmp_path / "run").verdict.plain(),
        verdict.plain(),
    ):
        (one,) = (
            check
            for check in checks["checks"]
            if check["title"].startswith("How large is the predicted")
        )
        said.append((one["verdict"], one["value"], one["reason"]))
    assert said == 3 * [said[0]]
    assert said[0][:2] == ("unknown", "not predicted")
    assert "in 323 parameters is too large to be computed here" in said[0][2]
    assert "not predicted" in " ".join(ran.stdout.split())
