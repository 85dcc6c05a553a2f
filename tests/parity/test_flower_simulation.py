"""Studies in Flower's own simulation have the draws of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from parity import flower_network, flower_study
from parity.comparing import assert_same_run
from typer.testing import CliRunner

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.cli.commands import app as command

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("flower simulation")]

STUDIES: dict[str, dict[str, Any]] = {
    "fa_ld": {"algorithm": "fa_ld", "arguments": "step_size = 0.02\nlocal_steps = 2"},
    "dsgld": {"algorithm": "dsgld", "arguments": "step_size = 0.01\nlocal_steps = 3"},
    "exact": {
        "algorithm": "federated_hmc",
        "arguments": 'step_size = 0.1\nleapfrog_steps = 2\nmass_matrix = "identity"',
        "rounds": 4,
    },
    "agents": {
        "algorithm": "decentralized_exact_hmc",
        "arguments": 'step_size = 0.1\nleapfrog_steps = 2\nmixing = "path"',
        "rounds": 4,
    },
    "fa_hmc": {**flower_study.FA_HMC, "rounds": 6},
    "debiased": {**flower_study.DEBIASED, "rounds": 6, "standardise": True},
    "fsgld": {**flower_study.FSGLD, "rounds": 6},
    "few rounds": {
        "algorithm": "few_rounds",
        "arguments": 'proposals = 256\neffective_size = "none"',
        "rounds": 2,
    },
    "private": {
        "algorithm": "private_posterior",
        "arguments": "epsilon = 20000.0\ndelta = 1e-6\nclip = 20.0",
        "rounds": 2,
    },
}


QUICK = ("debiased", "fsgld")
"""One of averages, with states of the sites' own, one of a chain that travels; the formula's is of
sums.

The others differ in what the engine does for them, and nothing in what Flower carries: their draws
over the same engine and the same messages are compared in `test_flower`.
"""


def app_of(study: Path, folder: Path) -> Path:
    made = CliRunner().invoke(command, ["flower", "new", str(study), "--to", str(folder), "--x64"])
    assert made.exit_code == 0, made.output
    return folder


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """One simulation, in which a study runs after the other."""
    folder = tmp_path_factory.mktemp("flower")
    with flower_network.simulation(folder, len(flower_study.NAMES)) as made:
        yield made


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in STUDIES]
)
def test_the_draws_are_those_of_one_process(network, name):
    folder = network.folder
    study = flower_study.write(folder / name, **STUDIES[name])
    app = app_of(study, folder / f"{name}-app")
    assert str(folder) not in (app / "pyproject.toml").read_text()
    places = {"output": str(folder / f"{name}-run"), "origin": str(study.parent)}
    run = network.submit(app, **places)
    state = network.wait(run, 400)
    assert state == "finished:completed", network.flwr("log", run, "test", "--show").stdout
    over = consortia.open_run(folder / f"{name}-run")
    with jax.enable_x64(True):
        alone = flower_study.alone(study)
    if name == "private":
        assert_same_but_for_noise(over, alone)
    else:
        assert_same_run(over, alone)
    assert over.attrs["engine"] == "flower"
    assert over.attrs["rejected_replies"] == 0


def assert_same_but_for_noise(over, alone):
    """Noise for privacy follows from a secret in every engine; with this epsilon it is small."""
    assert over.attrs["epsilon"] == pytest.approx(alone.attrs["epsilon"])
    for variable, values in alone["posterior"].data_vars.items():
        expected, found = (np.asarray(one) for one in (values, over["posterior"][variable]))
        sd = expected.std(axis=(0, 1))
        assert (np.abs(found.mean(axis=(0, 1)) - expected.mean(axis=(0, 1))) < 0.2 * sd).all()
        np.testing.assert_allclose(found.std(axis=(0, 1)), sd, rtol=0.2)


def test_a_formula_with_a_level_of_each_site_has_its_results_by_name(network):
    folder = network.folder
    study = flower_study.write_with_formula(folder / "formula")
    app = app_of(study, folder / "formula-app")
    directory = folder / "formula-run"
    run = network.submit(app, output=str(directory), origin=str(study.parent))
    state = network.wait(run, 400)
    assert state == "finished:completed", network.flwr("log", run, "test", "--show").stdout
    over = consortia.open_run(directory)
    with jax.enable_x64(True):
        assert_same_run(over, flower_study.alone(study))
    assert set(over["posterior"].data_vars) == {"coefficients", "intercept", "sd"}
    text = (directory / "estimates.txt").read_text()
    assert all(name in text for name in ("age:arm[old]", "odds ratio", "sd between sites"))
    # the server has no row: it can draw the level of no site
    assert "the levels of other sites stay there" in text
    assert not any(f"\n{name} " in text for name in flower_study.NAMES)


def test_every_registered_pair_is_run():
    compared = {table["algorithm"] for table in STUDIES.values()}
    assert compared == {name for name, entry in ALGORITHMS.items() if "flower" in entry.engines}


@pytest.mark.parametrize(
    ("algorithm", "arguments", "reason"),
    [
        ("de_sgld", 'step_size = 0.02\nmixing = "ring"', "gossip goes from site to site"),
        (
            "stale_sgld",
            "step_size = 0.01\nbatch_size = 4\nworkers = 3",
            "asynchronous gradients are a message each",
        ),
    ],
)
def test_no_app_is_written_of_what_flower_cannot_carry(tmp_path, algorithm, arguments, reason):
    study = flower_study.write(tmp_path / "s", algorithm=algorithm, arguments=arguments)
    done = CliRunner().invoke(command, ["flower", "new", str(study), "--to", str(tmp_path / "app")])
    assert done.exit_code == 2
    assert reason in done.output
    assert not (tmp_path / "app").exists()
