"""Runs over MPI ranks of which each has its own files only."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings

import jax
import numpy as np
import pytest
from parity import launch
from parity.comparing import TOLERANCE, assert_same_run

import consortia
from consortia.diagnostics.verdict import prediction_in
from consortia.store.runs import read_record
from consortia.study.build import load_study
from consortia.theory.bias import predict_bias

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("mpi")]

NAMES = ("oslo", "lima", "rome")

AT_HOME = """
import os, sys, time
os.environ["JAX_ENABLE_X64"] = "1"
os.chdir(os.path.join(sys.argv.pop(1), os.environ["PMI_RANK"]))
from consortia.cli import main
from consortia.engines.mpi.workers import Worker
plain = Worker._fetch
def late(self, *arguments):
    time.sleep(0.003)
    plain(self, *arguments)
Worker._fetch = late
main()
"""
"""The command line of a rank, in a folder of its own.

Workers sleep over each gradient, or the first that has compiled would send all of them.
"""

STUDY = """
[data]
files = ["oslo.csv", "lima.csv", "rome.csv"]
standardise = true
test_share = 0.2

[model]
kind = "logistic_regression"

[algorithm]
{algorithm}

[run]
rounds = {rounds}
chains = 2
seed = 4

[reference]
draws = 50

[output]
figure = false
"""
AVERAGED = 'name = "fa_hmc"\nstep_size = 0.05\nleapfrog_steps = 2\nlocal_steps = 2'
SERVED = 'name = "stale_sgld"\nstep_size = 1e-3\nbatch_size = 4\nworkers = 3\n'
SERVED += "shares = [0.3, 0.3, 0.4]"


def tables():
    rng = np.random.default_rng(8)
    return {
        name: np.column_stack([rng.normal(number, 2, (rows, 2)), rng.permutation(rows) % 2])
        for number, (name, rows) in enumerate(zip(NAMES, (40, 13, 27), strict=True))
    }


def folders(tmp_path, files, algorithm, rounds=60):
    """A folder for each rank with the files that it is to have, and one with all."""
    text = STUDY.format(algorithm=algorithm, rounds=rounds)
    for folder, names in {**{str(r): own for r, own in enumerate(files)}, "all": NAMES}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "study.toml").write_text(text)
        for name in names:
            path = tmp_path / folder / f"{name}.csv"
            np.savetxt(path, tables()[name], "%.17g", ",", header="a,b,y", comments="")
    return tmp_path


def over_ranks(tmp_path, count):
    run = tmp_path / "run"
    command = ("run", "study.toml", "--engine", "mpi", "--output", str(run))
    return run, launch.ranks(count, "-c", AT_HOME, str(tmp_path), *command)


def alone(tmp_path, method=None):
    """The same study in one process that has all files."""
    study = load_study(tmp_path / "all" / "study.toml")
    built, store = study.build(), tmp_path / "alone"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = consortia.sample(
            built.model,
            built.sites,
            built.algorithm if method is None else method,
            **study.run_options,
            engine=consortia.LocalEngine(devices=1),
            store=store,
            progress=False,
        )
    return tree, store


def data_of(store):
    return read_record(store)[1]["data"]


@pytest.fixture(scope="module", autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def test_ranks_with_their_own_files_draw_what_one_process_draws(tmp_path):
    folders(tmp_path, [["oslo"], ["lima"], ["rome"]], AVERAGED)
    run, job = over_ranks(tmp_path, 3)
    assert job.returncode == 0, job.stderr
    tree, store = alone(tmp_path)
    assert_same_run(consortia.open_run(run), tree)
    built = load_study(tmp_path / "all" / "study.toml").build()
    # Each site's Hessian is computed in one process, and they are summed in the sites' order.
    whole = predict_bias(built.model, built.sites, built.algorithm)
    assert whole.shift is not None
    assert prediction_in(consortia.open_run(run)).plain() == whole.plain()
    assert data_of(run) == data_of(store)
    skipped = "\n".join(json.loads((run / "summary.json").read_text())["not_done"])
    assert "predictive scores: the held-out rows are in other processes" in skipped
    assert "reference: it needs the rows of all sites in one process" in skipped

    for name in NAMES:  # now they are where the study file of rank 0 is
        shutil.copy(tmp_path / "all" / f"{name}.csv", tmp_path / "0")
    command = ("resume", str(run), "--rounds", "90", "--inexact", "--no-reference")
    longer = subprocess.run(
        [sys.executable, "-c", AT_HOME, str(tmp_path), *command],
        capture_output=True,
        text=True,
        timeout=300,
        env=launch.environment(PMI_RANK="0"),
    )
    assert longer.returncode == 0, longer.stderr
    assert next(iter(consortia.open_run(run)["posterior"].values())).shape[:2] == (2, 90)


def test_workers_read_their_own_file_and_the_server_none(tmp_path):
    folders(tmp_path, [[], ["oslo"], ["lima"], ["rome"]], SERVED, rounds=3000)
    run, job = over_ranks(tmp_path, 4)
    assert job.returncode == 0, job.stderr
    assert "not judged by the curvatures" in job.stdout.replace("\n", " ")
    recorded = consortia.open_run(run)
    latency = consortia.latency.recorded(recorded["events"]["log"].values)
    method = consortia.stale_sgld(
        step_size=1e-3, batch_size=4, workers=3, shares=(0.3, 0.3, 0.4), latency=latency
    )
    tree, store = alone(tmp_path, method)
    assert data_of(run) == data_of(store)
    for name, values in tree["posterior"].data_vars.items():
        gap = np.abs(values.values - recorded["posterior"][name].values).max()
        assert gap <= TOLERANCE * values.values.std()


def test_a_file_that_one_rank_misses_ends_the_job_with_its_message(tmp_path):
    folders(tmp_path, [["oslo"], [], ["rome"]], AVERAGED)
    run, job = over_ranks(tmp_path, 3)
    assert job.returncode == 2
    text = " ".join(job.stderr.split())
    assert text.count("rank 1: lima.csv: no such file") == 1
    assert "Traceback" not in job.stderr
    assert not run.exists()


FORMULA = """
[data]
files = ["oslo.csv", "lima.csv", "rome.csv"]

[model]
formula = "died ~ age * arm + (1 | site)"
family = "bernoulli"
missing = "complete"
integrate = true

[algorithm]
name = "federated_hmc"
step_size = 0.1
leapfrog_steps = 2
mass_matrix = "identity"

[run]
rounds = 40
chains = 2
seed = 4

[output]
figure = false
"""


def test_a_formula_over_ranks_draws_what_one_process_draws_and_levels_stay_there(tmp_path):
    rng = np.random.default_rng(3)
    tables = {}
    for name, rows in zip(NAMES, (40, 13, 27), strict=True):
        lines = ["age,arm,died"]
        for row in range(rows):
            age = "NA" if row == 3 else f"{rng.normal(60, 9):.1f}"
            lines.append(f"{age},{rng.choice(['new', 'old'])},{rng.choice(['no', 'yes'])}")
        tables[name] = "\n".join(lines) + "\n"
    for folder, names in {"0": NAMES[:1], "1": NAMES[1:2], "2": NAMES[2:], "all": NAMES}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "study.toml").write_text(FORMULA)
        for name in names:
            (tmp_path / folder / f"{name}.csv").write_text(tables[name])
    run, job = over_ranks(tmp_path, 3)
    assert job.returncode == 0, job.stderr
    over = consortia.open_run(run)
    assert_same_run(over, alone(tmp_path)[0])
    # no level of a site is a parameter, and rank 0 can draw those of its own site only
    assert set(over["posterior"].data_vars) == {"coefficients", "intercept", "sd"}
    estimates = (run / "estimates.txt").read_text()
    assert "left out: 3 rows with missing values (oslo 1 of 40" in estimates
    assert "\noslo " in estimates
    assert "\nlima " not in estimates
    assert "the levels of other sites stay there" in estimates


HARMONISE = """
[harmonise.lima]
decimal = ","
[harmonise.lima.rename]
Alter = "age"
[harmonise.lima.missing_values]
age = [999]
"""


def test_a_table_that_is_harmonised_at_its_rank_gives_the_draws_of_the_one_that_is_meant(tmp_path):
    rng = np.random.default_rng(3)
    for folder in ("0", "1", "2", "all"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "study.toml").write_text(
            FORMULA if folder == "all" else FORMULA + HARMONISE
        )
    for rank, name in enumerate(NAMES):
        lines = ["age,arm,died"]
        for row in range(30):
            age = "NA" if row == 3 else f"{rng.normal(60, 9):.1f}"
            lines.append(f"{age},{rng.choice(['new', 'old'])},{rng.choice(['no', 'yes'])}")
        text = "\n".join(lines) + "\n"
        (tmp_path / "all" / f"{name}.csv").write_text(text)
        if name == "lima":
            text = text.replace(",", ";").replace(".", ",").replace("NA", "999")
            text = text.replace("age", "Alter", 1)
        (tmp_path / str(rank) / f"{name}.csv").write_text(text)
    run, job = over_ranks(tmp_path, 3)
    assert job.returncode == 0, job.stderr
    over, meant = consortia.open_run(run)["posterior"], alone(tmp_path)[0]["posterior"]
    for name in meant.data_vars:
        np.testing.assert_allclose(over[name], meant[name], rtol=1e-9)


def test_what_is_wrong_at_several_ranks_and_between_them_is_in_one_answer(tmp_path):
    oslo, lima, rome = NAMES
    rows = {oslo: "50,new,no", lima: "<5,New,no", rome: "60,new,1"}
    for rank, name in enumerate(NAMES):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "study.toml").write_text(FORMULA)
        head = "Age,arm,died" if name == rome else "age,arm,died"
        lines = [head, *[rows[name].replace("<5", str(40 + row)) for row in range(29)], rows[name]]
        lines += ["41,old,yes" if name != rome else "41,old,0"]
        (tmp_path / str(rank) / f"{name}.csv").write_text("\n".join(lines) + "\n")
    _, job = over_ranks(tmp_path, 3)
    assert job.returncode == 2, job.stderr
    for words in (
        f"rank 1: {lima}.csv: the column 'age'",
        f"rank 2: {rome}.csv, line 1: 'age' is not a column, but 'Age' is",
        f"arm is 'New', and 'new' at {oslo}, {rome}: [harmonise.{lima}.recode.arm]",
        "the column 'died' holds strings",
        f'[harmonise.{oslo}.recode.died] "no" = "0"',
    ):
        assert job.stderr.count(words) == 1, (words, job.stderr)
