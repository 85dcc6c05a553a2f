"""Conversations that are killed with SIGKILL at any message, and resumed, have the usual bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engines import toy_conversation as toy
from sparse import sparse

import consortia

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")

TESTS = Path(__file__).parents[1]

SCRIPT = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from engines import toy_conversation as toy
import consortia
from consortia.store import durable
from consortia.store.runs import holds_run

at, where, store = int(sys.argv[1]), sys.argv[2], sys.argv[3]
calls = [0]

def kill():
    calls[0] += 1
    if calls[0] == at:
        os.kill(os.getpid(), signal.SIGKILL)

if where == "asking":
    from consortia.engines.conversing import LocalPanel
    plain = LocalPanel.ask
    def ask(self, query, number=0):
        kill()
        return plain(self, query, number)
    LocalPanel.ask = ask
else:
    plain = os.replace
    def replace(*names):  # a file is whole, and not yet in its place
        kill()
        plain(*names)
    os.replace = replace
if holds_run({path}):
    consortia.resume(store, toy.MODEL, toy.sites(), toy.Toy(), progress=False)
else:
    toy.sampled(store=store)
"""


def killed(store, where, at):
    """A process that begins or resumes the run, and is killed there; its exit code."""
    script = SCRIPT.format(tests=str(TESTS), path="__import__('pathlib').Path(store)")
    done = subprocess.run(
        [sys.executable, "-c", script, str(at), where, str(store)],
        capture_output=True,
        text=True,
        env={"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", **os.environ},
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.parametrize(
    ("where", "places"),
    sparse(
        [("asking", (1, 4)), ("asking", (1, 4, 2, 2)), ("a file", (3, 9, 4, 13))],
        [("asking", (1, 4))],
    ),
)
def test_a_conversation_survives_kills(tmp_path, where, places):
    for at in places:
        assert killed(tmp_path / "run", where, at) == -signal.SIGKILL
    assert killed(tmp_path / "run", where, 10**6) == 0
    found, whole = consortia.open_run(tmp_path / "run"), toy.sampled(store=tmp_path / "whole")
    for name, values in whole["posterior"].data_vars.items():
        np.testing.assert_array_equal(values, found["posterior"][name])
    assert found.attrs["messages"] == whole.attrs["messages"]
    assert found.attrs["state"] == "finished"
