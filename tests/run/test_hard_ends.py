"""Inputs that would change the posterior without a word, and ends that come from outside."""

from __future__ import annotations

import errno
import importlib
import multiprocessing
import signal
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from run.signalling import send_in_run
from typer.testing import CliRunner

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.cli.commands import app
from consortia.errors import InputError
from consortia.run.interrupts import Abrupt, Interrupts, held
from tests.refusals import refused

METHOD = consortia.fa_ld(0.05, 1)
ROWS = {"x": np.arange(12.0, dtype=np.float32).reshape(6, 2) / 12, "y": np.ones(6, np.float32)}
SITES = consortia.Sites.from_list([ROWS], names=["north"])
MODEL = consortia.models.linear_regression(2)


def sample(model=MODEL, sites=SITES, method=METHOD, **options):
    arguments = {"chains": 1, "rounds": 30, "progress": False, **options}
    return consortia.sample(model, sites, method, **arguments)


# --- whole numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_whole_numbers_that_do_not_fit_are_refused_with_the_column(dtype):
    wide = np.ones((6, 2), dtype)
    wide[3, 1] = 3_000_000_000 if dtype is np.int64 else 2**32
    sites = consortia.Sites.from_list([{**ROWS, "x": wide}], names=["north"])
    with refused(argument="x", site="north", match="column 1: .*JAX_ENABLE_X64"):
        sample(sites=sites)
    response = {**ROWS, "y": np.full(6, -(2**31) - 1)}
    with refused(argument="y", site="site 0", match="-2147483649"):
        sample(sites=consortia.Sites.from_list([response]))


def test_whole_numbers_that_fit_are_the_same_as_floats():
    of = [{**ROWS, "y": np.full(6, 3, kind)} for kind in (np.int64, np.float32)]
    one, other = (sample(sites=consortia.Sites.from_list([rows])) for rows in of)
    np.testing.assert_array_equal(
        one["posterior"]["coefficients"].values, other["posterior"]["coefficients"].values
    )


def test_a_large_whole_response_of_a_file_is_a_number_and_no_class(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2500000001\n2,2500000003\n")
    study = tmp_path / "study.toml"
    text = (
        '[data]\nfiles = ["a.csv"]\n[model]\nkind = "{}"\n[algorithm]\nname = "fa_ld"\n'
        "step_size = 0.1\nlocal_steps = 1\n[run]\nrounds = 10\n"
    )
    study.write_text(text.format("linear_regression"))
    from consortia.study.build import load_study

    rows = load_study(study).build().sites.site(0)
    assert rows["y"].dtype == np.float64
    assert rows["y"].tolist() == [2500000001, 2500000003]
    study.write_text(text.format("softmax_regression"))
    with refused(argument="model.kind", match="than 10,000"):
        load_study(study).build()


def test_a_counted_response_can_be_standardised(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,3\n2,70\n3,12\n")
    study = tmp_path / "study.toml"
    study.write_text(
        '[data]\nfiles = ["a.csv"]\nstandardise_target = true\n[model]\n'
        'kind = "linear_regression"\n[algorithm]\nname = "fa_ld"\nstep_size = 0.1\n'
        "local_steps = 1\n[run]\nrounds = 10\n"
    )
    from consortia.study.build import load_study

    assert abs(load_study(study).build().sites.site(0)["y"].mean()) < 1e-12


# --- other inputs --------------------------------------------------------------------------------


def test_masked_arrays_are_refused():
    hidden = np.ma.masked_array([1.0, 999.0], [False, True])
    with refused(site="site 0", match=r"leaf 'y': a masked array.*filled"):
        consortia.Sites.from_list([{"y": hidden}])


def example(name, **more):
    return ALGORITHMS[name].factory(**(ALGORITHMS[name].example | more))


@pytest.mark.parametrize(
    "make",
    [
        lambda value: example("fa_hmc", debias="none" if value is None else value),
        lambda value: example("fa_hmc", replace=value),
        lambda value: example("dsgld", replace=value),
        lambda value: example("de_sgld", averaged_noise="" if value is None else value),
        lambda value: example("stale_sgld", replace=value),
        lambda value: example("decentralized_hmc", draw_before_mixing=value),
        lambda value: consortia.models.logistic_regression(2, intercept=value),
        lambda value: consortia.keep_predictions(ROWS, log_density=value),
    ],
)
@pytest.mark.parametrize("value", ["no", "", 0, 1.0, None])
def test_what_is_no_truth_value_is_not_taken_for_one(make, value):
    with pytest.raises(InputError, match=r"is .*: it must be True or False"):
        make(value)


KEPT = {
    "draws": "draws",
    "moments": "moments",
    "predictions": consortia.keep_predictions(ROWS),
}


@pytest.mark.parametrize("keep", sorted(KEPT))
@pytest.mark.parametrize(
    "stop", [{"rhat": 1.5}, {"ess": 1.0}, {"budget": 0.0}, {"budget": 1e6}], ids=str
)
def test_every_pair_of_keep_and_stop_runs_or_is_refused(keep, stop, tmp_path):
    options = {"keep": KEPT[keep], "stop": consortia.stop_when(**stop, every=4), "chains": 2}
    if keep != "draws" and "budget" not in stop:
        with refused(argument="stop"):
            sample(**options)
        return
    tree = sample(**options, store=tmp_path / "run")
    spent = stop == {"budget": 0.0}
    assert tree.attrs["iterations_run"] == (4 if spent else tree.attrs["iterations_run"])
    assert tree.attrs["end"] == (
        "stopping rule"
        if "spent" in tree.attrs["stopped"] or ("budget" not in stop)
        else "all rounds"
    )
    assert spent == ("spent" in tree.attrs["stopped"])


def test_a_model_that_computes_something_else_than_before_is_refused():
    class Width:
        value = 1.0

    def model():
        return consortia.Model(
            lambda theta: -0.5 * theta**2,
            lambda theta, rows: -0.5 * ((rows["y"] - theta) * Width.value) ** 2,
            jnp.zeros(()),
        )

    first = model()
    before = sample(first)["posterior"]["theta"].values
    np.testing.assert_array_equal(sample(first)["posterior"]["theta"].values, before)
    Width.value = 3.0
    with refused(argument="model", match="consortia.Model"):
        sample(first)
    Width.value = np.ones(7, np.float32)
    with refused(argument="log_likelihood", match="cannot be evaluated"):
        sample(first)
    Width.value = 3.0
    assert not np.array_equal(sample(model())["posterior"]["theta"].values, before)


# --- ends from outside ---------------------------------------------------------------------------


def child(answers):
    try:
        sample()
        answers.put("sampled")
    except InputError as error:
        answers.put(str(error))


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_forked_process_says_at_once_that_it_cannot_sample():
    sample()
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    process = fork.Process(target=child, args=(answers,))
    process.start()
    process.join(20)
    ended = not process.is_alive()
    process.kill()
    assert ended
    assert "forked" in answers.get()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_noted_and_the_second_ends_at_once(number):
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, usual)  # one that is ignored, as of a job under nohup, stays so
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(number)
            assert interrupts.requested
            with pytest.raises(Abrupt):
                signal.raise_signal(number)
        assert signal.getsignal(number) == usual
    finally:
        signal.signal(number, before)


def test_a_handler_of_the_program_stands():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGTERM)
            assert seen == [signal.SIGTERM]
            assert not interrupts.requested
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_run_that_is_told_to_end_keeps_its_draws_and_can_be_gone_on_with(tmp_path):
    send_in_run(signal.SIGTERM)
    with held(), pytest.warns(UserWarning, match="interrupted after round"):
        tree = sample(rounds=2**30, thin=2**12, store=tmp_path / "run")
    assert tree.attrs["state"] == "interrupted"
    done = tree.attrs["iterations_run"]
    assert done > 0
    more = consortia.resume(
        tmp_path / "run", MODEL, SITES, METHOD, rounds=done + 2**12, progress=False
    )
    assert more.attrs["state"] == "finished"


LOOP = """
import sys
sys.path.insert(0, sys.argv[4])
import consortia, numpy as np
from signalling import send_in_run
rows = {"x": np.ones((4, 1), np.float32), "y": np.float32([1, 2, 3, 2])}
model, sites = consortia.models.linear_regression(1), consortia.Sites.from_list([rows, rows])
method = consortia.fa_ld(0.01, 1)
number, thin = int(sys.argv[2]), int(sys.argv[3])
for seed in range(3):
    send_in_run(number, draws=int(thin < 2**20))
    try:
        consortia.sample(model, sites, method, rounds=2**30, thin=thin, seed=seed, progress=False,
                         store=f"{sys.argv[1]}/{seed}")
    except KeyboardInterrupt as error:
        print("draws", "posterior" in error.tree.children, flush=True)
        raise
    print("went on", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "thin", "said"),
    [
        (signal.SIGTERM, 2**12, ""),
        pytest.param(signal.SIGHUP, 2**12, "", marks=pytest.mark.slow),
        (signal.SIGINT, 2**12, "draws True\n"),
        (signal.SIGINT, 2**29, "draws False\n"),
    ],
)
def test_a_signal_ends_a_loop_over_seeds_after_the_run_is_saved(tmp_path, number, thin, said):
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        LOOP,
        str(tmp_path),
        str(int(number)),
        str(thin),
        str(Path(__file__).parent),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -number, ended.stderr
    assert ended.stdout == said
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    assert consortia.open_run(tmp_path / "0").attrs["state"] == "interrupted"


def test_at_a_prompt_an_interrupt_ends_the_run_and_the_draws_come_back(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    send_in_run(signal.SIGINT)
    with pytest.warns(UserWarning, match="the draws so far are returned"):
        tree = sample(rounds=2**30, thin=2**12)
    assert tree["posterior"].sizes["draw"] > 0


def test_a_full_disk_at_the_summary_is_said_and_the_draws_are_kept(tmp_path, monkeypatch):
    module = importlib.import_module("consortia.report.study_run")
    real = module.replace_file

    def full(path, pieces, **more):
        if path.name.startswith("summary"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, pieces, **more)

    monkeypatch.setattr(module, "replace_file", full)
    (tmp_path / "a.csv").write_text("x,y\n1,0.5\n2,1.5\n3,2.5\n")
    (tmp_path / "study.toml").write_text(
        '[data]\nfiles = ["a.csv"]\n[model]\nkind = "linear_regression"\n[algorithm]\n'
        'name = "fa_ld"\nstep_size = 0.05\nlocal_steps = 1\n[run]\nrounds = 20\nchains = 1\n'
        "[output]\nfigure = false\n"
    )
    run = tmp_path / "run"
    outcome = CliRunner().invoke(app, ["run", str(tmp_path / "study.toml"), "-o", str(run), "-q"])
    assert outcome.exit_code == 3, outcome.output
    assert "No space left" in outcome.stderr
    assert "make room" in outcome.stderr
    assert consortia.open_run(run)["posterior"].sizes["draw"] == 20
