"""The command line: a run end to end, and what each mistake is answered with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.irises import NO_FIGURE, STUDY, invoke

import consortia
from consortia.cli.exits import EXIT_CODES, exit_code, reported
from consortia.errors import InputError, MissingExtraError, NonFiniteError, StoreError

pytestmark = pytest.mark.usefixtures("one_model_object")
REFERENCE = "\n[reference]\ndraws = 60\nwarmup = 40\nchains = 2\n"


def write(folder: Path, text: str = STUDY) -> Path:
    path = folder / "irises.toml"
    path.write_text(text)
    return path


def run(*arguments: str | Path) -> Any:
    """``consortia run`` in this process, from whatever folder is the current one."""
    return invoke("run", *arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- one run, end to end -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The directory and the output of a run with a reference and a figure."""
    pytest.importorskip("blackjax", reason="needs the extra `reference`")
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    base = tmp_path_factory.mktemp("run")
    study = write(base, STUDY + REFERENCE)
    return base / "out", run(study, "--output", base / "out", "--seed", "11")


def test_a_run_says_its_plan_before_and_its_result_beside_the_reference_after(finished):
    _, outcome = finished
    assert outcome.exit_code == 0, outcome.output
    words = ["nodes", "chains", "memory", "network", "ref mean", "held-out rows", "bytes sent"]
    places = [outcome.stdout.index(word) for word in words]
    assert places == sorted(places)


def test_the_progress_of_a_run_goes_to_standard_error_as_json(finished):
    _, outcome = finished
    line = json.loads(outcome.stderr.strip().splitlines()[-1])
    assert (line["algorithm"], line["rounds"], line["draws"]) == ("fa_hmc", 40, 20)


def test_a_run_leaves_draws_reference_summary_figure_and_study(finished):
    directory, _ = finished
    tree = consortia.open_run(directory)
    assert tree["posterior"]["coefficients"].shape == (2, 20, 3, 4)
    assert tree.attrs["seed"] == 11
    reference = consortia.open_run(directory / "reference")
    assert reference["posterior"]["coefficients"].shape == (2, 60, 3, 4)
    assert (directory / "posterior.png").stat().st_size > 10_000
    assert (directory / "study.toml").read_text() == STUDY + REFERENCE
    assert "coefficients[setosa, sepal length (cm)]" in (directory / "summary.txt").read_text()


def test_a_gossip_run_with_its_agents_leaves_a_picture_of_the_network(folder):
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    gossip = 'name = "de_sgld"\nstep_size = 0.01\nmixing = "ring"\ndraws = "agents"'
    old = 'name = "fa_hmc"\nstep_size = 0.1\nleapfrog_steps = 2\nlocal_steps = 2'
    outcome = run(write(folder, STUDY.replace(old, gossip)), "--output", folder / "out")
    assert outcome.exit_code == 0, outcome.output
    assert "3 agents, 3 edges; W applied as" in outcome.output
    assert (folder / "out" / "network.png").stat().st_size > 10_000


def test_the_summary_as_json_equals_the_stored_draws(finished):
    directory, _ = finished
    content = json.loads((directory / "summary.json").read_text())
    draws = np.asarray(consortia.open_run(directory)["posterior"]["coefficients"], np.float64)
    rows = content["parameters"]
    means = [row["mean"] for row in rows if row["name"].startswith("coefficients")]
    np.testing.assert_allclose(means, draws.mean(axis=(0, 1)).ravel(), rtol=1e-12)
    assert content["held_out_rows"] == 30
    assert content["not_done"] == []
    assert content["reference"]["divergences"] >= 0


def test_an_existing_run_is_refused_and_left_as_it_is(finished):
    directory, _ = finished
    before = (directory / "run.json").read_bytes()
    outcome = run(directory.parent / "irises.toml", "--output", directory)
    assert outcome.exit_code == 3
    assert "already holds a run" in outcome.stderr
    assert (directory / "run.json").read_bytes() == before


# --- where it goes, what is left out -------------------------------------------------------------


def test_without_output_runs_are_numbered_under_runs(folder):
    study = write(folder)
    for name in ("irises", "irises-2"):
        outcome = run(study, "--quiet", "--rounds", "4")
        assert outcome.exit_code == 0, outcome.output
        assert outcome.output == ""
        assert consortia.open_run(folder / "runs" / name).attrs["rounds"] == 4


def test_parts_that_are_left_out_are_named(folder):
    text = STUDY.replace("test_share = 0.2", "") + REFERENCE + NO_FIGURE
    outcome = run(write(folder, text), "--no-reference", "--chains", "1", "--output", "out")
    assert outcome.exit_code == 0, outcome.output
    assert "R-hat not available" in outcome.stdout
    for part in ("reference: --no-reference", "figure: output.figure", "no held-out rows"):
        assert part in outcome.stdout
    assert not (folder / "out" / "posterior.png").exists()
    assert consortia.open_run(folder / "out")["posterior"].sizes["chain"] == 1


def test_missing_extras_are_named_and_the_rest_is_done(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = run(write(folder, STUDY + REFERENCE), "--output", "out", "--rounds", "8")
    assert outcome.exit_code == 0, outcome.output
    reference, figure = json.loads((folder / "out" / "summary.json").read_text())["not_done"]
    assert reference.startswith("reference: ")
    assert "consortia[reference]" in reference
    assert figure.startswith("figure: ")
    assert "consortia[plots]" in figure
    assert "ESS" in outcome.stdout


# --- mistakes ------------------------------------------------------------------------------------


def test_a_mistake_in_the_study_is_one_message_without_a_traceback(folder):
    outcome = run(write(folder, STUDY.replace("sites = 3", "site = 3")))
    assert outcome.exit_code == 2
    assert "did you mean 'sites'?" in outcome.stderr
    assert "Traceback" not in outcome.output
    assert not (folder / "runs").exists()


def test_the_engine_flower_is_not_started_by_this_command(folder):
    outcome = run(write(folder), "--engine", "flower")
    assert outcome.exit_code == 2
    assert "consortia flower new" in outcome.stderr


def test_an_absent_data_set_has_its_own_exit_code(folder, monkeypatch):
    monkeypatch.delenv("CONSORTIA_DATA", raising=False)
    monkeypatch.setenv("CONSORTIA_CACHE", str(folder / "cache"))
    text = STUDY.replace('"iris"', '"isolet"')
    outcome = run(write(folder, text))
    assert outcome.exit_code == 6
    assert "CONSORTIA_DATA" in outcome.stderr


def test_a_chain_that_turns_non_finite_ends_the_run_and_keeps_the_draws(folder):
    text = STUDY.replace("step_size = 0.1", "step_size = 3.0").replace(
        "rounds = 40", "rounds = 4000"
    )
    outcome = run(write(folder, text.replace("thin = 2", "thin = 1")), "--output", "out")
    assert outcome.exit_code == 4
    assert "non-finite in round" in outcome.stderr
    tree = consortia.open_run(folder / "out")
    assert "non-finite" in tree.attrs["stopped"]
    assert np.isfinite(tree["posterior"]["coefficients"].values).all()


@pytest.mark.filterwarnings("default:interrupted")
def test_an_interrupt_keeps_the_draws_and_has_its_own_exit_code(folder, monkeypatch):
    import consortia.run.loop

    advance = consortia.run.loop.RunLoop._call

    def interrupted(loop, end, thin):
        if loop.done >= 10:
            raise KeyboardInterrupt
        advance(loop, loop.done + 5, thin)

    monkeypatch.setattr(consortia.run.loop.RunLoop, "_call", interrupted)
    outcome = run(write(folder, STUDY + REFERENCE), "--output", "out")
    assert outcome.exit_code == 130, outcome.output
    assert "interrupted after round 10" in outcome.stderr
    assert consortia.open_run(folder / "out")["posterior"].sizes["draw"] == 5
    content = json.loads((folder / "out" / "summary.json").read_text())
    assert "reference: the run was interrupted" in content["not_done"]


@pytest.mark.filterwarnings("default:the posterior")
@pytest.mark.parametrize(("quiet", "expected"), [(False, "warning: the posterior\n"), (True, "")])
def test_a_warning_is_one_line_and_none_when_quiet(capsys, quiet, expected):
    with reported(quiet):
        warnings.warn("the posterior", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == expected


def test_every_error_has_an_exit_code_that_the_help_lists():
    class Other(consortia.errors.ConsortiaError):
        pass

    missing = consortia.datasets.DatasetMissing("x")
    non_finite = NonFiniteError("x", round=1, chain=0, site=None)
    errors = (
        InputError("x"), StoreError("x"), non_finite, MissingExtraError("x"), missing,
        consortia.errors.SiteMissingError(("x",), waited=1.0), consortia.errors.WarmupError("x"),
    )  # fmt: skip
    assert [exit_code(error) for error in errors] == [2, 3, 4, 5, 6, 7, 8]
    assert exit_code(Other("x")) == 1
    text = " ".join(invoke("run", "--help").output.split())
    assert all(f"{code}: " in text for code in EXIT_CODES)


# --- the other commands --------------------------------------------------------------------------


def test_the_schema_is_json():
    assert "algorithm" in json.loads(invoke("schema").stdout)["properties"]


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, without the compilation cache."""
    code = "from consortia.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={**os.environ, "CONSORTIA_COMPILATION_CACHE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_variable_that_jax_refuses_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "maybe")
    outcome = command("check", str(write(tmp_path, STUDY)), cwd=tmp_path)
    assert outcome.returncode == 2
    assert "'maybe' for environment 'JAX_ENABLE_X64'" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_the_version_is_printed_by_the_entry_point(tmp_path):
    outcome = command("--version", cwd=tmp_path)
    assert outcome.stdout == f"consortia {consortia.__version__}\n"


def test_a_mistake_is_answered_without_loading_what_only_a_run_needs(tmp_path):
    study = write(tmp_path, STUDY.replace("sites = 3", "site = 3"))
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from consortia.cli.commands import app\n"
        f"outcome = CliRunner().invoke(app, ['run', {str(study)!r}])\n"
        "assert outcome.exit_code == 2, outcome.output\n"
        "heavy = {'xarray', 'sklearn', 'matplotlib', 'blackjax', 'zarr', 'scipy.stats'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "import jax._src.xla_bridge as bridge\n"
        "print(bridge.backends_are_initialized())\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert outcome.stdout.splitlines() == ["[]", "False"], outcome.stderr
