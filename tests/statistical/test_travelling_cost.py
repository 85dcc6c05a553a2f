"""The cost of an update does not grow with the number of sites."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

MEASURE = """
import json, os, time
if hasattr(os, "sched_setaffinity"):
    # One core: XLA splits an operation over threads by the size of all that it may read.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
import jax, jax.numpy as jnp, numpy as np, consortia
from consortia.engines.buffers import Window
from consortia.target import Target

FEATURES, STEPS, CHAINS = 20, 40, 4
model = consortia.models.logistic_regression(FEATURES)

def runner(count):
    rng = np.random.default_rng(0)
    sites = consortia.Sites.from_list([
        {"x": rng.normal(size=(20, FEATURES)).astype(np.float32), "y": rng.integers(0, 2, 20)}
        for _ in range(count)
    ])
    method = consortia.fsgld(1e-7, STEPS, 10, covariance="diagonal")
    run = consortia.LocalEngine().prepare(Target(model, model.init), sites, method, CHAINS)
    carry = run.start(0, jnp.zeros((CHAINS, FEATURES)))
    state = [carry, run.buffers(carry), 0]

    def go(rounds):
        carry, buffers, done = state
        began = time.process_time()
        window = Window(done, done + rounds, 0, 2**31 - 1, 0)
        carry, buffers, _ = run.advance(carry, buffers, window)
        jax.block_until_ready(carry.inbox)
        state[:] = [carry, buffers, done + rounds]
        return (time.process_time() - began) / rounds

    go(5)
    return go

few, many = runner(10), runner(10_000)
pairs = [(few(300), many(300)) for _ in range(9)]
print(json.dumps(pairs))
"""


@pytest.mark.slow
def test_an_update_costs_the_same_at_10_and_at_10_000_sites():
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, env=environment, check=True
    )
    pairs = json.loads(result.stdout.splitlines()[-1])
    # The least of nine interleaved times is what the machine's other work has left undisturbed.
    few, many = (min(times) for times in zip(*pairs, strict=True))
    assert many < 1.3 * few
