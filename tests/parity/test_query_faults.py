"""Ranks that fail or halt while a conversation asks: they are named, and draws are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from parity import launch

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("mpi")]

SCRIPT = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
import consortia
from consortia.engines.mpi.panel import MPIPanel
from engines import toy_conversation as toy

engine = consortia.MPIEngine(deadline={deadline})
plain, calls = MPIPanel._answer, [0]

def answer(self, query):
    calls[0] += 1
    if calls[0] == {at} and engine.rank == {rank}:
        {happens}
    return plain(self, query)

MPIPanel._answer = answer
began = time.monotonic()
try:
    tree = toy.sampled(engine)
except consortia.errors.RankError as error:
    draws = None if error.tree is None else error.tree["posterior"].sizes["draw"]
    print("rank", engine.rank, "kept", draws, str(error), flush=True)
    print("within", time.monotonic() - began < 60, flush=True)
    engine.abort(error, 3)
    sys.exit(3)
except LookupError as error:
    engine.abort(error, 4)
    sys.exit(4)
"""


def job(**more):
    options = {"tests": str(Path(__file__).parents[1]), "deadline": 60, "at": 8} | more
    return launch.ranks(3, "-c", SCRIPT.format(**options), timeout=240)


def test_a_rank_that_fails_is_named_and_the_draws_before_are_kept():
    done = job(rank=1, happens="raise LookupError('no such table')")
    assert done.returncode != 0
    # Six to eight are draws: those of the first two batches are kept.
    assert "rank 0 kept 64 rank 1 failed: no such table" in done.stdout
    assert "rank 2 kept None rank 1 failed: no such table" in done.stdout
    assert "within False" not in done.stdout


def test_a_rank_that_halts_is_named_at_the_deadline():
    done = job(rank=2, happens="os.kill(os.getpid(), signal.SIGSTOP)", deadline=4)
    assert done.returncode != 0
    assert "rank 0 kept 64 rank 0 has waited 4 s for a sum at rank 0: rank 2 has been halted" in (
        done.stdout
    )


def test_a_root_that_fails_lets_the_others_go():
    done = job(rank=0, happens="raise LookupError('no such table')")
    assert done.returncode != 0
    assert "rank 1 kept None rank 0 failed: no such table" in done.stdout
