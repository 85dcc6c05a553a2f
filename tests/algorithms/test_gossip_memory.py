"""Peak memory of gossip on rings of unlike size, each in a process of its own."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Not getrusage: its peak starts from that of the process which forked this one.
PEAK = Path("/proc/self/status")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PEAK.exists(), reason="peak memory is read from /proc"),
]

RUN = """
import sys
import numpy as np
import consortia

agents = int(sys.argv[1])
rng = np.random.default_rng(0)
x = rng.normal(size=(agents, 20, 10)).astype(np.float32)
y = rng.normal(size=(agents, 20)).astype(np.float32)
sites = consortia.Sites.from_list([{"x": x[i], "y": y[i]} for i in range(agents)])
model = consortia.models.linear_regression(10)
method = consortia.de_sgld(0.01, consortia.graphs.mixing_matrix(consortia.graphs.ring(agents)))
tree = consortia.sample(model, sites, method, rounds=20, progress=False)
assert np.isfinite(tree["posterior"]["coefficients"].to_numpy()).all()
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) / 1024)
"""


def peak_mebibytes(agents: int) -> float:
    finished = subprocess.run(
        [sys.executable, "-c", RUN, str(agents)],
        env={"JAX_PLATFORMS": "cpu", **os.environ},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return float(finished.stdout)


def test_memory_grows_with_the_agents_and_no_faster() -> None:
    # 880 bytes an agent are 84 MiB of data at 100,000, held by the caller, the sites and the
    # device. Agents times agents, even of one bit, would be 1,200 MiB.
    least, some, many = (peak_mebibytes(agents) for agents in (10, 10_000, 100_000))
    print(least, some, many)
    assert many - least < 1000
    assert math.log10((many - least) / (some - least)) < 1.1
