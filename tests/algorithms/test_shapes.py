"""Every algorithm is traced with the shapes and types that its annotations state."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import warnings
import jaxtyping
from jaxtyping import install_import_hook

from consortia.runtime import late

late.Array, late.PyTree = jaxtyping.Array, jaxtyping.PyTree  # as type checkers read them
rooms = [f"consortia.{room}" for room in ("algorithms", "dynamics", "gradients")]
hook = install_import_hook(rooms, "beartype.beartype")  # modules are imported when first used
import consortia

import sys
import numpy as np
from consortia.algorithms.registry import ALGORITHMS


class Planned(Exception):
    pass  # all phases have been traced; what comes next compiles them


def stop(plan):
    raise Planned


warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
model = consortia.models.linear_regression(features=2)
for name in sys.argv[1:] or ALGORITHMS:
    entry = ALGORITHMS[name]
    data = [
        {"x": rng.normal(size=(9, 2)).astype("f"), "y": rng.normal(size=9).astype("f")}
        for _ in range(entry.sites or 3)
    ]
    sites = consortia.Sites.from_list(data)
    method = entry.factory(**entry.example)
    lengths = {"rounds": 2, "warmup": 2, "chains": 2}
    try:
        consortia.sample(
            model, sites, method, **lengths, on_divergence="ignore", progress=False, on_plan=stop
        )
    except Planned:
        continue
    raise AssertionError(name)

# The control: a matrix is no vector.
from jaxtyping import TypeCheckError
from consortia.dynamics.metropolis import compensated_sum

try:
    compensated_sum(np.ones((2, 2), "f"))
except TypeCheckError:
    pass
else:
    raise AssertionError("nothing was checked")
"""


@pytest.mark.lint
def test_every_algorithm_keeps_to_the_shapes_that_it_states() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
