"""The method in CONTRIBUTING.md samples what its docstring and its law say, unregistered."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.report.run_report import report_of
from consortia.theory.bias import Problem, law_of, predict_bias
from scripts.english import offences
from tests.refusals import refused

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
STEP, STEPS, BETA = 0.05, 3, 0.6
MODEL = consortia.Model(
    lambda theta: -0.5 * jnp.sum(theta**2),
    lambda theta, rows: -0.5 * rows["precision"] * (rows["m"] - theta[0]) ** 2,
    jnp.zeros(1),
)
SITES = consortia.Sites.from_list(
    [
        {"m": np.array([3.0, 2.0], np.float32), "precision": np.full(2, 2.0, np.float32)},
        {"m": np.array([-1.0, 0.0, -2.0], np.float32), "precision": np.full(3, 0.5, np.float32)},
    ]
)
ONE = consortia.Sites.from_list(
    [{"m": np.zeros(5, np.float32), "precision": np.ones(5, np.float32)}]
)


def test_every_path_that_the_guide_names_is_there():
    root, package = Path(__file__).parents[2], Path(consortia.__file__).parent
    rooms = "|".join(path.name for path in package.iterdir() if path.is_dir())
    outside = re.findall(r"`((?:src|tests|docs|examples|scripts|benchmarks)/[\w./-]*)", TEXT)
    inside = re.findall(rf"`((?:{rooms})/[\w./-]*)", TEXT)
    assert {"tests/theory/test_tuning.py", "tests/test_rooms.py"} <= {*outside}
    assert "algorithms/fa_hmc.py" in inside
    paths = [*(root / name for name in outside), *(package / name for name in inside)]
    assert [path for path in paths if not path.exists()] == []


@pytest.fixture(scope="module")
def guide():
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    module = types.ModuleType("guide")
    sys.modules["guide"] = module  # dataclasses look their module up
    exec(compile(code, "CONTRIBUTING.md", "exec"), module.__dict__)
    yield module
    del sys.modules["guide"]


@pytest.fixture(scope="module")
def method(guide):
    return guide.FederatedSGLD(STEP, STEPS, momentum=BETA)


@pytest.fixture(scope="module")
def run(method):
    """The result of 4,000 chains whose law is stationary, and the plan that was said before."""
    plans = []
    # The slowest mode of the law shrinks by √0.6 a round: after 60 rounds to 2e-7.
    tree = consortia.sample(
        MODEL, SITES, method, rounds=60, thin=60, chains=4000, progress=False,
        on_plan=plans.append,
    )  # fmt: skip
    return tree, plans[0]


def errors_in_standard_errors(tree, mean, variance):
    draws = np.asarray(tree["posterior"]["theta"])[:, 0, 0]
    count = len(draws)
    return (
        abs(draws.mean() - mean) / np.sqrt(variance / count),
        abs(draws.var() / variance - 1) / np.sqrt(2 / count),
    )


def test_its_draws_have_the_mean_and_the_variance_of_its_law(method, run):
    problem = Problem(MODEL, SITES)
    law = law_of(method, problem)
    assert law.spectral_radius**60 < 1e-6
    found = law.stationary
    mean = problem.near.mode[0] + found.mean[0]
    assert max(errors_in_standard_errors(run[0], mean, found.variance[0])) < 4


def test_the_posterior_itself_would_fail_that_gate(run):
    near = Problem(MODEL, SITES).near
    assert min(errors_in_standard_errors(run[0], near.mode[0], near.covariance[0, 0])) > 4


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_its_law_has_the_variance_that_its_docstring_states(guide, beta):
    found = law_of(guide.FederatedSGLD(STEP, 1, momentum=beta), Problem(MODEL, ONE)).stationary
    precision = 6.0
    stated = 1 / (precision * (1 - STEP * precision / (2 * (1 + beta))))
    # The curvatures are taken in single precision.
    np.testing.assert_allclose(found.variance[0], stated, rtol=1e-5)


def test_it_has_plan_record_prediction_and_report_without_being_in_the_registry(method, run):
    tree, plan = run
    assert method.name not in ALGORITHMS
    lines = dict(plan.lines)
    assert lines["algorithm"] == f"federated_sgld: samples {method.claims.samples}"
    assert lines["bias"] == tree.attrs["bias"] == method.claims.bias
    prediction = predict_bias(MODEL, SITES, method)
    assert prediction.reason is None
    report = report_of(tree, model=MODEL, sites=SITES, algorithm=method)
    np.testing.assert_allclose(report.prediction.shift, prediction.shift)


def test_it_is_warned_and_refused_as_any_other(guide):
    short = guide.FederatedSGLD([0.1] * 5, 1)
    with refused(argument="step_size", match="of 5"):
        consortia.sample(MODEL, SITES, short, rounds=9, progress=False, chains=1)
    with refused(argument="momentum"):
        guide.FederatedSGLD(0.1, 1, momentum=1.0)


def test_it_compares_by_value(guide):
    assert guide.FederatedSGLD(0.1, 2) == guide.FederatedSGLD(0.1, 2)
    assert guide.FederatedSGLD(0.1, 2) != guide.FederatedSGLD(0.2, 2)


def checked(folder, *command):
    """What a tool of the project says of the guide's method, as a file among the algorithms."""
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    file = folder / "federated_sgld.py"
    file.write_text(code)
    config = Path(__file__).parents[2] / "pyproject.toml"
    options = ["--config", str(config)] if command[0] == "ruff" else ["--config-file", str(config)]
    done = subprocess.run(
        [sys.executable, "-m", *command, *options, str(file)],
        capture_output=True,
        text=True,
        cwd=config.parent,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.lint
@pytest.mark.parametrize("command", [("ruff", "check"), ("ruff", "format", "--check")])
def test_it_passes_the_projects_own_linter(tmp_path, command):
    assert checked(tmp_path, *command)[0] == 0, checked(tmp_path, *command)[1]


def test_its_example_runs(guide):
    assert doctest.testmod(guide) == (0, 1)


def test_it_keeps_the_rules_of_english(tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.english.ROOT", tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    file = tmp_path / "federated_sgld.py"
    file.write_text(code, encoding="utf-8")
    assert offences(file) == []


@pytest.mark.slow
def test_it_passes_the_projects_type_checker(tmp_path):
    code, said = checked(tmp_path, "mypy")
    assert code == 0, said
