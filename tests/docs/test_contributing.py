"""The skeleton in CONTRIBUTING.md is an algorithm, and samples what its docstring says."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import consortia

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def skeleton():
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    module = types.ModuleType("skeleton")
    sys.modules["skeleton"] = module  # dataclasses look their module up
    exec(compile(code, "CONTRIBUTING.md", "exec"), module.__dict__)
    yield module
    del sys.modules["skeleton"]


def variance_ratio(skeleton, precision, claimed):
    """Sample variance over the claimed one, and the standard error of that."""
    model = consortia.Model(
        lambda theta: -0.5 * jnp.sum(theta**2),
        lambda theta, rows: -0.5 * (rows["m"] - theta[0]) ** 2,
        jnp.zeros(1),
    )
    rows = np.linspace(-1, 2, precision - 1, dtype=np.float32)
    sites = consortia.Sites.from_list([{"m": rows[:2]}, {"m": rows[2:]}])
    chains = 4000
    tree = consortia.sample(
        model, sites, skeleton.summed_langevin(0.1), rounds=60, thin=60, chains=chains,
        progress=False,
    )  # fmt: skip
    draws = np.asarray(tree["posterior"]["theta"])[:, 0, 0]
    return draws.var() / claimed, np.sqrt(2 / chains)


def test_the_skeleton_has_the_variance_that_its_docstring_claims(skeleton):
    # 60 rounds contract the start by (1 - .6)^60: the law is stationary to 1e-24.
    ratio, error = variance_ratio(skeleton, 6, 1 / (6 * (1 - 0.1 * 6 / 2)))
    assert abs(ratio - 1) < 4 * error


def test_the_posterior_variance_itself_would_fail_that_gate(skeleton):
    ratio, error = variance_ratio(skeleton, 6, 1 / 6)
    assert abs(ratio - 1) > 4 * error


def test_the_skeleton_compares_by_value(skeleton):
    assert skeleton.summed_langevin(0.1) == skeleton.summed_langevin(0.1)
    assert skeleton.summed_langevin(0.1) != skeleton.summed_langevin(0.2)
