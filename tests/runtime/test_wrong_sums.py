"""Sums are right in every process that imports this package, or nothing is sampled there."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from consortia.runtime import wrong_sums

SAMPLED = """
model = consortia.models.linear_regression(2)
consortia.core.target.Target(model, model.init)
print(consortia.runtime.wrong_sums.right())
"""
affected = pytest.mark.skipif(version("jaxlib") != wrong_sums.VERSION, reason="needs that version")


def ran(script: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    command = [sys.executable, "-c", script + SAMPLED]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_sums_of_products_that_are_fused_with_what_follows_are_right():
    assert wrong_sums.right()


def test_they_are_right_where_jax_was_imported_before_and_has_not_computed():
    done = ran("import jax, consortia, consortia.core.target")
    assert done.stdout == "True\n", done.stderr


@affected
def test_where_jax_has_computed_before_they_are_wrong_and_nothing_is_sampled():
    early = "import jax; jax.numpy.zeros(1) + 1; import consortia, consortia.core.target\n"
    done = ran(early + "print(consortia.runtime.wrong_sums.right())")
    assert done.stdout == "False\n"
    assert "InputError: jaxlib 0.10.2 computes some sums of 32 bits wrongly" in done.stderr


@affected
def test_what_the_user_has_set_stands(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--one=1")
    wrong_sums.avoid.__wrapped__()
    assert os.environ["XLA_FLAGS"] == f"{wrong_sums.OPTION}= --one=1"
    monkeypatch.setenv("XLA_FLAGS", f"{wrong_sums.OPTION}=LIBRARY")
    wrong_sums.avoid.__wrapped__()
    assert os.environ["XLA_FLAGS"] == f"{wrong_sums.OPTION}=LIBRARY"
