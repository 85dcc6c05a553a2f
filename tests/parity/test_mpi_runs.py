"""Runs over MPI ranks from the command line, killed, gone on with, and asked for wrongly."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from parity import launch, stored
from parity.comparing import TOLERANCE, assert_same_run
from parity.studies import STUDY

import consortia
from consortia.diagnostics import leave_one_site_out
from consortia.run.specification import CHAINS
from consortia.run.verification import SEED
from consortia.study.build import load_study

HERE = Path(__file__).parent

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("mpi")]

COMMAND = ("-c", "from consortia.cli import main; main()")
WIDE = ("-c", f"import os; os.environ['JAX_ENABLE_X64'] = '1'; {COMMAND[1]}")
STALE = "step_size = 0.001\nbatch_size = 4\nworkers = 2"
AVERAGED = "step_size = 0.1\nleapfrog_steps = 2\nlocal_steps = 2"


def study(folder, algorithm="fa_hmc", arguments=AVERAGED):
    path = folder / "study.toml"
    path.write_text(STUDY.format(sites=3, algorithm=algorithm, arguments=arguments))
    return str(path)


def draws(path):
    return {n: v.values for n, v in consortia.open_run(path)["posterior"].data_vars.items()}


def test_the_command_line_runs_over_ranks_and_goes_on_over_others_and_in_one_process(tmp_path):
    """All of it in 64 bits: the draws are those of a run that one process makes, up to rounding."""
    run, asked = tmp_path / "run", study(tmp_path)
    Path(asked).write_text(Path(asked).read_text().replace("float32", "float64"))
    job = launch.ranks(2, *WIDE, "run", asked, "--engine", "mpi", "--output", str(run))
    assert job.returncode == 0, job.stderr
    assert "rank 1 (process" in job.stdout
    assert job.stdout.count("written to") == 1
    more = launch.ranks(
        3, *WIDE, "resume", str(run), "--engine", "mpi", "--rounds", "90", "--inexact"
    )
    assert more.returncode == 0, more.stderr
    assert "rank 2 (process" in more.stdout
    alone = subprocess.run(
        [sys.executable, *WIDE, "resume", str(run), "--rounds", "120", "--inexact"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert alone.returncode == 0, alone.stderr
    assert stored.resumed_at(run) == [60, 90]
    values = draws(run)
    assert all(part.shape[:2] == (2, 120) for part in values.values())
    with jax.enable_x64(True):
        local = consortia.LocalEngine()
        whole = load_study(asked).with_run(rounds=120)
        built = whole.build(local)
        one = (built.model, built.sites, built.algorithm)
        tree = consortia.sample(*one, **whole.run_options, engine=local, progress=False)
    for name, variable in tree["posterior"].data_vars.items():
        off = np.abs(values.pop(str(name)) - variable.values).max()
        assert off <= TOLERANCE * variable.values.std()
    assert not values


def test_a_run_over_ranks_is_compared_with_the_exact_sampler_and_has_rows_left_out(tmp_path):
    run, asked = tmp_path / "run", study(tmp_path)
    extra = ("--verify", "--loo", "--output", str(run))
    job = launch.ranks(3, *WIDE, "run", asked, "--engine", "mpi", *extra)
    assert job.returncode == 0, job.stderr
    assert "beside few_rounds" in job.stdout
    with jax.enable_x64(True):
        built = load_study(asked).build()
        options = {"chains": CHAINS, "seed": SEED, "progress": False}
        one = consortia.sample(built.model, built.sites, consortia.few_rounds(), **options)
        assert_same_run(consortia.open_run(run / "reference"), one)
        given = (consortia.open_run(run), built.model, built.sites)
        rows, sites = consortia.loo({"the model": given}), leave_one_site_out(*given)
    assert (run / "left-out.txt").read_text() == f"{rows}\n\n{sites}\n"


def test_more_ranks_than_sites_are_refused_once(tmp_path):
    job = launch.ranks(4, *COMMAND, "run", study(tmp_path), "--engine", "mpi")
    assert job.returncode == 2
    assert job.stderr.count("4 ranks for 3 sites") == 1
    assert "Traceback" not in job.stderr


def test_an_asynchronous_method_says_how_many_ranks_it_needs(tmp_path):
    asked = study(tmp_path, "stale_sgld", STALE)
    text = Path(asked).read_text().replace("sites = 3", "sites = 1")
    Path(asked).write_text(text)
    job = launch.ranks(2, *COMMAND, "run", asked, "--engine", "mpi")
    assert job.returncode == 2
    assert "mpiexec -n 3" in job.stderr


DISAGREE = """
import sys, consortia
from consortia.errors import RankError
sys.path.insert(0, {here!r})
import problem
engine = consortia.MPIEngine(deadline=60)
plain = {{"step_size": 0.04, "leapfrog_steps": 1, "local_steps": 1}}
given = {{
    "step size": ({{**plain, "step_size": 0.05}}, {{}}),
    "seed": (plain, {{"seed": 1}}),
    "rounds": (plain, {{"rounds": 6}}),
    "schedule": ({{**plain, "step_size": lambda step: 0.04 / (2 + step)}}, {{}}),
}}
for what, (parameters, options) in given.items():
    if not engine.rank:
        parameters, options = plain, {{}}
        if what == "schedule":
            parameters = {{**plain, "step_size": lambda step: 0.04 / (1 + step)}}
    algorithm = consortia.fa_hmc(**parameters)
    options = {{"rounds": 5, "seed": 0, **options}}
    try:
        consortia.sample(problem.MODEL, problem.sites(3), algorithm, engine=engine, **options)
    except RankError as error:
        print(f"{{what}}: {{error}}")
same = consortia.fa_hmc(**{{**plain, "step_size": lambda step: 0.04 / (1 + step)}})
consortia.sample(problem.MODEL, problem.sites(3), same, rounds=5, engine=engine)
print("alike")
"""


def test_ranks_that_were_given_different_studies_are_named():
    job = launch.ranks(3, "-c", DISAGREE.format(here=str(HERE)))
    assert job.returncode == 0, job.stderr
    told = "Different from rank 0: rank 1 in {0}; rank 2 in {0}."
    for what in ("step size", "schedule"):
        assert (
            job.stdout.count(f"{what}: the processes of this job run different studies. ") == 3
        ), job.stdout
    assert job.stdout.count(told.format("algorithm")) == 6
    assert job.stdout.count(told.format("seed")) == 3
    assert job.stdout.count(told.format("rounds")) == 3
    assert job.stdout.count("alike") == 3


STEPS = """
import sys, warnings, consortia
import numpy as np
from consortia.engines.mpi.run import MPIRun
sys.path.insert(0, {here!r})
import problem
warnings.simplefilter("ignore")

class Counted:
    def __init__(self, world):
        self.world, self.steps = world, []
    def __getattr__(self, name):
        if name.startswith("I") and name not in ("Isend", "Irecv", "Iprobe"):
            self.steps.append(name)
        return getattr(self.world, name)

class Begun(Exception):
    pass

def begins(*_):
    raise Begun

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

MPIRun.advance = begins
engine = consortia.MPIEngine(deadline=60)
whole, method = problem.sites(3), consortia.{method}

def until_the_first_round(what, change=lambda rows: rows, engine=engine, **more):
    counted = Counted(engine._communicator._world)
    engine._communicator._world = counted
    def read(index):
        rows = dict(whole.shards[index])
        return change(rows) if index == 1 else rows
    try:
        sites = consortia.read_sites(read, whole.names, method, engine)
        given = {{"chains": 2, "rounds": 2, "progress": False, "on_divergence": "ignore"}}
        given |= {{"engine": engine, **more}}
        consortia.sample(problem.MODEL, sites, method, **given)
    except Begun:
        say(what, *counted.steps)
    except consortia.errors.ConsortiaError as error:
        say(what, type(error).__name__, error)
    engine._communicator._world = counted.world

until_the_first_round("well")
until_the_first_round("data", lambda rows: rows | {{"y": rows["y"] + 5}})
until_the_first_round("start", lambda rows: {{"x": 0 * rows["x"] + 3e38, "y": 0 * rows["y"]}})
until_the_first_round("rows", lambda rows: rows | {{"y": rows["y"][1:]}})
until_the_first_round("mode", engine=consortia.MPIEngine(block=1 + engine.rank))
until_the_first_round("again")
"""


METHOD = "fa_ld(step_size=1e-3, local_steps=2)"


def test_all_ranks_meet_three_times_before_the_first_round_and_hear_there_what_is_wrong():
    """They agree on what they read, on what they run, and on the start."""
    job = launch.ranks(3, "-c", STEPS.format(here=str(HERE), method=METHOD))
    assert job.returncode == 0, job.stderr
    for what in ("well", "again"):
        assert job.stdout.count(f"{what} Iallgather Iallgather Iallreduce\n") == 3, job.stdout
    for told in (
        "data InputError rank 1: site 'site 1': y holds labels outside 0..1",
        "start InputError the gradient of the log-density of site 'site 1' is not finite",
        "rows InputError rank 1: Site 'site 1', leaf ",
        "mode RankError the processes of this job run different studies. Different from rank 0: "
        "rank 1 in node_mode or block; rank 2 in node_mode or block.",
    ):
        assert job.stdout.count(told) == 3, (told, job.stdout)


UNCAUGHT = """
import sys, consortia
sys.path.insert(0, {here!r})
import problem
engine = consortia.MPIEngine()
algorithm = consortia.fa_hmc(step_size=0.05, leapfrog_steps=1, local_steps=1)
if engine.rank == 1:
    raise LookupError("no such table")
consortia.sample(problem.MODEL, problem.sites(3), algorithm, rounds=5, engine=engine)
"""


def test_an_exception_that_a_script_does_not_catch_is_told_to_the_others():
    job = launch.ranks(3, "-c", UNCAUGHT.format(here=str(HERE)), timeout=240)
    assert job.returncode == 1
    assert job.stderr.count("LookupError: no such table") == 1
    assert len(re.findall(r"RankError: .*no such table", job.stderr)) == 2


DIVERGES = """
import sys, consortia
from consortia.errors import NonFiniteError
sys.path.insert(0, {here!r})
import problem
engine = consortia.{engine}
algorithm = consortia.dsgld(step_size=900.0, batch_size=3, local_steps=2)
try:
    consortia.sample(problem.MODEL, problem.sites(5), algorithm, rounds=60, chains=2, engine=engine)
except NonFiniteError as error:
    if engine.root:
        print(error.round, error.chain, error.site, *(f"{{x:.4g}}" for x in error.position))
"""


def test_a_travelling_chain_that_turns_non_finite_is_told_as_in_one_process():
    told = [
        launch.ranks(count, "-c", DIVERGES.format(here=str(HERE), engine=engine))
        for count, engine in ((1, "LocalEngine(devices=1)"), (3, "MPIEngine()"))
    ]
    assert [job.returncode for job in told] == [0, 0], told[1].stderr
    lines = [job.stdout.splitlines()[-1] for job in told]
    assert lines[0].split()[2] == "site"
    assert lines[0] == lines[1]


RESUMED = """
import sys, consortia
sys.path.insert(0, {here!r})
import problem
engine = consortia.MPIEngine()
arguments = problem.MODEL, problem.sites(3), consortia.fsgld(0.01, local_steps=3)
options = {{"engine": engine, "progress": False}}
lengths = {{"warmup": 4, "chains": 2, "thin": 3}}
whole = consortia.sample(*arguments, rounds=14, **lengths, **options)
consortia.sample(*arguments, rounds=7, store={store!r}, **lengths, **options)
again = consortia.resume({store!r}, *arguments, rounds=14, **options)
if engine.root:
    print(all((whole.posterior[name] == again.posterior[name]).all() for name in whole.posterior))
"""


def test_ranks_resume_with_what_was_fitted_before_the_run(tmp_path):
    store = str(tmp_path / "run")
    job = launch.ranks(2, "-c", RESUMED.format(here=str(HERE), store=store))
    assert job.returncode == 0, job.stderr[-4000:]
    assert job.stdout.split()[-1] == "True"


WORKERS = """
import sys, consortia, numpy as np
sys.path.insert(0, {here!r})
import problem
engine = consortia.MPIEngine()
method = consortia.stale_sgld(step_size=0.01, batch_size=4, workers=3)
arguments = problem.MODEL, problem.sites(1), method
options = {{"engine": engine, "progress": False}}
first = consortia.sample(*arguments, rounds=40, chains=1, store={store!r}, **options)
again = consortia.resume({store!r}, *arguments, rounds=100, **options)
if engine.root:
    for name, values in first.posterior.items():
        found = again.posterior[name].values
        assert found.shape[:2] == (1, 100) and np.isfinite(found).all()
        assert (found[:, :40] == values.values).all()
        assert (found[0, 40] != found[0, 39]).any()
    print("resumed")
"""


def test_asynchronous_workers_are_resumed(tmp_path):
    job = launch.ranks(4, "-c", WORKERS.format(here=str(HERE), store=str(tmp_path / "run")))
    assert job.returncode == 0, job.stderr[-4000:]
    assert job.stdout.split()[-1] == "resumed"


CUT = """
import sys, warnings
sys.path.insert(0, {here!r})
import numpy as np
import consortia, problem
from consortia.run.conversation import AnswerSource
engine = consortia.MPIEngine()
method = consortia.few_rounds(effective_size=300, proposals=256)
arguments = problem.MODEL, problem.sites(3), method
options = {{"seed": 3, "engine": engine, "progress": False, "chains": 2}}
whole = consortia.sample(*arguments, **options)
messages = whole.attrs["communication_rounds"] if engine.root else 0
messages = int(engine._communicator.from_root(np.array([messages], np.float64))[0])
answer, cut, same = AnswerSource.answer, 0, []

def until_cut(self, query):
    if len(self.messages) == cut:
        raise KeyboardInterrupt
    return answer(self, query)

for cut in range(1, messages):
    store = {store!r} + str(cut)
    AnswerSource.answer = until_cut
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        consortia.sample(*arguments, store=store, **options)
    AnswerSource.answer = answer
    del options["seed"], options["chains"]
    again = consortia.resume(store, *arguments, **options)
    options |= {{"seed": 3, "chains": 2}}
    if engine.root:
        same += [bool((whole.posterior[n] == again.posterior[n]).all()) for n in whole.posterior]
if engine.root:
    print(messages, len(same), all(same))
"""


@pytest.mark.slow
def test_few_rounds_over_three_ranks_cut_after_any_message_has_the_same_draws(tmp_path):
    job = launch.ranks(3, "-c", CUT.format(here=str(HERE), store=str(tmp_path / "run")))
    assert job.returncode == 0, job.stderr[-4000:]
    messages, count, same = job.stdout.split()[-3:]
    assert int(messages) > 2
    assert int(count) >= int(messages) - 1
    assert same == "True"


HALTED = """
import os, signal, sys, time, consortia
from consortia.errors import RankError
engine = consortia.MPIEngine(deadline=4)
if engine.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
began = time.monotonic()
try:
    {wait}
except RankError as error:
    print(f"{{time.monotonic() - began:.0f}} s: {{error}}", flush=True)
    engine.abort(error, 7)
    sys.exit(7)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "wait", ["engine.barrier()", "engine._communicator.among(2)"], ids=["meets", "splits"]
)
def test_a_rank_that_does_not_answer_is_named_at_the_deadline(wait):
    job = launch.ranks(3, "-c", HALTED.format(wait=wait), timeout=120)
    assert job.returncode != 0
    assert re.search(r"4 s: rank [02] has waited 4 s", job.stdout)
    assert "rank 1 has been halted" in job.stdout


def start(store, algorithm, count):
    command = [launch.mpiexec(), "-n", str(count), sys.executable]
    return subprocess.Popen(
        [*command, str(HERE / "stored.py"), "mpi", str(store), algorithm, "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=launch.environment(),
        start_new_session=True,
    )


def ranks_of(job):
    """Process numbers of the ranks: the job's last descendants, under the guards of each."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().split(b"\0")
            if stat[0] not in "ZX":
                parents[int(folder.name)] = (int(stat[1]), command[0])

    def descends(process):
        while process in parents and process != job.pid:
            process = parents[process][0]
        return process == job.pid

    with_children = {parent for parent, _ in parents.values()}
    python = sys.executable.encode()
    return sorted(
        process
        for process, (_, command) in parents.items()
        if command == python and process not in with_children and descends(process)
    )


def kill_in_mid_run(store, algorithm, count, rng):
    """Kills one rank some time after it has run and saved rounds of its own."""
    before, total = stored.done(store), stored.rounds_of("mpi", algorithm)
    job = start(store, algorithm, count)
    try:
        goal = before + int((total - before) * rng.uniform(0.05, 0.25))
        stored.wait_for(store, max(goal, before + 2), lambda: job.poll() is None)
        time.sleep(rng.uniform(0.0, 0.2))  # not always just after a checkpoint
        alive = ranks_of(job)
        assert len(alive) == count, f"{len(alive)} ranks are left of {count}: too late for a kill"
        victim = rng.choice(alive)
        os.kill(victim, signal.SIGKILL)
        _, said = job.communicate(timeout=100)
    finally:
        job.kill()
    assert job.returncode != 0
    assert f"(process {victim}) was ended by the signal SIGKILL" in said
    assert before < stored.done(store) < total


def finishes(job):
    try:
        _, said = job.communicate(timeout=300)
    finally:
        job.kill()
    assert job.returncode == 0, said


def survives(folder, algorithm, count, kills, seed):
    """Draws after so many kills are those of a run that was left alone, bit by bit."""
    rng = random.Random(seed)
    alone, killed = folder / "alone", folder / "killed"
    finishes(start(alone, algorithm, count))
    for _ in range(kills):
        kill_in_mid_run(killed, algorithm, count, rng)
    finishes(start(killed, algorithm, count))
    places = [0, *stored.resumed_at(killed), stored.rounds_of("mpi", algorithm)]
    assert len(places) == kills + 2
    assert all(before < after for before, after in itertools.pairwise(places))
    expected, found = draws(alone), draws(killed)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_rank_ends_the_job_and_nothing_is_lost(tmp_path):
    survives(tmp_path, "fa_hmc", 3, kills=1, seed=0)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "algorithm", ["fa_hmc", "de_sghmc", "fsgld", "federated_hmc", "decentralized_hmc"]
)
def test_twenty_kills_lose_nothing(tmp_path, algorithm):
    survives(tmp_path, algorithm, 4, kills=4, seed=1)
